"""States as Arrow record batches, and what of a filter decides which of them are read at all.

Pure. A schema has the columns of `BESIDE`, those that are wanted; `state` is the whole state; any
other column is a field of states that are objects (those of functions with several kinds of state
by name, for one). What does not fit is refused with the key and the column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Any, Literal, NamedTuple

import pyarrow as pa
from pyarrow import types as arrow

from sublet.functions.errors import StateTypeError
from sublet.runtime.client_snapshot import SnapshotStates
from sublet.runtime.unary import SNAPSHOT_KEYS_MAX
from sublet.spark_bridge.rows import RowsError
from sublet.spark_bridge.values import (
    ArraysOf,
    Unfit,
    binary_column,
    fields_reader,
    json_column,
    whole_reader,
)

STATE = "state"
"""The column that gets the whole state."""
BESIDE = {"key": "string", "partition": "int", "commit": "bigint"}
"""What is known of a state beside itself, with its type in Spark."""
WHOLE = ("key", "partition", STATE, "commit")
Form = Literal["json", "binary", "typed"]

KEPT_MAX = 100_000
"""Pins that all tasks of a read together keep for others: each is told of them."""

_IS = {"string": arrow.is_string, "int": arrow.is_int32, "bigint": arrow.is_int64}


def whole_schema(form: Form) -> str:
    """Return the schema of a reader that was told no other one, as Spark writes it."""
    kinds = {**BESIDE, STATE: "binary" if form == "binary" else "string"}
    return ", ".join(f"{name} {kinds[name].upper()}" for name in WHOLE)


def is_whole(schema: pa.Schema) -> bool:
    """Tell whether this is the schema of a reader that was told no other one."""
    return tuple(schema.names) == WHOLE and arrow.is_string(schema.field(STATE).type)


class StateRows:
    """Turns pages of a snapshot into record batches of one schema."""

    def __init__(self, function: str, schema: pa.Schema, form: Form) -> None:
        """`RowsError` if no state can fit the schema."""
        self._function = function
        self._schema = schema
        fields: list[pa.Field] = []
        for field in schema:
            told = BESIDE.get(field.name)
            if told is None:
                fields.append(field)
            elif not _IS[told](field.type):
                raise RowsError(f"column {field.name!r} is {field.type}; allowed: {told.upper()}")
        self._readers = _readers(fields, form)

    def record_batch(self, page: SnapshotStates) -> pa.RecordBatch:
        """Return the page as rows; `StateTypeError` if a state does not fit."""
        count = len(page.keys)
        columns: dict[str, pa.Array] = {
            "key": pa.array(page.keys, pa.string()),
            "partition": pa.repeat(pa.scalar(page.partition, pa.int32()), count),
            "commit": pa.repeat(pa.scalar(page.commit, pa.int64()), count),
        }
        try:
            for read in self._readers:
                columns.update(read([page.states]))
        except Unfit as unfit:
            column = f"column {unfit.column!r}: " if unfit.column else ""
            raise StateTypeError(
                f"the state of {self._function}[{page.keys[unfit.index]}] does not fit the schema: "
                f"{column}{unfit.detail}; change the schema, or read states without one"
            ) from None
        return pa.RecordBatch.from_arrays(
            [columns[field.name] for field in self._schema], schema=self._schema
        )


def _readers(fields: Sequence[pa.Field], form: Form) -> list[ArraysOf]:
    if form == "typed":
        whole = [each for each in fields if each.name == STATE]
        others = [each for each in fields if each.name != STATE]
        readers = [whole_reader(each) for each in whole]
        return [*readers, fields_reader(others)] if others else readers
    wanted = pa.binary() if form == "binary" else pa.string()
    if [(each.name, each.type) for each in fields] not in ([], [(STATE, wanted)]):
        listed = ", ".join(f"{each.name} {each.type}" for each in fields)
        raise RowsError(
            f"with the option state={form}, the schema has the column {STATE} {wanted}, beside "
            f"{', '.join(BESIDE)}; it has {listed}"
        )
    column_of = binary_column if form == "binary" else json_column
    return [lambda columns: {STATE: column_of(STATE, columns)}] if fields else []


class Wanted(NamedTuple):
    """Which states are read; None: all."""

    keys: frozenset[str] | None = None
    partitions: frozenset[int] | None = None

    def narrowed(self, column: str, values: Iterable[Any]) -> Wanted | None:
        """Return what is left if a column has one of these values; None if that cannot be said of
        keys and partitions."""
        known = [each for each in values if each is not None]  # Nothing is equal to null.
        if column == "key" and all(type(each) is str for each in known):
            keys = frozenset(known) if self.keys is None else self.keys & set(known)
            return self._replace(keys=keys) if len(keys) <= SNAPSHOT_KEYS_MAX else None
        if column == "partition" and all(type(each) is int for each in known):
            found = frozenset(known) if self.partitions is None else self.partitions & set(known)
            return self._replace(partitions=found)
        return None


def shares(partitions: Sequence[int], count: int) -> list[list[int]]:
    """Return which partitions each of so many tasks reads: none is without."""
    return [list(partitions[place::count]) for place in range(min(count, len(partitions)))]


def kept_for_others(planned: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return for each task of which partitions it keeps the pins: of those that tasks behind it
    read, which may have to wait for it."""
    most = KEPT_MAX // max(1, len(planned))
    return [
        list(islice(chain.from_iterable(planned[place:]), most))
        for place in range(1, len(planned) + 1)
    ]
