"""`format("sublet")` as a source: what functions emit to an egress, as a stream or a bounded read.

Spark asks in its driver how far the egress has come, cuts batches and keeps their offsets; tasks
then read exactly what is between two cursors. A batch that Spark repeats has the same rows. What
is decided is in `offsets`, what becomes a row in `emitted_rows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

import structlog
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from sublet.runtime.client.egress_cursor import EgressCursor
from sublet.runtime.protocol.egress import described
from sublet.spark_bridge.arrow_schema import arrow_schema_of
from sublet.spark_bridge.connections import client_of
from sublet.spark_bridge.options import SourceOptions, source_options
from sublet.spark_bridge.source import offsets
from sublet.spark_bridge.source.emitted_rows import SHAPE, EmittedRows
from sublet.spark_bridge.source.offsets import Offset, Span
from sublet.spark_bridge.values import ALLOWED

if TYPE_CHECKING:
    import pyarrow as pa

_log = structlog.get_logger(__name__)


def schema_of(options: Mapping[str, str]) -> str:
    """Return the columns of a reader without a schema of the user."""
    return SHAPE.default_schema(source_options(options).payload)


def reader(schema: StructType, options: Mapping[str, str]) -> EgressBatchReader:
    """Return the reader of a bounded read."""
    return EgressBatchReader(_Egress(source_options(options), schema))


def stream_reader(schema: StructType, options: Mapping[str, str]) -> EgressStreamReader:
    """Return the reader of a stream."""
    return EgressStreamReader(_Egress(source_options(options), schema))


class EgressTask(InputPartition):
    """What one task reads: the values between two cursors."""

    def __init__(self, span: Span) -> None:
        super().__init__(None)
        self.start = str(span.start)
        self.end = str(span.end)


class _Egress:
    """An egress and the schema for its values. Spark sends it from the driver to executors."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self._warned_of_empty = False
        self._schema: pa.Schema = arrow_schema_of(schema, ALLOWED)
        # A schema that no value can fit fails here, before anything runs.
        EmittedRows(options.egress, self._schema, options.payload)

    def bounds(self) -> tuple[EgressCursor, EgressCursor]:
        """Return where the egress begins and ends now."""
        connection = self.options.connection
        client = client_of(connection, retry=True)
        found = client.egress_bounds(self.options.egress, timeout=connection.timeout_ms)
        if not dict(found[1]) and not self._warned_of_empty:
            self._warned_of_empty = True
            _log.warning(
                "no function has emitted to this egress yet; reading it anyway",
                egress=self.options.egress,
            )
        return found

    def tasks(self, span: Span) -> list[EgressTask]:
        return [EgressTask(each) for each in offsets.planned(span, self.options.tasks)]

    def check(self, span: Span, first: EgressCursor) -> None:
        """Raise if a part of a span is gone; if lost values are to be skipped, log it instead."""
        options = self.options
        lost = offsets.checked(options.egress, span, first, skips_lost=options.skips_lost)
        if lost:
            _log.error(
                "values of an egress are lost; skipped them",
                egress=options.egress,
                what=described(lost),
            )

    def read(self, task: EgressTask) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task; read on while Spark takes what was read."""
        options = self.options
        rows = EmittedRows(options.egress, self._schema, options.payload)
        client = client_of(options.connection, retry=True)
        values = client.egress_range(
            options.egress,
            task.start,
            task.end,
            lost="skip" if options.skips_lost else "raise",
            timeout=options.connection.timeout_ms,
        )
        with closing(values.batches()) as batches:
            for found in batches:
                yield rows.record_batch(found)


class EgressBatchReader(DataSourceReader):
    """Reads what an egress has when the read is planned, or between two cursors."""

    def __init__(self, egress: _Egress) -> None:
        self._egress = egress

    def partitions(self) -> list[EgressTask]:
        egress, options = self._egress, self._egress.options
        first, end = egress.bounds()
        start = offsets.placed(options.start, first, end)
        span = Span(start, offsets.placed(options.until, first, end))
        # Neither may be beyond the end.
        egress.check(Span(span.end, end), EgressCursor())
        egress.check(Span(start, end), EgressCursor())
        egress.check(span, first)
        return egress.tasks(span)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # If there is nothing to read, Spark starts a task all the same.
        return self._egress.read(partition) if isinstance(partition, EgressTask) else iter(())


class EgressStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what comes to an egress, batch by batch."""

    def __init__(self, egress: _Egress) -> None:
        self._egress = egress
        self._first: Offset | None = None
        self._target: EgressCursor | None = None
        """Where a query ends that reads only what is there."""
        self._end: EgressCursor | None = None
        """Where the egress ended when we last looked."""

    def initialOffset(self) -> Offset:  # noqa: N802
        # Spark asks more than once, and has to get the same answer.
        if self._first is None:
            options = self._egress.options
            cursor = offsets.placed(options.start, *self._egress.bounds())
            self._first = offsets.first_offset(options.egress, cursor)
        return self._first

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows_max = self._egress.options.rows_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        _, self._target = self._egress.bounds()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        egress = self._egress
        offsets.check_offset(egress.options.egress, start)
        first, end = egress.bounds()
        self._end = end
        egress.check(Span(offsets.cursor_of(start), end), first)
        if self._target is not None:
            end = self._target
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return offsets.latest_offset(start, first, end, rows_max)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        end = self._end
        return None if end is None else {"egress": self._egress.options.egress, "cursor": str(end)}

    def partitions(self, start: Offset, end: Offset) -> list[EgressTask]:
        for each in (start, end):
            offsets.check_offset(self._egress.options.egress, each)
        return self._egress.tasks(offsets.span_of(start, end))

    def read(self, partition: EgressTask) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        return self._egress.read(partition)

    def commit(self, end: Offset) -> None:
        """Nothing: an egress is kept by count, bytes and age, not for one reader."""
