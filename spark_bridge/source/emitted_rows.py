"""Values of an egress as Arrow record batches: the counterpart of `rows`.

Pure: columns of msgpack in, record batches out. Columns are fields of the payload; metadata is in
columns whose names begin with "_". With the column `payload`, which is the whole payload, the "_"
can be left out: there are no fields to confuse them with. An error about a value that does not fit
names the column, the partition and the position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from sublet.functions.address import split_partition_name
from sublet.functions.errors import PayloadError
from sublet.runtime.protocol.rpc import EgressValues
from sublet.spark_bridge.fitting import RowsError
from sublet.spark_bridge.shapes import Columns, Form, Shape
from sublet.spark_bridge.values import Unfit

SHAPE = Shape(
    whole="payload",
    beside={
        "key": "string",
        "function": "string",
        "partition": "int",
        "position": "bigint",
        "at": "timestamp",
    },
    order=("key", "payload", "function", "partition", "position", "at"),
)
_NAMES = {mark + name: name for name in SHAPE.beside for mark in ("", "_")}


class EmittedRows:
    """Turns values of an egress into record batches of one schema."""

    def __init__(self, egress: str, schema: pa.Schema, form: Form | None) -> None:
        """`RowsError` if no payload can fit the schema.

        `form` is the option for whole payloads.
        """
        self._egress = egress
        self._schema = schema
        columns = _columns_of(schema)
        self._beside = columns.beside
        self._readers = SHAPE.readers(columns, form)

    def record_batch(self, found: Sequence[EgressValues]) -> pa.RecordBatch:
        """Return all values as rows, in their order; `PayloadError` if one does not fit."""
        values = [each.values for each in found]
        columns: dict[str, pa.Array] = {}
        try:
            for read in self._readers:
                columns.update(read(values))
        except Unfit as unfit:
            raise self._refusal(found, unfit) from None
        for name, what in self._beside.items():
            columns[name] = _BESIDE_COLUMNS[what](found)
        return pa.RecordBatch.from_arrays(
            [columns[field.name] for field in self._schema], schema=self._schema
        )

    def _refusal(self, found: Sequence[EgressValues], unfit: Unfit) -> PayloadError:
        index = unfit.index
        for values in found:
            if index < values.count:
                break
            index -= values.count
        where = f"position {values.first + index} of {values.partition}, key {values.keys[index]!r}"
        column = f"column {unfit.column!r}: " if unfit.column else ""
        return PayloadError(
            f"a value of the egress {self._egress} does not fit the schema ({where}): {column}"
            f"{unfit.detail}; change the schema, or leave it out to read payloads as they are"
        )


def _columns_of(schema: pa.Schema) -> Columns:
    """Sort the columns of a schema; `RowsError` if it is ambiguous."""
    columns = SHAPE.columns_of(schema, _NAMES)
    if columns.whole is not None and columns.fields:
        listed = ", ".join(each.name for each in columns.fields)
        raise RowsError(
            f"the schema has payload, which is the whole payload, and fields of it ({listed}); use "
            "payload STRUCT<...> with all fields, or drop payload"
        )
    unmarked = [name for name in columns.beside if not name.startswith("_")]
    if columns.whole is None and unmarked:
        marked = ", ".join(f"_{columns.beside[name]}" for name in unmarked)
        raise RowsError(
            f"without the column payload, {', '.join(unmarked)} is ambiguous; use {marked} for "
            "metadata, or payload STRUCT<...> with all fields for fields of that name"
        )
    return columns


# Metadata


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
