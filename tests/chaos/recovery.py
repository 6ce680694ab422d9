"""How long after each fault all partitions answer again. Pure: it is told what happens and when.

A partition answers again when a probe that was asked after the fault has its reply. Recovery counts
from the fault; of an outage (nobody could answer while it lasted), from its end. A fault that
happens during an outage, or is followed by one before all have recovered, counts from that
outage's end, and is marked as moved. Other faults that happen meanwhile move nothing: the time
that they take counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.chaos.schedule import OUTAGES


@dataclass(slots=True)
class _Open:
    kind: str
    begin_s: float
    missing: set[str]
    is_moved: bool = False


@dataclass(frozen=True, slots=True)
class Recovery:
    kind: str
    begin_s: float
    seconds: float
    last: str
    """The partition that was waited for longest."""
    is_moved: bool = False
    """An outage came in between: counted from its end."""


class Recoveries:
    def __init__(self, partitions: Iterable[str]) -> None:
        self.partitions = frozenset(partitions)
        self.done: list[Recovery] = []
        self.failed: list[str] = []
        self._open: list[_Open] = []
        self._outages = 0

    @property
    def are_all_done(self) -> bool:
        return not self._open and not self._outages

    def fault(self, kind: str, now_s: float) -> None:
        """A fault begins."""
        if kind in OUTAGES:
            self._outages += 1
        else:
            self._open.append(_Open(kind, now_s, set(self.partitions)))

    def outage_ended(self, kind: str, now_s: float) -> None:
        """An outage, which `fault` told of, is over."""
        self._outages -= 1
        # Nobody could answer meanwhile: all that is open begins now.
        for each in self._open:
            each.begin_s, each.missing, each.is_moved = now_s, set(self.partitions), True
        self._open.append(_Open(kind, now_s, set(self.partitions)))

    def answered(self, partition: str, asked_s: float, now_s: float) -> None:
        """A probe of a partition has its reply."""
        if self._outages or not self._open:
            return
        for each in self._open:
            if asked_s >= each.begin_s:
                each.missing.discard(partition)
                if not each.missing:
                    seconds = now_s - each.begin_s
                    done = Recovery(each.kind, each.begin_s, seconds, partition, each.is_moved)
                    self.done.append(done)
        self._open = [each for each in self._open if each.missing]

    def give_up(self, now_s: float) -> None:
        """Do not wait any longer for what has not recovered."""
        for each in self._open:
            names = ", ".join(sorted(each.missing)[:8])
            self.failed.append(
                f"{now_s - each.begin_s:.1f} s after {each.kind}, "
                f"{len(each.missing)} partitions do not answer: {names}"
            )
        self._open.clear()


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that so large a share of all does not exceed; 0 for none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0
