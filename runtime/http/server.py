"""Runs the HTTP application on a worker's loop, behind bounds that hold for every connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from sublet.runtime.config.addresses import joined
from sublet.runtime.config.limits import Limits
from sublet.runtime.http.disconnects import CONNECTION
from sublet.runtime.http.errors import PROBLEM_TYPE, Problem, problem
from sublet.runtime.http.lingering import LingeringTransport
from sublet.runtime.http.listening import BACKLOG, ListenAt, let_nobody_connect

HEAD_BYTES_MAX = 32 * 1024
HEADERS_MAX = 100
KEEP_ALIVE_S = 75
STOP_TIMEOUT_S = 2
CONNECTION_RETRY_MS = 1_000
ACCEPTED_S = 0.1
"""Who has connected, or nearly so, is accepted within this time."""
FIRST_REQUEST_S = 1.0
"""Who has connected before the server closed has so long to begin with a request."""
_LINGER_NOT = struct.pack("ii", 1, 0)


class HttpServer:
    """Serves between `async with` and its end, which lets requests finish for a short while.

    Its end in good order has three steps: `drain` lets callers go elsewhere, `close` takes nothing
    new, and once `closed` nobody waits for a reply.
    """

    def __init__(
        self,
        app: ASGIApp,
        tasks: asyncio.TaskGroup,
        at: ListenAt,
        *,
        limits: Limits,
        begin: asyncio.Event | None = None,
    ) -> None:
        """Who connects before `begin` waits for it."""
        self._app = app
        self._tasks = tasks
        self._at = at
        self._begin = begin
        self._port = at.port
        self._limits = limits
        self._is_draining = False
        self._connection_ended = asyncio.Event()
        self._server: _Server
        self._serving: asyncio.Task[None]

    @property
    def address(self) -> str:
        """host:port at which it listens, once it is started."""
        return joined(self._at.host, self._port)

    @property
    def port(self) -> int:
        return self._port

    def drain(self) -> None:
        """Serve as before, and close each connection after its next reply, which says so."""
        self._is_draining = True
        for connection in self._connections:
            connection.drain()

    async def close(self) -> None:
        """Accept no more connections, and close those that are idle. Requests that are under way,
        or on their way here, are answered. Doing it twice is doing it once."""
        self.drain()
        await self._server.stop_accepting()
        for connection in tuple(self._connections):
            connection.leave()

    async def closed(self) -> None:
        """Wait, after `close`, until every request has its reply."""
        while not self.is_closed:
            if tasks := self._server.server_state.tasks:
                await asyncio.wait(tasks)
            else:
                self._connection_ended.clear()
                await self._connection_ended.wait()

    @property
    def is_closed(self) -> bool:
        state = self._server.server_state
        return not state.tasks and all(each.has_ended for each in self._connections)

    @property
    def _connections(self) -> set[BoundedProtocol]:
        return self._server.server_state.connections  # type: ignore[return-value]  # All are ours.

    async def __aenter__(self) -> HttpServer:
        listener, front = self._at.open(), self._at.front
        self._port = listener.getsockname()[1]
        config = uvicorn.Config(
            self._app,
            http=partial(  # type: ignore[arg-type]  # Makes one.
                BoundedProtocol,
                self._limits,
                lambda: self._is_draining,
                self._connection_ended.set,
            ),
            ws="none",
            loop="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            # Nobody stands before us whose word about addresses could be trusted.
            proxy_headers=False,
            server_header=False,
            headers=[("x-content-type-options", "nosniff")],
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_TIMEOUT_S,
        )
        shared = [each for each in (self._at.kept, front) if each is not None]
        self._server = _Server(config, [] if self._at.kept is not None else [listener], shared)
        self._serving = self._tasks.create_task(self._serve())
        if self._begin is None:
            await self._server.listening.wait()
        return self

    async def _serve(self) -> None:
        if self._begin is not None:
            await self._begin.wait()
        try:
            await self._server.serve(self._server.listeners)
        finally:
            self._server.listening.set()  # Nobody waits for what has failed.

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.should_exit = True
        if not self._server.started:
            self._serving.cancel()
        await asyncio.wait([self._serving])


class _Server(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        own: Sequence[socket.socket],
        shared: Sequence[socket.socket],
    ) -> None:
        """`shared`: who has connected there is accepted by another worker, or by the next one."""
        super().__init__(config)
        self.listening = asyncio.Event()
        self._own = own
        self.listeners = [*own, *shared]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: they are the worker's."""
        yield

    async def stop_accepting(self) -> None:
        if all(each.fileno() < 0 for each in self.listeners):
            return
        if self._own:
            for each in self._own:
                let_nobody_connect(each)
            await asyncio.sleep(ACCEPTED_S)
        for server in self.servers if self.started else ():
            server.close()
        for each in self.listeners:
            each.close()


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with a bound on connections, on heads, and on what slow peers may take.

    A request has `http_read_timeout_ms` to arrive as a whole, however many small pieces it comes
    in; a reader that takes nothing for `http_write_timeout_ms` is cut.
    """

    def __init__(
        self,
        limits: Limits,
        is_draining: Callable[[], bool],
        on_ended: Callable[[], None],
        *arguments: Any,
        **named: Any,
    ) -> None:
        """`on_ended` is called whenever `has_ended` may have changed."""
        super().__init__(*arguments, **named)
        self._limits = limits
        self._is_draining = is_draining
        self._on_ended = on_ended
        self._lingering: LingeringTransport | None = None
        self._is_leaving = False
        self._last_cycle: RequestResponseCycle | None = None
        """The one whose reply says that the connection is closed."""
        self._has_request = False
        """Whether there was one: from then on there is a `cycle`."""
        self._in_head = True
        self._is_arriving = True
        self._head_bytes = 0
        self._head_too_large = False
        self._is_lost = False
        self.on_lost: Callable[[], object] | None = None
        """Called once, if the connection ends before it is taken back."""
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        connections_max = self._limits.http_connections_max
        if len(self.connections) >= connections_max:
            self.transport = transport
            self._refuse(
                problem(
                    "unavailable",
                    f"{connections_max} connections are open, the maximum (http_connections_max)",
                    CONNECTION_RETRY_MS,
                )
            )
            return
        self._lingering = LingeringTransport(transport, self.loop, self._on_ended)
        super().connection_made(self._lingering)  # type: ignore[arg-type]  # Does what one does.
        self._arm_read_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm_read_timer()
        self.resume_writing()
        super().connection_lost(exc)
        if self._lingering is not None:
            self._lingering.lost()
        self._is_lost = True
        self._on_ended()
        on_lost, self.on_lost = self.on_lost, None
        if on_lost is not None:
            on_lost()

    def is_lost(self) -> bool:
        return self._is_lost

    def drain(self) -> None:
        """Close after the next reply, which says so."""
        cycle = self.cycle
        if self._has_request and cycle.keep_alive and not cycle.response_started:
            cycle.keep_alive = False
            self._last_cycle = cycle

    def leave(self) -> None:
        """Close as soon as nothing is under way. Called again after each reply."""
        self._is_leaving = True
        if not self._has_request and not self._head_bytes:
            # Its first request may be on its way.
            self.loop.call_later(FIRST_REQUEST_S, self._leave_unused)
        elif not self._is_arriving and not self._head_bytes and self.cycle.response_complete:
            self.transport.close()

    def _leave_unused(self) -> None:
        if not self._has_request and not self._head_bytes:
            self.transport.close()

    @property
    def has_ended(self) -> bool:
        """Whether nothing is to come from either side but the peer's end."""
        found = self._lingering
        return found is None or (found.is_closing() and found.has_sent_all)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_leaving:
            self.leave()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if not self._is_arriving:
            self._disarm_read_timer()
        elif not self.transport.is_closing():
            if self._in_head and self._head_bytes > HEAD_BYTES_MAX:
                self._head_too_large = True
                self.send_400_response("")
            elif self._read_timer is None:
                self._arm_read_timer()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[literal-required]
        self._is_arriving = self._in_head = True

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        size_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size_bytes > HEAD_BYTES_MAX or len(self.headers) > HEADERS_MAX:
            self._head_too_large = True
            raise ValueError("the head is too large")
        self._has_request = True
        super().on_headers_complete()
        if self._is_draining():
            former, self._last_cycle = self._last_cycle, None
            if former is not None and not former.response_started:
                # The client has not waited for that reply; this one is the last.
                former.keep_alive = True
            self.drain()

    def on_message_complete(self) -> None:
        self._is_arriving = False
        # Bytes of the next head may follow.
        self._in_head = True
        super().on_message_complete()
        if self._is_leaving:
            self.leave()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, or more of it than is allowed."""
        if self._head_too_large:
            self._refuse(
                problem(
                    "head_too_large",
                    f"allowed: {HEADERS_MAX} headers, {HEAD_BYTES_MAX} bytes with the address",
                )
            )
        else:
            self._refuse(problem("bad_request", "the request is not valid HTTP/1.1"))

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            timeout_s = self._limits.http_write_timeout_ms / 1000
            self._write_timer = self.loop.call_later(timeout_s, self._reader_stalled)

    def resume_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if self.flow is not None:
            super().resume_writing()
        self._on_ended()

    def _reader_stalled(self) -> None:
        self._write_timer = None
        # Without it the kernel would keep its own buffer for the reader, megabytes for minutes.
        self.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT
        )
        self.transport.abort()

    def _arm_read_timer(self) -> None:
        timeout_s = self._limits.http_read_timeout_ms / 1000
        self._read_timer = self.loop.call_later(timeout_s, self._sender_stalled)

    def _disarm_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _sender_stalled(self) -> None:
        self._read_timer = None
        if not self._has_request and not self._head_bytes:
            self.transport.close()  # Opened in advance, and never used.
            return
        timeout_ms = self._limits.http_read_timeout_ms
        self._refuse(problem("request_timeout", f"the request took longer than {timeout_ms} ms"))

    @property
    def _is_answering(self) -> bool:
        """Whether a reply is begun and not ended, or is due to an earlier request."""
        if not self._has_request or self.cycle.response_complete:
            return False
        return self.cycle.response_started or bool(self.pipeline)

    def _refuse(self, found: Problem) -> None:
        """Say why, unless something else is being said or due, and close."""
        if self.transport.is_closing():
            return
        if not self._is_answering:
            body = found.body
            headers = {
                "content-type": PROBLEM_TYPE,
                "content-length": str(len(body)),
                "connection": "close",
                **found.headers,
            }
            lines = [f"HTTP/1.1 {found.status} {found.title}"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            self.transport.write("\r\n".join([*lines, "", ""]).encode("ascii") + body)
        self.transport.close()
