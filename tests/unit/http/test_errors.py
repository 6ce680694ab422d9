"""Every error has its status, and its problem says no more than it should."""

from __future__ import annotations

import json

import pytest

from sublet.functions import errors
from sublet.functions.errors import (
    HandlerError,
    OverloadedError,
    RejectedError,
    SubletError,
    UnavailableError,
)
from sublet.runtime.http.errors import STATUS_BY_CODE, problem, problem_of


def test_every_code_of_the_functions_errors_has_a_status() -> None:
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]

    codes = {kind.code for kind in kinds if issubclass(kind, SubletError)}
    assert len(codes) > 15
    assert codes <= STATUS_BY_CODE.keys()


@pytest.mark.parametrize(
    ("retry_after_ms", "header"), [(1, "1"), (50, "1"), (1_000, "1"), (1_001, "2"), (60_000, "60")]
)
def test_whoever_may_come_back_is_told_when_in_whole_seconds(
    retry_after_ms: int, header: str
) -> None:
    found = problem_of(OverloadedError("full", retry_after_ms))

    assert found.headers == {"retry-after": header}
    assert json.loads(found.body) == {
        "type": "about:blank",
        "title": "Too Many Requests",
        "status": 429,
        "code": "overloaded",
        "detail": "full",
        "retry_after_ms": retry_after_ms,
    }


def test_whoever_must_not_come_back_is_not_told_when() -> None:
    found = problem_of(RejectedError("no"))

    assert found.headers == {}
    assert "retry_after_ms" not in json.loads(found.body)


def test_a_code_of_a_newer_worker_is_an_error_of_ours() -> None:
    assert problem("from_the_future", "?").status == 500


@pytest.mark.parametrize(
    ("error", "status"), [(HandlerError("x"), 500), (UnavailableError("x"), 503)]
)
def test_the_status_follows_who_must_act(error: SubletError, status: int) -> None:
    assert problem_of(error).status == status
