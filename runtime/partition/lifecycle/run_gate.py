"""The runs of a partition that are in flight, whether one more may begin, and how large it may be.

No effects, and nothing is taken from any line: the partition does that when it has its turn. One
more run has to wait

- while one is in flight that holds no keys, or as many as there may be at once;
- while the next commit is full, or could become too large by what runs already;
- while messages come that are more urgent than what has no deadline at all, which pauses then;
- until states that a handler may have spoiled can be read again;
- while so many handlers await something that only messages of other partitions may come.
"""

from __future__ import annotations

from collections.abc import Iterator

from sublet.functions.app import Function
from sublet.runtime.config.limits import Limits
from sublet.runtime.partition.commit.commit_budget import CommitBudget
from sublet.runtime.partition.lifecycle.background import BackgroundThrottle
from sublet.runtime.partition.lifecycle.tainted_states import TaintedStates
from sublet.runtime.partition.model.effects import Pace
from sublet.runtime.partition.model.work import Work
from sublet.runtime.partition.queue.awaiting_handlers import AwaitingHandlers
from sublet.runtime.partition.queue.work_queue import WorkQueue
from sublet.scheduler.pace import RUNS_AT_ONCE


class RunGate:
    __slots__ = (
        "_awaiting",
        "_background",
        "_budget",
        "_function",
        "_queue",
        "_tainted",
        "in_flight",
        "unrecorded",
    )

    def __init__(
        self,
        function: Function,
        *,
        queue: WorkQueue,
        awaiting: AwaitingHandlers,
        budget: CommitBudget,
        tainted: TaintedStates,
        background: BackgroundThrottle,
    ) -> None:
        self.in_flight: dict[int, Work] = {}
        """By the number of the work; also those that wait for their states."""
        self.unrecorded: Work | None = None
        """The run, if any, without whose end nothing can be committed."""
        self._function = function
        self._queue = queue
        self._awaiting = awaiting
        self._budget = budget
        self._tainted = tainted
        self._background = background

    def begin(self, work: Work, *, off_loop: bool) -> None:
        work.off_loop = off_loop
        # Whole columns hold no keys, wherever they run: until their end nothing else starts.
        work.exclusive = not off_loop or bool(work.spans)
        self.in_flight[work.id] = work
        if not work.recorded:
            self.unrecorded = work

    def message_ids(self) -> Iterator[str]:
        """Return the messages whose handlers run or await something here."""
        for work in self.in_flight.values():
            for waiting in work.waiting:
                yield waiting.message.id
        yield from self._awaiting.by_id

    def ended(self, work: Work) -> None:
        del self.in_flight[work.id]
        if not work.recorded:
            self.unrecorded = None

    def has_exclusive_run(self) -> bool:
        """Tell whether a run is in flight that holds no keys: until its end nothing else starts."""
        for work in self.in_flight.values():
            # All that run are alike, so the first one tells.
            return work.exclusive
        return False

    def uses(self, key: str) -> bool:
        """Tell whether a run in flight may use the state of a key."""
        keyed = self._function.kind == "keyed"
        return any(not keyed or key in work.keys for work in self.in_flight.values())

    def takes_columns(self) -> bool:
        """Tell whether a run beside the loop takes whole columns: one at a time, for a handler that
        gets them as they are."""
        return self._function.takes_columns and not self.in_flight

    def may_begin(self, off_loop: bool, now_ms: float) -> bool:
        """Tell whether one more run may begin now."""
        if self.in_flight:
            if self.has_exclusive_run() or not off_loop:
                return False
            if len(self.in_flight) >= (self._function.concurrency or RUNS_AT_ONCE):
                return False
        if self._budget.is_full():
            return False
        if self._background.staging.fed_rows and self._background.pauses(now_ms):
            return False
        if (self._budget.tells_apart or self._tainted.keys) and not self._has_room_and_states():
            return False
        if self._queue.ready or self._awaiting.room > 0:
            return True
        return self._queue.backlog.peer_chunks > 0

    def may_begin_elsewhere(self) -> bool:
        """Tell whether somebody else may run messages now."""
        if self.has_exclusive_run() or self._tainted.keys or self._budget.runs_singly:
            return False
        if self._budget.is_full():
            return False
        return not self._budget.is_heavy or self._has_room_and_states()

    def _has_room_and_states(self) -> bool:
        if self._budget.tells_apart:
            running = sum([work.count for work in self.in_flight.values()])
            if not self._budget.has_room_beside(running):
                return False
        return not self._tainted.keys or self._tainted.drop()


class BatchSizer:
    """How many messages the next run may have."""

    __slots__ = ("_awaiting", "_budget", "_function", "_limits", "_pace")

    def __init__(
        self,
        function: Function,
        limits: Limits,
        pace: Pace,
        *,
        budget: CommitBudget,
        awaiting: AwaitingHandlers,
    ) -> None:
        self._function = function
        self._limits = limits
        self._pace = pace
        self._budget = budget
        self._awaiting = awaiting

    def batch_size(self) -> int:
        if self._budget.runs_singly:
            return 1
        function = self._function
        limit = function.batch_size_max or self._limits.batch_size_max
        if function.batch_size is not None:
            limit = min(limit, function.batch_size)
        if function.is_async:
            limit = max(1, min(limit, self._awaiting.room))
        limit = self._budget.batch_size(limit)
        return max(1, self._pace.batch_size(function, limit))
