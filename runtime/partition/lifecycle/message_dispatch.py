"""Messages that a partition takes one by one, as objects, and not in whole columns.

Those that are ready after they have waited by themselves, and those of the backlog whose keys may
be busy, or beside which other runs go on. What need not run any more ends here; what cannot run yet
is put on record behind its key. No effects: the partition starts the runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sublet.functions.app import Function
from sublet.runtime.partition.lifecycle.completion import MessageCompletion
from sublet.runtime.partition.lifecycle.expiry import expired
from sublet.runtime.partition.model.work import Chunk, QueuedMessage, Span, Work
from sublet.runtime.partition.queue.backlog import Place
from sublet.runtime.partition.queue.key_locks import KeyLocks
from sublet.runtime.partition.queue.leased_work import is_lendable
from sublet.runtime.partition.queue.work_queue import WorkQueue
from sublet.runtime.partition.records.watermarks import StreamProgress
from sublet.runtime.protocol.frames import ErrorInfo


class SingleMessages:
    def __init__(
        self,
        function: Function,
        queue: WorkQueue,
        lines: KeyLocks,
        completion: MessageCompletion,
        progress: StreamProgress,
        clock_ms: Callable[[float], int],
        *,
        in_parts: bool,
    ) -> None:
        """`in_parts`: what crowds behind a key may run in parts elsewhere."""
        self.order = 0
        """That of the latest message that was taken; retries and watermarks keep it."""
        self._function = function
        self._queue = queue
        self._lines = lines
        self._completion = completion
        self._progress = progress
        self._clock_ms = clock_ms
        self._in_parts = in_parts

    def next_order(self) -> int:
        self.order += 1
        return self.order

    def message(self, chunk: Chunk, index: int) -> QueuedMessage:
        """Take one message out of its columns."""
        waiting = chunk.message(index, self.next_order())
        if self._progress.by_arrival:
            waiting.message.at_ms = self._clock_ms(chunk.arrived_ms)
        return waiting

    def take_ready(self, size: int, now_ms: float) -> Work | None:
        """Take up to so many that are ready, and followers; None if none of them has to run."""
        ready = self._lines.ready
        taken: list[QueuedMessage] = []
        while ready and len(taken) < size:
            first = ready[0]
            together = self._function.batch is not False and bool(taken)
            if together and max(first.message.attempt, taken[0].message.attempt) > 1:
                # A batch with one that failed before could fail again, and blame the others.
                break
            ready.popleft()
            if first.entry is not None:
                self._queue.unweigh_waiting(first)
            if (over := self.is_over(first, now_ms)) is not None:
                self._completion.complete_unexecuted(first, over, now_ms)
                self._lines.release(self._lines.lock_of(first.message))
            else:
                taken.append(first)
        if not taken:
            return None
        self._take_followers(taken, size, now_ms)
        work = self._queue.work(taken)
        work.rank_last = max([each.rank or 0.0 for each in taken])
        return work

    def _take_followers(self, taken: list[QueuedMessage], size: int, now_ms: float) -> None:
        """Fill a run with what waits behind the keys that it holds anyway.

        With one message a run, a hot key that has once fallen behind would never catch up. Behind
        one that failed before they wait: it may fail again.
        """
        for holder in tuple(taken):
            if holder.message.attempt > 1:
                continue
            behind = self._lines.keys.get(self._lines.lock_of(holder.message))
            while behind and len(taken) < size and behind[0].message.attempt == 1:
                follower = behind.popleft()
                if follower.entry is not None:
                    self._queue.unweigh_waiting(follower)
                over = self.is_over(follower, now_ms)
                if over is None:
                    taken.append(follower)
                else:
                    self._completion.complete_unexecuted(follower, over, now_ms)

    def is_over(self, waiting: QueuedMessage, now_ms: float) -> ErrorInfo | None:
        """Return why a message that waits for a run need not run."""
        due_ms = waiting.deadline_ms
        if waiting.expires and due_ms is not None and due_ms < now_ms:
            return expired(waiting)
        return waiting.interrupted

    def take(
        self,
        places: Sequence[Place],
        now_ms: float,
        *,
        many_runs: bool,
        spans: Sequence[Span] = (),
        in_parts: bool = False,
    ) -> Work | None:
        """Take messages as objects: keys may be busy, or several runs go on at once.

        They are those of the spans; without any, they were pulled out of their lines. Those that
        run in parts need no key.
        """
        runnable: list[QueuedMessage] = []
        mine: set[str] = set()
        ahead = not spans
        for chunk, index in places:
            waiting = self.message(chunk, index)
            if ahead:
                self._completion.took_ahead(waiting.message.source, waiting.message.number)
            if (over := self.is_over(waiting, now_ms)) is not None:
                self._completion.complete_unexecuted(waiting, over, now_ms)
                continue
            if in_parts:
                self._completion.park(waiting)
                if is_lendable(waiting):
                    runnable.append(waiting)
                else:
                    # As a retry that is due: see `dead_letter_taken`.
                    self._lines.retry_at(now_ms, waiting)
                continue
            lock = self._lines.lock_of(waiting.message)
            if lock in self._lines.keys and lock not in mine:
                self._lines.keys[lock].append(waiting)
                self._completion.pending.message_count += 1
                self._completion.park(waiting)
                if self._in_parts:
                    self._queue.crowded(lock)
                continue
            self._completion.began(waiting)
            if many_runs:
                # Others may commit before this run does, so its messages have to be on record.
                mine.add(lock)
                self._lines.hold(waiting)
                self._completion.park(waiting)
            runnable.append(waiting)
        first, last = places[0][0], places[-1][0]
        for chunk, _, stop in spans:
            self._completion.took(chunk.batch.source, chunk.batch.first + stop - 1)
        self._completion.pending.needs_commit = True
        if not runnable:
            return None
        work = self._queue.work(runnable)
        work.rank, work.rank_last, work.arrived_ms = first.rank, last.rank, first.arrived_ms
        if not many_runs:
            # Until it ends, the positions above include messages that are nowhere else.
            work.recorded = False
        return work
