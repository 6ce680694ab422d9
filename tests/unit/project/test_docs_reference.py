"""What is made from the code is never older than the code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import sublet
from docs.generators.api import names_on_page
from docs.generators.command_line import helps
from docs.generators.contract import CONTRACT, declared
from docs.generators.metrics import exposed_names
from docs.generators.pages import PAGES, PARTS, with_part
from sublet.functions.errors import SubletError, error_from_code
from sublet.runtime.http.errors import STATUS_BY_CODE
from sublet.runtime.protocol.wire import errors as wire_errors
from sublet.runtime.services.metrics import METRICS

DOCS = Path(__file__).resolve().parents[3] / "docs"
DASHBOARD = json.loads((DOCS / "grafana" / "dashboard.json").read_text())
EXPOSED = {name for each in METRICS for name in exposed_names(each)}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_what_the_code_says_now(page: str) -> None:
    assert (DOCS / page).read_text() == PAGES[page](), "run `make reference`"


@pytest.mark.parametrize("page", PARTS)
def test_a_part_of_a_page_is_what_the_code_says_now(page: str) -> None:
    text = (DOCS / page).read_text()

    assert text == with_part(text, PARTS[page]()), "run `make reference`"


def test_every_public_name_is_in_the_reference() -> None:
    errors = {
        name
        for name in sublet.__all__
        if isinstance(kind := getattr(sublet, name), type) and issubclass(kind, SubletError)
    }

    assert names_on_page() | errors == {*sublet.__all__}


def test_every_error_has_a_status_in_http_and_grpc() -> None:
    page = (DOCS / "reference" / "errors.md").read_text()

    for code in {*STATUS_BY_CODE, *wire_errors.STATUS_BY_CODE}:
        assert f"`{code}`" in page
        if type(error_from_code(code, "")).__module__ == SubletError.__module__:
            only_http = code not in wire_errors.STATUS_BY_CODE
            only_grpc = code not in STATUS_BY_CODE
            assert not only_grpc
            assert not only_http or type(error_from_code(code, "")) is SubletError


def test_every_command_is_in_the_reference_with_an_example() -> None:
    groups = {
        "sublet",
        "sublet egress",
        "sublet state",
        "sublet dead",
        "sublet pipelines",
        "sublet scale",
        "sublet burst",
        "sublet config",
    }

    for name, text in helps():
        assert name in groups or f"Example: {name} " in text or f"Example: {name}\n" in text, name


def test_every_line_of_the_contract_is_in_the_reference() -> None:
    text = CONTRACT.read_text()
    found = list(declared(text))

    assert sum(each.kind == "rpc" for each in found) == len(re.findall(r"^ *rpc ", text, re.M))
    assert sum(each.kind == "message" for each in found) == len(
        re.findall(r"^ *message ", text, re.M)
    )
    assert sum(each.kind == "field" for each in found) == len(re.findall(r" = \d+;$", text, re.M))


def test_the_dashboard_asks_only_for_metrics_that_exist_and_for_all_of_them() -> None:
    queries = " ".join(
        target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]
    )
    variables = " ".join(
        each["definition"] for each in DASHBOARD["templating"]["list"] if "definition" in each
    )
    asked = {*re.findall(r"sublet_\w+", queries)}

    assert asked | {*re.findall(r"sublet_\w+", variables)} <= EXPOSED
    for each in METRICS:
        assert asked & {*exposed_names(each)}, each.name


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in DASHBOARD["panels"]]

    assert len({*places}) == len(places)
    assert all(x + 8 <= 24 for x, _ in places)


@pytest.mark.parametrize("page", ["how-to/metrics.md", "how-to/overload.md", "how-to/failures.md"])
def test_every_metric_that_a_page_names_exists(page: str) -> None:
    named = {*re.findall(r"\bsublet_[a-z_]+", (DOCS / page).read_text())}

    assert named
    assert named <= EXPOSED | {each.name for each in METRICS}
