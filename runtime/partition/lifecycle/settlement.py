"""What becomes of the messages of a run: each ends, is tried again, waits, or is a dead letter.

Pure bookkeeping in the next commit and of who waits for whom; no effects. One that fails may be
tried again, and holds its key meanwhile; what user code has not handled goes back to its key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sublet.functions.app import Function
from sublet.runtime.partition.lifecycle.completion import MessageCompletion
from sublet.runtime.partition.lifecycle.parked_messages import ParkedMessages
from sublet.runtime.partition.model.effects import Counters
from sublet.runtime.partition.model.work import (
    ColumnWork,
    Failure,
    QueuedMessage,
    RunResult,
    Span,
    Work,
)
from sublet.runtime.partition.queue.key_locks import KeyLocks
from sublet.runtime.partition.records.dead_letters import DeadLetters
from sublet.runtime.partition.records.positions import Positions
from sublet.runtime.protocol.frames import Kind


class RunSettlement:
    def __init__(
        self,
        function: Function,
        *,
        completion: MessageCompletion,
        positions: Positions,
        parked: ParkedMessages,
        locks: KeyLocks,
        dead_letters: DeadLetters,
        counters: Counters,
    ) -> None:
        self._function = function
        self._completion = completion
        self._positions = positions
        self._parked = parked
        self._locks = locks
        self._dead_letters = dead_letters
        self._counters = counters

    def settle(
        self,
        messages: Sequence[QueuedMessage],
        spans: Sequence[Span],
        result: RunResult,
        now_ms: float,
    ) -> list[QueuedMessage]:
        """The careful way: some messages failed, wait, or were waiting before.

        Returns those whose handlers go on later; meanwhile their keys wait. `spans` are the
        columns that the messages came from, if they were taken as columns.
        """
        held: dict[str, bool] = {}
        unfinished: dict[str, list[QueuedMessage]] = {}
        suspended: list[QueuedMessage] = []
        in_order = self._function.order == "key"
        # Messages of a batch that fail together have one failure, and nobody knows which of them
        # is to blame: each is tried by itself first.
        together = Counter(map(id, result.failed.values()))
        for index, waiting in enumerate(messages):
            lock = self._locks.lock_of(waiting.message)
            holds = held.get(lock, False)
            failure = result.failed.get(index)
            if index in result.suspended:
                self._locks.hold(waiting)
                self._parked.park(waiting)
                suspended.append(waiting)
                holds = True
            elif index in result.unfinished:
                unfinished.setdefault(lock, []).append(waiting)
            elif failure is None:
                self._completion.consume(waiting, result.values[index], None, now_ms)
            elif holds and in_order and failure.retryable:
                # One before it failed with it, and goes first.
                waiting.message.attempt = max(waiting.message.attempt, 2)
                unfinished.setdefault(lock, []).append(waiting)
            else:
                blamed = self._function.batch is False or together[id(failure)] == 1
                holds = self.fail(waiting, failure, now_ms, blamed=blamed) or holds
            held[lock] = holds
        for chunk, _, stop in spans:
            self._positions.took(chunk.batch.source, chunk.batch.first + stop - 1)
        for lock, left in unfinished.items():
            self._locks.requeue_front(lock, left)
            for waiting in left:
                self._parked.park(waiting, anew=waiting.message.attempt > 1)
        for lock, is_held in held.items():
            if not is_held:
                self._locks.release(lock)
        return suspended

    def settle_lent(self, work: Work, result: RunResult, now_ms: float) -> None:
        """End messages that ran elsewhere with their states; those that could not run here."""
        if isinstance(work, ColumnWork) and work.columns is not None and result.is_plain:
            self._completion.consume_columns(work, result.values)
            self._locks.release_all(work.distinct_keys)
        else:
            self.settle(work.waiting, (), result, now_ms)

    def settle_parts(self, work: Work, result: RunResult, now_ms: float) -> None:
        """End messages that ran in parts; those that could not, or failed, run here."""
        if isinstance(work, ColumnWork) and work.columns is not None and result.is_plain:
            self._completion.consume_columns(work, result.values)
            return
        for index, waiting in enumerate(work.waiting):
            failure = result.failed.get(index)
            if index in result.unfinished:
                self._locks.retry_at(now_ms, waiting)
            elif failure is None:
                self._completion.consume(waiting, result.values[index], None, now_ms)
            elif failure.retryable or waiting.message.kind is not Kind.CALL:
                self._locks.retry_at(now_ms, waiting)
            else:
                # Not once more: if only its reply could not be told, what it added was merged.
                self.fail(waiting, failure, now_ms)

    def fail(
        self, waiting: QueuedMessage, failure: Failure, now_ms: float, *, blamed: bool = True
    ) -> bool:
        """Try again later, or give up: then the failure is the answer, or a dead letter.

        Returns whether the message goes on holding its key.
        """
        message, retry = waiting.message, self._function.retry
        if waiting.interrupted is not None:
            self._completion.complete_unexecuted(waiting, waiting.interrupted, now_ms)
            return False
        self._counters.failures += 1
        gives_up = not failure.retryable or (blamed and message.attempt >= retry.attempts)
        wants_grave = message.kind is not Kind.CALL
        if gives_up and wants_grave and self._dead_letters.is_full:
            gives_up = False  # There is no room to keep it, and it must not be lost.
        if not gives_up:
            self._counters.retries += 1
            message.last_error = failure.error
            wait_ms = retry.wait_ms(message.attempt)
            message.attempt += 1
            self._parked.retried(waiting)
            self._locks.retry_at(now_ms + wait_ms, waiting)
            waiting.holds_key = self._function.order == "key"
            if waiting.holds_key:
                self._locks.hold(waiting)
            return waiting.holds_key
        if wants_grave:
            self._dead_letters.bury(message, failure.error, now_ms, failure.traceback)
        self._completion.consume(waiting, None, failure.error, now_ms)
        return False
