"""Membership and placement in the database file of the store, for the workers of one machine.

It has its own connection and thread, so that a heartbeat waits for the write lock at most, never
behind a fold. No clock is stored: a member's beats are counted, and who watches it times them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from sublet.functions.address import partition_names
from sublet.functions.errors import SubletError
from sublet.statestore.contract import (
    LEAVING_MAX,
    Lead,
    Member,
    StoredPlan,
    View,
    check_functions,
    check_members,
    check_placement,
    check_plan,
)
from sublet.statestore.sqlite.file import (
    BUSY_TIMEOUT_MS,
    DatabaseThread,
    StoreLock,
    open_files,
    transaction,
)

# What else a member says of itself, as JSON.
_DETAILS = (
    *("store", "machine", "versions", "upgrade", "aliases", "state_versions"),
    *("launch", "node", "cores", "price_hour"),
)


class SqliteDirectory:
    """A `Directory` that all processes on this machine share."""

    watched = False

    def __init__(
        self, path: str | os.PathLike[str], *, busy_timeout_ms: int = BUSY_TIMEOUT_MS
    ) -> None:
        self._path = Path(path)
        connection, self._files = open_files(self._path, busy_timeout_ms=busy_timeout_ms)
        self._lock = StoreLock(self._path, self._files)
        self._thread = DatabaseThread(connection, self._path, "directory")
        self._closed = False
        # What only a new version changes; used and replaced on the thread.
        self._cached_version = -1
        self._functions: Mapping[str, int] = {}
        self._placement: Mapping[str, str] = {}
        self._declared: Mapping[str, dict[str, Any]] = {}
        self._leaving: frozenset[str] = frozenset()

    async def join(
        self, member: Member, functions: Mapping[str, int], *, gone: Collection[str] = ()
    ) -> View:
        def work(connection: sqlite3.Connection) -> View:
            with self._lock, transaction(connection):
                before = self._read(connection)
                check_members(before.members, member, gone)
                check_functions(before.functions, functions)
                connection.executemany(
                    "INSERT OR IGNORE INTO function VALUES (?, ?)", functions.items()
                )
                connection.execute(
                    "INSERT INTO member"
                    " (id, address, lane, pid, beat, draining, functions, details)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
                    " address = excluded.address, lane = excluded.lane, pid = excluded.pid,"
                    " beat = beat + 1, draining = excluded.draining,"
                    " functions = excluded.functions, details = excluded.details",
                    (
                        member.id,
                        member.address,
                        member.lane,
                        member.pid,
                        member.beat,
                        member.draining or member.id in before.leaving,
                        json.dumps(
                            {name: member.kinds.get(name, "") for name in sorted(functions)}
                        ),
                        json.dumps({name: getattr(member, name) for name in _DETAILS}),
                    ),
                )
                return self._changed(connection)

        return await self._thread.run(work)

    async def beat(self, worker: str) -> View | None:
        def work(connection: sqlite3.Connection) -> View | None:
            with self._lock:
                self._files.check(connection)
                counted = connection.execute(
                    "UPDATE member SET beat = beat + 1 WHERE id = ?", (worker,)
                ).rowcount
            return self._snapshot(connection) if counted else None

        return await self._thread.run(work)

    async def view(self) -> View:
        return await self._thread.run(self._snapshot)

    async def place(
        self,
        expected_version: int,
        placement: Mapping[str, str],
        removed: Sequence[str] = (),
        *,
        above: int = 0,
    ) -> View | None:
        def work(connection: sqlite3.Connection) -> View | None:
            with self._lock, transaction(connection):
                before = self._read(connection)
                if before.version != expected_version:
                    return None
                check_placement(placement, before.members.keys() - set(removed))
                connection.executemany(
                    "DELETE FROM member WHERE id = ?", [(each,) for each in removed]
                )
                connection.execute("DELETE FROM placement")
                connection.executemany("INSERT INTO placement VALUES (?, ?)", placement.items())
                return self._changed(connection, above)

        return await self._thread.run(work)

    async def forget(self, expected_version: int, function: str) -> View | None:
        def work(connection: sqlite3.Connection) -> View | None:
            with self._lock, transaction(connection):
                before = self._read(connection)
                if before.version != expected_version:
                    return None
                partitions = partition_names(function, before.functions.get(function, 0))
                connection.execute("DELETE FROM function WHERE name = ?", (function,))
                connection.executemany(
                    "DELETE FROM placement WHERE partition = ?", [(each,) for each in partitions]
                )
                return self._changed(connection)

        return await self._thread.run(work)

    async def drain(
        self, worker: str, *, token: int | None = None, expected_version: int | None = None
    ) -> View | None:
        def work(connection: sqlite3.Connection) -> View | None:
            with self._lock, transaction(connection):
                found = connection.execute(
                    "UPDATE member SET draining = 1 WHERE id = ?1"
                    " AND (?2 IS NULL OR ?2 = (SELECT token FROM meta))"
                    " AND (?3 IS NULL OR ?3 = (SELECT version FROM meta))",
                    (worker, token, expected_version),
                ).rowcount
                if not found:
                    return None
                # What is written last has the highest number.
                connection.execute("INSERT OR REPLACE INTO leaving (worker) VALUES (?)", (worker,))
                connection.execute(
                    "DELETE FROM leaving WHERE number NOT IN"
                    " (SELECT number FROM leaving ORDER BY number DESC LIMIT ?)",
                    (LEAVING_MAX,),
                )
                return self._changed(connection)

        return await self._thread.run(work)

    async def leave(self, worker: str) -> None:
        def work(connection: sqlite3.Connection) -> None:
            with self._lock, transaction(connection):
                gone = connection.execute("DELETE FROM member WHERE id = ?", (worker,)).rowcount
                wish = connection.execute(
                    "DELETE FROM leaving WHERE worker = ?", (worker,)
                ).rowcount
                if gone or wish:
                    connection.execute("DELETE FROM placement WHERE worker = ?", (worker,))
                    self._changed(connection)

        await self._thread.run(work)

    async def lead(self, worker: str, expected_token: int, *, above: int = 0) -> View | None:
        def work(connection: sqlite3.Connection) -> View | None:
            with self._lock, transaction(connection):
                led = connection.execute(
                    "UPDATE meta SET holder = ?1, token = max(token, ?3) + 1"
                    " WHERE token = ?2 AND EXISTS (SELECT 1 FROM member WHERE id = ?1)",
                    (worker, expected_token, above),
                ).rowcount
                return self._read(connection) if led else None

        return await self._thread.run(work)

    async def plan(self) -> StoredPlan:
        def work(connection: sqlite3.Connection) -> StoredPlan:
            return StoredPlan(
                *connection.execute(
                    "SELECT plan_version, plan.token, number, data FROM meta, plan"
                ).fetchone()
            )

        return await self._thread.run(work)

    async def replan(self, token: int, number: int, plan: bytes) -> int | None:
        check_plan(plan)

        def work(connection: sqlite3.Connection) -> int | None:
            with self._lock, transaction(connection):
                written = connection.execute(
                    "UPDATE plan SET token = ?1, number = ?2, data = ?3"
                    " WHERE ?1 AND (SELECT token FROM meta) = ?1 AND (token, number) < (?1, ?2)",
                    (token, number, plan),
                ).rowcount
                if not written:
                    return None
                (version,) = connection.execute(
                    "UPDATE meta SET plan_version = plan_version + 1 RETURNING plan_version"
                ).fetchone()
                return int(version)

        return await self._thread.run(work)

    async def cluster_key(self, proposed: bytes) -> bytes:
        def work(connection: sqlite3.Connection) -> bytes:
            with self._lock, transaction(connection):
                connection.execute(
                    "UPDATE meta SET cluster_key = ? WHERE cluster_key = x''", (proposed,)
                )
                (kept,) = connection.execute("SELECT cluster_key FROM meta").fetchone()
                return bytes(kept)

        return await self._thread.run(work)

    async def wait_changed(self, version: int, timeout_s: float) -> None:
        await asyncio.sleep(timeout_s)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._thread.close(is_replaced=await self._thread.run(self._is_replaced))
            self._lock.close()

    def _is_replaced(self, connection: sqlite3.Connection) -> bool:
        try:
            with self._lock:
                self._files.check(connection)
        except SubletError:
            return True
        return False

    def _changed(self, connection: sqlite3.Connection, above: int = 0) -> View:
        connection.execute("UPDATE meta SET version = max(version, ?) + 1", (above,))
        view = self._read(connection)
        # The transaction may still fail, and another process use the number for its own change.
        self._cached_version = -1
        return view

    def _snapshot(self, connection: sqlite3.Connection) -> View:
        with transaction(connection, "DEFERRED"):
            return self._read(connection)

    def _read(self, connection: sqlite3.Connection) -> View:
        version, holder, token, plan_version = connection.execute(
            "SELECT version, holder, token, plan_version FROM meta"
        ).fetchone()
        if version != self._cached_version:
            # One row each: a thread that fetches row by row crawls beside a busy event loop.
            functions, placement, declared, leaving = connection.execute(
                "SELECT (SELECT json_group_object(name, partition_count) FROM function),"
                " (SELECT json_group_object(partition, worker) FROM placement),"
                " (SELECT json_group_object(id, json_array(json(functions), json(details)))"
                " FROM member),"
                " (SELECT json_group_array(worker) FROM leaving)"
            ).fetchone()
            self._functions = json.loads(functions)
            self._placement = json.loads(placement)
            self._declared = {id_: _declared(*told) for id_, told in json.loads(declared).items()}
            self._leaving = frozenset(json.loads(leaving))
            self._cached_version = version
        members = connection.execute(
            "SELECT id, address, lane, pid, beat, draining FROM member ORDER BY id"
        ).fetchall()
        return View(
            version=version,
            members={
                id_: Member(
                    id=id_,
                    address=address,
                    lane=lane,
                    pid=pid,
                    beat=beat,
                    draining=bool(draining),
                    **self._declared[id_],
                )
                for id_, address, lane, pid, beat, draining in members
            },
            functions=self._functions,
            placement=self._placement,
            leaving=self._leaving,
            lead=Lead(holder, token),
            plan_version=plan_version,
        )


def _declared(
    names: dict[str, str] | list[str] | None, details: dict[str, Any] | None
) -> dict[str, Any]:
    """Return what a member says of itself; older workers wrote no kinds and no details."""
    kinds = names if isinstance(names, dict) else {}
    known = {name: value for name, value in (details or {}).items() if name in _DETAILS}
    return {
        "functions": None if names is None else frozenset(names),
        "kinds": {name: kind for name, kind in kinds.items() if kind},
        **known,
    }
