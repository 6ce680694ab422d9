"""Hours of too much, made short: what a cluster does when three times as much comes as it can do.

    .venv/bin/python -m benchmarks.soak --minutes 10 --store redis [--keys 10000] [--keep]

Worker processes and client processes of their own; open loop, skewed keys (Zipf 1.2), handlers
that burn a known CPU time. First what the workers can do is measured (`capacity`), then latency at
half of it (`baseline`), then three times as much is offered for the given time (`overload`), beside
a client that reads nothing for seconds, and a slow reader of the egress; then half of it again
(`after`). Each second the memory of every process is looked at, and all that waits.

The verdict: memory does not grow; nothing that waits passes its bound; workers have counted the
refusals that clients saw; goodput stays about what it was; latency is back within a minute; and at
the end each key holds what was answered, not one more or less. Exits with 1 if any of it fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop
from rich.console import Console

from benchmarks.harness import machine
from benchmarks.harness.processes import exit_on_terminate
from benchmarks.harness.redis_server import RedisServer
from benchmarks.soak.app import COST_MS, EGRESS, work
from benchmarks.soak.report import Verdict, judge, percentile, write
from sublet import Client
from sublet.functions.errors import SubletError
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.rpc import EgressRequest
from tests.integration.cluster import Cluster, running_cluster

OVERLOAD = 3.0
CALLERS = 64
RECOVERY_S_MAX = 60.0
CALM_S = 5
"""So many quiet seconds in a row count as recovered."""
PATIENCE_S = 120.0
KEYS_READ_AT_ONCE = 2_000


@dataclass(frozen=True, kw_only=True)
class Plan:
    store: str = "memory"
    workers: int = 2
    clients: int = 2
    keys: int = 10_000
    capacity_s: float = 10.0
    baseline_s: float = 20.0
    overload_s: float = 600.0
    after_s: float = RECOVERY_S_MAX
    in_flight_max: int = 500
    queue_max: int = 200
    egress_max: int = 500
    """Small, so that each bound is reached. Others are as they come."""


@dataclass
class Soaked:
    """All that was seen."""

    plan: Plan
    capacity_per_s: float = 0.0
    seconds: list[dict[str, Any]] = field(default_factory=list)
    """By second: the phase, what clients saw, what workers said."""
    refused_by_workers: int = 0
    refused_by_clients: int = 0
    other_errors: dict[str, int] = field(default_factory=dict)
    answered: int = 0
    unknown: int = 0
    wrong_keys: list[str] = field(default_factory=list)
    egress_read: int = 0
    recovered_s: float | None = None
    machine: dict[str, Any] = field(default_factory=dict)


class LoadProcess:
    """A client process; see `load`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._done = asyncio.Event()
        self.ready = asyncio.Event()
        self.seconds: list[dict[str, Any]] = []
        """What it has told and nobody has taken yet."""
        self.totals: dict[str, Any] = {}

    async def read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            told = json.loads(line)
            if "second" in told:
                self.seconds.append(told["second"])
            elif "totals" in told:
                self.totals = told["totals"]
            elif "ready" in told:
                self.ready.set()
            elif "done" in told:
                self._done.set()
        self._done.set()
        self.ready.set()

    async def do(self, what: str, **details: Any) -> None:
        assert self._process.stdin is not None
        self._done.clear()
        self._process.stdin.write(json.dumps({"do": what, **details}).encode() + b"\n")
        await self._process.stdin.drain()
        await self._done.wait()
        if self._process.returncode is not None:
            raise RuntimeError(f"a client process ended with {self._process.returncode}")


class Soak:
    def __init__(self, plan: Plan, cluster: Cluster, redis_pid: int | None) -> None:
        self._plan = plan
        self._cluster = cluster
        self._redis_pid = redis_pid
        self.soaked = Soaked(plan)
        self.phase = "start"
        self._clients: list[LoadProcess] = []
        self._slow: LoadProcess
        self._begun_s = time.monotonic()

    async def run(self, console: Console) -> Soaked:
        plan, soaked = self._plan, self.soaked
        async with AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            for seed in range(plan.clients + 1):
                self._clients.append(await stack.enter_async_context(self._load(tasks, seed)))
            *self._clients, self._slow = self._clients
            watching = tasks.create_task(self._watch(console))
            reading = tasks.create_task(self._read_egress())
            await self._measure()
            watching.cancel()
            reading.cancel()
            await self._count()
        soaked.machine = machine.describe()
        return soaked

    async def _measure(self) -> None:
        plan, soaked = self._plan, self.soaked
        self.phase = "warm-up"
        await self._all("closed", callers=CALLERS, seconds=min(3.0, plan.capacity_s))
        self.phase = "capacity"
        began_s = time.monotonic()
        await self._all("closed", callers=CALLERS, seconds=plan.capacity_s)
        took_s = time.monotonic() - began_s
        await asyncio.sleep(1.1)
        soaked.capacity_per_s = self._answered_in("capacity") / took_s
        calm_per_s = soaked.capacity_per_s / 2 / plan.clients
        self.phase = "baseline"
        await self._all("open", rate_per_s=calm_per_s, seconds=plan.baseline_s)
        self.phase = "overload"
        rate_per_s = OVERLOAD * soaked.capacity_per_s / plan.clients
        async with asyncio.TaskGroup() as group:
            group.create_task(self._slow.do("slow", seconds=plan.overload_s))
            group.create_task(self._overload(rate_per_s, calm_per_s))

    async def _overload(self, rate_per_s: float, calm_per_s: float) -> None:
        plan = self._plan
        async with asyncio.TaskGroup() as group:
            overload = group.create_task(
                self._all("open", rate_per_s=rate_per_s, seconds=plan.overload_s)
            )
            await asyncio.wait([overload], timeout=plan.overload_s)
            # The calls are made; what is still under way belongs to what comes after.
            self.phase = "after"
            over_s = time.monotonic()
        await self._all("open", rate_per_s=calm_per_s, seconds=plan.after_s)
        self.soaked.recovered_s = self._recovery(over_s)

    def _recovery(self, over_s: float) -> float | None:
        """Return how long after the overload the first of some calm seconds came."""
        baseline = [each["p99_ms"] for each in self._of("baseline") if each["answered"]]
        if not baseline:
            return None
        bound_ms = 2 * percentile(sorted(baseline), 0.9) + 50
        calm = 0
        for each in self._of("after"):
            calm = calm + 1 if each["answered"] and each["p99_ms"] <= bound_ms else 0
            if calm == CALM_S:
                return float(max(0.0, each["at_s"] + self._begun_s - over_s - CALM_S))
        return None

    def _of(self, phase: str) -> list[dict[str, Any]]:
        return [each for each in self.soaked.seconds if each["phase"] == phase]

    def _answered_in(self, phase: str) -> int:
        return sum(each["answered"] for each in self._of(phase))

    async def _all(self, what: str, **details: Any) -> None:
        async with asyncio.TaskGroup() as group:
            for each in self._clients:
                group.create_task(each.do(what, **details))

    @asynccontextmanager
    async def _load(self, tasks: asyncio.TaskGroup, seed: int) -> AsyncIterator[LoadProcess]:
        addresses = json.dumps(self._cluster.addresses())
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.soak.load", addresses),
            *(str(self._plan.keys), str(seed)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=2**26,
            cwd=machine.ROOT,
        )
        load = LoadProcess(process)
        reading = tasks.create_task(load.read())
        try:
            async with asyncio.timeout(PATIENCE_S):
                await load.ready.wait()
            yield load
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()
            reading.cancel()

    # What is seen

    async def _watch(self, console: Console) -> None:
        with console.status("soak") as status:
            while True:
                await asyncio.sleep(1.0)
                second = await self._look()
                self.soaked.seconds.append(second)
                status.update(_line(second, self.soaked))

    async def _look(self) -> dict[str, Any]:
        latencies: list[int] = []
        refused: Counter[str] = Counter()
        offered = skipped = answered = 0
        for load in (*self._clients, self._slow):
            told, load.seconds = load.seconds, []
            for each in told:
                offered += each["offered"]
                skipped += each["skipped"]
                refused.update(each["refused"])
                answered += len(each["latencies_ms"])
                if load is not self._slow:
                    latencies += each["latencies_ms"]
        self._note_refused(refused)
        latencies.sort()
        workers = [await self._look_at(each.pid, each.address) for each in self._cluster.workers]
        return {
            "at_s": round(time.monotonic() - self._begun_s, 1),
            "phase": self.phase,
            "offered": offered,
            "skipped": skipped,
            "answered": answered,
            "refused": dict(refused),
            "p50_ms": percentile(latencies, 0.5),
            "p99_ms": percentile(latencies, 0.99),
            "workers": workers,
            "redis_mb": None if self._redis_pid is None else _rss_mb(self._redis_pid),
        }

    def _note_refused(self, refused: Mapping[str, int]) -> None:
        for code, count in refused.items():
            if code == "overloaded":
                self.soaked.refused_by_clients += count
            else:
                others = self.soaked.other_errors
                others[code] = others.get(code, 0) + count

    async def _look_at(self, pid: int, address: str) -> dict[str, Any]:
        async with UnaryClient(address) as unary:
            report = await unary.status()
        counters = report.counters
        return {
            "rss_mb": _rss_mb(pid),
            "cache_mb": round(counters.get("cache_bytes", 0) / 2**20, 2),
            "queued": int(counters.get("queued", 0)),
            "queue_longest": max(report.queued.values(), default=0),
            "in_flight": int(counters["in_flight"]),
            "refused": int(counters.get("refused", 0)),
            "clients": int(counters["clients"]),
        }

    async def _read_egress(self) -> None:
        """Read a little, slowly: what is not read in time is dropped, and hinders nobody."""
        positions: dict[str, int] = {}
        address = self._cluster.workers[0].address
        while True:
            await asyncio.sleep(1.0)
            try:
                async with UnaryClient(address) as unary:
                    request = EgressRequest(egress=EGRESS, positions=positions, limit=5)
                    page = await unary.read_egress(request)
            except SubletError:
                positions = {}  # Too slow even for what is kept.
                continue
            positions = dict(page.next)
            self.soaked.egress_read += sum(each.count for each in page.entries)

    # At the end

    async def _count(self) -> None:
        """Compare what each key holds with what clients were told."""
        soaked = self.soaked
        answered: Counter[str] = Counter()
        unknown: Counter[str] = Counter()
        for load in (*self._clients, self._slow):
            await load.do("totals")
            answered.update(load.totals["answered"])
            unknown.update(load.totals["unknown"])
        last = await self._look()
        last["phase"] = "end"
        soaked.seconds.append(last)
        soaked.answered, soaked.unknown = answered.total(), unknown.total()
        soaked.refused_by_workers = sum(each["refused"] for each in last["workers"])
        keys = sorted({*answered, *unknown})
        async with self._cluster.client() as client:
            for start in range(0, len(keys), KEYS_READ_AT_ONCE):
                some = keys[start : start + KEYS_READ_AT_ONCE]
                for key, held in zip(some, await _held(client, some), strict=True):
                    if not answered[key] <= held <= answered[key] + unknown[key]:
                        soaked.wrong_keys.append(f"{key}: {held}, answered {answered[key]}")


async def _held(client: Client, keys: list[str]) -> list[int]:
    return [int(each) for each in await client.call_many(work, keys, [(0, 0)] * len(keys))]


def _rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGESIZE") / 2**20, 2)


def _line(second: Mapping[str, Any], soaked: Soaked) -> str:
    workers = second["workers"]
    return (
        f"{second['at_s']:.0f} s {second['phase']}: offered {second['offered']}/s, "
        f"answered {second['answered']}/s of {soaked.capacity_per_s:.0f}/s, "
        f"refused {sum(second['refused'].values())}/s, p99 {second['p99_ms']} ms, "
        f"in flight {[each['in_flight'] for each in workers]}, "
        f"memory {[each['rss_mb'] for each in workers]} MB"
    )


async def soak(plan: Plan, console: Console) -> Soaked:
    """Run a plan, from the first process to the last."""
    async with AsyncExitStack() as stack:
        bounds = ("store", "in_flight_max", "queue_max", "egress_max")
        settings: dict[str, object] = {name: getattr(plan, name) for name in bounds}
        # Workers that have too much to do, on a machine that has too much to do, are not dead.
        settings |= {"heartbeat_ms": 500, "member_term_ms": 15_000}
        redis_pid = None
        if plan.store == "redis":
            server = stack.enter_context(RedisServer(appendfsync="always"))
            settings["redis_url"] = server.url
            redis_pid = await _redis_pid(server.url)
        folder = stack.enter_context(TemporaryDirectory(prefix="sublet-soak-"))
        cluster = await stack.enter_async_context(
            running_cluster(Path(folder), plan.workers, app="benchmarks.soak.app:app", **settings)
        )
        return await Soak(plan, cluster, redis_pid).run(console)


async def _redis_pid(url: str) -> int:
    from redis.asyncio import Redis

    async with Redis.from_url(url) as connection:
        return int((await connection.info("server"))["process_id"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of overload")
    parser.add_argument("--store", choices=("memory", "sqlite", "redis"), default="redis")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/soak.*")
    return parser.parse_args()


def main() -> int:
    options = _options()
    exit_on_terminate()
    console = Console()
    plan = Plan(
        store=options.store,
        workers=options.workers,
        clients=options.clients,
        keys=options.keys,
        overload_s=options.minutes * 60,
    )
    console.print(
        f"soak: {plan.store}, {plan.workers} workers, {COST_MS} ms a message, "
        f"{options.minutes:g} minutes of overload"
    )
    soaked = uvloop.run(soak(plan, console))
    verdict: Verdict = judge(soaked)
    path = write(soaked, verdict, keep=options.keep)
    console.print(path.with_suffix(".md").read_text())
    console.print(f"kept in {path}")
    return 0 if verdict.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
