"""Every kind of function, called through a client on two real workers."""

from __future__ import annotations

import asyncio

import pytest

from sublet import Client, EncodeError, Function
from tests.integration import apps
from tests.integration.cluster import Cluster

KEYED = [
    apps.count,
    apps.count_async,
    apps.count_after_wait,
    apps.count_blocking,
    apps.count_by_key,
    apps.count_batch,
]


@pytest.mark.parametrize("function", KEYED, ids=lambda each: each.name)
async def test_a_keyed_function_counts_each_key_by_itself(
    client: Client, function: Function
) -> None:
    keys = [f"k{number % 20}" for number in range(400)]

    replies = await client.call_many(function, keys, [1] * len(keys))

    expected: dict[str, int] = {}
    for key, reply in zip(keys, replies, strict=True):
        expected[key] = expected.get(key, 0) + 1
        assert reply == expected[key]


@pytest.mark.parametrize("function", [apps.total, apps.total_async], ids=lambda each: each.name)
async def test_a_stateful_function_has_one_state_a_partition(
    client: Client, function: Function
) -> None:
    replies = await client.call_many(function, [f"k{n}" for n in range(100)], [1] * 100)

    assert sorted(replies) == list(range(1, 101))


async def test_a_stateless_function_needs_no_key(client: Client) -> None:
    assert await client.call_many(apps.double, None, list(range(50))) == list(range(0, 100, 2))


async def test_collections_keep_what_was_put_in(client: Client) -> None:
    for number in range(3):
        numbers = await client.call(apps.history, "h", number)
    words = await client.call_many(apps.tally, ["t"] * 3, ["a", "b", "a"])

    assert numbers == [0, 1, 2]
    assert words == [1, 1, 2]


async def test_payloads_state_and_replies_have_their_declared_types(client: Client) -> None:
    await client.call(apps.cart, "c", apps.Item("pen", 1.5))
    cart = await client.call(apps.cart, "c", apps.Item("ink"))
    await client.call(apps.order, "o", apps.Order(1, ["a"]))
    order = await client.call(apps.order, "o", apps.Order(2, ["b"]))
    await client.call(apps.person, "p", apps.Person(name="Ada", age=30))
    person = await client.call(apps.person, "p", apps.Person(name="Ada", age=6))

    assert cart == apps.Cart([apps.Item("pen", 1.5), apps.Item("ink")])
    assert order == apps.Order(2, ["a", "b"])
    assert person == apps.Person(name="Ada", age=36)


async def test_a_function_is_called_by_name_with_plain_values(client: Client) -> None:
    reply = await client.call("test/cart", "plain", {"name": "pen", "price": 2})

    assert reply == {"items": [{"name": "pen", "price": 2.0}]}


async def test_a_value_that_cannot_be_encoded_is_refused_before_it_leaves(client: Client) -> None:
    with pytest.raises(EncodeError, match="allowed"):
        await client.call(apps.count, "k", object())


async def test_single_calls_at_once_share_the_connection(client: Client) -> None:
    async with asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(client.call(apps.count, f"s{n}", n)) for n in range(200)]

    assert [each.result() for each in calls] == list(range(200))


async def test_both_workers_did_some_of_it(cluster: Cluster, client: Client) -> None:
    await client.call_many(apps.count, [f"both{n}" for n in range(100)], [1] * 100)

    for worker in cluster.workers:
        counters = (await cluster.status(worker)).counters
        assert counters["consumed"] > 0
        assert counters["commits"] > 0
