"""What one more key, queued message, client or partition costs a worker in memory.

    .venv/bin/python -m benchmarks.components.memory [--only key] [--json]

Each case is run twice, on fresh worker processes: once for the resident memory that the system
sees, once for what Python's allocator was asked for (`tracemalloc`, which itself needs memory and
therefore cannot run beside the first). Both are differences between a worker that has done the
same kind of work on little and one that holds the many. gRPC and SQLite allocate outside of
Python, so for clients and for a database the resident figure is the whole one.

`accounted` is what the worker's own bound on cached state takes a key for. A whole run is kept in
`results/memory.jsonl`.
"""

import argparse
import asyncio
import ctypes
import gc
import json
import os
import signal
import sys
import threading
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import uvloop
from rich.console import Console

from benchmarks.harness import machine
from benchmarks.harness.processes import Child
from benchmarks.harness.report import OUR_SYSTEM, CaseResult, write_results
from benchmarks.harness.tables import Grid, print_grid
from sublet import App, Client, Context, Function
from sublet.functions.address import partition_index_of
from sublet.runtime.config.settings import read_config
from sublet.runtime.observability.logging_setup import set_up_logging
from sublet.runtime.services.worker_service import counters_of
from sublet.runtime.worker import Worker

RESULTS = machine.RESULTS / "memory.jsonl"
KEY_COUNT = 100_000
WARM_KEY_COUNT = 1_000
QUEUED_COUNT = 50_000
CHUNK_SIZE = 500
CLIENT_COUNT = 200
PARTITION_COUNT = 16
PARTITION_COUNT_MANY = 1_024
BATCH_SIZE = 4_000
WAIT_S = 60.0
SAMPLES_MAX = 20
TURNS_MAX = 1_000_000
# Longer than the store waits before it folds what was committed.
SETTLE_S = 2.5
UNBOUNDED = {
    "SUBLET_IN_FLIGHT_MAX": "1000000",
    "SUBLET_QUEUE_MAX": "1000000",
    "SUBLET_CLIENT_CREDIT": "1000000",
    "SUBLET_CACHE_BYTES_MAX": str(2**32),
}


@dataclass
class Cart:
    """A small state with fields of its own."""

    owner: str = "nobody"
    item_count: int = 0
    total_cents: int = 0
    open: bool = True


def app_of(partition_count: int) -> App:
    app = App("memory", partitions=partition_count)

    @app.function(state=int)
    def whole(ctx: Context, n: int) -> int:
        count: int = ctx.state.get() + n
        ctx.state.set(count)
        return count

    @app.function(state=Cart)
    def fields(ctx: Context, n: int) -> int:
        cart: Cart = ctx.state.get()
        cart.item_count += n
        cart.total_cents += 100
        ctx.state.set(cart)
        return cart.item_count

    @app.function(state=int, timeout=None, blocking=True, concurrency=1, batch_size_max=1)
    def stuck(ctx: Context, n: int) -> None:
        # The first message never ends, and nothing runs beside it: what follows stays queued.
        threading.Event().wait()

    return app


# The worker's process


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.readline().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def say(worker: Worker) -> None:
    """Print what is in use now; freed memory that the C library keeps is given back first."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    counters = counters_of(worker)
    spoken = {
        "address": worker.address,
        "resident_bytes": resident_bytes(),
        "traced_bytes": tracemalloc.get_traced_memory()[0] if tracemalloc.is_tracing() else 0,
        "accounted_bytes": counters.get("cache_bytes", 0),
        "queued": counters.get("queued", 0),
        "clients": counters["clients"],
    }
    print(json.dumps(spoken), flush=True)


async def serve(partition_count: int) -> None:
    """Be a worker; print what is in use when ready, and whenever SIGUSR1 comes."""
    # Logs go to standard error; standard output is for what is measured.
    set_up_logging("warning", "console", colors=False, pid=os.getpid())
    worker = Worker(app_functions(partition_count), read_config(os.environ))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.stop)
    loop.add_signal_handler(signal.SIGUSR1, say, worker)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        await worker.ready.wait()
        say(worker)


def app_functions(partition_count: int) -> dict[str, Function]:
    return {each.name: each for each in app_of(partition_count).functions.values()}


# The driver


@dataclass(frozen=True, slots=True)
class Sample:
    """What a worker holds at one moment."""

    resident_bytes: int
    traced_bytes: int
    accounted_bytes: float
    queued: float
    clients: float
    address: str


class Probe:
    """A worker process that can be asked how much memory it uses."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.first = self._read()

    def _read(self) -> Sample:
        line = self._child.read_line(WAIT_S)
        if line is None:
            raise RuntimeError("the worker has ended")
        return Sample(**json.loads(line))

    async def sample(self) -> Sample:
        """Let the worker come to rest, then ask."""
        await asyncio.sleep(SETTLE_S)
        os.kill(self._child.pid, signal.SIGUSR1)
        return await asyncio.to_thread(self._read)


@asynccontextmanager
async def worker_of(
    store: str, *, trace: bool, partition_count: int = PARTITION_COUNT
) -> AsyncIterator[Probe]:
    with machine.data_directory() as directory:
        environment = {
            **UNBOUNDED,
            "SUBLET_STORE": store,
            "SUBLET_DATA_DIR": directory,
            "SUBLET_LOG_LEVEL": "warning",
        }
        command = [
            sys.executable,
            "-m",
            "benchmarks.components.memory",
            "--worker",
            str(partition_count),
        ]
        if trace:
            command.append("--trace")
        with Child(command, environment=environment) as child:
            yield await asyncio.to_thread(Probe, child)


async def call_keys(address: str, function: str, prefix: str, keys: int, messages: int) -> None:
    """Send messages round a number of keys, then leave."""
    async with Client(address) as client:
        for start in range(0, messages, BATCH_SIZE):
            size = min(BATCH_SIZE, messages - start)
            names = [f"{prefix}{(start + each) % keys:06d}" for each in range(size)]
            await client.call_many(function, names, [1] * size)


async def idle_keys(store: str, function: str, trace: bool) -> tuple[Sample, Sample]:
    async with worker_of(store, trace=trace) as probe:
        address = probe.first.address
        await call_keys(address, function, "warm", WARM_KEY_COUNT, KEY_COUNT // 2)
        before = await probe.sample()
        await call_keys(address, function, "k", KEY_COUNT, KEY_COUNT)
        return before, await probe.sample()


async def queued_messages(chunk_size: int, trace: bool) -> tuple[Sample, Sample]:
    """Queue messages of one sender to one partition, in chunks that arrive one after the other."""
    target = partition_index_of("stuck", PARTITION_COUNT)
    names = (f"k{number:06d}" for number in range(QUEUED_COUNT * PARTITION_COUNT * 2))
    keys = [each for each in names if partition_index_of(each, PARTITION_COUNT) == target]
    keys = keys[:QUEUED_COUNT]
    async with (
        worker_of("memory", trace=trace) as probe,
        AsyncExitStack() as stack,
    ):
        client = await stack.enter_async_context(Client(probe.first.address))
        waiting = [asyncio.ensure_future(client.send("memory/stuck", "stuck", 0))]
        await asyncio.sleep(0.2)
        before = await probe.sample()
        for start in range(0, QUEUED_COUNT, chunk_size):
            chunk = keys[start : start + chunk_size]
            if chunk_size == 1:
                sending = client.send("memory/stuck", chunk[0], 1)
            else:
                sending = client.send_many("memory/stuck", chunk, [1] * len(chunk))
            frames_sent = client.stats.frames_sent
            waiting.append(asyncio.ensure_future(sending))
            # What is not sent yet when the next one comes would leave in one chunk with it.
            for _ in range(TURNS_MAX):
                await asyncio.sleep(0)
                if client.stats.frames_sent > frames_sent:
                    break
            else:
                raise RuntimeError(f"a chunk has not left after {TURNS_MAX} turns of the loop")
        for _ in range(SAMPLES_MAX):
            after = await probe.sample()
            if after.queued - before.queued == QUEUED_COUNT:
                break
        else:
            raise RuntimeError(f"{after.queued - before.queued:.0f} messages were queued")
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return before, after


async def idle_clients(lane: bool, trace: bool) -> tuple[Sample, Sample]:
    async with worker_of("memory", trace=trace) as probe, AsyncExitStack() as stack:
        how: Literal["auto", "never"] = "auto" if lane else "never"
        await stack.enter_async_context(Client(probe.first.address, lane=how))
        before = await probe.sample()
        for _ in range(CLIENT_COUNT):
            await stack.enter_async_context(Client(probe.first.address, lane=how))
        after = await probe.sample()
        if after.clients - before.clients != CLIENT_COUNT:
            raise RuntimeError(f"{after.clients - before.clients:.0f} clients were connected")
        return before, after


async def empty_partitions(store: str, trace: bool) -> tuple[Sample, Sample]:
    async with worker_of(store, trace=trace) as probe:
        before = await probe.sample()
    async with worker_of(store, trace=trace, partition_count=PARTITION_COUNT_MANY) as probe:
        return before, await probe.sample()


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    count: int
    run: Callable[[bool], Awaitable[tuple[Sample, Sample]]]


# The app has three functions, all with the same number of partitions.
PARTITIONS_ADDED = 3 * (PARTITION_COUNT_MANY - PARTITION_COUNT)
CASES = (
    Case("key int mem", KEY_COUNT, lambda trace: idle_keys("memory", "memory/whole", trace)),
    Case("key int sqlite", KEY_COUNT, lambda trace: idle_keys("sqlite", "memory/whole", trace)),
    Case("key dataclass mem", KEY_COUNT, lambda trace: idle_keys("memory", "memory/fields", trace)),
    Case(
        "key dataclass sqlite", KEY_COUNT, lambda trace: idle_keys("sqlite", "memory/fields", trace)
    ),
    Case(
        "message in chunks of 500", QUEUED_COUNT, lambda trace: queued_messages(CHUNK_SIZE, trace)
    ),
    Case("message alone", QUEUED_COUNT, lambda trace: queued_messages(1, trace)),
    Case("client lane", CLIENT_COUNT, lambda trace: idle_clients(True, trace)),
    Case("client grpc", CLIENT_COUNT, lambda trace: idle_clients(False, trace)),
    Case("partition mem", PARTITIONS_ADDED, lambda trace: empty_partitions("memory", trace)),
    Case("partition sqlite", PARTITIONS_ADDED, lambda trace: empty_partitions("sqlite", trace)),
)


def measure(case: Case) -> CaseResult:
    async def run(trace: bool) -> tuple[Sample, Sample]:
        async with asyncio.timeout(WAIT_S * 3):
            return await case.run(trace)

    before, after = uvloop.run(run(False))
    traced_before, traced_after = uvloop.run(run(True))
    figures = {
        "resident_bytes": (after.resident_bytes - before.resident_bytes) / case.count,
        "traced_bytes": (traced_after.traced_bytes - traced_before.traced_bytes) / case.count,
        "count": case.count,
    }
    if case.name.startswith("key"):
        added = after.accounted_bytes - before.accounted_bytes
        figures["accounted_bytes"] = added / case.count
    rounded = {name: round(value, 1) for name, value in figures.items()}
    return CaseResult(
        system=OUR_SYSTEM, case=case.name, figures=rounded, machine=machine.describe()
    )


def show(results: list[CaseResult]) -> None:
    rows = []
    for each in results:
        figures = each.figures
        accounted = figures.get("accounted_bytes")
        rows.append(
            [
                each.case,
                f"{figures['resident_bytes']:,.0f}",
                f"{figures['traced_bytes']:,.0f}",
                "" if accounted is None else f"{accounted:,.0f}",
                f"{figures['count']:,.0f}",
            ]
        )
    headings = ["one more", "resident bytes", "Python's bytes", "accounted bytes", "measured over"]
    print_grid(Console(), Grid("Memory of a worker", headings, rows, word_columns=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases that start with this; keeps nothing")
    parser.add_argument("--json", action="store_true", help="print JSON lines, keep nothing")
    parser.add_argument("--worker", type=int, metavar="PARTITIONS", help=argparse.SUPPRESS)
    parser.add_argument("--trace", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        if options.trace:
            tracemalloc.start()
        uvloop.run(serve(options.worker))
        return
    results = []
    for each in CASES:
        if each.name.startswith(options.only):
            print(f"measuring one more {each.name}", file=sys.stderr)
            results.append(measure(each))
    if options.json:
        for result in results:
            print(result.to_json())
        return
    show(results)
    if not options.only:
        write_results(results, RESULTS)
        print(f"kept in {RESULTS.relative_to(machine.ROOT)}")


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    main()
