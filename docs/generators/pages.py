"""Every page that is made from the code, by its path below docs/."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from docs.generators.api import api_page
from docs.generators.command_line import command_line_page
from docs.generators.contract import contract_page
from docs.generators.dashboard import dashboard_file
from docs.generators.errors import errors_page
from docs.generators.metrics import metrics_page
from docs.generators.routes import routes_page
from docs.generators.settings import config_page

PAGES: Mapping[str, Callable[[], str]] = {
    "reference/api.md": api_page,
    "reference/cli.md": command_line_page,
    "reference/config.md": config_page,
    "reference/errors.md": errors_page,
    "reference/http.md": routes_page,
    "reference/metrics.md": metrics_page,
    "reference/proto.md": contract_page,
    "grafana/dashboard.json": dashboard_file,
}
