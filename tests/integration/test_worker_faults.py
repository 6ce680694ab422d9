"""Workers that die, freeze, stop and join in the middle of load: every count stays exact."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from sublet.statestore.sqlite.store import SqliteStore
from tests.integration import count_app
from tests.integration.cluster import running_cluster, until
from tests.integration.worker_load import Load, rounds_more, under_load

APP = "tests.integration.count_app:app"
TAKEOVER_WITHIN_S = 20.0


@pytest.mark.parametrize(("seed", "workers", "lane"), [(1, 2, 1), (2, 3, 0), (3, 3, 1)])
async def test_killed_workers_lose_and_double_nothing(
    tmp_path: Path, seed: int, workers: int, lane: int
) -> None:
    chance = random.Random(seed)
    async with running_cluster(tmp_path, app=APP, workers=workers, lane=lane) as cluster:

        async def kill_some(load: Load) -> None:
            for _ in range(workers - 1):
                chance.choice(cluster.living).kill()
                await rounds_more(load, chance.randint(1, 20))

        load = await under_load(cluster, seed, kill_some)
        assert load.longest_s < TAKEOVER_WITHIN_S


async def test_a_killed_worker_that_is_started_again_gets_its_share_back(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, app=APP, workers=2) as cluster:

        async def restart(load: Load) -> None:
            cluster.workers[0].kill()
            cluster.add_worker()
            await cluster.ready()

        await under_load(cluster, 4, restart)
        shares = [len((await cluster.status(each)).partitions) for each in cluster.living]
        assert max(shares) - min(shares) <= len(count_app.app.functions)


async def test_all_workers_killed_at_once_come_back_with_everything(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, app=APP, workers=2) as cluster:

        async def kill_all(load: Load) -> None:
            for worker in cluster.workers:
                worker.kill()
            for _ in range(2):
                cluster.add_worker()
            await cluster.ready()

        await under_load(cluster, 5, kill_all)


async def test_a_frozen_worker_is_fenced_when_it_wakes(tmp_path: Path) -> None:
    """It is taken for dead; when it goes on, it must not believe that it owns anything."""
    async with running_cluster(tmp_path, app=APP, workers=3) as cluster:

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
        assert "after being declared dead" in cluster.log


async def test_all_workers_frozen_at_once_go_on(tmp_path: Path) -> None:
    """Each of them sees the others' heartbeats stand still."""
    async with running_cluster(tmp_path, app=APP, workers=2) as cluster:

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
    async with running_cluster(tmp_path, app=APP, workers=1) as cluster:

        async def join(load: Load) -> None:
            cluster.add_worker()
            await cluster.ready()

        await under_load(cluster, 8, join)
        for worker in cluster.workers:
            assert (await cluster.status(worker)).counters["consumed"] > 0


async def test_a_worker_that_is_asked_to_stop_hands_over_under_load(tmp_path: Path) -> None:
    # Nobody dies here, and on a busy machine nobody is to be taken for dead.
    async with running_cluster(tmp_path, app=APP, workers=3, member_term_ms=20_000) as cluster:

        async def stop_some(load: Load) -> None:
            for worker in cluster.workers[:2]:
                worker.terminate()
                assert await worker.ended() == 0
                await rounds_more(load, 5)
            await cluster.ready()

        load = await under_load(cluster, 9, stop_some)
        assert load.longest_s < TAKEOVER_WITHIN_S
        assert "declared dead" not in cluster.log


async def test_a_partition_that_somebody_took_for_a_moment_comes_back_with_everything(
    tmp_path: Path,
) -> None:
    """Its owner is fenced and takes it again; nobody else has seen it move."""
    async with running_cluster(tmp_path, app=APP, workers=2) as cluster:

        async def take_some(load: Load) -> None:
            store = SqliteStore(tmp_path / "sublet.db")
            try:
                for name in ("count", "count_batch", "forward", "relay"):
                    for index in range(8):
                        await store.acquire(f"count/{name}/{index}", "somebody")
                    await rounds_more(load, 3)
            finally:
                await store.close()

        load = await under_load(cluster, 10, take_some)
        assert load.longest_s < TAKEOVER_WITHIN_S
        assert "lost a partition" in cluster.log


async def test_timers_of_a_killed_worker_fire_once(tmp_path: Path) -> None:
    keys = [f"key{number}" for number in range(60)]
    delays_ms = [0, 1, 5, 200, 400, 700, 1_000]
    async with (
        running_cluster(tmp_path, app=APP, workers=2) as cluster,
        cluster.client() as client,
    ):
        await client.call_many(count_app.remind, keys, [delays_ms] * len(keys))
        cluster.workers[0].kill()
        counts: list[int] = []

        async def all_fired() -> bool:
            counts[:] = await client.call_many(count_app.count, keys, [0] * len(keys))
            return min(counts) >= len(delays_ms)

        await until(all_fired)
        # Each key's last timer is the latest of all: none can still be on its way.
        assert counts == [len(delays_ms)] * len(keys)


async def test_an_idempotency_key_is_remembered_by_the_next_owner(tmp_path: Path) -> None:
    keys = [f"key{number}" for number in range(20)]
    async with running_cluster(tmp_path, app=APP, workers=2) as cluster:
        for _ in range(2):
            async with cluster.client() as client, asyncio.TaskGroup() as tasks:
                calls = [
                    tasks.create_task(client.call(count_app.count, key, 5, idempotency_key="1"))
                    for key in keys
                ]
            assert [each.result() for each in calls] == [5] * len(keys)
            cluster.living[0].kill()
            cluster.add_worker()
            await cluster.ready()


async def test_a_function_that_is_not_deployed_any_more_keeps_no_worker_from_its_work(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path, app=APP, log_level="info") as cluster:
        cluster.workers[0].terminate()
        await cluster.workers[0].ended()
        worker = cluster.add_worker("tests.integration.count_app:less")
        mark = f'"pid": {worker.pid},'

        await until(
            lambda: any("ready" in line and mark in line for line in cluster.log.splitlines())
        )
