"""What runs have changed and sent goes into the next commit, and into what is known beside it.

Timers and windows that a handler has set are known at once, though the store hears of them only
with the commit; states that ran here are forgotten where lessees have a copy of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from sublet.functions.effects import Effect
from sublet.runtime.partition.commit.pending_commit import PendingCommit
from sublet.runtime.partition.lifecycle.background import BackgroundThrottle
from sublet.runtime.partition.model.effects import Counters
from sublet.runtime.partition.model.lease import StateVersions
from sublet.runtime.partition.model.work import RunResult, Work
from sublet.runtime.partition.records.timers import TimerIndex
from sublet.runtime.partition.records.watermarks import StreamProgress
from sublet.statestore.contract import StateRow


class RunResults:
    __slots__ = ("_background", "_counters", "_pending", "_progress", "_timers", "_versions")

    def __init__(
        self,
        *,
        pending: PendingCommit,
        timers: TimerIndex,
        progress: StreamProgress,
        versions: StateVersions,
        background: BackgroundThrottle,
        counters: Counters,
    ) -> None:
        """`versions` are those of the states that lessees have."""
        self._pending = pending
        self._timers = timers
        self._progress = progress
        self._versions = versions
        self._background = background
        self._counters = counters

    def add(self, work: Work, result: RunResult) -> None:
        """A work has run, here or elsewhere."""
        self._counters.runs += 1
        if self._versions and work.lease is None:
            self._versions.forget({row.key for row in result.rows})
        if self._background.staging.fed_rows:
            self._background.ran(work)
        if not result.effects:
            self._pending.add_run(result.rows, ())
            return
        waiting = work.waiting if work.columns is None else ()
        traced = bool(waiting) and any(each.traced is not None for each in waiting)
        self._add_run(result.rows, result.effects, traced)

    def comes_too_late(self, result: RunResult) -> bool:
        """Tell whether time has passed windows here that were opened meanwhile elsewhere."""
        return self._progress.has_passed(result.effects)

    def add_rows(self, rows: Sequence[StateRow]) -> None:
        """Rows follow from what the latest run has changed."""
        self._pending.add_rows(rows)

    def add_late(self, rows: Sequence[StateRow], effects: Sequence[Effect], traced: bool) -> None:
        """A handler has ended that had been awaiting something."""
        if self._versions:
            self._versions.forget({row.key for row in rows})
        self._add_run(rows, effects, traced)

    def _add_run(self, rows: Sequence[StateRow], effects: Sequence[Effect], traced: bool) -> None:
        self._pending.add_run(rows, effects, traced=traced)
        self._timers.note(effects)
        self._pending.record_all(self._progress.note(effects))
        self._counters.too_late = self._progress.too_late
