"""Everything in docs/ that is made from the code, by its path: whole pages, and parts of pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from docs.generators.api import api_page
from docs.generators.command_line import command_line_part
from docs.generators.contract import contract_page
from docs.generators.dashboard import dashboard_file
from docs.generators.errors import errors_page
from docs.generators.metrics import metrics_page
from docs.generators.routes import routes_part
from docs.generators.settings import config_page

PAGES: Mapping[str, Callable[[], str]] = {
    "reference/api.md": api_page,
    "reference/config.md": config_page,
    "reference/errors.md": errors_page,
    "reference/metrics.md": metrics_page,
    "reference/proto.md": contract_page,
    "grafana/dashboard.json": dashboard_file,
}
PARTS: Mapping[str, Callable[[], str]] = {
    "cli.md": command_line_part,
    "http.md": routes_part,
}
"""What stands between two marks of a page that is otherwise written by hand."""

BEGIN = "<!-- Made by `make reference`, up to the next mark. -->\n"
END = "<!-- Made up to here. -->\n"


def with_part(page: str, made: str) -> str:
    """Return a page with the part between its marks made anew."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"the page lacks {BEGIN!r}"
    assert end, f"the page lacks {END!r}"
    return f"{before}{BEGIN}\n{made}\n{END}{after}"
