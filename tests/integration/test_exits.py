"""Whatever a handler raises ends its own message, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sublet import Client, Function, HandlerError
from tests.integration import exits_app
from tests.integration.cluster import Cluster, WorkerProcess, running_cluster
from tests.integration.exits_app import EXITS, FORMS, TYPED, Step

APP = "tests.integration.exits_app:app"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(APP, tmp_path_factory.mktemp("exits"), {})
    try:
        asyncio.run(cluster.start(1))
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with asyncio.timeout(30), cluster.client() as client:
        yield client
    assert cluster.workers[0].is_running, cluster.log
    assert "Traceback" not in cluster.log


async def learn(client: Client, function: Function) -> None:
    """Let the worker learn that the function is quick enough for its own loop."""
    for _ in range(3):
        keys = [f"short{number}" for number in range(100)]
        await client.call_many(function, keys, [""] * len(keys))


@pytest.mark.parametrize("learned", [False, True], ids=["unknown", "learned short"])
@pytest.mark.parametrize("function", FORMS, ids=lambda each: each.name)
async def test_what_usually_ends_a_process_ends_one_message(
    client: Client, function: Function, learned: bool
) -> None:
    if learned:
        await learn(client, function)
    for way in EXITS:
        key = f"{way}-{learned}"
        with pytest.raises(HandlerError, match=rf"{function.name} raised {way}"):
            await client.call(function, key, way)
        # Nothing of it is left, and the key and its partition are free.
        assert await client.call(function, key, "") == 1


@pytest.mark.parametrize("function", FORMS, ids=lambda each: each.name)
async def test_messages_beside_one_that_raises_are_handled(
    client: Client, function: Function
) -> None:
    keys = [f"beside{number}" for number in range(20)]
    ways = ["KeyboardInterrupt" if number == 7 else "" for number in range(20)]

    replies = await client.call_many(function, keys, ways, return_errors=True)

    assert isinstance(replies.pop(7), HandlerError)
    assert replies == [1] * 19


@pytest.mark.parametrize("function", TYPED, ids=lambda each: each.name)
async def test_a_message_type_that_raises_ends_one_message(
    client: Client, function: Function
) -> None:
    for way in EXITS:
        # The client must not run the type's code, which would end the client.
        with pytest.raises(HandlerError, match=rf"{function.name} raised {way}"):
            await client.call(function.name, way, {"way": way})
        assert await client.call(function.name, way, {"way": ""}) == 1


@pytest.mark.parametrize("way", ["now", "later"])
async def test_a_handler_that_cancels_its_own_task_ends_its_message(
    client: Client, way: str
) -> None:
    await learn(client, exits_app.cancels_itself)

    with pytest.raises(HandlerError, match="raised CancelledError"):
        await client.call(exits_app.cancels_itself, way, way)

    assert await client.call(exits_app.cancels_itself, way, "") == 1


async def test_a_handler_that_cancels_its_task_and_ends_leaves_others_alone(
    client: Client,
) -> None:
    await learn(client, exits_app.cancels_itself)

    for count in (1, 3):
        assert await client.call(exits_app.cancels_itself, "ends", "and ends") == count
        # Its task was to be that of the next handler.
        assert await client.call(exits_app.cancels_itself, "ends", "") == count + 1


async def test_lent_messages_that_raise_are_tried_again(tmp_path: Path) -> None:
    keys = [f"key{number}" for number in range(60)]
    async with (
        asyncio.timeout(150),
        running_cluster(tmp_path, 2, app=APP, binding="accept-and-check") as cluster,
        cluster.client() as client,
    ):
        for function in (exits_app.lent, exits_app.lent_async):
            home = await owner_of(cluster, function)
            for way in EXITS:
                # Only where they are lent do they raise.
                failed = (await cluster.counters())["failures"]
                while (await cluster.counters())["failures"] == failed:
                    steps = [Step(home.pid, way)] * len(keys)
                    assert set(await client.call_many(function, keys, steps)) == {home.pid}
        assert all(worker.is_running for worker in cluster.workers)


async def owner_of(cluster: Cluster, function: Function) -> WorkerProcess:
    for worker in cluster.living:
        if f"{function.name}/0" in (await cluster.status(worker)).partitions:
            return worker
    raise AssertionError(f"nobody owns {function.name}")
