"""The runs of a partition that go on, whether one more may begin, and how large it may be.

No effects, and nothing is taken from any line: the partition does that when it has its turn. One
more run has to wait

- while one goes on that holds no keys, or as many as may go on at once;
- while the next commit is full, or could become too large by what runs already;
- while messages come that are more urgent than what has no deadline at all, which pauses then;
- until states that a handler may have spoiled can be read again;
- while so many handlers await something that only messages of other partitions may come.
"""

from __future__ import annotations

from sublet.functions.app import Function
from sublet.runtime.config.limits import Limits
from sublet.runtime.partition.lifecycle.completion import MessageCompletion
from sublet.runtime.partition.lifecycle.inflight_commit import InFlightCommit
from sublet.runtime.partition.model.effects import Cells, Pace
from sublet.runtime.partition.model.work import QueuedMessage, Work
from sublet.runtime.partition.queue.key_locks import KeyLocks
from sublet.runtime.partition.queue.leased_work import LentWork
from sublet.runtime.partition.queue.work_queue import WorkQueue
from sublet.runtime.partition.records.commit_budget import ROWS_AHEAD_MAX, CommitSize
from sublet.runtime.partition.records.oversized_messages import OversizedMessages
from sublet.runtime.partition.records.staged_batches import Staging
from sublet.scheduler.pace import RUNS_AT_ONCE
from sublet.scheduler.urgency import Urgency

BACKGROUND_MESSAGES_MAX = 200
"""Messages of the lowest urgency in one commit of a partition, while others are expected: these
would have to wait for it."""


class RunGate:
    __slots__ = (
        "_awaiting",
        "_backlog",
        "_cells",
        "_completion",
        "_function",
        "_in_flight_commit",
        "_lent",
        "_limits",
        "_pace",
        "_ready",
        "_size",
        "_staging",
        "_unstorable",
        "_urgency",
        "going",
        "tainted",
        "unrecorded",
    )

    def __init__(  # noqa: PLR0913  # All that a run may have to wait for, each by its name.
        self,
        function: Function,
        limits: Limits,
        pace: Pace,
        urgency: Urgency,
        cells: Cells,
        *,
        size: CommitSize,
        unstorable: OversizedMessages,
        queue: WorkQueue,
        lines: KeyLocks,
        awaiting: dict[str, QueuedMessage],
        lent: LentWork,
        staging: Staging,
        completion: MessageCompletion,
        in_flight_commit: InFlightCommit,
    ) -> None:
        """`awaiting` are the messages whose handlers await something."""
        self.going: dict[int, Work] = {}
        """By the number of the work; also those that wait for their states."""
        self.unrecorded: Work | None = None
        """The run, if any, without whose end nothing can be committed."""
        self.tainted: set[str] = set()
        """Keys whose states are read again, once everything that is known of them is committed."""
        self._function = function
        self._limits = limits
        self._pace = pace
        self._urgency = urgency
        self._cells = cells
        self._size = size
        self._unstorable = unstorable
        self._backlog = queue.backlog
        self._ready = lines.ready
        self._awaiting = awaiting
        self._lent = lent
        self._staging = staging
        self._completion = completion
        self._in_flight_commit = in_flight_commit

    def begin(self, work: Work, *, off_loop: bool) -> None:
        work.off_loop = off_loop
        # Whole columns hold no keys, wherever they run: until their end nothing else starts.
        work.exclusive = not off_loop or bool(work.spans)
        self.going[work.id] = work
        if not work.recorded:
            self.unrecorded = work

    def ended(self, work: Work) -> None:
        del self.going[work.id]
        if not work.recorded:
            self.unrecorded = None

    def has_exclusive_run(self) -> bool:
        """Tell whether a run goes on that holds no keys: until its end nothing else starts."""
        for work in self.going.values():
            # All that run are alike, so the first one tells.
            return work.exclusive
        return False

    def take_columns(self) -> bool:
        """Tell whether a run beside the loop takes whole columns: one at a time, for a handler that
        gets them as they are."""
        return self._function.takes_columns and not self.going

    # Whether one more may begin

    def may_begin(self, off_loop: bool, now_ms: float) -> bool:
        """Tell whether one more run may begin now."""
        if self.going:
            if self.has_exclusive_run() or not off_loop:
                return False
            if len(self.going) >= (self._function.concurrency or RUNS_AT_ONCE):
                return False
        if self._is_next_commit_full():
            return False
        if self._staging.fed_rows and self.background_room(now_ms) <= 0:
            return False
        if (
            self._size.is_heavy or self.tainted or self._unstorable.ids
        ) and not self._has_room_and_states():
            return False
        if self._ready or len(self._awaiting) < self._limits.open_calls_max:
            return True
        return self._backlog.peer_chunks > 0

    def may_begin_elsewhere(self) -> bool:
        """Tell whether somebody else may run messages now."""
        if self.has_exclusive_run() or self.tainted or self._unstorable.ids:
            return False
        if self._is_next_commit_full():
            return False
        return not self._size.is_heavy or self._has_room_and_states()

    def _is_next_commit_full(self) -> bool:
        pending = self._completion.pending
        return (
            pending.message_count >= self._limits.commit_messages_max
            or len(pending.rows) >= ROWS_AHEAD_MAX
        )

    def _has_room_and_states(self) -> bool:
        if self._size.is_heavy or self._unstorable.ids:
            ahead = self._completion.pending.message_count
            ahead += sum([work.count for work in self.going.values()])
            if (ahead and self._unstorable.ids) or not self._size.has_room_behind(ahead):
                return False
        return not self.tainted or self._drop_tainted()

    def _drop_tainted(self) -> bool:
        if self._in_flight_commit.commit is not None or self._completion.pending.rows:
            return False
        if self._lent.reads_for_parts:
            return False
        for key in self.tainted:
            self._cells.drop(key)
        self.tainted.clear()
        return True

    # How many messages it may have

    def batch_size(self) -> int:
        if self._unstorable.ids:
            return 1
        function = self._function
        limit = function.batch_size_max or self._limits.batch_size_max
        if function.batch_size is not None:
            limit = min(limit, function.batch_size)
        if function.is_async:
            limit = max(1, min(limit, self._limits.open_calls_max - len(self._awaiting)))
        limit = self._size.batch_size(limit)
        return max(1, self._pace.batch_size(function, limit))

    def background_room(self, now_ms: float) -> int:
        """Return how many messages may be begun, if background comes next: whatever is live waits
        for the commit that these are in, in all partitions of the worker."""
        chunk = self._backlog.first()
        if self._ready or chunk is None or not chunk.is_background:
            return self._limits.commit_messages_max
        if not self._urgency.is_live(now_ms):
            return self._limits.commit_messages_max
        if now_ms < self._urgency.background_ms:
            return 0
        return BACKGROUND_MESSAGES_MAX - self._completion.pending.message_count
