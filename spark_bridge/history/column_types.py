"""The types of columns of history: what the handler declares, or else what all values of a column
in all files have in common.

Pure: schemas and columns in, types out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as arrow

from sublet.functions.columns import is_text
from sublet.functions.errors import RejectedError
from sublet.spark_bridge.fitting import Schema

Declared = Callable[[str], pa.DataType | None]
"""The type of a column that is known without looking at its texts, by its name; None: unknown."""

_DECLARED: dict[str, pa.DataType] = {
    "string": pa.string(),
    "decimal": pa.string(),
    "uuid": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
_NUMBERS = (pa.int64(), pa.float64())
_TIMES = (
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
    pa.timestamp("ns"),
    pa.timestamp("ns", "UTC"),
)
_KINDS = (*_NUMBERS, pa.bool_(), *_TIMES, pa.string())
"""What texts may be; the first that fits all of them."""
_PADDED = "^[+-]?0[0-9xX]"
"""Digits that are not a number: leading zeros would be lost."""
_NO_FOLDER_VALUE = "__HIVE_DEFAULT_PARTITION__"


class HistoryError(RejectedError):
    """The files cannot be read as history, or have changed since rows of them were committed."""


def nothing_declared(_: str) -> None:
    return None


def declared_types(key: Sequence[str], payload: str, message: Mapping[str, Any] | None) -> Declared:
    """Return what is known of columns by what the handler takes, as JSON Schema.

    A column of the key of which nothing is declared is text: `007` is not the key `7`.
    """

    def declared(name: str) -> pa.DataType | None:
        found = None
        if message is not None and payload in ("", name):
            root = Schema(message)
            found = _only_type(root if payload else root.field(name))
        return pa.string() if found is None and name in key else found

    return declared


def _only_type(schema: Schema) -> pa.DataType | None:
    words = {str(node.get("format") or node.get("type")) for node in schema.nodes} - {"null"}
    return _DECLARED.get(words.pop()) if len(words) == 1 else None


class TextGuess:
    """What all texts of a column can be read as."""

    def __init__(self) -> None:
        self._left: Sequence[pa.DataType] = _KINDS
        self._is_empty = True

    def see(self, texts: pa.Array) -> None:
        if texts.null_count < len(texts):
            self._is_empty = False
            # Arrow is slow to fail on many values, so try a few first.
            for some in (texts.drop_null().slice(0, 10), texts):
                self._left = [each for each in self._left if _can_be(some, each)]

    @property
    def kind(self) -> pa.DataType:
        return pa.null() if self._is_empty else self._left[0]


def _can_be(texts: pa.Array, kind: pa.DataType) -> bool:
    try:
        texts.cast(kind)
    except pa.ArrowInvalid:
        return False
    return kind not in _NUMBERS or not pc.any(pc.match_substring_regex(texts, _PADDED)).as_py()


def plain_schema(schema: pa.Schema, where: str) -> pa.Schema:
    """Return names and types only; `HistoryError` if a name occurs twice."""
    twice = [name for name in schema.names if schema.get_field_index(name) < 0]
    if twice:
        raise HistoryError(f"{where} has several columns {twice[0]!r}; rename all but one")
    return pa.schema([(each.name, _decoded(each.type)) for each in schema])


def _decoded(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if arrow.is_dictionary(kind) else kind


def texts_stay_texts(kind: pa.DataType) -> pa.DataType:
    """Return a type that was found in JSON, without times: JSON has none, only texts like them."""
    if arrow.is_timestamp(kind):
        return pa.string()
    if arrow.is_struct(kind):
        parts = [kind.field(place) for place in range(kind.num_fields)]
        return pa.struct([(each.name, texts_stay_texts(each.type)) for each in parts])
    return pa.list_(texts_stay_texts(kind.value_type)) if arrow.is_list(kind) else kind


def unified(known: pa.Schema, found: pa.Schema, where: str) -> pa.Schema:
    """Return a schema with all columns of both; `where` is where the second was found.

    Numbers become wider where needed. `HistoryError` if a column has types without a common one.
    """
    if found.equals(known):
        return known
    fields = {each.name: each for each in known}
    for field in found:
        before = fields.get(field.name, field)
        fields[field.name] = field
        if before.type != field.type:
            both = [pa.schema([before]), pa.schema([field])]
            try:
                fields[field.name] = pa.unify_schemas(both, promote_options="permissive").field(0)
            except pa.ArrowException:
                raise HistoryError(
                    f"column {field.name!r} has type {field.type} in {where}, but {before.type} "
                    "before it; it needs one type in all files"
                ) from None
    return pa.schema(list(fields.values()))


def folder_values(path: Path) -> dict[str, str | None]:
    """Return the columns in names of folders, such as `month=2025-12`."""
    pairs = [part.split("=", 1) for part in path.parent.parts if "=" in part]
    return {
        name: None if value == _NO_FOLDER_VALUE else unquote(value) for name, value in pairs if name
    }


def folder_schema(values: Sequence[Mapping[str, str | None]], declared: Declared) -> pa.Schema:
    """Return the types of columns in names of folders, given their values for each file."""
    found: dict[str, set[str | None]] = {}
    for each in values:
        for name, value in each.items():
            found.setdefault(name, set()).add(value)
    return pa.schema(
        [(name, declared(name) or _folder_type(texts)) for name, texts in found.items()]
    )


def _folder_type(texts: set[str | None]) -> pa.DataType:
    numbers = [each.removeprefix("-") for each in texts if each is not None]
    are_numbers = all(
        each.isascii() and each.isdigit() and str(int(each)) == each and len(each) < 19
        for each in numbers
    )
    return pa.int64() if numbers and are_numbers else pa.string()


def time_type(name: str, kind: pa.DataType, guess: pa.DataType | None) -> pa.DataType:
    """Return the type by which a column's values are compared with a time; `HistoryError` if there
    is none.

    - `guess`: what the texts of the column can be read as, in files that have only texts.
    """
    compared, told = kind, str(kind)
    if guess is not None and is_text(kind):
        compared, told = guess, f"{kind}, and not all its values are times"
    if any(is_kind(compared) for is_kind in _COMPARABLE):
        return compared
    raise HistoryError(
        f"column {name!r} has type {told}; --time takes timestamps, dates and integers"
    )


_COMPARABLE = (arrow.is_timestamp, arrow.is_date, arrow.is_integer, arrow.is_null)
