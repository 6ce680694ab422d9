"""Elasticity on real worker processes: policies on a cosine, Stela, and Henge.

    .venv/bin/python -m benchmarks.elasticity.real [--quick] [--keep] [--together N]
    .venv/bin/python -m benchmarks.elasticity.real --stela
    .venv/bin/python -m benchmarks.elasticity.real --henge [--minutes 20]
    .venv/bin/python -m benchmarks.elasticity.real --bursts

Handlers wait, so that what a worker can do does not depend on cores (`real/apps.py`): two runs at
once, 200 ms each. `--together` runs so many clusters at a time. Every count is compared with what
was sent; a run whose counts are not exact fails.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from statistics import mean
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID, TextColumn, TimeElapsedColumn

from benchmarks.elasticity.keep import folder, verdict, write
from benchmarks.elasticity.real import apps, bursts
from benchmarks.elasticity.real.cluster import Cluster, Load, Seen, cluster
from benchmarks.elasticity.real.plots import plot_flows, plot_policies, plot_tenants
from benchmarks.harness import machine
from benchmarks.harness.processes import exit_on_terminate
from benchmarks.harness.tables import Grid
from benchmarks.harness.workload import percentile
from sublet.runtime.simulation.elastic.simulation import ElasticSimulation, Scaling
from sublet.runtime.simulation.scenarios.rates import rate_of
from sublet.runtime.simulation.scenarios.scenario import Load as SimulatedLoad
from sublet.runtime.simulation.scenarios.scenario import Stage

RATE = 2 / apps.SERVE_S
"""Messages a second of a worker: two threads."""
LEAST, MOST, STATIC = 1, 6, 5
PEAK = 4.2 * RATE
"""Five workers at 84 %."""
CYCLE_S = 120
CYCLES = 3
LATE_MS = 2_000.0
KEYS = 400
SEED = 5
# Cycles are 2.5 times shorter than Styx's, and so is whatever policies wait for.
POLICIES = {
    "static": f"fixed:workers={STATIC}",
    "reactive": "reactive:cooldown=12s,calm=12s",
    "predictive": "predictive:season={cycle}s,cooldown=12s,calm=2s",
    "laxity": "laxity:season={cycle}s",
}
ALIKE = 0.05
"""Figures that differ by less are not put in order."""

Record = dict[str, Any]


class Bars:
    """A bar for each cluster that runs."""

    def __init__(self) -> None:
        self.progress = Progress(
            *Progress.get_default_columns()[:3],
            TimeElapsedColumn(),
            TextColumn("{task.fields[state]}"),
            console=Console(stderr=True),
        )

    def add(self, name: str, total: int) -> TaskID:
        return self.progress.add_task(name, total=total, state="starts")

    def tell(self, task: TaskID, seen: Seen) -> None:
        state = f"{seen.workers} workers, {seen.backlog} wait"
        self.progress.update(task, advance=1, state=state)


def latencies(seconds: Sequence[Seen]) -> list[float]:
    return sorted(each for second in seconds for each in second.latencies_ms)


# How many workers


async def policy(name: str, cycle_s: int, cycles: int, bars: Bars) -> Record:
    scaling = POLICIES[name].format(cycle=cycle_s)
    seconds = cycle_s * cycles
    task = bars.add(name, seconds)
    first = STATIC if name == "static" else LEAST
    workers = f"{first}..{MOST}"
    async with cluster("waits", workers, first, "--scaling", scaling) as run:
        rate = rate_of(f"cosine 0 {PEAK} {cycle_s}s")
        load = Load(run, "waits/serve", rate, KEYS, SEED)
        await load.run(seconds, lambda seen: bars.tell(task, seen))
        exact = await load.is_exact()
    took = latencies(load.seen)
    return {
        "policy": name,
        "scaling": scaling,
        "worker_seconds": sum(each.paid for each in load.seen),
        "backlog_peaks": [
            max(each.backlog for each in load.seen[at : at + cycle_s])
            for at in range(0, seconds, cycle_s)
        ],
        "backlog_end": load.seen[-1].backlog,
        "late": sum(each > LATE_MS for each in took) / max(1, len(took)),
        "p50_ms": percentile(took, 0.5),
        "p99_ms": percentile(took, 0.99),
        "answered": sum(load.calls.values()),
        "exact": exact,
        "decisions": [
            f"{each['action']}: {each['because']}" for each in run.events("scaling decision")
        ],
        "seconds": [[each.workers, each.paid, each.sent, each.backlog] for each in load.seen],
    }


def simulated(name: str, cycle_s: int, cycles: int) -> Record:
    """The same, as amounts."""
    scaling = POLICIES[name].format(cycle=cycle_s)
    report = ElasticSimulation(
        stages=[Stage("serve", f"{1000 / RATE}ms", slo="2s", partitions=apps.PARTITIONS)],
        loads=[
            SimulatedLoad(
                target="serve", rate=f"cosine 0 {PEAK} {cycle_s}s", until=f"{cycle_s * cycles}s"
            )
        ],
        scaling=Scaling(workers=scaling, workers_min=LEAST, workers_max=MOST, start="2s"),
        workers=STATIC if name == "static" else LEAST,
        seed=SEED,
    ).run()
    peaks = [
        max(each.backlog for each in report.moments[at : at + cycle_s])
        for at in range(0, cycle_s * cycles, cycle_s)
    ]
    return {
        "policy": name,
        "worker_seconds": report.worker_seconds,
        "backlog_peaks": [round(each) for each in peaks],
        "late": report.late_share,
    }


def same_order(real: Sequence[Record], model: Sequence[Record], figure: str) -> tuple[int, int]:
    """Return how many pairs of policies there are that the simulation puts in order, and how many
    of them stand in the same order on real workers."""
    found = {each["policy"]: each[figure] for each in real}
    pairs = agreed = 0
    for place, one in enumerate(model):
        for other in model[place + 1 :]:
            low, high = sorted((one, other), key=lambda each: float(each[figure]))
            if high[figure] - low[figure] <= ALIKE * max(1.0, high[figure]):
                continue
            pairs += 1
            agreed += found[low["policy"]] < found[high["policy"]]
    return pairs, agreed


def show_policies(real: Sequence[Record], model: Sequence[Record], kept: bool, busy: str) -> None:
    for records in (real, model):
        for each in records:
            each["backlog_later"] = max(each["backlog_peaks"][1:] or each["backlog_peaks"])
    models = {each["policy"]: each for each in model}
    rows = []
    for each in real:
        beside = models[each["policy"]]
        rows.append(
            [
                f"`{each['scaling']}`",
                f"{each['worker_seconds']:,}",
                f"{beside['worker_seconds']:,.0f}",
                ", ".join(f"{peak:,}" for peak in each["backlog_peaks"]),
                ", ".join(f"{peak:,}" for peak in beside["backlog_peaks"]),
                f"{each['late']:.1%}",
                f"{beside['late']:.1%}",
                f"{each['p50_ms']:,.0f}, {each['p99_ms']:,.0f}",
                f"{each['answered']:,} {'exact' if each['exact'] else '**not exact**'}",
            ]
        )
    headings = [
        "policy", "worker-seconds", "simulated", "peak backlog by cycle", "simulated",
        "late (> 2 s)", "simulated", "p50, p99 ms", "answered",
    ]  # fmt: skip
    orders = []
    for figure in ("worker_seconds", "backlog_later"):
        pairs, agreed = same_order(real, model, figure)
        orders.append([figure, f"{agreed} of {pairs}", verdict(agreed == pairs)])
    exact = all(each["exact"] for each in real)
    orders.append(["every count", "exact" if exact else "not exact", verdict(exact)])
    note = (
        f"Workers are processes on one machine, {LEAST} to {MOST}; a handler waits 200 ms, two at "
        f"once, so a worker does {RATE:g} messages a second. Cosine of 0 to {PEAK:g} a second. The "
        "simulation has the same load and policies, with starts of 2 s. Late: answered after more "
        f"than 2 s. Order: pairs of policies that differ by more than 5 % in the simulation. {busy}"
    )
    data = {"real": real, "simulated": model}
    grids = [
        Grid("Same order as in the simulation", ["figure", "pairs", "target"], orders, 1),
        Grid("Real workers", headings, rows, word_columns=1),
    ]
    write("elasticity_real", "Policies on real workers", note, grids, data, kept)
    plot_policies(real, RATE, folder(kept) / "elasticity_real")


# Which function gets the new worker

FLOWS = {"linear": (apps.LINEAR_S, 1), "diamond": (apps.DIAMOND_S, 4)}
"""App to what its handlers wait, and the results of one message."""
OVERLOAD = 1.2
"""Of what three workers can do."""


def of_one_worker(app: str) -> float:
    """Return the messages a second that one worker can bring through the whole app."""
    waits, results = FLOWS[app]
    whole_s = sum(waits.values()) + (results - 1) * waits["sink"]
    return 2 / whole_s


async def grown(app: str, placement: str, phase_s: int, bars: Bars) -> Record:
    """Two workers become three; return results a second before and after."""
    _, results = FLOWS[app]
    rate = OVERLOAD * 3 * of_one_worker(app)
    task = bars.add(f"{app}, {placement}", 2 * phase_s)
    scaling = f"grow-at:workers=3,after={phase_s}s"
    options = ("--scaling", scaling, "--set", f"placement={placement}")
    async with cluster(app, "2..3", 2, *options) as run:
        counts, sent = await overload(run, app, rate, phase_s, lambda seen: bars.tell(task, seen))
        done = counts[-1][1]
        async with asyncio.timeout(30 * phase_s):
            while done < results * sent:
                await asyncio.sleep(1.0)
                done = await emitted(run)
            await asyncio.sleep(2.0)
        exact = await emitted(run) == results * sent
        moves = [each for each in run.events("scaling decision") if each["action"] == "migrate"]
    grown_at = next((at for at, (workers, _) in enumerate(counts) if workers >= 3), phase_s)
    per_s = [later[1] - one[1] for one, later in pairwise(counts)]
    # A third of the time for what moves and settles.
    before = per_s[grown_at // 3 : grown_at]
    after = per_s[grown_at + (len(per_s) - grown_at) // 3 :]
    return {
        "app": app,
        "placement": placement,
        "before": mean(before),
        "after": mean(after),
        "could": 3 * results * of_one_worker(app),
        "moves": len(moves),
        "sent": sent,
        "exact": exact,
        "seconds": counts,
    }


async def emitted(run: Cluster) -> int:
    _, end = await run.client.egress_bounds("results")
    return sum(end.positions.values())


async def overload(
    run: Cluster, app: str, rate: float, phase_s: int, tell: Callable[[Seen], None]
) -> tuple[list[tuple[int, int]], int]:
    """Send at a rate; return workers and results by the second, and how many were sent."""
    counts: list[tuple[int, int]] = []
    sent, owed = 0, 0.0
    loop = asyncio.get_running_loop()
    began_s = last_s = loop.time()
    async with asyncio.TaskGroup() as senders:
        while len(counts) < 2 * phase_s:
            now_s = loop.time()
            owed += rate * (now_s - last_s)
            last_s = now_s
            while owed >= 1:
                owed -= 1
                sent += 1
                senders.create_task(run.client.send(f"{app}/source", f"k{sent % KEYS}", sent))
            if now_s - began_s >= len(counts) + 1:
                seen = Seen(len(counts))
                await run.counted(seen)
                counts.append((seen.workers, await emitted(run)))
                seen.backlog = max(0, sent - counts[-1][1] // FLOWS[app][1])
                tell(seen)
            await asyncio.sleep(0.05)
    return counts, sent


def show_stela(records: Sequence[Record], kept: bool, busy: str) -> None:
    rows = [
        [
            each["app"],
            each["placement"],
            f"{each['before']:.1f}",
            f"{each['after']:.1f}",
            f"{each['after'] / each['before'] - 1:+.0%}",
            f"{each['could']:.1f}",
            f"{each['moves']}",
            f"{each['sent']:,} {'exact' if each['exact'] else '**not exact**'}",
        ]
        for each in records
    ]
    headings = [
        "app", "placement", "before", "after", "gain", "three could", "moves by policy", "sent",
    ]  # fmt: skip
    note = (
        "Two workers become three under an overload of 1.2 times what three can do; results a "
        "second at the sink. Handlers wait; a worker has two threads, which run whatever waits "
        f"(Storm's executors run only their own operator). {busy}"
    )
    grid = Grid("One worker more", headings, rows, word_columns=2)
    title = "Stela on real workers"
    write("elasticity_real_stela", title, note, [grid], list(records), kept)
    plot_flows(records, folder(kept) / "elasticity_real_stela")


# How tenants share

TENANTS_S = 2 * 2 / apps.TENANT_S
"""Messages a second of both workers."""
TENANTS = {"small": (0.2, 0.6), "large": (0.3, 0.8)}
"""Lowest and highest load, of both workers."""
CASES = {
    "arrival": ("order=arrival",),
    "equal shares": ("order=shared-laxity",),
    "by hand": ("order=shared-laxity", "shares=small=40,large=55"),
    "henge": ("order=shared-laxity", "tenancy=henge:observe=3s,warmup=30s,settle=18s"),
}
SLO_MS = 1_000.0
WINDOW_S = 5


async def tenants(case: str, seconds: int, bars: Bars) -> Record:
    task = bars.add(case, seconds)
    settings = [part for each in CASES[case] for part in ("--set", each)]
    async with cluster("shared", "2", 2, *settings) as run:
        loads = {
            name: Load(
                run,
                f"shared/{name}",
                rate_of(f"diurnal {TENANTS_S * low} {TENANTS_S * high} {seconds / 2}s"),
                KEYS,
                SEED,
            )
            for name, (low, high) in TENANTS.items()
        }
        async with asyncio.TaskGroup() as running:
            for name, load in loads.items():
                is_shown = name == "large"
                tell = (lambda seen: bars.tell(task, seen)) if is_shown else (lambda seen: None)
                running.create_task(load.run(seconds, tell))
        exact = all([await load.is_exact() for load in loads.values()])
    satisfied = {name: satisfaction(load.seen) for name, load in loads.items()}
    steps = {each["timestamp"][:19] for each in run.events("scaling decision")}
    return {
        "case": case,
        "satisfied": {name: mean(each) for name, each in satisfied.items()},
        "in_time": {
            name: mean([each <= SLO_MS for each in latencies(load.seen)])
            for name, load in loads.items()
        },
        "windows": satisfied,
        "steps": len(steps),
        "seconds": seconds,
        "answered": sum(sum(load.calls.values()) for load in loads.values()),
        "exact": exact,
    }


def satisfaction(seconds: Sequence[Seen]) -> list[float]:
    """Return Henge's utility by window, of its maximum: SLO over latency, at most 1."""
    found = []
    for at in range(0, len(seconds), WINDOW_S):
        some = seconds[at : at + WINDOW_S]
        took = latencies(some)
        if took:
            found.append(min(1.0, SLO_MS / percentile(took, 0.95)))
        elif some[-1].backlog:
            found.append(0.0)
    return found


def show_henge(records: Sequence[Record], kept: bool, busy: str) -> None:
    rows = []
    for each in records:
        satisfied = each["satisfied"]
        rows.append(
            [
                each["case"],
                f"{mean(satisfied.values()):.1%}",
                *(f"{satisfied[name]:.1%}" for name in TENANTS),
                *(f"{each['in_time'][name]:.1%}" for name in TENANTS),
                f"{each['steps']} ({each['steps'] / each['seconds']:.2%})",
                f"{each['answered']:,} {'exact' if each['exact'] else '**not exact**'}",
            ]
        )
    headings = [
        "case", "satisfied", *TENANTS, *(f"{name} in time" for name in TENANTS),
        "steps, of the time", "answered",
    ]  # fmt: skip
    minutes = records[0]["seconds"] / 60
    note = (
        f"Two tenants on two workers, {minutes:g} minutes that stand for two days; handlers wait "
        "100 ms, 1 s is allowed. `small` needs 20 to 60 % of both workers, `large` 30 to 80 %, at "
        "the same hours. Satisfied: Henge's utility of its maximum, by windows of 5 s. Constants "
        f"of `henge` are ten times shorter than usual. {busy}"
    )
    grid = Grid("Two tenants", headings, rows, word_columns=1)
    title = "Henge on real workers"
    write("elasticity_real_henge", title, note, [grid], list(records), kept)
    plot_tenants(records, WINDOW_S, folder(kept) / "elasticity_real_henge")


# All together


async def all_of(runs: Sequence[Awaitable[Record]], together: int) -> list[Record]:
    """Run some at a time; return the records in their order."""
    room = asyncio.Semaphore(together)

    async def one(run: Awaitable[Record]) -> Record:
        async with room:
            return await run

    async with asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(one(run)) for run in runs]
    return [each.result() for each in started]


def busy_text(together: int) -> str:
    cores = machine.busy_cores(1.0)
    others = "" if cores is None else f", {cores:.1f} of which were busy with others at the start"
    beside = f" {together} clusters ran at a time." if together > 1 else ""
    count, load = machine.describe()["cpu_count"], os.getloadavg()[0]
    return (
        f"The machine has {count} cores{others} (load average {load:.0f}); workers share "
        f"them.{beside}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--stela", action="store_true", help="which function gets a new worker")
    parser.add_argument("--henge", action="store_true", help="how two tenants share")
    parser.add_argument("--bursts", action="store_true", help="instances of a local AWS Lambda")
    parser.add_argument("--minutes", type=float, default=20.0, help="of --henge")
    parser.add_argument("--quick", action="store_true", help="to see that it works, not to cite")
    parser.add_argument("--keep", action="store_true", help="replace the kept results")
    parser.add_argument("--together", type=int, default=1, help="clusters at a time")
    arguments = parser.parse_args()
    exit_on_terminate()
    quick, kept = arguments.quick, arguments.keep
    busy, bars = busy_text(arguments.together), Bars()

    def run(runs: Sequence[Awaitable[Record]]) -> list[Record]:
        with bars.progress:
            return asyncio.run(all_of(runs, arguments.together))

    if arguments.stela:
        phase_s = 20 if quick else 90
        cases = [(app, placement) for app in FLOWS for placement in ("even", "stela")]
        found = run([grown(*case, phase_s, bars) for case in cases])
        show_stela(found, kept, busy)
    elif arguments.bursts:
        phases = bursts.Phases(20, 12, 5) if quick else bursts.Phases(40, 40, 10)

        def tell(case: str) -> Callable[[Seen], None]:
            task = bars.add(case, phases.total_s)
            return lambda seen: bars.tell(task, seen)

        found = run([bursts.burst(case, phases, tell(case)) for case in bursts.CASES])
        bursts.show(found, phases, kept, busy)
    elif arguments.henge:
        seconds = 60 if quick else round(60 * arguments.minutes)
        found = run([tenants(case, seconds, bars) for case in CASES])
        show_henge(found, kept, busy)
    else:
        cycle_s, cycles = (40, 1) if quick else (CYCLE_S, CYCLES)
        found = run([policy(name, cycle_s, cycles, bars) for name in POLICIES])
        show_policies(found, [simulated(name, cycle_s, cycles) for name in POLICIES], kept, busy)
    sys.exit(0 if all(each["exact"] for each in found) else 1)


if __name__ == "__main__":
    main()
