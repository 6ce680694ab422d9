"""Decides when a failover is over, so that one line can tell it: who died, what moved, how long it
took. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

TOLD_MS_MAX = 10_000.0
"""A failover that takes longer is told as it is then: a partition may be quarantined, or the word
of its new owner lost."""


class Failover(NamedTuple):
    """The partitions of dead workers, with others now."""

    workers: list[str]
    partitions: int
    missing: int
    """Those of them of which nobody has said yet that they are served."""
    took_ms: float
    """From the last sign of life of the first who died."""


@dataclass(slots=True)
class _Open:
    workers: list[str]
    since_ms: float
    started_ms: float
    partitions: int
    missing: set[str]

    def ended(self, now_ms: float) -> Failover:
        missing, took_ms = len(self.missing), now_ms - self.since_ms
        return Failover(self.workers, self.partitions, missing, took_ms)


class Failovers:
    """Those that the proposer of placements has begun, and that are not over."""

    def __init__(self) -> None:
        self._open: list[_Open] = []

    def started(
        self, last_seen_ms: Mapping[str, float], partitions: Collection[str], now_ms: float
    ) -> None:
        """Workers are dead, and their partitions go to others. Said again, it changes nothing."""
        known = {worker for each in self._open for worker in each.workers}
        if new := sorted(last_seen_ms.keys() - known):
            since_ms = min(last_seen_ms[each] for each in new)
            self._open.append(_Open(new, since_ms, now_ms, len(partitions), set(partitions)))

    def took(self, partition: str) -> None:
        """A partition is served again."""
        for each in self._open:
            each.missing.discard(partition)

    def over(self, now_ms: float) -> list[Failover]:
        """Return those that have ended since the last time."""
        ended = [
            each
            for each in self._open
            if not each.missing or now_ms - each.started_ms >= TOLD_MS_MAX
        ]
        self._open = [each for each in self._open if each not in ended]
        return [each.ended(now_ms) for each in ended]
