"""Commits a batch: the driver names the attempts of its tasks that count, once and for all.

Runs in a process beside Spark's driver, perhaps a different one for each batch, so it only knows
what the tasks report. If anything is lost on the way (this process, the driver, workers), the batch
is committed again, with the same rows or others.
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
"""How long rows wait for history: staged rows are dropped after seven days."""

_log = structlog.get_logger(__name__)


class Committing(Protocol):
    """The part of a `BlockingPipeline` that is needed here. Its run has started."""

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
    """Turn the rows of a batch into messages; return when that is durable.

    Rides out failovers and a lack of room up to the pipeline's timeout. An error ends the query;
    when it is restarted, it repeats the batch.
    """
    identity = brought[0].identity
    staged = [each.staged for each in brought if each.staged.parts]
    if not staged:
        # What an earlier run had decided was finished when this one started.
        return Committed(0, is_ours=True)
    if options.after:
        wait_for_backfill(options)
    began_s = monotonic()
    committed = pipeline.commit(
        identity.batch, staged, deadline=options.deadline_ms, urgency=options.urgency
    )
    if not committed.is_ours:
        _log.warning(
            "batch was already committed; dropped the rows that were staged again",
            function=options.target,
            query=identity.query,
            batch=identity.batch,
            rows=sum(each.row_count for each in staged),
            rows_before=committed.row_count,
        )
    if wait == "taken":
        pipeline.wait_taken()
    _log.info(
        "committed a batch",
        function=options.target,
        query=identity.query,
        batch=identity.batch,
        rows=committed.row_count,
        ms=round(1000 * (monotonic() - began_s)),
    )
    return committed


def wait_for_backfill(options: SinkOptions) -> None:
    """Return when the backfill that rows have to come after is complete.

    Staged rows are durable and wait, too; Spark starts no other batch. After some days it raises
    `UnavailableError`, which ends the query: staged rows expire, and expired rows must not be
    committed.
    """
    client = client_of(options.connection, retry=True)
    timeout_ms = options.connection.timeout_ms
    history = client.pipeline(options.target, options.after, timeout=timeout_ms)
    if history.describe().completed_ms is None:
        # A warning, because it explains why Spark stands still.
        _log.warning(
            "waiting for a backfill to complete", function=options.target, backfill=options.after
        )
        if history.wait_complete(HELD_MAX).completed_ms is None:
            raise UnavailableError(
                f"backfill {options.after} of {options.target} did not complete within {HELD_MAX}; "
                "restart the query, which repeats its batch"
            )
        _log.warning("the backfill is complete", function=options.target, backfill=options.after)


def safe_to_discard(brought: Sequence[StagedRows | None]) -> list[StagedRows]:
    """Return what was staged for a batch that Spark aborts and is certainly not committed.

    Spark also aborts a batch whose commit has raised, and such a commit may have taken effect, or
    may yet. Only if a task has failed was there no commit. Otherwise everything is kept, and is
    dropped when the batch is repeated.
    """
    known = [each for each in brought if each is not None]
    if len(known) == len(brought):
        return []
    return [each for each in known if each.staged.parts]
