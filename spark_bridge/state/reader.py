"""`format("sublet-state")` as a source: the states of a function, each partition at one commit.

The planner pins all partitions at once. Tasks then read what was pinned for them from the owners of
the partitions, while messages go on, and keep the pins of tasks that still wait alive. A task whose
pins are gone (the owner has changed, or no task of this read ran for too long) pins its partitions
again, as long as it has given none of their rows to Spark; otherwise it fails, and Spark repeats
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    In,
    InputPartition,
)
from pyspark.sql.types import StructType

from sublet.runtime.client.snapshots import SnapshotPin
from sublet.spark_bridge.arrow_schema import arrow_schema_of
from sublet.spark_bridge.connections import client_of
from sublet.spark_bridge.options import StateOptions, state_options
from sublet.spark_bridge.state.rows import (
    SHAPE,
    StateRows,
    Wanted,
    kept_for_others,
    shares,
)
from sublet.spark_bridge.values import ALLOWED

if TYPE_CHECKING:
    import pyarrow as pa

TASKS_DEFAULT = 8


def schema_of(options: Mapping[str, str]) -> str:
    """Return the columns of a reader without a schema of the user."""
    return SHAPE.default_schema(state_options(options).state)


def reader(schema: StructType, options: Mapping[str, str]) -> StateReader:
    return StateReader(schema, state_options(options))


class StateTask(InputPartition):
    """What one task reads: some partitions, as they were pinned for it."""

    def __init__(self, pins: list[SnapshotPin], kept: list[SnapshotPin]) -> None:
        super().__init__(None)
        self.pins = pins
        self.kept = kept
        """Of tasks that may have to wait for this one."""


class _PushFilters:
    """Takes the filters that Spark pushes down, if it does.

    Spark refuses readers that define `pushFilters` unless pushing filters to Python sources is
    enabled, which it is not by default. Without it, Spark filters the rows itself, which is just as
    correct. So it is shown its own method, and calls this one only if it pushes filters.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: StateReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.narrow(filters)


class StateReader(DataSourceReader):
    """Reads the states of a function. Spark sends it from the driver to executors."""

    def __init__(self, schema: StructType, options: StateOptions) -> None:
        self._options = options
        self._schema: pa.Schema = arrow_schema_of(schema, ALLOWED)
        self._wanted = Wanted()
        self.pushFilters = _PushFilters(self)  # type: ignore[method-assign]
        # A schema that no state can fit fails here, before anything runs.
        StateRows(options.function, self._schema, options.state)

    def narrow(self, filters: list[Filter]) -> Iterable[Filter]:
        """Apply these filters as far as possible; return those that Spark has to apply."""
        for each in filters:
            narrowed = None
            match each:
                case EqualTo() | EqualNullSafe() if len(each.attribute) == 1:
                    narrowed = self._wanted.narrowed(each.attribute[0], [each.value])
                case In() if len(each.attribute) == 1:
                    narrowed = self._wanted.narrowed(each.attribute[0], each.value)
            if narrowed is None:
                yield each
            else:
                self._wanted = narrowed

    def partitions(self) -> list[StateTask]:
        options, wanted = self._options, self._wanted
        client = client_of(options.connection, retry=True)
        if wanted.partitions is not None:
            counts = [
                each.partition_count
                for each in client.topology.functions
                if each.is_named(options.function)
            ]
            known = range(max(counts, default=0))
            wanted = wanted._replace(partitions=wanted.partitions & set(known))
        snapshot = client.snapshot(
            options.function,
            keys=wanted.keys,
            partitions=wanted.partitions,
            timeout=options.connection.timeout_ms,
        )
        snapshot.pin()
        pins = snapshot.pins
        planned = shares(sorted(pins), options.tasks or TASKS_DEFAULT)
        return [
            StateTask([pins[index] for index in own], [pins[index] for index in kept])
            for own, kept in zip(planned, kept_for_others(planned), strict=True)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # If there is nothing to read, Spark starts a task all the same, with nothing of ours.
        return self._read(partition) if isinstance(partition, StateTask) else iter(())

    def _read(self, task: StateTask) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task; read on while Spark takes what was read."""
        options = self._options
        rows = StateRows(options.function, self._schema, options.state)
        client = client_of(options.connection, retry=True)
        snapshot = client.snapshot(
            options.function,
            keys=self._wanted.keys,
            partitions=[each.partition for each in task.pins],
            timeout=options.connection.timeout_ms,
            pins=[*task.pins, *task.kept],
        )
        with snapshot, closing(snapshot.pages()) as pages:
            for page in pages:
                yield rows.record_batch(page)
