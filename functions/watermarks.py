"""What may be said about how far time has come: by which sources, and to which functions."""

from __future__ import annotations

from sublet.functions.address import is_client
from sublet.functions.app import Function
from sublet.functions.errors import RejectedError


def refusal_of_source(source: str) -> str | None:
    """Say why a client may not call a source of its so; None if it may."""
    if "/" in source or is_client(source):
        return f"a source cannot be named {source!r:.80}; allowed: a text without '/' and '~'"
    return None


def check_takes_watermarks(function: object) -> None:
    """Refuse to tell a function the time that goes by the clock."""
    window = function.window if isinstance(function, Function) else None
    if window is not None and window.time != "event":
        raise RejectedError(
            f"{window.time}-time windows close by the clock; watermarks are for event time"
        )
