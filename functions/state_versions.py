"""Versions of a function's state: how what earlier code has stored becomes what this code declares.

A function's state has version 1. Each `@cart.upgrade(from_version=n)` says how a state of version n
becomes one of version n + 1; the code writes the version after its last upgrade. A state is
upgraded in memory when it is loaded, and stored with the first change that a handler makes to it:
so an upgrade costs nothing that was not to be written anyway, and may be run more than once.

Stored form: rows of version 1 are as their kind writes them. Rows of a later version have a mark
and the version before their subkeys. No kind's own subkey can begin like that (the byte is in no
text and in no msgpack), so code of an earlier version cannot misread them: it refuses them.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sublet.functions.annotations import type_hints
from sublet.functions.errors import StateTypeError, SubletError
from sublet.functions.handler_types import required_parameters
from sublet.functions.plain_state import arrange, plain_value
from sublet.functions.state import Cell, ChangedRow, Fields, StateClock, StateKind, StoredRow
from sublet.functions.state.annotation import kind_of_annotation
from sublet.functions.state.windowed import Windowed, rows_of_windows, with_window

VERSION_MAX = 2**16 - 1
MARK = b"\xc1"
"""Before the version and the subkey of every row that is not of version 1."""
_PREFIX_BYTES = 3
_FIRST = 1

UpgradeHandler = Callable[[Any], Any]


class Upgrade(NamedTuple):
    """How a state of one version becomes one of the next."""

    kind: StateKind
    """What the state was declared as."""
    handler: UpgradeHandler


class ReadState(NamedTuple):
    """A stored state as this code sees it."""

    rows: list[StoredRow]
    """Of the declared kind, without marks."""
    outdated: list[bytes]
    """Subkeys, as they are stored, of the rows that these are to replace; empty if it has been
    stored by this version."""


class StateVersions:
    """Which versions of its state a function can read, and which one it writes."""

    __slots__ = ("_function", "_kind", "_prefix", "_upgrades", "current")

    def __init__(self, function: str, kind: StateKind) -> None:
        self._function = function
        self._kind = kind
        self._upgrades: dict[int, Upgrade] = {}
        self._prefix = b""
        self.current = _FIRST

    def declare(self, from_version: int, declared: object, handler: UpgradeHandler) -> None:
        """Add an upgrade; `TypeError` or `ValueError` says what is wrong about it."""
        name = self._function
        if type(from_version) is not int or not _FIRST <= from_version < VERSION_MAX:
            raise ValueError(
                f"{name}: from_version is {from_version!r}; allowed: {_FIRST}..{VERSION_MAX - 1}"
            )
        if from_version in self._upgrades:
            raise ValueError(f"{name}: the upgrade from version {from_version} is declared twice")
        if inspect.iscoroutinefunction(handler):
            raise TypeError(f"{name}: an upgrade is a plain `def`: it only computes")
        parameters = required_parameters(handler)
        if len(parameters) != 1:
            raise TypeError(f"{name}: an upgrade takes one argument, the state as it was")
        annotated = type_hints(handler).get(parameters[0].name, Any)
        try:
            kind = kind_of_annotation(annotated, declared)
        except TypeError as error:
            raise TypeError(f"{name}: the upgrade from version {from_version}: {error}") from error
        self._upgrades[from_version] = Upgrade(kind, handler)
        self.current = max(self._upgrades) + 1
        self._prefix = _prefix(self.current)

    def check(self) -> None:
        """Raise `ValueError` unless the upgrades follow each other."""
        first = min(self._upgrades, default=self.current)
        missing = [each for each in range(first, self.current) if each not in self._upgrades]
        if missing:
            raise ValueError(
                f"{self._function}: there is no upgrade from version {missing[0]}; declare it with "
                f"@{self._function.rpartition('/')[2]}.upgrade(from_version={missing[0]})"
            )

    def kind_of(self, version: int) -> StateKind:
        """Return what states of a version consist of; `ValueError` if nobody has said."""
        if version == self.current:
            return self._kind
        if version not in self._upgrades:
            known = ", ".join(map(str, [*sorted(self._upgrades), self.current]))
            raise ValueError(f"{self._function} has no version {version}; known: {known}")
        kind = self._upgrades[version].kind
        is_windowed = isinstance(self._kind, Windowed)
        return Windowed(kind, self._kind.open_max) if is_windowed else kind  # type: ignore[attr-defined]

    def read(self, stored: Sequence[StoredRow], clock: StateClock) -> ReadState:
        """Return a key's state as the declared kind reads it.

        `StateTypeError` if it is of a version that cannot be read, or if its upgrade fails.
        """
        version, rows = _unmarked(stored)
        current = self.current
        if version == current or not rows:
            return ReadState(rows, [])
        if version > current:
            raise StateTypeError(
                f"it has version {version}, and this code has version {current}; newer code has "
                "stored it: run that, or declare how it becomes what this code knows (upgrade)"
            )
        for each in range(version, current):
            rows = self._upgraded(each, rows, clock)
        return ReadState(rows, [subkey for subkey, _, _ in stored])

    def marked(self, rows: Iterable[StoredRow]) -> list[StoredRow]:
        """Return rows of the declared kind as they are stored."""
        return mark_rows(self.current, rows)

    def marked_changes(self, rows: Iterable[ChangedRow]) -> list[ChangedRow]:
        """As `marked`; rows may be deleted ones."""
        prefix = self._prefix
        return [(prefix + subkey, value, end) for subkey, value, end in rows]

    def unmarked(self, subkey: bytes) -> bytes:
        """Return the declared kind's own subkey of a row that this version has written."""
        return subkey[len(self._prefix) :]

    def changes(self, cell: Cell, outdated: Sequence[bytes]) -> list[ChangedRow]:
        """Return what has to be stored of a settled cell since the last time: of one that was
        upgraded all of it, instead of what it was."""
        changed = cell.drain()
        if not outdated:
            return self.marked_changes(changed)
        return [*((each, None, None) for each in outdated), *self.marked(cell.rows())]

    def _upgraded(
        self, version: int, rows: Sequence[StoredRow], clock: StateClock
    ) -> list[StoredRow]:
        upgrade = self._upgrades.get(version)
        if upgrade is None:
            raise StateTypeError(
                f"it has version {version}, and this code has no upgrade from that version"
            )
        goal = self.kind_of(version + 1)
        try:
            if not isinstance(goal, Windowed):
                return _converted(upgrade, goal, rows, clock)
            described, of_windows = rows_of_windows(rows)
            found = list(described)
            for window, of_window in of_windows.items():
                made = _converted(upgrade, goal.kind, of_window, clock)
                found += [(with_window(window, subkey), value, end) for subkey, value, end in made]
            return found
        except SubletError as error:
            raise StateTypeError(f"its upgrade from version {version} failed: {error}") from error
        except BaseException as error:
            # Whatever it is, it must not end the worker that reads the state.
            raise StateTypeError(
                f"its upgrade from version {version} raised {type(error).__name__}: {error}"
                f"{_place(error)}"
            ) from error


def is_marked(subkey: bytes) -> bool:
    """Tell whether a row is of another version than the first."""
    return subkey[:1] == MARK


def mark_rows(version: int, rows: Iterable[StoredRow]) -> list[StoredRow]:
    """Return a kind's own rows as a version of the state stores them."""
    prefix = _prefix(version)
    return [(prefix + subkey, value, end) for subkey, value, end in rows]


def _prefix(version: int) -> bytes:
    return b"" if version == _FIRST else MARK + version.to_bytes(_PREFIX_BYTES - 1, "big")


def _unmarked(stored: Sequence[StoredRow]) -> tuple[int, list[StoredRow]]:
    """Return the version of a key's rows, and the rows without its mark."""
    found: set[int] = set()
    rows: list[StoredRow] = []
    for subkey, value, expires_ms in stored:
        if subkey[:1] == MARK:
            found.add(int.from_bytes(subkey[1:_PREFIX_BYTES], "big"))
            subkey = subkey[_PREFIX_BYTES:]
        else:
            found.add(_FIRST)
        rows.append((subkey, value, expires_ms))
    if len(found) > 1:
        raise StateTypeError(
            f"it has rows of the versions {', '.join(map(str, sorted(found)))}, which no code has "
            "written; restore it from a backup"
        )
    return next(iter(found), _FIRST), rows


def _converted(
    upgrade: Upgrade, goal: StateKind, rows: Sequence[StoredRow], clock: StateClock
) -> list[StoredRow]:
    """Return the rows that an upgrade makes of a state."""
    was = upgrade.kind
    before: Any = was.cell(rows, clock)
    if before.is_empty:
        # It has expired; or its fields are others than those that the upgrade is about.
        return list(rows) if isinstance(goal, Fields) and isinstance(was, Fields) else []
    value = upgrade.handler(plain_value(was, before))
    after: Any = goal.cell((), clock)
    arrange(goal, after, value)
    if after.undo:
        after.undo.clear()
    made = _with_expiry(after.rows(), rows)
    if isinstance(goal, Fields) and isinstance(was, Fields):
        made += _kept_fields(was, goal, value, rows)
    return made


def _with_expiry(made: Sequence[StoredRow], before: Sequence[StoredRow]) -> list[StoredRow]:
    """Let no row live longer than what it was made of, however often it is upgraded until then."""
    ends = {subkey: expires_ms for subkey, _, expires_ms in before}
    known = [each for each in ends.values() if each is not None]
    latest_ms = max(known) if known and len(known) == len(ends) else None
    found: list[StoredRow] = []
    for subkey, value, own_ms in made:
        expires_ms = ends.get(subkey, latest_ms)
        found.append((subkey, value, own_ms if expires_ms is None else expires_ms))
    return found


def _kept_fields(
    was: Fields, goal: Fields, value: Mapping[str, Any], rows: Sequence[StoredRow]
) -> list[StoredRow]:
    """Return the rows of fields about which an upgrade has said nothing: they stay as they are,
    but for those that it was given and that are no more."""
    gone = {name.encode() for name in (*value, *(was.kinds.keys() - goal.kinds.keys()))}
    return [row for row in rows if row[0].partition(b"\0")[0] not in gone]


def _place(error: BaseException) -> str:
    """Return where an upgrade has raised, in brackets."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
