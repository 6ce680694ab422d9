"""What a worker does with requests that nobody should make."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from grpc import aio

from sublet import (
    Client,
    HandlerError,
    KeyRejectedError,
    PayloadError,
    RejectedError,
    StateTooLargeError,
    StateTypeError,
    TooLargeError,
    UnknownFunctionError,
)
from sublet.functions.errors import UnavailableError
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.frames import (
    Ack,
    Batch,
    Data,
    ErrorInfo,
    Frame,
    Goodbye,
    Hello,
    Kind,
    Refused,
)
from sublet.runtime.protocol.rpc import CallRequest
from sublet.runtime.protocol.wire.frames import encode_frame
from sublet.runtime.protocol.wire.methods import SERVICE
from tests.integration import apps
from tests.integration.cluster import Cluster, until
from tests.integration.raw_client import RawClient, raw_client


@pytest.fixture(scope="module")
def cluster(one_worker: Cluster) -> Cluster:
    return one_worker


@pytest.fixture(autouse=True)
def alive(cluster: Cluster) -> Iterator[None]:
    """Whatever a test asks for: the worker is still there when it ends."""
    yield
    assert cluster.workers[0].is_running, cluster.log
    assert "Traceback" not in cluster.log


@pytest.fixture
async def raw(cluster: Cluster) -> AsyncIterator[RawClient]:
    async with raw_client(cluster.workers[0].address) as raw:
        yield raw


async def test_an_unknown_function_is_named_with_the_known_ones(
    cluster: Cluster, client: Client
) -> None:
    with pytest.raises(UnknownFunctionError, match=r"test/nothing.*test/count"):
        await client.call("test/nothing", "k", 1)
    async with UnaryClient(cluster.workers[0].address) as unary:
        with pytest.raises(UnknownFunctionError, match="test/nothing"):
            await unary.call(CallRequest(function="test/nothing", key="k"))


async def test_a_payload_of_the_wrong_type_fails_alone_and_without_a_retry(
    cluster: Cluster, client: Client
) -> None:
    before = await cluster.counters()
    replies = await client.call_many(apps.count, ["a", "b", "c"], [1, "one", 1], return_errors=True)

    assert replies[0] == replies[2] == 1
    assert isinstance(replies[1], PayloadError)
    assert "test/count" in str(replies[1])
    assert "int" in str(replies[1])
    after = await cluster.counters()
    assert after["retries"] == before["retries"]


async def test_a_bad_payload_that_was_sent_becomes_a_dead_letter(
    cluster: Cluster, client: Client
) -> None:
    before = await cluster.counters()
    await client.send(apps.count, "sent", "one")

    async def is_dead() -> bool:
        return (await cluster.counters())["dead"] == before["dead"] + 1

    await until(is_dead)


@pytest.mark.parametrize("key", [7, None, b"bytes"])
async def test_a_key_that_is_no_text_is_refused(client: Client, key: object) -> None:
    with pytest.raises(KeyRejectedError, match="a key is a str"):
        await client.call(apps.count, key, 1)  # type: ignore[arg-type]


async def test_a_key_of_the_largest_size_works_and_a_larger_one_does_not(client: Client) -> None:
    assert await client.call(apps.count, "ä" * 512, 1) == 1
    with pytest.raises(KeyRejectedError, match=r"1026 bytes; allowed: 1024"):
        await client.call(apps.count, "ä" * 513, 1)


async def test_a_raw_link_cannot_pass_a_key_that_is_too_long(
    raw: RawClient, client: Client
) -> None:
    partition = raw.partition_of("test/count", "k")
    raw.send(partition, 1, [("k", 1), ("k" * 1_025, 1)])
    await raw.until(lambda: bool(raw.refusals))

    assert raw.refusals[0].error.code == "bad_key"
    assert raw.refusals[0].first == 1
    # Nothing was taken: the channel goes on from where it was.
    raw.send(partition, 1, [("k", 5)])
    await raw.until(lambda: bool(raw.replies))
    assert raw.replies[partition, 1] == 5


async def test_a_raw_link_cannot_speak_for_somebody_else(cluster: Cluster) -> None:
    async with raw_client(cluster.workers[0].address, "~liar") as raw:
        raw.send(raw.partition_of("test/count", "k"), 1, [("k", 1)], source="~victim")
        await raw.until(lambda: raw.ending is not None)
        assert raw.ending is not None
        assert "~victim" in raw.ending[0]


async def test_a_raw_link_cannot_pretend_to_be_a_worker(cluster: Cluster) -> None:
    """Who could would send messages as any partition, and take leases with the states in them."""
    worker = cluster.workers[0]
    refused = pytest.RaisesExc(UnavailableError, match="have not proved to be one")
    for name in ("w-stranger", (await cluster.status(worker)).worker):
        with pytest.RaisesGroup(refused):
            async with raw_client(worker.address, name):
                pass


async def test_a_raw_link_cannot_acknowledge_the_replies_of_somebody_else(
    cluster: Cluster, raw: RawClient
) -> None:
    partition = raw.partition_of("test/double", "k")
    async with raw_client(cluster.workers[0].address, "~reader") as reader:
        reader.send(partition, 1, [("k", 1)])
        await reader.until(lambda: (partition, 1) in reader.replies)
        raw.acknowledge(partition, 99, target="~reader")
        raw.send(raw.partition_of("test/count", "after"), 1, [("after", 1)])
        await raw.until(lambda: bool(raw.replies))
        reader.replies.clear()
        # It lost the reply and asks for it again by coming back.
        async with raw_client(cluster.workers[0].address, "~reader") as again:
            await again.until(lambda: (partition, 1) in again.replies)


@pytest.mark.parametrize("kind", [Kind.REPLY, Kind.CANCEL_TIMER])
async def test_a_client_can_neither_answer_nor_cancel(cluster: Cluster, kind: Kind) -> None:
    async with raw_client(cluster.workers[0].address, f"~{kind.name}") as raw:
        partition = raw.partition_of("test/count", "k")
        if kind is Kind.REPLY:
            raw.send(partition, 1, [], kind=kind)
        else:
            raw.send(partition, 1, [("1.1", None)], kind=kind)
        await raw.until(lambda: bool(raw.refusals) or raw.ending is not None)


async def test_a_gap_in_a_raw_link_is_told_and_filled(cluster: Cluster) -> None:
    async with raw_client(cluster.workers[0].address, "~gap") as raw:
        partition = raw.partition_of("test/count", "gap")
        raw.send(partition, 1, [("gap", 1)])
        raw.send(partition, 3, [("gap", 1)])
        await raw.until(lambda: bool(raw.refusals))
        assert (raw.refusals[0].error.code, raw.refusals[0].first) == ("gap", 2)
        raw.send(partition, 1, [("gap", 1), ("gap", 1), ("gap", 1)])
        await raw.until(lambda: len(raw.replies) == 3)
        assert [raw.replies[partition, number] for number in (1, 2, 3)] == [1, 2, 3]


async def test_a_batch_for_a_partition_that_is_not_there_is_refused(raw: RawClient) -> None:
    raw.send("test/nothing/3", 1, [("k", 1)])
    await raw.until(lambda: bool(raw.refusals))
    assert raw.refusals[0].error.code == "not_owner"


async def test_a_message_of_the_largest_size_works_and_a_larger_one_does_not(
    client: Client,
) -> None:
    largest = 4 * 2**20 - 5
    with pytest.raises(PayloadError):  # It arrived, and is no number.
        await client.call(apps.count, "k", b"x" * largest)
    with pytest.raises(TooLargeError, match="allowed: 4194304"):
        await client.call(apps.count, "k", b"x" * (largest + 1))


async def test_a_reply_of_the_largest_size_works_and_a_larger_one_does_not(
    client: Client,
) -> None:
    largest = 4 * 2**20 - 5
    assert len(await client.call(apps.large, "", largest)) == largest
    with pytest.raises(HandlerError, match="allowed: 4194304"):
        await client.call(apps.large, "", largest + 1)
    # Many that fit no frame together.
    replies = await client.call_many(apps.large, None, [2**20] * 12)
    assert [len(each) for each in replies] == [2**20] * 12


async def test_a_handler_that_sends_too_much_fails_and_sends_nothing(client: Client) -> None:
    with pytest.raises(HandlerError, match="allowed: 4194304"):
        await client.call(apps.send_large, "", 5 * 2**20)


async def test_many_long_errors_fit_their_frames(client: Client) -> None:
    replies = await client.call_many(apps.fail_long, None, [5_000] * 2_400, return_errors=True)

    assert all(isinstance(each, HandlerError) for each in replies)
    assert max(len(str(each)) for each in replies) <= 2_100


async def test_many_long_keys_fit_their_frames(client: Client) -> None:
    keys = [f"{number}".rjust(1_000, "k") for number in range(6_000)]

    replies = await client.call_many(apps.forward, keys[:1], [dict.fromkeys(keys[:3_000], 1)])

    assert replies == [3_000]
    assert len(await client.call_many(apps.double, keys, [1] * len(keys))) == len(keys)


async def test_a_reply_that_cannot_be_encoded_is_an_error_for_its_caller(client: Client) -> None:
    with pytest.raises(HandlerError, match=r"cannot be its reply: .* allowed"):
        await client.call(apps.unencodable)


async def test_a_state_above_its_bound_fails_and_stays_as_it_was(client: Client) -> None:
    assert await client.call(apps.grow, "k", 1_000_000) == 1_000_000
    with pytest.raises(StateTooLargeError, match="allowed"):
        await client.call(apps.grow, "k", 1_100_000)


async def test_a_handler_that_exits_fails_like_any_other(client: Client) -> None:
    for function in (apps.exit_process, apps.exit_process_later):
        with pytest.raises(HandlerError, match="SystemExit: 3"):
            await client.call(function, "", 3)


async def test_a_handler_that_cancels_itself_fails_like_any_other(client: Client) -> None:
    with pytest.raises(HandlerError, match="CancelledError"):
        await client.call(apps.cancel_itself)


def garbled(frame: bytes, chance: random.Random) -> bytes:
    """Return the frame with some bytes changed, cut out, put in or repeated."""
    garbage = bytearray(frame)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(garbage) + 1)
        match chance.randrange(4):
            case 0:
                garbage[place : place + 1] = chance.randbytes(1)
            case 1:
                del garbage[place : place + chance.randint(1, 8)]
            case 2:
                garbage[place:place] = chance.randbytes(chance.randint(1, 8))
            case _:
                garbage[place:place] = garbage[: chance.randint(1, 40)]
    return bytes(garbage)


def sound_frames(name: str, partition: str) -> list[bytes]:
    payloads = msgspec.Raw(msgspec.msgpack.encode([1, 2, 3]))
    batch = Batch(partition, name, 1, Kind.CALL, ["a", "b", "c"], payloads, 3, 1_000)
    frames: list[Frame] = [
        Hello(name),
        Data([batch], [Ack(name, partition, 1)], 7),
        Refused(name, partition, 1, ErrorInfo("gap", "none")),
        Goodbye("end"),
    ]
    return [encode_frame(each) for each in frames]


@pytest.mark.parametrize("seed", range(3))
async def test_garbled_frames_neither_crash_nor_fill_a_worker(
    cluster: Cluster, client: Client, seed: int
) -> None:
    chance = random.Random(seed)
    worker = cluster.workers[0]
    before_bytes = worker.memory_bytes()
    async with aio.insecure_channel(worker.address) as channel:
        connect: aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            f"/{SERVICE}/Connect"
        )
        for number in range(60):
            hello, *others = sound_frames(f"~garbled{seed}-{number}", "test/count/0")
            stream = connect()
            try:
                await stream.write(hello if number % 4 else garbled(hello, chance))
                for frame in chance.choices(others, k=6):
                    await stream.write(garbled(frame, chance))
            except (aio.AioRpcError, asyncio.InvalidStateError):
                pass  # It was told goodbye, rightly.
            stream.cancel()

    assert await client.call(apps.double, "", 4) == 8
    assert worker.memory_bytes() - before_bytes < 50_000_000


async def test_bytes_that_are_no_protocol_at_all_are_turned_away(
    cluster: Cluster, client: Client
) -> None:
    chance = random.Random(7)
    host, _, port = cluster.workers[0].address.rpartition(":")
    (lane,) = (cluster.data_dir / "lanes").glob("*.sock")
    for number in range(40):
        if number % 2:
            _, writer = await asyncio.open_connection(host, int(port))
        else:
            _, writer = await asyncio.open_unix_connection(lane)
        writer.write(chance.randbytes(chance.randint(1, 5_000)))
        with suppress(ConnectionError):
            await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    assert await client.call(apps.double, "", 4) == 8


async def test_state_that_does_not_fit_its_new_type_fails_until_the_type_fits_again(
    tmp_path: Path,
) -> None:
    """The first deployment stores numbers, the second expects text."""
    number, text = (f"tests.integration.changing_apps:{name}" for name in ("number", "text"))
    cluster = Cluster(number, tmp_path, {})
    try:
        await cluster.start(1)
        async with cluster.client() as client:
            assert await client.call("changing/kept", "k", None) == 1
        for target, expected in ((text, None), (number, 2)):
            cluster.workers[-1].terminate()
            await cluster.workers[-1].ended()
            cluster.add_worker(target)
            await cluster.ready()
            async with cluster.client() as client:
                if expected is None:
                    with pytest.raises(StateTypeError, match=r"changing/kept\[k\]"):
                        await client.call("changing/kept", "k", None)
                    assert await client.call("changing/kept", "new", None) == "x"
                else:
                    assert await client.call("changing/kept", "k", None) == expected
    finally:
        cluster.close()


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("raised", "raised ValueError: \\udcff"),
        ("rejected", "\\udcff"),
        ("unspeakable", "its message is unavailable"),
        ("emitted", "not a valid egress name"),
        ("sent", "the key is not valid Unicode"),
        ("sent later", "the key is not valid Unicode"),
        ("cancelled", "not a token from send_after"),
    ],
)
async def test_what_is_no_text_fails_its_message_alone(
    cluster: Cluster, client: Client, where: str, told: str
) -> None:
    living = cluster.living
    with pytest.raises((HandlerError, RejectedError)) as failed:
        await client.call(apps.half_characters, "a", where, deadline="10s")
    assert told in str(failed.value)
    assert cluster.living == living
