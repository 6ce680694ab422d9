"""Batches that choose their size and wait by themselves, against the best fixed choice.

    .venv/bin/python -m benchmarks.components.batching [--quick] [--only cheap]

One worker process and one client process. For each case there is one function for each fixed
choice of B (run when so many wait) and W (or after so long), and one without a choice; all are in
the same worker and are measured in turn, round by round, so that what else the machine does hits
all of them.

`cheap`   adds to its key's count; 16 partitions, one client with 64 callers
`crowd`   the same with 8 clients of 8 callers
`fixed`   2 ms of work for each run, however many messages are in it (`batch=True`); 16 partitions
`single`  the same with one partition
`remote`  as `cheap`, but no state stays in memory, reading takes 3 ms and a commit 1 ms: a store
          that is far away

At saturation each caller awaits its reply before it calls again; what counts is calls a second.
At low load single calls leave at a fixed rate, each for another choice than the one before; what
counts is the 99th percentile of the time from when each was due.

A whole run (four minutes) is kept in `results/batching.jsonl`, .md and .svg; a quick one and one
of single cases, which are for trying, in results/local/.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from benchmarks.harness import machine
from benchmarks.harness.processes import Child, exit_on_terminate
from benchmarks.harness.workload import CALLER_STRIDE, SEED, percentile, zipf_keys
from sublet import App, Batch, Client, Context
from sublet.functions.app import functions_of
from sublet.runtime.config.limits import Limits
from sublet.runtime.config.settings import WorkerConfig
from sublet.runtime.observability.logging_setup import set_up_logging
from sublet.runtime.worker import Worker
from sublet.statestore.contract import Commit, Outcome, StateRow
from sublet.statestore.memory import MemoryDirectory, MemoryStore

NAME = "batching"
LOAD_S = 0.003
COMMIT_S = 0.001
RUN_S = 0.002
READY_WAIT_S = 30.0
NO_CACHE_BYTES = 1


class Case(NamedTuple):
    name: str
    handler: str
    partitions: int
    clients: int
    callers: int
    """Of each client."""
    rate_per_s: int
    """At low load, of all choices together."""


CASES = (
    Case("cheap", "count", 16, 1, 64, 600),
    Case("crowd", "count", 16, 8, 8, 600),
    Case("fixed", "fixed", 16, 1, 64, 120),
    Case("single", "fixed", 1, 1, 64, 120),
    Case("remote", "remote", 16, 1, 64, 600),
)


class Choice(NamedTuple):
    """B and W of a function; None lets Sublet choose."""

    size: int | None
    wait_ms: int | None

    @property
    def name(self) -> str:
        return "adaptive" if self.size is None else f"B{self.size}_W{self.wait_ms}"


ADAPTIVE = Choice(None, None)
FIXED = (
    Choice(1, 0),
    Choice(4, 2),
    Choice(16, 0),
    Choice(16, 2),
    Choice(16, 10),
    Choice(64, 0),
    Choice(64, 20),
)
CHOICES = (*FIXED, ADAPTIVE)


# The worker


class SlowStore(MemoryStore):
    """Memory at a distance."""

    async def load(self, partition: str, keys: Sequence[str]) -> list[StateRow]:
        await asyncio.sleep(LOAD_S)
        return await super().load(partition, keys)

    async def commit(self, commits: Sequence[Commit]) -> list[Outcome]:
        await asyncio.sleep(COMMIT_S)
        return await super().commit(commits)


def _count(ctx: Context, n: int) -> int:
    count: int = ctx.state.get() + n
    ctx.state.set(count)
    return count


def _fixed(batch: Batch[int]) -> list[int]:
    # The thread's own time: on a busy machine the clock would make it cheaper.
    until_s = time.thread_time() + RUN_S
    while time.thread_time() < until_s:
        pass
    return list(batch.messages)


def make_app(case: Case) -> App:
    app = App(case.name, partitions=case.partitions)
    for choice in CHOICES:
        options: dict[str, Any] = {"name": choice.name, "batch_size": choice.size}
        if choice.wait_ms is not None:
            options["batch_wait"] = f"{choice.wait_ms}ms"
        if case.handler == "fixed":
            app.function(kind="stateless", batch=True, **options)(_fixed)
        else:
            app.function(state=int, **options)(_count)
    return app


async def serve(case: Case, directory: str) -> None:
    """Be the worker, until our standard input closes."""
    is_remote = case.handler == "remote"
    limits = Limits(cache_bytes_max=NO_CACHE_BYTES) if is_remote else Limits()
    set_up_logging("warning", "console", colors=False)
    worker = Worker(
        functions_of([make_app(case)]),
        WorkerConfig(limits=limits, data_dir=Path(directory)),
        store=SlowStore() if is_remote else MemoryStore(),
        directory=MemoryDirectory(),
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(worker.run())
        await worker.ready.wait()
        print(worker.address, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        worker.stop()
        await running


# The load


@cache
def _keys() -> list[str]:
    return zipf_keys(50_000)


async def _saturate(client: Client, function: str, callers: int, until_s: float) -> int:
    keys = _keys()
    done = 0

    async def caller(number: int) -> None:
        nonlocal done
        position = number * CALLER_STRIDE
        while time.perf_counter() < until_s:
            await client.call(function, keys[position % len(keys)], 1)
            position += 1
            done += 1

    async with asyncio.TaskGroup() as tasks:
        for number in range(callers):
            tasks.create_task(caller(number))
    return done


async def saturate(
    clients: Sequence[Client], case: Case, choice: Choice, seconds: float
) -> tuple[float, int]:
    """Return calls a second, and how many calls there were."""
    started_s = time.perf_counter()
    function, until_s = f"{case.name}/{choice.name}", started_s + seconds
    async with asyncio.TaskGroup() as tasks:
        loads = [
            tasks.create_task(_saturate(each, function, case.callers, until_s)) for each in clients
        ]
    count = sum(load.result() for load in loads)
    return count / (time.perf_counter() - started_s), count


async def trickle(
    client: Client, case: Case, choices: Sequence[Choice], seconds: float
) -> dict[str, list[float]]:
    """Return the times in ms of single calls for each choice, each from when it was due."""
    chance = random.Random(SEED)
    keys = _keys()
    times_ms: dict[str, list[float]] = {choice.name: [] for choice in choices}

    async def call(name: str, key: str, due_s: float) -> None:
        await client.call(f"{case.name}/{name}", key, 1)
        times_ms[name].append((time.perf_counter() - due_s) * 1000)

    due_s = time.perf_counter()
    until_s = due_s + seconds
    async with asyncio.TaskGroup() as calls:
        while (due_s := due_s + chance.expovariate(case.rate_per_s)) < until_s:
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            calls.create_task(call(chance.choice(choices).name, chance.choice(keys), due_s))
    return times_ms


class Row(NamedTuple):
    """What was measured of one choice in one case."""

    case: str
    choice: str
    calls_per_s: float
    """Nine of ten rounds had less: what is reached when nobody else wants the cores."""
    rounds: list[float]
    cpu_us: float
    """CPU time of the worker for each call at saturation."""
    p50_ms: float
    p95_ms: float
    p99_ms: float


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(case: Case, address: str, pid: int, plan: Plan) -> list[Row]:
    rates: dict[str, list[float]] = {choice.name: [] for choice in CHOICES}
    cpu_us: dict[str, list[float]] = {choice.name: [] for choice in CHOICES}
    order = list(CHOICES)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(address)) for _ in range(case.clients)]
        for choice in CHOICES:
            await saturate(clients, case, choice, plan.warm_up_s)
        for number in range(plan.rounds):
            # Another order each time: who comes after whom must not matter.
            random.Random(number).shuffle(order)
            for choice in order:
                before_s = _cpu_s(pid)
                rate, count = await saturate(clients, case, choice, plan.saturate_s)
                rates[choice.name].append(rate)
                cpu_us[choice.name].append((_cpu_s(pid) - before_s) * 1e6 / count)
        times_ms = await trickle(clients[0], case, order, plan.trickle_s)
    return [
        Row(
            case.name,
            name,
            percentile(sorted(rates[name]), 0.9),
            [round(each) for each in rates[name]],
            statistics.median(cpu_us[name]),
            percentile(sorted(times_ms[name]), 0.5),
            percentile(sorted(times_ms[name]), 0.95),
            percentile(sorted(times_ms[name]), 0.99),
        )
        for name in (choice.name for choice in CHOICES)
    ]


class Plan(NamedTuple):
    rounds: int
    warm_up_s: float
    saturate_s: float
    trickle_s: float


FULL = Plan(14, 0.3, 0.25, 12.0)
QUICK = Plan(4, 0.2, 0.2, 4.0)


# What came of it


class Verdict(NamedTuple):
    """The adaptive choice beside the best fixed one, for each of the two goals by itself."""

    case: str
    best_rate: str
    rate_ratio: float
    best_p99: str
    p99_ratio: float


def verdict(rows: Iterable[Row], case: str) -> Verdict:
    mine = [row for row in rows if row.case == case]
    adaptive = next(row for row in mine if row.choice == ADAPTIVE.name)
    fixed = [row for row in mine if row.choice != ADAPTIVE.name]
    fastest = max(fixed, key=lambda row: row.calls_per_s)
    soonest = min(fixed, key=lambda row: row.p99_ms)
    return Verdict(
        case,
        fastest.choice,
        adaptive.calls_per_s / fastest.calls_per_s,
        soonest.choice,
        adaptive.p99_ms / soonest.p99_ms,
    )


def page(rows: Sequence[Row], about: dict[str, Any]) -> str:
    cases = list(dict.fromkeys(row.case for row in rows))
    lines = [
        "# Adaptive batches beside fixed ones",
        "",
        "Made by `python -m benchmarks.components.batching`, which says what the cases are. "
        f"{about['cpu_count']} cores, of which {about.get('busy_cores', 0)} were busy with other "
        "things; compare figures only within a case. Calls/s are what nine of ten rounds stay "
        "below: the machine is shared, and the CPU time of a call hardly depends on that.",
        "",
        "| case | most calls/s | adaptive / that | least p99 at low load | adaptive / that |",
        "|---|---|---|---|---|",
    ]
    for case in cases:
        told = verdict(rows, case)
        lines.append(
            f"| {case} | {told.best_rate} | {told.rate_ratio:.2f} | {told.best_p99} | "
            f"{told.p99_ratio:.2f} |"
        )
    lines += ["", f"![Calls a second and latency at low load by choice]({NAME}.svg)", ""]
    for case in cases:
        lines += [
            f"## {case}",
            "",
            "| choice | calls/s | worker CPU, us a call | p50 at low load, ms | p95 | p99 |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {row.choice} | {row.calls_per_s:,.0f} | "
            f"{row.cpu_us:.0f} | {row.p50_ms:.2f} | {row.p95_ms:.2f} | {row.p99_ms:.2f} |"
            for row in rows
            if row.case == case
        ]
        lines.append("")
    return "\n".join(lines)


def draw(rows: Sequence[Row], path: Path) -> None:
    # Only here: measuring needs no plots.
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = NAME
    from matplotlib import pyplot

    cases = list(dict.fromkeys(row.case for row in rows))
    figure, axes = pyplot.subplots(
        2, len(cases), figsize=(2.6 * len(cases), 5.2), layout="constrained", squeeze=False
    )
    for column, case in enumerate(cases):
        mine = [row for row in rows if row.case == case]
        colors = ["#c44e52" if row.choice == ADAPTIVE.name else "#8c8c8c" for row in mine]
        names = [row.choice for row in mine]
        axes[0][column].bar(names, [row.calls_per_s for row in mine], color=colors)
        axes[0][column].set_title(case)
        axes[1][column].bar(names, [row.p99_ms for row in mine], color=colors, alpha=0.5)
        axes[1][column].bar(names, [row.p50_ms for row in mine], color=colors)
        for each in (axes[0][column], axes[1][column]):
            each.tick_params(axis="x", rotation=90)
    axes[0][0].set_ylabel("calls/s at saturation")
    axes[1][0].set_ylabel("ms at low load: p50, and p99 above it")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def keep(rows: Sequence[Row], about: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({**row._asdict(), **about}) for row in rows]
    (folder / f"{NAME}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / f"{NAME}.md").write_text(page(rows, about))
    draw(rows, folder / f"{NAME}.svg")
    print(f"kept in {(folder / NAME).relative_to(machine.ROOT)}.jsonl, .md and .svg")


def main() -> None:
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=names, action="append")
    parser.add_argument("--quick", action="store_true", help="to try it, not to cite")
    parser.add_argument("--serve", nargs=2, metavar=("CASE", "DIRECTORY"), help="be the worker")
    options = parser.parse_args()
    by_name = {case.name: case for case in CASES}
    if options.serve:
        name, directory = options.serve
        uvloop.run(serve(by_name[name], directory))
        return
    exit_on_terminate()
    about = machine.describe()
    rows: list[Row] = []
    for name in options.only or names:
        command = [sys.executable, "-m", "benchmarks.components.batching", "--serve", name]
        with machine.data_directory() as directory, Child([*command, directory]) as worker:
            address = worker.read_line(READY_WAIT_S)
            if address is None:
                sys.exit("the worker did not start")
            plan = QUICK if options.quick else FULL
            measured = uvloop.run(measure(by_name[name], address, worker.pid, plan))
        for row in measured:
            print(json.dumps(row._asdict()))
        rows += measured
        print(json.dumps(verdict(rows, name)._asdict()))
    is_whole = not options.only and not options.quick
    keep(rows, about, machine.RESULTS if is_whole else machine.LOCAL_RESULTS)


if __name__ == "__main__":
    main()
