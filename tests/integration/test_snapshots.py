"""States read as they were at one commit, by real clients from real workers, while others write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from sublet import BlockingClient, Client, RejectedError, SnapshotLostError
from sublet.functions.address import partition_index_of
from sublet.runtime.protocol.rpc import SNAPSHOT_KEYS_MAX
from sublet.runtime.services.snapshot_pages import PAGE_BYTES
from tests.integration.cluster import (
    LOOK_EVERY_S,
    PATIENCE_S,
    Cluster,
    WorkerProcess,
    running_cluster,
)
from tests.redis_process import RedisProcess

APP = "tests.integration.snapshot_app:app"
STEP = "kept/step"
PARTITIONS = 4
KEYS = [f"key-{number:03}" for number in range(240)]


def of_partition(index: int) -> list[str]:
    return [key for key in KEYS if partition_index_of(key, PARTITIONS) == index]


async def walk(client: Client, keys: Sequence[str], first: int = 2) -> None:
    """Set one key after the other to the next number, over and over: at every commit no key is
    ahead of one before it, nor more than one behind."""
    for value in count(first):
        for start in range(0, len(keys), 8):
            chosen = keys[start : start + 8]
            await client.call_many(STEP, chosen, [value] * len(chosen))


@asynccontextmanager
async def written(client: Client) -> AsyncIterator[None]:
    """Set all keys to 1, and let walkers go through all partitions for as long as the block."""
    await client.call_many(STEP, KEYS, [1] * len(KEYS))
    async with asyncio.TaskGroup() as tasks:
        walkers = [
            tasks.create_task(walk(client, of_partition(each))) for each in range(PARTITIONS)
        ]
        yield
        for walker in walkers:
            walker.cancel()


def check_at_one_commit(found: dict[str, int]) -> None:
    """What a walk leaves at a commit: steps of eight that are complete, then such that are not."""
    for index in range(PARTITIONS):
        keys = of_partition(index)
        steps = [keys[start : start + 8] for start in range(0, len(keys), 8)]
        values = [sorted(found[key] for key in step) for step in steps]
        assert min(map(min, values)) >= max(map(max, values)) - 1, values
        for earlier, later in pairwise(values):
            assert earlier[0] >= later[-1], values


async def read(client: Client, **options: Any) -> dict[str, int]:
    async with client.snapshot(STEP, **options) as snapshot:
        return {found.key: found.state async for found in snapshot}


@pytest.fixture(params=["memory", "sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, object]]:
    """The settings of a store."""
    if request.param != "redis":
        yield {"store": request.param}
        return
    folder = tmp_path / "redis"
    folder.mkdir()
    redis = RedisProcess(folder)
    redis.start()
    yield {"store": "redis", "redis_url": redis.url}
    redis.kill()


async def test_pages_read_while_states_change_are_those_of_one_commit(
    tmp_path: Path, store: dict[str, object]
) -> None:
    async with (
        running_cluster(tmp_path, app=APP, **store) as cluster,
        cluster.client() as client,
        cluster.client() as reader,
        written(client),
    ):
        seen = []
        for page_max in (1, 7, 100, 3):
            found = await read(reader, page_max=page_max)
            assert sorted(found) == KEYS
            check_at_one_commit(found)
            seen.append(sum(found.values()))
        assert sorted(set(seen)) == seen, "nothing was written meanwhile"
        status = await cluster.status(cluster.workers[0])
        assert status.counters["snapshots_open"] == 0
        assert status.counters["snapshot_bytes"] == 0


async def test_keys_that_come_and_go_meanwhile_are_there_or_not_as_at_the_commit(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path, app=APP) as cluster, cluster.client() as client:
        await client.call_many(STEP, KEYS, [1] * len(KEYS))
        async with client.snapshot(STEP, page_max=5) as snapshot:
            first = await snapshot.next_page()
            assert first is not None
            others = [f"new-{number}" for number in range(50)]
            await client.call_many(STEP, others, [1] * 50)
            await client.call_many(STEP, KEYS[::2], [0] * len(KEYS[::2]))
            found = [*snapshot.decoded(first), *[each async for each in snapshot]]
            assert sorted(each.key for each in found) == KEYS
            assert {each.state for each in found} == {1}
            assert {each.partition: each.commit for each in found} == {
                index: pin.commit for index, pin in snapshot.pins.items()
            }
        assert sorted(await read(client)) == sorted([*KEYS[1::2], *others])


async def test_only_the_named_keys_and_partitions_are_read(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, app=APP) as cluster, cluster.client() as client:
        await client.call_many(STEP, KEYS, list(range(1, 241)))
        assert await read(client, keys=["key-003", "nobody", "key-100"]) == {
            "key-003": 4,
            "key-100": 101,
        }
        assert list(await read(client, partitions=[2])) == of_partition(2)
        assert await read(client, partitions=[], keys=["key-003"]) == {}
        wanted = of_partition(0)
        async with client.snapshot(STEP, keys=wanted, page_max=3) as snapshot:
            assert list(snapshot.pins) == [0]
            await client.call_many(STEP, KEYS, [7] * 240)
            assert [found.key async for found in snapshot] == wanted
        with pytest.raises(RejectedError, match=r"has no partition 9; allowed: 0\.\.3"):
            client.snapshot(STEP, partitions=[9])
        with pytest.raises(RejectedError, match="allowed: 10000"):
            client.snapshot(STEP, keys=[f"{number}" for number in range(SNAPSHOT_KEYS_MAX + 1)])
        with pytest.raises(RejectedError, match="stateless"):
            await client.snapshot("kept/echo").pin()


async def test_every_kind_of_state_has_a_form_of_plain_values(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, app=APP) as cluster, cluster.client() as client:
        await client.call_many("kept/basket", ["a", "a", "b"], ["tea", "milk", "tea"])
        await client.call_many("kept/totals", ["a", "a"], [3, 4])
        await client.call_many("kept/by_second", ["a", "a"], [[1_500], [2_100]])
        await client.call_many("kept/tally", ["x", "x"], [1, 2])
        await client.call("kept/fleeting", "a", "gone")

        async def states(function: str) -> dict[str, Any]:
            async with client.snapshot(function) as snapshot:
                return {found.key: found.state async for found in snapshot}

        assert await states("kept/basket") == {"a": {"tea": 1, "milk": 1}, "b": {"tea": 1}}
        assert await states("kept/totals") == {"a": {"total": 7, "visits": 2}}
        assert await states("kept/by_second") == {
            "a": [
                {"start_ms": 1_000, "end_ms": 2_000, "state": 1},
                {"start_ms": 2_000, "end_ms": 3_000, "state": 1},
            ]
        }
        assert await states("kept/tally") == {"": 3}
        async with asyncio.timeout(PATIENCE_S):
            while await states("kept/fleeting"):  # noqa: ASYNC110  # Nobody tells.
                await asyncio.sleep(LOOK_EVERY_S)


async def test_pages_of_large_states_have_few_of_them(tmp_path: Path) -> None:
    large, keys = "x" * 300_000, KEYS[:100]
    async with running_cluster(tmp_path, app=APP) as cluster, cluster.client() as client:
        await client.call_many("kept/note", keys, ["small"] * len(keys))
        await client.call_many("kept/note", keys[50:], [large] * 50)
        async with client.snapshot("kept/note") as snapshot:
            pages = []
            while (page := await snapshot.next_page()) is not None:
                pages.append(page)
        assert max(len(page.states) for page in pages) <= PAGE_BYTES
        found = [each for page in pages for each in snapshot.decoded(page)]
        assert {each.key: each.state for each in found} == {
            **dict.fromkeys(keys[:50], "small"),
            **dict.fromkeys(keys[50:], large),
        }


async def owner(cluster: Cluster, partition: str) -> WorkerProcess:
    for worker in cluster.living:
        if partition in (await cluster.status(worker)).partitions:
            return worker
    raise AssertionError(f"nobody owns {partition}")


async def test_the_reader_of_a_partition_whose_owner_dies_is_told(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 2, app=APP) as cluster, cluster.client() as client:
        await client.call_many(STEP, KEYS, [1] * len(KEYS))
        async with client.snapshot(STEP, page_max=5) as snapshot:
            assert await snapshot.next_page() is not None
            (await owner(cluster, f"{STEP}/0")).kill()
            with pytest.raises(SnapshotLostError, match="kept/step/0"):
                await snapshot.next_page()
        assert len(await read(client, page_max=7)) == len(KEYS)


async def test_a_partition_whose_owner_dies_before_anything_was_read_is_pinned_anew(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path, 2, app=APP) as cluster, cluster.client() as client:
        await client.call_many(STEP, KEYS, [1] * len(KEYS))
        async with client.snapshot(STEP, page_max=5) as snapshot:
            first = await snapshot.next_page()
            assert first is not None
            living = await owner(cluster, f"{STEP}/0")
            (doomed,) = [each for each in cluster.living if each is not living]
            lost = [
                index
                for index, pin in snapshot.pins.items()
                if f"{STEP}/{index}" in (await cluster.status(doomed)).partitions
            ]
            before = {index: snapshot.pins[index].epoch for index in lost}
            doomed.kill()
            found = [*snapshot.decoded(first), *[each async for each in snapshot]]
            assert sorted(each.key for each in found) == KEYS
            assert lost
            assert all(snapshot.pins[index].epoch > epoch for index, epoch in before.items())


async def test_a_reader_that_lets_too_much_be_written_over_is_told_what_to_do(
    tmp_path: Path,
) -> None:
    settings = {"snapshot_bytes_max": 20_000}
    async with (
        running_cluster(tmp_path, app=APP, **settings) as cluster,
        cluster.client() as client,
    ):
        await client.call_many(STEP, KEYS, [1] * len(KEYS))
        async with client.snapshot(STEP, page_max=1) as snapshot:
            assert await snapshot.next_page() is not None
            await client.call_many(STEP, KEYS, [2] * len(KEYS))
            with pytest.raises(SnapshotLostError, match="raise snapshot_bytes_max"):
                await snapshot.next_page()
        # Nobody else was disturbed, and there is room again.
        assert set((await read(client)).values()) == {2}
        status = await cluster.status(cluster.workers[0])
        assert status.counters["snapshots_lost"] >= 1
        assert status.counters["snapshot_bytes"] == 0


async def test_another_process_reads_what_was_pinned_for_it_and_a_program_without_a_loop_too(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path, app=APP) as cluster, cluster.client() as client:
        await client.call_many(STEP, KEYS, [1] * len(KEYS))
        snapshot = client.snapshot(STEP)
        await snapshot.pin()
        await client.call_many(STEP, KEYS, [2] * len(KEYS))

        def elsewhere() -> list[int]:
            with (
                BlockingClient(cluster.living[0].address) as other,
                other.snapshot(STEP, partitions=[1, 3], pins=list(snapshot.pins.values())) as pages,
            ):
                return [each.state for each in pages]

        old = await asyncio.to_thread(elsewhere)
        assert old == [1] * len([*of_partition(1), *of_partition(3)])
        # What was read once is gone; it is pinned anew, as nothing of it was given out here.
        assert sorted([found.state async for found in snapshot]) == sorted(
            [1] * len([*of_partition(0), *of_partition(2)]) + [2] * len(old)
        )


async def test_what_was_kept_for_others_is_what_was_pinned(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, app=APP) as cluster, cluster.client() as client:
        await client.call_many(STEP, KEYS, [1] * len(KEYS))
        planned = client.snapshot(STEP)
        await planned.pin()
        await client.call_many(STEP, KEYS, [2] * len(KEYS))
        # So old that they get a sign of life before the first page.
        pins = [replace(each, clock_ms=0) for each in planned.pins.values()]
        first, rest = client.snapshot(STEP, partitions=[1], pins=pins), [0, 2, 3]
        assert {found.state async for found in first} == {1}
        second = client.snapshot(STEP, partitions=rest, pins=pins, page_max=7)
        assert {found.key: found.state async for found in second} == dict.fromkeys(
            [key for index in rest for key in of_partition(index)], 1
        )
        status = await cluster.status(cluster.workers[0])
        assert status.counters["snapshots_started"] == PARTITIONS
        assert status.counters["snapshots_open"] == 0


async def test_who_ends_a_read_does_not_wait_for_workers_that_are_away(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, app=APP) as cluster, cluster.client() as client:
        await client.call_many(STEP, KEYS, [1] * len(KEYS))
        (worker,) = cluster.living

        def end_in_an_outage() -> int:
            with BlockingClient(worker.address) as other:
                snapshot = other.snapshot(STEP, page_max=1, timeout="1h")
                with snapshot, closing(snapshot.pages()) as pages:
                    found = len(next(pages).keys)
                    worker.kill()
                return found

        assert await asyncio.to_thread(end_in_an_outage) == 1
