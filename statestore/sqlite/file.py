"""The database file that the workers of one machine share: opening, schema, lock, threads.

Writers of all processes queue at a lock file. SQLite's own lock is polled with growing sleeps,
which is slow and unfair; a blocking `flock` wakes the next writer at once, and the kernel
releases it when a process dies.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from sublet.functions.errors import SubletError, UnavailableError
from sublet.statestore.contract import CorruptDataError, StoreSetupError
from sublet.statestore.sqlite.identity import StoreFiles, check_log, checkpoint

T = TypeVar("T")

# Marks a database file as ours, for `file` and for the check below ("Subl" in ASCII).
APPLICATION_ID = 0x5375626C
SCHEMA_VERSION = 8
STATEMENT_CACHE = 512
BUSY_TIMEOUT_MS = 5_000
RETRY_AFTER_MS = 1_000
CACHE_KIB = 16 * 1024

SCHEMA = """
CREATE TABLE partition (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, function TEXT NOT NULL,
    epoch INTEGER NOT NULL, idx INTEGER NOT NULL, commit_id BLOB NOT NULL,
    clock_ms INTEGER NOT NULL, folded INTEGER NOT NULL, owner TEXT NOT NULL);
CREATE TABLE changelog (
    seq INTEGER PRIMARY KEY, partition INTEGER NOT NULL, idx INTEGER NOT NULL, blob BLOB NOT NULL);
CREATE TABLE state (
    partition INTEGER, key TEXT, subkey BLOB, value BLOB NOT NULL, expires_ms INTEGER,
    PRIMARY KEY (partition, key, subkey)) WITHOUT ROWID;
CREATE INDEX state_expiry ON state (partition, expires_ms) WHERE expires_ms IS NOT NULL;
CREATE TABLE inbox (
    partition INTEGER, source TEXT, last INTEGER NOT NULL,
    PRIMARY KEY (partition, source)) WITHOUT ROWID;
CREATE TABLE sent (
    partition INTEGER, destination TEXT, last INTEGER NOT NULL,
    PRIMARY KEY (partition, destination)) WITHOUT ROWID;
CREATE TABLE outbox (
    partition INTEGER, destination TEXT, first INTEGER, length INTEGER NOT NULL,
    data BLOB NOT NULL, PRIMARY KEY (partition, destination, first)) WITHOUT ROWID;
CREATE TABLE egress (
    partition INTEGER, egress TEXT, first INTEGER, length INTEGER NOT NULL,
    data BLOB NOT NULL, PRIMARY KEY (partition, egress, first)) WITHOUT ROWID;
CREATE TABLE egress_position (
    partition INTEGER, egress TEXT, first INTEGER NOT NULL, next INTEGER NOT NULL,
    PRIMARY KEY (partition, egress)) WITHOUT ROWID;
CREATE TABLE record (
    partition INTEGER, kind TEXT, id TEXT, value BLOB NOT NULL, due_ms INTEGER,
    PRIMARY KEY (partition, kind, id)) WITHOUT ROWID;
CREATE INDEX record_due ON record (partition, kind, due_ms, id) WHERE due_ms IS NOT NULL;
CREATE TABLE member (
    id TEXT PRIMARY KEY, address TEXT NOT NULL, lane TEXT NOT NULL, pid INTEGER NOT NULL,
    beat INTEGER NOT NULL, draining INTEGER NOT NULL, functions TEXT,
    details TEXT) WITHOUT ROWID;
CREATE TABLE function (name TEXT PRIMARY KEY, partition_count INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE placement (partition TEXT PRIMARY KEY, worker TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE leaving (number INTEGER PRIMARY KEY, worker TEXT NOT NULL UNIQUE);
CREATE TABLE meta (
    version INTEGER NOT NULL, store TEXT NOT NULL DEFAULT '',
    generation INTEGER NOT NULL DEFAULT 0, base INTEGER NOT NULL DEFAULT 0,
    holder TEXT NOT NULL DEFAULT '', token INTEGER NOT NULL DEFAULT 0,
    plan_version INTEGER NOT NULL DEFAULT 0, cluster_key BLOB NOT NULL DEFAULT x'');
INSERT INTO meta (version, store, generation, base) VALUES (0, lower(hex(randomblob(8))), 1, 1);
CREATE TABLE plan (token INTEGER NOT NULL, number INTEGER NOT NULL, data BLOB NOT NULL);
INSERT INTO plan VALUES (0, 0, x'');
"""
# What brings a file of the version before to each version.
UPGRADES = {
    2: "ALTER TABLE member ADD COLUMN draining INTEGER NOT NULL DEFAULT 0;",
    3: "ALTER TABLE member ADD COLUMN functions TEXT;",
    4: "CREATE TABLE leaving (number INTEGER PRIMARY KEY, worker TEXT NOT NULL UNIQUE);",
    5: """
ALTER TABLE meta ADD COLUMN store TEXT NOT NULL DEFAULT '';
ALTER TABLE meta ADD COLUMN generation INTEGER NOT NULL DEFAULT 0;
ALTER TABLE meta ADD COLUMN base INTEGER NOT NULL DEFAULT 0;
UPDATE meta SET store = lower(hex(randomblob(8))), generation = 1, base = 1;
""",
    6: "ALTER TABLE member ADD COLUMN details TEXT;",
    7: """
ALTER TABLE meta ADD COLUMN holder TEXT NOT NULL DEFAULT '';
ALTER TABLE meta ADD COLUMN token INTEGER NOT NULL DEFAULT 0;
ALTER TABLE meta ADD COLUMN plan_version INTEGER NOT NULL DEFAULT 0;
CREATE TABLE plan (token INTEGER NOT NULL, number INTEGER NOT NULL, data BLOB NOT NULL);
INSERT INTO plan VALUES (0, 0, x'');
""",
    8: "ALTER TABLE meta ADD COLUMN cluster_key BLOB NOT NULL DEFAULT x'';",
}


class StoreFileError(StoreSetupError):
    """The database file cannot be used as it is; the text says what to do."""

    code = "bad_store_file"


_MUST_WRITE = "its folder must exist, and this user must be able to write the folder and its files"


class DamagedChangelogError(StoreFileError, CorruptDataError):
    """What a partition has committed last cannot be read; other partitions go on."""

    code = "damaged_changelog"


class WriteLock:
    """An exclusive lock between the writers of all processes, held by one thread at a time."""

    def __init__(self, path: Path) -> None:
        # Each holder opens the file itself: flock belongs to the open file, so this also
        # excludes two stores of one process.
        self._file = os.open(f"{path}-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def __enter__(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._file)


class CheckpointLock:
    """Lets one checkpoint of all processes write at a time. Held on the folder of the database, so
    that there is no other file to lose; taken before the write lock."""

    def __init__(self, path: Path) -> None:
        self._folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)

    @contextmanager
    def taken(self) -> Iterator[bool]:
        """Yield whether nobody else has it."""
        try:
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(self._folder, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._folder)


class StoreLock(WriteLock):
    """The same, for files that must still be those that were opened: entering raises
    `StoreReplacedError` if they are not."""

    def __init__(self, path: Path, files: StoreFiles) -> None:
        super().__init__(path)
        self.files = files

    def __enter__(self) -> None:
        super().__enter__()
        try:
            self.files.check_names()
        except BaseException:
            self.__exit__()
            raise

    @contextmanager
    def unchecked(self) -> Iterator[None]:
        """Hold the lock also if the files were replaced."""
        super().__enter__()
        try:
            yield
        finally:
            self.__exit__()


def open_database(
    path: Path, *, full_sync: bool = False, busy_timeout_ms: int = BUSY_TIMEOUT_MS
) -> sqlite3.Connection:
    """Return a connection to a file with the right schema, which is created if there is none.

    Raises StoreFileError if the file is not ours, damaged, newer, or cannot be written.
    """
    connection, _ = open_files(path, full_sync=full_sync, busy_timeout_ms=busy_timeout_ms)
    return connection


def open_files(
    path: Path, *, full_sync: bool = False, busy_timeout_ms: int = BUSY_TIMEOUT_MS
) -> tuple[sqlite3.Connection, StoreFiles]:
    """Do the same as `open_database`; return also what tells whether the files are replaced."""
    try:
        lock = WriteLock(path)
    except OSError as error:
        raise StoreFileError(
            f"cannot open the store {path}: {error.strerror}; {_MUST_WRITE}"
        ) from error
    try:
        _check_writable(path)
        with lock:
            connection = _open_locked(path, full_sync, busy_timeout_ms)
            try:
                files = StoreFiles(path)
                files.check(connection)
                return connection, files
            except BaseException:
                connection.close()
                raise
    except sqlite3.Error as error:
        raise store_error(error, path) from error
    finally:
        lock.close()


def _check_writable(path: Path) -> None:
    """SQLite opens what it can only read, and fails at each commit."""
    for each in (str(path), f"{path}-wal", f"{path}-shm"):
        # Others may create these files now, or remove them when they close the database: one look
        # can find a file that was not there yet when it was asked for its rights, two cannot.
        if all(not os.access(each, os.W_OK) and os.path.exists(each) for _ in range(2)):
            raise StoreFileError(f"cannot write {each}; {_MUST_WRITE}")


def _open_locked(path: Path, full_sync: bool, busy_timeout_ms: int) -> sqlite3.Connection:
    if not check_log(path):
        raise StoreFileError(
            f"the write-ahead log {path}-wal belongs to another {path.name}: the file was replaced "
            f"without it. If {path.name} is a restored backup, delete {path.name}-wal and "
            f"{path.name}-shm, then start again; otherwise put back the {path.name} of before"
        )
    connection = sqlite3.connect(
        path,
        timeout=busy_timeout_ms / 1000,
        isolation_level=None,
        # Made on the thread that opens the store, used on one other thread only.
        check_same_thread=False,
        cached_statements=STATEMENT_CACHE,
    )
    try:
        _check_schema(connection, path)
        connection.execute(f"PRAGMA synchronous = {'FULL' if full_sync else 'NORMAL'}")
        # Checkpoints are started by the store, outside of commits.
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.execute("PRAGMA temp_store = MEMORY")
        # Some builds overwrite what is deleted. Here that is every commit, once it is folded.
        connection.execute("PRAGMA secure_delete = OFF")
    except BaseException:
        connection.close()
        raise
    return connection


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (objects,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application_id == APPLICATION_ID:
        if version > SCHEMA_VERSION:
            raise StoreFileError(
                f"the store {path} was written by a newer Sublet (schema {version}, this one "
                f"knows {SCHEMA_VERSION}); upgrade Sublet or choose another path"
            )
        for newer in range(max(version, 1) + 1, SCHEMA_VERSION + 1):
            connection.executescript(
                f"BEGIN IMMEDIATE; {UPGRADES[newer]} PRAGMA user_version = {newer}; COMMIT;"
            )
        if version < SCHEMA_VERSION:
            checkpoint(connection)
        return
    if objects or version:
        raise StoreFileError(
            f"{path} is the database of another program; choose another path for the store"
        )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(
        f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA application_id = {APPLICATION_ID}; "
        f"PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
    )
    checkpoint(connection)


_DAMAGED = {"SQLITE_CORRUPT", "SQLITE_NOTADB"}


def store_error(error: sqlite3.Error, path: Path) -> SubletError:
    """Return what a caller is told about an error of the database."""
    name = getattr(error, "sqlite_errorname", "") or ""
    if any(name.startswith(each) for each in _DAMAGED):
        return StoreFileError(
            f"the store {path} is corrupt or not a database ({error}); "
            "restore it from a backup, or move it away to start empty"
        )
    if name.startswith("SQLITE_CANTOPEN"):
        return StoreFileError(f"cannot open the store {path} ({error}); {_MUST_WRITE}")
    return UnavailableError(f"the store {path} is unavailable ({error})", RETRY_AFTER_MS)


@contextmanager
def transaction(connection: sqlite3.Connection, mode: str = "IMMEDIATE") -> Iterator[None]:
    """Commit at the end, roll back on any error."""
    connection.execute(f"BEGIN {mode}")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        # SQLite itself rolls back after some errors, such as a full disk.
        if connection.in_transaction:
            connection.execute("ROLLBACK")


# Connections to files that were replaced: closing the last one would write into what is there now.
_abandoned: list[sqlite3.Connection] = []


def abandon(connection: sqlite3.Connection) -> None:
    """Leave a connection open for as long as the process lives."""
    _abandoned.append(connection)


class DatabaseThread:
    """Runs functions on one connection, one after the other, off the event loop."""

    def __init__(self, connection: sqlite3.Connection, path: Path, name: str) -> None:
        self._connection = connection
        self._path = path
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._closed = False

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return what the function returns; errors of the database become ours."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._guarded, work)

    def _guarded(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return work(self._connection)
        except sqlite3.Error as error:
            raise store_error(error, self._path) from error

    async def close(self, *, is_replaced: bool = False) -> None:
        """Finish what was begun, then close the connection; a second time does nothing."""
        if self._closed:
            return
        self._closed = True
        await self.run(abandon if is_replaced else sqlite3.Connection.close)
        self._executor.shutdown(wait=False)
