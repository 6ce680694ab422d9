"""Workers that are stopped one after the other while they serve HTTP: no request fails, and each
has its effect once."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.rpc import CallRequest
from tests.integration import balanced_app
from tests.integration.balancer import FAILURES, Backend, Balancer, ask_once
from tests.integration.cluster import Cluster, running_cluster, until
from tests.integration.leaving import by_command, by_signal, http_address, settings_for

APP = "tests.integration.balanced_app:app"
KEYS = [f"key{number}" for number in range(20)]
SLOW_KEYS = [f"slow{number}" for number in range(20)]
CALLERS = 4
STOPS = 6

Way = Callable[[bool], Awaitable[None]]


class Load:
    """Callers of all kinds of functions, on kept and on new connections."""

    def __init__(self, balancer: Balancer) -> None:
        self.balancer = balancer
        self.sent: Counter[str] = Counter()
        self.failed: list[str] = []
        self.done = 0
        self._chance = random.Random(2)
        self._is_over = False

    def stop(self) -> None:
        self._is_over = True

    async def begin(self) -> None:
        """Let there be a state for each key."""
        for key in KEYS:
            await self._call(True, key)

    async def run(self) -> None:
        ways = [self._call, self._send, self._call_stateful, self._call_stateless, self._read_state]
        async with asyncio.TaskGroup() as tasks:
            for kept in (True, False):
                for _ in range(CALLERS):
                    tasks.create_task(self._caller(kept, ways))
                tasks.create_task(self._caller(kept, [self._call_slow]))

    async def more(self, count: int) -> None:
        before = self.done
        await until(lambda: self.done >= before + count)

    async def _caller(self, kept: bool, ways: list[Way]) -> None:
        while not self._is_over:
            way = self._chance.choice(ways)
            try:
                await way(kept)
            except (*FAILURES, AssertionError) as error:
                self.failed.append(f"{way.__name__} (kept={kept}): {error!r}")
            self.done += 1

    async def _post(self, path: str, kept: bool, status: int = 200) -> bytes:
        reply = await self.balancer.ask("POST", f"/functions/balanced/{path}", b"1", kept=kept)
        assert reply.status == status, reply
        return reply.body

    async def _call(self, kept: bool, key: str = "") -> None:
        key = key or self._chance.choice(KEYS)
        self.sent[key] += 1
        await self._post(f"add/{key}", kept)

    async def _send(self, kept: bool) -> None:
        key = self._chance.choice(KEYS)
        self.sent[key] += 1
        await self._post(f"add/{key}?mode=send", kept, 202)

    async def _call_slow(self, kept: bool) -> None:
        key = self._chance.choice(SLOW_KEYS)
        self.sent[key] += 1
        await self._post(f"add_slowly/{key}", kept)

    async def _call_stateful(self, kept: bool) -> None:
        self.sent["all"] += 1
        await self._post("add_to_all", kept)

    async def _call_stateless(self, kept: bool) -> None:
        assert await self._post("double", kept) == b"2"

    async def _read_state(self, kept: bool) -> None:
        path = f"/state/balanced/add/{self._chance.choice(KEYS)}"
        reply = await self.balancer.ask("GET", path, kept=kept)
        assert reply.status == 200, reply


async def effects(cluster: Cluster) -> dict[str, int]:
    async with cluster.client() as client:
        nothing = [0] * len(KEYS)
        quick = await client.call_many(balanced_app.add, KEYS, nothing)
        slow = await client.call_many(balanced_app.add_slowly, SLOW_KEYS, nothing)
        found = dict(zip(KEYS + SLOW_KEYS, [*quick, *slow], strict=True))
        found["all"] = await client.call(balanced_app.add_to_all, "", 0)
    return found


@pytest.mark.timeout(120)
@pytest.mark.parametrize("store", ["sqlite", "redis"])
async def test_no_http_request_fails_while_workers_are_stopped(tmp_path: Path, store: str) -> None:
    with settings_for(store, tmp_path / "redis") as settings:
        # A worker is taken out of the rotation about one second after it is asked to stop; the rest
        # is for a machine that stands still now and then.
        settings |= {"http_port": 0, "log_level": "info", "drain_notice_s": 3}
        async with running_cluster(tmp_path / "workers", 3, app=APP, **settings) as cluster:
            balancer = Balancer()
            for worker in cluster.workers:
                balancer.add(http_address(cluster, worker))
            await balancer.all_are_in()
            load = Load(balancer)
            await load.begin()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(load.run())
                for number in range(STOPS):
                    await load.more(100)
                    worker = cluster.living[0]
                    await (by_signal, by_command)[number % 2](cluster, worker)
                    assert await worker.ended() == 0
                    new = cluster.add_worker()
                    await cluster.ready()
                    balancer.add(http_address(cluster, new))
                load.stop()
            balancer.close()
            assert not load.failed, f"{len(load.failed)} of {load.done}: {load.failed[:5]}"
            assert all(each.told_to_go for each in balancer.backends[:STOPS])
            assert await effects(cluster) == {
                key: load.sent[key] for key in (*KEYS, *SLOW_KEYS, "all")
            }


@pytest.mark.parametrize("leave", [by_signal, by_command])
async def test_who_never_looks_is_answered_until_a_worker_takes_no_connection_any_more(
    tmp_path: Path, leave: Callable[..., Awaitable[None]]
) -> None:
    settings = {"http_port": 0, "log_level": "info", "drain_notice_s": 0.5}
    async with running_cluster(tmp_path, 2, app=APP, **settings) as cluster:
        worker = cluster.workers[0]
        backend = Backend(http_address(cluster, worker))
        statuses: Counter[int] = Counter()

        async def caller(number: int) -> None:
            while True:
                path = f"/functions/balanced/add/key{number}"
                try:
                    if number % 2:
                        reply = await backend.ask_kept("POST", path, b"1")
                    else:
                        reply = await ask_once(backend.address, "POST", path, b"1")
                except ConnectionRefusedError:
                    return
                statuses[reply.status] += 1

        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            for number in range(16):
                tasks.create_task(caller(number))
            await until(lambda: statuses[200] > 100)
            await leave(cluster, worker)
        backend.close()

        assert await worker.ended() == 0
        assert list(statuses) == [200]
        assert backend.told_to_go
        found = await effects(cluster)
        assert sum(found.values()) == statuses[200]


async def test_a_worker_that_was_never_asked_before_serves_all_while_it_drains(
    tmp_path: Path,
) -> None:
    settings = {
        "http_port": 0,
        "log_level": "info",
        "drain_notice_s": 1800,
        "drain_timeout_s": 3600,
    }
    async with (
        running_cluster(tmp_path, 2, app=APP, **settings) as cluster,
        cluster.client() as client,
        asyncio.timeout(40),
    ):
        worker = cluster.workers[0]
        address = http_address(cluster, worker)
        await client.call(balanced_app.add, "key0", 1)
        stream = await Stream.open(address, "/egress/added")
        assert await stream.event() == {"id": "balanced/add=1", "data": "1"}
        worker.terminate()

        async def is_told() -> bool:
            return (await ask_once(address, "GET", "/ready")).status == 503

        await until(is_told)
        asked = [
            ("GET", "/health", b""),
            ("POST", "/functions/balanced/add/key0", b"1"),
            ("POST", "/functions/balanced/add/key0?mode=send", b"1"),
            ("POST", "/functions/balanced/add_slowly/key0", b"1"),
            ("GET", "/state/balanced/add/key0", b""),
            ("GET", "/egress/added/page?wait_ms=10000", b""),
        ]
        replies = [await ask_once(address, *each) for each in asked]
        assert [each.status for each in replies] == [200, 200, 202, 200, 200, 200], replies
        async with UnaryClient(worker.address) as unary:
            assert (await unary.status()).draining
            request = CallRequest(function="balanced/add", key="key0", payload=b"\x01")
            assert await unary.call(request) == b"\x04"
        # Streams go on, too, and end as one that is complete.
        assert [(await stream.event())["data"] for _ in range(3)] == ["2", "3", "4"]
        cluster.workers[1].terminate()
        assert await stream.event() == {}
        assert [await each.ended() for each in cluster.workers] == [0, 0]
        new = cluster.add_worker()
        await cluster.ready()
        await client.call(balanced_app.add, "key0", 1)
        address = http_address(cluster, new)
        again = await Stream.open(address, f"/egress/added?from={stream.last_id}")
        assert (await again.event())["data"] == "5"
        again.close()


class Stream:
    """An egress as server-sent events."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._lines: list[str] = []
        self.last_id = ""

    @classmethod
    async def open(cls, address: str, path: str) -> Stream:
        host, _, port = address.rpartition(":")
        stream = cls(*await asyncio.open_connection(host, int(port)))
        stream._writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        head = await stream._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"transfer-encoding: chunked" in head
        return stream

    async def event(self) -> dict[str, str]:
        """Return the next event; an empty one at the end, which has to be that of the body."""
        found: dict[str, str] = {}
        while True:
            while not self._lines:
                size = int(await self._reader.readline(), 16)
                chunk = (await self._reader.readexactly(size + 2))[:-2]
                if not size:
                    assert await self._reader.read() == b""
                    self._writer.close()
                    return {}
                self._lines = chunk.decode().splitlines()
            line = self._lines.pop(0)
            if line and not line.startswith(("retry", ":")):
                name, _, found[name] = line.partition(": ")
            elif "id" in found:
                self.last_id = found["id"]
                return found

    def close(self) -> None:
        self._writer.close()


async def test_workers_that_are_all_stopped_do_not_wait_for_callers_to_go_elsewhere(
    tmp_path: Path,
) -> None:
    settings = {"http_port": 0, "drain_notice_s": 1800, "drain_timeout_s": 3600}
    async with running_cluster(tmp_path, 2, app=APP, **settings) as cluster:
        for worker in cluster.workers:
            worker.terminate()
        for worker in cluster.workers:
            assert await worker.ended() == 0


async def test_a_second_signal_ends_a_worker_that_waits_for_callers_to_go_elsewhere(
    tmp_path: Path,
) -> None:
    settings = {"http_port": 0, "drain_notice_s": 1800, "drain_timeout_s": 3600}
    async with running_cluster(tmp_path, 2, app=APP, **settings) as cluster:
        worker = cluster.workers[0]
        worker.terminate()

        async def has_given_all_away() -> bool:
            return not (await cluster.status(worker)).partitions

        await until(has_given_all_away)
        worker.terminate()
        assert await worker.ended() != -signal.SIGKILL
