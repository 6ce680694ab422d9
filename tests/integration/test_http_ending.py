"""How the HTTP server ends: whoever has connected is answered, and no connection is reset."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.types import Receive, Scope, Send

from sublet.runtime.config.limits import Limits
from sublet.runtime.http.lingering import LINGER_S
from sublet.runtime.http.listening import ListenAt
from sublet.runtime.http.server import HttpServer

PATIENCE_S = 20.0
LARGE = 32 * 1024 * 1024
"""More than the kernel takes for a reader that reads nothing."""
GET = b"GET /%b HTTP/1.1\r\nhost: localhost\r\n\r\n"
POST = b"POST /refused HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"


class Site:
    """Answers with the path; `/slow` when it may, `/refused` before it has read anything, `/large`
    with much more."""

    def __init__(self) -> None:
        self.begun = 0
        self.go_on = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun += 1
        path = scope["path"].encode()
        if path.startswith(b"/slow"):
            await self.go_on.wait()
        body = bytes(LARGE) if path == b"/large" else path
        headers = [(b"content-length", str(len(body)).encode())]
        if path == b"/refused":
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def serving(site: Site) -> AsyncIterator[HttpServer]:
    async with (
        asyncio.timeout(PATIENCE_S),
        asyncio.TaskGroup() as tasks,
        HttpServer(site, tasks, ListenAt("127.0.0.1"), limits=Limits()) as server,
    ):
        yield server


class Caller:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def of(cls, server: HttpServer) -> Caller:
        host, _, port = server.address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def reply(self) -> tuple[bytes, bool]:
        """Return the body, and whether the connection is closed after it."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return await self.reader.readexactly(size), b"connection: close\r\n" in head

    async def rest(self) -> bytes:
        """Return what comes until the other end closes; raises if it resets."""
        rest = await self.reader.read()
        self.writer.close()
        return rest


async def closed(server: HttpServer) -> None:
    await server.close()
    await server.closed()


async def test_a_server_that_drains_answers_as_before_and_says_that_connections_end() -> None:
    async with serving(Site()) as server:
        kept, new = await Caller.of(server), await Caller.of(server)
        kept.send(GET % b"a")
        assert await kept.reply() == (b"/a", False)
        server.drain()
        later = await Caller.of(server)
        for each in (kept, new, later):
            each.send(GET % b"b")
            assert await each.reply() == (b"/b", True)
            assert await each.rest() == b""


async def test_a_request_that_is_under_way_has_the_last_reply_of_its_connection() -> None:
    site = Site()
    async with serving(site) as server:
        caller = await Caller.of(server)
        caller.send(GET % b"slow")
        while not site.begun:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await server.close()
        assert not server.is_closed
        site.go_on.set()

        assert await caller.reply() == (b"/slow", True)
        assert await caller.rest() == b""
        await closed(server)


async def test_of_requests_that_came_together_only_the_last_reply_ends_the_connection() -> None:
    site = Site()
    async with serving(site) as server:
        caller = await Caller.of(server)
        caller.send(GET % b"slow1")
        while not site.begun:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        server.drain()
        caller.send(GET % b"slow2" + GET % b"slow3")
        # Whatever was sent before this is answered has arrived, too.
        other = await Caller.of(server)
        other.send(GET % b"a")
        await other.reply()
        site.go_on.set()

        replies = [await caller.reply() for _ in range(3)]
        assert replies == [(b"/slow1", False), (b"/slow2", False), (b"/slow3", True)]
        assert await caller.rest() == b""
        assert await other.rest() == b""


async def test_idle_connections_end_and_what_is_sent_at_that_moment_resets_nothing() -> None:
    async with serving(Site()) as server:
        idle, crossing = await Caller.of(server), await Caller.of(server)
        for each in (idle, crossing):
            each.send(GET % b"a")
            await each.reply()
        await closed(server)
        crossing.send(GET % b"b")

        assert await idle.rest() == b""
        assert await crossing.rest() == b""


async def test_who_has_connected_before_the_end_is_answered() -> None:
    async with serving(Site()) as server:
        callers = [await Caller.of(server) for _ in range(50)]
        await server.close()
        for each in callers:
            each.send(GET % b"a")
        for each in callers:
            assert await each.reply() == (b"/a", True)
            assert await each.rest() == b""
        await closed(server)


async def test_a_server_is_closed_when_the_last_reply_is_sent_and_not_before() -> None:
    async with serving(Site()) as server, asyncio.TaskGroup() as tasks:
        caller = await Caller.of(server)
        caller.send(GET % b"large")
        await caller.reader.readuntil(b"\r\n\r\n")
        await server.close()
        ending = tasks.create_task(server.closed())
        await asyncio.sleep(0)
        assert not ending.done()

        assert len(await caller.reader.readexactly(LARGE)) == LARGE
        # The other end is still open, so it is no lost connection that tells.
        await ending
        assert await caller.rest() == b""


async def test_who_connects_and_asks_for_nothing_does_not_hold_up_the_end() -> None:
    async with serving(Site()) as server:
        silent = await Caller.of(server)
        await closed(server)

        assert await silent.rest() == b""


async def test_nobody_can_connect_after_the_end_and_closing_twice_is_closing_once() -> None:
    async with serving(Site()) as server:
        await closed(server)
        await closed(server)

        with pytest.raises(ConnectionRefusedError):
            await Caller.of(server)


async def test_a_reply_that_does_not_wait_for_the_body_is_not_lost() -> None:
    async with serving(Site()) as server:
        size = 8 * 1024 * 1024
        for _ in range(10):
            caller = await Caller.of(server)
            caller.send(POST % size + bytes(size))

            assert await caller.reply() == (b"/refused", True)
            assert await caller.rest() == b""


async def test_a_peer_that_does_not_close_is_not_waited_for_for_long() -> None:
    async with serving(Site()) as server:
        caller = await Caller.of(server)
        caller.send(GET % b"a")
        await caller.reply()
        await closed(server)
        before = asyncio.get_running_loop().time()
    # The end of the server waits for connections, if that does not take long.
    assert asyncio.get_running_loop().time() - before < LINGER_S + 5
    caller.writer.close()
