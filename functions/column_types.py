"""What a handler of columns gets: the Arrow schema of its declared message type.

A declared type gives one schema, whoever sends: columns of other types for the same values are cast
to it, ordinary messages are checked by the type and then put into columns. So what a type promises
has to be what a schema can promise, and a type that says more is refused where it is declared. A
handler that declares nothing gets the columns as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any

import msgspec
import msgspec.inspect as types
import pyarrow as pa
from pyarrow import types as arrow

from sublet.functions.codec import Codec, type_name
from sublet.functions.columns import (
    BARE_NAME,
    Columns,
    concatenated,
    decode_columns,
    is_list,
    is_text,
    parts_of,
)
from sublet.functions.errors import PayloadError

ALLOWED = (
    "Any, or a dataclass, TypedDict or Struct whose fields are bool, int, float, str, bytes, "
    "datetime, date, time, timedelta, lists, dicts with keys of text, or such types, each perhaps "
    "None; or one of those alone"
)

_LEAVES: tuple[tuple[types.Type, pa.DataType], ...] = (
    (types.BoolType(), pa.bool_()),
    (types.IntType(), pa.int64()),
    (types.FloatType(), pa.float64()),
    (types.StrType(), pa.string()),
    (types.BytesType(), pa.binary()),
    (types.DateTimeType(), pa.timestamp("us", "UTC")),
    (types.DateTimeType(tz=True), pa.timestamp("us", "UTC")),
    (types.DateTimeType(tz=False), pa.timestamp("us")),
    (types.DateType(), pa.date32()),
    (types.TimeType(), pa.time64("us")),
    (types.TimeDeltaType(), pa.duration("us")),
)


_PLAIN = (bool, int, float, str, bytes, datetime, date, time, timedelta)


class ColumnType:
    """The columns of one message type."""

    def __init__(self, codec: Codec[Any]) -> None:
        """`TypeError` if columns cannot promise what the type does."""
        self._codec = codec
        self.schema: pa.Schema | None = None
        """None: as they come."""
        self.bare = False
        """A message is the value in the only column."""
        self._optional: dict[str, types.Field] = {}
        if isinstance(codec.info, types.AnyType):
            return
        try:
            fields = _fields(codec.info)
            self.bare = fields is None
            if fields is None:
                if isinstance(codec.info, types.DictType):
                    raise _NoColumnError("its names are not known")
                self.schema = pa.schema([_field(BARE_NAME, codec.info)])
            else:
                self.schema = pa.schema(fields)
                parts = codec.info.fields  # type: ignore[attr-defined]
                self._optional = {each.encode_name: each for each in parts if not each.required}
        except _NoColumnError as error:
            raise TypeError(
                f"{type_name(codec.type)} cannot be columns: {error}; allowed: {ALLOWED}"
            ) from None

    def check(self, column: bytes | msgspec.Raw) -> None:
        """Raise `PayloadError` unless a column of Arrow is sound and has what the handler takes."""
        self.fit(decode_columns(column))

    def fit(self, columns: Columns) -> pa.RecordBatch:
        """Return columns as the schema has them; `PayloadError` says which are not like that."""
        batch, bare = columns
        if self.schema is None:
            return batch
        if bare != self.bare:
            has = "single values" if bare else "maps"
            raise PayloadError(f"{has} do not fit {type_name(self._codec.type)}")
        try:
            return pa.RecordBatch.from_arrays(
                [self._fitted(batch, field) for field in self.schema], schema=self.schema
            )
        except pa.ArrowException as error:
            raise PayloadError(f"columns that do not fit: {error!s:.500}") from error

    def _fitted(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        place = batch.schema.get_field_index(field.name)
        if place < 0:
            if field.name not in self._optional:
                raise PayloadError(f"there is no column {field.name!r}")
            default = self._default(field.name)
            if default is None:
                # Not made of a Python value: the first of those loads pandas, where there is one.
                return pa.nulls(batch.num_rows, field.type)
            return pa.repeat(pa.scalar(default, field.type), batch.num_rows)
        column = batch.column(place)
        if not _is_like(column.type, field.type):
            raise PayloadError(
                f"column {field.name!r} has the type {column.type}; the handler takes {field.type}"
            )
        _check_nulls(field.name, column, field)
        return _as(column, field.type)

    def _default(self, name: str) -> Any:
        """Return what a message has in a field that it does not name."""
        field = self._optional[name]
        value = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            value = field.default_factory()
        return None if value is msgspec.NODEFAULT else _plain(value)

    def of_messages(self, messages: Sequence[Any]) -> pa.RecordBatch:
        """Return decoded messages as columns; `PayloadError` if they cannot be."""
        try:
            rows = _plain(messages)
            if self.schema is None:
                return _inferred(rows)
            columns = [self._gathered(rows, field) for field in self.schema]
            return pa.RecordBatch.from_arrays(columns, schema=self.schema)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise PayloadError(f"messages that cannot be columns: {error!s:.500}") from error

    def _gathered(self, rows: list[Any], field: pa.Field) -> pa.Array:
        if self.bare:
            values = rows
        elif field.name in self._optional:
            default = self._default(field.name)
            values = [row.get(field.name, default) for row in rows]
        else:
            values = [row[field.name] for row in rows]
        return pa.array(values, field.type)


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of all as one record batch; `PayloadError` if no schema has room for all."""
    try:
        return concatenated(batches)
    except (pa.ArrowException, TypeError) as error:
        raise PayloadError(f"messages with columns of different types: {error!s:.500}") from error


def _plain(value: Any) -> Any:
    """Return a value without types of our own: what Arrow makes columns of."""
    return msgspec.to_builtins(value, builtin_types=_PLAIN)


def _inferred(rows: list[Any]) -> pa.RecordBatch:
    """Return as columns what nothing is known of: maps, or all else as single values."""
    if not all(isinstance(row, dict) for row in rows):
        return pa.RecordBatch.from_pydict({BARE_NAME: rows})
    names = dict.fromkeys(name for row in rows for name in row)
    columns = [pa.array([row.get(name) for row in rows]) for name in names]
    fields = [pa.field(str(name), each.type) for name, each in zip(names, columns, strict=True)]
    if not columns:
        # Arrow counts rows by columns.
        return pa.RecordBatch.from_struct_array(pa.array(rows, pa.struct([])))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


# From declared types to Arrow's


class _NoColumnError(Exception):
    """A part of a type has no column."""


def _fields(info: types.Type) -> list[pa.Field] | None:
    """Return the fields of a type whose values are maps with known names; None for others."""
    if not isinstance(info, types.StructType | types.DataclassType | types.TypedDictType):
        return None
    if isinstance(info, types.StructType) and (info.array_like or info.tag is not None):
        raise _NoColumnError(f"{info.cls.__name__} is array_like or tagged")
    if hasattr(info.cls, "__post_init__"):
        raise _NoColumnError(f"{info.cls.__name__} has a __post_init__, which no column runs")
    names = [each.encode_name for each in info.fields]
    if not names:
        raise _NoColumnError(f"{info.cls.__name__} has no fields")
    typed = isinstance(info, types.TypedDictType)
    return [
        _field(each.encode_name, each.type, absent=typed and not each.required)
        for each in info.fields
    ]


def _field(name: str, info: types.Type, *, absent: bool = False) -> pa.Field:
    """Return a field; `absent`: a message may lack it, which is null."""
    nullable = absent
    if isinstance(info, types.UnionType):
        parts = [each for each in info.types if not isinstance(each, types.NoneType)]
        if len(parts) != 1 or len(parts) == len(info.types):
            raise _NoColumnError(f"{name} may be of several types")
        nullable, info = True, parts[0]
    return pa.field(name, _kind(name, info), nullable)


def _kind(name: str, info: types.Type) -> pa.DataType:
    for plain, kind in _LEAVES:
        if info == plain:
            return kind
    match info:
        case types.ListType() | types.VarTupleType() if info.min_length is info.max_length is None:
            return pa.list_(_field(f"{name}[…]", info.item_type).with_name("item"))
        case types.DictType() if info.key_type == types.StrType() and (
            info.min_length is info.max_length is None
        ):
            return pa.map_(pa.string(), _field(f"{name}[…]", info.value_type).with_name("value"))
    if (fields := _fields(info)) is not None:
        return pa.struct(fields)
    raise _NoColumnError(f"{name} is {type(info).__name__.removesuffix('Type')}, or has conditions")


# From columns that came to those that were declared

_FAMILIES: tuple[Callable[[pa.DataType], bool], ...] = (
    arrow.is_boolean,
    arrow.is_integer,
    is_text,
    lambda kind: arrow.is_binary(kind) or arrow.is_large_binary(kind),
    arrow.is_date,
    arrow.is_time,
    arrow.is_duration,
)


def _is_like(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Tell whether values of a type are what is wanted, perhaps written in another way."""
    if kind == wanted or arrow.is_null(kind):
        return True
    if arrow.is_timestamp(wanted):
        return arrow.is_timestamp(kind) and (kind.tz is None) == (wanted.tz is None)
    if arrow.is_floating(wanted):
        return bool(arrow.is_floating(kind) or arrow.is_integer(kind))
    if arrow.is_struct(wanted):
        if not arrow.is_struct(kind):
            return False
        found = {each.name: each.type for each in parts_of(kind)}
        return all(
            _is_like(found[each.name], each.type) if each.name in found else each.nullable
            for each in parts_of(wanted)
        )
    if is_list(wanted) and is_list(kind):
        return _is_like(kind.value_type, wanted.value_type)
    if arrow.is_map(wanted) and arrow.is_map(kind):
        return _is_like(kind.key_type, wanted.key_type) and _is_like(
            kind.item_type, wanted.item_type
        )
    return any(is_kind(kind) and is_kind(wanted) for is_kind in _FAMILIES)


def _as(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    if column.type == wanted:
        return column
    if not arrow.is_struct(wanted) or arrow.is_null(column.type):
        return column.cast(wanted)
    known = {each.name: place for place, each in enumerate(parts_of(column.type))}
    parts = [
        _as(column.field(known[each.name]), each.type)
        if each.name in known
        else pa.nulls(len(column), each.type)
        for each in parts_of(wanted)
    ]
    return pa.StructArray.from_arrays(parts, fields=parts_of(wanted), mask=column.is_null())


def _check_nulls(name: str, column: pa.Array, field: pa.Field) -> None:
    if column.null_count and not field.nullable:
        raise PayloadError(
            f"column {name!r} is null in {column.null_count} of {len(column)} rows; allowed: a "
            "value in every row"
        )
    wanted = {each.name: each for each in parts_of(field.type)}
    if not wanted or arrow.is_null(column.type):
        return
    present = column.drop_null()
    if is_list(column.type):
        _check_nulls(f"{name}[…]", present.flatten(), field.type.value_field)
    elif arrow.is_map(column.type):
        _check_nulls(f"{name}[…]", present.items, field.type.item_field)
    else:
        for place, part in enumerate(parts_of(column.type)):
            if part.name in wanted:
                _check_nulls(f"{name}.{part.name}", present.field(place), wanted[part.name])
