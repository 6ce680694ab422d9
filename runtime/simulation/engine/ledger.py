"""Who caused each message, and that each is executed once.

A message is known by its channel and number, as in the real thing. What the simulator wants to
know of it (when its cause arrived, when the result is due) never travels: it is looked up here, so
that real functions need not carry it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence

Root = tuple[float, float, int, float]
"""When the cause came from outside, when its result is due (inf: never), which load it was, and
how far its stream had come with it (for windows)."""

PRUNE_AT = 256


class ConservationError(AssertionError):
    """A message took effect twice, or one that nobody has sent: a defect of the runtime."""


class _Channel:
    __slots__ = ("done", "first_kept", "firsts", "roots")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.roots: list[Sequence[Root]] = []
        self.done: list[bytearray | None] = []
        self.first_kept = 0
        """Entries before this place are done."""


class Ledger:
    def __init__(self) -> None:
        self.sent = 0
        self.executed = 0
        self._channels: dict[tuple[str, str], _Channel] = {}

    def send(self, source: str, target: str, first: int, roots: Sequence[Root]) -> None:
        """Messages `first` .. leave; the same are never told twice."""
        channel = self._channels.get((source, target))
        if channel is None:
            channel = self._channels[source, target] = _Channel()
        channel.firsts.append(first)
        channel.roots.append(roots)
        channel.done.append(bytearray(len(roots)))
        self.sent += len(roots)

    def knows(self, source: str, target: str) -> bool:
        return (source, target) in self._channels

    def roots(self, source: str, target: str, number: int, count: int) -> Sequence[Root]:
        """Return what caused the messages `number` .. of one batch."""
        channel = self._channels[source, target]
        place = bisect_right(channel.firsts, number) - 1
        roots = channel.roots[place]
        start = number - channel.firsts[place]
        return roots if count == len(roots) else roots[start : start + count]

    def execute(self, source: str, target: str, number: int, count: int) -> None:
        """Messages `number` .. of one batch have durably taken effect."""
        channel = self._channels.get((source, target))
        place = -1 if channel is None else bisect_right(channel.firsts, number) - 1
        done = None if channel is None or place < 0 else channel.done[place]
        if channel is None or done is None:
            raise ConservationError(f"{source} → {target}: {number} took effect again")
        start = number - channel.firsts[place]
        if done.count(0, start, start + count) != count:
            raise ConservationError(
                f"{source} → {target}: {number} took effect again, or never was"
            )
        done[start : start + count] = b"\x01" * count
        self.executed += count
        if 0 not in done:
            channel.done[place] = None
            channel.roots[place] = ()
            self._prune(channel)

    def _prune(self, channel: _Channel) -> None:
        done, kept = channel.done, channel.first_kept
        while kept < len(done) and done[kept] is None:
            kept += 1
        if kept >= PRUNE_AT:
            del channel.firsts[:kept], channel.roots[:kept], channel.done[:kept]
            kept = 0
        channel.first_kept = kept

    def open_messages(self) -> Iterator[tuple[str, str, int]]:
        """Yield source, target and number of what is open: what to look for when it stays so."""
        for (source, target), channel in self._channels.items():
            for first, done in zip(channel.firsts, channel.done, strict=True):
                for place, ended in enumerate(done or b""):
                    if not ended:
                        yield source, target, first + place

    def open_roots(self) -> Iterator[tuple[str, Root]]:
        """Yield for each open message its target and what caused it."""
        for (_, target), channel in self._channels.items():
            for roots, done in zip(channel.roots, channel.done, strict=True):
                for place, ended in enumerate(done or b""):
                    if not ended:
                        yield target, roots[place]

    @property
    def open(self) -> int:
        """Messages on their way, waiting, or executed and not committed."""
        return self.sent - self.executed


class Series:
    """Latencies in the order in which they were measured, with a mark at each second."""

    __slots__ = ("_late_marks", "_marks", "late", "latencies_ms")

    def __init__(self) -> None:
        self.latencies_ms = array("d")
        self.late = 0
        self._marks: list[int] = []
        self._late_marks: list[int] = []

    def add(self, now_ms: float, latencies_ms: Sequence[float], late: int) -> None:
        marks = self._marks
        second = int(now_ms // 1000)
        while len(marks) <= second:
            marks.append(len(self.latencies_ms))
            self._late_marks.append(self.late)
        self.latencies_ms.extend(latencies_ms)
        self.late += late

    def since(self, second: int) -> tuple[array[float], int]:
        """Return the latencies from a second on, and how many of them were late."""
        if second <= 0:
            return self.latencies_ms, self.late
        if second >= len(self._marks):
            return array("d"), 0
        return self.latencies_ms[self._marks[second] :], self.late - self._late_marks[second]

    def seconds(self) -> list[tuple[array[float], int]]:
        """Return for each second what was measured in it: latencies, and how many were late."""
        ends = [*self._marks[1:], len(self.latencies_ms)]
        late_ends = [*self._late_marks[1:], self.late]
        return [
            (self.latencies_ms[start:end], late_end - late_start)
            for start, end, late_start, late_end in zip(
                self._marks, ends, self._late_marks, late_ends, strict=False
            )
        ]


class LeaseTotals:
    """What the simulation has seen of leases, of all workers."""

    def __init__(self) -> None:
        self.probes = self.replies = 0
        self.offered = self.accepted = self.declined = 0
        self.returned = self.expired = self.revoked = self.too_late = 0
        self.messages = self.home = self.partials = 0
        self.said = self.bytes = 0
        self.states_sent = self.states_held = self.state_bytes = 0
        self.core_ms = 0.0


class FunctionTotals:
    """What the simulation has seen of one function."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.series: dict[int, Series] = {}
        """By load."""
        self.messages = self.runs = self.commits = 0
        self.busy_ms = 0.0
        self.loads = self.fetched = self.hits = self.misses = self.evicted = 0
        self.duplicates = self.refused = self.failures = self.prefetched = 0
        self.lent = 0

    def committed(self, roots: Sequence[Root], now_ms: float) -> None:
        """Messages have durably taken effect."""
        count, first = len(roots), roots[0]
        self.messages += count
        if roots.count(first) == count:
            # What came together: most batches are such, and this is several times as fast.
            late = count if first[1] < now_ms else 0
            self._of(first[2]).add(now_ms, [now_ms - first[0]] * count, late)
            return
        by_load: dict[int, list[Root]] = {}
        for root in roots:
            by_load.setdefault(root[2], []).append(root)
        for load, of_load in by_load.items():
            late = sum([root[1] < now_ms for root in of_load])
            self._of(load).add(now_ms, [now_ms - root[0] for root in of_load], late)

    def _of(self, load: int) -> Series:
        series = self.series.get(load)
        if series is None:
            series = self.series[load] = Series()
        return series
