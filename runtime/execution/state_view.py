"""A committed state as people want to see it: plain values, whatever kind of state it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from sublet.functions.codec import codec_for
from sublet.functions.state import (
    CountState,
    ExtremeState,
    FieldsState,
    ListState,
    MapState,
    MeanState,
    MergedState,
    QuantilesState,
    SetUnionState,
    StateClock,
    StateKind,
    StoredRow,
    SumState,
    TopKState,
    Value,
)
from sublet.functions.state.windowed import NothingState, WindowedState
from sublet.functions.state_versions import StateVersions
from sublet.statestore.contract import StateRow

QUANTILES_SHOWN = (0.5, 0.9, 0.99)

_ANY = codec_for(Any)


def state_json(
    kind: StateKind | None,
    rows: Sequence[StateRow],
    now_ms: int,
    versions: StateVersions | None = None,
) -> str:
    """Return the state of one key as JSON; "null" if it has none.

    A map whose keys are no texts is a list of pairs; a sketch is what it says about its values.
    A state of an earlier version is shown as it will be. `StateTypeError` if the rows do not fit
    the kind.
    """
    stored = _live_rows(rows, now_ms, versions)
    if kind is None or not stored:
        return "null"
    # Through msgpack, where all types of the functions' have a form, and JSON has one for those.
    plain = _ANY.decode(_ANY.encode(shown(kind.cell(stored, StateClock(now_ms)))))
    return msgspec.json.encode(plain).decode()


def state_msgpack(
    kind: StateKind | None,
    rows: Sequence[StateRow],
    now_ms: int,
    versions: StateVersions | None = None,
) -> bytes | None:
    """Return the same as msgpack; None if the key has no state, or no more."""
    stored = _live_rows(rows, now_ms, versions)
    if kind is None or not stored:
        return None
    if type(kind) is Value and len(stored) == 1 and not stored[0][0]:
        return stored[0][1]  # As it is: most states are of this kind.
    return _ANY.encode(shown(kind.cell(stored, StateClock(now_ms))))


def _live_rows(
    rows: Sequence[StateRow], now_ms: int, versions: StateVersions | None
) -> list[StoredRow]:
    """Return what has not expired, as the declared kind reads it."""
    stored = [
        (row.subkey, row.value, row.expires_ms)
        for row in rows
        if row.value is not None and (row.expires_ms is None or row.expires_ms > now_ms)
    ]
    if versions is None or not stored:
        return stored
    return versions.read(stored, StateClock(now_ms)).rows


def shown(cell: Any) -> Any:
    """Return what a cell holds, as values that can be encoded."""
    match cell:
        case WindowedState():
            return [
                {"start_ms": each.start_ms, "end_ms": each.end_ms, "state": shown(each.cell)}
                for each in cell
            ]
        case NothingState():
            return None
        case FieldsState():
            return {name: shown(getattr(cell, name)) for name in _field_names(cell)}
        case MapState():
            pairs = cell.items()
            return dict(pairs) if all(type(key) is str for key, _ in pairs) else pairs
        case ListState() | SetUnionState():
            return list(cell)
        case SumState() | CountState() | ExtremeState():
            return cell.value
        case MeanState():
            return {"mean": cell.value, "count": cell.count}
        case TopKState():
            return cell.top()
        case QuantilesState():
            found = {f"p{100 * each:g}": cell.quantile(each) for each in QUANTILES_SHOWN}
            return {"count": cell.count, **found}
        case MergedState():
            return cell.get()
        case _:
            # One value. Read as what it is: the declared type may be known to the handler only.
            data = cell.encoded()
            return None if data is None else _ANY.decode(data)


def _field_names(cell: FieldsState) -> list[str]:
    return [name for name in type(cell).__slots__ if not name.startswith("_")]
