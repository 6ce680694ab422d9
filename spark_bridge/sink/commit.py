"""What makes a batch count: the driver names the attempts of its tasks, once and for all.

Runs in a process beside Spark's driver, perhaps another one for each batch; so nothing is known
here but what the tasks have said. Whatever is lost on the way (this process, the driver, workers)
is made up for by whoever commits the batch next, with the same rows or others.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Literal, Protocol

import structlog

from sublet.functions.duration import Duration
from sublet.functions.errors import UnavailableError
from sublet.runtime.client.pipeline_protocol import Committed, Staged
from sublet.spark_bridge.connections import client_of
from sublet.spark_bridge.options import SinkOptions
from sublet.spark_bridge.sink.tasks import StagedRows

HELD_MAX = "5d"
"""Rows wait for history no longer: what is staged is dropped after seven days."""

_log = structlog.get_logger(__name__)


class Committing(Protocol):
    """What is needed of a `BlockingPipeline` whose run has begun."""

    def commit(
        self,
        batch: int,
        staged: Sequence[Staged],
        *,
        deadline: Duration | None,
        urgency: Literal["normal", "lowest"],
    ) -> Committed: ...

    def wait_taken(self) -> None: ...


def commit(
    pipeline: Committing,
    options: SinkOptions,
    brought: Sequence[StagedRows],
    wait: Literal["sealed", "taken"],
) -> Committed:
    """Let the rows of a batch be messages; return when that is durable.

    Rides out failovers and lack of room for as long as the pipeline has patience: what is raised
    here ends the query, and the batch is brought again when that is started again.
    """
    identity = brought[0].identity
    staged = [each.staged for each in brought if each.staged.parts]
    if not staged:
        # What an earlier run had decided was finished when this one began.
        return Committed(0, is_ours=True)
    if options.after:
        wait_for_backfill(options)
    began_s = monotonic()
    committed = pipeline.commit(
        identity.batch, staged, deadline=options.deadline_ms, urgency=options.urgency
    )
    if not committed.is_ours:
        _log.warning(
            "this batch was committed before; what was brought again is dropped",
            function=options.target,
            query=identity.query,
            batch=identity.batch,
            rows=sum(each.row_count for each in staged),
            rows_before=committed.row_count,
        )
    if wait == "taken":
        pipeline.wait_taken()
    _log.info(
        "a batch is committed",
        function=options.target,
        query=identity.query,
        batch=identity.batch,
        rows=committed.row_count,
        ms=round(1000 * (monotonic() - began_s)),
    )
    return committed


def wait_for_backfill(options: SinkOptions) -> None:
    """Return when the history that rows have to come after is complete.

    What the batch has staged is durable, and waits with it; Spark begins no other batch. After some
    days `UnavailableError`, which ends the query: what is staged is dropped when it is old, and
    must not be decided about by then.
    """
    client = client_of(options.connection, patient=True)
    patience_ms = options.connection.patience_ms
    history = client.pipeline(options.target, options.after, patience=patience_ms)
    if history.describe().completed_ms is None:
        # A warning: whoever looks why Spark stands still has to find it.
        _log.warning("rows wait for a backfill", function=options.target, backfill=options.after)
        if history.wait_complete(HELD_MAX).completed_ms is None:
            raise UnavailableError(
                f"the backfill {options.after} of {options.target} is not complete after "
                f"{HELD_MAX}; start the query again, and it brings its batch again"
            )
        _log.warning("a backfill is complete", function=options.target, backfill=options.after)


def safe_to_discard(brought: Sequence[StagedRows | None]) -> list[StagedRows]:
    """Return what was surely brought in vain to a batch that Spark aborts.

    Spark also aborts a batch whose commit has raised, and that may have taken effect, or may yet.
    Only if a task has failed was there no commit. Otherwise all is left alone, and makes room when
    the batch is done again.
    """
    known = [each for each in brought if each is not None]
    if len(known) == len(brought):
        return []
    return [each for each in known if each.staged.parts]
