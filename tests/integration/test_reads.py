"""Reads from outside, through every worker, right after a reply.

What a reply tells of is stored, so whoever reads next has to see it: through the owner, a former
owner, or a worker that never was one; states, dead letters, timers and egress; by HTTP or gRPC.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from sublet import Client
from sublet.functions.address import partition_index_of
from sublet.functions.errors import UnavailableError
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.rpc import (
    LIST_LIMIT_MAX,
    AdministerRequest,
    DropDeadLetter,
    EgressRequest,
    RecordEntry,
    RecordKind,
    RecordsRequest,
    StateListRequest,
    StateRequest,
)
from sublet.statestore.contract import Directory
from sublet.statestore.redis.directory import RedisDirectory
from sublet.statestore.sqlite.directory import SqliteDirectory
from tests.integration import told_app
from tests.integration.cluster import PROJECT, Cluster, WorkerProcess, running_cluster
from tests.integration.test_rolling_restart import http_address, settings_for

APP = "tests.integration.told_app:app"
STEP = "told/step"
PARTITIONS = 2
TEST_S = 50.0
SWAPS = 4
STEPS_AFTER_SWAP = 6


def key_of(index: int) -> str:
    keys = (f"key{number}" for number in range(100))
    return next(key for key in keys if partition_index_of(key, PARTITIONS) == index)


KEYS = [key_of(index) for index in range(PARTITIONS)]


class Reader:
    """Reads all there is through one worker."""

    def __init__(self, unary: UnaryClient, http: httpx.AsyncClient) -> None:
        self.unary = unary
        self.http = http

    async def state(self, key: str) -> Any:
        report = await self.unary.read_state(StateRequest(function=STEP, key=key))
        return msgspec.json.decode(report.json)

    async def state_by_http(self, key: str) -> Any:
        reply = await self.http.get(f"/state/{STEP}/{key}")
        return reply.json()["value"] if reply.status_code == 200 else reply.status_code

    async def listed_states(self) -> dict[str, Any]:
        page = await self.unary.list_state(StateListRequest(function=STEP))
        return {each.key: msgspec.json.decode(each.json) for each in page.entries}

    async def listed_keys_by_http(self) -> list[str]:
        return [each["key"] for each in (await self.http.get(f"/state/{STEP}")).json()["keys"]]

    async def records(self, kind: RecordKind, key: str) -> list[RecordEntry]:
        request = RecordsRequest(kind=kind, function=STEP, limit=LIST_LIMIT_MAX)
        page = await self.unary.list_records(request)
        return [each for each in page.entries if each.key == key]

    async def emitted(self, key: str) -> list[int]:
        page = await self.unary.read_egress(EgressRequest(egress=told_app.EGRESS, limit=10_000))
        found = [each for entry in page.entries for each in msgspec.msgpack.decode(entry.values)]
        return [total for of, total in found if of == key]

    async def emitted_by_http(self, key: str) -> list[int]:
        reply = await self.http.get(f"/egress/{told_app.EGRESS}/page", params={"limit": 1000})
        found = [each["value"] for each in reply.json()["values"]]
        return [total for of, total in found if of == key]

    async def all_of(self, key: str) -> dict[str, Any]:
        """Return how far the key is by everything that can be read of it."""
        emitted, by_http = await self.emitted(key), await self.emitted_by_http(key)
        return {
            "state": await self.state(key),
            "state by HTTP": await self.state_by_http(key),
            "listed state": (await self.listed_states()).get(key),
            "listed by HTTP": key in await self.listed_keys_by_http(),
            "dead letters": len(await self.records("dead", key)),
            "timers": len(await self.records("timer", key)),
            "egress": emitted[-1:] == [len(emitted)] and len(emitted),
            "egress by HTTP": by_http[-1:] == [len(by_http)] and len(by_http),
        }


def all_at(number: int) -> dict[str, Any]:
    """Return what `Reader.all_of` has to find once a key has made so many steps."""
    counted = ("state", "listed state", "dead letters", "timers", "egress")
    by_http = {"state by HTTP": number, "egress by HTTP": number, "listed by HTTP": True}
    return {**dict.fromkeys(counted, number), **by_http}


@asynccontextmanager
async def readers_of(cluster: Cluster) -> AsyncIterator[list[Reader]]:
    """A reader for each worker, in their order."""
    async with AsyncExitStack() as stack:
        readers = []
        for worker in cluster.workers:
            url = f"http://{http_address(cluster, worker)}"
            readers.append(
                Reader(
                    await stack.enter_async_context(UnaryClient(worker.address)),
                    await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=20)),
                )
            )
        yield readers


async def step(client: Client, key: str) -> int:
    """Let a key count, emit, set a timer, and have a dead letter: all before the reply."""
    await client.send(told_app.step, key, -1)
    return await client.call(told_app.step, key, 1)


@pytest.fixture(params=["sqlite", "redis"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, object]]:
    with settings_for(request.param, tmp_path / "redis") as settings:
        yield {**settings, "http_port": 0, "log_level": "info"}


def directory_of(cluster: Cluster, settings: dict[str, object]) -> Directory:
    if "redis_url" in settings:
        return RedisDirectory(str(settings["redis_url"]))
    return SqliteDirectory(cluster.data_dir / "sublet.db")


async def swap(cluster: Cluster, directory: Directory) -> None:
    """Let both workers give all that they have to the other one; return when they have."""
    placed = None
    while placed is None:
        view = await directory.view()
        first, second = sorted(view.members)
        other = {first: second, second: first}
        swapped = {partition: other[owner] for partition, owner in view.placement.items()}
        placed = await directory.place(view.version, swapped)
    await cluster.ready()
    assert (await directory.view()).placement == swapped


async def test_whoever_owned_a_partition_reads_what_was_answered_since(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    async with (
        asyncio.timeout(TEST_S),
        running_cluster(tmp_path / "workers", 2, app=APP, **settings) as cluster,
        cluster.client() as client,
        readers_of(cluster) as readers,
    ):
        directory = directory_of(cluster, settings)
        stale: list[str] = []
        number = 0

        async def next_step() -> None:
            nonlocal number
            number += 1
            for key in KEYS:
                assert await step(client, key) == number
                found = await asyncio.gather(*(each.all_of(key) for each in readers))
                for worker, ways in enumerate(found):
                    late = {way: at for way, at in ways.items() if at != all_at(number)[way]}
                    if late:
                        stale.append(f"worker {worker}, {key}, step {number}: {late}")

        async def letters(key: str) -> list[set[str]]:
            return [{each.id for each in await one.records("dead", key)} for one in readers]

        for _ in range(SWAPS):
            moving = asyncio.create_task(swap(cluster, directory))
            while not moving.done():
                await next_step()
            await moving
            for _ in range(STEPS_AFTER_SWAP):
                await next_step()
            async with client.snapshot(STEP) as snapshot:
                assert {found.key: found.state async for found in snapshot} == dict.fromkeys(
                    KEYS, number
                )
        await directory.close()
        assert not stale, "\n".join(stale)

        for key in KEYS:
            # What is changed by hand is answered, too.
            (letter, *_), _ = await letters(key)
            action = DropDeadLetter(id=letter)
            await readers[0].unary.administer(AdministerRequest(action=action))
            assert [len(found) for found in await letters(key)] == [number - 1] * 2
            assert await step(client, key) == number + 1
            assert [await shown(worker, key) for worker in cluster.workers] == [number + 1] * 2


async def shown(worker: WorkerProcess, key: str) -> Any:
    """Return what `sublet state get` tells, by a worker."""
    words = ("-m", "sublet", "state", "get", STEP, key, "--json", "--connect", worker.address)
    command = await asyncio.create_subprocess_exec(
        sys.executable, *words, cwd=PROJECT, stdout=PIPE, stderr=STDOUT
    )
    told, _ = await command.communicate()
    return json.loads(told)["value"]


async def test_an_owner_that_was_replaced_while_it_was_frozen_reads_what_was_answered_since(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    async with (
        asyncio.timeout(TEST_S),
        running_cluster(tmp_path / "workers", 2, app=APP, **settings) as cluster,
        cluster.client() as client,
        readers_of(cluster) as readers,
    ):
        for key in KEYS:
            assert await step(client, key) == 1
        frozen = cluster.workers[0]
        await cluster.freeze(frozen)
        for key in KEYS:
            # Waits until the other worker has taken it.
            assert await step(client, key) == 2
        frozen.thaw()
        # It has not found out yet that others own what it had, and is asked for that first.
        for key in KEYS:
            assert await readers[0].all_of(key) == all_at(2)
            assert await step(client, key) == 3
            for reader in readers:
                assert await reader.all_of(key) == all_at(3)


async def test_workers_in_memory_read_what_was_answered_of_their_own_and_nothing_else(
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {"store": "memory", "http_port": 0, "log_level": "info"}
    async with (
        asyncio.timeout(TEST_S),
        running_cluster(tmp_path, 2, app=APP, **options) as cluster,
        cluster.client() as client,
        readers_of(cluster) as readers,
    ):
        owned = [(await cluster.status(worker)).partitions for worker in cluster.workers]
        for number in range(1, 6):
            for index, key in enumerate(KEYS):
                assert await step(client, key) == number
                owner, other = readers
                if f"{STEP}/{index}" in owned[1]:
                    owner, other = other, owner
                assert await owner.all_of(key) == all_at(number)
                with pytest.raises(UnavailableError, match="ask that worker"):
                    await other.state(key)
                assert await other.state_by_http(key) == 503
                assert not await other.records("dead", key)
                assert key not in await other.listed_states()
