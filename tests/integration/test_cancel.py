"""Requests that somebody cancels by hand, by every way: they end without effect, or not at all."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import pytest

from sublet import BlockingClient, Client, NotCancelledError, RejectedError, RequestCancelledError
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.rpc import AdministerRequest, CancelRequest, ExplainRequest
from tests.integration import early_app
from tests.integration.cluster import PATIENCE_S, PROJECT, Cluster, until
from tests.integration.http_worker import http_worker
from tests.integration.test_requests_ending_early import Spot, asked

APP = "tests.integration.early_app:app"
OPEN_STAGES = {"running", "queue"}


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
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with asyncio.timeout(200), cluster.client() as client:
        yield client


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


@pytest.fixture
def spot(tmp_path: Path) -> Callable[[str], Spot]:
    return lambda name: Spot(tmp_path, name)


async def open_ids(cluster: Cluster, function: str) -> list[str]:
    """Return the ids of what is open, as `sublet slow --running` shows them."""
    found = []
    for address in cluster.addresses():
        async with UnaryClient(address) as unary:
            found += await unary.explain(ExplainRequest(running=True, function=function))
    assert {stage for each in found for stage in each.stages} <= OPEN_STAGES
    return [each.id for each in found]


async def open_id(cluster: Cluster, function: str, *, count: int = 1) -> str:
    """Return the youngest of so many that are open."""

    async def are_open() -> bool:
        return len(await open_ids(cluster, function)) == count

    await until(are_open)
    return (await open_ids(cluster, function))[-1]


async def by_client(cluster: Cluster, id_: str) -> None:
    async with cluster.client() as other:
        await other.cancel(id_)


async def by_blocking_client(cluster: Cluster, id_: str) -> None:
    def cancel() -> None:
        with BlockingClient(cluster.addresses()) as blocking:
            blocking.cancel(id_)

    await asyncio.to_thread(cancel)


async def by_grpc(cluster: Cluster, id_: str) -> None:
    """By the worker that does not own it, too."""
    async with UnaryClient(cluster.addresses()[-1]) as unary:
        await unary.administer(AdministerRequest(action=CancelRequest(request_id=id_)))


async def by_command(cluster: Cluster, id_: str) -> None:
    arguments = ["cancel", id_, "--json", "--data-dir", str(cluster.data_dir)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sublet", *arguments), cwd=PROJECT, stdout=PIPE, stderr=PIPE
    )
    async with asyncio.timeout(PATIENCE_S):
        told, _ = await process.communicate()
    answer = json.loads(told)
    if not answer["ok"]:
        assert process.returncode == 1
        assert answer["error"]["code"] == "not_cancelled"
        raise NotCancelledError(answer["error"]["message"])
    assert (process.returncode, answer["id"]) == (0, id_)


WAYS = [by_client, by_blocking_client, by_grpc, by_command]


@pytest.mark.parametrize("cancel", WAYS)
async def test_a_handler_that_waits_ends_without_effect_and_its_caller_is_told(
    cluster: Cluster, client: Client, spot: Callable[[str], Spot], key: str, cancel: Callable
) -> None:
    here = spot("here")
    asking = asked(client.call(early_app.ask, key, here.path))
    await here.until("begun")
    id_ = await open_id(cluster, "early/ask")
    await cancel(cluster, id_)

    with pytest.raises(RequestCancelledError, match="cancelled by `sublet cancel`") as caught:
        await asking
    assert caught.value.request_id == id_
    # What it waited for ends, too.
    await here.until("interrupted")
    with pytest.raises(NotCancelledError, match="is not open"):
        await cancel(cluster, id_)
    here.open()
    assert await client.call(early_app.ask, key, here.path) == 1
    assert await client.call(early_app.wait, key, here.path) == 2


async def test_a_message_that_was_sent_ends_without_effect_and_without_a_dead_letter(
    cluster: Cluster, client: Client, spot: Callable[[str], Spot], key: str
) -> None:
    here = spot("here")
    dead_before = (await cluster.counters())["dead"]
    await client.send(early_app.wait, key, here.path)
    await here.until("begun")
    await client.cancel(await open_id(cluster, "early/wait"))

    assert here.told("interrupted") == 1
    here.open()
    assert await client.call(early_app.wait, key, here.path) == 1
    assert (await cluster.counters())["dead"] == dead_before


async def test_what_waits_does_not_run_and_what_runs_in_a_thread_has_its_effects(
    cluster: Cluster, client: Client, spot: Callable[[str], Spot], key: str
) -> None:
    function = early_app.wait_in_thread
    spots = {name: spot(name) for name in ("first", "called", "sent", "last")}
    first = asked(client.call(function, key, spots["first"].path))
    await spots["first"].until("begun")
    running = await open_id(cluster, function.name)
    called = asked(client.call(function, key, spots["called"].path))
    await client.cancel(await open_id(cluster, function.name, count=2))
    with pytest.raises(RequestCancelledError):
        await called
    # Accepted only when it leaves the queue.
    sent = asked(client.send(function, key, spots["sent"].path))
    await client.cancel(await open_id(cluster, function.name, count=2))
    await sent
    last = asked(client.call(function, key, spots["last"].path))

    async def is_too_late() -> None:
        # It races with the end of the handler, as a person's would: it comes before, and waits for
        # that, or comes after. The tests of `Requests` have each of both in its order.
        with pytest.raises(NotCancelledError, match=r"was done before|is not open"):
            await client.cancel(running)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(is_too_late())
        for each in spots.values():
            each.open()
    assert (await first, await last) == (1, 2)
    with pytest.raises(NotCancelledError, match="is not open"):
        await client.cancel(running)
    assert [spots[name].told("begun") for name in ("called", "sent")] == [0, 0]


async def test_a_thread_that_goes_on_is_told_and_not_interrupted(
    cluster: Cluster, client: Client, spot: Callable[[str], Spot], key: str
) -> None:
    here = spot("here")
    asking = asked(client.call(early_app.wait_in_thread, key, here.path))
    await here.until("begun")
    with pytest.raises(NotCancelledError, match="its handler cannot be interrupted"):
        await client.cancel(await open_id(cluster, "early/wait_in_thread"))
    here.open()

    assert await asking == 1


async def test_what_others_wait_for_goes_on(
    cluster: Cluster, client: Client, spot: Callable[[str], Spot], key: str
) -> None:
    here = spot("here")
    asking = [
        asked(client.call(early_app.wait, key, here.path, idempotency_key="once")) for _ in range(2)
    ]
    await here.until("begun")
    await open_id(cluster, "early/wait", count=2)
    ids = await open_ids(cluster, "early/wait")
    with pytest.raises(NotCancelledError, match="other requests with its idempotency key wait"):
        await client.cancel(ids[0])
    # Without the other one it can be.
    await client.cancel(ids[1])
    await client.cancel(ids[0])
    for each in asking:
        with pytest.raises(RequestCancelledError):
            await each

    # A repetition of what was cancelled is done.
    here.open()
    for _ in range(2):
        assert await client.call(early_app.wait, key, here.path, idempotency_key="once") == 1


@pytest.mark.parametrize(
    "id_", ["", "x", "early/wait/0", "early/wait/0@~c", "early/wait/9@~c:1", "early/other/0@~c:1"]
)
async def test_what_is_no_request_is_refused(client: Client, id_: str) -> None:
    with pytest.raises(RejectedError) as caught:
        await client.cancel(id_)
    assert not isinstance(caught.value, NotCancelledError)


@pytest.mark.parametrize("id_", ["early/wait/0@~nobody:1", "early/wait/0@early/ask/0:99"])
async def test_a_request_that_never_was_is_not_open(client: Client, id_: str) -> None:
    with pytest.raises(NotCancelledError, match="is not open"):
        await client.cancel(id_)


async def test_by_http_a_request_is_deleted(tmp_path: Path, spot: Callable[[str], Spot]) -> None:
    here = spot("here")
    with http_worker(tmp_path / "http", target=APP) as url:
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as http:
            asking = asked(http.post("/functions/early/wait/k", json=here.path))
            await here.until("begun")
            other = await http.delete("/requests/early/wait/0@~nobody:1")
            assert (other.status_code, other.json()["code"]) == (409, "not_cancelled")
            wrong = await http.delete("/requests/x")
            assert (wrong.status_code, wrong.json()["code"]) == (422, "rejected")
            foreign = {"origin": "http://elsewhere.example"}
            id_ = await _open_by_http(tmp_path / "http")
            refused = await http.delete(f"/requests/{id_}", headers=foreign)
            assert refused.status_code == 403
            done = await http.delete(f"/requests/{id_}")
            assert (done.status_code, done.content) == (204, b"")

            answer = await asking
            assert isinstance(answer, httpx.Response)
            assert (answer.status_code, answer.json()["code"]) == (499, "cancelled")
            assert answer.headers["sublet-request-id"] == id_
            here.open()
            answer = await http.post("/functions/early/wait/k", json=here.path)
            assert answer.json() == 1


async def _open_by_http(data_dir: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sublet", "slow", "--running", "--json"),
        *("--data-dir", str(data_dir)),
        cwd=PROJECT,
        stdout=PIPE,
    )
    async with asyncio.timeout(PATIENCE_S):
        told, _ = await process.communicate()
    (found,) = json.loads(told)["requests"]
    assert found["longest"] == "running"
    return str(found["id"])
