"""Changes by hand among many messages: nothing is lost, doubled or half seen."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

import msgspec
import pytest

from sublet import Client, RejectedError
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.rpc import (
    AdministerRequest,
    DeleteState,
    PutState,
    RecordsRequest,
    ReplayDeadLetter,
    StateListRequest,
    StateRequest,
)
from tests.integration import apps
from tests.integration.cluster import Cluster, until

EPOCH = 1_000_000


async def put(unary: UnaryClient, function: str, key: str, value: object) -> None:
    action = PutState(function=function, key=key, value=msgspec.msgpack.encode(value))
    await unary.administer(AdministerRequest(action=action))


async def state(unary: UnaryClient, function: str, key: str) -> object:
    report = await unary.read_state(StateRequest(function=function, key=key))
    return msgspec.json.decode(report.json)


@pytest.mark.parametrize("function", ["count", "count_blocking", "count_batch", "count_by_key"])
async def test_states_that_are_put_among_messages_lose_none_of_them(
    cluster: Cluster, client: Client, function: str
) -> None:
    name, key = f"test/{function}", f"put among {function}"
    replies: list[int] = []

    async def add() -> None:
        for _ in range(40):
            replies.append(await client.call(name, key, 1))
            # Between two messages there is room for somebody else.
            await asyncio.sleep(0.002)

    async with UnaryClient(cluster.living[0].address) as unary, asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(add())
        for epoch in range(1, 6):
            await put(unary, name, key, epoch * EPOCH)

    by_epoch: dict[int, list[int]] = defaultdict(list)
    for reply in replies:
        by_epoch[reply // EPOCH].append(reply % EPOCH)
    assert sum(map(len, by_epoch.values())) == 120
    for found in by_epoch.values():
        # Each message added one to what the one before it, or the put, had left.
        assert sorted(found) == list(range(1, len(found) + 1))
    async with UnaryClient(cluster.living[1].address) as unary:
        assert await state(unary, name, key) == max(5 * EPOCH, *replies)


async def test_a_state_that_is_put_replaces_all_rows_also_those_not_yet_committed(
    cluster: Cluster, client: Client
) -> None:
    async with UnaryClient(cluster.living[0].address) as unary:
        for round_ in range(10):
            words = [f"word {round_} {number}" for number in range(20)]
            async with asyncio.TaskGroup() as tasks:
                for word in words:
                    tasks.create_task(client.call(apps.tally, "rows", word))
            await put(unary, "test/tally", "rows", {"only": round_})
            assert await state(unary, "test/tally", "rows") == {"only": round_}


async def test_a_state_that_was_put_survives_its_worker(cluster: Cluster, client: Client) -> None:
    async with UnaryClient(cluster.living[0].address) as unary:
        keys = [f"kept {number}" for number in range(8)]
        for number, key in enumerate(keys):
            await put(unary, "test/count", key, number)
        for key in keys[4:]:
            action = DeleteState(function="test/count", key=key)
            await unary.administer(AdministerRequest(action=action))

    # Read through the other worker: what it sees is what is stored.
    async with UnaryClient(cluster.living[1].address) as unary:
        seen = [await state(unary, "test/count", key) for key in keys]
    assert seen == [0, 1, 2, 3, None, None, None, None]


async def test_a_dead_letter_that_many_replay_at_once_runs_once_more(
    cluster: Cluster, client: Client
) -> None:
    await client.send(apps.reject, "letter", "no")

    async def ids() -> list[str]:
        async with UnaryClient(cluster.living[0].address) as unary:
            page = await unary.list_records(RecordsRequest(kind="dead", function="test/reject"))
        return [each.id for each in page.entries]

    async def has_died() -> bool:
        return bool(await ids())

    await until(has_died)
    (letter,) = await ids()
    dead_before = (await cluster.counters())["dead"]

    async def replay(address: str) -> str:
        async with UnaryClient(address) as unary:
            try:
                action = ReplayDeadLetter(id=letter)
                await unary.administer(AdministerRequest(action=action))
            except RejectedError as error:
                return str(error).rpartition("; ")[2]
            return "done"

    # It fails again and is a letter again, so a second replay may find it: but each one that was
    # done has made it run, and fail, exactly once.
    addresses = [worker.address for worker in cluster.living] * 4
    outcomes = Counter(await asyncio.gather(*(replay(each) for each in addresses)))

    async def has_died_again() -> bool:
        return (await cluster.counters())["dead"] - dead_before == outcomes["done"]

    await until(has_died_again)
    assert outcomes["done"] >= 1
    assert outcomes.keys() <= {"done", "it was already replayed or dropped"}
    assert await ids() == [letter]


async def test_all_keys_of_a_function_are_found_page_by_page(
    cluster: Cluster, client: Client
) -> None:
    keys = [f"page {number}" for number in range(25)]
    await client.call_many(apps.order, keys, [apps.Order(number) for number in range(25)])

    found: list[str] = []
    after = ""
    async with UnaryClient(cluster.living[0].address) as unary:
        while True:
            page = await unary.list_state(
                StateListRequest(function="test/order", limit=4, after=after)
            )
            found += [each.key for each in page.entries]
            after = page.next
            if not after:
                break

    assert sorted(found) == sorted(keys)
