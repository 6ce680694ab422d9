"""Columns of msgpack values as Arrow arrays, of the types that a user asks for.

Pure. What does not fit is refused with its place: whoever reads knows what stands there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, TypedDict

import msgspec
import pyarrow as pa
from pyarrow import types as arrow

from sublet.spark_bridge.rows import RowsError

_PATH = re.compile(r" - at `\$\[(\d+)\]\.?([^`]*)`$")
_NOT_JSON = (msgspec.MsgspecError, RecursionError, TypeError, ValueError)
_split = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode = msgspec.msgpack.Decoder().decode
_json_encode = msgspec.json.Encoder().encode

ArraysOf = Callable[[Sequence[bytes]], dict[str, pa.Array]]
"""Takes msgpack arrays, one item a row; returns columns by name, in the same order."""


class Unfit(Exception):  # noqa: N818 - never seen outside
    """The value at an index, counted over all columns, cannot be a row."""

    def __init__(self, index: int, column: str, detail: str) -> None:
        super().__init__(index, column, detail)
        self.index = index
        self.column = column
        self.detail = detail


def binary_column(name: str, columns: Sequence[bytes]) -> pa.Array:
    """Return the values as they are, as msgpack."""
    return pa.array([bytes(each) for column in columns for each in _split(column)], pa.binary())


def json_column(name: str, columns: Sequence[bytes]) -> pa.Array:
    """Return the values as JSON; `Unfit` if one has no form in it."""
    texts: list[bytes] = []
    for column in columns:
        try:
            texts += [_json_encode(each) for each in _decode(column)]
        except _NOT_JSON:
            texts += _json_one_by_one(name, column, len(texts))
    return pa.array(texts, pa.string())


def _json_one_by_one(name: str, column: bytes, before: int) -> list[bytes]:
    """Find out which value it is that JSON cannot hold."""
    texts: list[bytes] = []
    for item in _split(column):
        try:
            texts.append(_json_encode(_decode(item)))
        except _NOT_JSON as error:
            detail = f"JSON cannot hold it ({error}); read it with the option {name}=binary"
            raise Unfit(before + len(texts), name, detail) from None
    return texts


def fields_reader(fields: Sequence[pa.Field]) -> ArraysOf:
    """Return what reads values that are objects: a column for each of these fields of theirs."""
    names = [each.name for each in fields]
    if len(set(names)) != len(names):
        raise RowsError(f"columns have the same name: {', '.join(sorted(names))}")
    columns = [f"c{index}" for index in range(len(fields))]
    row = msgspec.defstruct(
        "Row",
        [
            (column, _type_of(field), *(() if not field.nullable else (None,)))
            for column, field in zip(columns, fields, strict=True)
        ],
        rename=dict(zip(columns, names, strict=True)),
        kw_only=True,
        gc=False,
    )
    decode = msgspec.msgpack.Decoder(_of(list, row)).decode

    def read(found: Sequence[bytes]) -> dict[str, pa.Array]:
        rows = _decoded(found, decode)
        return {
            field.name: _array([getattr(each, column) for each in rows], field)
            for column, field in zip(columns, fields, strict=True)
        }

    return read


def whole_reader(field: pa.Field) -> ArraysOf:
    """Return what reads values as they are into one column."""
    decode = msgspec.msgpack.Decoder(_of(list, _type_of(field))).decode
    return lambda found: {field.name: _array(_decoded(found, decode), field)}


def _decoded(found: Sequence[bytes], decode: Callable[[bytes], list[Any]]) -> list[Any]:
    rows: list[Any] = []
    for column in found:
        try:
            rows += decode(column)
        except (msgspec.ValidationError, RecursionError) as error:
            text = str(error)
            place = _PATH.search(text)
            index = int(place[1]) if place else 0
            raise Unfit(len(rows) + index, place[2] if place else "", _PATH.sub("", text)) from None
    return rows


def _array(values: list[Any], field: pa.Field) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        # Of right types, and yet nothing that the column can hold: find out which one.
        for index, value in enumerate(values):
            try:
                pa.array([value], field.type)
            except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                raise Unfit(
                    index, field.name, f"{value!r:.100} is no {field.type} ({error})"
                ) from None
        raise


def _type_of(field: pa.Field) -> Any:
    """Return the type as which msgspec decodes, and checks, a column's values."""
    found = _value_type(field.name, field.type)
    return found | None if field.nullable else found


def _of(container: Any, *parts: Any) -> Any:
    """Return `container[parts]`, of types that are known at run time only."""
    return container[parts if len(parts) > 1 else parts[0]]


_ALLOWED = (
    "boolean, integers, floats, strings, binary, date, timestamp, time, interval of days, decimal, "
    "and arrays, structs and maps of them"
)
_SIMPLE: tuple[tuple[Callable[[Any], bool], Any], ...] = (
    (arrow.is_boolean, bool),
    (arrow.is_floating, float),
    (lambda kind: arrow.is_string(kind) or arrow.is_large_string(kind), str),
    (lambda kind: arrow.is_binary(kind) or arrow.is_large_binary(kind), bytes),
    (arrow.is_date, date),
    (arrow.is_time, time),
    (arrow.is_duration, timedelta),
    (arrow.is_decimal, Decimal),
    (arrow.is_null, type(None)),
)


def _value_type(path: str, kind: pa.DataType) -> Any:
    if arrow.is_integer(kind):
        most = 2 ** (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-most, le=most - 1)]
    if arrow.is_timestamp(kind):
        return Annotated[datetime, msgspec.Meta(tz=kind.tz is not None)]
    if arrow.is_map(kind):
        key = _value_type(f"{path}.key", kind.key_type)
        item = _value_type(f"{path}.value", kind.item_type)
        return _of(dict, key, item | None)
    if arrow.is_list(kind) or arrow.is_large_list(kind):
        return _of(list, _value_type(f"{path}.element", kind.value_type) | None)
    if arrow.is_struct(kind):
        parts = [kind.field(index) for index in range(kind.num_fields)]
        types = {part.name: _value_type(f"{path}.{part.name}", part.type) | None for part in parts}
        return TypedDict(f"Struct_{len(parts)}", types, total=False)  # type: ignore[operator]
    for is_kind, found in _SIMPLE:
        if is_kind(kind):
            return found
    raise RowsError(f"column {path!r} has the type {kind}; allowed: {_ALLOWED}")
