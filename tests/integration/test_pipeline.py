"""Rows brought in batches, by real clients to real workers: every row counts once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from sublet import BlockingClient, Client, RejectedError, TooLargeError, UnavailableError
from sublet.functions.address import partition_index_of
from sublet.runtime.client.pipeline_protocol import Plan, Staged
from sublet.runtime.client.pipelines import Attempt, Pipeline
from sublet.spark_bridge.connections import close_clients
from sublet.spark_bridge.options import sink_options
from sublet.spark_bridge.sink import commit
from tests.integration.cluster import running_cluster
from tests.redis_process import RedisProcess

APP = "tests.integration.count_app:app"
COUNT = "count/count"
Rows = Sequence[tuple[str, int]]


def by_partition(rows: Rows, count: int) -> dict[int, tuple[list[str], bytes]]:
    found: dict[int, list[tuple[str, int]]] = {}
    for key, amount in rows:
        found.setdefault(partition_index_of(key, count), []).append((key, amount))
    return {
        index: ([key for key, _ in some], msgspec.msgpack.encode([amount for _, amount in some]))
        for index, some in found.items()
    }


async def add(attempt: Attempt, pipeline: Pipeline, rows: Rows) -> None:
    for index, (keys, column) in by_partition(rows, pipeline.partition_count).items():
        await attempt.add(index, keys, column)


async def stage(pipeline: Pipeline, batch: int, rows: Rows) -> Staged:
    attempt = pipeline.attempt(batch)
    await add(attempt, pipeline, rows)
    return await attempt.end()


async def totals(client: Client, keys: Sequence[str]) -> Counter[str]:
    return Counter(
        dict(zip(keys, await client.call_many(COUNT, keys, [0] * len(keys)), strict=True))
    )


def rows_of(batch: int, count: int = 600) -> list[tuple[str, int]]:
    return [(f"k{(batch + number) % 40}", number + 1) for number in range(count)]


def sums(*batches: Rows) -> Counter[str]:
    found: Counter[str] = Counter()
    for rows in batches:
        for key, amount in rows:
            found[key] += amount
    return found


KEYS = [f"k{number}" for number in range(40)]


async def test_batches_count_once_however_often_they_are_begun_and_committed(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path, app=APP) as cluster, cluster.client() as client:
        pipeline = client.pipeline(COUNT, "query-1")
        failed = await stage(pipeline, 0, rows_of(7))
        first = await stage(pipeline, 0, rows_of(0))
        assert (await pipeline.progress()).rows_staged == 1_200
        assert await totals(client, KEYS) == Counter(dict.fromkeys(KEYS, 0))

        committed = await pipeline.commit(0, [first], deadline="10s")
        assert committed == (600, True)
        await pipeline.wait_taken()
        assert await totals(client, KEYS) == sums(rows_of(0))

        # Another driver, which knows nothing of all that, and has other rows.
        other = client.pipeline(COUNT, "query-1")
        again = await stage(other, 0, rows_of(9))
        assert await other.commit(0, [again, failed]) == (600, False)
        assert await other.begin() == 1
        second = [await stage(other, 1, rows_of(1)), await stage(other, 1, rows_of(2))]
        assert await other.commit(1, second, urgency="lowest") == (1_200, True)
        with pytest.raises(RejectedError, match="another driver"):
            await pipeline.commit(0, [first])
        third = client.pipeline(COUNT, "query-1", generation=1)
        assert await third.commit(0, [first], completed=0) == (None, False)
        await other.wait_taken()
        assert await totals(client, KEYS) == sums(rows_of(0), rows_of(1), rows_of(2))
        assert await other.progress() == (1, 0, 0, 0)

        # A wiped checkpoint is another pipeline.
        anew = client.pipeline(COUNT, "query-2")
        await anew.commit(0, [await stage(anew, 0, rows_of(3))])
        await anew.wait_taken()
        everything = sums(rows_of(0), rows_of(1), rows_of(2), rows_of(3))
        assert await totals(client, KEYS) == everything
        await anew.forget()
        assert await anew.progress() == (-1, 0, 0, 0)


async def test_a_driver_that_died_after_its_decision_is_followed_by_one_that_seals_it(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path, app=APP) as cluster, cluster.client() as client:
        dead = client.pipeline(COUNT, "query")
        staged = await stage(dead, 4, rows_of(4))
        await decide_alone(dead, 4, [staged])

        heir = client.pipeline(COUNT, "query")
        other = await stage(heir, 4, rows_of(5))
        assert await heir.commit(4, [other]) == (600, False)
        await heir.commit(5, [await stage(heir, 5, rows_of(6))])
        await heir.wait_taken()
        assert await totals(client, KEYS) == sums(rows_of(4), rows_of(6))
        assert (await heir.progress()).rows_staged == 0


async def test_processes_of_one_run_share_a_generation_and_those_of_an_earlier_run_are_refused(
    tmp_path: Path,
) -> None:
    async with (
        running_cluster(tmp_path, app=APP) as cluster,
        cluster.client() as client,
        cluster.client() as other,
    ):
        dead = client.pipeline(COUNT, "query")
        assert await dead.begin("run-1") == 1
        await decide_alone(dead, 0, [await stage(dead, 0, rows_of(0))])

        # Whoever comes first has finished what was decided before one of its rows is staged.
        task, driver = other.pipeline(COUNT, "query"), client.pipeline(COUNT, "query")
        assert await task.begin("run-2") == 2
        staged = await stage(task, 1, rows_of(1))
        assert await driver.begin("run-2") == 2
        assert await driver.commit(1, [staged]) == (600, True)
        with pytest.raises(RejectedError, match="another driver"):
            await client.pipeline(COUNT, "query").begin("run-1")
        with pytest.raises(RejectedError, match="another driver"):
            await stage(dead, 1, rows_of(2))
        await driver.wait_taken()
        assert await totals(client, KEYS) == sums(rows_of(0), rows_of(1))


async def decide_alone(pipeline: Pipeline, batch: int, staged: Sequence[Staged]) -> None:
    """Do of a commit what a driver does that dies before its first seal."""
    story = pipeline._driver.commit(batch, Plan(list(staged)))
    await pipeline._ask_each(next(story))


async def test_a_blocking_client_brings_batches_too(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, app=APP) as cluster:
        await asyncio.to_thread(_bring_batches, cluster.addresses()[0])
        async with cluster.client() as client:
            assert await totals(client, KEYS) == sums(rows_of(0), rows_of(1))


def _bring_batches(address: str) -> None:
    with BlockingClient(address) as client:
        pipeline = client.pipeline(COUNT, "query")
        assert client.message_schema(COUNT) == {"type": "integer"}
        for batch in range(2):
            attempt = pipeline.attempt(batch)
            for index, (keys, column) in by_partition(rows_of(batch), 8).items():
                attempt.add(index, keys, column)
            assert pipeline.commit(batch, [attempt.end()]).row_count == 600
        wasted = pipeline.attempt(2)
        wasted.add(partition_index_of("x", 8), ["x"], b"\x91\x01")
        wasted.end()
        wasted.drop()
        pipeline.wait_taken()
        assert pipeline.progress() == (1, 0, 0, 0)


async def test_what_cannot_be_is_refused_with_what_is_allowed(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, app=APP) as cluster, cluster.client() as client:
        with pytest.raises(RejectedError, match="letters, digits"):
            client.pipeline(COUNT, "a/b")
        pipeline = client.pipeline(COUNT, "query")
        with pytest.raises(RejectedError, match=r"0\.\.7"):
            await pipeline.attempt(0).add(8, ["a"], b"\x91\x01")
        with pytest.raises(RejectedError, match="0 or more"):
            pipeline.attempt(-1)
        with pytest.raises(RejectedError, match="lowest"):
            await pipeline.commit(0, [], urgency="high")  # type: ignore[arg-type]
        broken = pipeline.attempt(0)
        await broken.add(0, ["a", "b"], b"\x91\x01")
        with pytest.raises(RejectedError, match="2 keys and 1 payloads"):
            await broken.end()
        lost = pipeline.attempt(0)
        await lost.add(1 - partition_index_of("a", 8) % 2, ["a"], b"\x91\x01")
        with pytest.raises(RejectedError, match="'a' belongs to partition"):
            await lost.end()
        huge = pipeline.attempt(0)
        with pytest.raises(TooLargeError, match="the row of key 'a' has 5000011 bytes; allowed: "):
            await huge.add(0, ["a"], msgspec.msgpack.encode([b"x" * 5_000_000]))
        with pytest.raises(RejectedError, match="is not staged"):
            await pipeline.commit(0, [Staged("unknown", {3: (1, 1)})])


async def test_no_room_slows_a_pipeline_down_and_loses_nothing(tmp_path: Path) -> None:
    settings = {"staged_bytes_max": 20_000}
    async with (
        running_cluster(tmp_path, app=APP, **settings) as cluster,
        cluster.client() as client,
    ):
        pipeline = client.pipeline(COUNT, "query")
        for batch in range(6):
            await pipeline.commit(batch, [await stage(pipeline, batch, rows_of(batch, 4_000))])
        await pipeline.wait_taken()
        wanted = sums(*(rows_of(batch, 4_000) for batch in range(6)))
        assert await totals(client, KEYS) == wanted


async def test_a_dropped_attempt_stages_nothing_more(tmp_path: Path) -> None:
    settings = {"staged_bytes_max": 2_000}
    async with (
        running_cluster(tmp_path, app=APP, **settings) as cluster,
        cluster.client() as client,
    ):
        held, late = client.pipeline(COUNT, "held"), client.pipeline(COUNT, "late")
        key = next(each for each in KEYS if not partition_index_of(each, held.partition_count))
        column = msgspec.msgpack.encode([1] * 150)
        in_the_way = held.attempt(0)
        await in_the_way.add(0, [key] * 150, column)
        staged = await in_the_way.end()
        attempt = late.attempt(0)
        await attempt.add(0, [key] * 150, column)  # There is no room: it is tried again and again.
        await attempt.drop()
        with pytest.raises(RejectedError, match="the attempt was dropped"):
            await attempt.add(0, [key], msgspec.msgpack.encode([1]))
        await held.drop(0, [staged])
        again = late.attempt(0)
        await again.add(0, [key], msgspec.msgpack.encode([1]))
        await again.end()
        assert (await late.progress()).rows_staged == 1


async def test_pipelines_are_listed_until_they_are_forgotten(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, app=APP) as cluster, cluster.client() as client:
        assert await client.pipelines(COUNT) == []
        for name in ("b", "a"):
            pipeline = client.pipeline(COUNT, name)
            await pipeline.commit(3, [await stage(pipeline, 3, rows_of(0))])
        await pipeline.complete("2026-01-01")
        first, second = await client.pipelines(COUNT)
        assert (first.name, first.decided, first.mark) == ("a", 3, "2026-01-01")
        assert (second.name, second.completed_ms) == ("b", None)
        await pipeline.forget()
        assert [each.name for each in await client.pipelines(COUNT)] == ["b"]


async def test_a_plan_that_could_not_be_told_again_is_not_decided(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, app=APP) as cluster, cluster.client() as client:
        pipeline = client.pipeline(COUNT, "query")
        places = dict.fromkeys(range(pipeline.partition_count), (1, 10**6))
        staged = [Staged(f"{number:032d}", places) for number in range(100_000)]
        with pytest.raises(TooLargeError, match="use fewer tasks, or cluster the rows"):
            await pipeline.commit(0, staged)
        assert (await pipeline.begin()) == 1


async def test_rows_wait_for_history_but_not_until_they_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "HELD_MAX", "100ms")
    async with running_cluster(tmp_path, app=APP) as cluster, cluster.client() as client:
        options = sink_options(
            {"target": COUNT, "key": "k", "after": "history", "address": cluster.living[0].address}
        )
        with pytest.raises(
            UnavailableError, match="backfill history of count/count did not complete within"
        ):
            await asyncio.to_thread(commit.wait_for_backfill, options)
        await client.pipeline(COUNT, "history").complete()
        await asyncio.to_thread(commit.wait_for_backfill, options)
        await asyncio.to_thread(close_clients)


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, object]]:
    """The settings of a store that several workers share."""
    if request.param == "sqlite":
        yield {}
        return
    folder = tmp_path / "redis"
    folder.mkdir()
    redis = RedisProcess(folder)
    redis.start()
    yield {"store": "redis", "redis_url": redis.url}
    redis.kill()


async def test_a_worker_killed_between_stage_and_commit_and_while_rows_run_loses_nothing(
    tmp_path: Path, store: dict[str, object]
) -> None:
    async with (
        running_cluster(tmp_path / "workers", app=APP, workers=3, **store) as cluster,
        cluster.client(connect_timeout="1s") as client,
    ):
        pipeline = client.pipeline(COUNT, "query", timeout="40s")
        attempt = pipeline.attempt(0)
        await add(attempt, pipeline, rows_of(0, 5_000))
        cluster.living[0].kill()  # While parts are on their way.
        await add(attempt, pipeline, rows_of(1, 5_000))
        staged = [await attempt.end()]
        assert await pipeline.commit(0, staged) == (10_000, True)
        cluster.living[0].kill()  # While rows run.
        assert await pipeline.commit(0, staged) == (10_000, True)
        await pipeline.wait_taken()
        wanted = sums(rows_of(0, 5_000), rows_of(1, 5_000))
        assert await totals(client, KEYS) == wanted
        assert await pipeline.progress() == (0, 0, 0, 0)
