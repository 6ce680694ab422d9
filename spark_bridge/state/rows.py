"""States as Arrow record batches, and which of them a filter lets through.

Pure. `key`, `partition` and `commit` are metadata; `state` is the whole state; any other column is
a field of states that are objects (such as those of functions with several kinds of state by name).
An error about a state that does not fit names the key and the column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import pyarrow as pa

from sublet.functions.errors import StateTypeError
from sublet.runtime.client.snapshots import SnapshotStates
from sublet.runtime.protocol.rpc import SNAPSHOT_KEYS_MAX
from sublet.spark_bridge.shapes import Form, Shape
from sublet.spark_bridge.values import Unfit

SHAPE = Shape(
    whole="state",
    beside={"key": "string", "partition": "int", "commit": "bigint"},
    order=("key", "partition", "state", "commit"),
)
_NAMES = {name: name for name in SHAPE.beside}

KEPT_MAX = 100_000
"""Pins that all tasks of a read together keep alive for others: each task carries its list."""


class StateRows:
    """Turns pages of a snapshot into record batches of one schema."""

    def __init__(self, function: str, schema: pa.Schema, form: Form | None) -> None:
        """`RowsError` if no state can fit the schema.

        `form` is the option for whole states.
        """
        self._function = function
        self._schema = schema
        columns = SHAPE.columns_of(schema, _NAMES)
        self._beside = columns.beside
        self._readers = SHAPE.readers(columns, form)

    def record_batch(self, page: SnapshotStates) -> pa.RecordBatch:
        """Return the page as rows; `StateTypeError` if a state does not fit."""
        count = len(page.keys)
        known = {
            "key": pa.array(page.keys, pa.string()),
            "partition": pa.repeat(pa.scalar(page.partition, pa.int32()), count),
            "commit": pa.repeat(pa.scalar(page.commit, pa.int64()), count),
        }
        columns: dict[str, pa.Array] = {name: known[what] for name, what in self._beside.items()}
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


class Wanted(NamedTuple):
    """Which states are read; None: all."""

    keys: frozenset[str] | None = None
    partitions: frozenset[int] | None = None

    def narrowed(self, column: str, values: Iterable[Any]) -> Wanted | None:
        """Return what is left if a column has one of these values; None if that does not depend on
        keys and partitions."""
        known = [each for each in values if each is not None]  # Nothing is equal to null.
        column = column.lower()
        if column == "key" and all(type(each) is str for each in known):
            keys = frozenset(known) if self.keys is None else self.keys & set(known)
            return self._replace(keys=keys) if len(keys) <= SNAPSHOT_KEYS_MAX else None
        if column == "partition" and all(type(each) is int for each in known):
            found = frozenset(known) if self.partitions is None else self.partitions & set(known)
            return self._replace(partitions=found)
        return None


def shares(partitions: Sequence[int], count: int) -> list[list[int]]:
    """Return which partitions each of so many tasks reads; no task gets none."""
    return [list(partitions[place::count]) for place in range(min(count, len(partitions)))]


def kept_for_others(planned: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return for each task whose pins it keeps alive: those of the tasks after it, which may have
    to wait for it."""
    most = KEPT_MAX // max(1, len(planned))
    return [
        list(islice(chain.from_iterable(planned[place:]), most))
        for place in range(1, len(planned) + 1)
    ]
