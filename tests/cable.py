"""A line between a test's processes that the test can cut, and by which a port becomes another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Cable:
    """Leads from a port of its own to another one; it can be pulled, and put in again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._is_pulled = False
        self._writers: set[asyncio.StreamWriter] = set()
        self.connections = 0
        """All that were made so far."""

    @asynccontextmanager
    async def plugged(self) -> AsyncIterator[int]:
        """Yield the port of this end."""
        server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        async with server:
            yield server.sockets[0].getsockname()[1]
            self.pull()

    def pull(self) -> None:
        self._is_pulled = True
        for writer in self._writers:
            writer.transport.abort()

    def put_in(self) -> None:
        self._is_pulled = False

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            # The test may be over before the other end answers, or the cable be pulled.
            there, onward = await asyncio.open_connection("127.0.0.1", self._port)
            self._writers.add(onward)
            if self._is_pulled:
                onward.transport.abort()
            else:
                await asyncio.gather(self._pass_on(reader, onward), self._pass_on(there, writer))
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()
