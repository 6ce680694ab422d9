"""Workers that are drained and replaced, one after the other, under load: no request fails."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from sublet import Client
from sublet.functions.errors import UnavailableError
from sublet.runtime.cli_exit import ExitCode
from sublet.runtime.link_grpc import UnaryClient
from sublet.runtime.unary import AdministerRequest, CallRequest, DrainWorker
from tests.integration import count_app
from tests.integration.cluster import (
    PROJECT,
    Cluster,
    WorkerProcess,
    running_cluster,
    until,
)
from tests.redis_process import RedisProcess

APP = "tests.integration.count_app:app"
WAYS = ("linked", "unary", "http")
KEYS = [f"key{number}" for number in range(40)]
Leave = Callable[[Cluster, WorkerProcess], Awaitable[None]]


@contextmanager
def settings_for(store: str, folder: Path) -> Iterator[dict[str, object]]:
    if store == "sqlite":
        yield {}
        return
    folder.mkdir()
    redis = RedisProcess(folder)
    redis.start()
    try:
        yield {"store": "redis", "redis_url": redis.url}
    finally:
        redis.kill()


class Callers:
    """A linked client, and callers by HTTP and by unary gRPC, who stay with a worker until they
    are told that it is about to end."""

    def __init__(self, cluster: Cluster, client: Client) -> None:
        self.sent: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.told_to_go = 0
        self._cluster = cluster
        self._client = client
        self._chance = random.Random(1)
        self._is_over = False

    def stop(self) -> None:
        self._is_over = True

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for feed in (self._linked, self._linked, self._by_http, self._by_http, self._unary):
                tasks.create_task(feed())

    def _key(self) -> str:
        key = self._chance.choice(KEYS)
        self.sent[key] += 1
        return key

    async def _linked(self) -> None:
        while not self._is_over:
            await self._client.call(count_app.count, self._key(), 1)
            self.done["linked"] += 1

    async def _unary(self) -> None:
        while not self._is_over:
            worker = self._chance.choice(self._cluster.living)
            async with UnaryClient(worker.address) as unary:
                while not self._is_over:
                    try:
                        if (await unary.status()).draining:
                            break
                    except UnavailableError:
                        break  # It has ended since it was chosen; nothing was asked of it.
                    request = CallRequest(function="count/count", key=self._key(), payload=b"\x01")
                    await unary.call(request)
                    self.done["unary"] += 1

    async def _by_http(self) -> None:
        while not self._is_over:
            worker = self._chance.choice(self._cluster.living)
            url = f"http://{http_address(self._cluster, worker)}"
            async with httpx.AsyncClient(base_url=url, timeout=20) as http:
                try:
                    is_ready = (await http.get("/ready")).status_code == 200
                except httpx.ConnectError:
                    continue  # It has ended since it was chosen.
                while is_ready and not self._is_over:
                    reply = await http.post(f"/functions/count/count/{self._key()}", json=1)
                    assert reply.status_code == 200, reply.text
                    self.done["http"] += 1
                    if reply.headers.get("connection") == "close":
                        self.told_to_go += 1
                        break

    async def more(self, count: int) -> None:
        """Wait until so many more were answered on each way."""
        before = self.done.copy()
        await until(lambda: all(self.done[way] >= before[way] + count for way in WAYS))

    async def check(self) -> None:
        totals = await self._client.call_many(count_app.count, KEYS, [0] * len(KEYS))
        assert dict(zip(KEYS, totals, strict=True)) == {key: self.sent[key] for key in KEYS}


def http_address(cluster: Cluster, worker: WorkerProcess) -> str:
    for line in cluster.log.splitlines():
        entry = json.loads(line)
        if entry["event"] == "serving HTTP" and entry["pid"] == worker.pid:
            return str(entry["http"])
    raise AssertionError("it serves no HTTP")


async def by_signal(cluster: Cluster, worker: WorkerProcess) -> None:
    worker.terminate()


async def by_command(cluster: Cluster, worker: WorkerProcess) -> None:
    worker.is_wanted = False
    id_ = (await cluster.status(worker)).worker
    other = next(each for each in cluster.living if each is not worker)
    async with UnaryClient(other.address) as unary:
        await unary.administer(AdministerRequest(action=DrainWorker(worker=id_)))


@pytest.mark.parametrize(("store", "leave"), [("sqlite", by_command), ("redis", by_signal)])
async def test_no_request_fails_while_workers_are_replaced_one_by_one(
    tmp_path: Path, store: str, leave: Leave
) -> None:
    with settings_for(store, tmp_path / "redis") as settings:
        await replace_all(tmp_path, settings, leave)


async def replace_all(tmp_path: Path, settings: dict[str, object], leave: Leave) -> None:
    async with (
        running_cluster(
            tmp_path / "workers", 3, app=APP, http_port=0, log_level="info", **settings
        ) as cluster,
        cluster.client() as client,
    ):
        callers = Callers(cluster, client)
        async with asyncio.timeout(50), asyncio.TaskGroup() as tasks:
            tasks.create_task(callers.run())
            for worker in cluster.workers[:3]:
                await callers.more(3)
                await leave(cluster, worker)
                assert await worker.ended() == 0
                cluster.add_worker()
                await cluster.ready()
            callers.stop()
        await callers.check()
        assert callers.told_to_go > 0
        assert "taken for dead" not in cluster.log
        assert "lost a partition" not in cluster.log
        assert "lost a link" not in cluster.log


async def test_no_request_fails_when_a_worker_is_stopped_while_redis_is_away(
    tmp_path: Path,
) -> None:
    (tmp_path / "redis").mkdir()
    redis = RedisProcess(tmp_path / "redis")
    redis.start()
    settings = {"store": "redis", "redis_url": redis.url, "http_port": 0, "log_level": "info"}
    try:
        async with running_cluster(tmp_path / "workers", 2, app=APP, **settings) as cluster:
            worker = cluster.workers[1]
            url = f"http://{http_address(cluster, worker)}"
            async with (
                httpx.AsyncClient(base_url=url, timeout=30) as http,
                asyncio.TaskGroup() as tasks,
            ):
                redis.stop()
                waiting = [
                    tasks.create_task(http.post(f"/functions/count/count/{key}", json=1))
                    for key in KEYS
                ]

                async def all_wait() -> bool:
                    reports = [await cluster.status(each) for each in cluster.workers]
                    return sum(each.counters["in_flight"] for each in reports) >= len(KEYS)

                await until(all_wait)
                worker.terminate()
                loop = asyncio.get_running_loop()
                # Many times longer than a term: as long as nobody could take over, it stays.
                stays_until = loop.time() + 4
                await until(lambda: not worker.is_running or loop.time() > stays_until)
                assert worker.is_running
                redis.start()
                replies = [await each for each in waiting]
            assert [(each.status_code, each.json()) for each in replies] == [(200, 1)] * len(KEYS)
            assert await worker.ended() == 0
    finally:
        redis.kill()


async def asked_to_drain(worker: str, other: WorkerProcess) -> tuple[int, str]:
    """Return how `sublet drain` ended, and what it told."""
    words = ("-m", "sublet", "drain", worker, "--connect", other.address)
    command = await asyncio.create_subprocess_exec(
        sys.executable, *words, cwd=PROJECT, stdout=PIPE, stderr=STDOUT
    )
    told, _ = await command.communicate()
    assert command.returncode is not None
    return command.returncode, told.decode()


@pytest.mark.parametrize("store", ["sqlite", "redis"])
async def test_a_frozen_worker_that_is_drained_leaves_when_it_goes_on(
    tmp_path: Path, store: str
) -> None:
    with settings_for(store, tmp_path / "redis") as settings:
        # It has to be a member still when the command has started.
        settings["member_term_ms"] = 5_000
        async with running_cluster(tmp_path / "workers", 2, app=APP, **settings) as cluster:
            frozen, other = cluster.workers
            frozen_id = (await cluster.status(frozen)).worker
            await cluster.freeze(frozen)

            code, told = await asked_to_drain(frozen_id, other)

            assert (code, "has left" in told) == (ExitCode.RETRY_LATER, False), told
            assert f"{frozen_id} was taken for dead before it had left" in told
            assert "nothing has happened" not in told
            frozen.thaw()
            assert await frozen.ended() == 0
            report = await cluster.status(other)
            assert list(report.topology.workers) == [report.worker]
            assert set(report.topology.placement.values()) == {report.worker}


@pytest.mark.parametrize("lane", [True, False])
@pytest.mark.parametrize("leave", [by_command, by_signal])
async def test_a_worker_that_leaves_says_goodbye_on_all_its_links(
    tmp_path: Path, leave: Leave, lane: bool
) -> None:
    async with (
        running_cluster(tmp_path, 3, app=APP, lane=lane) as cluster,
        cluster.client() as client,
    ):
        # All workers send to all others.
        for number in range(40):
            await client.send(count_app.forward, f"from{number}", dict.fromkeys(KEYS, 1))

        async def all_have_come() -> bool:
            return await client.call(count_app.count, "key0", 0) == 40

        await until(all_have_come)
        for worker in cluster.workers[:2]:
            await leave(cluster, worker)
            assert await worker.ended() == 0
        assert (await cluster.counters())["links_lost"] == 0
        assert "lost a link" not in cluster.log
