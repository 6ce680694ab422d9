"""One message by itself, as it is parked, and as it travels under a lease."""

from __future__ import annotations

import msgspec

from sublet.runtime.protocol.frames import ErrorInfo, Extra, Kind

NO_EXTRA = Extra()


class Message(msgspec.Struct, array_like=True):
    """One message that waits by itself. Stored as it is when it is parked."""

    source: str
    number: int
    kind: Kind
    key: str
    payload: msgspec.Raw
    order: int
    """Place in the partition's order of arrival; restores the order of a key after a takeover."""
    attempt: int = 1
    extra: Extra = NO_EXTRA
    last_error: ErrorInfo | None = None
    at_ms: int | None = None
    """When it arrived, by the partition's clock, where that matters."""

    @property
    def id(self) -> str:
        return f"{self.source}:{self.number}"
