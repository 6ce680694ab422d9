"""Rows of Arrow tables as messages: which partition each goes to, and what its handler gets.

Pure: tables in, columns of keys and payloads out. Nothing here knows of Spark or of a network. What
cannot be a message is refused before the first row is sent, with the column's name and what is
allowed there.

A key is the text of one column, or of several with ":" between them. Of those only the last may
have a ":" in it: otherwise other values would give the same key. Spark finds the same partition
for a key by `partition_expression`, so that a task can be given the rows of one partition.
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
    is_list,
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


class NoNulls(NamedTuple):
    """Where in a column a null fits nothing that the handler takes."""

    path: str
    here: bool
    parts: tuple[tuple[int, NoNulls], ...]
    """By their places among the parts of the column's type."""


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
    if message is None:
        return Layout(schema=schema, key=tuple(key), fields=fields, bare=bool(payload))
    root = Schema(message)
    if not payload and not root.takes("object"):
        text = f"the handler takes {root.told}, not a map; name the column (option payload)"
        raise RowsError(text)
    parts = {name: root if payload else root.field(name) for name in fields}
    for name, part in parts.items():
        if text := _misfit(name, schema.field(name).type, part):
            raise RowsError(text)
    columns = (
        root.is_of_columns
        and bool(fields)
        and all(_is_normal(schema.field(name).type) for name in fields)
    )
    found = [_no_nulls(name, schema.field(name).type, part) for name, part in parts.items()]
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
        for each in self._layout.no_nulls:
            _check_nulls(batch.column(each.path), each)
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


def _check_separator(name: str, text: pa.Array) -> None:
    count = pc.match_substring(text, KEY_SEPARATOR).true_count
    if count:
        raise RowsError(
            f"column {name!r}, which is not the last one of the key, has a {KEY_SEPARATOR!r} in "
            f"{count} of {len(text)} rows, so that different keys could be one; name it last, or "
            "let one column be the key"
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


# Nulls

Parts = Callable[[pa.Array], list[pa.Array]]


def _check_nulls(column: pa.Array, where: NoNulls) -> None:
    """Raise `RowsError` if a value is null that must not be."""
    # At first by what Arrow has counted, in parts of rows that are null, too: to look away from
    # those takes a copy.
    if _first_nulls(column, where, _all_parts) is None:
        return
    if found := _first_nulls(column, where, _present_parts):
        path, null_count, count = found
        what = "rows" if path == where.path else "values"
        raise RowsError(
            f"column {path!r} is null in {null_count} of {count} {what}, and the handler takes no "
            "null there; leave them out, or say what stands for them (coalesce)"
        )


def _first_nulls(column: pa.Array, where: NoNulls, parts: Parts) -> tuple[str, int, int] | None:
    """Return a path, how many values are null there, and of how many."""
    if where.here and column.null_count:
        return where.path, column.null_count, len(column)
    inside = parts(column) if where.parts else []
    looked_at = (_first_nulls(inside[place], each, parts) for place, each in where.parts)
    return next((found for found in looked_at if found is not None), None)


def _all_parts(column: pa.Array) -> list[pa.Array]:
    """Return the parts of a column, with those that stand in no row or in one that is null."""
    if arrow.is_struct(column.type):
        return [column.field(place) for place in range(column.type.num_fields)]
    return [column.keys, column.items] if arrow.is_map(column.type) else [column.values]


def _present_parts(column: pa.Array) -> list[pa.Array]:
    """Return the parts of those values of a column that are not null."""
    return _all_parts(column.filter(column.is_valid()))


# Schemas


class Schema:
    """A JSON Schema, as far as it matters which values fit it: one of several nodes has to."""

    def __init__(self, root: Mapping[str, Any], nodes: Iterable[Any] | None = None) -> None:
        self._root = root
        given = [root] if nodes is None else nodes
        self.nodes = [each for node in given for each in self._alternatives(node)]

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
        kinds = [_told(each) for each in self.nodes]
        return " or ".join(dict.fromkeys(each for each in kinds if each != "null")) or "null"

    @property
    def title(self) -> str:
        return next((str(each["title"]) for each in self.nodes if "title" in each), "its type")

    @property
    def is_of_columns(self) -> bool:
        """Whether the handler takes columns of Arrow."""
        return bool(self._root.get(COLUMNS_MARK))

    def takes(self, word: str) -> bool:
        """Tell whether some value fits that a word stands for."""
        return any(_takes(node, [word]) for node in self.nodes)

    def of(self, nodes: Iterable[Any]) -> Schema:
        """Return what takes whatever one of these parts of the same schema takes."""
        return Schema(self._root, nodes)

    def objects(self) -> list[Mapping[str, Any]]:
        return [each for each in self.nodes if "properties" in each]

    def field(self, name: str) -> Schema:
        """Return what may stand under a name in an object."""
        objects = [node for node in self.nodes if _takes(node, ["object"])]
        return self.of(part for node in objects for part in _property(node, name))

    def items(self) -> list[Schema]:
        """Return what items of an array have to fit, whichever place they have."""
        places = [node.get("prefixItems", [node.get("items")]) for node in self.nodes]
        return [self.of([each]) for parts in places for each in parts]

    def required(self) -> set[str]:
        """Return the names without which no object fits."""
        return set.intersection(*map(_required, self.objects())) if self.objects() else set()

    def forbids(self, name: str) -> bool:
        """Tell whether no object fits that has something under a name."""
        objects = self.objects()
        return bool(objects) and not any(
            name in each["properties"] or each.get("additionalProperties") is not False
            for each in objects
        )


# Words for kinds of values: JSON's types, and instead of its strings what these stand for.
_TEXT = "text"
"""Any string; or a datetime or a time, of which msgspec says no more than that."""
_NAME = "name"
"""One of some strings."""
_FORMATS = ("date-time", "date", "time", "partial-time", "duration", "decimal", "uuid", "binary")
_BYTES = "bytes"
_WORDS_OF_TYPES = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: _NAME,
    type(None): "null",
}


def _words(node: Mapping[str, Any]) -> set[str] | None:
    """Return which kinds of values a node takes; None: all."""
    listed = node.get("enum", [node["const"]] if "const" in node else None)
    if listed is not None:
        return {_WORDS_OF_TYPES.get(type(each), _TEXT) for each in listed}
    allowed = node.get("type")
    if allowed is None:
        return None
    words = {allowed} if isinstance(allowed, str) else set(allowed)
    if "string" in words:
        format_ = _BYTES if node.get("contentEncoding") == "base64" else node.get("format")
        words.add(format_ if format_ in (*_FORMATS, _BYTES) else _TEXT)
    return words - {"string"}


def _takes(node: Mapping[str, Any], words: Iterable[str]) -> bool:
    allowed = _words(node)
    return allowed is None or not allowed.isdisjoint(words)


def _told(node: Mapping[str, Any]) -> str:
    if "contentEncoding" in node:
        return _BYTES
    if "enum" in node:
        return f"one of {node['enum']!r:.100}"
    return str(node.get("format") or node.get("type") or "anything")


def _property(node: Mapping[str, Any], name: str) -> list[Any]:
    """Return what may be under a name, of which one has to fit."""
    known = node.get("properties", {})
    if name not in known:
        return [node.get("additionalProperties")]
    # A state of several fields says nothing of what it requires: null is a field without a value.
    return [known[name]] if "required" in node else [known[name], {"type": "null"}]


def _required(node: Mapping[str, Any]) -> set[str]:
    # What only tells a type from others may be missing, at least where there are no others.
    return {name for name in node.get("required", ()) if not _is_tag(node["properties"].get(name))}


def _is_tag(node: Any) -> bool:
    return isinstance(node, Mapping) and len(node.get("enum", ())) == 1


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
    if unknown and not any(_is_open(each) for each in Schema(message).objects()):
        raise RowsError(
            f"the handler takes {title}, which has no field for the columns {', '.join(unknown)}; "
            f"allowed: {', '.join(wanted)} (drop or rename the others)"
        )


def _is_open(node: Mapping[str, Any]) -> bool:
    return node.get("additionalProperties", False) is not False


_FITTING: tuple[tuple[Callable[[Any], bool], tuple[str, ...]], ...] = (
    # What a column's values can be in a message, by what msgspec makes of them.
    (arrow.is_boolean, ("boolean",)),
    (arrow.is_integer, ("integer", "number", "decimal")),
    (arrow.is_floating, ("number", "decimal")),
    (is_text, (_TEXT, _NAME, *_FORMATS)),
    (lambda kind: arrow.is_binary(kind) or arrow.is_large_binary(kind), (_BYTES, "binary", "uuid")),
    (arrow.is_timestamp, (_TEXT, "date-time")),
    (arrow.is_date, (_TEXT, "date", "date-time")),
    (arrow.is_time, (_TEXT, "time", "partial-time")),
    (arrow.is_decimal, (_TEXT, "decimal")),
    (arrow.is_duration, (_TEXT, "duration")),
    (is_list, ("array",)),
    (lambda kind: arrow.is_struct(kind) or arrow.is_map(kind), ("object",)),
    (arrow.is_null, ("null",)),
)


def _words_of(kind: pa.DataType) -> tuple[str, ...]:
    """Return the words for which a column's values may fit; none: they cannot travel."""
    if arrow.is_dictionary(kind):
        return _words_of(kind.value_type)
    return next((words for is_kind, words in _FITTING if is_kind(kind)), ())


def _check_type(name: str, kind: pa.DataType) -> None:
    if not _words_of(kind):
        raise RowsError(f"column {name!r} has the type {kind}; allowed: {ALLOWED}")
    for part in parts_of(kind):
        _check_type(f"{name}.{part.name}", part.type)


def _misfit(path: str, kind: pa.DataType, schema: Schema) -> str:
    """Return why no value of a type but null fits a schema; nothing if some may."""
    words = _words_of(kind)
    nodes = [node for node in schema.nodes if _takes(node, words)]
    if not nodes:
        return f"column {path!r} has the type {kind}, and the handler takes {schema.told} there"
    found = [_misfit_inside(path, kind, schema.of([node])) for node in nodes]
    return "" if "" in found else found[0]


def _misfit_inside(path: str, kind: pa.DataType, schema: Schema) -> str:
    if arrow.is_struct(kind) and not schema.is_of_columns:
        # Workers complete columns, and say by themselves what is missing.
        names = {part.name for part in parts_of(kind)}
        if missing := sorted(schema.required() - names):
            return f"column {path!r} has no field {', '.join(missing)}, which {schema.title} needs"
        if unknown := [name for name in sorted(names) if schema.forbids(name)]:
            return f"column {path!r} has the field {', '.join(unknown)}, and {schema.title} has not"
    for place, part in enumerate(parts_of(kind)):
        for inside in _parts(kind, place, schema):
            if text := _misfit(f"{path}.{part.name}", part.type, inside):
                return text
    return ""


def _parts(kind: pa.DataType, place: int, schema: Schema) -> list[Schema]:
    """Return all that a part of a type has to fit."""
    if arrow.is_struct(kind):
        return [schema.field(kind.field(place).name)]
    if not arrow.is_map(kind):
        return schema.items()
    # What keys may be is not said; values are those of any name, and surely of all required ones.
    return [schema.field(name) for name in schema.required() or [""]] if place else []


def _no_nulls(path: str, kind: pa.DataType, schema: Schema) -> NoNulls | None:
    """Return where a column of a type, which may fit, must have no nulls; None: nowhere."""
    fitting = schema.of(node for node in schema.nodes if not _misfit(path, kind, schema.of([node])))
    parts: list[tuple[int, NoNulls]] = []
    for place, part in enumerate(parts_of(kind)):
        nodes = [node for each in _parts(kind, place, fitting) for node in each.nodes]
        inside = _no_nulls(f"{path}.{part.name}", part.type, schema.of(nodes or [{}]))
        if inside is not None:
            parts.append((place, inside))
    here = not schema.takes("null")
    return NoNulls(path, here, tuple(parts)) if here or parts else None
