"""The schema of a Spark table as Arrow types, for readers and writers."""

from __future__ import annotations

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from sublet.spark_bridge.fitting import RowsError

_ONLY_OF_SPARK = ("variant", "geometry", "geography")
"""Arrow would carry these as structs of numbers and binaries that only Spark can read."""


def arrow_schema_of(schema: StructType, allowed: str) -> pa.Schema:
    """Return the types that tasks see; `RowsError` for a column that has no Arrow type."""
    for column in schema.fields:
        try:
            known = not _is_only_of_spark(column.dataType)
            to_arrow_schema(StructType([column]), timezone="UTC")
        except PySparkTypeError:
            known = False
        if not known:
            kind = column.dataType.simpleString()
            raise RowsError(f"column {column.name!r} has type {kind}; allowed: {allowed}")
    return to_arrow_schema(schema, timezone="UTC")


def _is_only_of_spark(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_is_only_of_spark(each.dataType) for each in kind.fields)
    if isinstance(kind, ArrayType):
        return _is_only_of_spark(kind.elementType)
    if isinstance(kind, MapType):
        return _is_only_of_spark(kind.keyType) or _is_only_of_spark(kind.valueType)
    return kind.typeName() in _ONLY_OF_SPARK
