"""Two workers, and loads for them: for the experiments with leases.

Load is either open, at a rate, whether or not anybody keeps up, or closed: whoever is answered asks
again.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate, count, islice
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness.sublet_cases import Cluster
from benchmarks.harness.workload import SEED, ArrivalSchedule, percentile
from benchmarks.leases.app import COUNTS
from sublet import Client
from sublet.functions.address import partition_index_of, partition_name
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.frames import Topology

APP = "benchmarks.leases.app:app"
STATIC = "static"
CALM_SHARE = 0.05
"""Of the messages of a flood goes to the other worker."""
KEYS = 64
ZIPF_EXPONENT = 1.0
HOT_FEEDERS = 8
HOT_BATCH = 20
PROBE_EVERY_S = 0.02
DRAIN_WAIT_S = 60.0
WARM_CALLS = 20
ROOM = {
    # All that comes is taken: what is measured is where it runs, not whether it is let in.
    "SUBLET_IN_FLIGHT_MAX": "200000",
    "SUBLET_QUEUE_MAX": "200000",
    "SUBLET_CLIENT_CREDIT": "65536",
}


# Two workers


class Pair:
    """Two workers with one binding, and a client; `busy` and `calm` are their names."""

    def __init__(self, client: Client, cluster: Cluster, addresses: Sequence[str]) -> None:
        self.client = client
        self.addresses = list(addresses)
        self.pids = [each.pid for each in cluster.workers]
        self.busy, self.calm = sorted(client.topology.workers)

    def keys(self, function: str, worker: str, wanted: int) -> list[str]:
        return keys_of(self.client.topology, function, worker, wanted)

    def spread_keys(self, function: str, wanted: int) -> list[str]:
        """Return keys of both workers in turn."""
        each = (wanted + 1) // 2
        both = (self.keys(function, worker, each) for worker in (self.busy, self.calm))
        return [key for two in zip(*both, strict=True) for key in two][:wanted]

    async def warm_up(self, function: str) -> Counter[str]:
        """Let both workers learn what the function costs, as they would have long ago; return
        what was sent, by key."""
        sent: Counter[str] = Counter()
        for worker in (self.busy, self.calm):
            for key in self.keys(function, worker, WARM_CALLS):
                await self.client.call(function, key, 1)
                sent[key] += 1
        return sent

    async def leases(self) -> dict[str, Any]:
        """Return, by function, which policies were followed and why, and how often what was lent
        came to what; both workers together."""
        counts: dict[str, Counter[str]] = {}
        choices: dict[str, set[str]] = {}
        for address in self.client.topology.workers.values():
            async with UnaryClient(address) as asked:
                report = await asked.status()
            for name, told in report.leases.items():
                counts.setdefault(name, Counter()).update(told.counts)
                choices.setdefault(name, set()).add(told.reason or told.choice)
        return {
            name: {"choices": sorted(choices[name]), **found}
            for name, found in counts.items()
            if found
        }


def keys_of(topology: Topology, function: str, worker: str, wanted: int) -> list[str]:
    """Return so many keys whose partitions a worker owns, always the same ones."""
    (info,) = [each for each in topology.functions if each.name == function]
    owned = {
        index
        for index in range(info.partition_count)
        if topology.placement.get(partition_name(function, index)) == worker
    }
    if not owned:
        raise ValueError(f"{worker} owns no partition of {function}")
    names = (f"k{number}" for number in count())
    mine = (key for key in names if partition_index_of(key, info.partition_count) in owned)
    return list(islice(mine, wanted))


@asynccontextmanager
async def pair(
    binding: str, target: str = APP, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Pair]:
    given = {"SUBLET_BINDING": binding, "SUBLET_LOG_LEVEL": "error", **(settings or ROOM)}
    cluster = Cluster("mem", 2, target=target, settings=given)
    try:
        addresses = await cluster.addresses()
        async with Client(addresses) as client:
            yield Pair(client, cluster, addresses)
    finally:
        await asyncio.to_thread(cluster.close)


async def are_exact(client: Client, function: str, sent: Mapping[str, int]) -> bool:
    """Tell whether every key's state is the sum of what was sent to it."""
    keys = list(sent)
    found = await client.call_many(function, keys, [0] * len(keys))
    wrong = {
        key: (sent[key], total)
        for key, total in zip(keys, found, strict=True)
        if total != sent[key]
    }
    for key, (expected, total) in list(wrong.items())[:5]:
        print(f"{function} {key}: {total}, but {expected} were sent", file=sys.stderr, flush=True)
    return not wrong


def cpu_s(pid: int) -> float:
    """Return the CPU time of all threads of a process, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


# Open loads


class Skew:
    """Draws keys: few of them often, nearly all in partitions of the busy worker."""

    def __init__(self, busy: Sequence[str], calm: Sequence[str], seed: int = SEED) -> None:
        self._chance = random.Random(seed)
        self._busy, self._calm = busy, calm
        self._weights = list(accumulate((rank + 1) ** -ZIPF_EXPONENT for rank in range(len(busy))))

    def draw(self) -> str:
        if self._chance.random() < CALM_SHARE:
            return self._chance.choice(self._calm)
        return self._chance.choices(self._busy, cum_weights=self._weights)[0]


class Flood:
    """Messages at a rate, whether or not anybody keeps up; then waits until all are answered."""

    def __init__(self, pair_: Pair, function: str, *, turned: bool = False) -> None:
        """With `turned`, the calm worker is the one that gets nearly everything."""
        self._pair = pair_
        self._function = function
        often, seldom = pair_.busy, pair_.calm
        if turned:
            often, seldom = seldom, often
        self._skew = Skew(pair_.keys(function, often, KEYS), pair_.keys(function, seldom, KEYS))
        self.sent: Counter[str] = Counter()
        """By key, what all states should add up to."""
        self.ended: list[tuple[float, float]] = []
        """(seconds after the beginning, latency in seconds) of what was answered."""

    async def run(self, rate_per_s: float, seconds: float) -> None:
        self.sent += await self._pair.warm_up(self._function)
        start_s = time.perf_counter() + 0.1
        schedule = ArrivalSchedule.lasting(seconds, rate_per_s=rate_per_s, start_s=start_s)
        client, function, done = self._pair.client, self._function, self.ended

        async def one(key: str, due_s: float) -> None:
            await client.call(function, key, 1)
            now_s = time.perf_counter()
            done.append((now_s - start_s, now_s - due_s))

        started = 0
        async with asyncio.timeout(seconds + DRAIN_WAIT_S), asyncio.TaskGroup() as calls:
            while started < schedule.count:
                due = schedule.due_count(time.perf_counter())
                for number in range(started, due):
                    key = self._skew.draw()
                    self.sent[key] += 1
                    calls.create_task(one(key, schedule.due_s(number)))
                started = due
                next_s = schedule.due_s(min(started, schedule.count - 1))
                await asyncio.sleep(max(0.0005, next_s - time.perf_counter()))


def flood_figures(
    ended: Sequence[tuple[float, float]], seconds: float, slo_ms: float
) -> dict[str, float]:
    """Return the figures of a flood that lasted so long; see `Flood.ended`."""
    latencies_ms = sorted(latency_s * 1000 for _, latency_s in ended)
    return {
        "messages": len(latencies_ms),
        "p50_ms": percentile(latencies_ms, 0.5),
        "p99_ms": percentile(latencies_ms, 0.99),
        "missed": sum(1 for each in latencies_ms if each > slo_ms) / len(latencies_ms),
        "done_per_s": sum(1 for at_s, _ in ended if at_s <= seconds) / seconds,
        "drained_s": max(at_s for at_s, _ in ended) - seconds,
    }


async def capacity_per_s(cost_ms: int, seconds: float) -> float:
    """Return how many messages a second one worker can do, when there is always more to do."""
    function, done = COUNTS[cost_ms], 0
    async with pair(STATIC) as two:
        await two.warm_up(function)
        keys = two.keys(function, two.busy, KEYS)
        started_s = time.perf_counter()

        async def feed(own: Sequence[str]) -> None:
            nonlocal done
            while time.perf_counter() < started_s + seconds:
                await two.client.call_many(function, own, [1] * len(own))
                done += len(own)

        async with asyncio.TaskGroup() as feeders:
            for place in range(4):
                feeders.create_task(feed(keys[place::4]))
        return done / (time.perf_counter() - started_s)


# Closed loads


async def feed_key(client: Client, function: str, key: str, seconds: float) -> tuple[int, float]:
    """Return how many messages were done, and in how many seconds."""
    done = 0
    started_s = time.perf_counter()

    async def feed() -> None:
        nonlocal done
        while time.perf_counter() < started_s + seconds:
            await client.call_many(function, [key] * HOT_BATCH, [1] * HOT_BATCH)
            done += HOT_BATCH

    async with asyncio.timeout(seconds + DRAIN_WAIT_S), asyncio.TaskGroup() as feeders:
        for _ in range(HOT_FEEDERS):
            feeders.create_task(feed())
    return done, time.perf_counter() - started_s


async def probe(address: str, seconds: float) -> list[float]:
    """Return how long a worker's loop takes to answer, in ms, every 20 ms."""
    times_ms = []
    async with UnaryClient(address) as asked:
        await asked.status()
        until_s = time.perf_counter() + seconds
        while (started_s := time.perf_counter()) < until_s:
            await asked.status()
            times_ms.append((time.perf_counter() - started_s) * 1000)
            await asyncio.sleep(PROBE_EVERY_S)
    return times_ms


class Usage(NamedTuple):
    """What a sample of a closed loop came to."""

    per_s: float
    cpu_us: float
    """CPU time of both workers for each message."""
    other_us: float
    """That of the one that did less: what is lent is done there."""
    p50_ms: float


async def sample(
    two: Pair, function: str, keys: Sequence[str], *, callers: int, batch: int, seconds: float
) -> tuple[Usage, int]:
    """Let callers ask again as soon as they are answered, each with so many messages at once;
    return what it came to, and how many messages there were."""
    rounds = 0
    latencies_s: list[float] = []
    before_s = [cpu_s(pid) for pid in two.pids]
    started_s = time.perf_counter()

    async def caller(own: Sequence[str]) -> None:
        nonlocal rounds
        ones = [1] * len(own)
        while (asked_s := time.perf_counter()) < started_s + seconds:
            if batch == 1:
                await two.client.call(function, own[0], 1)
            else:
                await two.client.call_many(function, own, ones)
            latencies_s.append(time.perf_counter() - asked_s)
            rounds += 1

    async with asyncio.timeout(seconds + DRAIN_WAIT_S), asyncio.TaskGroup() as tasks:
        for place in range(callers):
            tasks.create_task(caller(keys[place * batch : (place + 1) * batch]))
    done = rounds * batch
    elapsed_s = time.perf_counter() - started_s
    used_us = [
        (cpu_s(pid) - before) * 1e6 / done for pid, before in zip(two.pids, before_s, strict=True)
    ]
    p50_ms = statistics.median(latencies_s) * 1000
    usage = Usage(done / elapsed_s, sum(used_us), min(used_us), p50_ms)
    return usage, done
