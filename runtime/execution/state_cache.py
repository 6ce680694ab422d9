"""The state of a partition's keys in memory, bounded by bytes.

Cells of keys that are in use are never dropped. Every cell that a run has changed is in the commit
that follows, so dropping a cell loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from sublet.functions.errors import StateTypeError
from sublet.functions.state import (
    Cell,
    ChangedRow,
    MapState,
    SetUnionState,
    StateClock,
    StateKind,
    StoredRow,
    Value,
)
from sublet.functions.state.cell import WHOLE
from sublet.functions.state.single import SingleRow
from sublet.functions.state_versions import MARK, StateVersions
from sublet.statestore.contract import StateRow

_MARKED = MARK[0]
ENTRY_BYTES = 150
"""What a key costs beside its text and its cell: two places in tables, and objects around them."""


class BrokenCell:
    """Stands for a state that cannot be read; a handler that touches it fails with the reason."""

    __slots__ = ("_error", "undo")

    def __init__(self, error: StateTypeError) -> None:
        self._error = error
        self.undo: list[object] = []

    def __getattr__(self, name: str) -> object:
        raise self._error

    def rollback(self) -> None:
        self.undo.clear()

    def drain(self) -> list[ChangedRow]:
        return []

    def rows(self) -> list[StoredRow]:
        """Return nothing, as nothing of it is known; `StateCache.rows` refuses to take that for
        an empty state."""
        return []

    @property
    def error(self) -> StateTypeError:
        return self._error

    @property
    def size_bytes(self) -> int:
        return 64

    @property
    def is_empty(self) -> bool:
        return False


class StateCache:
    """Decoded states by key; drops those that were not used for longest."""

    def __init__(
        self,
        function: str,
        kind: StateKind,
        clock: StateClock,
        *,
        complete: bool,
        bytes_max: Callable[[], int],
        versions: StateVersions | None = None,
        is_weighed: bool = True,
    ) -> None:
        """Rows go in and out as they are stored: with `versions`, also those that other versions of
        the function have written. If it is not `is_weighed`, nobody asks for its bytes."""
        self.cells: dict[str, Cell] = {}
        self.bytes = 0
        self.evicted = 0
        self._function = function
        self._kind = kind
        self._clock = clock
        self.is_complete = complete
        """While every key that has a state is in memory, a missing key has none."""
        self._bytes_max = bytes_max
        """Asked each time: partitions share the worker's memory."""
        self._has_fixed_sizes = not is_weighed or (isinstance(kind, Value) and kind.has_fixed_size)
        self._is_one_row = isinstance(kind, Value) and kind.ttl_ms is None
        self._order_matters = False
        self._sizes: dict[str, int] = {}
        self._versions = versions
        self._later = versions if versions is not None and versions.current > 1 else None
        """None for most functions: their rows are stored as their kind writes them."""
        self._outdated: dict[str, list[bytes]] = {}
        """Keys whose states were upgraded when they were loaded, and are not stored like that yet,
        with the subkeys of their stored rows."""

    @property
    def mean_bytes(self) -> int:
        """What one key's state weighs, about."""
        return self.bytes // len(self.cells) if self.cells else 0

    def missing(self, keys: Sequence[str]) -> Sequence[str]:
        """Return the keys whose state must be read; make cells for those known to have none."""
        cells = self.cells
        if self._order_matters:
            for key in dict.fromkeys(keys):
                cell = cells.pop(key, None)
                if cell is not None:
                    cells[key] = cell
        absent = [key for key in keys if key not in cells]
        if not absent:
            return absent
        if not self.is_complete:
            return list(dict.fromkeys(absent))
        for key in absent:
            if key not in cells:
                self._insert(key, ())
        return ()

    def unread(self, keys: Sequence[str]) -> Sequence[str]:
        """Return the keys whose state would have to be read; nothing counts as used."""
        if self.is_complete:
            return ()
        cells = self.cells
        return [key for key in keys if key not in cells]

    def insert(self, keys: Sequence[str], rows: Sequence[StateRow]) -> None:
        by_key: dict[str, list[StoredRow]] = {key: [] for key in keys}
        versions = self._later
        for key, subkey, value, expires_ms in rows:
            if value is not None:
                by_key[key].append((subkey, value, expires_ms))
                if subkey and subkey[0] == _MARKED:
                    versions = self._versions
        for key, stored in by_key.items():
            if key not in self.cells:
                self._insert(key, stored, versions)

    def _insert(
        self, key: str, stored: Sequence[StoredRow], versions: StateVersions | None = None
    ) -> None:
        cell = self._cell(key, stored) if versions is None else self._read(key, stored, versions)
        self.adopt(key, cell)

    def adopt(self, key: str, cell: Cell) -> None:
        """Take over the cell of another cache, of a key that is not here."""
        self.cells[key] = cell
        self._sizes[key] = size = cell.size_bytes
        self.bytes += size + len(key) + ENTRY_BYTES

    def _cell(self, key: str, stored: Sequence[StoredRow]) -> Cell:
        try:
            return self._kind.cell(stored, self._clock)
        except StateTypeError as error:
            return self._broken(key, error)

    def _read(self, key: str, stored: Sequence[StoredRow], versions: StateVersions) -> Cell:
        """Return the cell of a state that may be of another version."""
        try:
            rows, outdated = versions.read(stored, self._clock)
        except StateTypeError as error:
            return self._broken(key, error)
        if outdated:
            self._outdated[key] = outdated
        return self._cell(key, rows)

    def _broken(self, key: str, error: StateTypeError) -> BrokenCell:
        broken = StateTypeError(f"the state of {self._function}[{key}]: {error}")
        broken.__cause__ = error.__cause__
        return BrokenCell(broken)

    def drain(self, key: str, cell: Cell) -> list[ChangedRow]:
        """Return what has to be stored of a settled state of this cache."""
        if self._later is None:
            return cell.drain()
        return self._later.changes(cell, self._outdated.pop(key, ()))

    @property
    def is_of_later_version(self) -> bool:
        """Whether `drain` has to be asked instead of the cells themselves."""
        return self._later is not None

    def changed(self, keys: Collection[str]) -> None:
        """Account for cells that a run has changed."""
        if self._has_fixed_sizes:
            return
        sizes, cells = self._sizes, self.cells
        for key in keys:
            cell = cells.get(key)
            if cell is not None:
                size, before = cell.size_bytes, sizes[key]
                if size != before:
                    self.bytes += size - before
                    sizes[key] = size

    def is_readable(self, keys: Collection[str]) -> bool:
        """Tell whether `rows` can say what the states of loaded keys are."""
        cells = self.cells
        return all(type(cells[key]) is not BrokenCell for key in keys)

    def rows(self, keys: Collection[str]) -> list[tuple[str, list[StoredRow]]]:
        """Return all that the states of loaded keys consist of; no rows: there is no state.

        `StateTypeError` if one cannot be read: whoever is given no rows for it would begin anew.
        """
        found = []
        for key in keys:
            cell = self.cells[key]
            if isinstance(cell, BrokenCell):
                raise cell.error
            found.append((key, self._stored_rows(cell)))
        return found

    def _stored_rows(self, cell: Cell) -> list[StoredRow]:
        rows = cell.rows()
        return rows if self._later is None else self._later.marked(rows)

    def newest(
        self, bytes_max: int, without: Collection[str]
    ) -> tuple[list[tuple[str, list[StoredRow]]], bool]:
        """Return states of at most so many bytes, of keys that came or (when memory is short) were
        used last, and whether no other key has a state."""
        found: list[tuple[str, list[StoredRow]]] = []
        all_told = self.is_complete
        for key, cell in reversed(self.cells.items()):
            if key in without or key in self._outdated or isinstance(cell, BrokenCell):
                # Of an outdated one, the next owner has to know what is stored.
                all_told = False
                continue
            bytes_max -= self._sizes[key] + len(key)
            if bytes_max < 0:
                all_told = False
                break
            found.append((key, self._stored_rows(cell)))
        found.reverse()
        return found, all_told

    def apply(self, rows: Sequence[StateRow]) -> list[StateRow]:
        """Take over changes that somebody else made to the same, loaded states.

        The cells are then as if a handler had left and drained them here; they may be other
        objects than before. Returned is what has to be stored after the given
        rows: what has expired meanwhile; mostly nothing.
        """
        later = self._later
        if self._is_one_row and later is None and self._apply_whole(rows):
            return []
        by_key: dict[str, dict[bytes, ChangedRow]] = {}
        for key, subkey, value, expires_ms in rows:
            if later is not None:
                subkey = later.unmarked(subkey)
            by_key.setdefault(key, {})[subkey] = (subkey, value, expires_ms)
        expired: list[StateRow] = []
        for key, changes in by_key.items():
            before = self.cells[key]
            if isinstance(before, MapState | SetUnionState):
                # They may be large, and need not be made anew for a few rows.
                before._entries.take(changes.values())
                expired += [StateRow(key, *each) for each in self.drain(key, before)]
                continue
            # A state that is one row is replaced by it; nobody has to know what it was.
            whole = changes.get(WHOLE) if len(changes) == 1 else None
            pending = [] if whole else [each for each in before.drain() if each[0] not in changes]
            kept = [] if whole else [each for each in before.rows() if each[0] not in changes]
            kept += [
                (subkey, value, end) for subkey, value, end in changes.values() if value is not None
            ]
            self.cells[key] = cell = self._cell(key, kept)
            if later is not None:
                pending = later.marked_changes(pending)
            expired += [StateRow(key, *each) for each in (*pending, *self.drain(key, cell))]
        self.changed(by_key)
        return expired

    def _apply_whole(self, rows: Sequence[StateRow]) -> bool:
        """As `apply`, where each row is the value of its key; False if one is not: nothing has
        happened then. Without an object for each of them: there may be many."""
        if any(row[1] or row[3] is not None for row in rows):
            return False
        cells = self.cells
        for key, _, value, _ in rows:
            cell = cells[key]
            try:
                if isinstance(cell, SingleRow):
                    cell._load(value)
                    continue
            except StateTypeError as error:
                cells[key] = self._broken(key, error)
                continue
            cells[key] = self._cell(key, () if value is None else ((WHOLE, value, None),))
        self.changed([row[0] for row in rows])
        return True

    def replace(self, key: str, stored: Sequence[StoredRow]) -> list[StateRow]:
        """Let the state of a loaded key, which nobody uses, be another; return what has to be
        stored. `StateTypeError` if what it was cannot be read."""
        before = self.cells[key]
        if isinstance(before, BrokenCell):
            raise before.error
        outdated = self._outdated.pop(key, [])
        gone = [subkey for subkey, value, _ in self.drain(key, before) if value is None]
        gone += [subkey for subkey, _, _ in self._stored_rows(before)]
        self.cells[key] = self._cell(key, stored)
        self.changed((key,))
        made = stored if self._later is None else self._later.marked(stored)
        kept = {subkey for subkey, _, _ in made}
        gone = [each for each in (*outdated, *dict.fromkeys(gone)) if each not in kept]
        return [
            *(StateRow(key, subkey, None) for subkey in gone),
            *(StateRow(key, *each) for each in made),
        ]

    def drop(self, key: str) -> None:
        """Forget a key's cell; it is read again when it is needed."""
        if self.cells.pop(key, None) is not None:
            self._outdated.pop(key, None)
            self.is_complete = False
            self.bytes -= self._sizes.pop(key) + len(key) + ENTRY_BYTES

    def over_bound(self) -> bool:
        bytes_max = self._bytes_max()
        # While there is much room, nobody needs to know what was used last.
        self._order_matters = self.bytes > bytes_max // 2
        return self.bytes > bytes_max

    def shrink(self, in_use: Collection[str]) -> None:
        """Drop the cells that were not used for longest, until the bound holds."""
        bytes_max = self._bytes_max()
        for key in list(self.cells):
            if self.bytes <= bytes_max:
                return
            if key not in in_use:
                self.drop(key)
                self.evicted += 1
