"""An egress read by clients of real workers, and over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from sublet import (
    BlockingClient,
    Client,
    EgressCursor,
    EgressLostError,
    PayloadError,
    RejectedError,
    UnavailableError,
    UnknownOutcomeError,
)
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.rpc import EgressRequest, RecordsRequest
from tests.integration import promise_app
from tests.integration.cluster import Cluster, WorkerProcess, running_cluster, until
from tests.integration.http_worker import http_worker
from tests.integration.promise_app import EGRESS, Broken

APP = "tests.integration.promise_app:app"
PATIENCE_S = 10.0


class Paid(NamedTuple):
    what: str
    key: str
    amount: int


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(APP, tmp_path_factory.mktemp("egress"), {"egress_max": 20})
    try:
        asyncio.run(made.start(2))
        yield made
    finally:
        made.close()


async def test_a_reader_follows_what_is_emitted_on_all_workers(cluster: Cluster) -> None:
    keys = [f"follow{number}" for number in range(12)]
    async with asyncio.timeout(PATIENCE_S), cluster.client() as client:
        reader = client.egress(EGRESS, start="now", value_type=Paid, batch_max=5)
        await reader.begin()
        for amount in range(3):
            await client.call_many(promise_app.pay, keys, [amount] * len(keys))
        paid = [(await anext(reader)).value for _ in range(36)]

    assert sorted(paid) == sorted(Paid("paid", key, n) for key in keys for n in range(3))
    for key in keys:
        assert [each.amount for each in paid if each.key == key] == [0, 1, 2]


def test_a_program_without_a_loop_reads_it_too(cluster: Cluster) -> None:
    with BlockingClient(cluster.addresses()) as client:
        _, before = client.egress_bounds(EGRESS)
        for amount in range(5):
            client.call(promise_app.pay, "blocking", amount)
        _, after = client.egress_bounds(EGRESS)
        reader = client.egress(EGRESS, start=before, until="now", batch_max=2)
        first = next(reader)
        rest = list(client.egress(EGRESS, start=str(reader.cursor), until=after))
        batch = client.egress(EGRESS, start=before, until=after, batch_max=3).next_batch()

    assert (first.key, first.value[2]) == ("blocking", 0)
    assert [each.value[2] for each in rest] == [1, 2, 3, 4]
    assert [each.value[2] for each in batch] == [0, 1, 2]
    assert list(reader.lost) == []


def test_a_range_is_the_same_for_programs_with_and_without_a_loop(cluster: Cluster) -> None:
    async def read(before: EgressCursor, after: EgressCursor) -> list[str]:
        async with cluster.client() as client:
            found = client.egress_range(EGRESS, before, after, timeout="20s")
            return [key async for each in found for key in each.keys]

    with BlockingClient(cluster.addresses()) as client:
        _, before = client.egress_bounds(EGRESS, timeout="20s")
        keys = [f"range{number}" for number in range(12)]
        client.call_many(promise_app.pay, keys, [1] * 12)
        _, after = client.egress_bounds(EGRESS)
        client.call_many(promise_app.pay, keys, [2] * 12)
        reader = client.egress_range(EGRESS, str(before), after, parallel=2, page_max=2)
        found = [key for each in reader for key in each.keys]
        first = client.egress_range(EGRESS, before, after).next_batch()

    assert sorted(found) == sorted(keys) == sorted(asyncio.run(read(before, after)))
    assert sorted(key for each in first for key in each.keys) == sorted(keys)
    assert not reader.lost


async def test_what_went_before_it_was_read_is_told(cluster: Cluster) -> None:
    async with asyncio.timeout(PATIENCE_S), cluster.client() as client:
        _, cursor = await client.egress_bounds(EGRESS)
        for amount in range(30):
            await client.call(promise_app.pay, "lost", amount)
        reader = client.egress(EGRESS, start=cursor, until="now")
        with pytest.raises(EgressLostError, match="10 values were dropped before they were read"):
            await anext(reader)
        assert reader.cursor == cursor
        skipping = client.egress(EGRESS, start=cursor, until="now", lost="skip")
        kept = [each.value[2] async for each in skipping]

    assert kept == list(range(10, 30))
    assert [each.next - each.first for each in skipping.lost] == [10]


async def test_what_makes_no_sense_is_refused(cluster: Cluster) -> None:
    async with asyncio.timeout(PATIENCE_S), cluster.client() as client:
        with pytest.raises(ValueError, match="allowed: 'raise', 'skip'"):
            client.egress(EGRESS, lost="ignore")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="batch_max is 0; allowed: 1"):
            client.egress(EGRESS, batch_max=0)
        with pytest.raises(ValueError, match="until is 'start'"):
            client.egress(EGRESS, until="start")
        with pytest.raises(RejectedError, match="not an egress position"):
            await anext(client.egress(EGRESS, start="middle"))
        with pytest.raises(RejectedError, match="beyond its end"):
            await anext(client.egress(EGRESS, start=EgressCursor.at({"promise/pay/0": 10**9})))
        await client.call(promise_app.pay, "typed", 1)
        with pytest.raises(PayloadError):
            await client.egress(EGRESS, value_type=int).next_batch()
    with pytest.raises(RuntimeError, match="closed"):
        await client.egress(EGRESS).next_batch()


async def test_a_reader_goes_on_elsewhere_when_workers_die(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(40),
        running_cluster(tmp_path, 3, app=APP) as cluster,
        Client(cluster.addresses()) as client,
    ):
        reader = client.egress(EGRESS)
        read: list[int] = []
        for amount in range(6):
            await client.call(promise_app.pay, "k", amount)
            read.append((await anext(reader)).value[2])
            if amount in (1, 3):
                cluster.living[0].kill()
        _, end = await client.egress_bounds(EGRESS, timeout="30s")
        found = client.egress_range(EGRESS, "", end, timeout="30s")

        assert read == list(range(6))
        assert sum([each.count async for each in found]) == 6


async def test_readers_that_wait_do_not_keep_a_worker_from_ending(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path, app=APP, workers=2, drain_timeout_s=600) as cluster,
        cluster.client() as client,
        asyncio.TaskGroup() as tasks,
    ):
        reading = tasks.create_task(_follow(cluster.workers[0]))
        await client.call(promise_app.pay, "ending", 1)
        cluster.workers[0].terminate()
        assert await cluster.workers[0].ended() == 0
        reading.cancel()


async def _follow(worker: WorkerProcess) -> None:
    """Ask a worker again and again, as long as it is there; wait long for each answer."""
    request = EgressRequest(egress="nothing is ever here", wait_ms=60_000)
    async with UnaryClient(worker.address) as unary:
        while worker.is_running:
            try:
                await unary.read_egress(request)
            except (UnavailableError, UnknownOutcomeError):
                continue


async def test_dead_letters_are_listed_page_by_page(cluster: Cluster, tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE_S), cluster.client() as client:
        keys = [f"letter{number}" for number in range(25)]
        broken = [Broken(number, str(tmp_path / "never")) for number in range(25)]
        await client.send_many(promise_app.fragile, keys, broken)

    async with UnaryClient(cluster.living[0].address) as unary:

        async def listed(limit: int) -> list[list[str]]:
            pages, after = [], ""
            while True:
                request = RecordsRequest(
                    kind="dead", function="promise/fragile", limit=limit, after=after
                )
                page = await unary.list_records(request)
                pages.append([each.key for each in page.entries])
                after = page.next
                assert page.more == bool(after)
                if not after:
                    return pages

        async def all_failed() -> bool:
            return len((await listed(1_000))[0]) == 25

        await until(all_failed)
        pages = await listed(4)
        assert [len(page) for page in pages] == [4] * 6 + [1]
        assert sorted(key for page in pages for key in page) == sorted(keys)
        with pytest.raises(RejectedError, match="is not an id"):
            await unary.list_records(RecordsRequest(kind="dead", after="nonsense"))
        with pytest.raises(RejectedError, match="timers have no pages"):
            await unary.list_records(RecordsRequest(kind="timer", after="promise/ring/0#1"))


def test_pages_over_http_go_on_behind_their_cursor(tmp_path: Path) -> None:
    with (
        http_worker(tmp_path, target=APP, egress_max=4) as url,
        httpx.Client(base_url=url, timeout=PATIENCE_S) as http,
    ):

        def pay(*amounts: int) -> None:
            for amount in amounts:
                http.post("/functions/promise/pay/k", json=amount).raise_for_status()

        def page(**query: str | int) -> httpx.Response:
            return http.get(f"/egress/{EGRESS}/page", params=query)

        assert page().json() == {"values": [], "cursor": "", "lost": []}
        pay(1, 2, 3)
        first = page(limit=2).json()
        rest = page(**{"from": first["cursor"]}).json()
        now = page(**{"from": "now"}).json()
        pay(4, 5, 6, 7)
        gone = page(**{"from": first["cursor"]})
        skipped = page(**{"from": first["cursor"], "lost": "skip"}).json()

        assert [each["value"][2] for each in first["values"] + rest["values"]] == [1, 2, 3]
        assert [each["position"] for each in first["values"]] == [0, 1]
        assert (now["values"], now["cursor"]) == ([], rest["cursor"])
        assert (gone.status_code, gone.json()["code"]) == (410, "egress_lost")
        assert [each["value"][2] for each in skipped["values"]] == [4, 5, 6, 7]
        assert [(each["first"], each["next"]) for each in skipped["lost"]] == [(2, 3)]
        for query in ({"limit": 0}, {"limit": 100_001}, {"wait_ms": "x"}, {"lost": "maybe"}):
            assert page(**query).status_code == 400
        assert page(**{"from": "middle"}).status_code == 400
        assert page(**{"from": "promise/pay=99"}).status_code == 422
