"""What a column of a reader contains: the whole value, metadata, or a field of the value.

Pure, and the same for values of an egress and for states. Names of the first two kinds ignore case,
as Spark's do. A column means the same in every schema, whatever the other columns are: the whole
value, as a STRING, is JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import pyarrow as pa
from pyarrow import types as arrow

from sublet.spark_bridge.fitting import RowsError
from sublet.spark_bridge.values import (
    ArraysOf,
    binary_column,
    fields_reader,
    json_column,
    whole_reader,
)

Form = Literal["json", "binary"]
"""Of whole values, where an option says it."""

_IS = {
    "string": arrow.is_string,
    "int": arrow.is_int32,
    "bigint": arrow.is_int64,
    "timestamp": lambda kind: arrow.is_timestamp(kind) and kind.tz is not None,
}


class Columns(NamedTuple):
    """The columns of a schema, by what they get."""

    beside: dict[str, str]
    """Those that get something known beside the value: name to what."""
    whole: pa.Field | None
    fields: list[pa.Field]


class Shape(NamedTuple):
    """Which columns a kind of value has."""

    whole: str
    """The column, and the option, of the whole value."""
    beside: Mapping[str, str]
    """What is known beside it, with its type in Spark."""
    order: Sequence[str]
    """The columns of a reader that is told no others."""

    def default_schema(self, form: Form | None) -> str:
        """Return the schema of a reader that is told no other one, as Spark writes it."""
        kinds = {**self.beside, self.whole: "binary" if form == "binary" else "string"}
        return ", ".join(f"{name} {kinds[name].upper()}" for name in self.order)

    def columns_of(self, schema: Iterable[pa.Field], names: Mapping[str, str]) -> Columns:
        """Sort the columns of a schema, given names of what is beside; all others are fields."""
        found = Columns({}, None, [])
        for field in schema:
            folded = field.name.lower()
            if folded == self.whole:
                if found.whole is not None:
                    raise RowsError(f"duplicate columns: {found.whole.name}, {field.name}")
                found = found._replace(whole=field)
            elif (what := names.get(folded)) is not None:
                told = self.beside[what]
                if not _IS[told](field.type):
                    raise RowsError(
                        f"column {field.name!r} is {field.type}; allowed: {told.upper()}"
                    )
                found.beside[field.name] = what
            else:
                found.fields.append(field)
        return found

    def readers(self, columns: Columns, form: Form | None) -> list[ArraysOf]:
        """Return what reads values into their columns; `RowsError` if no value can fit them."""
        whole, fields = columns.whole, columns.fields
        if form is not None:
            wanted = pa.binary() if form == "binary" else pa.string()
            if fields or (whole is not None and whole.type != wanted):
                its = [*([] if whole is None else [whole]), *fields]
                raise RowsError(
                    f"with the option {self.whole}={form}, the schema may only have {self.whole} "
                    f"{wanted}, {', '.join(self.beside)}; it has "
                    + ", ".join(f"{each.name} {each.type}" for each in its)
                )
        readers = [] if whole is None else [self._whole_reader(whole, form)]
        return [*readers, fields_reader(fields)] if fields else readers

    def _whole_reader(self, field: pa.Field, form: Form | None) -> ArraysOf:
        if form is None and not arrow.is_string(field.type):
            return whole_reader(field)
        column_of = binary_column if form == "binary" else json_column
        return lambda values: {field.name: column_of(self.whole, values)}
