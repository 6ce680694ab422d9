"""Errors and gRPC statuses, each made from the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import grpc

from sublet.functions.errors import (
    DeadlineExceededError,
    RejectedError,
    RetryLaterError,
    SubletError,
    TooLargeError,
    UnknownOutcomeError,
    error_from_code,
)

CODE_METADATA = "sublet-code"
RETRY_METADATA = "sublet-retry-after-ms"
REQUEST_ID_METADATA = "sublet-request-id"


class WireError(RejectedError):
    """Bytes from outside violate the protocol; the text says where, and what is allowed."""

    code = "malformed"


STATUS_BY_CODE: Mapping[str, grpc.StatusCode] = {
    "rejected": grpc.StatusCode.INVALID_ARGUMENT,
    "malformed": grpc.StatusCode.INVALID_ARGUMENT,
    "unknown_function": grpc.StatusCode.NOT_FOUND,
    "cannot_encode": grpc.StatusCode.INVALID_ARGUMENT,
    "bad_payload": grpc.StatusCode.INVALID_ARGUMENT,
    "bad_key": grpc.StatusCode.INVALID_ARGUMENT,
    "too_large": grpc.StatusCode.INVALID_ARGUMENT,
    "idempotency_conflict": grpc.StatusCode.ALREADY_EXISTS,
    "not_cancelled": grpc.StatusCode.FAILED_PRECONDITION,
    "egress_lost": grpc.StatusCode.OUT_OF_RANGE,
    "snapshot_lost": grpc.StatusCode.ABORTED,
    "call_cycle": grpc.StatusCode.FAILED_PRECONDITION,
    "retry_later": grpc.StatusCode.UNAVAILABLE,
    "overloaded": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "infeasible": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "unavailable": grpc.StatusCode.UNAVAILABLE,
    "failed": grpc.StatusCode.ABORTED,
    "handler_failed": grpc.StatusCode.ABORTED,
    "handler_timeout": grpc.StatusCode.ABORTED,
    "bad_state": grpc.StatusCode.ABORTED,
    "state_too_large": grpc.StatusCode.ABORTED,
    "non_deterministic_call": grpc.StatusCode.ABORTED,
    "side_effect_failed": grpc.StatusCode.ABORTED,
    "cancelled": grpc.StatusCode.CANCELLED,
    "deadline_exceeded": grpc.StatusCode.DEADLINE_EXCEEDED,
    "unknown_outcome": grpc.StatusCode.UNKNOWN,
    "error": grpc.StatusCode.INTERNAL,
}


def status_from_error(
    error: SubletError,
) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]:
    """Return the gRPC status, its text, and the trailing metadata for programs."""
    # The nearest class that the table has: applications may derive their own from ours.
    codes = (getattr(kind, "code", "error") for kind in type(error).__mro__)
    status = next(STATUS_BY_CODE[code] for code in codes if code in STATUS_BY_CODE)
    metadata: tuple[tuple[str, str], ...] = ((CODE_METADATA, error.code),)
    # Without "retry after …", which `error_from_status` adds again from the metadata.
    text = str(error)
    if isinstance(error, RetryLaterError):
        text = error.message
        metadata += ((RETRY_METADATA, str(error.retry_after_ms)),)
    if error.request_id:
        metadata += ((REQUEST_ID_METADATA, error.request_id),)
    return status, text, metadata


def error_from_status(
    status: grpc.StatusCode, text: str, metadata: Iterable[tuple[str, str | bytes]]
) -> SubletError:
    """Return the error that a worker raised; without its code, what is known from the status."""
    entries = dict(metadata)
    code = entries.get(CODE_METADATA)
    if isinstance(code, str):
        given = entries.get(RETRY_METADATA, "")
        retry_after_ms = int(given) if isinstance(given, str) and given.isdecimal() else None
        if retry_after_ms is None:
            error = error_from_code(code, text)
        else:
            error = error_from_code(code, text, retry_after_ms)
        error.request_id = str(entries.get(REQUEST_ID_METADATA, ""))
        return error
    # It comes from gRPC itself.
    match status:
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceededError(text)
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return TooLargeError(text)
        case grpc.StatusCode.UNIMPLEMENTED:
            return RejectedError(
                f"the peer does not serve this method ({text}); check that it is a Sublet worker "
                "of the same version"
            )
        case _:
            # The connection may have broken after the worker accepted the request.
            return UnknownOutcomeError(f"{status.name}: {text}")
