"""Load for the experiments with orders: urgent requests beside bulk, in an open loop.

Arrivals are Poisson with a fixed seed, the same for every order. They do not wait for replies, and
each latency counts from the moment at which its message was meant to arrive.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field

from benchmarks.cameo.app import (
    BULK,
    BULK_LONG,
    FLOW_SLO_MS,
    LONG_SLO_MS,
    LOOKUP_SLO_MS,
)
from benchmarks.harness.workload import percentile
from sublet import Client
from sublet.functions.errors import OverloadedError, SubletError

SEED = 42
KEYS = [f"k{number}" for number in range(1_000)]
BULK_BATCH = 20
WARM_CALLS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What comes each second, and for how long."""

    bulk_per_s: float = 0.0
    bulk_waiting: int = 0
    """Instead of a rate: so many messages of bulk are always on their way."""
    bulk: Sequence[str] = field(default_factory=lambda: BULK)
    flows_per_s: float = 40.0
    lookups_per_s: float = 40.0
    longs_per_s: float = 0.0
    seconds: float = 4.0
    warm_up_s: float = 1.0
    """Part of `seconds`: what was meant to arrive in it is not timed."""


class Latencies:
    """Of one kind of urgent request, by the moment at which it was meant to arrive."""

    def __init__(self, due_ms: float) -> None:
        self._due_ms = due_ms
        self._ended_s: dict[float, float | None] = {}

    def sent(self, due_s: float) -> None:
        self._ended_s[due_s] = None

    def ended(self, due_s: float, latency_s: float) -> None:
        if due_s in self._ended_s:
            self._ended_s[due_s] = latency_s

    def __bool__(self) -> bool:
        return bool(self._ended_s)

    def figures(self, kind: str, now_s: float) -> dict[str, float]:
        """What has not ended yet counts as if it ended now: percentiles are at least so high."""
        ordered = sorted(
            (now_s - due_s if latency_s is None else latency_s) * 1000
            for due_s, latency_s in self._ended_s.items()
        )
        if not ordered:
            return {}
        open_count = sum(1 for each in self._ended_s.values() if each is None)
        met = sum(
            1 for each in self._ended_s.values() if each is not None and each * 1000 <= self._due_ms
        )
        return {
            f"{kind}_p50_ms": percentile(ordered, 0.50),
            f"{kind}_p99_ms": percentile(ordered, 0.99),
            f"{kind}_met": met / len(ordered),
            f"{kind}_open": open_count / len(ordered),
            f"{kind}_count": len(ordered),
        }


class Contention:
    """One case: all clients of a worker, from the first message to the figures."""

    def __init__(self, addresses: Sequence[str], mix: Mix, seed: int = SEED) -> None:
        self._addresses = addresses
        self._mix = mix
        self._seed = seed
        self._bulk_done: list[tuple[float, int]] = []
        self._bulk_refused = 0
        self._urgent_refused = 0
        self._lookups = Latencies(LOOKUP_SLO_MS)
        self._flows = Latencies(FLOW_SLO_MS)
        self._longs = Latencies(LONG_SLO_MS)
        self._timed_from_s = 0.0
        self._until_s = 0.0

    async def run(self) -> dict[str, float]:
        mix = self._mix
        async with AsyncExitStack() as stack:
            urgent = await stack.enter_async_context(Client(list(self._addresses)))
            bulk = [
                await stack.enter_async_context(Client(list(self._addresses))) for _ in mix.bulk
            ]
            await self._warm_up(urgent, bulk[0])
            start_s = time.monotonic() + 0.1
            self._timed_from_s, self._until_s = start_s + mix.warm_up_s, start_s + mix.seconds
            drivers: list[Awaitable[None]] = [
                self._drive("lookup", mix.lookups_per_s, start_s, self._lookup(urgent)),
                self._drive("flow", mix.flows_per_s, start_s, self._start(urgent, "cameo/parse")),
                self._drive("long", mix.longs_per_s, start_s, self._start(urgent, "cameo/render")),
            ]
            if mix.bulk_waiting:
                each = mix.bulk_waiting // BULK_BATCH // len(bulk)
                drivers += [
                    self._keep_busy(client, function)
                    for client, function in zip(bulk, mix.bulk, strict=True)
                    for _ in range(each)
                ]
            for client, function in zip(bulk, mix.bulk, strict=True):
                rate = mix.bulk_per_s / len(mix.bulk) / BULK_BATCH
                drivers.append(self._drive(function, rate, start_s, self._bulk(client, function)))
            await asyncio.gather(*drivers)
            # What comes back after this has been lost, for all that its caller knows.
            await asyncio.sleep(max(FLOW_SLO_MS, LONG_SLO_MS) / 1000)
            return await self._figures(urgent)

    async def _warm_up(self, urgent: Client, bulk: Client) -> None:
        """Let the worker learn costs while nothing else happens, as it would have long ago."""
        names = ["cameo/lookup", *self._mix.bulk[: 0 if self._mix.bulk is BULK_LONG else None]]
        for number in range(WARM_CALLS):
            for name in names:
                await bulk.call(name, KEYS[number])
            await urgent.send("cameo/parse", KEYS[number], time.monotonic())
        if self._mix.longs_per_s or self._mix.bulk is BULK_LONG:
            for number in range(8):
                await urgent.call("cameo/render", KEYS[number], time.monotonic())
                for name in self._mix.bulk:
                    await bulk.call(name, KEYS[number])
        for kind in ("flow", "long"):
            await urgent.call("cameo/ended", message=kind)

    async def _drive(
        self, name: str, rate_per_s: float, start_s: float, send: Callable[[float, str], None]
    ) -> None:
        """Call `send` with the moment of each arrival, at that moment, and a key."""
        if not rate_per_s:
            return
        chance = random.Random(f"{self._seed}/{name}")
        due_s = start_s + chance.expovariate(rate_per_s)
        while due_s < self._until_s:
            wait_s = due_s - time.monotonic()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            now_s = time.monotonic()
            while due_s <= now_s and due_s < self._until_s:
                send(due_s, chance.choice(KEYS))
                due_s += chance.expovariate(rate_per_s)

    async def _keep_busy(self, client: Client, function: str) -> None:
        """Send a batch, and when it is done the next; what is left at the end nobody waits for."""
        chance = random.Random(f"{self._seed}/{function}/keys")
        nothing = [None] * BULK_BATCH
        with suppress(TimeoutError):
            async with asyncio.timeout(self._until_s - time.monotonic()):
                while True:
                    keys = chance.choices(KEYS, k=BULK_BATCH)
                    await client.send_many(function, keys, nothing)
                    self._bulk_done.append((time.monotonic(), BULK_BATCH))

    def _lookup(self, client: Client) -> Callable[[float, str], None]:
        latencies = self._lookups
        tasks: set[asyncio.Task[None]] = set()

        async def one(due_s: float, key: str) -> None:
            try:
                await client.call("cameo/lookup", key)
            except OverloadedError:
                self._urgent_refused += 1
            except SubletError:
                return  # The case has ended.
            else:
                latencies.ended(due_s, time.monotonic() - due_s)

        def send(due_s: float, key: str) -> None:
            if due_s >= self._timed_from_s:
                latencies.sent(due_s)
            task = asyncio.ensure_future(one(due_s, key))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        return send

    def _start(self, client: Client, function: str) -> Callable[[float, str], None]:
        latencies = self._flows if function == "cameo/parse" else self._longs
        tasks: set[asyncio.Task[None]] = set()

        async def one(due_s: float, key: str) -> None:
            try:
                await client.send(function, key, due_s)
            except OverloadedError:
                self._urgent_refused += 1
            except SubletError:
                return

        def send(due_s: float, key: str) -> None:
            if due_s >= self._timed_from_s:
                latencies.sent(due_s)
            task = asyncio.ensure_future(one(due_s, key))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        return send

    def _bulk(self, client: Client, function: str) -> Callable[[float, str], None]:
        chance = random.Random(f"{self._seed}/{function}/keys")
        nothing = [None] * BULK_BATCH
        tasks: set[asyncio.Task[None]] = set()

        async def one() -> None:
            try:
                await client.send_many(function, chance.choices(KEYS, k=BULK_BATCH), nothing)
            except OverloadedError:
                self._bulk_refused += BULK_BATCH
            except SubletError:
                return
            else:
                self._bulk_done.append((time.monotonic(), BULK_BATCH))

        def send(due_s: float, key: str) -> None:
            task = asyncio.ensure_future(one())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        return send

    async def _figures(self, client: Client) -> dict[str, float]:
        now_s = time.monotonic()
        for kind, latencies in (("flow", self._flows), ("long", self._longs)):
            if latencies:
                for due_s, latency_s in await client.call("cameo/ended", message=kind):
                    if due_s + latency_s <= now_s:
                        latencies.ended(due_s, latency_s)
        seconds = self._until_s - self._timed_from_s
        done = sum(
            count for at_s, count in self._bulk_done if self._timed_from_s <= at_s < self._until_s
        )
        return {
            "bulk_per_s": done / seconds,
            "bulk_refused": float(self._bulk_refused),
            "urgent_refused": float(self._urgent_refused),
            **self._flows.figures("flow", now_s),
            **self._lookups.figures("lookup", now_s),
            **self._longs.figures("long", now_s),
        }


async def saturate(addresses: Sequence[str], functions: Sequence[str], seconds: float) -> float:
    """Return how many messages a second a worker can do when there is always more to do."""
    done = 0
    async with Client(list(addresses)) as client:
        for number in range(WARM_CALLS // 6):
            for function in functions:
                await client.call(function, KEYS[number])
        until_s = time.monotonic() + seconds

        async def feed(function: str) -> None:
            nonlocal done
            while True:
                await client.send_many(function, KEYS[:BULK_BATCH], [None] * BULK_BATCH)
                done += BULK_BATCH
                if time.monotonic() >= until_s:
                    return

        started_s = time.monotonic()
        async with asyncio.TaskGroup() as feeders:
            for function in functions:
                for _ in range(2):
                    feeders.create_task(feed(function))
        return done / (time.monotonic() - started_s)


@dataclass(frozen=True, slots=True)
class Presence:
    """From when to when a tenant sends."""

    tenant: str
    start_s: float
    stop_s: float


async def share_out(
    addresses: Sequence[str],
    functions: Mapping[str, str],
    presences: Sequence[Presence],
    *,
    rate_per_s: float,
    bin_s: float,
) -> dict[str, list[float]]:
    """Let each tenant send at a rate; return what is done a second, for each stretch of time."""
    end_s = max(each.stop_s for each in presences)
    bins = {tenant: [0.0] * round(end_s / bin_s) for tenant in functions}
    async with AsyncExitStack() as stack:
        clients = {
            tenant: await stack.enter_async_context(Client(list(addresses))) for tenant in functions
        }
        for tenant, function in functions.items():
            for number in range(WARM_CALLS // 2):
                await clients[tenant].call(function, KEYS[number])
        started_s = time.monotonic()
        tasks: set[asyncio.Task[None]] = set()

        async def one(tenant: str, keys: list[str]) -> None:
            try:
                await clients[tenant].send_many(functions[tenant], keys, [None] * BULK_BATCH)
            except SubletError:
                return  # The case has ended.
            place = int((time.monotonic() - started_s) / bin_s)
            if place < len(bins[tenant]):
                bins[tenant][place] += BULK_BATCH / bin_s

        async def feed(presence: Presence) -> None:
            chance = random.Random(f"{SEED}/{presence.tenant}")
            due_s = started_s + presence.start_s
            while due_s < started_s + presence.stop_s:
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                task = asyncio.ensure_future(
                    one(presence.tenant, chance.choices(KEYS, k=BULK_BATCH))
                )
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                due_s += BULK_BATCH / rate_per_s

        async with asyncio.TaskGroup() as feeders:
            for presence in presences:
                feeders.create_task(feed(presence))
    return bins
