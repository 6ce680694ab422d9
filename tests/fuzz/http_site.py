"""A worker that serves HTTP in this process, to whose socket anything may be sent.

It lives on, as starting one takes longer than a thousand requests; whatever it is sent may change
what its functions hold, and nothing else.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from tempfile import TemporaryDirectory

from sublet.runtime.config.limits import Limits
from sublet.runtime.config.settings import WorkerConfig
from sublet.runtime.worker import Worker
from sublet.statestore.memory import MemoryStore
from tests.fuzz.site import app

ANSWER_S_MAX = 20.0
ANSWER = re.compile(rb"HTTP/1\.1 (\d{3}) ")
ANSWER_BYTES_MAX = 4 * 2**20
# Nobody waits long for requests that never end.
IMPATIENT = Limits(http_read_timeout_ms=50, http_write_timeout_ms=200, http_deadline_ms=2_000)


class HttpSite:
    def __init__(self, limits: Limits = IMPATIENT) -> None:
        self._loop = asyncio.new_event_loop()
        self._folder = TemporaryDirectory(prefix="sublet-fuzz-")
        config = WorkerConfig(
            store="memory", data_dir=Path(self._folder.name), http_port=0, lane=False, limits=limits
        )
        self._problems: list[str] = []
        self._loop.set_exception_handler(lambda _, context: self._problems.append(str(context)))
        self._worker = Worker(app.functions, config, store=MemoryStore())
        self._running = self._loop.create_task(self._worker.run())
        self._loop.run_until_complete(asyncio.wait_for(self._worker.ready.wait(), ANSWER_S_MAX))

    def request(self, data: bytes) -> bytes:
        """Send bytes on a connection of their own; return all that comes until it is closed."""
        answer = self._loop.run_until_complete(self._request(data))
        if self._running.done():
            raise AssertionError(f"the worker has ended: {self._running}")
        if self._problems:
            raise AssertionError(self._problems[0])
        return answer

    async def _request(self, data: bytes) -> bytes:
        host, _, port = self._worker.http_address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                writer.write(data)
                try:
                    await writer.drain()
                    return await reader.read(ANSWER_BYTES_MAX)
                except ConnectionError:
                    return b""  # It has said what it thinks of us, and gone.
        finally:
            writer.close()

    def follow_and_leave(self, count: int) -> None:
        """Follow an egress, and go as soon as the stream has begun; so many times, in turn."""
        self._loop.run_until_complete(self._follow_and_leave(count))

    async def _follow_and_leave(self, count: int) -> None:
        host, _, port = self._worker.http_address.rpartition(":")
        async with asyncio.timeout(ANSWER_S_MAX):
            for _ in range(count):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(b"GET /egress/asked HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                head = await reader.readuntil(b"\r\n\r\n")
                assert b" 200 " in head, head
                writer.close()

    def close(self) -> None:
        self._worker.stop()
        self._loop.run_until_complete(self._running)
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
        self._folder.cleanup()


_open: list[HttpSite] = []


def http(data: bytes) -> None:
    """Bytes on the HTTP port: answered, or the connection is closed; never an error of ours."""
    if not _open:
        _open.append(HttpSite())
    answer = _open[0].request(data)
    if not answer:
        return
    told = ANSWER.match(answer)
    assert told is not None, answer[:100]
    assert told.group(1) != b"500", (data[:500], answer[:500])


def close_http() -> None:
    while _open:
        _open.pop().close()


def http_seeds() -> list[bytes]:
    head = b"Host: 127.0.0.1\r\nConnection: close\r\n"
    deep = b"[" * 2_000 + b"]" * 2_000
    bodies = (
        (b"application/json", b"5"),
        (b"application/json", b'{"a": [1, 2, {"b": null}]}'),
        (b"application/json", deep),
        (b"application/msgpack", b"\x82\xa1a\x01\xa1b\xdd\x00\x00\x00\x01\xc0"),
        (b"application/msgpack", b"\x91" * 1_500 + b"\xc0"),
    )
    posts = [
        b"POST /functions/site/count/k HTTP/1.1\r\n"
        + head
        + b"Content-Type: %s\r\nContent-Length: %d\r\n\r\n%s" % (kind, len(body), body)
        for kind, body in bodies
    ]
    chunked = (
        b"POST /functions/site/count/k HTTP/1.1\r\n"
        + head
        + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
        + b"Idempotency-Key: again\r\nSublet-Deadline-Ms: 100\r\n\r\n2\r\n12\r\n1\r\n3\r\n0\r\n\r\n"
    )
    paths = (
        b"/state/site/count/k",
        b"/state/site/count?limit=3&after=a",
        b"/egress/asked/page?limit=5&after=x",
        b"/health",
        b"/ready",
        b"/metrics",
        b"/leases",
        b"/openapi.json",
        b"/docs",
        b"/functions/site/%F0%9F%92%A9/%2F",
    )
    gets = [b"GET %s HTTP/1.1\r\n%s\r\n" % (path, head) for path in paths]
    stream = b"HEAD /egress/asked?from=now HTTP/1.1\r\n" + head + b"Last-Event-ID: AAAA\r\n\r\n"
    return [*posts, chunked, *gets, stream, gets[3] + gets[4]]
