"""`ctx.run` on real workers that are killed: what is on record is not done again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sublet import Client
from tests.integration import effects_app
from tests.integration.cluster import Cluster, WorkerProcess, running_cluster, until

APP = "tests.integration.effects_app:app"
FUNCTIONS = (effects_app.pay, effects_app.pay_after_work)


class Place:
    """Where a handler tells what it does."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def told(self, what: str) -> list[str]:
        path = Path(f"{self.path}.{what}")
        return path.read_text().split() if path.exists() else []

    async def until(self, what: str, count: int = 1) -> None:
        await until(lambda: len(self.told(what)) >= count)

    def open(self, *gates: str) -> None:
        for gate in gates:
            Path(f"{self.path}.{gate}").touch()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path / "data", app=APP, workers=3) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with asyncio.timeout(200), cluster.client() as client:
        yield client


async def owner_of(cluster: Cluster, partition: str) -> WorkerProcess:
    for worker in cluster.living:
        if partition in (await cluster.status(worker)).partitions:
            return worker
    raise AssertionError(partition)


async def test_a_recorded_side_effect_is_not_done_again_after_kill_9(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    places = {key: Place(tmp_path / key) for key in ("thread", "async")}
    for each in places.values():
        each.open("may_pay")
    asking = [
        asyncio.ensure_future(client.call(function, key, places[key].path))
        for key in places
        for function in FUNCTIONS
    ]
    for each in places.values():
        await each.until("recorded", 2)
    dead = {(await owner_of(cluster, f"{function.name}/0")) for function in FUNCTIONS}
    for worker in dead:
        worker.kill()
    for each in places.values():
        await each.until("recorded", 4)
        each.open("may_end")

    for paid in await asyncio.gather(*asking):
        assert paid.pid in {worker.pid for worker in dead}
    for each in places.values():
        assert len(each.told("paid")) == len(set(each.told("paid"))) == 2
        assert sorted(each.told("recorded")) == sorted(each.told("paid") * 2)


async def test_what_was_being_done_at_kill_9_is_done_again_under_the_same_id(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    place = Place(tmp_path / "place")
    place.open("may_end")
    asking = asyncio.ensure_future(client.call(effects_app.pay, "thread", place.path))
    await place.until("begun")
    (await owner_of(cluster, "effects/pay/0")).kill()
    await place.until("begun", 2)
    place.open("may_pay")

    paid = await asking
    assert place.told("begun") == [paid.id] * 2
    assert place.told("paid") == [paid.id]
