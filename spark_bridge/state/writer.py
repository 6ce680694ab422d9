"""Writers of `format("sublet-state")`: set states that Spark has computed.

No handler runs. States travel like rows of `format("sublet")`: tasks stage them, the driver commits
them, so a batch is applied once or not at all. Each state is set between the messages of its key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from sublet.functions.errors import RejectedError
from sublet.runtime.protocol.pipeline_messages import IfExists
from sublet.spark_bridge.options import OptionsError, SinkOptions, bulk_options
from sublet.spark_bridge.sink.commit import commit
from sublet.spark_bridge.sink.tasks import WritePlan, ensure_started, stage_rows
from sublet.spark_bridge.sink.writers import (
    StagedMessage,
    StreamWriter,
    abort_quietly,
    check_ends,
    identity_of_write,
    planned,
    staged_by,
)


class StatesRefusedError(RejectedError):
    """Some states were not set; all others were."""


class StatesWriter(DataSourceArrowWriter):
    """Sets the states of all keys of a table, as one batch."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        self._identity = identity_of_write(plan)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return StagedMessage(stage_rows(iterator, self._plan, self._identity))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Set the states; `StatesRefusedError` if some were not set and the write waits for
        them."""
        staged = staged_by(messages)
        if not staged:
            return
        options = self._plan.options
        wait = options.wait or "taken"
        pipeline = ensure_started(options, self._identity)
        refused = -pipeline.progress().rows_dead
        committed = commit(pipeline, options, staged, wait)
        if wait != "taken":
            return
        refused += pipeline.progress().rows_dead
        if not options.query:
            # A write without a name cannot be repeated.
            pipeline.forget()
        if refused > 0:
            raise StatesRefusedError(
                f"{refused} of {committed.row_count} states of {options.target} were not set, for "
                "example because the key already has one (option ifexists); "
                f"`sublet dead list {options.target}` shows why; all others are set"
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        abort_quietly(self._plan.options, messages)


def writer(
    schema: StructType, options: Mapping[str, str], overwrite: bool
) -> DataSourceArrowWriter:
    """Return the writer of a table; raise if its rows can never be states."""
    found, if_exists = _options(options, overwrite)
    check_ends(found)
    plan = planned(schema, found, if_exists or "fail")
    if plan.problem is not None:
        raise plan.problem
    return StatesWriter(plan)


def stream_writer(
    schema: StructType, options: Mapping[str, str], overwrite: bool
) -> DataSourceStreamArrowWriter:
    """Return the writer of a stream, which sets the latest state of each key."""
    found, if_exists = _options(options, overwrite)
    if found.query:
        raise OptionsError(
            "the option query is for batch writes; drop it: a stream has an id of its own"
        )
    if if_exists not in ("overwrite", "keep"):
        raise OptionsError(
            "a stream writes states of the same keys again; set the option ifexists to overwrite "
            "or keep"
        )
    return StreamWriter(planned(schema, found, if_exists))


def _options(options: Mapping[str, str], overwrite: bool) -> tuple[SinkOptions, IfExists | None]:
    if overwrite:
        raise OptionsError(
            "format sublet-state cannot overwrite all states; use mode append, with "
            "ifexists=overwrite to replace those that exist"
        )
    return bulk_options(options)
