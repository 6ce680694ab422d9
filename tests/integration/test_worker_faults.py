"""Workers that die, freeze, stop and join in the middle of load: every count stays exact."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sublet import Client
from tests.integration import apps
from tests.integration.cluster import Cluster, running_cluster, until

KEYS = [f"key{number}" for number in range(64)]
TAKEOVER_WITHIN_S = 8.0


class Load:
    """Calls, sends and sends between functions, with a record of what must have happened."""

    def __init__(self, client: Client, seed: int) -> None:
        self.expected: Counter[str] = Counter()
        self.forwarded: Counter[str] = Counter()
        self.rounds = 0
        self.longest_s = 0.0
        self._client = client
        self._chance = random.Random(seed)
        self._stop = asyncio.Event()
        self._replies: dict[str, list[int]] = {key: [] for key in KEYS}

    async def run(self) -> None:
        """Keep four rounds under way until stopped; every call must return."""
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
                self._client.call_many(apps.count_batch, chosen, [1] * len(chosen))
            )
            tasks.create_task(self._client.call(apps.forward, chosen[0], amounts))
            tasks.create_task(self._client.send(apps.count_batch, "once", 1))
        for key, reply in zip(chosen, counts.result(), strict=True):
            self._replies[key].append(reply)

    async def check(self) -> None:
        """Compare everything with what was asked for, once nothing is on its way any more."""
        for key, replies in self._replies.items():
            # Every call was answered, and no two saw the same count.
            assert sorted(replies) == list(range(1, self.expected[key] + 1)), key
        keys = [*KEYS, "once"]

        async def arrived() -> bool:
            forwarded = await self._client.call_many(apps.count, keys, [0] * len(keys))
            return sum(forwarded) >= self.forwarded.total()

        await until(arrived)
        counted = await self._client.call_many(apps.count_batch, keys, [0] * len(keys))
        forwarded = await self._client.call_many(apps.count, keys, [0] * len(keys))
        assert dict(zip(keys, counted, strict=True)) == {key: self.expected[key] for key in keys}
        assert dict(zip(keys, forwarded, strict=True)) == {key: self.forwarded[key] for key in keys}


Disturb = Callable[[Load], Awaitable[None]]


async def under_load(cluster: Cluster, seed: int, disturb: Disturb) -> Load:
    """Disturb the cluster when the load is well under way; check when it has passed."""
    async with asyncio.timeout(50), cluster.client() as client:
        load = Load(client, seed)
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


@pytest.mark.parametrize(("seed", "workers"), [(1, 2), (2, 3), (3, 3)])
async def test_killed_workers_lose_and_double_nothing(
    tmp_path: Path, seed: int, workers: int
) -> None:
    chance = random.Random(seed)
    async with running_cluster(tmp_path, workers) as cluster:

        async def kill_some(load: Load) -> None:
            for _ in range(workers - 1):
                chance.choice(cluster.living).kill()
                await rounds_more(load, chance.randint(1, 20))

        load = await under_load(cluster, seed, kill_some)
        assert load.longest_s < TAKEOVER_WITHIN_S


async def test_a_killed_worker_that_is_started_again_gets_its_share_back(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 2) as cluster:

        async def restart(load: Load) -> None:
            cluster.workers[0].kill()
            cluster.add_worker()
            await cluster.ready()

        await under_load(cluster, 4, restart)
        shares = [len((await cluster.status(each)).partitions) for each in cluster.living]
        assert max(shares) - min(shares) <= len(apps.app.functions)


async def test_all_workers_killed_at_once_come_back_with_everything(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 2) as cluster:

        async def kill_all(load: Load) -> None:
            for worker in cluster.workers:
                worker.kill()
            for _ in range(2):
                cluster.add_worker()
            await cluster.ready()

        await under_load(cluster, 5, kill_all)


async def test_a_frozen_worker_is_fenced_when_it_wakes(tmp_path: Path) -> None:
    """It is taken for dead; when it goes on, it must not believe that it owns anything."""
    async with running_cluster(tmp_path, 3) as cluster:

        async def freeze(load: Load) -> None:
            frozen = cluster.workers[1]
            await cluster.freeze(frozen)
            try:
                # Others answer for what it had: rounds touch all partitions.
                await rounds_more(load)
            finally:
                frozen.thaw()
            await cluster.ready()

        load = await under_load(cluster, 6, freeze)
        assert load.longest_s < TAKEOVER_WITHIN_S
        assert "was taken for dead" in cluster.log


async def test_all_workers_frozen_at_once_go_on(tmp_path: Path) -> None:
    """Each of them sees the others' heartbeats stand still."""
    async with running_cluster(tmp_path, 2) as cluster:

        async def freeze_all(load: Load) -> None:
            for worker in cluster.workers:
                worker.freeze()
            # Longer than a term; nothing can happen meanwhile that could be waited for.
            await asyncio.sleep(1.0)
            for worker in cluster.workers:
                worker.thaw()
            await cluster.ready()

        await under_load(cluster, 7, freeze_all)


async def test_a_worker_that_joins_takes_its_share_under_load(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster:

        async def join(load: Load) -> None:
            cluster.add_worker()
            await cluster.ready()

        await under_load(cluster, 8, join)
        for worker in cluster.workers:
            assert (await cluster.status(worker)).counters["consumed"] > 0


async def test_a_worker_that_is_asked_to_stop_hands_over_under_load(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 3) as cluster:

        async def stop_some(load: Load) -> None:
            for worker in cluster.workers[:2]:
                worker.terminate()
                assert await worker.ended() == 0
                await rounds_more(load, 5)
            await cluster.ready()

        load = await under_load(cluster, 9, stop_some)
        assert load.longest_s < TAKEOVER_WITHIN_S
        assert "taken for dead" not in cluster.log
