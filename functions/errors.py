"""Every error that Sublet raises on purpose, grouped by who must act.

- `RejectedError`: the caller changes the request; sending it again cannot help.
- `RetryLaterError`: the caller may send the same request again, after `retry_after_ms`.
- `FailedError`: the request was accepted and did not succeed.
- `UnknownOutcomeError`: nobody can say any more whether it happened.

An error crosses the wire as its `code` and its text; `error_from_code` makes it whole again.
"""

from __future__ import annotations

from typing import ClassVar

ERROR_TEXT_MAX = 2_000


class SubletError(Exception):
    """The root. `code` is stable and names the kind of error on the wire and in metrics."""

    code: ClassVar[str] = "error"
    request_id: str = ""
    """The request that failed, where a client knows it: for `sublet why`."""
    is_reply: bool = False
    """In a handler: it is what a function replied that the handler has called."""


class RejectedError(SubletError):
    """The request cannot succeed as it is. A handler raises it to refuse without a retry."""

    code = "rejected"


class UnknownFunctionError(RejectedError):
    """No app of the cluster declares it; the text names those that are similar."""

    code = "unknown_function"


class EncodeError(RejectedError):
    """A value has a type that cannot be written as msgpack."""

    code = "cannot_encode"


class PayloadError(RejectedError):
    """A payload does not fit the type that the function declares."""

    code = "bad_payload"


class KeyRejectedError(RejectedError):
    """A key is missing, is no text, or is above its bound."""

    code = "bad_key"


class TooLargeError(RejectedError):
    """A message, key or state is above its bound."""

    code = "too_large"


class IdempotencyConflictError(RejectedError):
    """The idempotency key was used before with another request."""

    code = "idempotency_conflict"


class NotCancelledError(RejectedError):
    """A request that somebody wants to cancel has ended, or cannot be interrupted; the text says
    which. It is as if nobody had tried."""

    code = "not_cancelled"


class EgressLostError(RejectedError):
    """Values of an egress were dropped at a bound before this reader has read them.

    The text says which. A reader may go on from the oldest that is kept, if it says so.
    """

    code = "egress_lost"


class SnapshotLostError(RejectedError):
    """A snapshot of states is over before it was read to its end: a partition has another owner,
    or a bound was reached.

    The text says which. What was read of that partition does not count; a new snapshot may be read
    from its beginning.
    """

    code = "snapshot_lost"


class CallCycleError(RejectedError):
    """The call chain would come back to an instance that waits for it."""

    code = "call_cycle"


class RetryLaterError(SubletError):
    """Nothing happened; the same request may be sent again after `retry_after_ms`."""

    code = "retry_later"

    def __init__(self, message: str, retry_after_ms: int = 50) -> None:
        super().__init__(message, retry_after_ms)
        self.message = message
        self.retry_after_ms = retry_after_ms

    def __str__(self) -> str:
        return f"{self.message}; retry after {self.retry_after_ms} ms"


class OverloadedError(RetryLaterError):
    """A queue is full, or as much is under way as the worker takes."""

    code = "overloaded"


class InfeasibleError(RetryLaterError):
    """By what waits already, the reply cannot come before its deadline; nothing was run.

    Only from functions that are declared with `infeasible="refuse"`.
    """

    code = "infeasible"


class UnavailableError(RetryLaterError):
    """No worker owns the partition just now (starting, failing over), none has the function, or
    none is reachable."""

    code = "unavailable"


class FailedError(SubletError):
    """The handler was run and did not succeed, after all its retries."""

    code = "failed"


class HandlerError(FailedError):
    """A handler raised, or did what it cannot do: replied with another type than it declares, sent
    to a function that does not exist. The text names the function, the key and the line."""

    code = "handler_failed"


class HandlerTimeoutError(FailedError):
    """User code ran longer than the function's timeout."""

    code = "handler_timeout"


class StateTypeError(HandlerError):
    """A stored or assigned state does not fit the type that the function declares."""

    code = "bad_state"


class StateTooLargeError(HandlerError):
    """The state of one key would grow above its bound."""

    code = "state_too_large"


class NonDeterministicCallError(FailedError):
    """A re-executed handler made other calls than the recorded ones."""

    code = "non_deterministic_call"


class SideEffectError(HandlerError):
    """A side effect (`ctx.run`) failed, after all its attempts; the text names the exception.

    A handler that does not catch it fails, and is tried again as after any exception: the side
    effect, too.
    """

    code = "side_effect_failed"


class RequestCancelledError(FailedError):
    """The request was cancelled, by its caller or by hand, and has had no effect."""

    code = "cancelled"


class DeadlineExceededError(FailedError):
    """The caller's time ran out before the reply came; the effect may still happen."""

    code = "deadline_exceeded"


class UnknownOutcomeError(SubletError):
    """The worker that had the request is gone together with its memory of it."""

    code = "unknown_outcome"


class ReadsStateError(BaseException):
    """A handler that runs in parts, with an empty state to add to, asks for what only the owner of
    the real state knows; its message has to be run there.

    For the runtime alone: it is never told to a caller, so it has no code. Not an `Exception`, for
    handlers often catch those, and would go on without knowing.
    """


def _kinds(root: type[SubletError]) -> dict[str, type[SubletError]]:
    """Return who a code stands for: of a class and those below it that say no other, the class."""
    found = {root.code: root}
    for kind in root.__subclasses__():
        found = {**_kinds(kind), **found}
    return found


def error_from_code(code: str, message: str, retry_after_ms: int = 50) -> SubletError:
    """Return the error that a peer described; an unknown code becomes a plain `SubletError`."""
    kind = _kinds(SubletError).get(code, SubletError)
    if issubclass(kind, RetryLaterError):
        return kind(message, retry_after_ms)
    return kind(message)


def text_of(error: BaseException) -> str:
    """Return what an exception of user code says, as a text that can be stored: names of files and
    what JSON has escaped may have halves of characters, and `__str__` is user code, too."""
    try:
        text = str(error)[:ERROR_TEXT_MAX]
    except Exception as broken:
        text = f"its message is unavailable ({type(broken).__name__})"
    return text.encode(errors="backslashreplace").decode()
