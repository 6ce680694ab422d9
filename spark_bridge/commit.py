"""What makes a batch count: the driver names the attempts of its tasks, once and for all.

Runs in a process beside Spark's driver, perhaps another one for each batch; so nothing is known
here but what the tasks have said. Whatever is lost on the way (this process, the driver, workers)
is made up for by whoever commits the batch next, with the same rows or others.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Literal

import structlog

from sublet.runtime.client_pipeline import Committed
from sublet.spark_bridge.options import SinkOptions
from sublet.spark_bridge.tasks import Brought, begun, drop_quietly

_log = structlog.get_logger(__name__)


def commit(
    options: SinkOptions, brought: Sequence[Brought], wait: Literal["sealed", "taken"]
) -> Committed | None:
    """Let the rows of a batch be messages; return when that is durable. None: there are none.

    Rides out failovers and lack of room for as long as the options have patience: what is raised
    here ends the query.
    """
    if not brought:
        return None
    identity = brought[0].identity
    began_s = monotonic()
    # What an earlier run has decided and left half done is finished by this.
    pipeline = begun(options, identity)
    staged = [each.staged for each in brought if each.staged.parts]
    if not staged:
        return None
    committed = pipeline.commit(
        identity.batch, staged, deadline=options.deadline_ms, urgency=options.urgency
    )
    if not committed.is_ours:
        _log.warning(
            "this batch was committed before; its rows of now are dropped",
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


def abort(options: SinkOptions, brought: Sequence[Brought | None]) -> None:
    """Drop the rows of a batch that came to nothing, if that is sure.

    Spark also aborts a batch whose commit has raised; that may have taken effect, or be about to.
    It names a failed task only if there was no commit. Otherwise rows are left alone: they make
    room when the batch is done again.
    """
    known = [each for each in brought if each is not None]
    if not known or len(known) == len(brought):
        return
    drop_quietly(options, known[0].identity, [each.staged for each in known if each.staged.parts])


def forget(options: SinkOptions, brought: Sequence[Brought]) -> None:
    """Let nothing be known of a query that never comes back."""
    if brought:
        begun(options, brought[0].identity).forget()
