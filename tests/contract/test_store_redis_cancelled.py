"""A task that asks Redis can be cancelled at any moment, and what waits for its end goes on."""

from __future__ import annotations

import asyncio

import pytest

from sublet.statestore.contract import Member
from sublet.statestore.redis.directory import RedisDirectory
from sublet.statestore.redis.server import RedisServer
from tests.redis_process import RedisProcess


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# `asyncio.wait_for` of Python 3.11 loses a cancellation in one of these turns.
@pytest.mark.parametrize("count", range(12))
async def test_a_task_that_asks_again_and_again_ends_once_it_is_cancelled(
    redis_process: RedisProcess, count: int
) -> None:
    server = RedisServer(redis_process.url)

    async def ask() -> None:
        while True:
            await server.ask([("GET", "nothing")])

    await server.ask([("GET", "nothing")])
    asking = asyncio.create_task(ask())
    await turns(count)
    asking.cancel()
    await asyncio.wait([asking], timeout=5)
    assert asking.cancelled()
    # The connection has no answer left that is for somebody else.
    assert await server.ask([("ECHO", "mine")]) == [b"mine"]
    await server.close()


async def test_a_directory_that_just_heard_of_a_change_can_be_closed(
    redis_process: RedisProcess,
) -> None:
    changing = RedisDirectory(redis_process.url, prefix="closed")
    for count in range(40):
        directory = RedisDirectory(redis_process.url, prefix="closed")
        waiting = asyncio.create_task(directory.wait_changed(2**62, 30))
        await asyncio.sleep(0.005)
        member = Member(id=f"w{count}", address="127.0.0.1:1")
        joining = asyncio.create_task(changing.join(member, {}))
        await asyncio.sleep(count % 20 / 10_000)
        async with asyncio.timeout(10):
            await directory.close()
        waiting.cancel()
        await joining
    await changing.close()
