"""What functions say to each other, and what becomes of messages that fail."""

from __future__ import annotations

import asyncio
import time

import pytest

from sublet import (
    Client,
    DeadlineExceededError,
    HandlerError,
    IdempotencyConflictError,
    RejectedError,
)
from tests.integration import apps
from tests.integration.cluster import Cluster, until


async def value_of(client: Client, key: str) -> int:
    return int(await client.call(apps.count, key, 0))


async def test_messages_sent_by_a_function_arrive_once_wherever_their_keys_live(
    client: Client,
) -> None:
    keys = [f"sent{number}" for number in range(40)]

    await client.call_many(apps.forward, keys, [dict.fromkeys(keys, 1)] * len(keys))

    async def all_arrived() -> bool:
        counts: list[int] = await client.call_many(apps.count, keys, [0] * len(keys))
        return sum(counts) >= len(keys) ** 2

    await until(all_arrived)
    assert await client.call_many(apps.count, keys, [0] * len(keys)) == [len(keys)] * len(keys)


async def test_send_returns_when_the_message_is_taken_and_it_is_handled_soon(
    client: Client,
) -> None:
    await client.send_many(apps.count, ["taken"] * 100, [1] * 100)

    async def handled() -> bool:
        return await value_of(client, "taken") == 100

    await until(handled)


async def test_a_message_hops_from_key_to_key_across_workers(client: Client) -> None:
    await client.call(apps.ping, "hop-0", 400)

    keys = [f"hop-{number}" for number in range(8)]
    looks = 0

    async def arrived() -> bool:
        nonlocal looks
        looks += 1
        # A look is a visit too: one with no hop left.
        visits: list[int] = await client.call_many(apps.ping, keys, [0] * len(keys))
        return sum(visits) - len(keys) * looks == 401

    await until(arrived)


async def test_a_delayed_message_comes_once_and_not_early(client: Client) -> None:
    started_s = time.monotonic()
    await client.call(apps.alarm, "late", ("set", 150))

    async def rung() -> bool:
        return bool(await client.call(apps.bell, "late", 0) >= 1)

    await until(rung)
    assert time.monotonic() - started_s >= 0.15
    assert await client.call(apps.bell, "late", 0) == 1


async def test_timers_of_no_delay_ring_once_each_under_load(client: Client) -> None:
    keys = [f"now{number}" for number in range(100)]
    for _ in range(5):
        await client.call_many(apps.alarm, keys, [("set", 0)] * len(keys))

    async def rung() -> bool:
        rings: list[int] = await client.call_many(apps.bell, keys, [0] * len(keys))
        return sum(rings) >= 500

    await until(rung)
    assert await client.call_many(apps.bell, keys, [0] * len(keys)) == [5] * len(keys)


async def test_a_cancelled_message_never_comes(client: Client) -> None:
    await client.call(apps.alarm, "own", ("set", 1_500))
    await client.call(apps.alarm, "own", ("cancel", 0))
    token = await client.call(apps.alarm, "others", ("set", 1_500))
    await client.call(apps.alarm_cancel, "somebody", token)
    await client.call(apps.alarm, "witness", ("set", 1_700))

    async def witnessed() -> bool:
        return bool(await client.call(apps.bell, "witness", 0))

    await until(witnessed)
    assert await client.call_many(apps.bell, ["own", "others"], [0, 0]) == [0, 0]


async def test_a_handler_calls_others_in_turn_and_all_at_once(client: Client) -> None:
    keys = [f"called{number}" for number in range(12)]
    plan = {"function": "test/count", "keys": keys, "message": 5}

    assert await client.call(apps.caller, "turn", plan) == [5] * 12
    assert await client.call(apps.gather, "once", keys) == [6] * 12


async def test_many_handlers_await_calls_without_blocking_their_partition(client: Client) -> None:
    plan = {"function": "test/count", "keys": ["hub"], "message": 1}
    keys = [f"waiter{number}" for number in range(300)]

    replies = await client.call_many(apps.caller, keys, [plan] * len(keys))

    assert sorted(reply for (reply,) in replies) == list(range(1, 301))


async def test_a_cycle_of_calls_is_answered_by_an_error(client: Client) -> None:
    with pytest.raises(HandlerError, match=r"circle\[a\] already waits for this call"):
        await client.call(apps.circle, "a", ["b", "c", "a"])
    with pytest.raises(HandlerError, match="CallCycleError"):
        await client.call(apps.circle, "a", ["a"])
    assert await client.call(apps.circle, "a", ["b", "c", "d"]) == "end"


async def test_two_that_call_each_other_at_once_end_by_a_timeout(client: Client) -> None:
    """No chain of one sees the other's: neither call is a cycle by itself."""
    plans = [
        {"function": "test/caller", "keys": [key], "timeout": "300ms"}
        | {"message": {"function": "test/count", "keys": ["x"], "message": 1}}
        for key in ("right", "left")
    ]

    async with asyncio.timeout(10):
        replies = await client.call_many(apps.caller, ["left", "right"], plans, return_errors=True)

    assert all(isinstance(each, list | DeadlineExceededError) for each in replies)


async def test_what_is_emitted_can_be_read_in_order(cluster: Cluster, client: Client) -> None:
    for start in range(0, 9, 3):
        await client.call(apps.publish, "paper", list(range(start, start + 3)))

    assert await cluster.egress("news") == list(range(9))


async def test_a_failed_attempt_leaves_no_trace_but_its_number(
    cluster: Cluster, client: Client
) -> None:
    assert await client.call(apps.fail_until, "third", 3) == 3

    assert await cluster.egress("attempts") == [3]
    assert await client.call(apps.fail_until, "third", 1) == 1


async def test_a_call_that_fails_every_attempt_gets_the_last_error(client: Client) -> None:
    with pytest.raises(HandlerError, match=r"OSError: attempt 3 of 99"):
        await client.call(apps.fail_until, "never", 99)


async def test_a_message_that_fails_every_attempt_becomes_a_dead_letter(
    cluster: Cluster, client: Client
) -> None:
    before = await cluster.counters()
    await client.send(apps.fail_until, "grave", 99)
    # Of the same key: it waits for its turn.
    assert await client.call(apps.fail_until, "grave", 1) == 1

    after = await cluster.counters()
    assert after["dead"] - before["dead"] == 1
    assert after["retries"] - before["retries"] == 2


async def test_one_bad_message_in_a_batch_fails_alone(client: Client) -> None:
    keys = [f"some{number}" for number in range(30)]
    amounts = [-1 if number == 17 else 1 for number in range(30)]

    replies = await client.call_many(apps.fail_some, keys, amounts, return_errors=True)

    errors = {place for place, each in enumerate(replies) if isinstance(each, HandlerError)}
    assert errors == {17}
    assert [each for each in replies if each == 1] == [1] * 29


async def test_a_rejection_reaches_the_caller_without_a_retry(
    cluster: Cluster, client: Client
) -> None:
    before = await cluster.counters()
    with pytest.raises(RejectedError, match="not today"):
        await client.call(apps.reject, "r", "not today")

    after = await cluster.counters()
    assert after["retries"] == before["retries"]


async def test_the_same_idempotency_key_has_one_effect_and_one_reply(
    cluster: Cluster, client: Client
) -> None:
    async with cluster.client() as other, asyncio.TaskGroup() as tasks:
        calls = [
            tasks.create_task(who.call(apps.count, "idem", 7, idempotency_key="order-1"))
            for who in (client, other)
            for _ in range(10)
        ]

    assert {each.result() for each in calls} == {7}
    assert await client.call(apps.count, "idem", 7, idempotency_key="order-1") == 7
    assert await client.call(apps.count, "idem", 7, idempotency_key="order-2") == 14
    with pytest.raises(IdempotencyConflictError, match="order-1"):
        await client.call(apps.count, "idem", 8, idempotency_key="order-1")


async def test_a_failure_is_remembered_by_its_idempotency_key_too(client: Client) -> None:
    for _ in range(2):
        with pytest.raises(HandlerError, match="attempt 3 of 50"):
            await client.call(apps.fail_until, "idem-fails", 50, idempotency_key="once")


async def test_messages_of_one_sender_to_one_key_keep_their_order_under_load(
    cluster: Cluster, client: Client
) -> None:
    targets = [f"target{number}" for number in range(6)]
    sources = [f"source{number}" for number in range(12)]
    rounds = 40

    async with asyncio.TaskGroup() as tasks:
        for _ in range(rounds):
            tasks.create_task(
                client.send_many(apps.number_source, sources, [targets] * len(sources))
            )
    async with asyncio.TaskGroup() as tasks:
        for number in range(1, 201):
            tasks.create_task(client.send(apps.numbered, "target0", ("client", number)))

    async def all_sent() -> bool:
        numbers: list[int] = await client.call_many(
            apps.number_source, sources, [[]] * len(sources)
        )
        return min(numbers) > rounds

    await until(all_sent)

    async def all_arrived() -> bool:
        counters = await cluster.counters()
        return counters["queued"] == 0

    await until(all_arrived)
    assert await cluster.egress("disorder") == []
