"""Cameo's experiments, simulated: urgent dataflows beside bulk ones, on a cluster like the paper's.

    .venv/bin/python -m benchmarks.cameo.simulated [--quick] [--only rate pareto] [--jobs 2]

Partitions, orders, batching and commits are the runtime's own code, on a virtual clock: nothing
here depends on how fast this machine is. A node has four cores that share one queue. Urgent jobs
have one message (of 1,000 events) a second from each source, windows of 1 s and a target of 800 ms;
bulk jobs have messages of 10,000 events, windows of 10 s and 7,200 s. Every job is four functions:
parse, aggregate by window, merge, output. Its latency is that of its output, from the moment at
which the last message came that the window needed.

The paper has 32 nodes and 64 sources a job: that is the experiment `scale`. The others run on a
quarter of both, with the same load for each core. A whole run is kept in
`results/cameo_simulated.*`; any other goes to `results/local/`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cameo.report import show_simulated
from benchmarks.harness import machine
from benchmarks.harness.workload import percentile
from sublet.functions.address import partition_index_of
from sublet.functions.duration import milliseconds
from sublet.runtime.simulation.scenarios.scenario import Load, Stage, To
from sublet.runtime.simulation.simulation import Simulation

SEED = 7
ORDERS = ("least-laxity", "arrival", "earliest-deadline", "shortest-job", "round-robin")
LATE_LAST = "least-laxity-late-last"
URGENT_JOBS = 4
BULK_JOBS = 12
"""With 30,000 events a second from each of their sources, the cluster is full."""
KNEE_PER_S = 30_000
FULL_PER_S = 40_000
"""A third more than the cluster can do."""
BULK_EVENTS = 10_000
"""In one message."""
URGENT_TARGET_MS = 800
BULK_TARGET_S = 7_200


@dataclass(frozen=True, slots=True)
class Scale:
    nodes: int
    cores: int
    sources: int
    """Of each job."""


QUARTER = Scale(8, 4, 16)
PAPER = Scale(32, 4, 64)


class OwnKeys:
    """One key for each source, each in a partition of its own: a window is complete when all
    sources have come past its end, and none can be mistaken for another."""

    def __init__(self, sources: int) -> None:
        found: dict[int, str] = {}
        for number in itertools.count():
            key = f"s{number}"
            found.setdefault(partition_index_of(key, sources), key)
            if len(found) == sources:
                break
        self._names = [found[index] for index in range(sources)]
        self._given = itertools.cycle(self._names)

    def names(self) -> Sequence[str]:
        return self._names

    def sampler(self, chance: random.Random) -> Callable[[int], Sequence[str]]:
        mine = [next(self._given)]
        return lambda count: mine * count


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One dataflow with its sources."""

    name: str
    window: str
    target: str
    parse: str
    aggregate: str
    rate_per_s: float
    """Messages of each source."""
    arrivals: str = "uniform"
    aligned: bool = False
    batch: str | int = 1
    weights: Sequence[float] | None = None
    marked: bool = False
    """Poisson arrivals, and from each source one message at the very end of each window, which
    closes it, as a watermark does."""
    frontier: bool = True

    def stages(self, scale: Scale) -> list[Stage]:
        name = self.name
        return [
            Stage(
                f"{name}_parse",
                cost=self.parse,
                slo=self.target,
                sends=[To(f"{name}_aggregate")],
                partitions=scale.sources,
                tenant=name,
            ),
            Stage(
                f"{name}_aggregate",
                cost=self.aggregate,
                window=self.window,
                frontier=self.frontier,
                sends=[To(f"{name}_merge", keys="one")],
                partitions=min(scale.nodes, scale.sources),
                tenant=name,
            ),
            Stage(
                f"{name}_merge",
                cost="1ms",
                window=self.window,
                frontier=self.frontier,
                sends=[To(f"{name}_output", keys="one")],
                partitions=1,
                tenant=name,
            ),
            Stage(f"{name}_output", cost="0.1ms", partitions=1, tenant=name),
        ]

    def load(self, scale: Scale, until_s: float, directory: Path) -> Load:
        if self.marked:
            path = directory / f"{self.name}.jsonl"
            path.write_text("".join(self._marked_rows(scale, until_s)), encoding="utf-8")
            return Load(target=f"{self.name}_parse", recorded=path, until=f"{until_s}s")
        return Load(
            target=f"{self.name}_parse",
            rate=self.rate_per_s * scale.sources,
            arrivals=self.arrivals,
            aligned=self.aligned,
            batch=self.batch,
            keys=OwnKeys(scale.sources),
            sources=scale.sources,
            weights=self.weights,
            until=f"{until_s}s",
        )

    def _marked_rows(self, scale: Scale, until_s: float) -> Iterable[str]:
        keys = OwnKeys(scale.sources).names()
        weights = self.weights or [1.0] * scale.sources
        window_ms = milliseconds(self.window)
        # A recorded load begins with its first message: so that it is at 0.
        rows: list[tuple[float, str]] = [(0.0, keys[0])]
        for key, weight in zip(keys, weights, strict=True):
            chance = random.Random(f"{SEED}/{self.name}/{key}")
            rate_per_ms = self.rate_per_s * scale.sources * weight / sum(weights) / 1000
            at_ms = chance.expovariate(rate_per_ms)
            while at_ms < until_s * 1000:
                # What comes close to a window's end would be read as one with its mark.
                if 1 < at_ms % window_ms < window_ms - 1:
                    rows.append((at_ms, key))
                at_ms += chance.expovariate(rate_per_ms)
            marks = int(until_s * 1000 // window_ms)
            rows += [(mark * window_ms, key) for mark in range(1, marks + 1)]
        for at_ms, key in sorted(rows):
            yield json.dumps({"time_ms": at_ms, "key": key}) + "\n"


def urgent_jobs(count: int = URGENT_JOBS) -> list[Job]:
    return [
        Job(
            name=f"urgent{number}",
            window="1s",
            target=f"{URGENT_TARGET_MS}ms",
            parse="2ms",
            aggregate="2ms",
            rate_per_s=1,
            aligned=True,
        )
        for number in range(count)
    ]


def bulk_jobs(
    count: int = BULK_JOBS, events_per_s: float = KNEE_PER_S, **changes: Any
) -> list[Job]:
    return [
        Job(
            name=f"bulk{number}",
            window="10s",
            target=f"{BULK_TARGET_S}s",
            parse="30ms",
            aggregate="25ms",
            rate_per_s=events_per_s / BULK_EVENTS,
            **changes,
        )
        for number in range(count)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One simulation: what varies, under which order, and the jobs."""

    experiment: str
    value: str
    order: str
    jobs: Sequence[Job]
    scale: Scale = QUARTER
    seconds: float = 30.0
    warm_up_s: float = 10.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    timeline: bool = False


def run(case: Case) -> dict[str, Any]:
    """Return the figures of a case, by group of jobs: urgent, bulk, or what they are called."""
    with tempfile.TemporaryDirectory() as directory:
        return _run(case, Path(directory))


def _run(case: Case, directory: Path) -> dict[str, Any]:
    scale = case.scale
    simulation = Simulation(
        stages=[stage for job in case.jobs for stage in job.stages(scale)],
        loads=[job.load(scale, case.seconds, directory) for job in case.jobs],
        workers=scale.nodes,
        cores=scale.cores,
        order=case.order,
        seed=SEED,
        warmup=f"{case.warm_up_s}s",
        # What is late is late: nobody has to see how late what is left would be.
        drain="0s",
        **case.settings,
    )
    started_s = time.process_time()
    report = simulation.run()
    groups: dict[str, list[Job]] = {}
    for job in case.jobs:
        groups.setdefault(job.name.rstrip("0123456789"), []).append(job)
    result: dict[str, Any] = {
        "experiment": case.experiment,
        "value": case.value,
        "order": case.order,
        "nodes": scale.nodes,
        "cores": scale.cores,
        "sources": scale.sources,
        "busy": round(statistics.mean(report.busy) / scale.cores, 4),
        "hops": report.hops,
        "refusals": report.refusals,
        "trace_hash": report.trace_hash,
        "cpu_s": round(time.process_time() - started_s, 2),
        "groups": {},
    }
    for name, jobs in groups.items():
        values_ms = sorted(
            value for job in jobs for value in report.latencies_ms(f"{job.name}_output")
        )
        late = sum(report.latency(f"{job.name}_output").late for job in jobs)
        result["groups"][name] = {
            **_distribution(values_ms),
            "met": 1 - late / len(values_ms) if values_ms else 0.0,
            "messages_per_s": sum(report.throughput(f"{job.name}_aggregate") for job in jobs),
        }
    if case.timeline:
        result["timeline"] = _timeline(report, groups.get("urgent", []))
    return result


def _distribution(values_ms: Sequence[float]) -> dict[str, float]:
    if not values_ms:
        return {"outputs": 0}
    figures = {
        f"p{share:g}_ms": percentile(values_ms, share / 100) for share in (50, 90, 95, 99, 100)
    }
    deviation = statistics.pstdev(values_ms)
    return {"outputs": len(values_ms), "deviation_ms": deviation, **figures}


def _timeline(report: Any, jobs: Iterable[Job]) -> list[float | None]:
    """Return the slowest output of each second."""
    worst: dict[int, float] = {}
    for job in jobs:
        for second in report.timeline(f"{job.name}_output"):
            if second.count:
                worst[second.second] = max(worst.get(second.second, 0.0), second.p99)
    return [worst.get(second) for second in range(int(report.until_ms // 1000))]


# The experiments


def rising_rate(quick: bool) -> list[Case]:
    """Bulk sources send more and more."""
    rates = (20_000, 40_000) if quick else (10_000, 20_000, 30_000, 40_000, 50_000)
    return [
        Case(
            experiment="rate",
            value=f"{rate // 1000}K",
            order=order,
            jobs=[*urgent_jobs(), *bulk_jobs(events_per_s=rate)],
        )
        for rate in rates
        for order in (ORDERS if rate in (KNEE_PER_S, FULL_PER_S) else ORDERS[:2])
    ]


def rising_tenants(quick: bool) -> list[Case]:
    """More and more bulk jobs."""
    counts = (8, 16) if quick else (4, 8, 12, 16, 20)
    return [
        Case(
            experiment="tenants",
            value=str(count),
            order=order,
            jobs=[*urgent_jobs(), *bulk_jobs(count)],
        )
        for count in counts
        for order in ("least-laxity", "arrival")
    ]


def fewer_cores(quick: bool) -> list[Case]:
    """The same load on fewer cores a node, as the paper takes threads away."""
    return [
        Case(
            experiment="cores",
            value=str(cores),
            order=order,
            jobs=[*urgent_jobs(), *bulk_jobs(events_per_s=18_000)],
            scale=Scale(QUARTER.nodes, cores, QUARTER.sources),
        )
        for cores in ((2,) if quick else (4, 3, 2, 1))
        for order in ("least-laxity", "arrival")
    ]


def pareto(quick: bool) -> list[Case]:
    """Volume comes in bursts; on average less than half of the cluster is busy."""
    jobs = [
        *urgent_jobs(),
        *bulk_jobs(8, 20_000, arrivals="poisson", batch="pareto 40 1.2"),
    ]
    return [
        Case(
            experiment="pareto",
            value="bursts",
            order=order,
            jobs=jobs,
            seconds=30 if quick else 60,
            timeline=True,
        )
        for order in (ORDERS[:2] if quick else (*ORDERS, LATE_LAST))
    ]


SKEW = 200
SKEWED_RATES = (9.0, 10.0)
"""Messages a second from each even source: most nodes are busy for 87 and 93 % of the time, and
those with the largest sources have too much."""


def skewed(quick: bool) -> list[Case]:
    """Two types of jobs with a target; the sources of the second differ by 200 in volume."""
    sources = QUARTER.sources
    weights = [SKEW ** (number / (sources - 1)) for number in range(sources)]
    cases = []
    for rate in SKEWED_RATES:
        chance = random.Random(SEED)
        common: dict[str, Any] = {
            "window": "10s",
            "target": f"{URGENT_TARGET_MS}ms",
            "parse": "8ms",
            "aggregate": "8ms",
            "marked": True,
        }
        even = [Job(name=f"even{n}", rate_per_s=rate, **common) for n in range(URGENT_JOBS)]
        uneven = [
            Job(
                name=f"uneven{n}",
                rate_per_s=rate / 2,
                weights=chance.sample(weights, sources),
                **common,
            )
            for n in range(URGENT_JOBS)
        ]
        orders = ORDERS[:2] if quick or rate != SKEWED_RATES[-1] else (*ORDERS, LATE_LAST)
        cases += [
            Case(
                experiment="skew",
                value=f"{rate:g}/s",
                order=order,
                jobs=[*even, *uneven],
                scale=Scale(QUARTER.nodes, 2, sources),
                seconds=31 if quick else 51,
            )
            for order in orders
        ]
    return cases


FRONTIER_RATE = 7.0
"""Messages a second of each source: the cluster is busy for 97 % of the time."""


def equals(*, frontier: bool) -> list[Job]:
    """Return jobs that are all urgent, half with windows of 1 s, half with windows of 10 s."""
    return [
        Job(
            name=f"urgent{n}",
            window="1s" if n % 2 else "10s",
            target=f"{URGENT_TARGET_MS}ms",
            parse="8ms",
            aggregate="8ms",
            rate_per_s=FRONTIER_RATE,
            marked=True,
            frontier=frontier,
        )
        for n in range(8)
    ]


def frontiers(quick: bool) -> list[Case]:
    """Whether messages for a window may wait until its result can be due."""
    return [
        Case(
            experiment="frontier",
            value="known" if knows else "unknown",
            order=order,
            jobs=equals(frontier=knows),
            scale=Scale(QUARTER.nodes, 2, QUARTER.sources),
            seconds=31 if quick else 41,
        )
        for knows, order in ((True, "least-laxity"), (False, "least-laxity"), (True, "arrival"))
    ]


def misestimation(quick: bool) -> list[Case]:
    """Every expected cost is wrong by a normal error."""
    return [
        Case(
            experiment="sigma",
            value=f"{sigma_ms} ms",
            order="least-laxity",
            jobs=equals(frontier=True),
            scale=Scale(QUARTER.nodes, 2, QUARTER.sources),
            seconds=31,
            settings={"estimation_noise": f"{sigma_ms}ms"},
        )
        for sigma_ms in ((0, 1000) if quick else (0, 1, 10, 100, 1000))
    ]


def paper_scale(quick: bool) -> list[Case]:
    """32 nodes, 128 cores, 64 sources a job; the load at which bulk asks for a third too much."""
    if quick:
        return []
    return [
        Case(
            experiment="scale",
            value="16 tenants",
            order=order,
            jobs=[*urgent_jobs(), *bulk_jobs(16)],
            scale=PAPER,
            seconds=20,
            warm_up_s=5,
        )
        for order in ("least-laxity", "arrival")
    ]


EXPERIMENTS: Mapping[str, Callable[[bool], list[Case]]] = {
    "scale": paper_scale,
    "rate": rising_rate,
    "tenants": rising_tenants,
    "cores": fewer_cores,
    "pareto": pareto,
    "skew": skewed,
    "frontier": frontiers,
    "sigma": misestimation,
}


def run_all(cases: Sequence[Case], jobs: int) -> list[dict[str, Any]]:
    """Run cases side by side; return their results in the order of the cases."""
    results: dict[int, dict[str, Any]] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        pending = {pool.submit(run, case): number for number, case in enumerate(cases)}
        for done in as_completed(pending):
            number = pending[done]
            result = results[number] = done.result()
            case = cases[number]
            first = next(iter(result["groups"].values()))
            print(
                f"[{len(results)}/{len(cases)}] {case.experiment} {case.value} {case.order}: "
                f"p50 {first.get('p50_ms', math.nan):,.0f} ms, "
                f"p99 {first.get('p99_ms', math.nan):,.0f} ms, met {first['met']:.0%}, "
                f"busy {result['busy']:.0%} ({result['cpu_s']:.1f} s)",
                flush=True,
            )
    return [results[number] for number in range(len(cases))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few cases: to try it, not to cite")
    parser.add_argument("--only", nargs="*", choices=list(EXPERIMENTS), help="these experiments")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--show", action="store_true", help="show the kept results again")
    options = parser.parse_args()
    if options.show:
        kept = json.loads((machine.RESULTS / "cameo_simulated.json").read_text(encoding="utf-8"))
        show_simulated(kept["cases"], machine.RESULTS)
        return
    started_s = time.perf_counter()
    cases = [
        case
        for name, make in EXPERIMENTS.items()
        if not options.only or name in options.only
        for case in make(options.quick)
    ]
    results = run_all(cases, max(1, options.jobs))
    is_whole = not options.quick and not options.only
    directory = machine.RESULTS if is_whole else machine.LOCAL_RESULTS
    directory.mkdir(parents=True, exist_ok=True)
    record = {"benchmark": "cameo_simulated", "seed": SEED, "cases": results}
    path = directory / "cameo_simulated.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    show_simulated(results, directory)
    print(f"{len(cases)} simulations in {time.perf_counter() - started_s:.0f} s; kept in {path}")


if __name__ == "__main__":
    main()
