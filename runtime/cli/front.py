"""The ports that a supervisor keeps while workers come and go, down to none.

HTTP has a listening socket that all workers inherit: the kernel keeps who connects until one of
them accepts. gRPC cannot take a socket over, so connections to its port are accepted here and
passed on byte by byte, each to one worker. Sublet's own clients stay only for their first question:
they learn the workers' own addresses, or a lane.

Who comes while no worker is there waits, and is answered by the first that is ready. While the last
worker leaves, nothing of what comes reaches it: gRPC knows what it has not seen, and asks again.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, NoReturn

from sublet.functions.errors import UnavailableError
from sublet.runtime.config.addresses import split

if TYPE_CHECKING:
    import grpc

Knock = Callable[[], None]
"""Hears that somebody waits for a worker."""

CONNECTIONS_MAX = 1_000
"""Accepted at a time; further ones wait in the kernel."""
PIECE_BYTES_MAX = 64 * 1024
REFUSED_S_MAX = 2.0
"""How long a caller by HTTP may take to be told that it is refused."""
_LOOK_S = 0.05


class RefusedError(Exception):
    """No worker can be started; the text says why."""

    def __init__(self, reason: str, retry_after_ms: int) -> None:
        super().__init__(reason)
        self.retry_after_ms = retry_after_ms


class _Worker:
    """One that callers are passed on to."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_leaving = False
        """Nobody else is passed on to it."""
        self.open = asyncio.Event()
        """Not set: it must see nothing that comes from now on, by whatever connection."""
        self.open.set()


class GrpcFront:
    """Passes connections to the gRPC port on, until `run` is cancelled."""

    def __init__(self, listener: socket.socket, knock: Knock) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._knock = knock
        self._workers: dict[int, _Worker] = {}
        self._turn = 0
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._room = asyncio.Semaphore(CONNECTIONS_MAX)
        self._refusing = _RefusingServer()

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for a worker."""
        return bool(self._waiters)

    # Workers

    def add(self, index: int, address: str) -> None:
        """A worker is ready."""
        self._workers[index] = _Worker(address)
        self._wake_waiters()

    def hold(self, index: int) -> None:
        """A worker is about to leave: from now on nothing that comes may reach it."""
        if index in self._workers:
            self._workers[index].open.clear()

    def resume(self, index: int) -> None:
        """It stays after all."""
        if index in self._workers:
            self._workers[index].open.set()
            self._wake_waiters()

    def leave(self, index: int) -> None:
        """A worker leaves: who comes now goes to another one."""
        if index in self._workers:
            self._workers[index].is_leaving = True

    def remove(self, index: int) -> None:
        """A worker has ended; its connections have ended with it."""
        self._workers.pop(index, None)

    def refuse(self, reason: str, retry_after_ms: int) -> None:
        """Tell all who wait that there will be no worker."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(RefusedError(reason, retry_after_ms))

    def _wake_waiters(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _next(self) -> _Worker | None:
        found = [
            each
            for _, each in sorted(self._workers.items())
            if each.open.is_set() and not each.is_leaving
        ]
        self._turn += 1
        return found[self._turn % len(found)] if found else None

    async def _next_when_ready(self) -> _Worker:
        """Return a worker as soon as there is one. Raises `RefusedError`."""
        while (found := self._next()) is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = None
            try:
                self._knock()
                await waiter
            finally:
                del self._waiters[waiter]
        return found

    # Connections

    async def run(self) -> NoReturn:
        loop = asyncio.get_running_loop()
        async with self._refusing, asyncio.TaskGroup() as tasks:
            while True:
                await self._room.acquire()
                accepted = await _accepted(loop, self._listener)
                task = tasks.create_task(self._serve(accepted))
                task.add_done_callback(lambda _: self._room.release())

    async def _serve(self, accepted: socket.socket) -> None:
        # What happens to one connection is nobody else's business.
        with accepted, suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reader, writer = await asyncio.open_connection(sock=accepted, limit=PIECE_BYTES_MAX)
            try:
                worker, (there, to_worker) = await self._connected()
                try:
                    await _until_one_ends(
                        _pass_on(reader, to_worker, worker.open), _pass_on(there, writer)
                    )
                finally:
                    to_worker.close()
            finally:
                writer.close()

    async def _connected(
        self,
    ) -> tuple[_Worker, tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Return a worker with a connection to it. Nothing was said on it yet, so that one that
        cannot be had is tried again."""
        while True:
            try:
                worker = await self._next_when_ready()
            except RefusedError as error:
                worker = _Worker(await self._refusing.address(str(error), error.retry_after_ms))
            host, port = split(worker.address)
            try:
                return worker, await asyncio.open_connection(host, port, limit=PIECE_BYTES_MAX)
            except OSError:
                # It has ended, and its supervisor hears of it in a moment.
                await asyncio.sleep(_LOOK_S)


async def _accepted(loop: asyncio.AbstractEventLoop, listener: socket.socket) -> socket.socket:
    while True:
        try:
            accepted, _ = await loop.sock_accept(listener)
        except OSError:
            # The caller has gone, or there are too many files open: neither is for ever.
            await asyncio.sleep(_LOOK_S)
        else:
            return accepted


async def _pass_on(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    may_pass: asyncio.Event | None = None,
) -> None:
    while piece := await reader.read(PIECE_BYTES_MAX):
        if may_pass is not None and not may_pass.is_set():
            await may_pass.wait()
        writer.write(piece)
        await writer.drain()


async def _until_one_ends(*ways: Any) -> None:
    """Both ways of a connection end together: gRPC closes none by itself."""
    tasks = [asyncio.ensure_future(each) for each in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _RefusingServer:
    """Answers every gRPC call with the reason why there is no worker; made when it is needed."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._error = UnavailableError("")
        self._address = ""
        self._starting = asyncio.Lock()

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def address(self, reason: str, retry_after_ms: int) -> str:
        self._error = UnavailableError(reason, retry_after_ms)
        async with self._starting:
            if not self._address:
                self._address = await self._start()
        return self._address

    async def _start(self) -> str:
        # A supervisor whose workers start needs none of it.
        import grpc
        from grpc import aio

        from sublet.runtime.protocol.wire.errors import status_from_error

        async def refuse(_: object, context: aio.ServicerContext[bytes, bytes]) -> NoReturn:
            await context.abort(*status_from_error(self._error))
            raise AssertionError("abort raises")

        class Refusals(grpc.GenericRpcHandler):
            def service(
                self, handler_call_details: grpc.HandlerCallDetails
            ) -> grpc.RpcMethodHandler[bytes, bytes]:
                # Who asks one thing is answered by it, too.
                return grpc.stream_stream_rpc_method_handler(refuse)

        server = aio.server()
        server.add_generic_rpc_handlers((Refusals(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self._stack.push_async_callback(server.stop, 0)
        return f"127.0.0.1:{port}"


class HttpFront:
    """Looks, while no worker accepts them, whether somebody has connected to the HTTP port."""

    def __init__(self, listener: socket.socket, knock: Knock) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._knock = knock
        self._is_watched = False
        self._answering: set[asyncio.Task[None]] = set()

    @property
    def is_awaited(self) -> bool:
        found = select.poll()
        found.register(self._listener, select.POLLIN)
        return bool(found.poll(0))

    def watch(self) -> None:
        """Knock when somebody connects; once."""
        if not self._is_watched:
            self._is_watched = True
            asyncio.get_running_loop().add_reader(self._listener, self._connected)

    def unwatch(self) -> None:
        if self._is_watched:
            self._is_watched = False
            asyncio.get_running_loop().remove_reader(self._listener)

    def _connected(self) -> None:
        self.unwatch()
        self._knock()

    def refuse(self, reason: str, retry_after_ms: int) -> None:
        """Tell all who wait that there will be no worker."""
        from sublet.runtime.http.errors import PROBLEM_TYPE, problem

        found = problem("unavailable", reason, retry_after_ms)
        headers = {
            "content-type": PROBLEM_TYPE,
            "content-length": str(len(found.body)),
            "connection": "close",
            **found.headers,
        }
        lines = [f"HTTP/1.1 {found.status} {found.title}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        answer = "\r\n".join([*lines, "", ""]).encode("ascii") + found.body
        # Who connects while others are being refused is refused the next time.
        with suppress(OSError):
            while len(self._answering) < CONNECTIONS_MAX:
                accepted, _ = self._listener.accept()
                task = asyncio.get_running_loop().create_task(_answer(accepted, answer))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)

    async def close(self) -> None:
        self.unwatch()
        if self._answering:
            await asyncio.wait(self._answering)


async def _answer(accepted: socket.socket, answer: bytes) -> None:
    """Answer whatever is asked; reads on until the caller has read it, or for a short while."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(REFUSED_S_MAX):
            reader, writer = await asyncio.open_connection(sock=accepted)
            try:
                if await reader.read(PIECE_BYTES_MAX):
                    writer.write(answer)
                    await writer.drain()
                    writer.write_eof()
                    while await reader.read(PIECE_BYTES_MAX):
                        pass
            finally:
                writer.close()
