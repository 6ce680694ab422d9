"""What a worker tells the controller once a second: differences of what it counts anyway.

Costs the way of messages nothing: all is read from counters and queues when a sample is due. When
the first of all that waits will be late is worked out then, too, from what stands in the queues:
earliest deadline first, as Dirigo's queue would have it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import islice
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import Protocol

from sublet.functions.app import Function
from sublet.functions.windows import BEGINNING_MS
from sublet.runtime.hosting.hosted import Hosted
from sublet.runtime.hosting.thread_runs import THREADS_BUSY_MAX, BusyTime
from sublet.runtime.leases.adapter import Lending
from sublet.runtime.observability.telemetry import FunctionTimes, Histogram, Telemetry
from sublet.runtime.partition.model.channel_names import REPLY_MARK
from sublet.runtime.partition.model.effects import Pace, Traffic
from sublet.runtime.partition.partition import Partition
from sublet.scheduler.pace import RUNS_AT_ONCE, LearnedPace
from sublet.scheduler.scaling.signals import (
    OUTSIDE,
    PARTITIONS_MAX,
    TRAFFIC_MAX,
    TURN_BOUNDS_MS,
    FunctionSignals,
    WorkerSample,
    cost_ms,
    observe,
)
from sublet.scheduler.urgency import Urgency

CHUNKS_MAX = 4_096
"""Batches in queues that are looked at; what is behind them counts as one for each partition."""

COUNTED = ("late", "refused", "runs", "accepted", "consumed", "answered")


class SampledHost(Protocol):
    """What is read of a worker."""

    @property
    def partitions(self) -> Mapping[str, Hosted]: ...

    @property
    def telemetry(self) -> Telemetry: ...

    @property
    def urgency(self) -> Urgency: ...

    @property
    def pace(self) -> Pace: ...

    @property
    def lending(self) -> Lending | None: ...

    @property
    def busy_times(self) -> Mapping[str, BusyTime]: ...


class _FunctionTotals:
    """One function since the last sample."""

    __slots__ = (
        "arrived",
        "by_partition",
        "done",
        "lag_ms",
        "laxity_ms",
        "partitions",
        "sent",
        "state_bytes",
        "violators_ms",
        "waiting",
        "waiting_ms",
    )

    def __init__(self) -> None:
        self.arrived: dict[str, int] = {}
        self.done: dict[str, int] = {}
        self.sent: dict[str, int] = {}
        self.by_partition: dict[int, int] = {}
        """Arrived, by the partition's index."""
        self.partitions = 0
        self.waiting = 0
        self.waiting_ms = 0.0
        self.laxity_ms = inf
        self.violators_ms = 0.0
        self.state_bytes = 0
        self.lag_ms = 0.0


class Sampler:
    def __init__(
        self,
        worker: str,
        functions: Mapping[str, Function],
        host: SampledHost,
        refusals: Mapping[tuple[str, str], int],
        *,
        now_ms: float,
        cpu_s: float,
    ) -> None:
        """`refusals`: what the router refuses by itself, by function and reason. `cpu_s`: what the
        process has used of the processor so far."""
        self._worker = worker
        self._functions = functions
        self._host = host
        host.telemetry.keep_turns()
        self._refusals = refusals
        self._now_ms, self._cpu_s = now_ms, cpu_s
        self._number = 0
        self._counted: dict[str, tuple[int, ...]] = {}
        """Function to its counters as they were the last time."""
        self._laxities: dict[str, list[int]] = {}
        self._lent: dict[str, tuple[int, int, float, int]] = {}
        self._names: dict[str, str] = {}
        """Endpoint to function."""
        self._accepted: dict[str, int] = {}
        """Partition to what it had accepted the last time."""
        self._busy_ms = now_ms
        """When there was last something to do."""

    def sample(
        self, now_ms: float, cpu_s: float, memory_bytes: int = 0, *, is_asked: bool = False
    ) -> WorkerSample:
        """Return what has happened since the last sample. `is_asked`: callers without a link (HTTP,
        unary) have come meanwhile, or wait for an answer."""
        interval_ms = max(now_ms - self._now_ms, 1e-3)
        used_s, self._cpu_s, self._now_ms = max(0.0, cpu_s - self._cpu_s), cpu_s, now_ms
        self._number += 1
        totals_of = {name: _FunctionTotals() for name in self._functions}
        pairs: list[tuple[str, str, int]] = []
        timer_ms: float | None = None
        for name, hosted in self._host.partitions.items():
            totals = totals_of[hosted.env.function.name]
            self._add(totals, hosted, now_ms)
            counters = hosted.partition.counters
            traffic = counters.take()
            self._add_traffic(totals, traffic)
            pairs += _pairs(name, traffic)
            index = int(name.rpartition("/")[2])
            accepted, before = counters.accepted, self._accepted.get(name, 0)
            self._accepted[name] = accepted
            # A partition that has come back counts anew.
            totals.by_partition[index] = accepted - before if accepted >= before else accepted
            due_ms = hosted.partition.next_due_ms(now_ms)
            if due_ms is not None:
                left_ms = max(0.0, due_ms - now_ms)
                timer_ms = left_ms if timer_ms is None else min(timer_ms, left_ms)
        for name, left in self._host.telemetry.left_traffic.items():
            self._add_traffic(totals_of[name], left.take())
        laxity_ms, violators_ms = self._laxity_of_backlog(totals_of, now_ms)
        counted = self._count()
        if is_asked or self._is_busy(counted, now_ms):
            self._busy_ms = now_ms
        functions = [
            self._signals(self._functions[name], totals, counted[name], interval_ms)
            for name, totals in totals_of.items()
        ]
        return WorkerSample(
            worker=self._worker,
            number=self._number,
            interval_ms=interval_ms,
            utilisation=self._utilisation(totals_of, used_s, interval_ms),
            functions=functions,
            laxity_ms=laxity_ms,
            violators_ms=violators_ms,
            timer_ms=timer_ms,
            traffic=nlargest(TRAFFIC_MAX, pairs, key=itemgetter(2)),
            memory_bytes=memory_bytes,
            idle_ms=now_ms - self._busy_ms,
        )

    def _is_busy(self, counted: Mapping[str, tuple[int, ...]], now_ms: float) -> bool:
        """Tell whether anything has come or run since the last sample, or is to be done."""
        lending = self._host.lending
        return (
            any(map(any, counted.values()))
            or (lending is not None and lending.lessee.messages > 0)
            or any(
                hosted.partition.needs_worker(self._functions, now_ms)
                for hosted in self._host.partitions.values()
            )
        )

    # Partitions

    def _add(self, totals: _FunctionTotals, hosted: Hosted, now_ms: float) -> None:
        partition = hosted.partition
        totals.partitions += 1
        totals.waiting += partition.queued
        if hosted.cache is not None:
            totals.state_bytes += hosted.cache.bytes
        progress = partition.progress
        if progress.is_used and not progress.by_clock and progress.watermark_ms != BEGINNING_MS:
            lag_ms = partition.clock_ms(now_ms) - progress.watermark_ms
            totals.lag_ms = max(totals.lag_ms, float(lag_ms))

    def _add_traffic(self, totals: _FunctionTotals, traffic: Traffic) -> None:
        for into, counts in (
            (totals.arrived, traffic.arrived),
            (totals.done, traffic.done),
            (totals.sent, traffic.sent),
        ):
            for endpoint, count in counts.items():
                name = self._function_of(endpoint)
                into[name] = into.get(name, 0) + count

    def _function_of(self, endpoint: str) -> str:
        """Return the function at the other end; replies go to nobody's input."""
        name = self._names.get(endpoint)
        if name is None:
            is_reply = endpoint.endswith(REPLY_MARK)
            name = OUTSIDE if is_reply else endpoint.rpartition("/")[0]
            self._names[endpoint] = name
        return name

    # What waits

    def _laxity_of_backlog(
        self, totals_of: Mapping[str, _FunctionTotals], now_ms: float
    ) -> tuple[float, float]:
        """Work out when what waits would be finished; return the smallest laxity, and what those
        cost that will be late."""
        urgency = self._host.urgency
        entries: list[tuple[float, float, str]] = []
        loaded = [each for each in self._host.partitions.values() if each.partition.queued]
        most = max(16, CHUNKS_MAX // max(1, len(loaded)))
        for hosted in loaded:
            function = hosted.env.function
            for deadline_ms, count in _waiting(hosted.partition, urgency, most, now_ms):
                due_ms = urgency.due_ms(function, deadline_ms)
                entries.append((due_ms, urgency.occupies_ms(function, count), function.name))
        entries.sort()
        ends_ms, smallest_ms, violators_ms = now_ms, inf, 0.0
        for due_ms, cost_ms_, name in entries:
            ends_ms += cost_ms_
            laxity_ms = due_ms - ends_ms
            totals = totals_of[name]
            totals.waiting_ms += cost_ms_
            totals.laxity_ms = min(totals.laxity_ms, laxity_ms)
            smallest_ms = min(smallest_ms, laxity_ms)
            if laxity_ms <= 0:
                totals.violators_ms += cost_ms_
                violators_ms += cost_ms_
        return smallest_ms, violators_ms

    # Counters

    def _count(self) -> dict[str, tuple[int, ...]]:
        """Return what each function has counted since the last time."""
        totals = {name: [0] * len(COUNTED) for name in self._functions}
        for name, left in self._host.telemetry.left.items():
            for place, counter in enumerate(COUNTED):
                totals[name][place] += left[counter]
        for hosted in self._host.partitions.values():
            total, counters = totals[hosted.env.function.name], hosted.partition.counters
            for place, counter in enumerate(COUNTED):
                total[place] += getattr(counters, counter)
        for (name, _), count in self._refusals.items():
            if name in totals:
                totals[name][COUNTED.index("refused")] += count
        nothing = (0,) * len(COUNTED)
        since = {
            name: tuple(
                max(0, now - before)
                for now, before in zip(total, self._counted.get(name, nothing), strict=True)
            )
            for name, total in totals.items()
        }
        self._counted = {name: tuple(total) for name, total in totals.items()}
        return since

    def _laxity(self, name: str, histogram: Histogram) -> Sequence[int]:
        """Return what was added to a histogram since the last time; nothing if nothing was."""
        before = self._laxities.get(name)
        now = self._laxities[name] = list(histogram.counts)
        if before == now:
            return ()
        return now if before is None else [a - b for a, b in zip(now, before, strict=True)]

    def _signals(
        self,
        function: Function,
        totals: _FunctionTotals,
        counted: tuple[int, ...],
        interval_ms: float,
    ) -> FunctionSignals:
        host, name = self._host, function.name
        late, refused, runs, accepted, consumed, answered = counted
        _add_rest(totals.arrived, accepted)
        _add_rest(totals.done, consumed)
        if answered:
            totals.sent[OUTSIDE] = totals.sent.get(OUTSIDE, 0) + answered
        times = host.telemetry.functions.get(name)
        fixed_ms = message_ms = 0.0
        if isinstance(host.pace, LearnedPace):
            at_once = host.pace.at_once(function)
            fixed_ms, message_ms = (each / at_once for each in host.pace.coefficients(function))
        one_ms = cost_ms(fixed_ms, message_ms, runs, sum(totals.done.values()))
        busiest = nlargest(PARTITIONS_MAX, totals.by_partition.items(), key=itemgetter(1))
        lent, returned, lease_ms, guests = self._leases(name)
        return FunctionSignals(
            function=name,
            tenant=function.tenant,
            arrived=totals.arrived,
            done=totals.done,
            sent=totals.sent,
            refused=refused,
            waiting=totals.waiting,
            waiting_ms=totals.waiting_ms,
            laxity_ms=totals.laxity_ms,
            violators_ms=totals.violators_ms,
            turn=() if times is None else _turns(times),
            runs=runs,
            fixed_ms=fixed_ms,
            message_ms=message_ms,
            path_ms=host.urgency.paths.path_ms(name),
            late=late,
            laxity=() if times is None else self._laxity(name, times.laxity),
            lent=lent,
            returned=returned,
            guests=guests,
            lease_ms=lease_ms,
            state_bytes=totals.state_bytes,
            lag_ms=totals.lag_ms,
            loads={index: count * one_ms / interval_ms for index, count in busiest if count},
        )

    def _leases(self, name: str) -> tuple[int, int, float, int]:
        """Return what was lent and has come back, what one of it took here, and how many messages
        of other workers ran here."""
        lending = self._host.lending
        if lending is None:
            return 0, 0, 0.0, 0
        stats = lending.lessor.stats.get(name)
        before = self._lent.get(name, (0, 0, 0.0, 0))
        messages, returned, spent_ms = before[:3]
        if stats is not None:
            messages, returned = stats.messages, stats.came_back
            if messages > before[0]:
                spent_ms = stats.spent_ms  # Else what has come back counts the next time.
        guests = lending.guests_ran[name]
        self._lent[name] = (messages, returned, spent_ms, guests)
        lent = messages - before[0]
        one_ms = (spent_ms - before[2]) / lent if lent else 0.0
        return lent, returned - before[1], one_ms, guests - before[3]

    # How busy it is

    def _utilisation(
        self, totals_of: Mapping[str, _FunctionTotals], used_s: float, interval_ms: float
    ) -> float:
        """Return the largest of: the share of one core that was used, since Python uses one; the
        share of the threads for handlers that compute; the share of what may wait at once."""
        interval_s = interval_ms / 1000
        shares = [used_s / interval_s]
        for name, busy in self._host.busy_times.items():
            busy_s, slots = busy.take_s(self._now_ms / 1000), THREADS_BUSY_MAX
            if name:
                function, totals = self._functions[name], totals_of[name]
                slots = (function.concurrency or RUNS_AT_ONCE) * max(1, totals.partitions)
            shares.append(busy_s / interval_s / slots)
        return min(1.0, max(shares))


def _add_rest(counts: dict[str, int], total: int) -> None:
    """What did not come from functions came from clients."""
    rest = total - sum(counts.values())
    if rest > 0:
        counts[OUTSIDE] = counts.get(OUTSIDE, 0) + rest


def _turns(times: FunctionTimes) -> Sequence[int]:
    if not times.turns:
        return ()
    counts = [0] * (len(TURN_BOUNDS_MS) + 1)
    for turn_ms, count in times.turns:
        observe(counts, TURN_BOUNDS_MS, turn_ms, count)
    times.turns.clear()
    return counts


class ProcessSampler:
    """A sampler that looks at its own process."""

    def __init__(
        self,
        worker: str,
        functions: Mapping[str, Function],
        host: SampledHost,
        refusals: Mapping[tuple[str, str], int],
        now_ms: float,
        is_asked: Callable[[], bool],
    ) -> None:
        """`is_asked`: whether callers without a link have come since that was asked last."""
        cpu_s = time.process_time()
        self._is_asked = is_asked
        self._sampler = Sampler(worker, functions, host, refusals, now_ms=now_ms, cpu_s=cpu_s)

    def sample(self, now_ms: float) -> WorkerSample:
        return self._sampler.sample(
            now_ms, time.process_time(), _memory_bytes(), is_asked=self._is_asked()
        )


def _memory_bytes() -> int:
    """Return what the process has in memory; 0 where nobody can say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _waiting(
    partition: Partition, urgency: Urgency, most: int, now_ms: float
) -> Iterator[tuple[float, int]]:
    """Yield when messages are due that wait, and how many they are."""
    patience_ms, counted = now_ms + urgency.patience_ms, 0
    due_ms = patience_ms
    for waiting in islice(partition.waiting_singly(), most):
        due_ms = patience_ms if waiting.deadline_ms is None else waiting.deadline_ms
        counted += 1
        yield due_ms, 1
    for chunk in islice(partition.waiting_chunks(), most):
        due_ms = chunk.earliest_ms
        counted += chunk.count
        yield due_ms, chunk.count
    if counted < partition.queued:
        yield due_ms, partition.queued - counted


def _pairs(partition: str, traffic: Traffic) -> list[tuple[str, str, int]]:
    return [
        (partition, endpoint, count)
        for endpoint, count in traffic.sent.items()
        if not endpoint.endswith(REPLY_MARK)
    ]
