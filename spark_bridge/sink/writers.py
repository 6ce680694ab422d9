"""Writers of `format("sublet")`: what Spark asks for, put into the words of `tasks` and `commit`.

Where a writer lives: Spark makes one in a process beside the driver when it plans a batch, sends it
to the tasks by pickle, and makes *another one*, in yet another process, to commit a stream's batch.
So a writer knows what its options say and nothing else; what a commit has to know comes in the
messages of the tasks.
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
    begun,
    bring,
    drop,
    quietly,
    schema_of,
)

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"
"""Local properties of tasks of streaming queries."""


@dataclass(frozen=True, slots=True)
class BroughtMessage(WriterCommitMessage):
    """What a task tells whoever commits, as Spark carries it."""

    brought: StagedRows


class StreamWriter(DataSourceStreamArrowWriter):
    """Brings micro-batches of a streaming query, each of which has its effect once."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return BroughtMessage(bring(iterator, self._plan, _identity(self._plan.run)))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        # Without tasks there is nothing to commit, and nobody who could say which query it is.
        if brought := brought_in(messages):
            options = self._plan.options
            pipeline = begun(options, brought[0].identity)
            commit(pipeline, options, brought, options.wait or "sealed")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        abort_quietly(self._plan.options, messages)


class BatchWriter(DataSourceArrowWriter):
    """Brings all rows of a table at once, as one batch."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        self._identity = identity_of_write(plan)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return BroughtMessage(bring(iterator, self._plan, self._identity))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        brought = brought_in(messages)
        if not brought:
            return
        options = self._plan.options
        pipeline = begun(options, self._identity)
        commit(pipeline, options, brought, options.wait or ("sealed" if options.query else "taken"))
        if options.is_backfill and options.batch is None:
            pipeline.complete()
        if not options.query:
            # What has no name cannot come back.
            pipeline.forget()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        abort_quietly(self._plan.options, messages)


def stream_writer(
    schema: StructType, options: Mapping[str, str], overwrite: bool
) -> DataSourceStreamArrowWriter:
    """Return the writer of a streaming query; an error if its rows could never be messages."""
    if overwrite:
        raise OptionsError("format sublet adds to what was written; allowed: outputMode append")
    found = sink_options(options)
    if found.query:
        raise OptionsError("the option query is for batch writes; a stream is known by its own id")
    return StreamWriter(planned(schema, found))


def writer(
    schema: StructType, options: Mapping[str, str], overwrite: bool
) -> DataSourceArrowWriter:
    """Return the writer of a table; an error if its rows could never be messages."""
    if overwrite:
        raise OptionsError("format sublet adds to what was written; allowed: mode append")
    found = sink_options(options)
    check_ends(found)
    if found.is_backfill and not found.query:
        raise OptionsError("history needs a name, for who comes after it (option query)")
    plan = planned(schema, found)
    if plan.problem is not None:
        raise plan.problem
    return BatchWriter(plan)


def planned(
    schema: StructType, options: SinkOptions, if_exists: IfExists | None = None
) -> WritePlan:
    """Return what tasks have to know to bring rows of a schema; an error if these cannot be
    messages of the function, or with `if_exists` its states."""
    arrow_schema = arrow_schema_of(schema, f"{ALLOWED} (cast it)")
    layout_of(arrow_schema, key=options.key, payload=options.payload)
    try:
        message = schema_of(options, if_exists)
    except UnavailableError as error:
        # Not raised here: a commit in a time without workers also makes a writer first.
        return WritePlan(options=options, problem=error, if_exists=if_exists)
    layout_of(arrow_schema, key=options.key, payload=options.payload, message=message)
    return WritePlan(options=options, message=message, if_exists=if_exists)


def check_ends(options: SinkOptions) -> None:
    """Refuse a write of a table that nobody would ever forget: it is forgotten when it is done."""
    if options.wait == "sealed" and not options.query:
        raise OptionsError(
            "a write without a name is known until its rows are taken; drop the option wait, or "
            "give the write a name (option query)"
        )


def identity_of_write(plan: WritePlan) -> Identity:
    """Return whose rows a table's are: with a name, a batch is written once; without one, every
    write is another."""
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
        raise SubletError("Spark tells this task neither its query nor its batch")
    return Identity(query, run, int(batch))


def brought_in(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRows]:
    """Return what the tasks have told that did not fail."""
    return [each.brought for each in messages if isinstance(each, BroughtMessage)]


def abort_quietly(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Drop what was surely brought in vain."""
    told = [each.brought if isinstance(each, BroughtMessage) else None for each in messages]
    if dropped := safe_to_discard(told):
        staged = [each.staged for each in dropped]
        quietly(lambda: drop(options, dropped[0].identity, staged))
