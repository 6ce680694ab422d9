"""Workers on Redis that die, freeze, stop and join, and a Redis that does: every count is exact."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.crc import key_slot

from sublet import UnknownOutcomeError
from tests.integration.cluster import Cluster, running_cluster, until
from tests.integration.worker_load import Load, rounds_more, under_load
from tests.redis_process import RedisClusterProcesses, RedisProcess

APP = "tests.integration.count_app:app"
COUNT, LINGER = "count/count", "count/linger"
PATIENCE_S = 45.0


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisProcess]:
    folder = tmp_path / "redis"
    folder.mkdir()
    process = RedisProcess(folder)
    process.start()
    yield process
    process.kill()


@asynccontextmanager
async def running(
    tmp_path: Path, redis: RedisProcess | RedisClusterProcesses, workers: int
) -> AsyncIterator[Cluster]:
    async with running_cluster(
        tmp_path / "workers",
        app=APP,
        workers=workers,
        store="redis",
        redis_url=redis.url,
        full_sync=1,
    ) as cluster:
        yield cluster


async def test_killed_workers_lose_and_double_nothing(tmp_path: Path, redis: RedisProcess) -> None:
    chance = random.Random(1)
    async with running(tmp_path, redis, 3) as cluster:

        async def kill_some(load: Load) -> None:
            for _ in range(2):
                chance.choice(cluster.living).kill()
                await rounds_more(load, chance.randint(1, 10))

        await under_load(cluster, 1, kill_some)


async def test_a_frozen_worker_is_fenced_when_it_wakes(tmp_path: Path, redis: RedisProcess) -> None:
    async with running(tmp_path, redis, 3) as cluster:

        async def freeze(load: Load) -> None:
            frozen = cluster.workers[1]
            await cluster.freeze(frozen)
            try:
                await rounds_more(load)
            finally:
                frozen.thaw()
            await cluster.ready()

        await under_load(cluster, 2, freeze)
        assert "after being declared dead" in cluster.log


async def test_workers_join_and_stop_under_load(tmp_path: Path, redis: RedisProcess) -> None:
    async with running(tmp_path, redis, 1) as cluster:

        async def change(load: Load) -> None:
            cluster.add_worker()
            await cluster.ready()
            await rounds_more(load, 5)
            cluster.workers[0].terminate()
            assert await cluster.workers[0].ended() == 0
            await cluster.ready()

        await under_load(cluster, 3, change)


async def test_a_redis_that_is_killed_and_comes_back_loses_nothing(
    tmp_path: Path, redis: RedisProcess
) -> None:
    async with running(tmp_path, redis, 2) as cluster:

        async def restart(load: Load) -> None:
            for _ in range(3):
                redis.kill()
                await asyncio.to_thread(redis.start)
                await rounds_more(load, 5)
            await cluster.ready()

        await under_load(cluster, 4, restart)


async def test_a_redis_that_was_emptied_while_nothing_was_written_is_told_and_counted(
    tmp_path: Path, redis: RedisProcess
) -> None:
    async with running(tmp_path, redis, 2) as cluster:
        redis.ask("FLUSHALL")

        async def counted() -> bool:
            return (await cluster.counters())["commit_gaps"] > 0

        await until(lambda: "redis_lost_its_data" in cluster.log)
        await until(counted)


@pytest.mark.parametrize("back_to", ["nothing", "older data"])
async def test_a_client_that_knew_later_owners_is_told_of_lost_data_and_goes_on(
    tmp_path: Path, redis: RedisProcess, back_to: str
) -> None:
    keys = [f"k{number}" for number in range(40)]
    async with running(tmp_path, redis, 2) as cluster, cluster.client() as client:
        await client.call_many(COUNT, keys, [1] * len(keys))
        backup = tmp_path / "backup"
        shutil.copytree(redis.folder / "appendonlydir", backup)
        for _ in range(2):
            cluster.living[0].terminate()
            cluster.add_worker()
            await cluster.ready()
            await client.call_many(COUNT, keys, [1] * len(keys))
        if back_to == "nothing":
            redis.ask("FLUSHALL")
        else:
            redis.kill()
            redis.lose_data()
            shutil.copytree(backup, redis.folder / "appendonlydir")
            await asyncio.to_thread(redis.start)
        asked = [asyncio.create_task(client.call(COUNT, key, 1)) for key in keys]
        async with asyncio.timeout(PATIENCE_S):
            told = await asyncio.gather(*asked, return_exceptions=True)
        assert not [each for each in told if not isinstance(each, int | UnknownOutcomeError)]
        async with asyncio.timeout(PATIENCE_S):
            assert len(await client.call_many(COUNT, keys, [0] * len(keys))) == len(keys)


@pytest.mark.parametrize("owners", ["the first", "later ones"])
async def test_a_client_whose_calls_were_taken_and_lost_is_told_wherever_their_partitions_go(
    tmp_path: Path, redis: RedisProcess, owners: str
) -> None:
    keys = [f"k{number}" for number in range(40)]
    async with running(tmp_path, redis, 2) as cluster, cluster.client() as client:
        if owners == "later ones":
            cluster.living[0].terminate()
            cluster.add_worker()
            await cluster.ready()
        await client.call_many(LINGER, keys, [0.0] * len(keys))
        asked = [asyncio.create_task(client.call(LINGER, key, 30.0)) for key in keys]
        await asyncio.sleep(1.0)
        redis.ask("FLUSHALL")
        async with asyncio.timeout(PATIENCE_S):
            told = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(each, UnknownOutcomeError) for each in told)


async def test_a_redis_cluster_whose_slots_move_and_whose_nodes_die_loses_nothing(
    tmp_path: Path,
) -> None:
    redis = RedisClusterProcesses(tmp_path / "redis")
    redis.start()
    try:
        async with running(tmp_path, redis, 2) as cluster:
            tags = ("count/count_batch/0", "count/count_batch/1", "directory")
            keys = [f"sublet:{{{tag}}}" for tag in tags]

            async def disturb(load: Load) -> None:
                for key in keys:
                    await asyncio.to_thread(_move, redis, key_slot(key.encode()))
                    await rounds_more(load, 2)
                for node in redis.nodes[:2]:
                    node.kill()
                    await asyncio.to_thread(node.start)
                    await rounds_more(load, 2)
                await cluster.ready()

            await under_load(cluster, 5, disturb)
    finally:
        redis.stop()


def _move(redis: RedisClusterProcesses, slot: int) -> None:
    """Move a slot and all that is in it to the next node."""
    source = redis.owner_of(slot)
    target = (source + 1) % len(redis.nodes)
    redis.begin_move(slot, source, target)
    keys = redis.keys_in(slot, source)
    assert keys
    for key in keys:
        redis.move_key(key, source, target)
    redis.end_move(slot, target)
