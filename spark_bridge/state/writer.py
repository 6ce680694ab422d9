"""Writers of `format("sublet-state")`: states that Spark has computed, set as they are.

No handler runs. States travel as rows of `format("sublet")` do: staged by tasks, named by the
driver, so that a batch is set once or not at all; each is then set between the messages of its key.
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
from sublet.spark_bridge.sink.tasks import WritePlan, begun, bring
from sublet.spark_bridge.sink.writers import (
    BroughtMessage,
    StreamWriter,
    abort_quietly,
    brought_in,
    check_ends,
    identity_of_write,
    planned,
)


class StatesRefusedError(RejectedError):
    """Some states were not set; all others were."""


class StatesWriter(DataSourceArrowWriter):
    """Sets the states of all keys of a table, as one batch."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        self._identity = identity_of_write(plan)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return BroughtMessage(bring(iterator, self._plan, self._identity))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Set the states; `StatesRefusedError` if some were not, and somebody waited for it."""
        brought = brought_in(messages)
        if not brought:
            return
        options = self._plan.options
        wait = options.wait or "taken"
        pipeline = begun(options, self._identity)
        refused = -pipeline.progress().rows_dead
        committed = commit(pipeline, options, brought, wait)
        if wait != "taken":
            return
        refused += pipeline.progress().rows_dead
        if not options.query:
            # What has no name cannot come back.
            pipeline.forget()
        if refused > 0:
            raise StatesRefusedError(
                f"{refused} of {committed.row_count} states of {options.target} were refused "
                f"(`sublet dead list {options.target}` says why), such as those of keys that have "
                "one (option ifexists); all others are set"
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        abort_quietly(self._plan.options, messages)


def writer(
    schema: StructType, options: Mapping[str, str], overwrite: bool
) -> DataSourceArrowWriter:
    """Return what sets states from a table; an error if its rows could never be states."""
    found, if_exists = _options(options, overwrite)
    check_ends(found)
    plan = planned(schema, found, if_exists or "fail")
    if plan.problem is not None:
        raise plan.problem
    return StatesWriter(plan)


def stream_writer(
    schema: StructType, options: Mapping[str, str], overwrite: bool
) -> DataSourceStreamArrowWriter:
    """Return what sets states from a stream, the latest one of each key."""
    found, if_exists = _options(options, overwrite)
    if found.query:
        raise OptionsError("the option query is for batch writes; a stream is known by its own id")
    if if_exists not in ("overwrite", "keep"):
        raise OptionsError(
            "a stream brings states of the same keys again; say what becomes of those that are "
            "there: option ifexists, overwrite or keep"
        )
    return StreamWriter(planned(schema, found, if_exists))


def _options(options: Mapping[str, str], overwrite: bool) -> tuple[SinkOptions, IfExists | None]:
    if overwrite:
        raise OptionsError(
            "format sublet-state sets states of single keys; allowed: mode append, with the option "
            "ifexists to replace those that are there"
        )
    return bulk_options(options)
