"""The embedded store: one SQLite file for all workers of a machine.

A commit is one packed row of the changelog and one guarded update, whatever it changes; all
commits that wait together are one statement and one transaction. In the background the rows are
folded into tables, where hot keys coalesce. Who owns a partition reads through what it has
committed since the last fold; everybody else reads the changelog too. Nobody tells an owner that it
was replaced, so each of its reads also looks whether the partition's epoch is still its own.

One thread writes, one reads, one checkpoints. None of them is the event loop's.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sublet.functions.address import split_partition_name
from sublet.statestore.contract import (
    Commit,
    EgressEntry,
    Outcome,
    Record,
    Recovered,
    StateRow,
    StatesPage,
    Trouble,
)
from sublet.statestore.delta import Delta, RecordTuple
from sublet.statestore.sqlite import tables
from sublet.statestore.sqlite.file import (
    BUSY_TIMEOUT_MS,
    DatabaseThread,
    open_database,
    open_files,
    transaction,
)
from sublet.statestore.sqlite.fold import DEFAULT_FOLD_POLICY, FoldPolicy, Owned
from sublet.statestore.sqlite.writer import (
    AcquireJob,
    CommitJob,
    FoldJob,
    Job,
    Reply,
    SettleJob,
    Writer,
    tell_refused,
)

T = TypeVar("T")


class SqliteStore:
    """A `Store` in a database file that other processes on this machine may use too."""

    shared = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        full_sync: bool = False,
        fold: FoldPolicy = DEFAULT_FOLD_POLICY,
        busy_timeout_ms: int = BUSY_TIMEOUT_MS,
        pages_max: int | None = None,
    ) -> None:
        """Open or create the file; raises StoreFileError if it cannot be used.

        With `full_sync` a commit survives a power failure, otherwise a crash of the process.
        `pages_max` bounds the size of the database, in SQLite's pages.
        """
        self._path = Path(path)
        connection, files = open_files(
            self._path, full_sync=full_sync, busy_timeout_ms=busy_timeout_ms
        )
        if pages_max is not None:
            connection.execute(f"PRAGMA max_page_count = {int(pages_max)}")
        self._owned: dict[str, Owned] = {}
        self._encoder = msgspec.msgpack.Encoder()
        self._writer = Writer(self._path, connection, files, self._owned, fold, full_sync)
        self._reader = DatabaseThread(
            open_database(self._path, busy_timeout_ms=busy_timeout_ms), self._path, "store-reader"
        )
        self._closed: asyncio.Future[Any] | None = None

    async def acquire(self, partition: str, worker: str) -> Recovered:
        split_partition_name(partition)
        reply = Reply()
        self._put(AcquireJob(partition, worker, reply))
        recovered: Recovered = await reply.future
        return recovered

    async def commit(self, commits: Sequence[Commit]) -> list[Outcome]:
        encode = self._encoder.encode
        parameters: list[Any] = []
        try:
            for each in commits:
                head = (each.partition, each.epoch, each.index, each.id, each.clock_ms)
                parameters += (*head, encode(each))
        except OverflowError as error:
            # Sending it again cannot help, so its owner must hear of it; the others go on.
            if len(commits) == 1:
                tell_refused(commits[0], error)
                return [Outcome.REFUSED]
            return [outcome for each in commits for outcome in await self.commit([each])]
        if not parameters:
            return []
        reply = Reply()
        self._put(CommitJob(commits, parameters, reply))
        outcomes: list[Outcome] = await reply.future
        return outcomes

    @property
    def rows_folded(self) -> int:
        """How many rows were written to the tables so far, after coalescing."""
        return self._writer.rows_folded

    async def fold(self) -> None:
        """Fold all that was committed so far (tests and tools; otherwise it happens by itself)."""
        reply = Reply()
        self._put(FoldJob(reply))
        await reply.future

    def _put(self, job: Job) -> None:
        if self._closed is not None:
            raise RuntimeError("the store is closed")
        self._writer.put(job)

    async def settled(self, partition: str) -> None:
        owned = self._owned.get(partition)
        if owned is None or owned.is_replaced:
            return  # Then the file is read, as by everybody else.
        id_, epoch = owned.id, owned.epoch
        try:
            stored = await self._reader.run(lambda each: tables.read_index(each, id_, epoch))
        except tables.ReplacedError:
            owned.is_replaced = True
            return
        if stored > owned.index:
            # The writer is between the commit and remembering it.
            reply = Reply()
            self._put(SettleJob(reply))
            await reply.future

    async def load(self, partition: str, keys: Sequence[str]) -> list[StateRow]:
        distinct = list(dict.fromkeys(keys))

        def read(connection: sqlite3.Connection, known: int, source: Owned | Delta) -> Any:
            if isinstance(source, Delta):
                newer = source.state_of(distinct)
            else:
                newer = source.newer_state(distinct)
            return tables.read_state(connection, known, distinct, newer, _epoch(source))

        rows: list[StateRow] = await self._read_partition(partition, read)
        return rows

    async def records(self, partition: str, kind: str, ids: Sequence[str]) -> list[Record]:
        distinct = list(dict.fromkeys(ids))

        def read(connection: sqlite3.Connection, known: int, source: Owned | Delta) -> Any:
            newer = _newer_records(source, kind, distinct)
            epoch = _epoch(source)
            return tables.read_records(connection, known, kind, distinct, newer, epoch)

        found: list[Record] = await self._read_partition(partition, read)
        return found

    async def records_due(
        self, partition: str, kind: str, until_ms: int, limit: int
    ) -> list[Record]:
        def read(connection: sqlite3.Connection, known: int, source: Owned | Delta) -> Any:
            newer = _newer_records(source, kind, None)
            epoch = _epoch(source)
            return tables.read_records_due(connection, known, kind, until_ms, limit, newer, epoch)

        found: list[Record] = await self._read_partition(partition, read)
        return found

    async def record_ids(
        self, partition: str, kind: str, limit: int, after: str = ""
    ) -> list[Record]:
        def read(connection: sqlite3.Connection, known: int, source: Owned | Delta) -> Any:
            newer = _newer_records(source, kind, None)
            epoch = _epoch(source)
            return tables.read_record_ids(connection, known, kind, limit, newer, after, epoch)

        found: list[Record] = await self._read_partition(partition, read)
        return found

    async def scan(
        self, function: str, after: tuple[str, str] | None, limit: int
    ) -> list[tuple[str, list[StateRow]]]:
        return await self._read(
            lambda connection: tables.read_scan_page(connection, function, after, limit)
        )

    async def states(
        self,
        partition: str,
        epoch: int,
        *,
        keys: Sequence[str] | None = None,
        after: str | None = None,
        limit: int = 0,
    ) -> StatesPage | None:
        owned = self._owned.get(partition)
        if owned is None or owned.epoch != epoch:
            return None
        distinct = None if keys is None else sorted(set(keys))

        def read(connection: sqlite3.Connection) -> StatesPage | None:
            # Taken before SQLite looks at the tables, as in `_read_partition`.
            newer = owned.newer_states(distinct, after)
            with transaction(connection, "DEFERRED"):
                if tables.read_epoch(connection, owned.id) != epoch:
                    return None
                return tables.read_states(connection, owned.id, distinct, after, limit, newer)

        return await self._reader.run(read)

    async def read_egress(
        self, egress: str, partition: str, position: int, limit: int
    ) -> list[EgressEntry]:
        def read(connection: sqlite3.Connection) -> list[EgressEntry]:
            known = tables.partition_id(connection, partition)
            if known is None:
                return []
            return tables.read_egress_entries(connection, egress, known, position, limit)

        return await self._read(read)

    async def egress_partitions(self, egress: str) -> dict[str, tuple[int, int]]:
        return await self._read(
            lambda connection: tables.read_egress_partitions(connection, egress)
        )

    def trouble(self) -> Trouble | None:
        return self._writer.trouble()

    async def close(self) -> None:
        """Fold what is left, if the disk allows, and close the file."""
        if self._closed is None:
            reply = Reply()
            self._put(FoldJob(reply, last=True))
            self._closed = reply.future
            await reply.future
            await self._reader.close(is_replaced=self._writer.replaced is not None)
        await asyncio.shield(self._closed)

    async def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Run a read of tables and changelog on one snapshot of both."""

        def on_snapshot(connection: sqlite3.Connection) -> T:
            with transaction(connection, "DEFERRED"):
                return read(connection)

        return await self._reader.run(on_snapshot)

    async def _read_partition(
        self,
        partition: str,
        read: Callable[[sqlite3.Connection, int, Owned | Delta], list[Any]],
    ) -> list[Any]:
        """Run a read of one partition, given where its unfolded rows are.

        The owner has them in memory. It takes them before SQLite looks at the tables: in the
        other order a fold that ends in between would hide them. They are all there is only as long
        as nobody else has acquired the partition, which the read itself has to check.
        """
        owned = self._owned.get(partition)

        def current(connection: sqlite3.Connection) -> list[Any]:
            if owned is not None and not owned.is_replaced:
                try:
                    return read(connection, owned.id, owned)
                except tables.ReplacedError:
                    owned.is_replaced = True
            with transaction(connection, "DEFERRED"):
                found = tables.partition_id(connection, partition)
                if found is None:
                    return []
                return read(connection, found, tables.unfolded(connection, found) or Delta())

        return await self._reader.run(current)


def _epoch(source: Owned | Delta) -> int | None:
    """Return the epoch under which a source of unfolded rows has all of them; None: always."""
    return source.epoch if isinstance(source, Owned) else None


def _newer_records(
    source: Owned | Delta, kind: str, ids: Sequence[str] | None
) -> Mapping[str, RecordTuple]:
    if isinstance(source, Owned):
        return source.newer_records(kind, ids)
    found = source.records.get(kind, {})
    if ids is None:
        return found
    return {each: found[each] for each in ids if each in found}
