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
from pyarrow import types as arrow

from sublet.functions.address import SLOT_COUNT, partition_index_of
from sublet.functions.codec import codec_for
from sublet.functions.errors import RejectedError

KEY_SEPARATOR = ":"
"""Between the columns of a key."""
KEYS_CACHED_MAX = 100_000

_any = codec_for(Any)


class RowsError(RejectedError):
    """Rows of this schema, or one of them, cannot be messages of the function."""

    code = "rejected"


class Rows(NamedTuple):
    """Messages for one partition, in the order of their rows."""

    partition: int
    keys: list[str]
    payloads: bytes
    """A msgpack array, one item a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which columns are the key, and what becomes the payload. Made by `layout_of`."""

    schema: pa.Schema
    key: tuple[str, ...]
    fields: tuple[str, ...]
    """The columns of the payload."""
    bare: bool
    """The payload is the value of the only field, not a map."""


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
    - `message`: what the handler takes, as JSON Schema; None: anything.
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
    return Layout(schema=schema, key=tuple(key), fields=fields, bare=bool(payload))


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
        self._converters = {
            name: converter
            for name in layout.fields
            if (converter := _converter(layout.schema.field(name).type)) is not None
        }

    def split(self, batch: pa.RecordBatch) -> list[Rows]:
        """Return the rows as messages; those of one partition keep their order."""
        if not batch.num_rows:
            return []
        keys = self._keys(batch)
        payloads = self._payloads(batch)
        places = self._partitions(keys)
        if len(set(places)) == 1:
            return [Rows(places[0], keys, _any.encode_column(payloads))]
        found: dict[int, tuple[list[str], list[Any]]] = {}
        for index, key, payload in zip(places, keys, payloads, strict=True):
            mine = found.get(index)
            if mine is None:
                mine = found[index] = ([], [])
            mine[0].append(key)
            mine[1].append(payload)
        return [
            Rows(index, some, _any.encode_column(values))
            for index, (some, values) in sorted(found.items())
        ]

    def _keys(self, batch: pa.RecordBatch) -> list[str]:
        columns: list[list[str]] = []
        for name in self._layout.key:
            column = batch.column(name)
            if column.null_count:
                raise RowsError(
                    f"column {name!r}, which is the key, is null in {column.null_count} of "
                    f"{batch.num_rows} rows; allowed: a value in every row"
                )
            values = column.to_pylist()
            columns.append(values if _is_text(column.type) else [str(each) for each in values])
        if len(columns) == 1:
            return columns[0]
        return [KEY_SEPARATOR.join(each) for each in zip(*columns, strict=True)]

    def _partitions(self, keys: Sequence[str]) -> list[int]:
        known, count = self._partition_of, self._partition_count
        if len(known) > KEYS_CACHED_MAX:
            known.clear()
        for key in set(keys).difference(known):
            known[key] = partition_index_of(key, count)
        return [known[key] for key in keys]

    def _payloads(self, batch: pa.RecordBatch) -> list[Any]:
        columns = [self._values(batch, name) for name in self._layout.fields]
        if self._layout.bare:
            return columns[0]
        names = self._layout.fields
        if not names:
            return [{}] * batch.num_rows
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _values(self, batch: pa.RecordBatch, name: str) -> list[Any]:
        values: list[Any] = batch.column(name).to_pylist()
        convert = self._converters.get(name)
        return values if convert is None else [convert(each) for each in values]


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
        if not (_is_text(kind) or arrow.is_integer(kind)):
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
    lambda kind: _is_text(kind),
    lambda kind: arrow.is_binary(kind) or arrow.is_large_binary(kind),
    arrow.is_timestamp,
    arrow.is_date,
    arrow.is_time,
    arrow.is_decimal,
    arrow.is_duration,
)
ALLOWED = (
    "boolean, integers, floats, strings, binary, date, timestamp, time, duration, decimal, and "
    "arrays, structs and maps of them"
)


def _is_text(kind: pa.DataType) -> bool:
    return bool(arrow.is_string(kind) or arrow.is_large_string(kind) or arrow.is_string_view(kind))


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
    for part in _parts(kind):
        _check_type(f"{name}.{part.name}", part.type)


def _parts(kind: pa.DataType) -> list[pa.Field]:
    if arrow.is_struct(kind):
        return [kind.field(place) for place in range(kind.num_fields)]
    if arrow.is_map(kind):
        return [kind.key_field, kind.item_field]
    if arrow.is_list(kind) or arrow.is_large_list(kind) or arrow.is_fixed_size_list(kind):
        return [kind.value_field]
    return []


def _check_fits(name: str, kind: pa.DataType, schema: Schema) -> None:
    told = _json_kind(kind)
    assert told is not None
    if not schema.takes(told):
        raise RowsError(
            f"column {name!r} has the type {kind}, and the handler takes {schema.told} there"
        )
    if arrow.is_struct(kind):
        for part in _parts(kind):
            _check_fits(f"{name}.{part.name}", part.type, schema.field(part.name))


# Values

Convert = Callable[[Any], Any]


def _converter(kind: pa.DataType) -> Convert | None:
    """Return what turns Arrow's idea of a value into ours; None where they are the same."""
    if arrow.is_map(kind):
        key, item = _converter(kind.key_type), _converter(kind.item_type)
        return _nullable(
            lambda pairs: {
                key(name) if key else name: item(value) if item else value for name, value in pairs
            }
        )
    if arrow.is_struct(kind):
        parts = {
            part.name: each for part in _parts(kind) if (each := _converter(part.type)) is not None
        }
        if not parts:
            return None
        return _nullable(
            lambda value: {
                name: parts[name](each) if name in parts else each for name, each in value.items()
            }
        )
    if arrow.is_list(kind) or arrow.is_large_list(kind) or arrow.is_fixed_size_list(kind):
        each = _converter(kind.value_type)
        return None if each is None else _nullable(lambda values: [each(value) for value in values])
    return None


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)
