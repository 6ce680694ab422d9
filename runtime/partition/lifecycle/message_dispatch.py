"""Messages that a partition takes one by one, as objects, and not in whole columns.

Those that are ready after they have waited by themselves, and those of the backlog whose keys may
be busy, or beside which other runs go on. What need not run any more ends here; what cannot run yet
is put on record as a waiter of its key. No effects: the partition starts the runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from sublet.functions.app import Function
from sublet.runtime.partition.lifecycle.completion import MessageCompletion
from sublet.runtime.partition.lifecycle.parked_messages import ParkedMessages
from sublet.runtime.partition.model.early_ends import expired
from sublet.runtime.partition.model.work import QueuedMessage, Span, Work, gathered
from sublet.runtime.partition.queue.arrival_order import ArrivalOrder
from sublet.runtime.partition.queue.backlog import MessageRef
from sublet.runtime.partition.queue.key_locks import KeyLocks
from sublet.runtime.partition.queue.leased_work import is_lendable
from sublet.runtime.partition.queue.work_queue import WorkQueue
from sublet.runtime.partition.records.positions import Positions
from sublet.runtime.protocol.frames import ErrorInfo

LENT_BYTES_MAX = 1024 * 1024
"""Of larger batches each message is on record by itself while it is lent."""


class MessageDispatch:
    def __init__(
        self,
        function: Function,
        *,
        queue: WorkQueue,
        locks: KeyLocks,
        arrivals: ArrivalOrder,
        positions: Positions,
        parked: ParkedMessages,
        completion: MessageCompletion,
    ) -> None:
        self._function = function
        self._queue = queue
        self._locks = locks
        self._arrivals = arrivals
        self._positions = positions
        self._parked = parked
        self._completion = completion

    def take_ready(self, size: int, now_ms: float) -> Work | None:
        """Take up to so many that are ready, and waiters; None if none of them has to run."""
        ready, load = self._locks.ready, self._queue.load
        taken: list[QueuedMessage] = []
        while ready and len(taken) < size:
            first = ready[0]
            together = self._function.batch is not False and bool(taken)
            if together and max(first.message.attempt, taken[0].message.attempt) > 1:
                # A batch with one that failed before could fail again, and blame the others.
                break
            ready.popleft()
            if first.entry is not None:
                load.untrack_message(first)
            if (over := self.is_over(first, now_ms)) is not None:
                self._completion.complete_unexecuted(first, over, now_ms)
                self._locks.release(self._locks.lock_of(first.message))
            else:
                taken.append(first)
        if not taken:
            return None
        self._take_waiters(taken, size, now_ms)
        work = self._queue.work(taken)
        work.rank_last = max([each.rank or 0.0 for each in taken])
        return work

    def _take_waiters(self, taken: list[QueuedMessage], size: int, now_ms: float) -> None:
        """Fill a run with what waits for the keys that it holds anyway.

        With one message a run, a hot key that has once fallen behind would never catch up. After
        one that failed before they wait: it may fail again.
        """
        load = self._queue.load
        for holder in tuple(taken):
            if holder.message.attempt > 1:
                continue
            waiters = self._locks.keys.get(self._locks.lock_of(holder.message))
            while waiters and len(taken) < size and waiters[0].message.attempt == 1:
                waiter = waiters.popleft()
                if waiter.entry is not None:
                    load.untrack_message(waiter)
                over = self.is_over(waiter, now_ms)
                if over is None:
                    taken.append(waiter)
                else:
                    self._completion.complete_unexecuted(waiter, over, now_ms)

    def is_over(self, waiting: QueuedMessage, now_ms: float) -> ErrorInfo | None:
        """Return why a message that waits for a run need not run."""
        due_ms = waiting.deadline_ms
        if waiting.expires and due_ms is not None and due_ms < now_ms:
            return expired(waiting)
        return waiting.interrupted

    def take(
        self,
        refs: Sequence[MessageRef],
        now_ms: float,
        *,
        many_runs: bool,
        spans: Sequence[Span] = (),
    ) -> Work | None:
        """Take messages as objects: keys may be busy, or several runs go on at once.

        They are those of the spans; without any, they were pulled out of their lines.
        """
        runnable: list[QueuedMessage] = []
        mine: set[str] = set()
        ahead = not spans
        for chunk, index in refs:
            waiting = self._arrivals.message(chunk, index)
            if ahead:
                self._positions.took_ahead(waiting.message.source, waiting.message.number)
            if (over := self.is_over(waiting, now_ms)) is not None:
                self._completion.complete_unexecuted(waiting, over, now_ms)
                continue
            lock = self._locks.lock_of(waiting.message)
            if lock in self._locks.keys and lock not in mine:
                self._locks.keys[lock].append(waiting)
                self._parked.park_waiter(waiting)
                self._queue.load.has_waiter(lock)
                continue
            self._parked.began(waiting)
            if many_runs:
                # Others may commit before this run does, so its messages have to be on record.
                mine.add(lock)
                self._locks.hold(waiting)
                self._parked.park(waiting)
            runnable.append(waiting)
        for chunk, _, stop in spans:
            self._positions.took(chunk.batch.source, chunk.batch.first + stop - 1)
        work = self._work(refs, runnable)
        if work is not None and not many_runs:
            # Until it ends, the positions above include messages that are nowhere else.
            work.recorded = False
        return work

    def take_for_lease(
        self, refs: Sequence[MessageRef], now_ms: float, *, in_parts: bool
    ) -> Work | None:
        """Take messages that were pulled out of their lines, to run elsewhere."""
        work: Work | None
        if self._are_plain(refs, now_ms):
            work = self._take_columns(refs, now_ms, in_parts=in_parts)
        elif in_parts:
            work = self._take_parts(refs, now_ms)
        else:
            work = self.take(refs, now_ms, many_runs=True)
        if work is not None:
            self._parked.count_lent(work.count)
        return work

    def _are_plain(self, refs: Sequence[MessageRef], now_ms: float) -> bool:
        """Tell whether messages have nothing of their own, so that they can stay columns."""
        if self._arrivals.keeps_times:
            return False
        payload_bytes = 0
        for chunk in {chunk for chunk, _ in refs}:
            if self._queue.is_single(chunk, now_ms):
                return False
            if not self._parked.keeps_columns(chunk.batch.source):
                return False
            payload_bytes += len(memoryview(chunk.batch.payloads))
        return payload_bytes <= LENT_BYTES_MAX

    def _take_columns(
        self, refs: Sequence[MessageRef], now_ms: float, *, in_parts: bool
    ) -> Work | None:
        """Take messages as columns; those whose keys are busy wait for them by themselves."""
        locks = self._locks
        if not in_parts and locks.keys:
            able: list[MessageRef] = []
            busy: list[MessageRef] = []
            for chunk, index in refs:
                is_busy = locks.is_busy(chunk.batch.keys[index])
                (busy if is_busy else able).append((chunk, index))
            if busy:
                self.take(busy, now_ms, many_runs=True)
            if not able:
                return None
            refs = able
        columns, deadlines_ms, origins = gathered(refs, self._arrivals.next_of(len(refs)))
        work = self._queue.column_work(columns, deadlines_ms, origins)
        numbers = columns.each_number()
        for start, stop, source, *_ in origins:
            self._positions.took_some(source, numbers[start:stop])
        if not in_parts:
            locks.hold_all(work.distinct_keys)
        self._parked.park_columns(work)
        first, last = refs[0][0], refs[-1][0]
        work.rank, work.rank_last, work.arrived_ms = first.rank, last.rank, first.arrived_ms
        return work

    def _take_parts(self, refs: Sequence[MessageRef], now_ms: float) -> Work | None:
        """Take messages that run in parts, which need no key."""
        runnable: list[QueuedMessage] = []
        for chunk, index in refs:
            waiting = self._arrivals.message(chunk, index)
            self._positions.took_ahead(waiting.message.source, waiting.message.number)
            if (over := self.is_over(waiting, now_ms)) is not None:
                self._completion.complete_unexecuted(waiting, over, now_ms)
                continue
            self._parked.park(waiting)
            if is_lendable(waiting):
                runnable.append(waiting)
            else:
                # As a retry that is due: a run on the loop may be using its key without holding it.
                self._locks.retry_at(now_ms, waiting)
        return self._work(refs, runnable)

    def _work(self, refs: Sequence[MessageRef], runnable: Sequence[QueuedMessage]) -> Work | None:
        if not runnable:
            return None
        first, last = refs[0][0], refs[-1][0]
        work = self._queue.work(runnable)
        work.rank, work.rank_last, work.arrived_ms = first.rank, last.rank, first.arrived_ms
        return work
