"""Writers of `format("sublet")`: Spark's interface on top of `tasks` and `commit`.

Where a writer lives: Spark creates one in a process beside the driver when it plans a batch,
pickles it to the tasks, and creates *another one*, in yet another process, to commit a batch of a
stream. So a writer only knows its options; what a commit needs to know comes in the tasks'
messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from sublet.functions.columns import ALLOWED
from sublet.functions.errors import SubletError, UnavailableError
from sublet.runtime.protocol.pipeline_messages import IfExists
from sublet.spark_bridge.arrow_schema import arrow_schema_of
from sublet.spark_bridge.options import OptionsError, SinkOptions, sink_options
from sublet.spark_bridge.sink.commit import commit, safe_to_discard
from sublet.spark_bridge.sink.rows import layout_of
from sublet.spark_bridge.sink.tasks import (
    Identity,
    StagedRows,
    WritePlan,
    drop,
    ensure_started,
    quietly,
    schema_of,
    stage_rows,
)

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"
"""Local properties of tasks of streaming queries."""


@dataclass(frozen=True, slots=True)
class StagedMessage(WriterCommitMessage):
    """What a task reports to the commit, as Spark carries it."""

    rows: StagedRows


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query, each exactly once."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return StagedMessage(stage_rows(iterator, self._plan, _identity(self._plan.run)))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        # Without tasks there is nothing to commit, and nothing tells which query it is.
        if staged := staged_by(messages):
            options = self._plan.options
            pipeline = ensure_started(options, staged[0].identity)
            commit(pipeline, options, staged, options.wait or "sealed")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        abort_quietly(self._plan.options, messages)


class BatchWriter(DataSourceArrowWriter):
    """Writes all rows of a table as one batch."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        self._identity = identity_of_write(plan)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return StagedMessage(stage_rows(iterator, self._plan, self._identity))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        staged = staged_by(messages)
        if not staged:
            return
        options = self._plan.options
        pipeline = ensure_started(options, self._identity)
        commit(pipeline, options, staged, options.wait or ("sealed" if options.query else "taken"))
        if options.is_backfill and options.batch is None:
            pipeline.complete()
        if not options.query:
            # A write without a name cannot be repeated.
            pipeline.forget()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        abort_quietly(self._plan.options, messages)


def stream_writer(
    schema: StructType, options: Mapping[str, str], overwrite: bool
) -> DataSourceStreamArrowWriter:
    """Return the writer of a streaming query; raise if its rows can never be messages."""
    if overwrite:
        raise OptionsError("format sublet can only append; use outputMode append")
    found = sink_options(options)
    if found.query:
        raise OptionsError(
            "the option query is for batch writes; drop it: a stream has an id of its own"
        )
    return StreamWriter(planned(schema, found))


def writer(
    schema: StructType, options: Mapping[str, str], overwrite: bool
) -> DataSourceArrowWriter:
    """Return the writer of a table; raise if its rows can never be messages."""
    if overwrite:
        raise OptionsError("format sublet can only append; use mode append")
    found = sink_options(options)
    check_ends(found)
    if found.is_backfill and not found.query:
        raise OptionsError(
            "mode=backfill needs a name that others can wait for; set the option query"
        )
    plan = planned(schema, found)
    if plan.problem is not None:
        raise plan.problem
    return BatchWriter(plan)


def planned(
    schema: StructType, options: SinkOptions, if_exists: IfExists | None = None
) -> WritePlan:
    """Return what tasks need to know to write rows of a schema; raise if these can never be
    messages of the function, or with `if_exists` its states."""
    arrow_schema = arrow_schema_of(schema, f"{ALLOWED} (cast it)")
    layout_of(arrow_schema, key=options.key, payload=options.payload)
    try:
        message = schema_of(options, if_exists)
    except UnavailableError as error:
        # Not raised here: Spark also creates a writer to commit, perhaps while no worker is up.
        return WritePlan(options=options, problem=error, if_exists=if_exists)
    layout_of(arrow_schema, key=options.key, payload=options.payload, message=message)
    return WritePlan(options=options, message=message, if_exists=if_exists)


def check_ends(options: SinkOptions) -> None:
    """Refuse a write of a table that would never be forgotten."""
    if options.wait == "sealed" and not options.query:
        raise OptionsError(
            "wait=sealed needs a named write; set the option query, or drop wait (a write without "
            "a name is forgotten once its rows are taken)"
        )


def identity_of_write(plan: WritePlan) -> Identity:
    """Return the identity of a write: with a name, a batch is written once; without one, every
    write is a new one."""
    options = plan.options
    if options.query:
        return Identity(options.query, plan.run, options.batch or 0)
    return Identity(uuid4().hex, "", 0)


def _identity(run: str) -> Identity:
    context = TaskContext.get()
    query = batch = None
    if context is not None:
        query = context.getLocalProperty(QUERY_ID)
        batch = context.getLocalProperty(BATCH_ID)
        run = context.getLocalProperty(RUN_ID) or run
    if query is None or batch is None:
        raise SubletError(
            "Spark did not give this task the ids of its query and batch; please report this, with "
            "the version of Spark"
        )
    return Identity(query, run, int(batch))


def staged_by(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRows]:
    """Return the reports of the tasks that did not fail."""
    return [each.rows for each in messages if isinstance(each, StagedMessage)]


def abort_quietly(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Drop what is certainly not committed."""
    found = [each.rows if isinstance(each, StagedMessage) else None for each in messages]
    if dropped := safe_to_discard(found):
        staged = [each.staged for each in dropped]
        quietly(lambda: drop(options, dropped[0].identity, staged))
