"""When live messages are expected, and how long background pauses for them.

All partitions of a worker share this: background in the commit of one delays the live messages of
every other.
"""

from __future__ import annotations

from math import inf

BACKGROUND_PAUSES = 3.0
BACKGROUND_PAUSE_MS_MAX = 2_000.0
"""While live messages are expected, the store rests from background for so many times as long as
its last commit took: a commit that waits for others shows that the store has no room for more."""
LIVE_MS = 5_000.0
"""So long after a live message, more are expected."""


class LiveTraffic:
    __slots__ = ("background_from_ms", "last_ms")

    def __init__(self) -> None:
        self.last_ms = -inf
        """When the last message came that is no background."""
        self.background_from_ms = -inf
        """While live messages are expected, no background begins before."""

    def is_expected(self, now_ms: float) -> bool:
        """Tell whether background would delay messages that are likely to come."""
        return now_ms - self.last_ms < LIVE_MS

    def background_stored(self, elapsed_ms: float, now_ms: float) -> None:
        """A commit with background in it took so long: let the store rest for longer than that."""
        pause_ms = min(BACKGROUND_PAUSE_MS_MAX, BACKGROUND_PAUSES * elapsed_ms)
        self.background_from_ms = max(self.background_from_ms, now_ms + pause_ms)
