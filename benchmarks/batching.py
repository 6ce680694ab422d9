"""Batches that choose their size and wait by themselves, against the best fixed choice.

Run: `python -m benchmarks.batching` (about 4 minutes; `--quick` tries it, `--only cheap` one of the
handlers). One worker process and one client process. For each handler there is one function for
each fixed choice of B (run when so many wait) and W (or after so long), and one without a choice;
all are in the same worker, and are measured in turn, round by round, so that what else the machine
does hits all of them.

`cheap`   adds to its key's count
`fixed`   2 ms of work for each run, however many messages are in it (`batch=True`)
`remote`  as `cheap`, but no state stays in memory and reading takes 3 ms: a store far away

At saturation a number of callers each await their reply before they call again; what counts is
calls a second. At low load calls leave at a fixed rate, whoever answers; what counts is the 99th
percentile of the time from when each was due.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import uvloop

from benchmarks import machine
from benchmarks.processes import Child, exit_on_terminate
from benchmarks.workload import CALLER_STRIDE, SEED, percentile, zipf_keys
from sublet import App, Batch, Client, Context
from sublet.functions.app import functions_of
from sublet.runtime.config import WorkerConfig
from sublet.runtime.limits import Limits
from sublet.runtime.log import set_up_logging
from sublet.runtime.worker import Worker
from sublet.statestore.contract import Commit, Outcome, StateRow
from sublet.statestore.memory import MemoryDirectory, MemoryStore

PARTITIONS = 16
LOAD_S = 0.003
COMMIT_S = 0.001
RUN_S = 0.002
CALLERS = 64
RATE_PER_S = 100
READY_WAIT_S = 30.0
CACHE_BYTES = 1


class Choice(NamedTuple):
    """B and W of a function; None lets Sublet choose."""

    size: int | None
    wait_ms: int | None

    @property
    def name(self) -> str:
        return "adaptive" if self.size is None else f"B{self.size}_W{self.wait_ms}"


ADAPTIVE = Choice(None, None)
CHOICES = (
    Choice(1, 0),
    Choice(4, 0),
    Choice(4, 2),
    Choice(4, 10),
    Choice(16, 0),
    Choice(16, 2),
    Choice(16, 10),
    Choice(64, 20),
    ADAPTIVE,
)


# The functions


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


def _spin(until_s: float) -> None:
    while time.perf_counter() < until_s:
        pass


def _fixed(batch: Batch[int]) -> list[int]:
    _spin(time.perf_counter() + RUN_S)
    return list(batch.messages)


def make_app(handler: str) -> App:
    app = App(handler, partitions=PARTITIONS)
    for choice in CHOICES:
        options = {
            "name": choice.name,
            "batch_size": choice.size,
            "batch_wait": None if choice.wait_ms is None else f"{choice.wait_ms}ms",
        }
        if handler == "fixed":
            app.function(**options, kind="stateless", batch=True)(_fixed)  # type: ignore[call-overload]
        else:
            app.function(**options, state=int)(_count)  # type: ignore[call-overload]
    return app


async def serve(handler: str, directory: str) -> None:
    """Be the worker, until our standard input closes."""
    limits = Limits(cache_bytes_max=CACHE_BYTES) if handler == "remote" else Limits()
    set_up_logging("warning", "console", colors=False)
    config = WorkerConfig(limits=limits, data_dir=Path(directory))
    store = SlowStore() if handler == "remote" else MemoryStore()
    worker = Worker(
        functions_of([make_app(handler)]), config, store=store, directory=MemoryDirectory()
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(worker.run())
        await worker.ready.wait()
        print(worker.address, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        worker.stop()
        await running


# The load


class Figures:
    """What was measured of each choice, round by round."""

    def __init__(self) -> None:
        self.calls_per_s: dict[str, list[float]] = {}
        self.p50_ms: dict[str, list[float]] = {}
        self.p99_ms: dict[str, list[float]] = {}

    def table(self, handler: str) -> list[dict[str, float | str]]:
        return [
            {
                "handler": handler,
                "choice": choice.name,
                "calls_per_s": round(statistics.median(self.calls_per_s[choice.name])),
                "p50_ms": round(statistics.median(self.p50_ms[choice.name]), 2),
                "p99_ms": round(statistics.median(self.p99_ms[choice.name]), 2),
            }
            for choice in CHOICES
        ]


async def saturate(client: Client, function: str, seconds: float) -> float:
    keys = zipf_keys(50_000)
    done = 0
    until_s = time.perf_counter() + seconds

    async def caller(number: int) -> None:
        nonlocal done
        position = number * CALLER_STRIDE
        while time.perf_counter() < until_s:
            await client.call(function, keys[position % len(keys)], 1)
            position += 1
            done += 1

    started_s = time.perf_counter()
    async with asyncio.TaskGroup() as callers:
        for number in range(CALLERS):
            callers.create_task(caller(number))
    return done / (time.perf_counter() - started_s)


async def trickle(client: Client, function: str, seconds: float, seed: int) -> list[float]:
    """Return the times of single calls, each from when it was due, in ms."""
    chance = random.Random(seed)
    keys = zipf_keys(50_000)
    times_ms: list[float] = []

    async def call(key: str, due_s: float) -> None:
        await client.call(function, key, 1)
        times_ms.append((time.perf_counter() - due_s) * 1000)

    due_s = time.perf_counter()
    until_s = due_s + seconds
    async with asyncio.TaskGroup() as calls:
        while (due_s := due_s + chance.expovariate(RATE_PER_S)) < until_s:
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            calls.create_task(call(chance.choice(keys), due_s))
    return times_ms


async def measure(handler: str, address: str, rounds: int, seconds: float) -> Figures:
    figures = Figures()
    names = [choice.name for choice in CHOICES]
    async with Client(address) as client:
        for name in names:
            await saturate(client, f"{handler}/{name}", 0.3)
        for number in range(rounds):
            # Another order each time: who comes after whom must not matter.
            random.Random(number).shuffle(names)
            for name in names:
                rate = await saturate(client, f"{handler}/{name}", seconds)
                figures.calls_per_s.setdefault(name, []).append(rate)
            for name in names:
                times_ms = await trickle(client, f"{handler}/{name}", seconds, SEED + number)
                times_ms.sort()
                figures.p50_ms.setdefault(name, []).append(percentile(times_ms, 0.5))
                figures.p99_ms.setdefault(name, []).append(percentile(times_ms, 0.99))
    return figures


HANDLERS = ("cheap", "fixed", "remote")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", nargs=2, metavar=("HANDLER", "DIRECTORY"), help="be the worker")
    parser.add_argument("--only", choices=HANDLERS, action="append")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve(*options.serve))
        return
    exit_on_terminate()
    rounds, seconds = (2, 0.4) if options.quick else (5, 0.8)
    for handler in options.only or HANDLERS:
        command = [sys.executable, "-m", "benchmarks.batching", "--serve", handler]
        with machine.data_directory() as directory, Child([*command, directory]) as worker:
            address = worker.read_line(READY_WAIT_S)
            if address is None:
                sys.exit("the worker did not start")
            figures = uvloop.run(measure(handler, address, rounds, seconds))
        for row in figures.table(handler):
            print(json.dumps(row))


if __name__ == "__main__":
    main()
