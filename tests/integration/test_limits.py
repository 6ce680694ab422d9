"""Every bound of a worker is hit: it says so, counts it, and loses nothing."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from grpc import aio

from sublet import (
    Client,
    KeyRejectedError,
    OverloadedError,
    StateTooLargeError,
    TooLargeError,
)
from sublet.runtime.protocol.frames import Batch, Data, Hello, Kind
from sublet.runtime.protocol.wire.frames import encode_frame
from sublet.runtime.protocol.wire.methods import SERVICE
from tests.integration.cluster import PROJECT, Cluster, running_cluster, until
from tests.integration.raw_client import raw_client

APP = "tests.integration.limit_app:app"


async def counter(cluster: Cluster, name: str) -> float:
    return (await cluster.counters())[name]


async def until_counted(cluster: Cluster, name: str, value: float) -> None:
    async def is_counted() -> bool:
        return await counter(cluster, name) >= value

    await until(is_counted)


async def test_more_in_flight_than_allowed_is_refused_and_comes_later(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with (
        running_cluster(tmp_path, app=APP, in_flight_max=10) as cluster,
        cluster.client() as client,
        cluster.client(overload_retries=0) as impatient,
    ):
        holding = asyncio.ensure_future(
            client.call_many("limit/hold", [f"k{n}" for n in range(10)], [str(gate)] * 10)
        )
        await until_counted(cluster, "in_flight", 10)
        with pytest.raises(OverloadedError, match=r"in flight.*retry after"):
            await impatient.call("limit/hold", "k", str(gate))
        patient = asyncio.ensure_future(client.call("limit/hold", "k", str(gate)))
        await until_counted(cluster, "refused", 2)
        gate.touch()

        assert await holding == [1] * 10
        assert await patient == 1
        assert await counter(cluster, "in_flight") == 0


async def test_who_floods_a_worker_takes_no_room_from_others(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with (
        running_cluster(tmp_path, app=APP, in_flight_max=10) as cluster,
        cluster.client() as client,
        cluster.client(overload_retries=0) as impatient,
    ):
        holding = asyncio.ensure_future(
            client.call_many("limit/hold", [f"k{n}" for n in range(10)], [str(gate)] * 10)
        )
        await until_counted(cluster, "in_flight", 10)

        assert await impatient.call("limit/count", "k", 1) == 1
        waiting = [
            asyncio.ensure_future(impatient.call("limit/ask", f"a{n}", str(gate))) for n in range(5)
        ]
        await until_counted(cluster, "in_flight", 15)
        with pytest.raises(OverloadedError, match="in flight"):
            await impatient.call("limit/ask", "one more", str(gate))
        gate.touch()
        assert await holding == [1] * 10
        assert await asyncio.gather(*waiting) == [1] * 5


async def test_a_full_queue_refuses_clients_and_loses_nothing(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with (
        running_cluster(tmp_path, app=APP, queue_max=5) as cluster,
        cluster.client(overload_retries=100) as client,
        cluster.client(overload_retries=0) as impatient,
    ):
        async with asyncio.TaskGroup() as tasks:
            calls = [
                tasks.create_task(client.call("limit/hold_thread", "k", str(gate)))
                for _ in range(30)
            ]
            for _ in range(5):
                # One at a time: a queue that is empty takes a batch of any size.
                await until_counted(cluster, "queued", 1)
                tasks.create_task(client.call("limit/hold_thread", "other", str(gate)))
            await until_counted(cluster, "queued", 5)
            with pytest.raises(OverloadedError, match=r"queue of limit/hold_thread/0 is full"):
                await impatient.call("limit/hold_thread", "k", str(gate))
            gate.touch()

        assert [each.result() for each in calls] == list(range(1, 31))
        assert await counter(cluster, "refused") > 0


async def test_a_partition_with_a_full_outbox_takes_nothing_from_clients_for_a_while(
    tmp_path: Path,
) -> None:
    async with (
        running_cluster(tmp_path, 2, app=APP, outbox_max=20, member_term_ms=20_000) as cluster,
        cluster.client(overload_retries=1_000) as client,
        cluster.client(overload_retries=0) as impatient,
    ):
        # Whoever does not own the sender is frozen: it takes nothing.
        sender = await owner_of(cluster, "limit/fan_out/0")
        other = 1 - sender
        keys = [str(number) for number in range(32)]
        await client.call_many("limit/bounce", keys, [0] * 32)
        await cluster.freeze(cluster.workers[other])
        try:
            with pytest.raises(OverloadedError, match="undelivered messages to other partitions"):
                await fan_out_for_ever(impatient, keys)
        finally:
            cluster.workers[other].thaw()
        sent = 32 * 20
        for _ in range(20):
            await client.call("limit/fan_out", "k", keys)

        async def arrived() -> bool:
            counts: list[int] = await client.call_many("limit/bounce", keys, [0] * 32)
            return min(counts) >= sent // 32

        await until(arrived)


async def fan_out_for_ever(client: Client, keys: list[str]) -> None:
    async with asyncio.timeout(15):
        while True:
            await client.call("limit/fan_out", "k", keys)


async def owner_of(cluster: Cluster, partition: str) -> int:
    for number, worker in enumerate(cluster.workers):
        if partition in (await cluster.status(worker)).partitions:
            return number
    raise AssertionError(f"nobody owns {partition}")


async def test_more_open_calls_than_allowed_wait_and_all_are_answered(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with (
        running_cluster(tmp_path, app=APP, open_calls_max=4) as cluster,
        cluster.client() as client,
    ):
        keys = [f"k{number}" for number in range(40)]
        calls = asyncio.ensure_future(client.call_many("limit/ask", keys, [str(gate)] * len(keys)))
        await until_counted(cluster, "in_flight", 40)
        gate.touch()
        async with asyncio.timeout(20):
            assert await calls == [1] * len(keys)


async def test_without_room_for_dead_letters_a_message_is_tried_until_it_succeeds(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    async with (
        running_cluster(tmp_path, app=APP, dead_letters_max=3) as cluster,
        cluster.client() as client,
    ):
        keys = [f"k{number}" for number in range(8)]
        await client.send_many("limit/fail_unless", keys, [str(gate)] * len(keys))
        await until_counted(cluster, "dead", 3)
        await until_counted(cluster, "retries", 20)
        gate.touch()
        replies = await client.call_many("limit/fail_unless", keys, [str(gate)] * len(keys))

        # Three were buried; the other five were handled before the call of their key.
        assert sorted(replies) == [1] * 3 + [2] * 5
        assert await counter(cluster, "dead") == 3


async def test_a_full_egress_drops_its_oldest_values_and_counts_them(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path, app=APP, egress_max=10) as cluster,
        cluster.client() as client,
    ):
        for start in range(0, 30, 5):
            await client.call("limit/publish", "k", list(range(start, start + 5)))

        assert await cluster.egress("log") == list(range(20, 30))
        assert await counter(cluster, "egress_dropped") == 20


async def test_a_state_above_its_bound_is_refused_and_the_former_stays(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path, app=APP, state_bytes_max=1_000) as cluster,
        cluster.client() as client,
    ):
        assert await client.call("limit/store", "k", 900) == 900
        with pytest.raises(StateTooLargeError, match="allowed: 1000"):
            await client.call("limit/store", "k", 1_100)
        assert await client.call("limit/store", "k", -1) == 900


async def test_a_message_above_its_bound_is_refused_by_client_and_worker(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path, app=APP, message_bytes_max=1_000, key_bytes_max=8) as cluster,
        cluster.client() as client,
        raw_client(cluster.workers[0].address) as raw,
    ):
        with pytest.raises(TooLargeError, match="allowed: 1000"):
            await client.call("limit/count", "k", "x" * 1_001)
        with pytest.raises(KeyRejectedError, match="allowed: 8"):
            await client.call("limit/count", "k" * 9, 1)
        partition = raw.partition_of("limit/count", "k")
        for message, code in ((("k", "x" * 1_001), "too_large"), (("k" * 9, 1), "bad_key")):
            raw.refusals.clear()
            raw.send(partition, 1, [("k", 1), message])
            await raw.until(lambda: bool(raw.refusals))
            assert raw.refusals[0].error.code == code
        # Together they may be larger than one may be.
        raw.send(partition, 1, [("k", "x" * 600)] * 2)
        await raw.until(lambda: len(raw.errors) == 2)
        assert {error.code for error in raw.errors.values()} == {"bad_payload"}


@pytest.mark.parametrize("function", ["limit/store", "limit/store_thread"])
async def test_a_small_cache_evicts_and_reads_again(tmp_path: Path, function: str) -> None:
    async with (
        running_cluster(tmp_path, app=APP, cache_bytes_max=200_000) as cluster,
        cluster.client() as client,
    ):
        keys = [f"k{number}" for number in range(300)]
        sizes = [100 + number for number in range(300)]
        for _ in range(3):
            assert await client.call_many(function, keys, sizes) == sizes
            assert await client.call_many(function, keys, [-1] * 300) == sizes

        assert await counter(cluster, "cache_evicted") > 0
        assert await counter(cluster, "cache_bytes") <= 200_000


async def test_a_client_with_little_credit_is_slower_not_wrong(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path, app=APP, client_credit=3, commit_messages_max=2) as cluster,
        cluster.client() as client,
    ):
        replies = await client.call_many("limit/count", ["k"] * 200, [1] * 200)

        assert replies == list(range(1, 201))


@pytest.mark.parametrize("seed", [0, 5])
async def test_two_workers_that_send_to_each_other_with_tiny_limits_never_lock(
    tmp_path: Path, seed: int
) -> None:
    tiny = {
        "in_flight_max": 8,
        "queue_max": 4,
        "outbox_max": 4,
        "batch_size_max": 3,
        "commit_messages_max": 4,
        "client_credit": 4,
    }
    async with (
        running_cluster(tmp_path, 2, app=APP, **tiny) as cluster,
        cluster.client(overload_retries=10_000) as client,
    ):
        hops, starts = 5, 16
        async with asyncio.timeout(40):
            async with asyncio.TaskGroup() as tasks:
                for number in range(starts):
                    key = str((seed + 3 * number) % 32)
                    tasks.create_task(client.call("limit/bounce", key, hops))
            expected: int = starts * (2 ** (hops + 1) - 1)
            keys = [str(number) for number in range(32)]
            looks = 0

            async def all_arrived() -> bool:
                nonlocal looks
                looks += 1
                # A look is a visit too.
                counts: list[int] = await client.call_many("limit/bounce", keys, [0] * 32)
                return sum(counts) - 32 * looks >= expected

            await until(all_arrived)
            counts = await client.call_many("limit/bounce", keys, [0] * 32)
        assert sum(counts) == expected + 32 * (looks + 1)


async def test_a_client_that_takes_no_replies_is_refused_and_others_are_not(
    tmp_path: Path,
) -> None:
    """It reads, but acknowledges nothing: the worker must keep every reply for it."""
    async with (
        running_cluster(tmp_path, app=APP, client_credit=50) as cluster,
        cluster.client() as client,
        raw_client(cluster.workers[0].address, "~greedy") as greedy,
    ):
        partition = greedy.partition_of("limit/count", "k")
        while not greedy.refusals:
            number = greedy.acknowledged.get(partition, 0) + 1
            greedy.send(partition, number, [("k", 1)])
            await greedy.answered(partition, number)
        assert greedy.refusals[0].error.code == "overloaded"
        assert "unacknowledged replies" in greedy.refusals[0].error.message

        assert await client.call("limit/count", "k", 1) == 52
        # As soon as it takes them, it may go on.
        greedy.acknowledge(partition, 51)
        greedy.send(partition, 52, [("k", 1)])
        await greedy.until(lambda: (partition, 52) in greedy.replies)
        assert greedy.replies[partition, 52] == 53


async def test_a_client_that_stops_reading_fills_no_memory_and_hinders_nobody(
    tmp_path: Path,
) -> None:
    reply_bytes = 200_000
    async with (
        running_cluster(tmp_path, app=APP, link_bytes_max=4_000_000) as cluster,
        cluster.client() as client,
        silent_stream(cluster.workers[0].address) as write,
    ):
        worker = cluster.workers[0]
        await client.call("limit/reply_large", "", reply_bytes)
        before_bytes = worker.memory_bytes()
        for number in range(1, 3_001):
            payloads = msgspec.Raw(msgspec.msgpack.encode([reply_bytes]))
            batch = Batch("limit/reply_large/0", "~deaf", number, Kind.CALL, ["k"], payloads, 1)
            await write(Data([batch]))
        await until_counted(cluster, "refused", 1)

        # It asked for 600 MB. What ran before the first reply was kept is above the bound.
        assert worker.memory_bytes() - before_bytes < 200_000_000
        for number in range(1, 51):
            assert len(await client.call("limit/reply_large", "", reply_bytes)) == reply_bytes
            assert await client.call("limit/count", "others", 1) == number


@pytest.mark.parametrize("lane", [0, 1])
async def test_a_link_with_little_room_is_slower_not_stuck(tmp_path: Path, lane: int) -> None:
    async with (
        running_cluster(tmp_path, app=APP, link_bytes_max=1_000, lane=lane) as cluster,
        cluster.client(overload_retries=1_000) as client,
    ):
        sizes = [number * 2_000 for number in range(100)]
        async with asyncio.timeout(20):
            replies = await client.call_many("limit/reply_large", None, sizes)

        assert [len(each) for each in replies] == sizes


@asynccontextmanager
async def silent_stream(address: str) -> AsyncIterator[Callable[[Data], Awaitable[None]]]:
    """A gRPC stream that is written to and never read."""
    async with aio.insecure_channel(address) as channel:
        connect: aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            f"/{SERVICE}/Connect"
        )
        stream = connect()
        await stream.write(encode_frame(Hello("~deaf")))

        async def write(data: Data) -> None:
            await stream.write(encode_frame(data))

        yield write
        stream.cancel()


async def killed_client(cluster: Cluster, key: str) -> int:
    """Let a process send numbers to its key, kill it, and return the last it was told of."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.doomed_client",
        *cluster.addresses(),
        key,
        cwd=PROJECT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        lines = [await process.stdout.readline() for _ in range(8)]
    finally:
        process.kill()
        rest, _ = await process.communicate()
    return int((b"".join(lines) + rest).rpartition(b" taken\n")[0].split()[-1])


async def test_what_a_client_has_sent_before_it_was_killed_is_taken_once(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 2, app=APP) as cluster, cluster.client() as client:
        for key in ("a", "b", "c", "d"):
            told = await killed_client(cluster, key)

            async def nothing_is_open() -> bool:
                counters = await cluster.counters()
                return counters["in_flight"] == counters["queued"] == 0

            await until(nothing_is_open)
            # What it was told of is there; what it was not told of may be.
            assert await client.call("limit/doomed", key, 0) >= told
        # None of it was taken twice or out of order: the function would have told.
        assert await cluster.egress("disorder") == []
