"""The state of one key in all its open windows: the declared state, once for each window.

Stored form: for each window one row that describes it, and the rows of its state with the
window's start before their subkeys.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from sublet.functions.errors import StateTooLargeError, StateTypeError
from sublet.functions.state.cell import Cell, ChangedRow, StateClock, StateKind, StoredRow

WINDOW_OVERHEAD_BYTES = 200
"""What a window costs beside its state."""

_DESCRIPTION = b"w"
_STATE = b"s"
_START_BYTES = 8
_START_BASE = 2**63
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, str, bool]).decode


class OpenWindow(NamedTuple):
    """A window that takes messages, or has been closed and still takes late ones."""

    start_ms: int
    end_ms: int
    timer: str
    """Which of the key's closings is the one that counts."""
    closed: bool
    """It was closed at its end, and stays for late messages."""
    cell: Cell


class Windowed:
    """A kind of state for each window of each key; made by the runtime around the declared one."""

    __slots__ = ("kind", "open_max")

    def __init__(self, kind: StateKind, open_max: int) -> None:
        self.kind = kind
        self.open_max = open_max

    def __repr__(self) -> str:
        return f"{self.kind!r} in windows"

    def cell(self, rows: Iterable[StoredRow], clock: StateClock) -> WindowedState:
        """See `StateKind.cell`."""
        return WindowedState(self, rows, clock)


def rows_of_windows(
    rows: Iterable[StoredRow],
) -> tuple[list[StoredRow], dict[bytes, list[StoredRow]]]:
    """Return the rows that describe windows, and those of each window's own state: its kind's, by
    what `with_window` puts before them again."""
    described: list[StoredRow] = []
    of_windows: dict[bytes, list[StoredRow]] = {}
    for row in rows:
        subkey, value, expires_ms = row
        if subkey[:1] == _STATE and len(subkey) > _START_BYTES:
            window, inner = subkey[: 1 + _START_BYTES], subkey[1 + _START_BYTES :]
            of_windows.setdefault(window, []).append((inner, value, expires_ms))
        else:
            described.append(row)
    return described, of_windows


def with_window(window: bytes, subkey: bytes) -> bytes:
    """Return the subkey of a row of a window's state."""
    return window + subkey


class _Stored(NamedTuple):
    """What a store has of one window, or will have when what was drained is committed."""

    cell: Cell
    subkeys: set[bytes]
    description: tuple[int, str, bool]
    size_bytes: int


class WindowedUndo:
    """Sees what happened to the windows and in them as one."""

    __slots__ = ("_state",)

    def __init__(self, state: WindowedState) -> None:
        self._state = state

    def __len__(self) -> int:
        return self._state.unsettled()

    def clear(self) -> None:
        """Settle everything."""
        self._state.settle()


class WindowedState:
    """All open windows of a key. Handlers see only the state of the window that they run for."""

    __slots__ = (
        "_before",
        "_by_timer",
        "_changed",
        "_clock",
        "_kind",
        "_size_bytes",
        "_stored",
        "_used",
        "_windows",
        "undo",
    )

    def __init__(self, kind: Windowed, rows: Iterable[StoredRow], clock: StateClock) -> None:
        self.undo = WindowedUndo(self)
        self._kind = kind
        self._clock = clock
        self._windows: dict[int, OpenWindow] = {}
        self._by_timer: dict[str, int] = {}
        self._before: dict[int, OpenWindow | None] = {}
        """Windows as they were when the current handler began."""
        self._used: list[tuple[int, Cell]] = []
        """Cells that the current handler may have changed."""
        self._changed: dict[int, None] = {}
        """Windows that differ from what is stored; a dict for its order."""
        self._stored: dict[int, _Stored] = {}
        self._size_bytes = 0
        """As of the last drain: asked for more often than windows change."""
        self._load(rows)

    def _load(self, rows: Iterable[StoredRow]) -> None:
        described: dict[int, tuple[int, str, bool]] = {}
        inner: dict[int, list[StoredRow]] = {}
        for subkey, value, expires_ms in rows:
            mark, rest = subkey[:1], subkey[1 + _START_BYTES :]
            if len(subkey) <= _START_BYTES or mark not in (_DESCRIPTION, _STATE):
                raise StateTypeError("the stored state has no windows: it was written without them")
            start_ms = int.from_bytes(subkey[1 : 1 + _START_BYTES], "big") - _START_BASE
            if mark == _DESCRIPTION:
                described[start_ms] = _decode(value)
            else:
                inner.setdefault(start_ms, []).append((rest, value, expires_ms))
        for start_ms in sorted(described):
            stored = inner.get(start_ms, [])
            cell = self._kind.kind.cell(stored, self._clock)
            self._put(OpenWindow(start_ms, *described[start_ms], cell))
            subkeys = {subkey for subkey, _, _ in stored}
            size_bytes = cell.size_bytes + WINDOW_OVERHEAD_BYTES
            self._stored[start_ms] = _Stored(cell, subkeys, described[start_ms], size_bytes)
            self._size_bytes += size_bytes

    # For whoever runs handlers

    def __iter__(self) -> Any:
        return iter(self._windows.values())

    def __len__(self) -> int:
        return len(self._windows)

    def get(self, start_ms: int) -> OpenWindow | None:
        """Return the window that begins at this time."""
        return self._windows.get(start_ms)

    def by_timer(self, timer: str) -> OpenWindow | None:
        """Return the window whose closing this is; None if another one took its place."""
        start_ms = self._by_timer.get(timer)
        return None if start_ms is None else self._windows[start_ms]

    @property
    def kind(self) -> StateKind:
        """What the state of each window is."""
        return self._kind.kind

    def new_cell(self) -> Cell:
        """Return an empty state for a window."""
        return self._kind.kind.cell((), self._clock)

    def put(self, window: OpenWindow) -> None:
        """Open a window, or replace the one that begins at the same time."""
        if window.start_ms not in self._windows and len(self._windows) >= self._kind.open_max:
            raise StateTooLargeError(
                f"the key has {len(self._windows)} open windows; allowed: {self._kind.open_max} "
                "(open_max); does the watermark advance?"
            )
        self._remember(window.start_ms)
        self._remove(window.start_ms)
        self._put(window)

    def remove(self, start_ms: int) -> None:
        """Forget a window with its state."""
        self._remember(start_ms)
        self._remove(start_ms)

    def use(self, window: OpenWindow) -> Cell:
        """Return the window's state for a handler that may change it."""
        self._used.append((window.start_ms, window.cell))
        return window.cell

    def _remember(self, start_ms: int) -> None:
        if start_ms not in self._before:
            self._before[start_ms] = self._windows.get(start_ms)

    def _put(self, window: OpenWindow) -> None:
        self._windows[window.start_ms] = window
        self._by_timer[window.timer] = window.start_ms

    def _remove(self, start_ms: int) -> None:
        window = self._windows.pop(start_ms, None)
        if window is not None:
            del self._by_timer[window.timer]

    # What the runtime and every state agree on

    def unsettled(self) -> int:
        """Return 0 if a rollback would take back nothing."""
        if self._before:
            return len(self._before)
        for _, cell in self._used:
            if cell.undo:
                return 1
        return 0

    def settle(self) -> None:
        """Keep what the handler did."""
        for start_ms, cell in self._used:
            if cell.undo:
                cell.undo.clear()
                self._changed[start_ms] = None
        self._used.clear()
        if self._before:
            self._changed.update(dict.fromkeys(self._before))
            self._before = {}

    def rollback(self) -> None:
        """See `Cell.rollback`."""
        for _, cell in self._used:
            cell.rollback()
        self._used.clear()
        if self._before:
            for start_ms in self._before:
                self._remove(start_ms)
            for window in self._before.values():
                if window is not None:
                    self._put(window)
            self._before = {}

    def drain(self) -> list[ChangedRow]:
        """See `Cell.drain`."""
        changed: list[ChangedRow] = []
        for start_ms in self._changed:
            self._drain_window(start_ms, changed)
        self._changed = {}
        return changed

    def rows(self) -> list[StoredRow]:
        """See `Cell.rows`."""
        found: list[StoredRow] = []
        for window in self._windows.values():
            name = _name(window.start_ms)
            description = (window.end_ms, window.timer, window.closed)
            found.append((_DESCRIPTION + name, _encode(description), None))
            prefix = _STATE + name
            found.extend((prefix + subkey, value, end) for subkey, value, end in window.cell.rows())
        return found

    def _drain_window(self, start_ms: int, changed: list[ChangedRow]) -> None:
        name = _name(start_ms)
        window, stored = self._windows.get(start_ms), self._stored.pop(start_ms, None)
        rows: dict[bytes, ChangedRow] = {}
        subkeys: set[bytes] = set()
        if stored is not None:
            self._size_bytes -= stored.size_bytes
            if window is not None and window.cell is stored.cell:
                subkeys = stored.subkeys
            else:
                for subkey in sorted(stored.subkeys):
                    rows[subkey] = (_STATE + name + subkey, None, None)
        if window is not None:
            for subkey, value, expires_ms in window.cell.drain():
                rows[subkey] = (_STATE + name + subkey, value, expires_ms)
                if value is None:
                    subkeys.discard(subkey)
                else:
                    subkeys.add(subkey)
            description = (window.end_ms, window.timer, window.closed)
            if stored is None or stored.description != description:
                changed.append((_DESCRIPTION + name, _encode(description), None))
            size_bytes = window.cell.size_bytes + WINDOW_OVERHEAD_BYTES
            self._stored[start_ms] = _Stored(window.cell, subkeys, description, size_bytes)
            self._size_bytes += size_bytes
        elif stored is not None:
            changed.append((_DESCRIPTION + name, None, None))
        changed.extend(rows.values())

    @property
    def size_bytes(self) -> int:
        """See `Cell.size_bytes`."""
        return self._size_bytes

    @property
    def is_empty(self) -> bool:
        """See `Cell.is_empty`."""
        return not self._windows


def _name(start_ms: int) -> bytes:
    return (start_ms + _START_BASE).to_bytes(_START_BYTES, "big")


class NoWindowState:
    """The kind of windows for which nothing is kept; can be merged with itself."""

    __slots__ = ()

    partial_type = None

    def __repr__(self) -> str:
        return "no state"

    def cell(self, rows: Iterable[StoredRow], clock: StateClock) -> Any:
        """See `StateKind.cell`."""
        return NOTHING

    def zero(self) -> None:
        """Return nothing."""

    def merge(self, one: None, other: None) -> None:
        """Return nothing."""

    def partial_of(self, cell: Any) -> None:
        """See `MergeableKind.partial_of`."""

    def absorb(self, cell: Any, partial: None) -> None:
        """See `MergeableKind.absorb`."""


class NothingState:
    """Refuses everything: windows that merge need a state that can be merged."""

    undo = ()
    size_bytes = 0
    is_empty = True

    def rollback(self) -> None:
        """See `Cell.rollback`."""

    def drain(self) -> list[ChangedRow]:
        """See `Cell.drain`."""
        return []

    def rows(self) -> list[StoredRow]:
        """See `Cell.rows`."""
        return []

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            "sessions merge, so their state is none or mergeable; declare one, such as state=Sum()"
        )


NOTHING = NothingState()
