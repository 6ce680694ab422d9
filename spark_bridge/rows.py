"""Rows of Arrow tables as messages: which partition each goes to, and what its handler gets.

Pure: tables in, columns of keys and payloads out. Nothing here knows of Spark or of a network. What
cannot be a message is refused before the first row is sent, with the column's name and what is
allowed there.

A key is the text of one column, or of several with ":" between them. Spark finds the same partition
for it by `partition_expression`, so that a task can be given the rows of one partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as arrow

from sublet.functions.address import SLOT_COUNT, partition_index_of
from sublet.functions.codec import COLUMNS_MARK, codec_for
from sublet.functions.columns import (
    ALLOWED,
    Columns,
    is_text,
    message_values,
    normal_columns,
    normal_type,
    parts_of,
    slice_columns,
)
from sublet.functions.errors import RejectedError
from sublet.functions.key_column import KeyColumn

KEY_SEPARATOR = ":"
"""Between the columns of a key."""
KEYS_CACHED_MAX = 100_000

_any = codec_for(Any)


class RowsError(RejectedError):
    """Rows of this schema, or one of them, cannot be messages of the function."""


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


def layout_of(
    schema: pa.Schema,
    *,
    key: Sequence[str],
    payload: str = "",
    message: Mapping[str, Any] | None = None,
) -> Layout:
    """Return how rows of a schema become messages; `RowsError` if they cannot.

    - `key`: the column that says who handles a row, or several.
    - `payload`: the only column that a handler gets, as it is. Without it, a handler gets a map of
      all columns; those of the key are among them only if its type asks for them.
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
        _check_type(name, schema.field(name).type)
    if message is not None:
        root = Schema(message)
        for name in fields:
            part = root if payload else root.field(name)
            _check_fits(name, schema.field(name).type, part)
        if not payload and not root.takes("object"):
            text = f"the handler takes {root.told}, not a map; name the column (option payload)"
            raise RowsError(text)
    columns = (
        message is not None
        and bool(message.get(COLUMNS_MARK))
        and bool(fields)
        and all(_is_normal(schema.field(name).type) for name in fields)
    )
    return Layout(schema=schema, key=tuple(key), fields=fields, bare=bool(payload), columns=columns)


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
    """Return the expression of Spark SQL that says to which partition a row goes."""
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
        keys: list[str] = key_column.dictionary.to_pylist()
        places = self._partitions(keys)
        # No loop over rows: what is looked up is looked up once for each key.
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
                    f"column {name!r}, which is the key, is null in {column.null_count} of "
                    f"{batch.num_rows} rows; allowed: a value in every row"
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
        """Return what gives the payloads of some of the rows, in the form that was laid out."""
        bare = self._layout.bare
        try:
            if self._layout.columns:
                columns = normal_columns(fields, bare=bare)
                return lambda start, stop: slice_columns(columns, start, stop)
            values = message_values(Columns(fields, bare))
        except (pa.ArrowException, ValueError, OverflowError, TypeError) as error:
            raise RowsError(f"rows that cannot be messages: {error}") from error
        return lambda start, stop: _any.encode_column(values[start:stop])


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


# Schemas


class Schema:
    """A JSON Schema, as far as it matters which values fit it."""

    def __init__(self, root: Mapping[str, Any], node: Any = None) -> None:
        self._root = root
        self._nodes = list(self._alternatives(root if node is None else node))

    def _alternatives(self, node: Any) -> Iterable[Mapping[str, Any]]:
        if not isinstance(node, Mapping):
            yield {}
        elif "$ref" in node:
            found: Any = self._root
            for step in str(node["$ref"]).removeprefix("#/").split("/"):
                found = found[step]
            yield from self._alternatives(found)
        elif "anyOf" in node or "oneOf" in node:
            for each in node.get("anyOf") or node["oneOf"]:
                yield from self._alternatives(each)
        else:
            yield node

    @property
    def told(self) -> str:
        """What people are told that it takes."""
        kinds = [str(each.get("format") or each.get("type") or "anything") for each in self._nodes]
        return " or ".join(dict.fromkeys(each for each in kinds if each != "null")) or "null"

    @property
    def title(self) -> str:
        return next((str(each["title"]) for each in self._nodes if "title" in each), "its type")

    def takes(self, kind: str) -> bool:
        """Tell whether some value of a JSON type fits."""
        for node in self._nodes:
            allowed = node.get("type")
            allowed = [allowed] if isinstance(allowed, str) else allowed
            if allowed is None or kind in allowed or (kind == "integer" and "number" in allowed):
                return True
        return False

    def objects(self) -> list[Mapping[str, Any]]:
        return [each for each in self._nodes if "properties" in each]

    def field(self, name: str) -> Schema:
        for node in self.objects():
            if name in node["properties"]:
                return Schema(self._root, node["properties"][name])
        return Schema(self._root, {})


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
            f"there is no column {name!r} (option {what}), or several; columns: {known}"
        )
    return schema.field(index)


def _check_key(schema: pa.Schema, key: Sequence[str]) -> None:
    if not key:
        raise RowsError("no column is the key (option key); allowed: one, or several")
    for name in key:
        kind = _field(schema, name, "key").type
        if not (is_text(kind) or arrow.is_integer(kind)):
            raise RowsError(
                f"column {name!r}, which is the key, has the type {kind}; allowed: strings and "
                "integers (cast it)"
            )


def _check_names(
    schema: pa.Schema, fields: Sequence[str], wanted: Mapping[str, bool], message: Mapping[str, Any]
) -> None:
    missing = [name for name, required in wanted.items() if required and name not in schema.names]
    unknown = [name for name in fields if name not in wanted]
    title = Schema(message).title
    if missing:
        raise RowsError(
            f"the handler takes {title}, and there is no column for {', '.join(missing)}; columns: "
            f"{', '.join(schema.names)}"
        )
    if unknown and not any("additionalProperties" in each for each in Schema(message).objects()):
        raise RowsError(
            f"the handler takes {title}, which has no field for the columns {', '.join(unknown)}; "
            f"allowed: {', '.join(wanted)} (drop or rename the others)"
        )


_KINDS: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (arrow.is_boolean, "boolean"),
    (arrow.is_integer, "integer"),
    (arrow.is_floating, "number"),
    (lambda kind: arrow.is_list(kind) or arrow.is_large_list(kind), "array"),
    (arrow.is_fixed_size_list, "array"),
    (lambda kind: arrow.is_struct(kind) or arrow.is_map(kind), "object"),
    (arrow.is_null, "null"),
)
_TEXTS: tuple[Callable[[Any], bool], ...] = (
    lambda kind: is_text(kind),
    lambda kind: arrow.is_binary(kind) or arrow.is_large_binary(kind),
    arrow.is_timestamp,
    arrow.is_date,
    arrow.is_time,
    arrow.is_decimal,
    arrow.is_duration,
)


def _json_kind(kind: pa.DataType) -> str | None:
    """Return the JSON type of a column's values; None: they cannot travel."""
    if arrow.is_dictionary(kind):
        return _json_kind(kind.value_type)
    for is_kind, told in _KINDS:
        if is_kind(kind):
            return told
    return "string" if any(is_kind(kind) for is_kind in _TEXTS) else None


def _check_type(name: str, kind: pa.DataType) -> None:
    if _json_kind(kind) is None:
        raise RowsError(f"column {name!r} has the type {kind}; allowed: {ALLOWED}")
    for part in parts_of(kind):
        _check_type(f"{name}.{part.name}", part.type)


def _check_fits(name: str, kind: pa.DataType, schema: Schema) -> None:
    told = _json_kind(kind)
    assert told is not None
    if not schema.takes(told):
        raise RowsError(
            f"column {name!r} has the type {kind}, and the handler takes {schema.told} there"
        )
    if arrow.is_struct(kind):
        for part in parts_of(kind):
            _check_fits(f"{name}.{part.name}", part.type, schema.field(part.name))
