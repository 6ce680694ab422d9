"""Values of an egress as Arrow record batches: the counterpart of `rows`.

Pure: columns of msgpack in, record batches out. A schema either has the columns of `WHOLE`, with
the payload as JSON or msgpack, or is one of the user's own: its columns are fields of the payload,
and what is known beside the payload is in columns whose names begin with "_". What does not fit is
refused with the column, the partition and the position.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import types as arrow

from sublet.functions.address import split_partition_name
from sublet.functions.errors import PayloadError
from sublet.runtime.unary import EgressValues
from sublet.spark_bridge.rows import RowsError

PAYLOAD = "payload"
"""The column that gets the whole payload."""
BESIDE = {
    "key": "string",
    "function": "string",
    "partition": "int",
    "position": "bigint",
    "at": "timestamp",
}
"""What is known of a value beside its payload, with its type in Spark."""
WHOLE = ("key", PAYLOAD, "function", "partition", "position", "at")
Form = Literal["json", "binary", "typed"]

_ARROW_OF = {
    "string": arrow.is_string,
    "int": arrow.is_int32,
    "bigint": arrow.is_int64,
    "timestamp": lambda kind: arrow.is_timestamp(kind) and kind.tz is not None,
}
_PATH = re.compile(r" - at `\$\[(\d+)\]\.?([^`]*)`$")


def whole_schema(form: Form) -> str:
    """Return the schema of a reader that was told no other one, as Spark writes it."""
    kinds = {**BESIDE, PAYLOAD: "binary" if form == "binary" else "string"}
    return ", ".join(f"{name} {kinds[name].upper()}" for name in WHOLE)


class EmittedRows:
    """Turns values of an egress into record batches of one schema."""

    def __init__(self, egress: str, schema: pa.Schema, form: Form) -> None:
        """`RowsError` if no payload can fit the schema.

        With the form "typed" the columns of the schema are fields of the payload, or, if `payload`
        is the only one, that is the payload itself.
        """
        self._egress = egress
        self._schema = schema
        self._beside: dict[str, str] = {}
        """Columns that are not of the payload, with what they hold."""
        fields: list[pa.Field] = []
        prefix = "" if tuple(schema.names) == WHOLE else "_"
        for field in schema:
            what = field.name.removeprefix(prefix)
            if what in BESIDE and field.name == prefix + what:
                _check_beside(field, BESIDE[what])
                self._beside[field.name] = what
            else:
                fields.append(field)
        self._payload_of = _payload_reader(fields, form)

    def record_batch(self, found: Sequence[EgressValues]) -> pa.RecordBatch:
        """Return all values as rows, in their order; `PayloadError` if one does not fit."""
        columns: dict[str, pa.Array] = {}
        try:
            columns.update(self._payload_of(found))
        except _Unfit as unfit:
            raise self._refusal(found, unfit) from None
        for name, what in self._beside.items():
            columns[name] = _BESIDE_COLUMNS[what](found)
        return pa.RecordBatch.from_arrays(
            [columns[field.name] for field in self._schema], schema=self._schema
        )

    def _refusal(self, found: Sequence[EgressValues], unfit: _Unfit) -> PayloadError:
        index = unfit.index
        for values in found:
            if index < values.count:
                break
            index -= values.count
        where = f"position {values.first + index} of {values.partition}, key {values.keys[index]!r}"
        column = f"column {unfit.column!r}: " if unfit.column else ""
        return PayloadError(
            f"a value of the egress {self._egress} does not fit the schema ({where}): {column}"
            f"{unfit.detail}; change the schema, or read payloads as they are, without one"
        )


class _Unfit(Exception):  # noqa: N818 - never seen outside
    """The value at an index, counted over all columns, cannot be a row."""

    def __init__(self, index: int, column: str, detail: str) -> None:
        super().__init__(index, column, detail)
        self.index = index
        self.column = column
        self.detail = detail


PayloadColumns = Callable[[Sequence[EgressValues]], dict[str, pa.Array]]


def _payload_reader(fields: Sequence[pa.Field], form: Form) -> PayloadColumns:
    if form == "typed":
        return _typed_reader(fields)
    wanted = pa.binary() if form == "binary" else pa.string()
    if [(each.name, each.type) for each in fields] != [(PAYLOAD, wanted)]:
        listed = ", ".join(f"{each.name} {each.type}" for each in fields) or "none"
        beside = ", ".join(f"_{name}" for name in BESIDE)
        raise RowsError(
            f"with the option payload={form}, the schema has the column {PAYLOAD} {wanted}, beside "
            f"{beside}; it has {listed}"
        )
    return _binary_columns if form == "binary" else _json_columns


def _binary_columns(found: Sequence[EgressValues]) -> dict[str, pa.Array]:
    items = [bytes(each) for values in found for each in _split(values.values)]
    return {PAYLOAD: pa.array(items, pa.binary())}


def _json_columns(found: Sequence[EgressValues]) -> dict[str, pa.Array]:
    texts: list[bytes] = []
    for values in found:
        try:
            texts += [_json_encode(each) for each in _decode(values.values)]
        except _NOT_JSON:
            texts += _json_one_by_one(values.values, len(texts))
    return {PAYLOAD: pa.array(texts, pa.string())}


def _json_one_by_one(values: bytes, before: int) -> list[bytes]:
    """Find out which value it is that JSON cannot hold."""
    texts: list[bytes] = []
    for item in _split(values):
        try:
            texts.append(_json_encode(_decode(item)))
        except _NOT_JSON as error:
            detail = f"JSON cannot hold it ({error}); read it with the option payload=binary"
            raise _Unfit(before + len(texts), PAYLOAD, detail) from None
    return texts


_NOT_JSON = (msgspec.MsgspecError, RecursionError, TypeError, ValueError)
_split = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode = msgspec.msgpack.Decoder().decode
_json_encode = msgspec.json.Encoder().encode


def _typed_reader(fields: Sequence[pa.Field]) -> PayloadColumns:
    names = [each.name for each in fields]
    if len(set(names)) != len(names):
        raise RowsError(f"columns have the same name: {', '.join(sorted(names))}")
    if names == [PAYLOAD]:
        return _whole_reader(fields[0])
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

    def read(found: Sequence[EgressValues]) -> dict[str, pa.Array]:
        rows = _decoded(found, decode)
        return {
            field.name: _array([getattr(each, column) for each in rows], field)
            for column, field in zip(columns, fields, strict=True)
        }

    return read


def _whole_reader(field: pa.Field) -> PayloadColumns:
    decode = msgspec.msgpack.Decoder(_of(list, _type_of(field))).decode
    return lambda found: {PAYLOAD: _array(_decoded(found, decode), field)}


def _decoded(found: Sequence[EgressValues], decode: Callable[[bytes], list[Any]]) -> list[Any]:
    rows: list[Any] = []
    for values in found:
        try:
            rows += decode(values.values)
        except (msgspec.ValidationError, RecursionError) as error:
            text = str(error)
            place = _PATH.search(text)
            index = int(place[1]) if place else 0
            column = place[2] if place else ""
            raise _Unfit(len(rows) + index, column, _PATH.sub("", text)) from None
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
                raise _Unfit(
                    index, field.name, f"{value!r:.100} is no {field.type} ({error})"
                ) from None
        raise


# What is beside the payload


def _check_beside(field: pa.Field, told: str) -> None:
    if not _ARROW_OF[told](field.type):
        raise RowsError(f"column {field.name!r} is {field.type}; allowed: {told.upper()}")


def _counts(found: Sequence[EgressValues]) -> list[int]:
    return [each.count for each in found]


def _keys(found: Sequence[EgressValues]) -> pa.Array:
    return pa.array([key for each in found for key in each.keys], pa.string())


def _functions(found: Sequence[EgressValues]) -> pa.Array:
    names = [split_partition_name(each.partition)[0] for each in found]
    places = np.repeat(np.arange(len(found), dtype=np.int32), _counts(found))
    return pa.DictionaryArray.from_arrays(places, pa.array(names)).dictionary_decode()


def _partitions(found: Sequence[EgressValues]) -> pa.Array:
    indexes = [split_partition_name(each.partition)[1] for each in found]
    return pa.array(np.repeat(np.array(indexes, dtype=np.int32), _counts(found)))


def _positions(found: Sequence[EgressValues]) -> pa.Array:
    ranges = [np.arange(each.first, each.first + each.count) for each in found]
    return pa.array(np.concatenate(ranges).astype(np.int64))


def _times(found: Sequence[EgressValues]) -> pa.Array:
    at_us = np.array([each.at_ms * 1_000 for each in found], dtype=np.int64)
    return pa.array(np.repeat(at_us, _counts(found))).view(pa.timestamp("us", tz="UTC"))


_BESIDE_COLUMNS: dict[str, Callable[[Sequence[EgressValues]], pa.Array]] = {
    "key": _keys,
    "function": _functions,
    "partition": _partitions,
    "position": _positions,
    "at": _times,
}


# Types


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
