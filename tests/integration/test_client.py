"""The client against workers that echo, over real links."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from sublet import App, Context
from sublet.functions.address import partition_index_of
from sublet.functions.errors import (
    DeadlineExceededError,
    EncodeError,
    HandlerError,
    KeyRejectedError,
    OverloadedError,
    PayloadError,
    RejectedError,
    SubletError,
    TooLargeError,
    UnavailableError,
    UnknownFunctionError,
    UnknownOutcomeError,
)
from sublet.runtime.client.blocking import BlockingClient
from sublet.runtime.client.client import Client
from sublet.runtime.links.link import Link, LinkReceiver
from sublet.runtime.protocol.frames import Batch, ErrorInfo, Hello
from tests.integration import apps
from tests.integration.cluster import Cluster
from tests.integration.cluster import running_cluster as real_cluster
from tests.integration.echo_worker import EchoCluster, EchoWorker, running_cluster, serving

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


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster("tests.integration.apps:app", tmp_path_factory.mktemp("real"), {})
    try:
        asyncio.run(cluster.start(2))
        yield cluster
    finally:
        cluster.close()


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not happened():  # noqa: ASYNC110  # what is waited for is in a worker, not here
            await asyncio.sleep(0.005)


# One message


async def test_a_call_returns_the_reply(client: Client) -> None:
    assert await client.call("shop/echo", "a", {"n": 1}) == {"n": 1}


async def test_a_declared_function_returns_its_declared_type(client: Client) -> None:
    app = App("shop")

    @app.function
    def echo(ctx: Context, number: int) -> tuple[int, str]:
        raise NotImplementedError

    assert await client.call(echo, "a", [1, "x"]) == (1, "x")
    assert await client.call_many(echo, ["a", "b"], [[1, "x"], [2, "y"]]) == [(1, "x"), (2, "y")]
    with pytest.raises(PayloadError, match="the reply of shop/echo"):
        await client.call(echo, "a", "no pair")


async def test_calls_of_one_turn_leave_in_one_frame_to_each_worker(
    client: Client, cluster: EchoCluster
) -> None:
    keys = [f"k{index}" for index in range(64)]
    await asyncio.gather(*(client.call("shop/echo", key, 0) for key in keys))
    before = {name: len(worker.frames) for name, worker in cluster.workers.items()}
    replies = await asyncio.gather(*(client.call("shop/echo", key, key) for key in keys))

    assert replies == keys
    for name, worker in cluster.workers.items():
        new = worker.frames[before[name] :]
        assert sum(1 for frame in new if frame.batches) == 1


async def test_a_sent_message_is_taken_when_send_returns(
    client: Client, cluster: EchoCluster
) -> None:
    await client.send("shop/echo", "a", 1)
    await client.send_many("shop/echo", ["b", "c"], [2, 3])

    assert sorted(cluster.taken("shop/echo")) == [("a", 1), ("b", 2), ("c", 3)]


async def test_messages_of_one_key_arrive_in_the_order_asked(
    client: Client, cluster: EchoCluster
) -> None:
    async with asyncio.TaskGroup() as tasks:
        for number in range(300):
            if number % 3:
                tasks.create_task(client.call("shop/echo", "a", number))
            else:
                tasks.create_task(client.send_many("shop/echo", ["a"], [number]))

    assert [number for _, number in cluster.taken("shop/echo")] == list(range(300))


async def test_messages_without_state_are_spread(client: Client, cluster: EchoCluster) -> None:
    await asyncio.gather(*(client.call("shop/spread", message=1) for _ in range(40)))
    await asyncio.gather(*(client.send("shop/counter", message=1) for _ in range(40)))
    await client.call_many("shop/spread", None, [1] * 400)

    taken = {name: len(each.taken) for name, each in cluster.partitions.items()}
    assert [taken[f"shop/counter/{index}"] for index in range(4)] == [10] * 4
    assert [taken[f"shop/spread/{index}"] for index in range(4)] == [110] * 4


async def test_a_stateful_function_with_a_key_has_one_partition_for_it(
    client: Client, cluster: EchoCluster
) -> None:
    for _ in range(8):
        await client.send("shop/counter", "a", 1)

    counts = Counter(name for name, each in cluster.partitions.items() for _ in each.taken)
    assert list(counts.values()) == [8]


async def test_a_repeated_idempotency_key_goes_to_one_partition_whoever_repeats_it(
    client: Client, cluster: EchoCluster
) -> None:
    async with Client(cluster.addresses["w2"]) as other:
        for function in ("shop/spread", "shop/counter"):
            for number in range(8):
                once = f"order {number}"
                await client.call(function, message=number)  # Their turns differ.
                for each in (client, other, client):
                    await each.call(function, message=number, idempotency_key=once)

                found = {
                    name
                    for name, part in cluster.partitions.items()
                    for batch in part.batches
                    if name.startswith(function)
                    and batch.extras
                    and any(extra.idempotency_key == once for extra in batch.extras.values())
                }
                assert found == {f"{function}/{partition_index_of(once, 4)}"}


async def test_an_idempotency_key_and_the_time_left_travel(
    client: Client, cluster: EchoCluster
) -> None:
    await client.call("shop/echo", "a", 1, deadline="5s", idempotency_key="order-7")

    (batch,) = [each for part in cluster.partitions.values() for each in part.batches]
    assert batch.extras is not None
    assert batch.extras[0].idempotency_key == "order-7"
    assert isinstance(batch.time_left_ms, int)
    assert 4_000 < batch.time_left_ms <= 5_001


async def test_the_handlers_error_is_raised(client: Client) -> None:
    with pytest.raises(HandlerError, match="fail: no stock"):
        await client.call("shop/echo", "a", "fail: no stock")


# Many messages


async def test_call_many_returns_replies_in_the_order_of_its_messages(client: Client) -> None:
    count = 30_000
    keys = [f"k{index % 999}" for index in range(count)]

    assert await client.call_many("shop/echo", keys, list(range(count))) == list(range(count))
    assert await client.call_many("shop/echo", [], []) == []


async def test_call_many_raises_the_first_error_or_returns_all(client: Client) -> None:
    keys = ["a", "b", "c", "d"]
    messages: list[object] = [1, "fail two", 3, "fail four"]

    with pytest.raises(HandlerError, match="fail two"):
        await client.call_many("shop/echo", keys, messages)
    replies = await client.call_many("shop/echo", keys, messages, return_errors=True)
    assert [str(reply) for reply in replies] == ["1", "fail two", "3", "fail four"]
    assert isinstance(replies[3], HandlerError)


async def test_bad_ones_among_many_fail_alone(client: Client) -> None:
    keys: list[str] = ["a", "b" * 65, "c", "d", 5, "\ud800"]  # type: ignore[list-item]
    messages: list[object] = [1, 2, object(), "x" * 70_000, 5, 6]

    replies = await client.call_many("shop/echo", keys, messages, return_errors=True)

    assert replies[0] == 1
    assert [type(reply) for reply in replies[1:]] == [
        KeyRejectedError,
        EncodeError,
        TooLargeError,
        KeyRejectedError,
        KeyRejectedError,
    ]


async def test_many_large_messages_travel_in_several_frames(
    client: Client, cluster: EchoCluster
) -> None:
    messages = [f"{index}" + "x" * 60_000 for index in range(60)]

    assert await client.call_many("shop/echo", ["a"] * 60, messages) == messages
    assert sum(1 for worker in cluster.workers.values() for _ in worker.frames) >= 3


async def test_keys_and_messages_must_match(client: Client) -> None:
    with pytest.raises(RejectedError, match="2 keys but 1 messages"):
        await client.call_many("shop/echo", ["a", "b"], [1])


# Bad requests


async def test_an_unknown_function_is_refused_with_the_known_ones(client: Client) -> None:
    with pytest.raises(UnknownFunctionError, match="known: shop/counter, shop/echo, shop/spread"):
        await client.call("shop/card", "a")
    with pytest.raises(UnknownFunctionError):
        await client.send_many("shop/card", ["a"], [1])
    with pytest.raises(TypeError, match="is not a function; allowed"):
        await client.call(len, "a")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "message", "error"),
    [
        ("k" * 65, 1, "the key has 65 bytes; allowed: 64"),
        (7, 1, "a key is a str, not int"),
        (["k"], 1, "a key is a str, not list"),
        ("\ud800", 1, "the key is not valid Unicode"),
        ("k", "x" * 65_536, "allowed: 65536"),
        ("k", object(), "object"),
    ],
)
async def test_a_bad_key_or_message_is_refused_before_it_is_sent(
    client: Client, cluster: EchoCluster, key: str, message: object, error: str
) -> None:
    with pytest.raises(RejectedError, match=error):
        await client.call("shop/echo", key, message)
    assert not cluster.workers["w1"].frames


async def test_what_is_no_text_is_refused_and_holds_up_no_other_call(client: Client) -> None:
    async with asyncio.TaskGroup() as tasks:
        other = tasks.create_task(client.call("shop/echo", "a", 1))
        with pytest.raises(RejectedError, match="the idempotency key is not valid Unicode"):
            await client.call("shop/echo", "a", 1, idempotency_key="\udcff")
        with pytest.raises(RejectedError, match="the key is not valid Unicode"):
            await client.call("shop/spread", "\udcff", 1)
        with pytest.raises(RejectedError, match="the key is not valid Unicode"):
            await client.watermark("shop/echo", 1, source="\udcff")
    assert other.done()


async def test_a_long_idempotency_key_is_refused(client: Client) -> None:
    with pytest.raises(
        RejectedError, match=r"the idempotency key has 257 bytes; allowed: 1\.\.256"
    ):
        await client.call("shop/echo", "a", 1, idempotency_key="i" * 257)


async def test_an_idempotency_key_with_a_control_character_is_refused(client: Client) -> None:
    with pytest.raises(RejectedError, match="has a control character"):
        await client.send("shop/spread", "", 1, idempotency_key="a\x00b")


def test_settings_that_cannot_work_are_refused() -> None:
    for address in ("nowhere", "host:", ":80", "host:99999"):
        with pytest.raises(ValueError, match="allowed"):
            Client(address)
    with pytest.raises(ValueError, match="no address given"):
        Client([])
    with pytest.raises(ValueError, match="in_flight_max is 0; allowed: 1 or more"):
        Client("localhost:80", in_flight_max=0)


# Time and room


async def test_a_missed_deadline_is_raised(client: Client, cluster: EchoCluster) -> None:
    for worker in cluster.workers.values():
        worker.silent = True
    with pytest.raises(DeadlineExceededError):
        await client.call("shop/echo", "a", 1, deadline="30ms")
    with pytest.raises(DeadlineExceededError):
        await client.call_many("shop/echo", ["a", "b"], [1, 2], deadline="30ms")
    assert client.stats.deadlines_missed == 3


async def test_callers_beyond_in_flight_max_wait_in_order(cluster: EchoCluster) -> None:
    async with Client(cluster.addresses["w1"], in_flight_max=4) as client:
        highest = 0

        async def ask(number: int) -> object:
            nonlocal highest
            reply = await client.call("shop/echo", "a", number)
            highest = max(highest, client.stats.in_flight)
            return reply

        assert await asyncio.gather(*map(ask, range(50))) == list(range(50))
        assert await client.call_many("shop/echo", ["a"] * 30, list(range(30))) == list(range(30))
    assert highest <= 4
    assert [number for _, number in cluster.taken("shop/echo")] == [*range(50), *range(30)]


async def test_who_is_refused_after_it_waited_for_room_leaves_it_to_the_next(
    cluster: EchoCluster,
) -> None:
    """All others waited for ever, if nothing else was under way."""
    async with (
        asyncio.timeout(PATIENCE_S),
        Client(cluster.addresses["w1"], in_flight_max=1) as client,
    ):
        first, unknown, second, bad_keys, third = await asyncio.gather(
            client.call("shop/echo", "a", 1),
            client.call("shop/nothing", "a", 2),
            client.call("shop/echo", "a", 3),
            client.call_many("shop/echo", ["k" * 99_999], [4], return_errors=True),
            client.call("shop/echo", "a", 5),
            return_exceptions=True,
        )

    assert (first, second, third) == (1, 3, 5)
    assert isinstance(unknown, UnknownFunctionError)
    assert isinstance(bad_keys, list)
    assert isinstance(bad_keys[0], RejectedError)


async def test_a_deadline_counts_while_waiting_for_room(cluster: EchoCluster) -> None:
    async with Client(cluster.addresses["w1"], in_flight_max=1) as client:
        for worker in cluster.workers.values():
            worker.silent = True
        first = asyncio.ensure_future(client.call("shop/echo", "a", 1, deadline="200ms"))
        await asyncio.sleep(0)
        with pytest.raises(DeadlineExceededError, match="in_flight_max"):
            await client.call("shop/echo", "a", 2, deadline="20ms")
        waiting = asyncio.ensure_future(client.call("shop/echo", "a", 3))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(DeadlineExceededError):
            await first
        for worker in cluster.workers.values():
            worker.silent = False
        assert await client.call("shop/echo", "b", 4) == 4


async def test_a_client_keeps_within_the_workers_window(cluster: EchoCluster) -> None:
    for worker in cluster.workers.values():
        worker.credit = 3
    async with Client(cluster.addresses["w1"]) as client:
        keys = [f"k{index}" for index in range(200)]
        assert await client.call_many("shop/echo", keys, keys) == keys
    for worker in cluster.workers.values():
        assert max(sum(batch.count for batch in frame.batches) for frame in worker.frames) <= 3


async def test_a_caller_cancelled_before_its_call_has_left_does_not_make_it(
    client: Client, cluster: EchoCluster
) -> None:
    asking = asyncio.ensure_future(client.call("shop/echo", "a", "wanted by nobody"))
    await asyncio.sleep(0)
    asking.cancel()
    assert await client.call("shop/echo", "a", 2) == 2
    assert ("a", "wanted by nobody") not in cluster.taken("shop/echo")


async def test_a_cancelled_sender_takes_nothing_back(client: Client, cluster: EchoCluster) -> None:
    sending = asyncio.ensure_future(client.send("shop/echo", "a", "wanted by nobody"))
    await asyncio.sleep(0)
    sending.cancel()
    assert await client.call("shop/echo", "a", 2) == 2
    assert ("a", "wanted by nobody") in cluster.taken("shop/echo")


async def test_replies_are_acknowledged_without_another_call(
    client: Client, cluster: EchoCluster
) -> None:
    await client.call("shop/echo", "a", 1)

    await until(lambda: not any(any(each.owed.values()) for each in cluster.partitions.values()))


class NoticingWorker(EchoWorker):
    """Lets others know that somebody has come in, who has not read the welcome yet."""

    def __init__(self, cluster: EchoCluster, name: str) -> None:
        super().__init__(cluster, name)
        self.accepted = asyncio.Event()

    def accept(self, link: Link, hello: Hello) -> LinkReceiver:
        self.accepted.set()
        return super().accept(link, hello)


@pytest.mark.parametrize("lane", ["lane", ""], ids=["lane", "grpc"])
async def test_who_leaves_says_goodbye_also_on_links_that_were_just_being_opened(
    tmp_path: Path, lane: str
) -> None:
    cluster = EchoCluster()
    first, second = cluster.workers["w1"], NoticingWorker(cluster, "w2")
    paths = [str(tmp_path / name / "lane") if lane else "" for name in ("w1", "w2")]
    async with (
        asyncio.timeout(PATIENCE_S),
        serving(first, lane_path=paths[0]) as server,
        serving(second, lane_path=paths[1]),
        asyncio.TaskGroup() as tasks,
    ):
        async with Client(server.address) as client:
            keys = [f"k{number}" for number in range(16)]
            asking = tasks.create_task(client.send_many("shop/echo", keys, keys))
            await second.accepted.wait()
            asking.cancel()
        await until(lambda: bool(first.endings and second.endings))
        assert [*first.endings, *second.endings] == [("client closed", True)] * 2


# Faults


def taken_once(cluster: EchoCluster, count: int) -> bool:
    numbers = [number for _, number in cluster.taken("shop/echo")]
    return sorted(numbers) == list(range(count))  # type: ignore[type-var]


async def test_a_restarted_worker_is_reconnected_to_and_nothing_is_lost() -> None:
    cluster = EchoCluster()
    cluster.move_all("w1", tell=False)
    worker = cluster.workers["w1"]
    async with asyncio.timeout(PATIENCE_S), serving(worker) as server:
        port = server.port
        client = await Client(server.address).__aenter__()
        await client.call("shop/echo", "k0", 0)
        worker.silent = True
        asking = [
            asyncio.ensure_future(client.call("shop/echo", f"k{number}", number))
            for number in range(1, 50)
        ]
        await until(lambda: len(cluster.taken("shop/echo")) == 50)
    worker.silent = False
    late = asyncio.ensure_future(client.call("shop/echo", "k50", 50))
    async with asyncio.timeout(PATIENCE_S), serving(worker, port):
        assert await asyncio.gather(*asking) == list(range(1, 50))
        assert await late == 50
        await client.__aexit__(None, None, None)
    assert taken_once(cluster, 51)
    assert client.stats.links_lost >= 1


async def test_a_client_that_lost_all_links_finds_a_function_that_is_new_since() -> None:
    """Nobody told it of the function, and it asked nobody: for ever there was none."""
    cluster = EchoCluster()
    cluster.move_all("w1", tell=False)
    known, cluster.functions = cluster.functions, []
    worker = cluster.workers["w1"]
    async with asyncio.timeout(PATIENCE_S), serving(worker) as server:
        port = server.port
        client = await Client(server.address).__aenter__()
        with pytest.raises(UnknownFunctionError):
            await client.call("shop/echo", "a", 1)
    await until(lambda: client.stats.links_lost == 1)
    with pytest.raises(UnavailableError, match="no worker is reachable"):
        await client.call("shop/echo", "a", 2, deadline="20ms")
    cluster.functions, cluster.version = known, cluster.version + 1
    async with asyncio.timeout(PATIENCE_S), serving(worker, port):
        numbers = list(range(3, 30))
        asking = [client.call("shop/echo", "a", number) for number in numbers]
        assert await asyncio.gather(*asking) == numbers
        assert [number for _, number in cluster.taken("shop/echo")] == numbers
        await client.__aexit__(None, None, None)


@pytest.mark.parametrize("tell", [True, False], ids=["told", "not told"])
async def test_a_moved_partition_is_followed(
    client: Client, cluster: EchoCluster, tell: bool
) -> None:
    async def ask(start: int) -> None:
        for number in range(start, 200, 10):
            assert await client.call("shop/echo", f"k{number}", number) == number

    async with asyncio.TaskGroup() as tasks:
        for start in range(10):
            tasks.create_task(ask(start))
        await until(lambda: len(cluster.taken("shop/echo")) > 50)
        cluster.move_all("w2", tell=tell)
        if not tell:
            # The former owner refuses; the news come only now.
            await until(lambda: client.stats.refusals > 0)
            cluster.move_all("w2", tell=True)

    assert taken_once(cluster, 200)


def refusing(worker: EchoWorker, times: int, code: str) -> None:
    left = times

    def judge(batch: Batch) -> ErrorInfo | None:
        nonlocal left
        left -= 1
        return ErrorInfo(code, "full", 5) if left >= 0 else None

    worker.judge = judge


async def test_overload_is_retried_by_itself(client: Client, cluster: EchoCluster) -> None:
    for worker in cluster.workers.values():
        refusing(worker, 3, "overloaded")
    assert await client.call("shop/echo", "a", 1) == 1
    await client.send("shop/echo", "b", 2)
    assert client.stats.refusals >= 3


async def test_overload_that_lasts_is_told(cluster: EchoCluster) -> None:
    for worker in cluster.workers.values():
        refusing(worker, 10_000, "overloaded")
    async with Client(cluster.addresses["w1"], overload_retries=2) as client:
        with pytest.raises(OverloadedError) as raised:
            await client.call("shop/echo", "a", 1)
        assert raised.value.retry_after_ms == 5
        with pytest.raises(DeadlineExceededError):
            await client.call("shop/echo", "b", 1, deadline="10ms")
        for worker in cluster.workers.values():
            refusing(worker, 0, "overloaded")
        assert await client.call("shop/echo", "a", 2) == 2
    assert ("a", 1) not in cluster.taken("shop/echo")


async def test_a_refused_message_fails_alone(client: Client, cluster: EchoCluster) -> None:
    for worker in cluster.workers.values():
        refusing(worker, 1, "bad_key")
    with pytest.raises(KeyRejectedError):
        await client.call("shop/echo", "a", 1)
    assert await client.call("shop/echo", "a", 2) == 2


async def test_a_client_that_was_forgotten_goes_on_under_another_name(
    client: Client, cluster: EchoCluster
) -> None:
    keys = [f"k{index}" for index in range(20)]
    await client.call_many("shop/echo", keys, keys)
    for partition in cluster.partitions.values():
        for name in list(partition.inbox.received):
            partition.forget(name)

    assert await client.call_many("shop/echo", keys, keys) == keys
    assert await client.call("shop/echo", "k1", 1) == 1
    assert client.stats.sessions == 2
    assert len({name for each in cluster.workers.values() for name in each.links}) == 1


async def test_without_any_worker_the_error_names_the_addresses() -> None:
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:9.*127\.0\.0\.1:19") as raised:
        async with Client(["127.0.0.1:9", "127.0.0.1:19"], connect_timeout="100ms"):
            raise AssertionError
    assert "no worker was reachable within 0.1 s" in str(raised.value)


async def test_addresses_are_asked_for_again_until_there_is_one(cluster: EchoCluster) -> None:
    asked = 0

    def addresses() -> list[str]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise FileNotFoundError("no directory yet")
        return [] if asked == 2 else [cluster.addresses["w1"]]

    async with Client(addresses) as client:
        assert await client.call("shop/echo", "a", 1) == 1


async def test_an_owner_that_cannot_be_reached_is_named(cluster: EchoCluster) -> None:
    cluster.addresses["w2"] = "127.0.0.1:9"
    cluster.move_all("w2", tell=False)
    async with Client(cluster.addresses["w1"], connect_timeout="150ms") as client:
        with pytest.raises(
            UnavailableError, match=r"w2 \(127\.0\.0\.1:9\), the last known owner of"
        ):
            await client.call("shop/echo", "a", 1)


async def test_a_partition_without_owner_is_named(cluster: EchoCluster) -> None:
    async with Client(cluster.addresses["w1"], connect_timeout="150ms") as client:
        cluster.placement = {}
        cluster.version += 1
        for link in cluster.workers["w1"].links.values():
            link.send(cluster.topology)
        await until(lambda: not client.topology.placement)
        with pytest.raises(UnavailableError, match="has had no owner for"):
            await client.call("shop/echo", "a", 1)


# The end


async def test_the_end_says_goodbye_after_acknowledging_all_replies(cluster: EchoCluster) -> None:
    async with Client(cluster.addresses["w1"]) as client:
        await client.call_many("shop/echo", ["a", "b", "c", "d"], [1, 2, 3, 4])
    workers = cluster.workers.values()

    await until(lambda: all(not worker.links for worker in workers))
    endings = {ending for worker in workers for ending in worker.endings}
    assert endings == {("client closed", True)}
    acks = [ack for worker in workers for frame in worker.frames for ack in frame.acks]
    assert sum(ack.upto for ack in acks) == 4


async def test_callers_that_wait_at_the_end_get_an_error(cluster: EchoCluster) -> None:
    for worker in cluster.workers.values():
        worker.silent = True
    async with Client(cluster.addresses["w1"], in_flight_max=2) as client:
        asking = [asyncio.ensure_future(client.call("shop/echo", "a", n)) for n in range(3)]
        await until(lambda: bool(cluster.taken("shop/echo")))
    outcomes = await asyncio.gather(*asking, return_exceptions=True)

    assert [type(each) for each in outcomes] == [
        UnknownOutcomeError,
        UnknownOutcomeError,
        RuntimeError,
    ]
    with pytest.raises(RuntimeError, match="the client is closed"):
        await client.call("shop/echo", "a", 1)
    with pytest.raises(RuntimeError, match="cannot be reopened"):
        await client.__aenter__()


async def test_an_exception_of_the_users_code_passes_as_it_is(cluster: EchoCluster) -> None:
    async def fail() -> None:
        async with Client(cluster.addresses["w1"]) as client:
            await client.call("shop/echo", "a", 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()


# Without an event loop


class ThreadedCluster:
    """The echo workers on a loop in a thread of their own."""

    def __init__(self) -> None:
        self.cluster = EchoCluster()
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        workers = self.cluster.workers
        async with serving(workers["w1"]), serving(workers["w2"]):
            self._started.set()
            await self._stop.wait()

    def __enter__(self) -> EchoCluster:
        self._thread.start()
        assert self._started.wait(PATIENCE_S)
        return self.cluster

    def __exit__(self, *details: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)


def test_the_blocking_client_does_what_the_other_does() -> None:
    with ThreadedCluster() as cluster, BlockingClient(cluster.addresses["w1"]) as client:
        assert client.call("shop/echo", "a", 1) == 1
        client.send("shop/echo", "b", 2)
        assert client.call_many("shop/echo", ["c", "d"], [3, 4]) == [3, 4]
        client.send_many("shop/echo", ["e"], [5])
        with pytest.raises(HandlerError):
            client.call("shop/echo", "a", "fail")
        assert len(client.topology.workers) == 2
        assert client.stats.in_flight == 0
    with pytest.raises(RuntimeError, match="the client is closed"):
        client.call("shop/echo", "a", 1)
    client.close()


def test_threads_share_the_blocking_clients_frames() -> None:
    results: list[object] = []
    with ThreadedCluster() as cluster, BlockingClient(cluster.addresses["w1"]) as client:

        def ask(start: int) -> None:
            numbers = range(start, start + 50)
            results.extend(client.call("shop/echo", f"k{number}", number) for number in numbers)

        threads = [threading.Thread(target=ask, args=(50 * index,)) for index in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert sorted(results) == list(range(800))  # type: ignore[type-var]
        assert client.stats.frames_sent < 2 * 800


def test_threads_that_wait_at_the_blocking_clients_end_get_an_error() -> None:
    outcomes: list[SubletError] = []
    with ThreadedCluster() as cluster:
        for worker in cluster.workers.values():
            worker.silent = True
        with BlockingClient(cluster.addresses["w1"]) as client:

            def ask() -> None:
                try:
                    client.call("shop/echo", "a", 1)
                except SubletError as error:
                    outcomes.append(error)

            thread = threading.Thread(target=ask)
            thread.start()
            asyncio.run(until(lambda: bool(cluster.taken("shop/echo"))))
        thread.join(PATIENCE_S)
    assert [type(each) for each in outcomes] == [UnknownOutcomeError]


def test_a_blocking_client_says_when_nobody_is_there() -> None:
    with (
        pytest.raises(UnavailableError, match=r"127\.0\.0\.1:9"),
        BlockingClient("127.0.0.1:9", connect_timeout="50ms"),
    ):
        raise AssertionError


FORKED = """
import os, sys
from sublet import BlockingClient
with BlockingClient(sys.argv[1]) as client:
    child = os.fork()
    if child == 0:
        try:
            client.call("shop/echo", "a", 1)
        except RuntimeError as error:
            print(error, flush=True)
        client.close()
        os._exit(0)
    os.waitpid(child, 0)
    print(client.call("shop/echo", "a", "the parent goes on"))
"""


def test_a_blocking_client_is_of_no_use_after_a_fork() -> None:
    with ThreadedCluster() as cluster:
        command = [sys.executable, "-c", FORKED, cluster.addresses["w1"]]
        # gRPC's own handlers, with which a fork may end the child before it has said a word.
        environment = {**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"}
        ended = subprocess.run(
            command, capture_output=True, timeout=PATIENCE_S, check=True, env=environment
        )

    refusal, reply = ended.stdout.decode().splitlines()
    assert refusal.endswith("before a fork; create one in each process")
    assert reply == "the parent goes on"


# Against real workers


async def test_what_a_full_worker_refuses_has_surely_not_happened(tmp_path: Path) -> None:
    keys = [f"k{index % 40}" for index in range(3_000)]
    async with (
        asyncio.timeout(PATIENCE_S * 3),
        real_cluster(tmp_path, 1, in_flight_max=150) as cluster,
        cluster.client(overload_retries=0) as client,
    ):

        async def ask(start: int) -> list[tuple[str, object]]:
            chosen = keys[start : start + 100]
            messages = [1] * len(chosen)
            replies = await client.call_many(
                apps.count_after_wait, chosen, messages, return_errors=True
            )
            return list(zip(chosen, replies, strict=True))

        outcomes = await asyncio.gather(*(ask(start) for start in range(0, len(keys), 100)))
        pairs = [pair for outcome in outcomes for pair in outcome]
        refused = [reply for _, reply in pairs if isinstance(reply, OverloadedError)]
        counted = Counter(key for key, reply in pairs if isinstance(reply, int))
        assert refused
        assert len(refused) + counted.total() == len(keys)
        async with cluster.client() as patient:
            known = list(counted)
            totals = await patient.call_many(apps.count_after_wait, known, [0] * len(known))
    assert dict(zip(known, totals, strict=True)) == counted


async def test_a_patient_client_gets_everything_through_a_full_worker(tmp_path: Path) -> None:
    keys = [f"k{index % 40}" for index in range(3_000)]
    async with (
        asyncio.timeout(PATIENCE_S * 3),
        real_cluster(tmp_path, 2, in_flight_max=150) as cluster,
        cluster.client(overload_retries=1_000) as client,
    ):
        parts = [keys[start : start + 100] for start in range(0, len(keys), 100)]
        await asyncio.gather(
            *(client.call_many(apps.count_after_wait, part, [1] * len(part)) for part in parts)
        )
        assert client.stats.refusals > 0
        totals = await client.call_many(apps.count_after_wait, keys[:40], [0] * 40)
    assert totals == [75] * 40


def test_a_blocking_client_counts_exactly_from_many_threads(real: Cluster) -> None:
    with BlockingClient(real.addresses()) as client:

        def ask() -> None:
            for index in range(100):
                client.call(apps.count, f"thread key {index % 10}", 1)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        names = [f"thread key {index}" for index in range(10)]
        assert client.call_many(apps.count, names, [0] * 10) == [80] * 10
