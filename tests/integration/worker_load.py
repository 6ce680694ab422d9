"""Load on a cluster, with a record of what must have come of it."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from sublet import Client
from tests.integration import count_app
from tests.integration.cluster import Cluster, until

KEYS = [f"key{number}" for number in range(64)]


class Load:
    """Calls, sends and sends between functions, with a record of what must have happened."""

    def __init__(self, cluster: Cluster, client: Client, seed: int) -> None:
        self.expected: Counter[str] = Counter()
        self.forwarded: Counter[str] = Counter()
        self.relayed: Counter[str] = Counter()
        self.rounds = 0
        self.longest_s = 0.0
        self._cluster = cluster
        self._client = client
        self._chance = random.Random(seed)
        self._stop = asyncio.Event()
        self._replies: dict[str, list[int]] = {key: [] for key in KEYS}

    async def run(self) -> None:
        """Keep four rounds under way until stopped; every call must return. May be run again."""
        self._stop.clear()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(4):
                tasks.create_task(self._feed())

    def stop(self) -> None:
        self._stop.set()

    async def _feed(self) -> None:
        while not self._stop.is_set():
            started_s = time.monotonic()
            await self._round()
            self.longest_s = max(self.longest_s, time.monotonic() - started_s)
            self.rounds += 1

    async def _round(self) -> None:
        chosen = self._chance.choices(KEYS, k=40)
        amounts = {key: self._chance.randint(1, 3) for key in self._chance.sample(KEYS, 5)}
        for key in chosen:
            self.expected[key] += 1
        self.expected["once"] += 1
        self.forwarded.update(amounts)
        async with asyncio.TaskGroup() as tasks:
            counts = tasks.create_task(
                self._client.call_many(count_app.count_batch, chosen, [1] * len(chosen))
            )
            tasks.create_task(self._client.call(count_app.forward, chosen[0], amounts))
            tasks.create_task(self._client.send(count_app.count_batch, "once", 1))
            relayed = tasks.create_task(self._client.call(count_app.relay, chosen[0], 1))
        assert relayed.result() > 0
        self.relayed[chosen[0]] += 1
        for key, reply in zip(chosen, counts.result(), strict=True):
            self._replies[key].append(reply)

    async def check(self) -> None:
        """Compare everything with what was asked for, once nothing is on its way any more."""
        for key, replies in self._replies.items():
            # Every call was answered, and no two saw the same count.
            assert sorted(replies) == list(range(1, self.expected[key] + 1)), key
        keys = [*KEYS, "once"]

        async def arrived() -> bool:
            forwarded: list[int] = await self._client.call_many(
                count_app.count, keys, [0] * len(keys)
            )
            return sum(forwarded) >= self.forwarded.total()

        await until(arrived)
        counted = await self._client.call_many(count_app.count_batch, keys, [0] * len(keys))
        forwarded = await self._client.call_many(count_app.count, keys, [0] * len(keys))
        assert dict(zip(keys, counted, strict=True)) == {key: self.expected[key] for key in keys}
        assert dict(zip(keys, forwarded, strict=True)) == {key: self.forwarded[key] for key in keys}
        relayed = await self._client.call_many(
            count_app.count, [f"relayed-{key}" for key in keys], [0] * len(keys)
        )
        assert relayed == [self.relayed[key] for key in keys]
        emitted = await self._cluster.egress("relayed")
        expected = [f"{key} {n}" for key in keys for n in range(1, self.relayed[key] + 1)]
        assert sorted(emitted) == sorted(expected)


Disturb = Callable[[Load], Awaitable[None]]


async def under_load(cluster: Cluster, seed: int, disturb: Disturb) -> Load:
    """Disturb the cluster when the load is well under way; check when it has passed."""
    async with asyncio.timeout(200), cluster.client() as client:
        load = Load(cluster, client, seed)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run())
            await rounds_more(load)
            await disturb(load)
            await rounds_more(load)
            load.stop()
        await load.check()
    return load


async def rounds_more(load: Load, count: int = 20) -> None:
    wanted = load.rounds + count
    await until(lambda: load.rounds >= wanted)
