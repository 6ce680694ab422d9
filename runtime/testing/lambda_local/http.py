"""As much of HTTP/1.1 as two clients need: botocore, and the one inside `awslambdaric`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import NamedTuple

HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 80 * 2**20
"""A zip of 50 MB travels as base64 inside JSON."""


class Request(NamedTuple):
    method: str
    path: str
    """Without what follows a question mark."""
    headers: Mapping[str, str]
    """By name in small letters."""
    body: bytes


class Response(NamedTuple):
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}


Handler = Callable[[Request], Awaitable[Response]]


class MalformedError(ValueError):
    """What came is no request, or one that is too large."""


@asynccontextmanager
async def serving(handler: Handler, port: int = 0) -> AsyncIterator[int]:
    """Serve on loopback; yields the port. At the end, open connections are cut."""
    async with asyncio.TaskGroup() as tasks:
        connections: set[asyncio.Task[None]] = set()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = tasks.create_task(_connection(reader, writer, handler))
            connections.add(connection)
            connection.add_done_callback(connections.discard)

        server = await asyncio.start_server(connected, "127.0.0.1", port, limit=HEAD_BYTES_MAX)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for each in connections:
                each.cancel()


async def _connection(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler
) -> None:
    try:
        # Who goes away in the middle of a request has no use for an answer.
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await _serve(reader, writer, handler)
    finally:
        writer.transport.abort()


async def _serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler
) -> None:
    """Answer the requests of a connection, one after the other."""
    while True:
        try:
            request = await _read(reader, writer)
        except MalformedError as error:
            await _write(writer, Response(HTTPStatus.BAD_REQUEST, str(error).encode()))
            return
        if request is None:
            return
        await _write(writer, await handler(request))


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    """Return the next request; None at the end of the connection."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError:
        raise MalformedError(f"the head is larger than {HEAD_BYTES_MAX} bytes") from None
    first, *lines = head.split("\r\n")
    try:
        method, target, _ = first.split(" ")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines if line)
        }
        size = int(headers.get("content-length", "0"))
    except ValueError:
        raise MalformedError(f"not a request: {first!r:.100}") from None
    if not 0 <= size <= BODY_BYTES_MAX or "transfer-encoding" in headers:
        raise MalformedError(f"the body has to have a length of 0..{BODY_BYTES_MAX}")
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await reader.readexactly(size)
    return Request(method, target.partition("?")[0], headers, body)


async def _write(writer: asyncio.StreamWriter, response: Response) -> None:
    status = HTTPStatus(response.status)
    headers = {**response.headers, "Content-Length": str(len(response.body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"HTTP/1.1 {status} {status.phrase}\r\n{lines}\r\n".encode("latin-1"))
    writer.write(response.body)
    await writer.drain()
