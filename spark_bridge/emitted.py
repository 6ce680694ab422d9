"""Values of an egress as Arrow record batches: the counterpart of `rows`.

Pure: columns of msgpack in, record batches out. A schema either has the columns of `WHOLE`, with
the payload as JSON or msgpack, or is one of the user's own: its columns are fields of the payload,
and what is known beside the payload is in columns whose names begin with "_". What does not fit is
refused with the column, the partition and the position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
from pyarrow import types as arrow

from sublet.functions.address import split_partition_name
from sublet.functions.errors import PayloadError
from sublet.runtime.unary import EgressValues
from sublet.spark_bridge.rows import RowsError
from sublet.spark_bridge.values import (
    Unfit,
    binary_column,
    fields_reader,
    json_column,
    whole_reader,
)

PAYLOAD = "payload"
"""The column that gets the whole payload."""
BESIDE = {
    "key": "string",
    "function": "string",
    "partition": "int",
    "position": "bigint",
    "at": "timestamp",
}
"""What is known of a value beside its payload, with its type in Spark."""
WHOLE = ("key", PAYLOAD, "function", "partition", "position", "at")
Form = Literal["json", "binary", "typed"]

_ARROW_OF = {
    "string": arrow.is_string,
    "int": arrow.is_int32,
    "bigint": arrow.is_int64,
    "timestamp": lambda kind: arrow.is_timestamp(kind) and kind.tz is not None,
}


def whole_schema(form: Form) -> str:
    """Return the schema of a reader that was told no other one, as Spark writes it."""
    kinds = {**BESIDE, PAYLOAD: "binary" if form == "binary" else "string"}
    return ", ".join(f"{name} {kinds[name].upper()}" for name in WHOLE)


class EmittedRows:
    """Turns values of an egress into record batches of one schema."""

    def __init__(self, egress: str, schema: pa.Schema, form: Form) -> None:
        """`RowsError` if no payload can fit the schema.

        With the form "typed" the columns of the schema are fields of the payload, or, if `payload`
        is the only one, that is the payload itself.
        """
        self._egress = egress
        self._schema = schema
        self._beside: dict[str, str] = {}
        """Columns that are not of the payload, with what they hold."""
        fields: list[pa.Field] = []
        prefix = "" if tuple(schema.names) == WHOLE else "_"
        for field in schema:
            what = field.name.removeprefix(prefix)
            if what in BESIDE and field.name == prefix + what:
                _check_beside(field, BESIDE[what])
                self._beside[field.name] = what
            else:
                fields.append(field)
        self._payload_of = _payload_reader(fields, form)

    def record_batch(self, found: Sequence[EgressValues]) -> pa.RecordBatch:
        """Return all values as rows, in their order; `PayloadError` if one does not fit."""
        columns: dict[str, pa.Array] = {}
        try:
            columns.update(self._payload_of(found))
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
            f"{unfit.detail}; change the schema, or read payloads as they are, without one"
        )


def _columns(found: Sequence[EgressValues]) -> list[bytes]:
    return [each.values for each in found]


def _is_whole(fields: Sequence[pa.Field]) -> bool:
    return [each.name for each in fields] == [PAYLOAD]


PayloadColumns = Callable[[Sequence[EgressValues]], dict[str, pa.Array]]


def _payload_reader(fields: Sequence[pa.Field], form: Form) -> PayloadColumns:
    if form == "typed":
        read = whole_reader(fields[0]) if _is_whole(fields) else fields_reader(fields)
        return lambda found: read(_columns(found))
    wanted = pa.binary() if form == "binary" else pa.string()
    if [(each.name, each.type) for each in fields] != [(PAYLOAD, wanted)]:
        listed = ", ".join(f"{each.name} {each.type}" for each in fields) or "none"
        beside = ", ".join(f"_{name}" for name in BESIDE)
        raise RowsError(
            f"with the option payload={form}, the schema has the column {PAYLOAD} {wanted}, beside "
            f"{beside}; it has {listed}"
        )
    column_of = binary_column if form == "binary" else json_column
    return lambda found: {PAYLOAD: column_of(PAYLOAD, _columns(found))}


# What is beside the payload


def _check_beside(field: pa.Field, told: str) -> None:
    if not _ARROW_OF[told](field.type):
        raise RowsError(f"column {field.name!r} is {field.type}; allowed: {told.upper()}")


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
