"""Nexmark in bursts, simulated at 128 workers: what is late, by how much, and what does it cost?

    .venv/bin/python -m benchmarks.elasticity.nexmark.bursts [--quick] [--keep] [--part main]

The controller, `sponge` and the baselines' policies are the real ones; messages are amounts
(`sublet.simulation.ElasticSimulation`). What a message takes was measured with the functions
themselves (`costs.py`), what lending one takes by `benchmarks.components.lending`, for batches of
ten. Load is five times the usual for 60 s, where not said otherwise; usually workers are busy for
60 % of the time.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from benchmarks.elasticity.keep import folder, verdict, write
from benchmarks.harness.tables import Grid
from sublet.runtime.simulation.elastic.cluster import Flow, FlowCluster, Machines, Moment
from sublet.runtime.simulation.elastic.flow import FlowFunction
from sublet.runtime.simulation.elastic.instances import InstanceModel
from sublet.runtime.simulation.elastic.report import quantile_ms
from sublet.runtime.simulation.reports.plot import new_figure, save_figure
from sublet.scheduler.scaling.actions import Action, AddWorkers, Outcome, Slot
from sublet.scheduler.scaling.controller import Controller
from sublet.scheduler.scaling.settings import ScalingSettings
from sublet.scheduler.scaling.view import ClusterView

WORKERS = 128
SMALL = 16
"""Workers of the sweeps: all of them are alike, so that each has as much to do as one of 128."""
BUSY = 0.6
SEED = 1
BURST = 5.0
BEFORE_S, BURST_S, AFTER_S = 35, 60, 40
STEP_S = 0.2
WINDOW_S = 60
COLD_S, WARM_S = 0.75, 0.1
START_S, MOVE_S = 30.0, 4.0
WORKER_HOUR = 0.063
"""A core of an r5.xlarge."""
GB, GB_SECOND, REQUEST = 1.769, 0.0000166667, 0.0000002
INSTANCES_MAX = 4_000
PING_S = 0.1
BACKLOG_MS = 1_000.0
"""That a worker has to have on average, for `AtOnce` to see a burst."""
HOUR_S = 3_600.0


class AtOnce:
    """Wants, as soon as a burst is seen, all workers that it takes for them to
    be as busy as before: what a person would
    configure who knew it. Sooner than any policy that takes steps."""

    slot = Slot.WORKERS
    period_ms = 1_000.0

    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        now = cluster.now
        if now is None or now.waiting_ms < BACKLOG_MS * len(cluster.serving):
            return ()
        missing = math.ceil(now.load / BUSY) - len(cluster.serving) - cluster.starting
        return [AddWorkers(count=missing, because="a burst")] if missing > 0 else ()

    def ended(self, action: Action, outcome: Outcome, now_ms: float) -> None:
        pass


@dataclass(frozen=True)
class Query:
    """A query, as far as amounts know it."""

    cost_us: float
    """Measured, see `costs.py`."""
    kind: str
    lent_bytes: float
    """A message, and what comes back of it: for windows their states, in parts."""
    state_bytes: float = 0.0
    """For each message of a second: keys that are alive, and all that is open of them."""


LEASE_US = {"stateless": 6.5, "mergeable": 7.8, "keyed": 26.0}
"""`benchmarks/results/lending.md`, what lending adds to a message in batches of ten."""
OPEN = WINDOW_S * 20.0
"""Bytes of a key's open windows."""
ALIVE = 3 / 50 * WINDOW_S
"""Keys of auctions for each message of a second."""
QUERIES = {
    "Q1": Query(33, "stateless", 200),
    "Q4": Query(444, "mergeable", 700, ALIVE * OPEN),
    "Q5": Query(354, "mergeable", 700, ALIVE * OPEN),
    "Q6": Query(39, "keyed", 200, ALIVE * 60),
    "Q7": Query(291, "mergeable", 700, ALIVE * OPEN),
    "Q8": Query(568, "mergeable", 700, ALIVE * OPEN),
}


@dataclass(frozen=True)
class System:
    """Who helps in a burst, and how."""

    name: str
    workers: str = "fixed"
    start_s: float = START_S
    times: float = 1.0
    """Workers that there are from the beginning, compared with the usual number."""
    most: float = 1.0
    idle: float = 0.0
    """Workers that are paid for and do nothing, as a multiple."""
    burst: str = ""
    states: str = "by-key"
    merges: bool = True
    warm: bool = True


POLICY = "sponge:recovery=1s"
"""As in Sponge's evaluation, a backlog is to be gone within a second."""
SPONGE = System("sponge", burst=POLICY)
SYSTEMS = [
    System("none"),
    System("late workers", workers="at once", most=BURST),
    System("cold instances, all state first", burst=POLICY, states="stop", warm=False),
    System("idle workers ready", workers="at once", start_s=1.0, most=BURST, idle=BURST - 1),
    System("over-provisioned", times=BURST, most=BURST),
    SPONGE,
]
ABLATION = [
    SYSTEMS[2],
    replace(SPONGE, name="routing", states="first", merges=False),
    replace(SPONGE, name="+ redirection", merges=False),
    replace(SPONGE, name="+ merging"),
]

Shape = Callable[[float], float]
"""Seconds since the burst's start to a multiple of the usual load."""


def square(height: float, seconds: float) -> Shape:
    return lambda at_s: height if 0 <= at_s < seconds else 1.0


def sine(height: float, period_s: float) -> Shape:
    return lambda at_s: (
        1.0 if at_s < 0 else 1.0 + (height - 1) * (1 - math.cos(2 * math.pi * at_s / period_s)) / 2
    )


def gradual(height: float, seconds: float) -> Shape:
    """Up for half of the time, down for the other half."""

    def rate(at_s: float) -> float:
        part = 1 - abs(2 * at_s / seconds - 1)
        return 1.0 + (height - 1) * max(0.0, part)

    return rate


def run(
    query: str,
    system: System,
    shape: Shape,
    *,
    workers: int,
    seconds: int,
    state_megabytes: float | None = None,
) -> dict[str, Any]:
    """Return seconds from 5 s before the burst on, and what comes of them. `state_megabytes`: of
    each worker, instead of the query's own."""
    chosen = QUERIES[query]
    cost_s = chosen.cost_us / 1e6
    rate = BUSY * workers / cost_s
    kind = chosen.kind if system.merges or chosen.kind == "stateless" else "keyed"
    function = FlowFunction(
        name=f"nexmark/{query.lower()}",
        cost_s=cost_s,
        partitions=round(4 * workers * system.most),
        lendable=True,
        mergeable=kind != "keyed",
        lease_s=LEASE_US[kind] / 1e6,
        lent_bytes=chosen.lent_bytes if kind != "keyed" else chosen.lent_bytes + OPEN,
        state_bytes=chosen.state_bytes * rate
        if state_megabytes is None
        else 1e6 * state_megabytes * workers,
        slide_s=1.0 if chosen.state_bytes and query != "Q6" else None,
    )
    settings = ScalingSettings(
        workers_min=round(workers * system.times),
        workers_max=round(workers * system.most),
        start_ms=1000 * system.start_s,
        instances_max=INSTANCES_MAX if system.burst else 0,
        instance_gb=GB,
        price_gb_second=GB_SECOND,
        price_request=REQUEST,
        price_worker_hour=WORKER_HOUR,
    )
    policies: dict[Slot, Any] = {
        Slot.WORKERS: AtOnce() if system.workers == "at once" else system.workers
    }
    if system.burst:
        policies[Slot.INSTANCES] = system.burst
    cluster = FlowCluster(
        [function],
        [Flow(function=function.name, rate=lambda now_s: rate * shape(now_s - BEFORE_S))],
        Machines(
            workers=round(workers * system.times),
            start_s=system.start_s,
            move_s=MOVE_S,
            moves_max=4_096,
            price_hour=WORKER_HOUR,
        ),
        Controller(settings, policies),
        step_s=STEP_S,
        rng=Random(SEED),
        instances=InstanceModel(cold_s=COLD_S, warm_s=WARM_S, states=system.states)
        if system.burst
        else None,
    )
    if system.warm and system.burst:
        cluster.helpers.environments.kept = INSTANCES_MAX
    moments = [cluster.second() for _ in range(BEFORE_S + seconds)]
    shown = moments[BEFORE_S - 5 :]
    return {
        "query": query,
        "system": system.name,
        "peak_p99_ms": round(max(quantile_ms(each.latency, 0.99) for each in shown), 2),
        "recovery_s": _recovery_s(moments),
        "backlog_end_s": round(moments[-1].backlog_s / workers, 3),
        "instances": max(each.instances for each in moments),
        "requests": cluster.helpers.requests,
        **_costs(cluster, system, moments, workers),
        "p99_ms": [round(quantile_ms(each.latency, 0.99), 2) for each in shown],
    }


def _recovery_s(moments: Sequence[Moment]) -> int:
    """Return how long results were slow, in all: ten times the usual p99 and 100 ms or more."""
    usual_ms = quantile_ms(moments[BEFORE_S - 1].latency, 0.99)
    limit_ms = max(100.0, 10 * usual_ms)
    after = [quantile_ms(each.latency, 0.99) for each in moments[BEFORE_S:]]
    return sum(1 for each in after if each > limit_ms)


def _costs(
    cluster: FlowCluster, system: System, moments: Sequence[Moment], workers: int
) -> dict[str, float]:
    """Return what an hour with one such burst costs, and what of it is beside the usual workers.
    For the rest of the hour there are as many workers as at the beginning."""
    rest_s = HOUR_S - len(moments)
    worker_s = cluster.paid_s + rest_s * workers * system.times + HOUR_S * workers * system.idle
    instances = cluster.helpers.paid_s * GB * GB_SECOND + cluster.helpers.requests * REQUEST
    if system.burst and system.warm:
        # As many are kept warm as were asked for, with one invocation a minute.
        instances += cluster.helpers.requests * 60 * (PING_S * GB * GB_SECOND + REQUEST)
    hour = worker_s * WORKER_HOUR / HOUR_S + instances
    return {
        "hour": round(hour, 5),
        "beside": round(hour - workers * WORKER_HOUR, 5),
        "instance_seconds": round(cluster.helpers.paid_s),
    }


# What is shown


def told(each: dict[str, Any]) -> None:
    print(
        f"{each['query']} {each['system']}: peak p99 {each['peak_p99_ms']:,.0f} ms, "
        f"slow for {each['recovery_s']} s, {each['hour']:.3f} an hour",
        flush=True,
    )


def main_part(workers: int, queries: Sequence[str]) -> list[dict[str, Any]]:
    found = []
    for query in queries:
        for system in SYSTEMS:
            # Where nothing waits, there is nothing to see after the burst.
            seconds = BURST_S + (5 if system.times == BURST else AFTER_S)
            each = run(query, system, square(BURST, BURST_S), workers=workers, seconds=seconds)
            told(each)
            found.append(each)
    return found


def shapes() -> dict[str, tuple[Shape, int]]:
    found: dict[str, tuple[Shape, int]] = {
        f"{height}x for 60 s": (square(height, 60), 60) for height in (3, 5, 7, 10)
    }
    found |= {f"5x for {length} s": (square(5, length), length) for length in (30, 120)}
    found["sine to 5x, 60 s"] = (sine(5, 60), 120)
    found["gradual to 5x, 120 s"] = (gradual(5, 120), 120)
    return found


def sweep_part(queries: Sequence[str]) -> list[dict[str, Any]]:
    found = []
    for name, (shape, length) in shapes().items():
        for query in queries:
            for system in (SYSTEMS[1], SYSTEMS[2], SPONGE):
                tall = 10 if name.startswith("10x") else BURST
                chosen = replace(system, most=tall) if system.most > 1 else system
                each = run(query, chosen, shape, workers=SMALL, seconds=length + AFTER_S)
                each["shape"] = name
                print(name, end=": ")
                told(each)
                found.append(each)
    return found


def ablation_part(queries: Sequence[str]) -> list[dict[str, Any]]:
    """With the states that the queries have, and with more: how long moving them takes is what
    the three differ in."""
    found = []
    for query in queries:
        for megabytes in (None, 100, 1_000):
            for system in ABLATION:
                each = run(
                    query,
                    system,
                    square(BURST, BURST_S),
                    workers=SMALL,
                    seconds=BURST_S + AFTER_S,
                    state_megabytes=megabytes,
                )
                own = "its own" if megabytes is None else f"{megabytes:,} MB a worker"
                each["state"] = f"{query}, {own}"
                told(each)
                found.append(each)
    return found


def less(value: float, than: float) -> float:
    """Return by which share a value is below another."""
    return 1 - value / than if than else 0.0


def main_grids(records: Sequence[dict[str, Any]]) -> list[Grid]:
    verdicts, figures = [], []
    for query in dict.fromkeys(each["query"] for each in records):
        some = {each["system"]: each for each in records if each["query"] == query}
        mine, over = some["sponge"], some["over-provisioned"]
        peak = mine["peak_p99_ms"]
        late = less(peak, some["late workers"]["peak_p99_ms"])
        cold = less(peak, some["cold instances, all state first"]["peak_p99_ms"])
        times = peak / over["peak_p99_ms"]
        hour, beside = less(mine["hour"], over["hour"]), less(mine["beside"], over["beside"])
        verdicts.append(
            [
                query,
                f"{-late:.0%}, {verdict(late >= 0.88)}",
                f"{-cold:.0%}, {verdict(cold >= 0.70)}",
                f"{times:,.1f}x, {verdict(times <= 1.5)}",
                f"{-hour:.0%}, {verdict(hour >= 0.83)}",
                f"{-beside:.0%}, {verdict(beside >= 0.83)}",
            ]
        )
        figures += [
            [
                query,
                name,
                f"{each['peak_p99_ms']:,.1f}",
                f"{each['recovery_s']}",
                f"{each['backlog_end_s']:.1f}",
                f"{each['instances']:,}",
                f"{each['hour']:.2f}",
            ]
            for name, each in some.items()
        ]
    targets = [
        "query",
        "peak p99 against late workers (target -88%)",
        "against cold instances (-70%)",
        "against over-provisioned (1.5x)",
        "cost of an hour (-83%)",
        "of it beside the usual workers",
    ]
    headings = [
        "query", "system", "peak p99 ms", "slow s", "work left s", "instances", "an hour costs"
    ]  # fmt: skip
    return [
        Grid("Targets", targets, verdicts, word_columns=6),
        Grid("5x for 60 s, 128 workers", headings, figures, word_columns=2),
    ]


def table(title: str, records: Sequence[dict[str, Any]], by: str) -> Grid:
    rows = [
        [
            str(each.get(by, each["query"])),
            each["query"],
            each["system"],
            f"{each['peak_p99_ms']:,.1f}",
            f"{each['recovery_s']}",
            f"{each['instances']:,}",
            f"{each['beside']:.3f}",
        ]
        for each in records
    ]
    headings = [by, "query", "system", "peak p99 ms", "slow s", "instances", "beside workers"]
    return Grid(title, headings, rows, word_columns=3)


COLOURS = {
    "none": "#999999",
    "late workers": "#c0392b",
    "cold instances, all state first": "#e08e0b",
    "idle workers ready": "#8e6bbf",
    "over-provisioned": "#5a9e4b",
    "sponge": "#1b6ca8",
    "routing": "#c07a3b",
    "+ redirection": "#5aa0c0",
    "+ merging": "#1b6ca8",
}


def plot(records: Sequence[dict[str, Any]], name: str, group: str, kept: bool) -> None:
    """Draw p99 by the second, a picture for each group."""
    groups = list(dict.fromkeys(each[group] for each in records))
    rows = (len(groups) + 1) // 2
    for suffix in (".svg", ".png"):
        path = folder(kept) / f"{name}{suffix}"
        figure, axes = new_figure(path, rows, 2)
        for place, each_group in enumerate(groups):
            axis = axes[place // 2][place % 2]
            for each in records:
                if each[group] != each_group:
                    continue
                seconds = [second - 5 for second in range(len(each["p99_ms"]))]
                shown = [max(0.1, value) for value in each["p99_ms"]]
                axis.plot(seconds, shown, label=each["system"], color=COLOURS[each["system"]])
            axis.set_yscale("log")
            axis.set_title(str(each_group), fontsize="medium")
            axis.set_xlabel("second of the burst")
            axis.set_ylabel("p99 in ms")
            axis.grid(alpha=0.3)
        axes[0][0].legend(fontsize="x-small")
        save_figure(figure, path)


NOTE = (
    f"Simulated by rates; no figure depends on the machine. {WORKERS} workers of one core, "
    f"{BUSY:.0%} busy before the burst; a message takes what `costs.py` measured "
    f"({', '.join(f'{name} {each.cost_us:g} us' for name, each in QUERIES.items())}), lending one "
    f"{LEASE_US['stateless']:g} (no state), {LEASE_US['mergeable']:g} (merged) or "
    f"{LEASE_US['keyed']:g} us (with its state). Instances: {WARM_S:g} s warm, {COLD_S:g} s cold, "
    "speed 0.67, 100 Mbit/s. Late workers: all that the burst takes are asked for when it is "
    "seen, start in 30 s and take partitions over in 4 s. Cold instances: as with `sponge`, but "
    "all states are moved first, and their function stops meanwhile. Costs: an hour with one such "
    "burst, a core of a worker $0.063 an hour, Lambda "
    "at list price, and as many environments kept warm as were needed. Latency counts until a "
    "message's effects are committed; a window's result follows its last message."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="Q1 and Q5, 16 workers")
    parser.add_argument("--keep", action="store_true", help="replace the kept results")
    parser.add_argument("--part", default="all", choices=["all", "main", "sweep", "ablation"])
    arguments = parser.parse_args()
    queries = ["Q1", "Q5"] if arguments.quick else list(QUERIES)
    workers = SMALL if arguments.quick else WORKERS
    kept, part = arguments.keep, arguments.part
    path = folder(kept) / "elasticity_nexmark.json"
    data: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    if part in ("all", "main"):
        data["main"] = main_part(workers, queries)
    if part in ("all", "sweep"):
        data["sweep"] = sweep_part(["Q5"])
    if part in ("all", "ablation"):
        data["ablation"] = ablation_part(["Q5"])
    grids: list[Grid] = []
    if "main" in data:
        grids += main_grids(data["main"])
        plot(data["main"], "elasticity_nexmark", "query", kept)
    if "sweep" in data:
        grids.append(table(f"Other bursts, {SMALL} workers", data["sweep"], "shape"))
        plot(data["sweep"], "elasticity_nexmark_shapes", "shape", kept)
    if "ablation" in data:
        grids.append(table(f"What does it, {SMALL} workers", data["ablation"], "state"))
        plot(data["ablation"], "elasticity_nexmark_ablation", "state", kept)
    write("elasticity_nexmark", "Nexmark in bursts, simulated", NOTE, grids, data, kept)


if __name__ == "__main__":
    main()
