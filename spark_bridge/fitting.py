"""Which Arrow columns fit what a handler takes, and where they must have no nulls. Pure.

A handler describes what it takes as JSON Schema. Columns that can never fit are refused when a
query starts; nulls that a handler does not take, when the rows that have them are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import types as arrow

from sublet.functions.codec import COLUMNS_MARK
from sublet.functions.columns import ALLOWED, is_list, is_text, parts_of
from sublet.functions.errors import RejectedError


class RowsError(RejectedError):
    """Rows of this schema, or one of them, cannot be messages of the function."""


class NoNulls(NamedTuple):
    """Where in a column the handler takes no nulls."""

    path: str
    here: bool
    parts: tuple[tuple[int, NoNulls], ...]
    """By their places among the parts of the column's type."""


class Schema:
    """A JSON Schema, as far as it decides which values fit: those that fit one of its nodes."""

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
        """What it takes, for error messages."""
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
        """Tell whether some value of this kind fits."""
        return any(_takes(node, [word]) for node in self.nodes)

    def of(self, nodes: Iterable[Any]) -> Schema:
        """Return the union of these parts of the same schema."""
        return Schema(self._root, nodes)

    def objects(self) -> list[Mapping[str, Any]]:
        return [each for each in self.nodes if "properties" in each]

    def field(self, name: str) -> Schema:
        """Return the schema of an object's field."""
        objects = [node for node in self.nodes if _takes(node, ["object"])]
        return self.of(part for node in objects for part in _property(node, name))

    def items(self) -> list[Schema]:
        """Return the schemas that the items of an array have to fit, whatever their index."""
        places = [node.get("prefixItems", [node.get("items")]) for node in self.nodes]
        return [self.of([each]) for parts in places for each in parts]

    def required(self) -> set[str]:
        """Return the fields that every object needs."""
        return set.intersection(*map(_required, self.objects())) if self.objects() else set()

    def forbids(self, name: str) -> bool:
        """Tell whether no object may have this field."""
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


def check_type(name: str, kind: pa.DataType) -> None:
    if not _words_of(kind):
        raise RowsError(f"column {name!r} has type {kind}; allowed: {ALLOWED}")
    for part in parts_of(kind):
        check_type(f"{name}.{part.name}", part.type)


def misfit(path: str, kind: pa.DataType, schema: Schema) -> str:
    """Return why no value of a type except null fits a schema; empty if some may."""
    words = _words_of(kind)
    nodes = [node for node in schema.nodes if _takes(node, words)]
    if not nodes:
        return f"column {path!r} has type {kind}, but the handler takes {schema.told}"
    found = [_misfit_inside(path, kind, schema.of([node])) for node in nodes]
    return "" if "" in found else found[0]


def _misfit_inside(path: str, kind: pa.DataType, schema: Schema) -> str:
    if arrow.is_struct(kind) and not schema.is_of_columns:
        # Workers complete columns, and report themselves what is missing.
        names = {part.name for part in parts_of(kind)}
        if missing := sorted(schema.required() - names):
            return f"column {path!r} lacks the field {', '.join(missing)} of {schema.title}"
        if unknown := [name for name in sorted(names) if schema.forbids(name)]:
            return f"column {path!r} has the field {', '.join(unknown)}, not in {schema.title}"
    for place, part in enumerate(parts_of(kind)):
        for inside in _parts(kind, place, schema):
            if text := misfit(f"{path}.{part.name}", part.type, inside):
                return text
    return ""


def _parts(kind: pa.DataType, place: int, schema: Schema) -> list[Schema]:
    """Return all schemas that a part of a type has to fit."""
    if arrow.is_struct(kind):
        return [schema.field(kind.field(place).name)]
    if not arrow.is_map(kind):
        return schema.items()
    # What keys may be is not said; values are those of any name, and surely of all required ones.
    return [schema.field(name) for name in schema.required() or [""]] if place else []


def no_nulls(path: str, kind: pa.DataType, schema: Schema) -> NoNulls | None:
    """Return where a column that may fit must have no nulls; None: nowhere."""
    fitting = schema.of(node for node in schema.nodes if not misfit(path, kind, schema.of([node])))
    parts: list[tuple[int, NoNulls]] = []
    for place, part in enumerate(parts_of(kind)):
        nodes = [node for each in _parts(kind, place, fitting) for node in each.nodes]
        inside = no_nulls(f"{path}.{part.name}", part.type, schema.of(nodes or [{}]))
        if inside is not None:
            parts.append((place, inside))
    here = not schema.takes("null")
    return NoNulls(path, here, tuple(parts)) if here or parts else None


# Nulls

Parts = Callable[[pa.Array], list[pa.Array]]


def check_nulls(column: pa.Array, where: NoNulls) -> None:
    """Raise `RowsError` if a value is null that must not be."""
    # First by Arrow's own counts, which include parts of null rows: to leave those out takes a
    # copy.
    if _first_nulls(column, where, _all_parts) is None:
        return
    if found := _first_nulls(column, where, _present_parts):
        path, null_count, count = found
        what = "rows" if path == where.path else "values"
        raise RowsError(
            f"column {path!r} is null in {null_count} of {count} {what}, but the handler takes no "
            "nulls there; filter them out, or replace them (coalesce)"
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
