"""Turns a plain value, as a person writes it in JSON, into the rows of a declared state."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from sublet.functions.codec import codec_for
from sublet.functions.errors import (
    EncodeError,
    PayloadError,
    StateTooLargeError,
    StateTypeError,
    TooLargeError,
)
from sublet.functions.state import (
    Count,
    Fields,
    List,
    Map,
    Max,
    Mean,
    Merged,
    Min,
    SetUnion,
    StateClock,
    StateKind,
    StoredRow,
    Sum,
    Value,
)


def rows_of(kind: StateKind, value: Any, clock: StateClock) -> list[StoredRow]:
    """Return the rows of a key whose whole state is this value.

    `PayloadError` if it does not fit the declaration, or if states of this kind cannot be
    written down; `TooLargeError` above the bound.
    """
    cell: Any = kind.cell((), clock)
    try:
        _assign(kind, cell, value)
    except (StateTypeError, EncodeError, PayloadError) as error:
        raise PayloadError(f"the state is declared as {kind!r}; {error}") from None
    except StateTooLargeError as error:
        raise TooLargeError(str(error)) from None
    if cell.undo:
        cell.undo.clear()
    return [(subkey, data, end) for subkey, data, end in cell.drain() if data is not None]


def schema_of(kind: StateKind | None) -> dict[str, Any] | None:
    """Return what `rows_of` takes, as JSON Schema; None if such a state cannot be written."""
    leaves: list[Any] = []
    if kind is None or not _collect(kind, leaves):
        return None
    schemas, parts = msgspec.json.schema_components(
        leaves,
        ref_template="#/$defs/{name}",
        schema_hook=lambda model: {"title": getattr(model, "__name__", "its type")},
    )
    schema = _composed(kind, iter(schemas))
    return {**schema, "$defs": parts} if parts else schema


def _collect(kind: StateKind, leaves: list[Any]) -> bool:
    """Add the types that a kind consists of; return whether it can be written."""
    match kind:
        case Fields():
            return all(_collect(each, leaves) for each in kind.kinds.values())
        case Value():
            leaves.append(kind.type)
        case Map():
            leaves.append(kind.values.type)
        case List() | SetUnion():
            leaves.append(kind.typed.type)
        case Sum() | Count() | Min() | Max() | Merged():
            leaves.append(kind.partial_type)
        case Mean():
            leaves.append(list[float])
        case _:
            return False
    return True


def _composed(kind: StateKind, schemas: Iterator[dict[str, Any]]) -> dict[str, Any]:
    match kind:
        case Fields():
            parts = {name: _composed(each, schemas) for name, each in kind.kinds.items()}
            return {"title": "its state", "type": "object", "properties": parts}
        case Map():
            return {"type": "object", "additionalProperties": next(schemas)}
        case List() | SetUnion():
            return {"type": "array", "items": next(schemas)}
        case _:
            return next(schemas)


def _assign(kind: StateKind, cell: Any, value: Any) -> None:
    match kind:
        case Fields():
            _assign_fields(kind, cell, value)
        case Value():
            cell.set(_typed(kind.type, value))
        case Map():
            for key, each in _pairs(value):
                cell.put(_map_key(kind.keys.type, key), _typed(kind.values.type, each))
        case List():
            for each in _array(value):
                cell.append(_typed(kind.typed.type, each))
        case SetUnion():
            for each in _array(value):
                cell.add(_typed(kind.typed.type, each))
        case Sum() | Count() | Min() | Max() | Merged():
            kind.absorb(cell, _typed(kind.partial_type, value))
        case Mean():
            if not isinstance(value, list):
                raise PayloadError("allowed: [total, count]")
            kind.absorb(cell, _typed(kind.partial_type, value))
        case _:
            raise PayloadError(
                "such a state cannot be written by hand; delete it, or send its function messages"
            )


def _assign_fields(kind: Fields, cell: Any, value: Any) -> None:
    names = ", ".join(kind.kinds)
    if not isinstance(value, dict):
        raise PayloadError(f"allowed: an object with some of {names}")
    for name, each in value.items():
        if name not in kind.kinds:
            raise PayloadError(f"there is no field {name!r}; allowed: {names}")
        try:
            _assign(kind.kinds[name], getattr(cell, name), each)
        except (StateTypeError, EncodeError, PayloadError) as error:
            raise PayloadError(f"field {name}: {error}") from None


def _typed(of: Any, value: Any) -> Any:
    return codec_for(of).decode(msgspec.msgpack.encode(value))


def _map_key(of: Any, key: Any) -> Any:
    """Return a key of the declared type; in JSON, keys of an object are always texts."""
    try:
        return _typed(of, key)
    except PayloadError:
        if not isinstance(key, str):
            raise
        try:
            return _typed(of, json.loads(key))
        except ValueError:
            pass
        raise


def _pairs(value: Any) -> Iterable[tuple[Any, Any]]:
    match value:
        case dict():
            return value.items()
        case list() if all(isinstance(each, list) and len(each) == 2 for each in value):
            return [(key, each) for key, each in value]
        case _:
            raise PayloadError("allowed: an object, or an array of [key, value]")


def _array(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise PayloadError("allowed: an array")
    return value
