"""What a worker remembers about the messages that it has handled: rates, times by stage, the slow.

Everything here is counted for whole spans of a batch, not for single messages, so that it can
always be on. No I/O and no clock; metrics, traces and `sublet why` read from it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappush, heapreplace
from itertools import islice
from math import inf
from typing import Protocol

import msgspec

from sublet.runtime.partition.model.effects import Counters, Traffic
from sublet.runtime.partition.model.work import (
    ColumnWork,
    Failure,
    QueuedMessage,
    RunResult,
    Traced,
    Work,
)

LATENCY_BOUNDS_MS = (0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000)
LAXITY_BOUNDS_MS = (-10_000, -1_000, -100, -10, 0, 1, 5, 10, 25, 50, 100, 250, 1_000, 10_000)
SIZE_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000)

TURNS_KEPT_MAX = 1_024

STAGES = ("admission", "queue", "batch", "state", "away", "running", "committing")
"""The stages that a worker can time by itself, in the order in which a message passes them. `away`
is between `state` and `running` for people; it is on both sides of a run somewhere else."""


class Counted(Protocol):
    """What is asked of a partition that leaves."""

    @property
    def counters(self) -> Counters: ...

    @property
    def refusals(self) -> Mapping[str, int]: ...


class Histogram:
    """Counts values in fixed buckets; one observation may stand for many messages."""

    __slots__ = ("_counts", "bounds", "total", "zeros")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.total = 0.0
        self.zeros = 0
        """Observations of 0, of which some stages have thousands in a second: whoever has one may
        add it here, without a call, if 0 is in the first bucket."""
        self._counts = [0] * (len(bounds) + 1)

    @property
    def counts(self) -> list[int]:
        """How many observations there are in each bucket."""
        return [self._counts[0] + self.zeros, *self._counts[1:]]

    @property
    def count(self) -> int:
        return sum(self._counts) + self.zeros

    def observe(self, value: float, times: int = 1) -> None:
        bounds = self.bounds
        # Most values of most histograms are in the first bucket.
        self._counts[0 if value <= bounds[0] else bisect_left(bounds, value)] += times
        self.total += value * times


class SpanTimes(msgspec.Struct, array_like=True):
    """How long a span of messages spent in each stage, in ms, and whose they were."""

    function: str
    partition: str
    source: str
    first: int
    count: int
    wall_ms: int
    """When it arrived, on the worker's wall clock: for people."""
    admission_ms: float
    """Waiting in the sender before it left; only the sender knows, and tells."""
    queue_ms: float
    state_ms: float
    running_ms: float
    committing_ms: float
    late: int = 0
    """How many of the messages were answered after their deadline."""
    attempt: int = 1
    trace: str = ""
    batch_ms: float = 0.0
    """Waiting for more messages, although a run could have begun."""
    away_ms: float = 0.0
    """Under a lease, from its offer to its return, without the run itself."""

    @property
    def total_ms(self) -> float:
        return (
            self.admission_ms
            + self.queue_ms
            + self.batch_ms
            + self.state_ms
            + self.away_ms
            + self.running_ms
            + self.committing_ms
        )

    def holds(self, source: str, number: int) -> bool:
        return self.source == source and self.first <= number < self.first + self.count


class FunctionTimes:
    """Histograms of one function."""

    __slots__ = (
        "batch_size",
        "keys_loaded",
        "late",
        "latency",
        "laxity",
        "leases",
        "messages",
        "stages",
        "turns",
    )

    def __init__(self) -> None:
        self.messages = 0
        self.keys_loaded = 0
        """Keys whose state was not in memory."""
        self.late = 0
        self.latency = Histogram(LATENCY_BOUNDS_MS)
        self.laxity = Histogram(LAXITY_BOUNDS_MS)
        self.turns: deque[tuple[float, int]] | None = None
        """Of the last spans, how long from arrival to commit, without what was spent at other
        workers, and how many messages; whoever samples them takes them away. None: nobody does."""
        self.batch_size = Histogram(SIZE_BOUNDS)
        self.leases = Histogram(LATENCY_BOUNDS_MS)
        """From offer to return, of those that were returned."""
        self.stages = {stage: Histogram(LATENCY_BOUNDS_MS) for stage in STAGES}


class Spells:
    """Tells of what happens again and again when it begins, then only now and then."""

    EVERY_MS = 10_000
    OVER_MS = 60_000
    """What was quiet for so long begins anew."""
    KEPT_MAX = 1_000

    def __init__(self) -> None:
        self._kept: dict[str, tuple[float, float, int]] = {}
        """What, to when it was told last, when it was seen last, and how often in between."""

    def note(self, what: str, now_ms: float, times: int = 1) -> int | None:
        """Return None to keep quiet, 0 when a spell begins, else how often since it was told."""
        told_ms, seen_ms, count = self._kept.pop(what, (0.0, -inf, 0))
        if now_ms - seen_ms > self.OVER_MS:
            while len(self._kept) >= self.KEPT_MAX:
                del self._kept[next(iter(self._kept))]
            self._kept[what] = (now_ms, now_ms, 0)
            return 0
        count += times
        if now_ms - told_ms < self.EVERY_MS:
            self._kept[what] = (told_ms, now_ms, count)
            return None
        self._kept[what] = (now_ms, now_ms, 0)
        return count


class SlowLog:
    """Keeps the slowest spans of the last periods, and the latest that missed their deadline."""

    def __init__(self, slowest_max: int = 100, missed_max: int = 1_000) -> None:
        self._slowest_max = slowest_max
        self._slowest: list[tuple[float, int, SpanTimes]] = []
        self._before: list[tuple[float, int, SpanTimes]] = []
        self._missed: deque[SpanTimes] = deque(maxlen=missed_max)
        self._number = 0
        self._period_ends_ms = 0.0

    PERIOD_MS = 300_000

    def wants(self, total_ms: float, late: bool, now_ms: float) -> bool:
        """Say whether a span would be kept: most are not, and need not even be described."""
        if late or len(self._slowest) < self._slowest_max or now_ms > self._period_ends_ms:
            return True
        return total_ms > self._slowest[0][0]

    def note(self, times: SpanTimes, now_ms: float) -> None:
        if now_ms > self._period_ends_ms:
            # The slowest of an hour ago must not hide those of now.
            self._before, self._slowest = self._slowest, []
            self._period_ends_ms = now_ms + self.PERIOD_MS
        if times.late:
            self._missed.append(times)
        total_ms = times.total_ms
        slowest = self._slowest
        if len(slowest) < self._slowest_max:
            self._number += 1
            heappush(slowest, (total_ms, self._number, times))
        elif total_ms > slowest[0][0]:
            self._number += 1
            heapreplace(slowest, (total_ms, self._number, times))

    def slowest(self, limit: int, function: str = "") -> list[SpanTimes]:
        """Return the slowest of this period and the one before (of one function), slowest first."""
        kept = sorted((*self._slowest, *self._before), key=lambda each: each[:2], reverse=True)
        return _of_function((times for _, _, times in kept), function, limit)

    def missed(self, limit: int, function: str = "") -> list[SpanTimes]:
        """Return the latest that were late (of one function), newest first."""
        return _of_function(reversed(self._missed), function, limit)

    def find(self, partition: str, source: str, number: int) -> SpanTimes | None:
        for times in self._all():
            if times.partition == partition and times.holds(source, number):
                return times
        return None

    def _all(self) -> Iterator[SpanTimes]:
        yield from self._missed
        for kept in (self._slowest, self._before):
            yield from (times for _, _, times in kept)


def _of_function(spans: Iterable[SpanTimes], function: str, limit: int) -> list[SpanTimes]:
    return list(islice((each for each in spans if function in ("", each.function)), limit))


class Telemetry:
    """One for a worker."""

    def __init__(self) -> None:
        self.functions: dict[str, FunctionTimes] = {}
        self.slow = SlowLog()
        self.commit_time = Histogram(LATENCY_BOUNDS_MS)
        self.commit_size = Histogram(SIZE_BOUNDS)
        self.left: dict[str, Counter[str]] = {}
        """Function to what partitions had counted that are not here any more: totals must not
        fall when one moves away."""
        self.left_refusals: Counter[tuple[str, str]] = Counter()
        """By function and reason."""
        self._keeps_turns = False
        self.left_traffic: dict[str, Traffic] = {}
        """The same for what `Traffic` counts; whoever samples it takes it away."""

    def partition_left(self, function: str, partition: Counted) -> None:
        """A partition is leaving with its counters."""
        totals = self.left.setdefault(function, Counter())
        self.left_traffic.setdefault(function, Traffic()).add(partition.counters)
        for name in partition.counters.__slots__:
            totals[name] += getattr(partition.counters, name)
        for reason, count in partition.refusals.items():
            self.left_refusals[function, reason] += count

    def group_committed(self, elapsed_ms: float, size: int) -> None:
        """The store has answered for a group of commits."""
        self.commit_time.observe(elapsed_ms)
        self.commit_size.observe(size)

    def of(self, function: str) -> FunctionTimes:
        times = self.functions.get(function)
        if times is None:
            times = self.functions[function] = FunctionTimes()
            if self._keeps_turns:
                times.turns = deque(maxlen=TURNS_KEPT_MAX)
        return times

    def keep_turns(self) -> None:
        """Keep how long turns take, for whoever samples them."""
        self._keeps_turns = True
        for times in self.functions.values():
            times.turns = deque(maxlen=TURNS_KEPT_MAX)

    def span_done(self, times: SpanTimes, laxity_ms: float | None, now_ms: float) -> None:
        """A span's replies have left."""
        count = times.count
        function = self.of(times.function)
        function.messages += count
        function.late += times.late
        function.latency.observe(times.total_ms, count)
        if function.turns is not None:
            function.turns.append((times.total_ms - times.admission_ms - times.away_ms, count))
        if laxity_ms is not None:
            function.laxity.observe(laxity_ms, count)
        stages = function.stages
        stages["admission"].observe(times.admission_ms, count)
        stages["queue"].observe(times.queue_ms, count)
        stages["batch"].observe(times.batch_ms, count)
        stages["state"].observe(times.state_ms, count)
        stages["running"].observe(times.running_ms, count)
        stages["committing"].observe(times.committing_ms, count)
        if times.away_ms:
            stages["away"].observe(times.away_ms, count)
        self.slow.note(times, now_ms)


class PartitionTimes:
    """Follows one partition's messages from their run to their commit."""

    __slots__ = (
        "_committing",
        "_committing_index",
        "_committing_spans",
        "_function",
        "_partition",
        "_ran",
        "_ran_spans",
        "_suspended",
        "_telemetry",
        "_times",
    )

    def __init__(self, telemetry: Telemetry, partition: str, function: str) -> None:
        self._telemetry = telemetry
        self._partition = partition
        self._function = function
        self._times: FunctionTimes | None = None
        """Those of the function, once something has run."""
        self._ran: list[tuple[SpanTimes, float | None, float, Traced | None]] = []
        self._committing: list[tuple[SpanTimes, float | None, float, Traced | None]] = []
        self._ran_spans: list[tuple[Work, float, float, int]] = []
        """Work of whole columns, with how long it ran, when it ended, and the wall clock then."""
        self._committing_spans: list[tuple[Work, float, float, int]] = []
        self._committing_index = 0
        self._suspended: dict[str, tuple[QueuedMessage, float]] = {}

    def ran(self, work: Work, result: RunResult, now_ms: float, wall_ms: int) -> None:
        """User code has run; what it finished goes into the next commit."""
        function = self._times
        if function is None:
            function = self._times = self._telemetry.of(self._function)
        function.batch_size.observe(work.count)
        started_ms = now_ms - result.elapsed_ms
        if work.spans and result.is_plain:
            self._ran_spans.append((work, result.elapsed_ms, now_ms, wall_ms))
            return
        for index, waiting in enumerate(work.waiting):
            if index in result.suspended:
                self._suspended[waiting.message.id] = (waiting, started_ms)
            elif index in result.failed:
                if waiting.traced is not None:
                    waiting.traced.failed(result.failed[index].error)
            elif index not in result.unfinished:
                self._ran_alone(waiting, started_ms, now_ms, wall_ms, work)

    def returned(
        self, work: Work, result: RunResult, offered_ms: float, now_ms: float, wall_ms: int
    ) -> None:
        """User code has run somewhere else, under a lease that was offered then."""
        function = self._telemetry.of(self._function)
        function.batch_size.observe(work.count)
        trip_ms = max(0.0, now_ms - offered_ms)
        function.leases.observe(trip_ms)
        away_ms = max(0.0, trip_ms - result.elapsed_ms)
        if isinstance(work, ColumnWork) and work.columns is not None and result.is_plain:
            self._columns_returned(work, now_ms - trip_ms, now_ms, wall_ms, away_ms)
            return
        for index, waiting in enumerate(work.waiting):
            if index in result.failed:
                if waiting.traced is not None:
                    waiting.traced.failed(result.failed[index].error)
            elif index not in result.unfinished:
                self._ran_alone(waiting, now_ms - trip_ms, now_ms, wall_ms, work, away_ms=away_ms)

    def _columns_returned(
        self, work: ColumnWork, started_ms: float, now_ms: float, wall_ms: int, away_ms: float
    ) -> None:
        """As `_ran_alone`, once for messages that have come together."""
        assert work.columns is not None
        numbers, loading_ms = work.columns.each_number(), work.loading_ms
        for start, stop, source, _, arrived_ms, age_ms, _ in work.origins:
            arrived_ms = started_ms if arrived_ms is None else arrived_ms
            waited_ms = max(0.0, started_ms - arrived_ms - loading_ms)
            times = SpanTimes(
                self._function,
                self._partition,
                source,
                numbers[start],
                stop - start,
                wall_ms - int(now_ms - arrived_ms),
                age_ms,
                waited_ms,
                loading_ms,
                now_ms - started_ms - away_ms,
                0.0,
                away_ms=away_ms,
            )
            known_ms = [each for each in work.deadlines_ms[start:stop] if each is not None]
            due_ms = min(known_ms, default=None)
            self._ran.append((times, due_ms, now_ms, None))

    def ended(self, message_id: str, failure: Failure | None, now_ms: float, wall_ms: int) -> None:
        """A handler that had waited has ended."""
        found = self._suspended.pop(message_id, None)
        if found is None:
            return
        waiting, started_ms = found
        why = waiting.interrupted
        if failure is None:
            self._ran_alone(waiting, started_ms, now_ms, wall_ms, None)
        elif why is not None and why.code == "deadline_exceeded":
            self._ran_alone(waiting, started_ms, now_ms, wall_ms, None, late=True)
        elif waiting.traced is not None:
            waiting.traced.failed(failure.error)

    def unrun(self, waiting: QueuedMessage, now_ms: float, wall_ms: int) -> None:
        """A message has waited beyond its deadline, and never runs."""
        self._ran_alone(waiting, now_ms, now_ms, wall_ms, None, late=True)

    def _ran_alone(
        self,
        waiting: QueuedMessage,
        started_ms: float,
        now_ms: float,
        wall_ms: int,
        work: Work | None,
        *,
        late: bool = False,
        away_ms: float = 0.0,
    ) -> None:
        message = waiting.message
        arrived_ms = started_ms if waiting.arrived_ms is None else waiting.arrived_ms
        loading_ms = 0.0 if work is None else work.loading_ms
        waited_ms = max(0.0, started_ms - arrived_ms - loading_ms)
        batch_ms = 0.0 if work is None else min(work.gathering_ms, waited_ms)
        times = SpanTimes(
            self._function,
            self._partition,
            message.source,
            message.number,
            1,
            wall_ms - int(now_ms - arrived_ms),
            waiting.age_ms,
            waited_ms - batch_ms,
            loading_ms,
            now_ms - started_ms - away_ms,
            0.0,
            attempt=message.attempt,
            trace=message.extra.trace,
            batch_ms=batch_ms,
            away_ms=away_ms,
        )
        due_ms = waiting.deadline_ms
        if late and due_ms is not None:
            # Its caller says so, whose clock may be a moment before ours.
            due_ms = min(due_ms, now_ms)
        self._ran.append((times, due_ms, now_ms, waiting.traced))

    def sealed(self, index: int) -> None:
        """All that has run so far is in this commit."""
        if index != self._committing_index:
            self._committing_index = index
            self._committing, self._ran = self._ran, []
            self._committing_spans, self._ran_spans = self._ran_spans, []

    def committed(self, now_ms: float) -> None:
        """Their replies leave now."""
        telemetry = self._telemetry
        for times, deadline_ms, ran_ms, traced in self._committing:
            times.committing_ms = now_ms - ran_ms
            laxity_ms = None if deadline_ms is None else deadline_ms - now_ms
            if laxity_ms is not None and laxity_ms < 0:
                times.late = times.count
            telemetry.span_done(times, laxity_ms, now_ms)
            if traced is not None:
                traced.committed(times)
        self._committing = []
        for work, running_ms, ran_ms, wall_ms in self._committing_spans:
            self._spans_committed(work, running_ms, ran_ms, wall_ms, now_ms)
        self._committing_spans = []

    def _spans_committed(
        self, work: Work, running_ms: float, ran_ms: float, wall_ms: int, now_ms: float
    ) -> None:
        """The way of most messages: what a run's spans have in common is counted once."""
        function = self._times
        assert function is not None
        stages, slow = function.stages, self._telemetry.slow
        count, loading_ms, committing_ms = work.count, work.loading_ms, now_ms - ran_ms
        function.messages += count
        if loading_ms:
            stages["state"].observe(loading_ms, count)
        else:
            stages["state"].zeros += count
        stages["running"].observe(running_ms, count)
        stages["committing"].observe(committing_ms, count)
        common_ms = loading_ms + running_ms + committing_ms
        for chunk, start, stop in work.spans:
            batch, length = chunk.batch, stop - start
            waited_ms = ran_ms - running_ms - chunk.arrived_ms - loading_ms
            if waited_ms < 0.0:
                waited_ms = 0.0
            batch_ms = min(work.gathering_ms, waited_ms) if work.gathering_ms else 0.0
            queue_ms = waited_ms - batch_ms
            turn_ms = waited_ms + common_ms
            total_ms = batch.age_ms + turn_ms
            if batch.age_ms:
                stages["admission"].observe(batch.age_ms, length)
            else:
                stages["admission"].zeros += length
            stages["queue"].observe(queue_ms, length)
            if batch_ms:
                stages["batch"].observe(batch_ms, length)
            else:
                stages["batch"].zeros += length
            function.latency.observe(total_ms, length)
            if function.turns is not None:
                function.turns.append((turn_ms, length))
            deadline_ms, late = chunk.deadline_ms(start), 0
            if deadline_ms is not None:
                function.laxity.observe(deadline_ms - now_ms, length)
                if deadline_ms < now_ms:
                    late = length
                    function.late += length
            if slow.wants(total_ms, late > 0, now_ms):
                times = SpanTimes(
                    self._function,
                    self._partition,
                    batch.source,
                    batch.first + start,
                    length,
                    wall_ms - int(ran_ms - chunk.arrived_ms),
                    batch.age_ms,
                    queue_ms,
                    loading_ms,
                    running_ms,
                    committing_ms,
                    late=late,
                    batch_ms=batch_ms,
                )
                slow.note(times, now_ms)


def request_id(partition: str, source: str, number: int) -> str:
    """Return the name under which `sublet why` knows a message."""
    return f"{partition}@{source}:{number}"


def parse_request_id(text: str) -> tuple[str, str, int]:
    """Return (partition, source, number). Raises ValueError for anything else."""
    partition, mark, rest = text.partition("@")
    source, colon, number = rest.rpartition(":")
    if not mark or not colon or not number.isdigit():
        raise ValueError(f"{text!r} is not a request id; allowed: app/function/3@source:number")
    return partition, source, int(number)
