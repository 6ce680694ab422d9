"""Nobody takes messages, or answers: what callers are told, and when they should come back.

Pure. A client has waited for as long as it has patience before it sends a caller away; who comes
back at once only waits again.
"""

from __future__ import annotations

RETRY_MS_MIN = 1_000
RETRY_MS_MAX = 10_000
RETRY_PART = 4
"""Who is sent away should wait for this part of how long it lasts already."""
FORGOTTEN_MS = 60_000
"""If nobody has asked for so long, nobody knows what was meanwhile."""
TO_DO = "start one with `sublet run`, or check with `sublet status`"


class Outage:
    """Lasts until somebody answers again; the next one is another."""

    __slots__ = ("_seen_ms", "is_told", "since_ms")

    def __init__(self, since_ms: float) -> None:
        self.since_ms = since_ms
        self.is_told = False
        """It has been said what is waited for."""
        self._seen_ms = since_ms

    def goes_on(self, now_ms: float) -> bool:
        """Note that somebody waits now; False if that is another outage."""
        was_ms, self._seen_ms = self._seen_ms, now_ms
        return now_ms - was_ms <= FORGOTTEN_MS

    def lasts_s(self, now_ms: float) -> float:
        return max(0.0, now_ms - self.since_ms) / 1000.0

    def retry_after_ms(self, now_ms: float) -> int:
        """Return when callers should come back: the later the longer it lasts, within bounds."""
        part_ms = int(now_ms - self.since_ms) // RETRY_PART
        return min(RETRY_MS_MAX, max(RETRY_MS_MIN, part_ms))
