"""The client against workers that echo, over real links."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from sublet.runtime.client import Client
from tests.integration.echo_worker import EchoCluster, running_cluster

PATIENCE_S = 15.0


@pytest.fixture
async def cluster() -> AsyncIterator[EchoCluster]:
    async with asyncio.timeout(PATIENCE_S * 2), running_cluster() as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: EchoCluster) -> AsyncIterator[Client]:
    async with Client(cluster.addresses["w1"], connect_timeout="2s") as client:
        yield client
        assert client.stats.in_flight == 0


async def test_a_call_returns_the_reply(client: Client) -> None:
    async with asyncio.timeout(PATIENCE_S):
        assert await client.call("shop/echo", "a", {"n": 1}) == {"n": 1}


async def test_calls_of_one_turn_leave_in_one_frame_to_each_worker(
    client: Client, cluster: EchoCluster
) -> None:
    keys = [f"k{index}" for index in range(64)]
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(client.call("shop/echo", key, 0) for key in keys))
        before = {name: len(worker.frames) for name, worker in cluster.workers.items()}
        replies = await asyncio.gather(*(client.call("shop/echo", key, key) for key in keys))

    assert replies == keys
    for name, worker in cluster.workers.items():
        new = worker.frames[before[name] :]
        assert sum(1 for frame in new if frame.batches) == 1


async def test_call_many_returns_replies_in_the_order_of_its_messages(client: Client) -> None:
    count = 20_000
    keys = [f"k{index % 999}" for index in range(count)]
    async with asyncio.timeout(PATIENCE_S):
        replies = await client.call_many("shop/echo", keys, list(range(count)))

    assert replies == list(range(count))


async def test_sent_messages_are_taken_when_send_returns(
    client: Client, cluster: EchoCluster
) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await client.send("shop/echo", "a", 1)
        await client.send_many("shop/echo", ["b", "c"], [2, 3])

    assert sorted(cluster.taken("shop/echo")) == [("a", 1), ("b", 2), ("c", 3)]
