"""Samples of workers in, the cluster's last seconds out.

What is counted is summed when a sample comes, so that a decision costs little however many
workers there are. Workers and controller tick at different moments: in one second a worker may be
heard twice, or not at all. So rates are counts by the time that samples cover, times the workers
that are there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import inf, isfinite

from sublet.functions.address import partition_name
from sublet.scheduler.scaling.signals import (
    OUTSIDE,
    REST,
    SILENT_MS,
    TURN_BOUNDS_MS,
    FunctionSignals,
    WorkerSample,
    add_buckets,
    add_counts,
    cost_ms,
    quantile,
)
from sublet.scheduler.scaling.view import (
    HISTORY_MAX,
    RATE_SECONDS,
    FunctionFacts,
    FunctionView,
    Second,
    WorkerFacts,
    WorkerView,
)

COST_KEPT = 0.7
"""Of what a message was known to cost, when a new second has told."""
COST_MS_UNKNOWN = 1.0
LOADS_KEPT_MS = 10_000.0
INTERVAL_MS_MAX = 60_000.0


class _FunctionTotals:
    """One function in one second, over all workers."""

    __slots__ = (
        "arrived",
        "done",
        "done_all",
        "fixed_ms",
        "late",
        "lease_ms",
        "lent",
        "message_ms",
        "path_ms",
        "refused",
        "runs",
        "sent",
        "turn",
    )

    def __init__(self) -> None:
        self.arrived: dict[str, int] = {}
        self.done: dict[str, int] = {}
        self.sent: dict[str, int] = {}
        self.done_all = 0
        self.refused = 0
        self.late = 0
        self.runs = 0
        self.lent = 0
        self.fixed_ms = 0.0
        self.message_ms = 0.0
        self.lease_ms = 0.0
        """Times messages, as the two above."""
        self.path_ms = 0.0
        self.turn: list[int] = []

    def add(self, signals: FunctionSignals) -> None:
        add_counts(self.arrived, signals.arrived)
        add_counts(self.done, signals.done)
        add_counts(self.sent, signals.sent)
        done = sum(signals.done.values())
        self.done_all += done
        self.refused += signals.refused
        self.late += signals.late
        self.runs += signals.runs
        self.lent += signals.lent
        self.fixed_ms += signals.fixed_ms * done
        self.message_ms += signals.message_ms * done
        self.lease_ms += signals.lease_ms * signals.lent
        self.path_ms = max(self.path_ms, signals.path_ms)
        add_buckets(self.turn, signals.turn)

    def merge(self, other: _FunctionTotals) -> None:
        add_counts(self.arrived, other.arrived)
        add_counts(self.done, other.done)
        add_counts(self.sent, other.sent)
        self.done_all += other.done_all
        self.refused += other.refused
        self.late += other.late
        self.runs += other.runs
        self.lent += other.lent
        self.fixed_ms += other.fixed_ms
        self.message_ms += other.message_ms
        self.lease_ms += other.lease_ms
        self.path_ms = max(self.path_ms, other.path_ms)
        add_buckets(self.turn, other.turn)

    @property
    def cost_ms(self) -> float | None:
        """What a message took; None if none was done."""
        done = self.done_all
        if not done:
            return None
        return cost_ms(self.fixed_ms / done, self.message_ms / done, self.runs, done)


class _Totals:
    """All functions in one second."""

    __slots__ = ("covered_ms", "functions", "traffic")

    def __init__(self) -> None:
        self.covered_ms = 0.0
        self.functions: dict[str, _FunctionTotals] = {}
        self.traffic: dict[tuple[str, str], int] = {}

    def of(self, function: str) -> _FunctionTotals:
        totals = self.functions.get(function)
        if totals is None:
            totals = self.functions[function] = _FunctionTotals()
        return totals


class _Gauges:
    __slots__ = ("lag_ms", "laxity_ms", "state_bytes", "violators_ms", "waiting", "waiting_ms")

    def __init__(self) -> None:
        self.waiting = 0
        self.waiting_ms = 0.0
        self.laxity_ms = inf
        self.violators_ms = 0.0
        self.state_bytes = 0
        self.lag_ms = 0.0


class Observations:
    """What the controller knows of the workers by their own words."""

    def __init__(self) -> None:
        self.history: deque[Second] = deque(maxlen=HISTORY_MAX)
        self._facts: dict[str, WorkerFacts] = {}
        self._joined_ms: dict[str, float] = {}
        self._samples: dict[str, WorkerSample] = {}
        self._heard_ms: dict[str, float] = {}
        self._now = _Totals()
        self._tallies: deque[_Totals] = deque(maxlen=RATE_SECONDS)
        self._costs_ms: dict[str, float] = {}
        self._leases_ms: dict[str, float] = {}
        """What lending a message takes, as it was measured last: nothing is lent any more where
        that was not worth it, and so nobody would measure it again."""
        self._loads: dict[str, dict[str, tuple[float, float]]] = {}
        """Function to partition to (load, when it was told)."""

    def members(self, members: Mapping[str, WorkerFacts], now_ms: float) -> list[str]:
        """Learn who is there; return those that are new."""
        new = [worker for worker in members if worker not in self._facts]
        for worker in new:
            self._joined_ms[worker] = now_ms
        for worker in [worker for worker in self._facts if worker not in members]:
            for known in (self._joined_ms, self._samples, self._heard_ms):
                known.pop(worker, None)
        self._facts = dict(members)
        return sorted(new)

    def heard(self, sample: WorkerSample, now_ms: float) -> bool:
        """Take a sample in; return whether it makes sense, and is not an old one."""
        last = self._samples.get(sample.worker)
        if sample.worker not in self._facts or not _makes_sense(sample):
            return False
        if last is not None and sample.number == last.number:
            return False
        self._samples[sample.worker] = sample
        self._heard_ms[sample.worker] = now_ms
        totals = self._now
        totals.covered_ms += sample.interval_ms
        for signals in sample.functions:
            totals.of(signals.function).add(signals)
            if signals.loads and signals.function != REST:
                loads = self._loads.setdefault(signals.function, {})
                for index, load in signals.loads.items():
                    loads[partition_name(signals.function, index)] = (load, now_ms)
        for sender, receiver, count in sample.traffic:
            pair = (sender, receiver)
            totals.traffic[pair] = totals.traffic.get(pair, 0) + count
        return True

    def is_silent(self, worker: str, now_ms: float) -> bool:
        since_ms = self._heard_ms.get(worker, self._joined_ms.get(worker, now_ms))
        return now_ms - since_ms >= SILENT_MS

    def last_sample(self, worker: str) -> WorkerSample | None:
        return self._samples.get(worker)

    def _present(self, now_ms: float) -> list[WorkerSample]:
        """Return the last samples of those that are heard."""
        return [
            sample
            for worker, sample in self._samples.items()
            if now_ms - self._heard_ms[worker] < SILENT_MS
        ]

    def close_second(self, now_ms: float) -> Second | None:
        """End a second, and return it; None if nobody was heard in it."""
        totals, self._now = self._now, _Totals()
        samples = self._present(now_ms)
        if not totals.covered_ms or not samples:
            return None
        self._tallies.append(totals)
        for function, each in totals.functions.items():
            self._learn_cost(function, each.cost_ms)
            if each.lent and each.lease_ms > 0:
                self._leases_ms[function] = each.lease_ms / each.lent
        second = self._second(totals, samples, now_ms)
        self.history.append(second)
        return second

    def _learn_cost(self, function: str, cost_ms: float | None) -> None:
        if cost_ms is None or cost_ms <= 0:
            return
        known_ms = self._costs_ms.get(function)
        if known_ms is not None:
            cost_ms = COST_KEPT * known_ms + (1 - COST_KEPT) * cost_ms
        self._costs_ms[function] = cost_ms

    def _second(self, totals: _Totals, samples: list[WorkerSample], now_ms: float) -> Second:
        scale = len(samples) * 1000 / totals.covered_ms
        arrived = refused = done = late = 0
        load = work = entry_load = entry_work = turn_ms = 0.0
        for function, each in totals.functions.items():
            cost_ms = self._costs_ms.get(function, COST_MS_UNKNOWN)
            entered, left = each.arrived.get(OUTSIDE, 0), each.done.get(OUTSIDE, 0)
            arrived += entered
            done += left
            refused += each.refused
            late += each.late
            load += sum(each.arrived.values()) * cost_ms
            work += each.done_all * cost_ms
            entry_load += entered * cost_ms
            entry_work += left * cost_ms
            turn_ms = max(turn_ms, quantile(each.turn, TURN_BOUNDS_MS, 0.95))
        waiting, waiting_ms = 0, 0.0
        for sample in samples:
            for signals in sample.functions:
                waiting += signals.waiting
                waiting_ms += signals.waiting_ms
        return Second(
            at_ms=now_ms,
            workers=len(samples),
            arrived=arrived * scale,
            refused=refused * scale,
            done=done * scale,
            load=load * scale / 1000,
            work=work * scale / 1000,
            entry_load=entry_load * scale / 1000,
            entry_work=entry_work * scale / 1000,
            busy=sum(sample.utilisation for sample in samples),
            waiting=waiting,
            waiting_ms=waiting_ms,
            laxity_ms=min(sample.laxity_ms for sample in samples),
            turn_ms=turn_ms,
            late=late * scale,
        )

    # For policies

    def workers(self, now_ms: float) -> dict[str, WorkerView]:
        views = {}
        for worker, facts in sorted(self._facts.items()):
            sample = self._samples.get(worker)
            silent = self.is_silent(worker, now_ms)
            view = views[worker] = WorkerView(
                facts=facts, joined_ms=self._joined_ms[worker], silent=silent
            )
            if sample is not None:
                view.heard_ms = self._heard_ms[worker]
                view.laxity_ms = sample.laxity_ms
                view.timer_ms = sample.timer_ms
                view.instance_speed = sample.instance_speed
                view.waiting_ms = sum([each.waiting_ms for each in sample.functions])
                if not silent:
                    view.utilisation = sample.utilisation
        return views

    def functions(
        self, facts: Mapping[str, FunctionFacts], now_ms: float
    ) -> dict[str, FunctionView]:
        """Return what is known of each function that was declared, and of the rest together."""
        samples = self._present(now_ms)
        gauges: dict[str, _Gauges] = {}
        for sample in samples:
            for signals in sample.functions:
                gauge = gauges.get(signals.function)
                if gauge is None:
                    gauge = gauges[signals.function] = _Gauges()
                gauge.waiting += signals.waiting
                gauge.waiting_ms += signals.waiting_ms
                gauge.violators_ms += signals.violators_ms
                gauge.state_bytes += signals.state_bytes
                if signals.laxity_ms < gauge.laxity_ms:
                    gauge.laxity_ms = signals.laxity_ms
                if signals.lag_ms > gauge.lag_ms:
                    gauge.lag_ms = signals.lag_ms
        for known in (self._loads, self._costs_ms, self._leases_ms):
            for name in [name for name in known if name not in facts and name != REST]:
                del known[name]
        covered_ms = sum(totals.covered_ms for totals in self._tallies)
        scale = len(samples) * 1000 / covered_ms if covered_ms else 0.0
        return {
            name: self._function(each, gauges.get(name) or _Gauges(), scale, now_ms)
            for name, each in facts.items()
        }

    def _function(
        self, facts: FunctionFacts, gauges: _Gauges, scale: float, now_ms: float
    ) -> FunctionView:
        name, total = facts.name, _FunctionTotals()
        for totals in self._tallies:
            each = totals.functions.get(name)
            if each is not None:
                total.merge(each)
        loads = self._loads.get(name, {})
        for partition in [p for p, (_, at_ms) in loads.items() if now_ms - at_ms > LOADS_KEPT_MS]:
            del loads[partition]
        return FunctionView(
            facts=facts,
            arrived={source: count * scale for source, count in total.arrived.items()},
            done={source: count * scale for source, count in total.done.items()},
            sent={target: count * scale for target, count in total.sent.items()},
            refused=total.refused * scale,
            late=total.late * scale,
            waiting=gauges.waiting,
            waiting_ms=gauges.waiting_ms,
            laxity_ms=gauges.laxity_ms,
            violators_ms=gauges.violators_ms,
            turn=total.turn,
            cost_ms=self._costs_ms.get(name, 0.0),
            path_ms=total.path_ms,
            lease_ms=total.lease_ms / total.lent if total.lent else self._leases_ms.get(name, 0.0),
            loads={partition: load for partition, (load, _) in loads.items()},
            state_bytes=gauges.state_bytes,
            lag_ms=gauges.lag_ms,
        )

    def traffic(self) -> dict[tuple[str, str], float]:
        """Return messages a second for the busiest pairs of partitions."""
        total: dict[tuple[str, str], int] = {}
        for totals in self._tallies:
            for pair, count in totals.traffic.items():
                total[pair] = total.get(pair, 0) + count
        seconds = max(1, len(self._tallies))
        return {pair: count / seconds for pair, count in total.items()}


def _makes_sense(sample: WorkerSample) -> bool:
    """Tell whether a sample can be counted: it comes from outside this process."""
    return (
        0 < sample.interval_ms <= INTERVAL_MS_MAX
        and 0 <= sample.utilisation <= 1
        and sample.idle_ms >= 0
        and 0 <= sample.instance_speed < inf
        and all(_is_finite(each) for each in sample.functions)
    )


def _is_finite(signals: FunctionSignals) -> bool:
    values = (
        signals.waiting_ms,
        signals.violators_ms,
        signals.fixed_ms,
        signals.message_ms,
        signals.path_ms,
        signals.lease_ms,
        *signals.loads.values(),
    )
    return all(isfinite(value) and value >= 0 for value in values)
