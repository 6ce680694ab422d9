"""What signals cost: the same load with a controller that samples once a second, and without one.

    .venv/bin/python -m benchmarks.elasticity.signals [--quick] [--keep]

Two workers with `scaling = "fixed"` keep turns, sample, and have a controller that decides nothing;
all of that is turned off and on in the same processes (`sampled_app`), as two processes differ by
more than it costs. Off, on, and off once more are measured in turn, in short samples and many
rounds, in another order each time: a keyed count in batches (A) and calls of 64 callers (B). A
ratio is that of two samples of one round; on a busy machine CPU time says more than throughput. The
ratios of the second time without say what noise is. Before that, both rest: what they need of a
core then is what is done each second, whatever the load.

Where the noise is larger than what is looked for, parts say more than wholes: the steps of sampling
are timed by themselves, in the workers, and so is what is done for each message, in a loop here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections import deque
from collections.abc import Sequence
from math import sqrt
from statistics import mean, median, quantiles, stdev
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import uvloop
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

from benchmarks.elasticity.keep import verdict, write
from benchmarks.elasticity.sampled_figures import FOLDER, OFF, ON, figures_path
from benchmarks.harness import machine
from benchmarks.harness.processes import exit_on_terminate
from benchmarks.harness.tables import Grid
from benchmarks.leases.load import ROOM, STATIC, Pair, Usage, cpu_s, pair, sample
from sublet.runtime.observability.telemetry import TURNS_KEPT_MAX

APP = "benchmarks.elasticity.sampled_app:app"
FUNCTION = "bench/each"
SHAPES = {"A: batches of 100": (8, 100), "B: 64 callers": (64, 1)}
KINDS = ("off", "on", "off again")
ALLOWED = 0.01
SETTLE_S, REST_S, RESTS = 5.0, 10.0, 2
TOLD_S = 30.0


TURNS_OF = {"A: batches of 100": 4 / 100, "B: 64 callers": 1.0}
"""Turns that are kept, for each message: at most one for each partition of a batch."""


def turn(two: Pair, kind: str) -> None:
    """Let a pair of workers sample, or not."""
    number = ON if kind == "on" else OFF
    for pid in two.pids:
        os.kill(pid, number)


async def stepped_s(two: Pair, folder: str, before_s: float) -> float:
    """Turn sampling off; return what it has taken of the processor so far, in both workers."""
    paths = [figures_path(folder, pid) for pid in two.pids]
    for path in paths:
        path.unlink(missing_ok=True)
    turn(two, "off")
    async with asyncio.timeout(TOLD_S):
        while not all(path.exists() for path in paths):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return sum(float(json.loads(path.read_text())["cpu_s"]) for path in paths) - before_s


def turn_us() -> float:
    """Return what it takes to keep a turn, beside finding that none is to be kept."""
    turns: deque[tuple[float, int]] | None = deque(maxlen=TURNS_KEPT_MAX)
    nothing: deque[tuple[float, int]] | None = None
    rounds, repeats = 200_000, 15

    def keep(kept: deque[tuple[float, int]] | None) -> float:
        started_s = time.process_time()
        for number in range(rounds):
            if kept is not None:
                kept.append((number - 0.5, 1))
        return (time.process_time() - started_s) * 1e6 / rounds

    return min(keep(turns) for _ in range(repeats)) - min(keep(nothing) for _ in range(repeats))


async def at_rest(two: Pair) -> dict[str, float]:
    """Return what a worker needs of a core when nothing comes."""
    used_s = dict.fromkeys(KINDS, 0.0)
    for _ in range(RESTS):
        for kind in KINDS:
            turn(two, kind)
            before_s = sum(map(cpu_s, two.pids))
            await asyncio.sleep(REST_S)
            used_s[kind] += sum(map(cpu_s, two.pids)) - before_s
    return {kind: used / RESTS / REST_S / len(two.pids) for kind, used in used_s.items()}


class Measured(NamedTuple):
    records: list[dict[str, Any]]
    resting: dict[str, float]
    """Of a core, by kind."""
    steps: dict[str, list[float]]
    """Of the workers' CPU, by shape: what steps of sampling took in each sample."""


async def measure(rounds: int, seconds: float, folder: str) -> Measured:
    found: dict[tuple[str, str], list[Usage]] = {}
    steps: dict[str, list[float]] = {shape: [] for shape in SHAPES}
    columns = (*Progress.get_default_columns()[:3], TimeElapsedColumn())
    # Workers that scale need a store that all of them see.
    settings = {**ROOM, "SUBLET_STORE": "sqlite", "SUBLET_SCALING": "fixed", FOLDER: folder}
    async with pair(STATIC, APP, settings) as two:
        await asyncio.sleep(SETTLE_S)
        resting = await at_rest(two)
        taken_s = await stepped_s(two, folder, 0.0)
        keys = two.spread_keys(FUNCTION, 800)
        order = list(KINDS)
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task("rounds", total=rounds)
            for number in range(rounds + 1):
                order = order[1:] + order[:1] if number % 2 else order[::-1]
                for shape, (callers, batch) in SHAPES.items():
                    for kind in order:
                        turn(two, kind)
                        usage, done = await sample(
                            two, FUNCTION, keys, callers=callers, batch=batch, seconds=seconds
                        )
                        if kind == "on":
                            stepping_s = await stepped_s(two, folder, taken_s)
                            if not stepping_s:
                                raise RuntimeError("sampling was on, and no step was taken")
                            taken_s += stepping_s
                            steps[shape] += [stepping_s * 1e6 / (usage.cpu_us * done)] * bool(
                                number
                            )
                        if number:
                            found.setdefault((shape, kind), []).append(usage)
                progress.update(task, completed=number)
    records = [
        {"shape": shape, "kind": kind, "samples": [list(each) for each in usages]}
        for (shape, kind), usages in found.items()
    ]
    return Measured(records, resting, steps)


def ratios(records: Sequence[dict[str, Any]], shape: str, kind: str, field: str) -> list[float]:
    """Return, round by round, what a kind needs of what `off` needs."""
    place = Usage._fields.index(field)
    ours, theirs = (
        next(e["samples"] for e in records if (e["shape"], e["kind"]) == (shape, each))
        for each in (kind, "off")
    )
    return [one[place] / other[place] for one, other in zip(ours, theirs, strict=True)]


def _told(kind: str, costs: float, doubt: float) -> str:
    if kind != "on":
        return "noise"
    return verdict(costs < ALLOWED) if doubt < ALLOWED else f"not known: ± {doubt:.1%}"


def parts(measured: Measured) -> list[list[str]]:
    """Return what each part of sampling takes of the workers' CPU."""
    keeps_us, rows = turn_us(), []
    for shape in SHAPES:
        cpu_us = median(
            sample[Usage._fields.index("cpu_us")]
            for each in measured.records
            if (each["shape"], each["kind"]) == (shape, "off")
            for sample in each["samples"]
        )
        steps, turns = median(measured.steps[shape]), keeps_us * TURNS_OF[shape] / cpu_us
        whole = steps + turns
        rows.append(
            [shape, f"{cpu_us:.1f}", f"{steps:.2%}", f"{turns:.2%}", f"{whole:.2%}",
             verdict(whole < ALLOWED)]
        )  # fmt: skip
    return rows


def show(measured: Measured, seconds: float, busy: float, kept: bool) -> None:
    records, resting = measured.records, measured.resting
    rounds = len(records[0]["samples"])
    rows = []
    for shape in SHAPES:
        for kind in list(KINDS)[1:]:
            for field, name in (("per_s", "messages a second"), ("cpu_us", "CPU a message")):
                some = ratios(records, shape, kind, field)
                middle = median(some)
                low, _, high = quantiles(some, n=4)
                # Of the median: 1.25 standard errors of the mean.
                doubt = 1.96 * 1.2533 * stdev(some) / sqrt(len(some))
                costs = 1 - middle if field == "per_s" else middle - 1
                noise = abs(median(ratios(records, shape, "off again", field)) - 1)
                rows.append(
                    [
                        shape,
                        kind,
                        name,
                        f"{middle:.4f}",
                        f"{low:.3f} to {high:.3f}",
                        f"± {doubt:.4f}",
                        f"{mean(some):.4f}",
                        _told(kind, costs, max(noise, doubt)),
                    ]
                )
    headings = [
        "load", "sampling", "figure, over `off`", "median", "quartiles", "95 % of the median",
        "mean", "costs < 1 %",
    ]  # fmt: skip
    note = (
        f"{rounds} rounds, samples of {seconds:g} s, state in SQLite. The same two workers sample "
        f"and do not, in turns. Before the first round {busy:.1f} of "
        f"{machine.describe()['cpu_count']} cores were busy with other things. `off again` is "
        "without sampling once more: its ratios are noise, and what is within them is not known."
    )
    more = resting["on"] - (resting["off"] + resting["off again"]) / 2
    rest_rows = [[kind, f"{share:.2%}", ""] for kind, share in resting.items()]
    rest_rows.append(["on, more than off", f"{more:.2%}", verdict(more < ALLOWED)])
    grids = [
        Grid("At rest: of a core, each worker", ["sampling", "core", "< 1 %"], rest_rows, 1),
        Grid(
            "Timed by itself: of the CPU of the workers",
            ["load", "CPU a message (µs)", "steps, each second", "turns kept", "both", "< 1 %"],
            parts(measured),
            1,
        ),
        Grid("With sampling, over without", headings, rows, word_columns=3),
    ]
    data = {"at_rest": resting, "steps": measured.steps, "rounds": records}
    write("elasticity_signals", "What signals cost", note, grids, data, kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--keep", action="store_true", help="replace the kept results")
    arguments = parser.parse_args()
    exit_on_terminate()
    busy = machine.busy_cores(1.0) or 0.0
    rounds, seconds = (4, 0.5) if arguments.quick else (arguments.rounds, 2.0)
    with TemporaryDirectory() as folder:
        measured = uvloop.run(measure(rounds, seconds, folder))
    show(measured, seconds, busy, arguments.keep)


if __name__ == "__main__":
    main()
