"""Columns of msgpack values as Arrow arrays of the types that a user asks for.

Pure. A value that does not fit raises `Unfit` with its index; the caller knows where that is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite, isinf
from typing import Annotated, Any, Required, TypedDict

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import types as arrow

from sublet.spark_bridge.fitting import RowsError

_PATH = re.compile(r" - at `\$\[(\d+)\]\.?([^`]*)`$")
_NOT_JSON = (msgspec.MsgspecError, RecursionError, TypeError, ValueError)
_split = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode = msgspec.msgpack.Decoder().decode
_names_in = msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode
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
    """Return the values as JSON; `Unfit` if one has no JSON form."""
    texts: list[bytes] = []
    for column in columns:
        try:
            texts += [_json_of(each) for each in _decode(column)]
        except _NOT_JSON:
            texts += _json_one_by_one(name, column, len(texts))
    return pa.array(texts, pa.string())


def _json_of(value: Any) -> bytes:
    text = _json_encode(value)
    # The encoder writes NaN and infinity as null, so only values with a null need a look.
    if b"null" in text and _has_no_number(value):
        raise ValueError("it contains NaN or infinity")
    return text


def _has_no_number(value: Any) -> bool:
    """Tell whether a value contains a float that JSON has no number for."""
    if isinstance(value, float):
        return not isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_no_number, value.values()))
    return isinstance(value, list) and any(map(_has_no_number, value))


def _json_one_by_one(name: str, column: bytes, before: int) -> list[bytes]:
    """Find out which value has no JSON form."""
    texts: list[bytes] = []
    for item in _split(column):
        try:
            texts.append(_json_of(_decode(item)))
        except _NOT_JSON as error:
            detail = f"it has no JSON form ({error}); read it with the option {name}=binary"
            raise Unfit(before + len(texts), name, detail) from None
    return texts


def fields_reader(fields: Sequence[pa.Field]) -> ArraysOf:
    """Return what reads objects into a column for each of these fields."""
    names = [each.name for each in fields]
    if len(set(names)) != len(names):
        raise RowsError(f"duplicate columns: {', '.join(sorted(names))}")
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
        arrays = {
            field.name: _array([getattr(each, column) for each in rows], field)
            for column, field in zip(columns, fields, strict=True)
        }
        empty = [name for name, array in arrays.items() if array.null_count == len(array)]
        if empty:
            _check_case(empty, found)
        return arrays

    return read


def _check_case(names: Sequence[str], found: Sequence[bytes]) -> None:
    """Refuse columns that are empty because the values spell them in another case.

    Spark ignores case, so nobody would suspect it. The first value of each part is enough: a name
    is spelled the same way in all of them.
    """
    before = 0
    for column in found:
        items = _split(column)
        with suppress(msgspec.ValidationError):
            known = _names_in(items[0]) if items else {}
            folded = {name.lower(): name for name in known}
            for name in names:
                other = folded.get(name.lower())
                if other is not None and name not in known:
                    raise Unfit(before, name, f"the field is spelled {other!r}; use the same case")
        before += len(items)


def whole_reader(field: pa.Field) -> ArraysOf:
    """Return what reads whole values into one column."""
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
        array = pa.array(values, field.type)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        # A value has the right type, but does not fit the column: find out which one.
        for index, value in enumerate(values):
            try:
                pa.array([value], field.type)
            except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                raise Unfit(
                    index, field.name, f"{value!r:.100} does not fit {field.type} ({error})"
                ) from None
        raise
    if arrow.is_float32(field.type):
        _check_floats(values, array, field)
    return array


def _check_floats(values: Sequence[float | None], array: pa.Array, field: pa.Field) -> None:
    """Refuse what is too large for 32 bits; Arrow would turn it into infinity."""
    for place in np.flatnonzero(np.isinf(array.to_numpy(zero_copy_only=False))):
        index = int(place)
        value = values[index]
        if value is not None and not isinf(value):
            raise Unfit(index, field.name, f"{value!r} is too large for {field.type}")


def _type_of(field: pa.Field, within: str = "") -> Any:
    """Return the type as which msgspec decodes and checks the values of a column or a part."""
    found = _value_type(f"{within}.{field.name}" if within else field.name, field.type)
    return found | None if field.nullable else found


def _of(container: Any, *parts: Any) -> Any:
    """Return `container[parts]` for types that are known at run time only."""
    return container[parts if len(parts) > 1 else parts[0]]


ALLOWED = (
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
        return _of(dict, key, _type_of(kind.item_field, path))
    if arrow.is_list(kind) or arrow.is_large_list(kind):
        return _of(list, _type_of(kind.value_field, path))
    if arrow.is_struct(kind):
        parts: dict[str, Any] = {}
        for part in [kind.field(index) for index in range(kind.num_fields)]:
            found = _type_of(part, path)
            parts[part.name] = found if part.nullable else _of(Required, found)
        return TypedDict(f"Struct_{len(parts)}", parts, total=False)  # type: ignore[operator]
    for is_kind, found in _SIMPLE:
        if is_kind(kind):
            return found
    raise RowsError(f"column {path!r} has type {kind}; allowed: {ALLOWED}")
