"""Rows of Arrow tables as messages: which partition each goes to, and what its handler gets.

Pure: tables in, columns of keys and payloads out; no Spark, no network. Rows that cannot be
messages are refused before the first one is sent; the error names the column and what is allowed.

A key is the text of one column, or of several joined by ":". Only the last of several may contain a
":": otherwise different values would have the same key. `partition_expression` finds the partition
of a key in Spark, so that all rows of a partition can go to one task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as arrow

from sublet.functions.address import SLOT_COUNT, partition_index_of
from sublet.functions.codec import codec_for
from sublet.functions.columns import (
    Columns,
    is_text,
    message_values,
    normal_columns,
    normal_type,
    slice_columns,
)
from sublet.functions.key_column import KeyColumn
from sublet.spark_bridge.fitting import (
    NoNulls,
    RowsError,
    Schema,
    check_nulls,
    check_type,
    misfit,
    no_nulls,
)

KEY_SEPARATOR = ":"
"""Between the columns of a key."""
KEYS_CACHED_MAX = 100_000

_any = codec_for(Any)


class Rows(NamedTuple):
    """Messages for one partition, in the order of their rows."""

    partition: int
    keys: Sequence[str]
    payloads: bytes
    """A column, one item a row: a msgpack array, or one of Arrow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which columns are the key, and what becomes the payload. Made by `layout_of`."""

    schema: pa.Schema
    key: tuple[str, ...]
    fields: tuple[str, ...]
    """The columns of the payload."""
    bare: bool
    """The payload is the value of the only field, not a map."""
    columns: bool = False
    """Payloads go as columns of Arrow, as they are; otherwise as one value a row."""
    no_nulls: tuple[NoNulls, ...] = ()
    """Where rows are looked at for nulls. Of columns of Arrow, workers do that themselves."""


def layout_of(
    schema: pa.Schema,
    *,
    key: Sequence[str],
    payload: str = "",
    message: Mapping[str, Any] | None = None,
) -> Layout:
    """Return how rows of a schema become messages; `RowsError` if they cannot.

    - `key`: the key column, or several.
    - `payload`: the one column that a handler gets, as it is. Without it, a handler gets a map of
      all columns; key columns are included only if its type has fields for them.
    - `message`: what the handler takes, as JSON Schema; None: anything. If it takes columns of
      Arrow, rows go as such.
    """
    _check_key(schema, key)
    if payload:
        _field(schema, payload, "payload")
        fields: tuple[str, ...] = (payload,)
    else:
        wanted = _fields_of(message)
        fields = tuple(
            each for each in schema.names if each not in key or (wanted and each in wanted)
        )
        if wanted is not None:
            _check_names(schema, fields, wanted, message or {})
    for name in fields:
        check_type(name, schema.field(name).type)
    if message is None:
        return Layout(schema=schema, key=tuple(key), fields=fields, bare=bool(payload))
    root = Schema(message)
    if not payload and not root.takes("object"):
        raise RowsError(
            f"the handler takes {root.told}, not a map of columns; name one with the option payload"
        )
    parts = {name: root if payload else root.field(name) for name in fields}
    for name, part in parts.items():
        if text := misfit(name, schema.field(name).type, part):
            raise RowsError(text)
    columns = (
        root.is_of_columns
        and bool(fields)
        and all(_is_normal(schema.field(name).type) for name in fields)
    )
    found = [no_nulls(name, schema.field(name).type, part) for name, part in parts.items()]
    return Layout(
        schema=schema,
        key=tuple(key),
        fields=fields,
        bare=bool(payload),
        columns=columns,
        no_nulls=() if columns else tuple(each for each in found if each is not None),
    )


def _is_normal(kind: pa.DataType) -> bool:
    """Tell whether Arrow itself can make of a column what travels."""
    normal = normal_type(kind)
    if normal is None:
        return False
    try:
        pa.nulls(0, kind).cast(normal)
    except pa.ArrowException:
        return False
    return True


def partition_expression(key: Sequence[str], partition_count: int) -> str:
    """Return a Spark SQL expression for the partition of a row."""
    columns = ["cast(`" + each.replace("`", "``") + "` as string)" for each in key]
    text = (
        columns[0] if len(columns) == 1 else f"concat_ws('{KEY_SEPARATOR}', {', '.join(columns)})"
    )
    return f"pmod(xxhash64({text}), {SLOT_COUNT}) * {partition_count} div {SLOT_COUNT}"


class RowSplitter:
    """Turns record batches of one layout into messages, by partition."""

    def __init__(self, layout: Layout, partition_count: int) -> None:
        self._layout = layout
        self._partition_count = partition_count
        self._partition_of: dict[str, int] = {}

    def split(self, batch: pa.RecordBatch) -> list[Rows]:
        """Return the rows as messages; those of one partition keep their order."""
        if not batch.num_rows:
            return []
        key_column = self._key_column(batch)
        for each in self._layout.no_nulls:
            check_nulls(batch.column(each.path), each)
        keys: list[str] = key_column.dictionary.to_pylist()
        places = self._partitions(keys)
        # No loop over rows: lookups happen once for each key.
        indexes = key_column.indices
        partitions = pa.array(places, pa.int32())
        fields = batch.select(list(self._layout.fields))
        if pc.count_distinct(partitions).as_py() == 1:
            runs = [(places[0], batch.num_rows)]
        else:
            partitions = partitions.take(indexes)
            order = pc.sort_indices(partitions)
            indexes, fields = indexes.take(order), _taken(fields, order)
            runs = _runs(partitions)
        encode = self._encoder(fields)
        found: list[Rows] = []
        start = 0
        for partition, count in runs:
            stop = start + count
            some = _key_column(keys, indexes.slice(start, count))
            found.append(Rows(partition, some, encode(start, stop)))
            start = stop
        return found

    def _key_column(self, batch: pa.RecordBatch) -> pa.DictionaryArray:
        """Return the keys of all rows, each distinct one once, as text."""
        columns: list[pa.Array] = []
        for name in self._layout.key:
            column = batch.column(name)
            if column.null_count:
                raise RowsError(
                    f"key column {name!r} is null in {column.null_count} of {batch.num_rows} rows; "
                    "every row needs a key"
                )
            columns.append(column)
        if len(columns) == 1 and columns[0].type != pa.string_view():
            found = columns[0].dictionary_encode()
            if is_text(found.type.value_type):
                return found
            texts = found.dictionary.cast(pa.string())
            return pa.DictionaryArray.from_arrays(found.indices, texts)
        texts = [column.cast(pa.large_string()) for column in columns]
        if len(texts) == 1:
            return texts[0].dictionary_encode()
        for name, text in zip(self._layout.key[:-1], texts, strict=False):
            _check_separator(name, text)
        separator = pa.scalar(KEY_SEPARATOR, pa.large_string())
        return pc.binary_join_element_wise(*texts, separator).dictionary_encode()

    def _partitions(self, keys: Sequence[str]) -> list[int]:
        known, count = self._partition_of, self._partition_count
        if len(known) > KEYS_CACHED_MAX:
            known.clear()
        for key in keys:
            if key not in known:
                known[key] = partition_index_of(key, count)
        return [known[key] for key in keys]

    def _encoder(self, fields: pa.RecordBatch) -> Callable[[int, int], bytes]:
        """Return a function that encodes the payloads of a range of rows."""
        bare = self._layout.bare
        try:
            if self._layout.columns:
                columns = normal_columns(fields, bare=bare)
                return lambda start, stop: slice_columns(columns, start, stop)
            values = message_values(Columns(fields, bare))
        except (pa.ArrowException, ValueError, OverflowError, TypeError) as error:
            raise RowsError(f"the rows cannot be encoded as messages: {error}") from error
        return lambda start, stop: _any.encode_column(values[start:stop])


def _check_separator(name: str, text: pa.Array) -> None:
    count = pc.match_substring(text, KEY_SEPARATOR).true_count
    if count:
        raise RowsError(
            f"key column {name!r} contains {KEY_SEPARATOR!r}, which separates key columns, in "
            f"{count} of {len(text)} rows, so different rows could get the same key; put the "
            "column last, or use one key column"
        )


def _taken(fields: pa.RecordBatch, order: pa.Array) -> pa.RecordBatch:
    # Without columns, a record batch forgets how many rows it has.
    return fields.take(order) if fields.num_columns else fields


def _key_column(keys: list[str], indexes: pa.Array) -> KeyColumn:
    """Return the keys of some rows, given by their places among the keys of all rows."""
    own = indexes.dictionary_encode()
    places = own.indices.cast(pa.int32()).buffers()[1]
    distinct = [keys[place] for place in own.dictionary.to_pylist()]
    return KeyColumn(distinct, bytes(places)[: 4 * len(indexes)])


def _runs(partitions: pa.Array) -> list[tuple[int, int]]:
    """Return each partition with the number of its rows, by partition."""
    counted = pc.value_counts(partitions)
    pairs = zip(counted.field(0).to_pylist(), counted.field(1).to_pylist(), strict=True)
    return sorted(pairs)


def _fields_of(message: Mapping[str, Any] | None) -> dict[str, bool] | None:
    """Return the fields that a handler's type names, with whether each is required."""
    if message is None:
        return None
    objects = Schema(message).objects()
    if not objects:
        return None
    return {
        name: all(name in each.get("required", ()) for each in objects)
        for each in objects
        for name in each["properties"]
    }


def _field(schema: pa.Schema, name: str, what: str) -> pa.Field:
    index = schema.get_field_index(name)
    if index < 0:
        known = ", ".join(schema.names) or "none"
        raise RowsError(
            f"option {what} names the column {name!r}, which is missing or ambiguous; columns: "
            f"{known}"
        )
    return schema.field(index)


def _check_key(schema: pa.Schema, key: Sequence[str]) -> None:
    if not key:
        raise RowsError("option key names no column; name one or several")
    for name in key:
        kind = _field(schema, name, "key").type
        if not (is_text(kind) or arrow.is_integer(kind)):
            raise RowsError(
                f"key column {name!r} has type {kind}; allowed: strings and integers (cast it)"
            )


def _check_names(
    schema: pa.Schema, fields: Sequence[str], wanted: Mapping[str, bool], message: Mapping[str, Any]
) -> None:
    missing = [name for name, required in wanted.items() if required and name not in schema.names]
    unknown = [name for name in fields if name not in wanted]
    title = Schema(message).title
    if missing:
        raise RowsError(
            f"the handler takes {title}, but there is no column {', '.join(missing)}; columns: "
            f"{', '.join(schema.names)}"
        )
    if unknown and not any(_is_open(each) for each in Schema(message).objects()):
        raise RowsError(
            f"the handler takes {title}, which has no field {', '.join(unknown)}; allowed columns: "
            f"{', '.join(wanted)} (drop or rename the others)"
        )


def _is_open(node: Mapping[str, Any]) -> bool:
    return node.get("additionalProperties", False) is not False
