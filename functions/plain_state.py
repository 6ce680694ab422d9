"""A key's state as a plain value, as tests compare it and upgrade functions take it, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sublet.functions.state import (
    Count,
    Fields,
    List,
    Map,
    Max,
    Mean,
    Merged,
    Min,
    Quantiles,
    SetUnion,
    StateKind,
    Sum,
    TopK,
    Value,
)
from sublet.functions.state.windowed import Windowed
from sublet.functions.windows import Window


def plain_value(kind: StateKind, cell: Any) -> Any:
    """Return what a state holds; see `Harness.state` for what that is for each kind."""
    match kind:
        case Fields():
            return {
                name: plain_value(each, getattr(cell, name)) for name, each in kind.kinds.items()
            }
        case Windowed():
            return {
                Window(each.start_ms, each.end_ms): plain_value(kind.kind, each.cell)
                for each in cell
            }
        case _:
            plain = getattr(kind, "plain", None)
            return cell if plain is None else plain(cell)


def arrange(kind: StateKind, cell: Any, value: Any) -> None:
    """Make a new cell hold a plain value; `TypeError` says what a kind takes."""
    match kind:
        case Fields():
            _arrange_fields(kind, cell, value)
        case Value():
            cell.set(value)
        case Merged():
            cell.merge(value)
        case Map():
            for key, each in _of(Mapping, value, "a Map is set to a dict").items():
                cell.put(key, each)
        case List():
            cell.extend(value)
        case SetUnion():
            for each in value:
                cell.add(each)
        case Sum():
            cell.add(value)
        case Count():
            cell.increment(value)
        case Min() | Max():
            cell.offer(value)
        case _:
            _arrange_sketch(kind, cell, value)


def _arrange_sketch(kind: StateKind, cell: Any, value: Any) -> None:
    match kind:
        case Mean():
            total, count = _of(tuple, value, "a Mean is set to (total, count)")
            cell.add_many(total, count)
        case TopK():
            for item, weight in _of(list, value, "a TopK is set to [(item, times), …]"):
                cell.add(item, weight)
        case Quantiles():
            for each in _of(list, value, "Quantiles are set to a list of numbers"):
                cell.add(each)
        case _:
            raise TypeError(f"a state of kind {kind!r} cannot be set; send its function messages")


def _arrange_fields(kind: Fields, cell: Any, value: Any) -> None:
    values = _of(Mapping, value, f"a state with fields is set to a dict of {', '.join(kind.kinds)}")
    for name, each in values.items():
        if name not in kind.kinds:
            raise ValueError(f"there is no field {name!r}; allowed: {', '.join(kind.kinds)}")
        arrange(kind.kinds[name], getattr(cell, name), each)


def _of(wanted: type[Any], value: Any, refusal: str) -> Any:
    if not isinstance(value, wanted):
        raise TypeError(f"{refusal}, not {type(value).__name__}")
    return value
