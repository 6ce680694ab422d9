"""A load balancer, as Kubernetes has one: it looks at `/ready` now and then, and believes it."""

from __future__ import annotations

import asyncio
import random
from typing import Any, NamedTuple

import msgspec

LOOK_EVERY_S = 0.5
FAILED_LOOKS = 2
"""So many in a row take a worker out of the rotation."""
TIMEOUT_S = 20.0
FAILURES = (OSError, asyncio.IncompleteReadError, TimeoutError)
"""What a request may end with instead of a reply."""


class Reply(NamedTuple):
    status: int
    is_last: bool
    """Whether it says that its connection is closed."""
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Connection:
    """One connection to a worker; whatever happens to it is seen by who uses it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: str) -> Connection:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    @property
    def has_ended(self) -> bool:
        return self._reader.at_eof()

    async def ask(self, method: str, path: str, body: bytes = b"") -> Reply:
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n"
        if body:
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        async with asyncio.timeout(TIMEOUT_S):
            self._writer.write(head.encode() + b"\r\n" + body)
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
            headers = dict(line.split(": ", 1) for line in lines[1:] if line)
            content = await self._reader.readexactly(int(headers["content-length"]))
        return Reply(int(lines[0].split()[1]), headers.get("connection") == "close", content)

    def close(self) -> None:
        self._writer.close()


async def ask_once(address: str, method: str, path: str, body: bytes = b"") -> Reply:
    """Ask on a connection of its own."""
    connection = await Connection.open(address)
    try:
        return await connection.ask(method, path, body)
    finally:
        connection.close()


class Backend:
    """One worker behind the balancer, with a pool of connections that are kept."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.looked_s = float("-inf")
        self.told_to_go = 0
        """Replies on connections of the pool that were the last there."""
        self._failed_looks = FAILED_LOOKS
        self._pool: list[Connection] = []

    @property
    def is_in(self) -> bool:
        return self._failed_looks < FAILED_LOOKS

    async def look(self) -> None:
        try:
            is_ready = (await ask_once(self.address, "GET", "/ready")).status == 200
        except FAILURES:
            is_ready = False
        self._failed_looks = 0 if is_ready else self._failed_looks + 1
        self.looked_s = asyncio.get_running_loop().time()

    async def ask_kept(self, method: str, path: str, body: bytes = b"") -> Reply:
        """Ask on a connection of the pool, or on a new one that is kept there."""
        connection = self._from_pool() or await Connection.open(self.address)
        try:
            reply = await connection.ask(method, path, body)
        except BaseException:
            connection.close()
            raise
        if reply.is_last:
            self.told_to_go += 1
            connection.close()
        else:
            self._pool.append(connection)
        return reply

    def _from_pool(self) -> Connection | None:
        while self._pool:
            connection = self._pool.pop()
            if not connection.has_ended:
                return connection
            connection.close()
        return None

    def close(self) -> None:
        for each in self._pool:
            each.close()


class Balancer:
    """Sends each request to some worker that was in the rotation when it was looked at last.

    What it knows is never older than `LOOK_EVERY_S` when it sends, on however slow a machine. It
    repeats nothing: what fails has failed.
    """

    def __init__(self, seed: int = 1) -> None:
        self.backends: list[Backend] = []
        self._looking = asyncio.Lock()
        self._chance = random.Random(seed)

    def add(self, address: str) -> None:
        self.backends.append(Backend(address))

    def close(self) -> None:
        for each in self.backends:
            each.close()

    async def all_are_in(self) -> None:
        """Look until every worker was found ready."""
        async with asyncio.timeout(TIMEOUT_S):
            while not all(each.is_in for each in self.backends):
                await asyncio.gather(*(each.look() for each in self.backends))

    async def ask(self, method: str, path: str, body: bytes = b"", *, kept: bool) -> Reply:
        """Ask some worker, on a connection that is kept or on a new one."""
        backend = await self._choose()
        if kept:
            return await backend.ask_kept(method, path, body)
        return await ask_once(backend.address, method, path, body)

    async def _choose(self) -> Backend:
        async with self._looking:
            now_s = asyncio.get_running_loop().time()
            old = [each for each in self.backends if each.looked_s < now_s - LOOK_EVERY_S]
            await asyncio.gather(*(each.look() for each in old))
        return self._chance.choice([each for each in self.backends if each.is_in])
