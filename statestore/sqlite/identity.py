"""Whether the files that a store has open are still those at its path, as they were written.

A folder can be deleted, moved, or filled from a backup while workers run. SQLite notices nothing:
it goes on with files that nobody will open again, or mixes two databases. So each worker remembers
which files it has opened (device and inode), and a database has an id and a generation, which each
checkpoint raises before it writes: the database file, read without its write-ahead log, must never
go back to an earlier one, be another's, or change without a checkpoint. The log, in turn, begins
with the generation of the file that it belongs to, so that a log which is left beside a restored
file is not played into it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

from sublet.functions.errors import UnavailableError
from sublet.statestore.contract import StoreReplacedError

DATABASE, LOG, INDEX, LOCK = "", "-wal", "-shm", "-lock"
_FILES = (DATABASE, LOG, INDEX, LOCK)
# Times of change have the resolution of the kernel's clock: a change right after another may not
# show.
_RESOLUTION_NS = 50_000_000
# A checkpoint may be writing what is read here.
_LOOKS_MAX = 5
_LOOK_AGAIN_S = 0.02
RETRY_AFTER_MS = 1_000

_Identity = tuple[int, int]


class Mark(NamedTuple):
    """What a database says of itself."""

    store: str
    """Given at random when it was created."""
    generation: int
    """Raised before each checkpoint."""
    base: int
    """In the log: the generation of the database that the log belongs to."""


NO_MARK = Mark("", 0, 0)
_SELECT = "SELECT store, generation, base FROM meta"


class _Known:
    """What this process knows of a database, whichever of its connections has looked."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.mark: Mark | None = None
        """Of the database file, at the last look."""
        self.written: tuple[int, int] | None = None
        """Time and size of the file then."""
        self.is_settled = False
        """Another time and size would show any change since."""
        self.is_writing = True
        """A checkpoint was under way then, or had been broken off."""
        self.is_overwritten = False


_known: WeakValueDictionary[tuple[_Identity | None, str], _Known] = WeakValueDictionary()


class StoreFiles:
    """The files of a store, as one connection has opened them."""

    def __init__(self, path: Path) -> None:
        """Remember what is there; hold the write lock, with the database open."""
        self._path = path
        self._names = {suffix: f"{path}{suffix}" for suffix in _FILES}
        self._folder = str(path.parent)
        self._opened = {suffix: self._identity(suffix) for suffix in _FILES}
        # By its id, too: the next file may have the inode of one that was deleted.
        store = (raw_mark(path) or NO_MARK).store
        self._known = _known.setdefault((self._opened[DATABASE], store), _Known())
        self._folder_seen: tuple[int, int, int] | None = None
        """Of the folder, when all files were last found in it; None: look again."""

    def check_names(self) -> None:
        """Raise `StoreReplacedError` if a file of the store is not at its path any more.

        Made for every commit: mostly one look at the folder, which has not changed.
        """
        now_ns = time.time_ns()
        try:
            folder = os.stat(self._folder)
        except FileNotFoundError:
            raise StoreReplacedError(self._told(DATABASE)) from None
        except OSError as error:
            raise self._unknown(error) from error
        seen = (folder.st_dev, folder.st_ino, folder.st_mtime_ns)
        if seen == self._folder_seen:
            return
        if not all(map(self._is_in_place, _FILES)):
            # A folder that is being moved away is found in part at first: the file that matters
            # most is named.
            raise StoreReplacedError(self._told(self._first_out_of_place()))
        self._folder_seen = seen if _is_past(folder.st_mtime_ns, now_ns) else None

    def check(self, connection: sqlite3.Connection) -> None:
        """Raise `StoreReplacedError` also if the database file was overwritten. Hold the write
        lock, or be the one who writes."""
        self.check_names()
        now_ns = time.time_ns()
        try:
            found = os.stat(self._names[DATABASE])
        except OSError as error:
            raise self._unknown(error) from error
        written, known = (found.st_mtime_ns, found.st_size), self._known
        with known.lock:
            if known.is_settled and written == known.written:
                return
            for _ in range(_LOOKS_MAX):
                if self._is_ours(connection, has_changed=written != known.written):
                    known.written = written
                    known.is_settled = not known.is_writing and _is_past(found.st_mtime_ns, now_ns)
                    return
                time.sleep(_LOOK_AGAIN_S)
            known.is_overwritten = True
        raise StoreReplacedError(self._told(None))

    def _is_ours(self, connection: sqlite3.Connection, *, has_changed: bool) -> bool:
        """Tell whether the database file is what checkpoints have written."""
        mark, known = raw_mark(self._path), self._known
        is_known = known.mark is not None and known.mark != NO_MARK
        if mark is None or (mark == NO_MARK and not is_known):
            return True  # Nobody can say now; whoever reads the file will.
        (newest,) = connection.execute(_SELECT).fetchall()
        is_writing = bool(newest[1] != newest[2])
        if mark == NO_MARK:
            # A checkpoint writes the first page first, which tells of pages that are to come.
            return is_writing
        if is_known and not _follows(mark, known.mark):
            return False
        is_same = known.mark is not None and known.mark.generation == mark.generation
        if has_changed and is_same and not is_writing and not known.is_writing:
            return False
        known.mark, known.is_writing = mark, is_writing
        return True

    def can_be_saved(self) -> bool:
        """Tell whether only the log or its index are gone, and nobody has made others: then what is
        in the log, which is open, still belongs into the database. Hold the write lock."""
        return (
            all(self._identity(each) == self._opened[each] for each in (DATABASE, LOCK))
            and all(self._identity(each) in (None, self._opened[each]) for each in (LOG, INDEX))
            and not self._known.is_overwritten
        )

    def _is_in_place(self, suffix: str) -> bool:
        return self._identity(suffix) == self._opened[suffix]

    def _first_out_of_place(self) -> str:
        return next((each for each in _FILES if not self._is_in_place(each)), DATABASE)

    def _identity(self, suffix: str) -> _Identity | None:
        try:
            found = os.stat(self._names[suffix])
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._unknown(error) from error
        return found.st_dev, found.st_ino

    def _unknown(self, error: OSError) -> UnavailableError:
        return UnavailableError(f"the store {self._path} is unavailable ({error})", RETRY_AFTER_MS)

    def _told(self, suffix: str | None) -> str:
        path = self._path
        if suffix is None:
            what = f"{path} was overwritten, or damaged,"
        else:
            is_gone = self._identity(suffix) is None
            happened = "deleted or moved away" if is_gone else "replaced by another file"
            what = f"{path}{suffix} was {happened}"
        if suffix in (DATABASE, None):
            remedy = (
                "Stop all workers of this folder. To go on with a backup, put it in place, with "
                f"no {path.name}{LOG} or {path.name}{INDEX} beside it; to start empty, leave the "
                "folder empty. Then start workers"
            )
        else:
            remedy = "Stop all workers of this folder, then start them again"
        return f"{what} while workers used it; nothing more is committed here. {remedy}"


def _is_past(changed_ns: int, now_ns: int) -> bool:
    """Tell whether any later change will have another time."""
    return changed_ns < now_ns - _RESOLUTION_NS


def _follows(mark: Mark, known: Mark | None) -> bool:
    return known is not None and mark.store == known.store and mark.generation >= known.generation


def raw_mark(path: Path) -> Mark | None:
    """Return the mark in the database file itself, whatever its log says; None: not known now.

    By a connection, not by a file of our own: closing that would drop the locks of SQLite's.
    """
    return _mark(path, "immutable=1")


def check_log(path: Path) -> bool:
    """Tell whether the log beside a database belongs to it; hold the write lock.

    Looked at without a way to write: whoever closes the last connection plays the log into the
    database.
    """
    try:
        if not os.path.getsize(f"{path}{LOG}"):
            return True
    except OSError:
        return True
    database, both = raw_mark(path), _mark(path, "mode=ro")
    if not database or not both or NO_MARK in (database, both):
        return True
    return database.store == both.store and database.generation in (both.base, both.generation)


def _mark(path: Path, how: str) -> Mark | None:
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True)
        try:
            (found,) = connection.execute(_SELECT).fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        # There is something, and it is none of ours, an older one, or damaged.
        name = getattr(error, "sqlite_errorname", "") or ""
        is_other = name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")) or str(error).startswith(
            ("no such table", "no such column")
        )
        return NO_MARK if is_other else None
    except ValueError:
        return NO_MARK
    return Mark(*found)


def checkpoint(connection: sqlite3.Connection) -> None:
    """Move the log into the database, as far as readers allow; hold the write lock."""
    begin_checkpoint(connection)
    (frames,) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    end_checkpoint(connection, frames)


def begin_checkpoint(connection: sqlite3.Connection) -> None:
    """Let the log have the next generation, unless it is there since a checkpoint that did not end;
    hold the write lock."""
    connection.execute("UPDATE meta SET generation = generation + 1 WHERE base = generation")


def end_checkpoint(connection: sqlite3.Connection, frames: tuple[int, int, int]) -> None:
    """Begin a new log, if all of the last one is in the database; hold the write lock.

    `frames` is what the last `PRAGMA wal_checkpoint` has returned.
    """
    is_busy, logged, moved = frames
    if not is_busy and logged == moved:
        connection.execute("UPDATE meta SET base = generation")
