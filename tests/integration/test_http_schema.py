"""A worker holds to the description that it serves, whatever is sent to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from sublet.runtime.config.limits import Limits
from sublet.runtime.http.content import MSGPACK_TYPE
from sublet.runtime.http.openapi import describe
from tests.integration.http_app import app
from tests.integration.http_worker import http_worker

EXAMPLES_MAX = 20


def no_server_error(
    context: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
) -> bool | None:
    """A deadline may be too short for anybody."""
    too_late = response.status_code == 504 and "Sublet-Deadline" in case.headers
    assert too_late or response.status_code < 500, response.text
    return None


def accepts_what_fits(
    context: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
) -> bool | None:
    """To JSON schema 3.0 is an integer; to a function that wants an int it is not."""
    if "Expected `int`, got `float`" in response.text:
        return None
    # Nobody can make up a cursor, or the id of a dead letter.
    made_up = ("not an egress position", "beyond its end", "is not an id", "has no partition")
    if any(each in response.text for each in made_up):
        return None
    return positive_data_acceptance(context, response, case)


CHECKS = [
    no_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    accepts_what_fits,
    unsupported_method,
]
DOCUMENT = describe(app.functions, Limits())


def only_json(document: Any) -> Any:
    """Leave out msgpack: a JSON schema generates values of JSON only."""
    if isinstance(document, dict):
        kept = {name: each for name, each in document.items() if name != MSGPACK_TYPE}
        return {name: only_json(each) for name, each in kept.items()}
    return [only_json(each) for each in document] if isinstance(document, list) else document


def without_waiting(document: Any) -> Any:
    """Leave out the parameter that makes a worker wait, up to a minute, for what nobody emits."""
    (page,) = document["paths"]["/egress/{name}/page"].values()
    page["parameters"] = [each for each in page["parameters"] if each["name"] != "wait_ms"]
    return document


# A stream has no end that a test could wait for.
schema = schemathesis.openapi.from_dict(without_waiting(only_json(DOCUMENT))).exclude(
    path="/egress/{name}"
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    target = "tests.integration.http_app:app"
    with http_worker(tmp_path_factory.mktemp("schema"), target=target) as running:
        yield running


def test_the_description_is_the_one_that_is_served(url: str) -> None:
    assert httpx.get(f"{url}/openapi.json").json() == DOCUMENT


@schema.parametrize()
@settings(max_examples=EXAMPLES_MAX, suppress_health_check=list(HealthCheck))
def test_every_answer_is_as_described(case: schemathesis.Case, url: str) -> None:
    case.call_and_validate(base_url=url, checks=CHECKS)
