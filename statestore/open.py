"""Opens the store and the directory that settings name: one place knows which kinds there are.

A store is imported when it is opened: most processes need one of them, and must be quick.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from sublet.statestore.contract import Directory, Store

StoreKind = Literal["sqlite", "memory", "redis"]


def open_store(kind: StoreKind, database: Path, redis_url: str, *, full_sync: bool) -> Store:
    """Open a store. Only SQLite needs `database`, whose folder is made; only Redis a URL."""
    match kind:
        case "memory":
            from sublet.statestore.memory import MemoryStore

            return MemoryStore()
        case "redis":
            from sublet.statestore.redis.store import RedisStore

            return RedisStore(redis_url, full_sync=full_sync)
        case "sqlite":
            from sublet.statestore.sqlite.store import SqliteStore

            database.parent.mkdir(parents=True, exist_ok=True)
            return SqliteStore(database, full_sync=full_sync)


def open_directory(
    kind: StoreKind,
    database: Path,
    redis_url: str,
    *,
    full_sync: bool = False,
    beside: Store | None = None,
) -> Directory:
    """Open the directory in which the workers of a machine or cluster find each other.

    One of Redis tells of outages together with the store `beside` it.
    """
    if kind == "redis":
        from sublet.statestore.redis.directory import RedisDirectory
        from sublet.statestore.redis.store import RedisStore

        outages = beside.outages if isinstance(beside, RedisStore) else None
        return RedisDirectory(redis_url, full_sync=full_sync, outages=outages)
    # Workers whose state is in memory find each other in a file, too.
    from sublet.statestore.sqlite.directory import SqliteDirectory

    database.parent.mkdir(parents=True, exist_ok=True)
    return SqliteDirectory(database)
