"""Requests that nobody waits for any more stop costing work, on real workers and downstream too."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from sublet import Client, DeadlineExceededError, Function
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.frames import Kind
from sublet.runtime.protocol.rpc import CallRequest
from tests.integration import early_app
from tests.integration.cluster import PATIENCE_S, PROJECT, Cluster, until
from tests.integration.http_worker import http_worker
from tests.integration.raw_client import raw_client

APP = "tests.integration.early_app:app"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(APP, tmp_path_factory.mktemp("cluster"), {})
    try:
        asyncio.run(cluster.start(2))
        yield cluster
        assert all(worker.is_running for worker in cluster.workers)
        assert "Traceback" not in cluster.log
    finally:
        cluster.close()


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """Each test has a state of its own."""
    return str(request.node.name)


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with asyncio.timeout(200), cluster.client() as client:
        yield client


class Spot:
    """Where a handler tells what it does, and looks whether it may go on."""

    def __init__(self, directory: Path, name: str) -> None:
        self.path = str(directory / name)

    def told(self, what: str) -> int:
        """How often the handler has told something."""
        path = Path(f"{self.path}.{what}")
        return len(path.read_text()) if path.exists() else 0

    def open(self) -> None:
        Path(f"{self.path}.gate").touch()

    async def until(self, what: str) -> None:
        await until(lambda: self.told(what) > 0)


@pytest.fixture
def spot(tmp_path: Path) -> Callable[[str], Spot]:
    return lambda name: Spot(tmp_path, name)


async def end(asking: asyncio.Future[object]) -> None:
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


def asked(call: Awaitable[object]) -> asyncio.Future[object]:
    return asyncio.ensure_future(call)


async def test_a_cancelled_call_leaves_the_queue(
    cluster: Cluster, client: Client, spot: Callable[[str], Spot], key: str
) -> None:
    names = ["first", "cancelled", "many", "last"]
    spots = {name: spot(name) for name in names}
    first = asked(client.call(early_app.wait_in_thread, key, spots["first"].path))
    await spots["first"].until("begun")
    cancelled = asked(client.call(early_app.wait_in_thread, key, spots["cancelled"].path))
    many = asked(
        client.call_many(early_app.wait_in_thread, [key, "l", "m"], [spots["many"].path] * 3)
    )
    last = asked(client.call(early_app.wait_in_thread, key, spots["last"].path))
    await until(lambda: waiting(cluster, 5))

    await end(cancelled)
    await end(many)
    await until(lambda: waiting(cluster, 1))
    for each in spots.values():
        each.open()

    assert await first == 1
    assert await last == 2
    assert [spots[name].told("begun") for name in names] == [1, 0, 0, 1]
    await until(lambda: nothing_in_flight(cluster))


async def waiting(cluster: Cluster, count: int) -> bool:
    """Tell whether so many messages wait: in queues, or behind their keys."""
    counters = await cluster.counters()
    return bool(counters["in_flight"] - 1 == count)


async def nothing_in_flight(cluster: Cluster) -> bool:
    return bool((await cluster.counters())["in_flight"] == 0)


@pytest.mark.parametrize(
    "function",
    [early_app.wait, early_app.ask, early_app.ask_somebody_who_asks],
    ids=lambda each: each.name,
)
async def test_a_cancelled_call_ends_handlers_that_wait_and_all_that_they_wait_for(
    cluster: Cluster, client: Client, spot: Callable[[str], Spot], key: str, function: Function
) -> None:
    here = spot("here")
    asking = asked(client.call(function, key, here.path))
    await here.until("begun")
    await end(asking)

    await here.until("interrupted")
    await until(lambda: nothing_in_flight(cluster))
    here.open()
    # Nothing of it is left, and the keys are free.
    assert await client.call(early_app.wait, key, here.path) == 1
    assert await client.call(early_app.ask, key, here.path) == 1


async def test_a_deadline_ends_what_is_downstream_too(
    client: Client, spot: Callable[[str], Spot], key: str
) -> None:
    here = spot("here")
    with pytest.raises(DeadlineExceededError):
        await client.call(early_app.ask_somebody_who_asks, key, here.path, deadline="500ms")

    await here.until("interrupted")
    here.open()
    assert await client.call(early_app.ask, key, here.path) == 1


async def test_what_a_function_aims_at_is_no_deadline_of_its_callers(
    client: Client, spot: Callable[[str], Spot], key: str
) -> None:
    here = spot("here")
    asking = asked(client.call(early_app.wait_with_slo, key, here.path))
    await here.until("begun")
    # Far longer than its 20 ms: other calls take their time meanwhile.
    for number in range(100):
        with pytest.raises(DeadlineExceededError):
            await client.call(early_app.wait, f"late{number % 10}", here.path, deadline="1ms")
    here.open()

    assert await asking == 1


async def test_a_message_that_was_sent_has_its_effect(
    client: Client, spot: Callable[[str], Spot], key: str
) -> None:
    here = spot("here")
    sending = asked(client.send(early_app.wait, key, here.path, deadline="100ms"))
    await here.until("begun")
    sending.cancel()
    here.open()
    await here.until("done")

    assert await client.call(early_app.wait, key, here.path) == 2
    assert here.told("interrupted") == 0


async def test_a_call_that_was_taken_back_runs_when_it_is_asked_again(
    client: Client, spot: Callable[[str], Spot], key: str
) -> None:
    here = spot("here")
    asking = asked(client.call(early_app.wait, key, here.path, idempotency_key="once"))
    await here.until("begun")
    await end(asking)
    await here.until("interrupted")
    here.open()

    for _ in range(2):
        assert await client.call(early_app.wait, key, here.path, idempotency_key="once") == 1
    assert here.told("done") == 1


async def test_a_call_goes_on_while_somebody_else_waits_for_the_same(
    cluster: Cluster, client: Client, spot: Callable[[str], Spot], key: str
) -> None:
    here = spot("here")
    asking = asked(client.call(early_app.wait, key, here.path, idempotency_key="once"))
    await here.until("begun")
    other = asked(client.call(early_app.wait, key, here.path, idempotency_key="once"))
    await until(lambda: waiting(cluster, 1))
    await end(asking)
    here.open()

    assert await other == 1
    assert here.told("begun") == here.told("done") == 1


async def test_a_handler_that_gives_up_a_call_ends_it(
    client: Client, spot: Callable[[str], Spot], key: str
) -> None:
    here = spot("here")

    assert await client.call(early_app.ask_without_patience, key, here.path) == "gave up"
    await here.until("interrupted")


async def test_a_handler_that_cancels_its_own_call_ends_it(
    client: Client, spot: Callable[[str], Spot], key: str
) -> None:
    here = spot("here")
    asking = asked(client.call(early_app.ask_for_a_while, key, here.path))
    await here.until("interrupted")
    assert not asking.done()
    here.open()

    assert await asking == "gave up"


async def test_a_caller_by_grpc_who_leaves_takes_its_call_back(
    cluster: Cluster, spot: Callable[[str], Spot], key: str
) -> None:
    here = spot("here")
    payload = msgspec.msgpack.encode(here.path)
    request = CallRequest(function="early/ask", key=key, payload=payload)
    async with UnaryClient(cluster.addresses()[0]) as unary:
        asking = asked(unary.call(request))
        await here.until("begun")
        await end(asking)

        await here.until("interrupted")


@pytest.mark.parametrize("program", ["sublet", "tests.integration.interrupted_client"])
async def test_an_interrupted_program_takes_its_call_back(
    cluster: Cluster, spot: Callable[[str], Spot], key: str, program: str
) -> None:
    here = spot("here")
    if program == "sublet":
        message = msgspec.json.encode(here.path).decode()
        data_dir = str(cluster.data_dir)
        arguments = ["call", "early/ask", key, message, "--deadline", "5m", "--data-dir", data_dir]
    else:
        arguments = [cluster.addresses()[0], "early/ask", key, here.path]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", program, *arguments), cwd=PROJECT, stdin=PIPE, stderr=PIPE
    )
    try:
        await here.until("begun")
        process.send_signal(signal.SIGINT)
        await here.until("interrupted")
        async with asyncio.timeout(PATIENCE_S):
            _, told = await process.communicate(b"")
        assert b"Traceback" not in told
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_an_http_client_that_leaves_takes_its_call_back(
    tmp_path: Path, spot: Callable[[str], Spot]
) -> None:
    left, late = spot("left"), spot("late")
    with http_worker(tmp_path / "http", target=APP) as url:
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as http:
            asking = asked(http.post("/functions/early/ask/k", json=left.path))
            await left.until("begun")
            await end(asking)
            await left.until("interrupted")

            deadline = {"sublet-deadline": "300ms"}
            answer = await http.post("/functions/early/ask/k", json=late.path, headers=deadline)
            assert (answer.status_code, answer.json()["code"]) == (504, "deadline_exceeded")
            await late.until("interrupted")

            left.open()
            answer = await http.post("/functions/early/ask/k", json=left.path)
            assert answer.json() == 1


async def test_a_withdrawal_of_what_is_no_earlier_message_ends_one_link(
    cluster: Cluster, client: Client, spot: Callable[[str], Spot], key: str
) -> None:
    here = spot("here")
    here.open()
    partition = "early/wait/0"
    for named in ("", "x", "-1", "0", "2", "9" * 30, "\u0661", "1.0", "~other:1"):
        async with raw_client(cluster.addresses()[0], "~hostile") as hostile:
            hostile.send(partition, 1, [(key, here.path)])
            hostile.send(partition, 2, [(named, None)], kind=Kind.CANCEL_CALL)
            await hostile.until(lambda each=hostile: each.ending is not None)  # type: ignore[misc]

            assert hostile.ending is not None
            assert "allowed: the number of an earlier message, 1..1" in hostile.ending[0]
    assert await client.call(early_app.wait, "other", here.path) == 1


async def test_withdrawals_by_hand_are_taken_once_and_in_order(
    cluster: Cluster, spot: Callable[[str], Spot], key: str
) -> None:
    here = spot("here")
    workers = {
        partition: worker
        for worker in cluster.workers
        for partition in (await cluster.status(worker)).partitions
    }
    partition = "early/wait/0"
    async with raw_client(workers[partition].address) as raw:
        raw.send(partition, 1, [(key, here.path), (key, here.path)])
        await here.until("begun")
        for _ in range(2):
            raw.send(partition, 3, [("2", None), ("2", None), ("1", None)], kind=Kind.CANCEL_CALL)
        await raw.until(lambda: len(raw.errors) == 2)

        assert {number: each.code for (_, number), each in raw.errors.items()} == {
            1: "cancelled",
            2: "cancelled",
        }
        await raw.until(lambda: raw.acknowledged.get(partition) == 5)
        here.open()
        raw.send(partition, 6, [(key, here.path)])
        await raw.until(lambda: raw.replies.get((partition, 6)) is not None)
        assert raw.replies[partition, 6] == 1
        assert here.told("begun") == 2
