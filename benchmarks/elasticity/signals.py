"""What signals cost: the same load with a controller that samples once a second, and without one.

    .venv/bin/python -m benchmarks.elasticity.signals [--quick] [--keep]

Pairs of workers stand side by side, one of them with `scaling = "fixed"`: it counts by source,
keeps turns, samples, and has a controller that decides nothing. They are measured in turn, in short
samples and many rounds, in another order each time: a keyed count in batches (A) and calls of 64
callers (B). A ratio is that of two samples of one round; on a busy machine CPU time says more than
throughput. A third pair is as the first: its ratios say what noise is. Before that, all rest: what
they need of a core then is what is done each second, whatever the load.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from math import sqrt
from statistics import mean, median, quantiles, stdev
from typing import Any

import uvloop
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

from benchmarks.elasticity.keep import verdict, write
from benchmarks.harness import machine
from benchmarks.harness.processes import exit_on_terminate
from benchmarks.harness.tables import Grid
from benchmarks.leases.load import ROOM, STATIC, Pair, Usage, cpu_s, pair, sample

APP = "benchmarks.harness.count_app:app"
FUNCTION = "bench/each"
SHAPES = {"A: batches of 100": (8, 100), "B: 64 callers": (64, 1)}
KINDS: dict[str, dict[str, str]] = {
    "off": {},
    "on": {"SUBLET_SCALING": "fixed"},
    "off again": {},
}
ALLOWED = 0.01
SETTLE_S, REST_S = 5.0, 30.0


async def at_rest(pairs: Mapping[str, Pair], seconds: float) -> dict[str, float]:
    """Return what a worker needs of a core when nothing comes."""
    before = {kind: sum(map(cpu_s, two.pids)) for kind, two in pairs.items()}
    await asyncio.sleep(seconds)
    return {
        kind: (sum(map(cpu_s, two.pids)) - before[kind]) / seconds / len(two.pids)
        for kind, two in pairs.items()
    }


async def measure(rounds: int, seconds: float) -> tuple[list[dict[str, Any]], dict[str, float]]:
    found: dict[tuple[str, str], list[Usage]] = {}
    columns = (*Progress.get_default_columns()[:3], TimeElapsedColumn())
    console = Console(stderr=True)
    async with AsyncExitStack() as stack:
        pairs: dict[str, Pair] = {}
        for kind, settings in KINDS.items():
            # Workers that scale need a store that all of them see.
            given = {**ROOM, "SUBLET_STORE": "sqlite", **settings}
            pairs[kind] = await stack.enter_async_context(pair(STATIC, APP, given))
        await asyncio.sleep(SETTLE_S)
        resting = await at_rest(pairs, REST_S)
        keys = {kind: two.spread_keys(FUNCTION, 800) for kind, two in pairs.items()}
        order = list(KINDS)
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("rounds", total=rounds)
            for number in range(rounds + 1):
                order = order[1:] + order[:1] if number % 2 else order[::-1]
                for shape, (callers, batch) in SHAPES.items():
                    for kind in order:
                        usage, _ = await sample(
                            pairs[kind], FUNCTION, keys[kind],
                            callers=callers, batch=batch, seconds=seconds,
                        )  # fmt: skip
                        if number:
                            found.setdefault((shape, kind), []).append(usage)
                progress.update(task, completed=number)
    records = [
        {"shape": shape, "kind": kind, "samples": [list(each) for each in usages]}
        for (shape, kind), usages in found.items()
    ]
    return records, resting


def ratios(records: Sequence[dict[str, Any]], shape: str, kind: str, field: str) -> list[float]:
    """Return, round by round, what a kind needs of what `off` needs."""
    place = Usage._fields.index(field)
    ours, theirs = (
        next(e["samples"] for e in records if (e["shape"], e["kind"]) == (shape, each))
        for each in (kind, "off")
    )
    return [one[place] / other[place] for one, other in zip(ours, theirs, strict=True)]


def _told(kind: str, costs: float, noise: float) -> str:
    if kind != "on":
        return "noise"
    return verdict(costs < ALLOWED) if noise < ALLOWED else f"not known: noise is {noise:.1%}"


def show(
    records: Sequence[dict[str, Any]],
    resting: Mapping[str, float],
    seconds: float,
    busy: float,
    kept: bool,
) -> None:
    rounds = len(records[0]["samples"])
    rows = []
    for shape in SHAPES:
        for kind in list(KINDS)[1:]:
            for field, name in (("per_s", "messages a second"), ("cpu_us", "CPU a message")):
                some = ratios(records, shape, kind, field)
                middle = median(some)
                low, _, high = quantiles(some, n=4)
                # Of the median: 1.25 standard errors of the mean.
                doubt = 1.2533 * stdev(some) / sqrt(len(some))
                costs = 1 - middle if field == "per_s" else middle - 1
                noise = abs(median(ratios(records, shape, "off again", field)) - 1)
                rows.append(
                    [
                        shape,
                        kind,
                        name,
                        f"{middle:.4f}",
                        f"{low:.3f} to {high:.3f}",
                        f"± {1.96 * doubt:.4f}",
                        f"{mean(some):.4f}",
                        _told(kind, costs, noise),
                    ]
                )
    headings = [
        "load", "sampling", "figure, over `off`", "median", "quartiles", "95 % of the median",
        "mean", "costs < 1 %",
    ]  # fmt: skip
    note = (
        f"{rounds} rounds, samples of {seconds:g} s, two workers each, state in SQLite. Before the "
        f"first round {busy:.1f} of {machine.describe()['cpu_count']} cores were busy with other "
        "things. `off again` is a second pair without sampling: its ratios are noise, and what is "
        "within them is not known."
    )
    more = resting["on"] - (resting["off"] + resting["off again"]) / 2
    rest_rows = [[kind, f"{share:.2%}", ""] for kind, share in resting.items()]
    rest_rows.append(["on, more than off", f"{more:.2%}", verdict(more < ALLOWED)])
    grids = [
        Grid("At rest: of a core, each worker", ["sampling", "core", "< 1 %"], rest_rows, 1),
        Grid("With sampling, over without", headings, rows, word_columns=3),
    ]
    data = {"at_rest": resting, "rounds": records}
    write("elasticity_signals", "What signals cost", note, grids, data, kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--keep", action="store_true", help="replace the kept results")
    arguments = parser.parse_args()
    exit_on_terminate()
    busy = machine.busy_cores(1.0) or 0.0
    rounds, seconds = (4, 0.5) if arguments.quick else (arguments.rounds, 1.0)
    records, resting = uvloop.run(measure(rounds, seconds))
    show(records, resting, seconds, busy, arguments.keep)


if __name__ == "__main__":
    main()
