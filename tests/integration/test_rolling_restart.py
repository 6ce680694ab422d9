"""Workers that are drained and replaced, one after the other, under load: no request fails."""

from __future__ import annotations

import asyncio
import random
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import msgspec
import pytest

from sublet import BlockingClient, Client
from sublet.functions.address import partition_index_of
from sublet.functions.errors import UnavailableError
from sublet.runtime.cli.exit_codes import ExitCode
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.rpc import CallRequest
from tests.integration import count_app
from tests.integration.cluster import (
    LOOK_EVERY_S,
    PROJECT,
    Cluster,
    WorkerProcess,
    running_cluster,
    until,
)
from tests.integration.leaving import (
    Leave,
    by_command,
    by_signal,
    find_http_address,
    http_address,
    settings_for,
)
from tests.redis_process import RedisProcess

APP = "tests.integration.count_app:app"
WAYS = ("linked", "unary", "http")
KEYS = [f"key{number}" for number in range(40)]


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
            if not (address := find_http_address(self._cluster, worker)):
                await asyncio.sleep(LOOK_EVERY_S)
                continue  # It has just been started.
            url = f"http://{address}"
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


@pytest.mark.parametrize(("store", "leave"), [("sqlite", by_command), ("redis", by_signal)])
async def test_no_request_fails_while_workers_are_replaced_one_by_one(
    tmp_path: Path, store: str, leave: Leave
) -> None:
    with settings_for(store, tmp_path / "redis") as settings:
        await replace_all(tmp_path, settings, leave)


async def replace_all(tmp_path: Path, settings: dict[str, object], leave: Leave) -> None:
    async with (
        running_cluster(
            tmp_path / "workers",
            3,
            app=APP,
            http_port=0,
            log_level="info",
            # Nobody dies here, and on a busy machine nobody is to be taken for dead.
            member_term_ms=20_000,
            **settings,
        ) as cluster,
        cluster.client() as client,
    ):
        callers = Callers(cluster, client)
        async with asyncio.timeout(200), asyncio.TaskGroup() as tasks:
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
        assert "declared dead" not in cluster.log
        assert "lost a partition" not in cluster.log
        assert "lost a link" not in cluster.log


class Clients:
    """Clients of every kind that has no worker of its own choice, each of which asks again and
    again."""

    def __init__(self, cluster: Cluster, client: Client) -> None:
        self.done: Counter[str] = Counter()
        self._cluster = cluster
        self._client = client
        self._is_over = False

    def stop(self) -> None:
        self._is_over = True

    async def run(self) -> None:
        kinds = {
            "blocking": lambda: asyncio.to_thread(self._blocking),
            "command": self._command,
            "snapshot": self._snapshot,
            "pipeline": self._pipeline,
            "egress": self._egress,
        }
        async with asyncio.TaskGroup() as tasks:
            for kind, run in kinds.items():
                tasks.create_task(self._again(kind, run))

    async def _again(self, kind: str, run: Callable[[], Awaitable[None]]) -> None:
        while not self._is_over:
            await run()
            self.done[kind] += 1

    async def more(self, count: int) -> None:
        before = self.done.copy()
        kinds = ("blocking", "command", "snapshot", "pipeline", "egress")
        await until(lambda: all(self.done[each] >= before[each] + count for each in kinds))

    def _blocking(self) -> None:
        with BlockingClient(self._cluster.addresses()) as client:
            for _ in range(20):
                client.call(count_app.count, "blocking", 1)

    async def _command(self) -> None:
        words = ("call", "count", "command", "1", "--data-dir", str(self._cluster.data_dir))
        command = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sublet", *words, cwd=PROJECT, stdout=PIPE, stderr=STDOUT
        )
        told, _ = await command.communicate()
        assert command.returncode == 0, told.decode()

    async def _snapshot(self) -> None:
        async with self._client.snapshot(count_app.count) as snapshot:
            found = {each.key: each.state async for each in snapshot}
        assert found["snapshot"] == 7

    async def _pipeline(self) -> None:
        """What Spark's sink does for each batch."""
        pipeline = self._client.pipeline(count_app.count, "rows")
        batch = self.done["pipeline"]
        attempt = pipeline.attempt(batch)
        index = partition_index_of("pipeline", pipeline.partition_count)
        await attempt.add(index, ["pipeline"], msgspec.msgpack.encode([1]))
        await pipeline.commit(batch, [await attempt.end()], completed=batch - 1)
        await pipeline.wait_taken()

    async def _egress(self) -> None:
        _, end = await self._client.egress_bounds("relayed")
        await self._client.call(count_app.relay, "egress", 1)
        reader = self._client.egress("relayed", start=end)
        assert (await anext(reader)).value == f"egress {self.done['egress'] + 1}"


@pytest.mark.timeout(120)
async def test_no_client_of_any_kind_fails_while_workers_are_replaced(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path, 3, app=APP) as cluster,
        cluster.client() as client,
        asyncio.timeout(100),
    ):
        await client.call(count_app.count, "snapshot", 7)
        clients = Clients(cluster, client)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(clients.run())
            for leave in (by_signal, by_command, by_signal):
                await clients.more(1)
                worker = cluster.living[0]
                await leave(cluster, worker)
                assert await worker.ended() == 0
                cluster.add_worker()
                await cluster.ready()
            await clients.more(1)
            clients.stop()
        kinds = ["blocking", "command", "pipeline"]
        totals = await client.call_many(count_app.count, kinds, [0] * 3)
        done = clients.done
        assert totals == [20 * done["blocking"], done["command"], done["pipeline"]]


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
                # From then on it waits for its partitions, however long its directory is away.
                assert (await http.post("/functions/count/count/first", json=0)).status_code == 200
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
            assert f"{frozen_id} was declared dead before it had drained" in told
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
