"""Handlers that never end: their callers hear of it, and everybody else goes on."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator

import pytest

from sublet import Client, Function, HandlerTimeoutError
from tests.integration import apps
from tests.integration.cluster import Cluster, until

STUCK = [
    apps.stuck,
    apps.stuck_busy,
    apps.stuck_blocking,
    apps.stuck_async,
    apps.stuck_async_blocking,
    apps.stuck_async_later,
]
NEAR_LIMIT = [
    apps.near_limit,
    apps.near_limit_blocking,
    apps.near_limit_by_key,
    apps.near_limit_async,
]
# Their timeout is 30 ms; the timers of a loop count in whole milliseconds.
LIMIT_MS = 28.0
# Two attempts of 200 ms each, and at worst a second each until a thread is given up. They would
# never end.
ENDS_WITHIN_S = 30.0


@pytest.fixture(scope="module")
def cluster(one_worker: Cluster) -> Cluster:
    return one_worker


@pytest.fixture(autouse=True)
def alive(cluster: Cluster) -> Iterator[None]:
    yield
    assert cluster.workers[0].is_running, cluster.log
    assert "Traceback" not in cluster.log
    assert "declared dead" not in cluster.log


async def others_go_on(client: Client, name: str, ended: asyncio.Event) -> float:
    """Call others until the event; return the longest that one of them took, in seconds."""
    longest_s, number = 0.0, 0
    while not ended.is_set():
        number += 1
        started_s = time.monotonic()
        assert await client.call(apps.count, f"others-{name}", 1) == number
        longest_s = max(longest_s, time.monotonic() - started_s)
    return longest_s


@pytest.mark.parametrize("learned", [False, True], ids=["unknown", "learned short"])
@pytest.mark.parametrize("function", STUCK, ids=lambda each: each.name)
async def test_a_handler_that_never_ends_is_given_up_and_others_go_on(
    client: Client, function: Function, learned: bool
) -> None:
    """Learned short, it runs on the worker's own loop; unknown, beside it."""
    name = f"{function.name}-{learned}"
    if learned:
        for _ in range(5):
            await client.call_many(function, [f"short{n}" for n in range(100)], [0] * 100)
    ended = asyncio.Event()
    started_s = time.monotonic()

    async with asyncio.TaskGroup() as tasks:
        others = tasks.create_task(others_go_on(client, name, ended))
        with pytest.raises(HandlerTimeoutError, match=r"longer than its timeout of 200 ms"):
            await client.call(function, name, -1)
        took_s = time.monotonic() - started_s
        ended.set()

    assert 0.4 <= took_s < ENDS_WITHIN_S
    assert others.result() < 2.0
    # Nothing of the attempts is left, and the key is free.
    assert await client.call(function, name, 0) == 1


async def test_a_handler_that_hears_nothing_costs_its_thread_and_no_more(
    cluster: Cluster, client: Client
) -> None:
    before = await cluster.counters()
    with pytest.raises(HandlerTimeoutError):
        await client.call(apps.stuck_deaf, "deaf", 3.5)

    assert (await cluster.counters())["threads_abandoned"] > before["threads_abandoned"]
    # It goes on changing a state that is no longer looked at.
    assert await client.call(apps.stuck_deaf, "deaf", 0) == 1

    async def came_back() -> bool:
        return (await cluster.counters())["threads_abandoned"] == 0

    await until(came_back)
    assert await client.call(apps.stuck_deaf, "deaf", 0) == 2


async def test_messages_behind_one_that_never_ends_are_handled_in_order(client: Client) -> None:
    stuck = asyncio.ensure_future(client.call(apps.stuck, "behind", -1))
    behind = [
        asyncio.ensure_future(client.call(apps.stuck, key, 0))
        for key in ("behind", "beside", "behind")
    ]

    with pytest.raises(HandlerTimeoutError):
        await stuck
    assert [await each for each in behind] == [1, 1, 2]


async def test_more_stuck_handlers_than_threads_delay_others_but_lose_nothing(
    client: Client,
) -> None:
    keys = [f"many{number}" for number in range(48)]
    replies = await client.call_many(
        apps.stuck_blocking, keys, [-1] * len(keys), return_errors=True
    )

    assert all(isinstance(each, HandlerTimeoutError) for each in replies)
    assert await client.call_many(apps.stuck_blocking, keys, [0] * len(keys)) == [1] * len(keys)


@pytest.mark.parametrize("learned", [False, True], ids=["unknown", "learned short"])
async def test_a_handler_that_refuses_to_be_cancelled_is_given_up(
    client: Client, learned: bool
) -> None:
    name = f"stubborn-{learned}"
    if learned:
        for _ in range(5):
            keys = [f"short{n}" for n in range(100)]
            await client.call_many(apps.stuck_async_stubborn, keys, [0] * 100)

    with pytest.raises(HandlerTimeoutError):
        await client.call(apps.stuck_async_stubborn, name, 3)

    assert await client.call(apps.stuck_async_stubborn, name, 0) == 1


async def test_handlers_that_wait_for_their_turn_are_not_late(client: Client) -> None:
    """Each computes for 60 ms of its 500 ms; the last begins after more than two seconds."""
    keys = [f"turn{number}" for number in range(40)]

    replies = await client.call_many(apps.busy_async, keys, [60] * len(keys))

    assert replies == [1] * len(keys)


async def test_those_behind_a_handler_that_blocks_are_run_elsewhere(client: Client) -> None:
    keys = [f"after{number}" for number in range(20)]
    stuck = asyncio.ensure_future(client.call(apps.stuck_async_blocking, "blocks", -1))
    behind = asyncio.ensure_future(client.call_many(apps.busy_async, keys, [1] * len(keys)))

    assert await behind == [1] * len(keys)
    with pytest.raises(HandlerTimeoutError):
        await stuck


async def test_a_function_that_becomes_slow_goes_on_in_threads(client: Client) -> None:
    quick, slow = [0] * 200, [1] * 40
    await client.call_many(apps.slows_down, [""] * len(quick), quick)

    # Nothing else happens in the worker that would wake it up in the middle.
    counts = await client.call_many(apps.slows_down, [""] * len(slow), slow)

    assert counts == list(range(len(quick) + 1, len(quick) + len(slow) + 1))


@pytest.mark.parametrize("learned", [False, True], ids=["unknown", "learned short"])
@pytest.mark.parametrize("function", NEAR_LIMIT, ids=lambda each: each.name)
async def test_a_timeout_interrupts_only_who_has_run_too_long(
    client: Client, function: Function, learned: bool
) -> None:
    """Some end just when they are interrupted, and others run behind them in the same thread."""
    keys = [f"limit{number}" for number in range(48)]
    if learned:
        for _ in range(3):
            await client.call_many(function, keys, [0] * len(keys), return_errors=True)
    chance = random.Random(function.name)

    for _ in range(3):
        # Most have time enough, also all together behind a short one; on the loop, somebody looks
        # every 50 ms only.
        times = [chance.choice((0, 0, 6, 6, 6, 29, 31, 80)) for _ in keys]
        await client.call_many(function, keys, times, return_errors=True)

    interrupted_after_ms = await client.call(apps.interrupted, "")
    assert [each for each in interrupted_after_ms if each < LIMIT_MS] == []
    # No key stays closed; on a busy machine, even those that do nothing may be late now and then.
    while keys:
        replies = await client.call_many(function, keys, [0] * len(keys), return_errors=True)
        assert {type(each) for each in replies} <= {type(None), HandlerTimeoutError}
        keys = [key for key, reply in zip(keys, replies, strict=True) if reply is not None]
