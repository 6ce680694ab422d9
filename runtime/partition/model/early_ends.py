"""Requests that end before they are done: cancelled by their callers, or past their deadlines.

Only what such an end is called; `Cancellation` ends the messages. `expires` of a message says that
nobody waits for its reply after its deadline: then it need not run, and if its handler awaits
something, it is interrupted.
"""

from __future__ import annotations

import msgspec

from sublet.runtime.partition.model.work import QueuedMessage
from sublet.runtime.protocol.frames import ErrorInfo

EXPIRED = "deadline_exceeded"
TOO_LATE = ErrorInfo(EXPIRED, "its deadline passed")
CANCELLED = "cancelled"
WITHDRAWN = ErrorInfo(CANCELLED, "its caller cancelled the request")
CANCELLED_BY_HAND = ErrorInfo(CANCELLED, "the request was cancelled by `sublet cancel`")
TRUE = b"\xc3"


def expired(waiting: QueuedMessage) -> ErrorInfo:
    return ErrorInfo(EXPIRED, f"{waiting.message.key!r} was not handled before its deadline")


def cancellation_error(reason: msgspec.Raw) -> ErrorInfo:
    """Return why a call was cancelled, by what its caller has sent."""
    return TOO_LATE if bytes(reason) == TRUE else WITHDRAWN
