"""A worker of the skeleton: counts the messages of a frame, makes the counts durable, replies.

Prints the port it listens on, and ends when its standard input closes.
A frame is msgpack of (tag, [(key, amount, time), ...]); its reply is (tag, [(key, count), ...]).
"""

import argparse
import asyncio
import os
import sqlite3
from pathlib import Path
from typing import Protocol

import msgspec
import redis
import uvloop

from benchmarks.peers.frames import FrameConnection
from benchmarks.peers.lifeline import parent_is_gone

STORES = ("mem", "log", "sqlite-full", "redis")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class Store(Protocol):
    """Sends a frame's reply as soon as the counts that it speaks of are safe."""

    def reply_when_safe(
        self, connection: FrameConnection, reply: bytes, changed: dict[str, int]
    ) -> None: ...

    async def run(self) -> None:
        """Do the store's work in the background until cancelled, if it has any."""
        ...


class MemoryStore:
    def reply_when_safe(
        self, connection: FrameConnection, reply: bytes, changed: dict[str, int]
    ) -> None:
        connection.send(reply)

    async def run(self) -> None:
        return


class SqliteFullStore:
    """WAL with a full fsync, one transaction a frame, one upsert a key."""

    def __init__(self, directory: Path) -> None:
        self._database = sqlite3.connect(directory / "counts.db", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute(
            "CREATE TABLE counts (key TEXT PRIMARY KEY, count INTEGER) WITHOUT ROWID"
        )

    def reply_when_safe(
        self, connection: FrameConnection, reply: bytes, changed: dict[str, int]
    ) -> None:
        self._database.execute("BEGIN")
        self._database.executemany(
            "INSERT INTO counts VALUES (?, ?) "
            "ON CONFLICT (key) DO UPDATE SET count = excluded.count",
            changed.items(),
        )
        self._database.execute("COMMIT")
        connection.send(reply)

    async def run(self) -> None:
        return


class RedisStore:
    """One MULTI a frame: the counts that changed, and a mark of how far it came."""

    def __init__(self, url: str, name: str) -> None:
        self._redis = redis.Redis.from_url(url)
        self._name = name
        self._number = 0

    def reply_when_safe(
        self, connection: FrameConnection, reply: bytes, changed: dict[str, int]
    ) -> None:
        self._number += 1
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.hset(self._name, mapping=changed)
        pipeline.set(f"{self._name}:number", self._number)
        pipeline.execute()
        connection.send(reply)

    async def run(self) -> None:
        return


class GroupLogStore:
    """An append-only log with group commit: one fdatasync at a time, in a thread, for every frame
    that arrived during the one before."""

    def __init__(self, directory: Path) -> None:
        self._file = os.open(directory / "counts.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._waiting: list[tuple[FrameConnection, bytes, dict[str, int]]] = []
        self._arrived = asyncio.Event()

    def reply_when_safe(
        self, connection: FrameConnection, reply: bytes, changed: dict[str, int]
    ) -> None:
        self._waiting.append((connection, reply, changed))
        self._arrived.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            group, self._waiting = self._waiting, []
            record = _encode([changed for _, _, changed in group])
            # Not `to_thread`: it copies the context for every commit, and this is a ceiling.
            await loop.run_in_executor(None, self._append, record)
            for connection, reply, _ in group:
                connection.send(reply)

    def _append(self, record: bytes) -> None:
        os.write(self._file, record)
        os.fdatasync(self._file)


class Counter:
    """The state of one worker, and what it does with a frame."""

    def __init__(self, store: Store, *, is_durable: bool) -> None:
        self._store = store
        self._is_durable = is_durable
        self._counts: dict[str, int] = {}

    def on_frame(self, connection: FrameConnection, frame: bytes) -> None:
        tag, messages = _decode(frame)
        counts = self._counts
        replies = []
        for key, amount, _time in messages:
            count = counts.get(key, 0) + amount
            counts[key] = count
            replies.append((key, count))
        # The last reply of a key has its newest count; building the dict here keeps the loop
        # the same for every store.
        changed = dict(replies) if self._is_durable else {}
        self._store.reply_when_safe(connection, _encode((tag, replies)), changed)


def make_store(name: str, directory: Path, redis_url: str) -> Store:
    match name:
        case "mem":
            return MemoryStore()
        case "log":
            return GroupLogStore(directory)
        case "sqlite-full":
            return SqliteFullStore(directory)
        case "redis":
            return RedisStore(redis_url, directory.name)
        case _:
            raise ValueError(f"store is {name!r}; allowed: {', '.join(STORES)}")


async def serve(store_name: str, directory: Path, redis_url: str) -> None:
    store = make_store(store_name, directory, redis_url)
    counter = Counter(store, is_durable=store_name != "mem")
    server = await asyncio.get_running_loop().create_server(
        lambda: FrameConnection(counter.on_frame), "127.0.0.1", 0
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    async with asyncio.TaskGroup() as tasks:
        background = tasks.create_task(store.run())
        await parent_is_gone()
        background.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", choices=STORES)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--redis-url", default="", help="for the store redis")
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.store, arguments.directory, arguments.redis_url))


if __name__ == "__main__":
    main()
