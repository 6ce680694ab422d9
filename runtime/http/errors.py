"""Errors as RFC 9457 problem documents: one table says which status a code has.

A problem carries the `code` of `sublet.functions.errors`, or one of the few that only HTTP has,
and never a stack trace.
"""

from __future__ import annotations

from http import HTTPStatus
from math import ceil
from typing import Any

import msgspec

from sublet.functions.errors import RetryLaterError, SubletError

PROBLEM_TYPE = "application/problem+json"

STATUS_BY_CODE: dict[str, int] = {
    "rejected": 422,
    "unknown_function": 404,
    "cannot_encode": 500,
    "bad_payload": 422,
    "bad_key": 400,
    "too_large": 413,
    "idempotency_conflict": 409,
    "not_cancelled": 409,
    "egress_lost": 410,
    "snapshot_lost": 410,
    "call_cycle": 409,
    "retry_later": 503,
    "overloaded": 429,
    "infeasible": 503,
    "unavailable": 503,
    "failed": 500,
    "handler_failed": 500,
    "handler_timeout": 504,
    "bad_state": 500,
    "state_too_large": 500,
    "non_deterministic_call": 500,
    "side_effect_failed": 500,
    "cancelled": 499,
    "deadline_exceeded": 504,
    "unknown_outcome": 500,
    "error": 500,
    # Those that only HTTP has.
    "bad_request": 400,
    "malformed_body": 400,
    "foreign_origin": 403,
    "no_route": 404,
    "no_state": 404,
    "no_dead_letter": 404,
    "no_scaling": 404,
    "method_not_allowed": 405,
    "not_acceptable": 406,
    "request_timeout": 408,
    "unsupported_media_type": 415,
    "foreign_host": 421,
    "head_too_large": 431,
}

# As RFC 9110 has them; the standard library's names differ from version to version.
_NEW_TITLES = {
    413: "Content Too Large",
    422: "Unprocessable Content",
    # Not in any RFC, but what gRPC's CANCELLED is everywhere else.
    499: "Request Cancelled",
}


class HttpProblemError(Exception):
    """A request that HTTP itself refuses; `code` is one of `STATUS_BY_CODE`."""

    def __init__(self, code: str, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(code, detail, headers)
        self.code = code
        self.detail = detail
        self.headers = headers or {}

    def __str__(self) -> str:
        return self.detail


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of every reply that is not a success."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    retry_after_ms: int | None = None

    @property
    def body(self) -> bytes:
        return msgspec.json.encode(self)

    @property
    def headers(self) -> dict[str, str]:
        if self.retry_after_ms is None:
            return {}
        # Whole seconds are all that the header can say.
        return {"retry-after": str(max(1, ceil(self.retry_after_ms / 1000)))}


def problem(code: str, detail: str, retry_after_ms: int | None = None) -> Problem:
    """Return the problem of a code; one that is unknown here counts as the worker's own fault."""
    status = STATUS_BY_CODE.get(code, 500)
    return Problem(
        type="about:blank",
        title=_NEW_TITLES.get(status) or HTTPStatus(status).phrase,
        status=status,
        code=code,
        detail=detail,
        retry_after_ms=retry_after_ms,
    )


def problem_of(error: SubletError | HttpProblemError) -> Problem:
    if isinstance(error, RetryLaterError):
        return problem(error.code, error.message, error.retry_after_ms)
    return problem(error.code, str(error))


def problem_schema() -> dict[str, Any]:
    """Return the JSON schema of a problem."""
    return {
        "type": "object",
        "title": "Problem",
        "description": "What went wrong (RFC 9457).",
        "required": ["type", "title", "status", "code", "detail"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "code": {"type": "string", "enum": sorted(STATUS_BY_CODE)},
            "detail": {"type": "string"},
            "retry_after_ms": {
                "type": "integer",
                "minimum": 0,
                "description": "Nothing happened; retry the same request after this time.",
            },
        },
    }
