"""Sublet on the common workloads: a client and two workers, each a process of its own.

Functions have 4 partitions, two for each worker; cases named `p=16` have the default of 16.
Prints the records that `benchmarks.compare` reads; run by itself it prints them for people:

    .venv/bin/python -m benchmarks.harness.sublet_cases [--quick] [--only "A mem"] [--workers 2]
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import uvloop

from benchmarks.harness import machine
from benchmarks.harness.processes import Child
from benchmarks.harness.redis_server import RedisServer
from benchmarks.harness.report import Reporter
from benchmarks.harness.workload import (
    CALLER_COUNTS,
    CALLER_STRIDE,
    FULL,
    PACE_TICK_S,
    PACED_RATES_PER_S,
    QUICK,
    ArrivalSchedule,
    Durations,
    LatencyLog,
    latency_figures,
    zipf_keys,
)
from sublet import Client
from sublet.statestore.contract import Directory
from sublet.statestore.redis.directory import RedisDirectory
from sublet.statestore.sqlite.directory import SqliteDirectory

STORES = {
    "mem": {"SUBLET_STORE": "memory"},
    "sqlite": {"SUBLET_STORE": "sqlite"},
    "sqlite-full": {"SUBLET_STORE": "sqlite", "SUBLET_FULL_SYNC": "1"},
    "redis-full": {"SUBLET_STORE": "redis", "SUBLET_FULL_SYNC": "1"},
}
BATCH_SIZE = 4_000
BATCHES_IN_FLIGHT = 4
READY_WAIT_S = 90.0
ANSWER_WAIT_S = 20.0


class Cluster:
    """Worker processes on a data directory of their own, with settings beside those of a store."""

    def __init__(
        self,
        store: str,
        worker_count: int,
        *,
        target: str = "benchmarks.harness.count_app:app",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._stack = ExitStack()
        directory = self._stack.enter_context(machine.data_directory())
        self.data_dir = Path(directory)
        self._redis_url = ""
        if STORES[store]["SUBLET_STORE"] == "redis":
            self._redis_url = self._stack.enter_context(RedisServer("always")).url
        environment = {
            **STORES[store],
            **({"SUBLET_REDIS_URL": self._redis_url} if self._redis_url else {}),
            "SUBLET_DATA_DIR": directory,
            "SUBLET_WORKERS_EXPECTED": str(worker_count),
            "SUBLET_LOG_LEVEL": "warning",
            **(settings or {}),
        }
        command = [sys.executable, "-m", "sublet", "worker", target]
        self.workers = [
            self._stack.enter_context(Child(command, environment=environment, is_read=False))
            for _ in range(worker_count)
        ]
        self._worker_count = worker_count

    async def addresses(self) -> list[str]:
        """Wait until every partition has an owner; return the workers' addresses."""
        directory: Directory
        if self._redis_url:
            directory = RedisDirectory(self._redis_url)
        else:
            directory = SqliteDirectory(self.data_dir / "sublet.db")
        try:
            async with asyncio.timeout(READY_WAIT_S):
                while True:
                    view = await directory.view()
                    placed = len(view.placement) == sum(view.functions.values()) > 0
                    if placed and len(view.members) == self._worker_count:
                        return [member.address for member in view.members.values()]
                    await asyncio.sleep(0.02)
        finally:
            await directory.close()

    def close(self) -> None:
        self._stack.close()


async def saturate(client: Client, function: str, seconds: float) -> float:
    """Return messages answered a second, with a few large batches always in flight."""
    keys = zipf_keys()
    ones = [1] * BATCH_SIZE
    done = 0
    until = time.perf_counter() + seconds

    async def feed(start: int) -> None:
        nonlocal done
        position = start
        while time.perf_counter() < until:
            position = (position + BATCH_SIZE) % (len(keys) - BATCH_SIZE)
            replies = await client.call_many(function, keys[position : position + BATCH_SIZE], ones)
            done += len(replies)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as feeders:
        for feeder in range(BATCHES_IN_FLIGHT):
            feeders.create_task(feed(feeder * CALLER_STRIDE))
    return done / (time.perf_counter() - started)


async def call(client: Client, function: str, callers: int, seconds: float) -> dict[str, float]:
    """Each caller awaits its reply before it calls again."""
    keys = zipf_keys(50_000)
    latencies_s: list[float] = []
    until = time.perf_counter() + seconds

    async def caller(number: int) -> None:
        position = number * CALLER_STRIDE
        while (started := time.perf_counter()) < until:
            await client.call(function, keys[position % len(keys)], 1)
            position += 1
            latencies_s.append(time.perf_counter() - started)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as callers_:
        for number in range(callers):
            callers_.create_task(caller(number))
    elapsed_s = time.perf_counter() - started
    return {"calls_per_s": len(latencies_s) / elapsed_s, **latency_figures(latencies_s)}


async def pace(
    client: Client, function: str, rate_per_s: int, durations: Durations
) -> dict[str, float]:
    """Send what is due on each tick as one batch; time each message from when it was due."""
    keys = zipf_keys(50_000)
    schedule = ArrivalSchedule.lasting(
        durations.paced_s, rate_per_s=rate_per_s, start_s=time.perf_counter() + 0.1
    )
    log = LatencyLog(schedule, durations.paced_warm_up_s)

    async def answer(first: int, stop: int) -> None:
        batch = [keys[index % len(keys)] for index in range(first, stop)]
        await client.call_many(function, batch, [1] * len(batch))
        now_s = time.perf_counter()
        log.add((schedule.due_s(index) for index in range(first, stop)), now_s)

    sent = 0
    async with asyncio.timeout(durations.paced_s + ANSWER_WAIT_S), asyncio.TaskGroup() as calls:
        while sent < schedule.count:
            due = schedule.due_count(time.perf_counter())
            if due > sent:
                calls.create_task(answer(sent, due))
                sent = due
            await asyncio.sleep(PACE_TICK_S)
    return log.figures()


async def measure(
    cluster: Cluster, store: str, reporter: Reporter, options: argparse.Namespace
) -> None:
    durations = QUICK if options.quick else FULL

    def wanted(case: str) -> bool:
        return any(case.startswith(each) for each in options.only)

    addresses = await cluster.addresses()
    async with Client(addresses) as client:
        for function in ("each", "batch", "each_16", "batch_16"):
            case = f"A {store} {function.replace('_16', ' p=16')}"
            if wanted(case):
                await saturate(client, f"bench/{function}", durations.saturate_s / 4)
                rate = await saturate(client, f"bench/{function}", durations.saturate_s)
                reporter.case(case, {"messages_per_s": rate})
        await saturate(client, "bench/each", 0.2)
        for callers in CALLER_COUNTS:
            case = f"B {store} c={callers}"
            if wanted(case):
                reporter.case(case, await call(client, "bench/each", callers, durations.calls_s))
        case = f"B {store} c=64 p=16"
        if wanted(case):
            reporter.case(case, await call(client, "bench/each_16", 64, durations.calls_s))
        for rate_per_s in PACED_RATES_PER_S:
            case = f"L {store} rate={rate_per_s}"
            if wanted(case):
                reporter.case(case, await pace(client, "bench/each", rate_per_s, durations))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print case results as JSON lines")
    parser.add_argument("--quick", action="store_true", help="short cases: to try it, not to cite")
    parser.add_argument("--only", nargs="*", default=[""], help="cases that start with this")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    reporter = Reporter("sublet", as_json=options.json)
    for store in STORES:
        cases = [f"{workload} {store} " for workload in "ABL"]
        if not any(case.startswith(each[: len(case)]) for case in cases for each in options.only):
            continue
        cluster = Cluster(store, options.workers)
        try:
            uvloop.run(measure(cluster, store, reporter, options))
        finally:
            cluster.close()


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    main()
