"""Runs the HTTP application on a worker's loop, behind bounds that hold for every connection."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sublet.runtime.config import PortTakenError
from sublet.runtime.http.errors import PROBLEM_TYPE, Problem, problem
from sublet.runtime.http.leaving import CONNECTION
from sublet.runtime.limits import Limits

HEAD_BYTES_MAX = 32 * 1024
HEADERS_MAX = 100
KEEP_ALIVE_S = 75
STOP_TIMEOUT_S = 2
CONNECTION_RETRY_MS = 1_000
_BACKLOG = 1_024
_LINGER_NOT = struct.pack("ii", 1, 0)


class HttpServer:
    """Serves between `async with` and its end, which lets requests finish for a short while."""

    def __init__(
        self, app: ASGIApp, tasks: asyncio.TaskGroup, *, host: str, port: int, limits: Limits
    ) -> None:
        """Port 0 takes any free one."""
        self._app = app
        self._tasks = tasks
        self._host = host
        self._port = port
        self._limits = limits
        self._is_draining = False
        self._server: uvicorn.Server
        self._serving: asyncio.Task[None]

    @property
    def address(self) -> str:
        """host:port, once it is started."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._port}"

    def drain(self) -> None:
        """Close each connection after its next reply, which says so."""
        self._is_draining = True

    def is_unused(self, noticed_s: float) -> bool:
        """Tell whether no request is under way and none is to be expected: who has a connection
        has had until then (of the loop's time) to notice that it is about to be closed."""
        state = self._server.server_state
        is_expected = asyncio.get_running_loop().time() < noticed_s and bool(state.connections)
        return not state.tasks and not is_expected

    async def __aenter__(self) -> HttpServer:
        listener = _listener(self._host, self._port)
        self._port = listener.getsockname()[1]
        config = uvicorn.Config(
            self._app,
            http=partial(BoundedProtocol, self._limits, lambda: self._is_draining),  # type: ignore[arg-type]  # Makes one.
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
            backlog=_BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_TIMEOUT_S,
        )
        self._server = _Server(config)
        self._serving = self._tasks.create_task(self._server.serve(sockets=[listener]))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.should_exit = True
        await asyncio.wait([self._serving])


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: they are the worker's."""
        yield


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host.strip("[]"), port), family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTakenError(port, "--http-port") from None
        raise OSError(f"cannot listen for HTTP on {host}:{port}: {error.strerror}") from None
    listener.setblocking(False)
    return listener


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with a bound on connections, on heads, and on what slow peers may take.

    A request has `http_read_timeout_ms` to arrive as a whole, however many small pieces it comes
    in; a reader that takes nothing for `http_write_timeout_ms` is cut.
    """

    def __init__(
        self, limits: Limits, is_draining: Callable[[], bool], *arguments: Any, **named: Any
    ) -> None:
        super().__init__(*arguments, **named)
        self._limits = limits
        self._is_draining = is_draining
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
                    f"{connections_max} connections are open, which is the bound "
                    "(http_connections_max)",
                    CONNECTION_RETRY_MS,
                )
            )
            return
        super().connection_made(transport)
        self._arm_read_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm_read_timer()
        self.resume_writing()
        super().connection_lost(exc)
        self._is_lost = True
        on_lost, self.on_lost = self.on_lost, None
        if on_lost is not None:
            on_lost()

    def is_lost(self) -> bool:
        return self._is_lost

    def data_received(self, data: bytes) -> None:
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
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        self._is_arriving = False
        # Bytes of the next head may follow.
        self._in_head = True
        super().on_message_complete()

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
            self._refuse(problem("bad_request", "the request is no HTTP/1.1"))

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
