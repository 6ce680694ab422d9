"""How long a client tries, and what its callers are told while nothing can be reached. Pure.

A client has waited for its whole timeout before it fails a caller; one that comes back at once only
waits again.
"""

from __future__ import annotations

from dataclasses import dataclass

RETRY_MS_MIN = 1_000
RETRY_MS_MAX = 10_000
RETRY_PART = 4
"""Who is sent away should wait for this part of how long it lasts already."""
FORGOTTEN_MS = 60_000
"""If nobody has asked for so long, nobody knows what was meanwhile."""
TO_DO = "start one with `sublet run`, or check with `sublet status`"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long, and how often, a session tries."""

    unreachable_ms: float = 10_000.0
    """A partition whose owner cannot be reached for so long fails its callers."""
    absent_ms: float = 2_000.0
    """Who waits for a function that no worker has fails when that is so for this long: the only
    worker that has it may just be started anew."""
    overload_retries: int = 10
    """A message refused more often fails with `OverloadedError`."""
    backoff_ms_min: float = 10.0
    backoff_ms_max: float = 1_000.0
    standstill_ms: float = 2_000.0
    """If callers wait and no worker brings anything for so long, others are asked who owns what:
    those that we know may be cut off from the rest of the cluster, and not know that they own
    nothing."""

    def __post_init__(self) -> None:
        if self.unreachable_ms <= 0:
            raise ValueError(f"unreachable_ms is {self.unreachable_ms}; allowed: more than 0")
        if self.absent_ms < 0:
            raise ValueError(f"absent_ms is {self.absent_ms}; allowed: 0 or more")
        if self.overload_retries < 0:
            raise ValueError(f"overload_retries is {self.overload_retries}; allowed: 0 or more")
        if not 0 < self.backoff_ms_min <= self.backoff_ms_max:
            raise ValueError(
                f"backoff_ms_min is {self.backoff_ms_min}; allowed: above 0, to backoff_ms_max "
                f"({self.backoff_ms_max})"
            )
        if self.standstill_ms <= 0:
            raise ValueError(f"standstill_ms is {self.standstill_ms}; allowed: more than 0")

    def backoff_ms(self, failures: int) -> float:
        """Return how long to wait, about, after so many failures in a row."""
        return min(self.backoff_ms_max, self.backoff_ms_min * 2.0 ** min(failures, 30))


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
