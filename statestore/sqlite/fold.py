"""From the changelog into the tables: what is unfolded, when to fold, and in what steps."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from sublet.functions.errors import SubletError
from sublet.statestore.delta import Delta, RecordTuple, RowTuple
from sublet.statestore.sqlite import tables
from sublet.statestore.sqlite.file import (
    CheckpointLock,
    StoreLock,
    WriteLock,
    abandon,
    transaction,
)
from sublet.statestore.sqlite.identity import (
    StoreFiles,
    begin_checkpoint,
    checkpoint,
    end_checkpoint,
)

log = structlog.get_logger(__name__)

# When this many times the policy's bounds are unfolded, commits wait for the fold.
BACKLOG_LEVEL_MAX = 8
ABSORBED_PER_STEP = 2_000
SWEPT_PER_STEP = 64
PAUSE_AFTER_FAILURE_S = 1.0
# When this many times the policy's size is written, commits wait for the checkpoint.
WAL_LEVEL_MAX = 4
# Estimates, from the frames that SQLite reported (`benchmarks.components.store`, cases group and
# small).
WAL_BYTES_PER_ROW = 256
WAL_BYTES_PER_TRANSACTION = 3 * 4096
# A pass leaves what was written during it. When that is little, the rest is a short wait.
CHECKPOINT_PASSES_MAX = 6
CHECKPOINT_FRAMES_LOCKED = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldPolicy:
    """When the changelog is folded, in what steps, and when the WAL is checkpointed."""

    rows_max: int = 1024
    bytes_max: int = 8 * 1024 * 1024
    age_max_s: float = 1.0
    chunk_rows_max: int = 256
    chunk_bytes_max: int = 512 * 1024
    wal_bytes_max: int = 32 * 1024 * 1024

    def __post_init__(self) -> None:
        for name in ("rows_max", "bytes_max", "chunk_rows_max", "chunk_bytes_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: 1 or more")
        if self.age_max_s < 0:
            raise ValueError(f"age_max_s is {self.age_max_s}; allowed: 0 or more")


DEFAULT_FOLD_POLICY = FoldPolicy()


class Owned:
    """A partition that this store has acquired, with what is not folded yet."""

    __slots__ = (
        "delta",
        "epoch",
        "folding",
        "id",
        "index",
        "is_replaced",
        "lock",
        "name",
        "pending",
    )

    def __init__(self, name: str, partition: int, epoch: int, index: int) -> None:
        self.name = name
        self.id = partition
        self.epoch = epoch
        self.index = index
        """Of the last commit that came into `pending`."""
        self.is_replaced = False
        """Another epoch was seen in the file: what is here is old, and stays so."""
        self.pending: deque[bytes] = deque()
        self.delta = Delta()
        self.folding: Delta | None = None
        self.lock = threading.Lock()

    def absorb_one(self) -> int:
        """Move the oldest pending commit into the delta.

        Returns about how many rows that were, 0 if there was no commit.
        """
        with self.lock:
            if not self.pending:
                return 0
            return self.delta.absorb(self.pending.popleft())

    def layers(self) -> tuple[Delta, ...]:
        """Return the deltas, older first. Hold the lock."""
        return (self.delta,) if self.folding is None else (self.folding, self.delta)

    def newer_state(self, keys: Sequence[str]) -> dict[str, dict[bytes, RowTuple]]:
        """Return the unfolded rows of the keys."""
        self._catch_up()
        newer: dict[str, dict[bytes, RowTuple]] = {}
        with self.lock:
            for layer in self.layers():
                for key, of_key in layer.state_of(keys).items():
                    newer.setdefault(key, {}).update(of_key)
        return newer

    def newer_states(
        self, keys: Sequence[str] | None, after: str | None
    ) -> dict[str, dict[bytes, RowTuple]]:
        """Return the unfolded rows of the keys, or of all keys after the given one."""
        if keys is None:
            self._catch_up()
            with self.lock:
                found = {key for layer in self.layers() for key in layer.state_keys()}
            keys = [key for key in found if after is None or key > after]
        return self.newer_state(keys)

    def newer_records(self, kind: str, ids: Sequence[str] | None) -> dict[str, RecordTuple]:
        """Return the unfolded records of a kind: those with the ids, or all of them."""
        self._catch_up()
        newer: dict[str, RecordTuple] = {}
        with self.lock:
            for layer in self.layers():
                found = layer.records.get(kind, {})
                if ids is None:
                    newer.update(found)
                else:
                    newer.update((each, found[each]) for each in ids if each in found)
        return newer

    def _catch_up(self) -> None:
        # Commits that come meanwhile need not be seen.
        for _ in range(len(self.pending)):
            if not self.absorb_one():
                break


class Folder:
    """Brings changelog rows into the tables in small steps, one generation after the other.

    A generation is what every owned partition has absorbed when it begins. It is written in
    several transactions; after that its changelog rows are deleted.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        owned: dict[str, Owned],
        policy: FoldPolicy,
        wrote: Callable[[int, int], None],
    ) -> None:
        """`wrote` is told of each transaction: how many rows and bytes."""
        self._wrote = wrote
        self._connection = connection
        self._owned = owned
        self._policy = policy
        self._rows = 0
        self._bytes = 0
        self._generation_rows = 0
        self._generation_bytes = 0
        self._oldest_s: float | None = None
        self._not_before_s = 0.0
        self._generation: list[Owned] = []
        self._statements: Iterator[tuple[Owned, tables.Statement]] | None = None
        self._is_written = False
        self.rows_written = 0

    def add(self, rows: int, size_bytes: int) -> None:
        """Count what was committed."""
        if rows:
            self._rows += rows
            self._bytes += size_bytes
            if self._oldest_s is None:
                self._oldest_s = time.monotonic()

    def has_work(self) -> bool:
        return self._statements is not None or self._rows > 0

    def steps_before_waiting_jobs(self) -> int:
        """Return how many steps must be done although commits wait.

        None up to twice the bounds, then ever more, so that the backlog finds its level.
        """
        rows = self._rows + self._generation_rows
        size_bytes = self._bytes + self._generation_bytes
        level = max(rows / self._policy.rows_max, size_bytes / self._policy.bytes_max)
        return max(0, int(level) - 1) if level < BACKLOG_LEVEL_MAX else sys.maxsize

    def wait_s(self) -> float | None:
        """Return in how many seconds there is something to do; None if there is nothing."""
        if not self.has_work():
            return None
        wait_s = 0.0
        if self._statements is None and not self._is_full():
            assert self._oldest_s is not None
            wait_s = self._oldest_s + self._policy.age_max_s - time.monotonic()
        if self._not_before_s:
            wait_s = max(wait_s, self._not_before_s - time.monotonic())
        return max(0.0, wait_s)

    def _is_full(self) -> bool:
        return self._rows >= self._policy.rows_max or self._bytes >= self._policy.bytes_max

    def start_again_later(self) -> None:
        """Write the generation from its beginning, after a pause."""
        self._not_before_s = time.monotonic() + PAUSE_AFTER_FAILURE_S
        if self._statements is not None:
            self._statements = self._all_statements()

    def step(self, lock: WriteLock) -> None:
        """Do a part that keeps a commit waiting for a millisecond or so."""
        self._not_before_s = 0.0
        if self._is_written:
            self._sweep(lock)
        elif self._statements is not None:
            self._write_chunk(lock)
        elif self._absorb():
            self._begin()

    def _absorb(self) -> bool:
        """Coalesce some of the pending commits; True when none is left."""
        budget = ABSORBED_PER_STEP
        for owned in list(self._owned.values()):
            while budget > 0 and (absorbed := owned.absorb_one()):
                budget -= absorbed
        return budget > 0

    def _begin(self) -> None:
        for owned in self._owned.values():
            with owned.lock:
                if owned.delta.index:
                    owned.folding, owned.delta = owned.delta, Delta()
                    self._generation.append(owned)
        self._generation_rows, self._generation_bytes = self._rows, self._bytes
        self._rows = self._bytes = 0
        self._oldest_s = None
        self._statements = self._all_statements()

    def _all_statements(self) -> Iterator[tuple[Owned, tables.Statement]]:
        for owned in self._generation:
            if owned.folding is not None:
                for statement in tables.write_statements(owned.id, owned.folding):
                    yield owned, statement

    def _write_chunk(self, lock: WriteLock) -> None:
        assert self._statements is not None
        rows = size_bytes = 0
        fenced: dict[int, bool] = {}
        with lock, transaction(self._connection):
            for owned, statement in self._statements:
                if owned.id not in fenced:
                    fenced[owned.id] = self._is_fenced(owned)
                if fenced[owned.id]:
                    continue
                self._connection.execute(statement.sql, statement.parameters)
                rows += statement.rows
                size_bytes += statement.size_bytes
                if rows >= self._policy.chunk_rows_max or (
                    size_bytes >= self._policy.chunk_bytes_max
                ):
                    break
            else:
                self._is_written = True
        self.rows_written += rows
        self._wrote(rows, size_bytes)
        if self._is_written:
            for owned in self._generation:
                with owned.lock:
                    owned.folding = None
            self._generation.clear()

    def _sweep(self, lock: WriteLock) -> None:
        """Delete some changelog rows that were folded; with the last ones the generation ends."""
        with lock:
            deleted = self._connection.execute(tables.DELETE_FOLDED, (SWEPT_PER_STEP,)).rowcount
        self._wrote(deleted, 0)
        if deleted < SWEPT_PER_STEP:
            self._statements = None
            self._is_written = False
            self._generation_rows = self._generation_bytes = 0

    def _is_fenced(self, owned: Owned) -> bool:
        """A new owner has folded these rows already, and has written newer ones since."""
        (epoch,) = self._connection.execute(
            "SELECT epoch FROM partition WHERE id = ?", (owned.id,)
        ).fetchone()
        if epoch != owned.epoch:
            owned.is_replaced = True
        return owned.is_replaced


# Never closed: closing any descriptor of a file drops the locks that SQLite holds on it in this
# process. There is one for each database of which the WAL has ever grown large.
_descriptors: dict[tuple[int, int], int] = {}


def _descriptor_for_sync(path: Path) -> int:
    found = os.stat(path)
    identity = (found.st_dev, found.st_ino)
    if identity not in _descriptors:
        _descriptors[identity] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return _descriptors[identity]


class Checkpointer:
    """Moves the WAL into the database when it has grown, beside the commits."""

    def __init__(
        self, path: Path, connection: sqlite3.Connection, files: StoreFiles, wal_bytes_max: int
    ) -> None:
        """It has a connection of its own, opened beforehand: a file that was deleted meanwhile
        must not be created anew."""
        self._path = path
        self._connection = connection
        self._files = files
        self._lock = StoreLock(path, files)
        self._turn = CheckpointLock(path)
        self._wal_bytes_max = wal_bytes_max
        self._written_bytes = 0
        self._thread: threading.Thread | None = None

    def add(self, rows: int, size_bytes: int) -> None:
        """Count what a transaction has written.

        The size of the WAL says little: it keeps its largest size when it starts over.
        """
        self._written_bytes += size_bytes + rows * WAL_BYTES_PER_ROW + WAL_BYTES_PER_TRANSACTION

    def start_if_due(self) -> None:
        """Begin a checkpoint when it is time; when one is long overdue, wait for its end."""
        if self._written_bytes < self._wal_bytes_max:
            return
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._checkpoint, name="store-checkpointer", daemon=True
            )
            self._thread.start()
        elif self._written_bytes >= WAL_LEVEL_MAX * self._wal_bytes_max:
            self._thread.join()

    def _checkpoint(self) -> None:
        with self._turn.taken() as is_mine:
            if is_mine:
                self._move_log()
            else:
                # Somebody else is at it.
                self._written_bytes = 0

    def _move_log(self) -> None:
        """Do most of it beside the writers, and the rest, which is short, while they wait.

        Without the second part, writers that never pause would make the WAL grow for ever: it
        starts over only when all of it is in the database.
        """
        connection, files, lock = self._connection, self._files, self._lock
        try:
            with lock:
                files.check(connection)
                begin_checkpoint(connection)
            moved_before = 0
            for _ in range(CHECKPOINT_PASSES_MAX):
                files.check(connection)
                _, _, moved = self._pass(connection)
                if moved - moved_before < CHECKPOINT_FRAMES_LOCKED:
                    break
                moved_before = moved
            # SQLite syncs the database only with the last pass. Most of that can be done before.
            os.fsync(_descriptor_for_sync(self._path))
            with lock:
                files.check(connection)
                end_checkpoint(connection, self._pass(connection))
                files.check(connection)
                # The WAL starts over with the next commit, unless a checkpoint is under way then.
                self._written_bytes = 0
        except (sqlite3.Error, OSError, SubletError) as error:
            # Tried again when as much again was written. Of replaced files, the writer tells.
            log.warning("checkpoint_failed", path=str(self._path), error=str(error))
            self._written_bytes = 0

    def _pass(self, connection: sqlite3.Connection) -> tuple[int, int, int]:
        """Move what can be moved; return whether somebody was in the way, how many frames the WAL
        has, and how many of them are in the database."""
        (frames,) = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        return frames  # type: ignore[no-any-return]  # By SQLite's documentation.

    def wait(self) -> None:
        """Wait for the end of what is under way."""
        if self._thread is not None:
            self._thread.join()

    def finish(self) -> None:
        """Move all of it, if nobody else does so, and nobody reads."""
        self.wait()
        with self._turn.taken() as is_mine:
            if is_mine:
                with self._lock:
                    self._files.check(self._connection)
                    checkpoint(self._connection)

    def close(self, *, is_replaced: bool = False) -> None:
        self.wait()
        (abandon if is_replaced else sqlite3.Connection.close)(self._connection)
        self._lock.close()
        self._turn.close()
