"""Callers at the ports that a supervisor keeps: passed on, held, refused. Real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import grpc
import pytest
from grpc import aio

from sublet.runtime.cli.front import CONNECTIONS_MAX, GrpcFront, HttpFront

HOST = "127.0.0.1"


class Echo:
    """A worker that answers every line with its name and the line; notes what it has seen."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[str] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        while line := await reader.readline():
            self.seen.append(line.decode().strip())
            writer.write(f"{self.name} {line.decode()}".encode())

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        return f"{HOST}:{self._server.sockets[0].getsockname()[1]}"

    async def end(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


class Kept:
    """A port that is kept, and who has knocked."""

    def __init__(self, listener: socket.socket) -> None:
        self.knocked = asyncio.Event()
        self._opened: list[Echo | Caller] = []
        self.front = GrpcFront(listener, self.knocked.set)
        self.port = listener.getsockname()[1]

    async def caller(self) -> Caller:
        caller = Caller(*await asyncio.open_connection(HOST, self.port))
        self._opened.append(caller)
        return caller

    async def add(self, index: int, worker: Echo) -> None:
        self._opened.append(worker)
        self.front.add(index, await worker.start())

    async def close(self) -> None:
        for each in self._opened:
            await each.end()


class Caller:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self._writer = reader, writer

    def say(self, text: str) -> None:
        self._writer.write(f"{text}\n".encode())

    async def end(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def hears(self) -> str:
        async with asyncio.timeout(30):
            return (await self.reader.readline()).decode().strip()


@asynccontextmanager
async def kept_port() -> AsyncIterator[Kept]:
    with socket.create_server((HOST, 0)) as listener:
        kept = Kept(listener)
        running = asyncio.create_task(kept.front.run())
        try:
            yield kept
        finally:
            await kept.close()
            running.cancel()
            await asyncio.wait([running])


async def test_who_comes_before_a_worker_is_ready_waits_and_is_answered() -> None:
    async with kept_port() as kept:
        caller = await kept.caller()
        caller.say("early")
        await kept.knocked.wait()
        assert kept.front.is_awaited
        worker = Echo("w")
        await kept.add(0, worker)
        assert await caller.hears() == "w early"
        assert not kept.front.is_awaited
        await worker.end()
        assert await caller.hears() == ""


async def test_callers_are_shared_by_those_who_stay() -> None:
    async with kept_port() as kept:
        workers = [Echo("one"), Echo("two"), Echo("leaves")]
        for index, worker in enumerate(workers):
            await kept.add(index, worker)
        kept.front.leave(2)
        for number in range(4):
            caller = await kept.caller()
            caller.say(str(number))
            await caller.hears()
        assert [len(each.seen) for each in workers] == [2, 2, 0]


async def test_a_worker_that_is_held_sees_nothing_more_unless_it_stays_after_all() -> None:
    async with kept_port() as kept:
        worker = Echo("w")
        await kept.add(0, worker)
        known = await kept.caller()
        known.say("before")
        await known.hears()
        kept.front.hold(0)
        known.say("after")
        late = await kept.caller()
        late.say("late")
        await kept.knocked.wait()
        assert worker.seen == ["before"]

        kept.front.resume(0)
        assert await known.hears() == "w after"
        assert await late.hears() == "w late"


async def test_what_a_worker_that_left_has_not_seen_is_not_passed_on_and_new_callers_wait() -> None:
    async with kept_port() as kept:
        first, second = Echo("first"), Echo("second")
        await kept.add(0, first)
        known = await kept.caller()
        known.say("before")
        await known.hears()
        kept.front.hold(0)
        known.say("after")
        late = await kept.caller()
        late.say("late")
        await kept.knocked.wait()
        await first.end()
        assert await known.hears() == ""
        kept.front.remove(0)
        await kept.add(0, second)
        assert await late.hears() == "second late"
        assert (first.seen, second.seen) == (["before"], ["late"])


async def test_a_worker_that_cannot_be_reached_is_tried_again() -> None:
    async with kept_port() as kept:
        with socket.create_server((HOST, 0)) as gone:
            nobody = f"{HOST}:{gone.getsockname()[1]}"
        kept.front.add(0, nobody)
        caller = await kept.caller()
        caller.say("x")
        worker = Echo("w")
        await kept.add(0, worker)
        assert await caller.hears() == "w x"


async def test_who_waits_in_vain_is_told_why_as_grpc_tells_it() -> None:
    async with kept_port() as kept, aio.insecure_channel(f"{HOST}:{kept.port}") as channel:
        asking = asyncio.ensure_future(channel.unary_unary("/sublet.v1.Sublet/Call")(b""))
        await kept.knocked.wait()
        kept.front.refuse("the code is broken", 1_500)
        with pytest.raises(aio.AioRpcError) as caught:
            await asking
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert caught.value.details() == "the code is broken"
    trailers = dict(caught.value.trailing_metadata() or ())
    assert trailers["sublet-retry-after-ms"] == "1500"


async def test_connections_beyond_the_bound_wait_in_the_kernel() -> None:
    async with kept_port() as kept:
        kept.front._room = asyncio.Semaphore(1)
        worker = Echo("w")
        await kept.add(0, worker)
        first, second = await kept.caller(), await kept.caller()
        first.say("1")
        assert await first.hears() == "w 1"
        await first.end()
        second.say("2")
        assert await second.hears() == "w 2"
    assert CONNECTIONS_MAX == 1_000


async def test_http_callers_are_seen_without_being_accepted_and_can_be_refused() -> None:
    knocked = asyncio.Event()
    with socket.create_server((HOST, 0)) as listener:
        front = HttpFront(listener, knocked.set)
        front.watch()
        reader, writer = await asyncio.open_connection(HOST, listener.getsockname()[1])
        writer.write(b"POST /functions/a/b/c HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n1")
        await knocked.wait()
        assert front.is_awaited
        front.refuse("the code is broken", 1_500)
        assert not front.is_awaited
        answer = (await reader.read()).decode()
        assert answer.startswith("HTTP/1.1 503 Service Unavailable\r\n")
        assert "\r\nretry-after: 2\r\n" in answer.lower()
        assert "the code is broken" in answer
        writer.close()
        await front.close()
