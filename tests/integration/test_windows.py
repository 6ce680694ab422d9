"""Windows on real workers: exact results, whoever is killed under load."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sublet import BlockingClient, RejectedError
from tests.integration.cluster import Cluster, running_cluster, until
from tests.integration.window_app import SESSION, SLIDING, TUMBLING, Event, parse
from tests.unit.functions.windows_model import batch_results

APP = "tests.integration.window_app:app"
KEYS = [f"key{number}" for number in range(20)]
ROUNDS = 12
ROUND_MS = 500
DISORDER_MS = 2_000
LONG_AFTER_MS = 10**9


class Feed:
    """One source: events out of order, and watermarks that keep their promise."""

    def __init__(self, cluster: Cluster, source: str, seed: int) -> None:
        self.events: list[Event] = []
        self.rounds = 0
        self._cluster = cluster
        self._source = source
        self._chance = random.Random(seed)

    async def run(self) -> None:
        chance = self._chance
        async with self._cluster.client() as client:
            for number in range(ROUNDS):
                begin_ms = number * ROUND_MS
                events = [
                    Event(chance.choice(KEYS), begin_ms + chance.randrange(DISORDER_MS), n)
                    for n in chance.choices(range(1, 100), k=100)
                ]
                self.events += events
                await client.send_many(parse, None, events)
                await client.watermark(parse, begin_ms + ROUND_MS, source=self._source)
                self.rounds += 1
            await client.watermark(parse, LONG_AFTER_MS, source=self._source)


async def under_load(
    cluster: Cluster, seed: int, disturb: Callable[[Feed], Awaitable[None]]
) -> None:
    """Feed two sources while something happens; compare what came of it with a batch."""
    feeds = [Feed(cluster, "left", seed), Feed(cluster, "right", seed + 1)]
    async with asyncio.TaskGroup() as tasks:
        for feed in feeds:
            tasks.create_task(feed.run())
        await disturb(feeds[0])
    events = [event for feed in feeds for event in feed.events]
    assert len(events) == 2 * ROUNDS * 100
    for name, spec in (("tumbling", TUMBLING), ("sliding", SLIDING), ("session", SESSION)):
        expected = sorted(batch_results(spec, events))

        async def all_told(name: str = name, count: int = len(expected)) -> bool:
            return len(await cluster.egress(name)) >= count

        await until(all_told)
        # As a list: nothing was told twice.
        assert sorted(map(tuple, await cluster.egress(name))) == expected
    assert await cluster.egress("late") == []


async def rounds_more(feed: Feed, count: int) -> None:
    goal = min(ROUNDS, feed.rounds + count)
    await until(lambda: feed.rounds >= goal)


async def test_results_equal_a_batch_computation(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, app=APP, workers=1) as cluster:
        await under_load(cluster, 1, lambda feed: rounds_more(feed, 1))


async def test_killed_workers_lose_and_double_no_result(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, app=APP, workers=3) as cluster:

        async def kill_some(feed: Feed) -> None:
            for _ in range(2):
                await rounds_more(feed, 2)
                cluster.living[0].kill()

        await under_load(cluster, 2, kill_some)


async def test_all_workers_killed_at_once_go_on_where_time_stood(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, app=APP, workers=2) as cluster:

        async def kill_all(feed: Feed) -> None:
            await rounds_more(feed, 3)
            for worker in cluster.workers:
                worker.kill()
            for _ in range(2):
                cluster.add_worker()
            await cluster.ready()

        await under_load(cluster, 3, kill_all)


async def test_a_worker_that_joins_takes_windows_over(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, app=APP, workers=1) as cluster:

        async def join(feed: Feed) -> None:
            await rounds_more(feed, 3)
            cluster.add_worker()
            await cluster.ready()

        await under_load(cluster, 4, join)


async def test_a_program_without_a_loop_tells_watermarks_too(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, app=APP, workers=1) as cluster:

        def tell() -> None:
            with BlockingClient(cluster.addresses()) as client:
                client.send(parse, message=Event("a", 1, 5))
                client.watermark(parse, 5_000, source="left")
                client.watermark(parse, 5_000, source="right")
                with pytest.raises(RejectedError, match="watermark"):
                    client.watermark(parse, "noon", source="left")  # type: ignore[arg-type]
                with pytest.raises(RejectedError, match="source"):
                    client.watermark(parse, 1, source="windows/parse/0")

        await asyncio.to_thread(tell)

        async def told() -> bool:
            return await cluster.egress("tumbling") == [["a", 0, 1_000, 5]]

        await until(told)
        assert (await cluster.counters())["dead"] == 0
