"""What came out of a simulation, as numbers; `text` and `plot` show them."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sublet.functions.duration import milliseconds
from sublet.runtime.simulation.engine.ledger import FunctionTotals, Series

if TYPE_CHECKING:
    from sublet.runtime.simulation.engine.cluster import Cluster
    from sublet.runtime.simulation.engine.worker import Surroundings
    from sublet.runtime.simulation.simulation import Simulation

TIMERS = "timers"
"""The name for what delayed messages cause, in place of a load's."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds from the intended arrival of a cause until its message's effects are durable."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float
    max: float
    late: int

    @property
    def late_share(self) -> float:
        return self.late / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class Second:
    """One second of virtual time."""

    second: int
    count: int
    mean: float
    p50: float
    p99: float
    late: int


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest rank of sorted values; 0 if there are none."""
    if not values:
        return 0.0
    return values[min(len(values) - 1, int(share * len(values)))]


def latency_of(latencies_ms: array[float], late: int) -> Latency:
    values = sorted(latencies_ms)
    return Latency(
        count=len(values),
        mean=sum(values) / len(values) if values else 0.0,
        p50=percentile(values, 0.5),
        p90=percentile(values, 0.9),
        p95=percentile(values, 0.95),
        p99=percentile(values, 0.99),
        p999=percentile(values, 0.999),
        max=values[-1] if values else 0.0,
        late=late,
    )


@dataclass(frozen=True, slots=True)
class Traffic:
    frames: int
    batches: int
    messages: int
    bytes: int
    lost: int
    doubled: int
    reordered: int
    stopped: int


@dataclass(frozen=True, slots=True)
class Leases:
    """Work that ran at peers, and what it took."""

    probes: int
    """Questions whether there is room; `replies` to them."""
    replies: int
    offered: int
    accepted: int
    declined: int
    returned: int
    expired: int
    revoked: int
    too_late: int
    """Returned when the lessor had given them up: dropped."""
    messages: int
    """Messages in returned leases, without those that came home unrun (`home`)."""
    home: int
    partials: int
    """States that lessees had begun from nothing, merged."""
    said: int
    """Messages between lessors and lessees, of all kinds, and their `bytes`."""
    bytes: int
    states_sent: int
    """States that travelled with an offer; `states_held` need not, since the lessee had them."""
    states_held: int
    state_bytes: int
    core_ms: float
    """What all this took of cores (`lease_overhead`, and merging)."""


@dataclass(frozen=True, slots=True)
class FunctionReport:
    """One function (or stage), all loads together."""

    name: str
    messages: int
    runs: int
    commits: int
    busy_ms: float
    loads: int
    fetched: int
    hits: int
    misses: int
    prefetched: int
    evicted: int
    failures: int
    refused: int
    duplicates: int
    lent: int
    """Of its messages, those that ran at peers."""

    @property
    def batch_mean(self) -> float:
        return self.messages / self.runs if self.runs else 0.0


class Report:
    """Latencies and counts of one run. Nothing in it depends on the machine, except `wall_s`."""

    def __init__(
        self,
        *,
        simulation: Simulation,
        around: Surroundings,
        cluster: Cluster,
        until_ms: float,
        wall_s: float,
    ) -> None:
        self.simulation = simulation
        self.loads = [load.label for load in simulation.loads]
        self.duration_ms = around.events.now_ms
        self.until_ms = until_ms
        self.wall_s = wall_s
        self.events = around.events.handled
        self._ledger = around.ledger
        self.sent = around.ledger.sent
        self.executed = around.ledger.executed
        self.trace_hash = around.trace.hexdigest()
        self.takeovers = cluster.takeovers
        self.refusals = sum(source.refused for source in cluster.sources)
        self.busy = [worker.busy_ms / max(1.0, self.duration_ms) for worker in cluster.workers]
        store, network = around.store, around.network
        self.commits, self.commit_groups, self.rows = store.commits, store.groups, store.rows
        self.traffic = Traffic(
            network.frames,
            network.batches,
            network.messages,
            network.bytes,
            network.lost,
            network.doubled,
            network.reordered,
            network.stopped,
        )
        self.leases = Leases(
            **{name: getattr(around.leases, name) for name in Leases.__dataclass_fields__}
        )
        for worker in cluster.workers:
            for hosted in worker.partitions.values():
                counters, totals = hosted.partition.counters, hosted.handlers.totals
                totals.duplicates += counters.duplicates
                totals.refused += counters.refused
                totals.failures += counters.failures
                totals.prefetched += counters.prefetched
        self._tallies: dict[str, FunctionTotals] = {
            each.totals.name: each.totals for each in around.handlers.values()
        }
        self.functions = {name: _function(totals) for name, totals in self._tallies.items()}
        self._warmup_s = int(milliseconds(simulation.warmup) // 1000)

    # What users ask for

    @property
    def hops(self) -> int:
        """Messages executed at partitions."""
        return self.executed

    @property
    def hops_per_wall_s(self) -> float:
        return self.executed / self.wall_s if self.wall_s else 0.0

    @property
    def open(self) -> int:
        """Messages that were sent and had not taken effect when the simulation ended."""
        return self.sent - self.executed

    @property
    def fetched(self) -> int:
        """States read from the store."""
        return sum(each.fetched for each in self.functions.values())

    @property
    def cache_misses(self) -> int:
        return sum(each.misses for each in self.functions.values())

    def latency(self, function: str, load: str | None = None) -> Latency:
        """Return the latencies of a function's messages, of one load or of all."""
        latencies_ms, late = array("d"), 0
        for series in self._series(function, load):
            some, some_late = series.since(self._warmup_s)
            latencies_ms.extend(some)
            late += some_late
        return latency_of(latencies_ms, late)

    def latencies_ms(self, function: str, load: str | None = None) -> list[float]:
        """Return all latencies, sorted: the distribution itself."""
        values: list[float] = []
        for series in self._series(function, load):
            values.extend(series.since(self._warmup_s)[0])
        return sorted(values)

    def open_ages_ms(self, load: str | None = None) -> list[float]:
        """Return, sorted, how long the causes of what is still open have been waiting.

        With these, latencies of a cluster that did not keep up are lower bounds; without, they
        are those of the lucky ones.
        """
        now_ms = self.duration_ms
        warmup_ms = 1_000 * self._warmup_s
        return sorted(
            now_ms - root[0]
            for _, root in self._ledger.open_roots()
            if root[0] >= warmup_ms and (load is None or self._label(root[2]) == load)
        )

    def timeline(self, function: str, load: str | None = None) -> list[Second]:
        """Return what was measured in each second."""
        seconds: list[tuple[array[float], int]] = []
        for series in self._series(function, load):
            for second, (latencies_ms, late) in enumerate(series.seconds()):
                if second == len(seconds):
                    seconds.append((array("d"), 0))
                so_far, so_far_late = seconds[second]
                so_far.extend(latencies_ms)
                seconds[second] = (so_far, so_far_late + late)
        timeline = []
        for second, (latencies_ms, late) in enumerate(seconds):
            each = latency_of(latencies_ms, late)
            timeline.append(Second(second, each.count, each.mean, each.p50, each.p99, late))
        return timeline

    def throughput(self, function: str, load: str | None = None) -> float:
        """Return messages a second, until the last arrival; the warm-up does not count."""
        counted = self.timeline(function, load)[self._warmup_s : int(self.until_ms // 1000)]
        return sum(each.count for each in counted) / len(counted) if counted else 0.0

    def ends(self) -> list[tuple[str, str]]:
        """Return (function, load) of what was measured, in the order of the scenario."""
        return [
            (name, self._label(load))
            for name, totals in self._tallies.items()
            for load in sorted(totals.series)
        ]

    def _label(self, load: int) -> str:
        return self.loads[load] if load >= 0 else TIMERS

    def _series(self, function: str, load: str | None) -> list[Series]:
        totals = self._tallies.get(function)
        if totals is None:
            short = [
                each for name, each in self._tallies.items() if name.rpartition("/")[2] == function
            ]
            if len(short) != 1:
                known = ", ".join(self._tallies)
                raise ValueError(f"there is no function {function!r}; known: {known}")
            totals = short[0]
        if load is not None and load not in (*self.loads, TIMERS):
            raise ValueError(f"there is no load {load!r}; known: {', '.join(self.loads)}")
        return [
            series
            for number, series in sorted(totals.series.items())
            if load is None or self._label(number) == load
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the distributions, for JSON."""
        return {
            "trace_hash": self.trace_hash,
            "seed": self.simulation.seed,
            "order": str(self.simulation.order),
            "binding": self.simulation.binding,
            "workers": self.simulation.workers,
            "duration_ms": self.duration_ms,
            "sent": self.sent,
            "executed": self.executed,
            "open": self.open,
            "refusals": self.refusals,
            "takeovers": self.takeovers,
            "commits": self.commits,
            "commit_groups": self.commit_groups,
            "busy": {"mean": sum(self.busy) / len(self.busy), "max": max(self.busy)},
            "traffic": _fields(self.traffic),
            "leases": _fields(self.leases),
            "functions": {
                name: {**_fields(each), "batch_mean": each.batch_mean}
                for name, each in self.functions.items()
            },
            "latency": [
                {"function": name, "load": load, **_fields(self.latency(name, load))}
                for name, load in self.ends()
            ],
            "wall_s": self.wall_s,
            "hops_per_wall_s": self.hops_per_wall_s,
        }

    def print(self) -> None:
        """Show tables in the terminal."""
        from sublet.runtime.simulation.reports.text import print_report

        print_report(self)

    def plot(self, path: str | Path) -> Path:
        """Draw distributions and timelines into an .svg or .png file; needs matplotlib."""
        from sublet.runtime.simulation.reports.plot import plot_report

        return plot_report(self, Path(path))

    def save(self, path: str | Path) -> Path:
        """Write `to_dict` as JSON."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")
        return path


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def _function(totals: FunctionTotals) -> FunctionReport:
    return FunctionReport(
        **{name: getattr(totals, name) for name in FunctionReport.__dataclass_fields__}
    )
