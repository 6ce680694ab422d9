"""The keyed count by what Spark itself offers, and sinks that do nothing: what the bridge is
measured against.

Spark's Python workers import this module: it has to be found on their path, and is light. The sinks
are data sources of their own, `noop_arrow` and `noop_rows`: rows reach Python and are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # As everyone calls it.
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

from benchmarks.spark.cases import (
    APPLY_IN_PANDAS,
    BUILT_IN,
    NOOP_ARROW,
    NOOP_ROWS,
    TRANSFORM_PANDAS,
    TRANSFORM_ROWS,
)

OUTPUT = "key string, count long"
STATE = "count long"


# Operators: for each key of a batch, once, its new count.


class RowCount(StatefulProcessor):
    """`transformWithState` on rows."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", STATE)

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Row]:
        known = self._count.get()
        count = known[0] if known else 0
        for row in rows:
            count += row.n
        self._count.update((count,))
        yield Row(key=key[0], count=count)

    def close(self) -> None:
        pass


class PandasCount(StatefulProcessor):
    """`transformWithStateInPandas`."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", STATE)

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Any]:
        import pandas as pd

        known = self._count.get()
        count = known[0] if known else 0
        for frame in rows:
            count += int(frame["n"].sum())
        self._count.update((count,))
        yield pd.DataFrame({"key": [key[0]], "count": [count]})

    def close(self) -> None:
        pass


def pandas_group_count(key: Any, frames: Iterable[Any], state: GroupState) -> Iterator[Any]:
    """`applyInPandasWithState`."""
    import pandas as pd

    count = state.get[0] if state.exists else 0
    for frame in frames:
        count += int(frame["n"].sum())
    state.update((count,))
    yield pd.DataFrame({"key": [key[0]], "count": [count]})


def _built_in(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").agg(F.sum("n").alias("count"))


def _transform_rows(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").transformWithState(RowCount(), OUTPUT, "update", "none")


def _transform_pandas(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").transformWithStateInPandas(PandasCount(), OUTPUT, "update", "none")


def _apply_in_pandas(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").applyInPandasWithState(
        pandas_group_count, OUTPUT, STATE, "update", GroupStateTimeout.NoTimeout
    )


OPERATORS = {
    BUILT_IN: _built_in,
    TRANSFORM_ROWS: _transform_rows,
    TRANSFORM_PANDAS: _transform_pandas,
    APPLY_IN_PANDAS: _apply_in_pandas,
}
"""What gives (key, count), in update mode, from (key, n)."""


# Sinks


class _DroppingArrowWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class _DroppingRowWriter(DataSourceStreamWriter):
    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class NoopArrow(DataSource):
    """Drops record batches."""

    @classmethod
    def name(cls) -> str:
        return "noop_arrow"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return _DroppingArrowWriter()


class NoopRows(DataSource):
    """Drops rows, one by one."""

    @classmethod
    def name(cls) -> str:
        return "noop_rows"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return _DroppingRowWriter()


SINKS: dict[str, type[DataSource]] = {NOOP_ARROW: NoopArrow, NOOP_ROWS: NoopRows}
