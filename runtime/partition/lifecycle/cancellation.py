"""Requests that nobody waits for any more, wherever they stand: they end now, and do not run.

A caller has cancelled a request, somebody has by hand, or its deadline has passed (`early_ends`
says what that is called). One that waits ends at once; one that runs, or is about to, ends in its
turn; a handler that awaits something is interrupted, here or where it was lent to. If it ends well
nevertheless, it has its effects, and was not cancelled. What others ask for, too, goes on. No
effects: what is to be interrupted is returned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from sublet.functions.address import is_pipeline
from sublet.functions.codec import split_column
from sublet.runtime.partition.lifecycle.completion import MessageCompletion
from sublet.runtime.partition.lifecycle.parked_messages import ParkedMessages
from sublet.runtime.partition.model.early_ends import (
    CANCELLED_BY_HAND,
    cancellation_error,
    expired,
)
from sublet.runtime.partition.model.effects import Interrupt, Recall
from sublet.runtime.partition.model.work import QueuedMessage
from sublet.runtime.partition.queue.arrival_order import ArrivalOrder
from sublet.runtime.partition.queue.awaiting_handlers import AwaitingHandlers
from sublet.runtime.partition.queue.backlog import Backlog
from sublet.runtime.partition.queue.key_locks import KeyLocks
from sublet.runtime.partition.queue.leased_work import LeasedWork
from sublet.runtime.protocol.frames import Batch, ErrorInfo, Kind

MESSAGES = (Kind.CALL, Kind.SEND)


class Cancellation:
    def __init__(
        self,
        *,
        backlog: Backlog,
        locks: KeyLocks,
        awaiting: AwaitingHandlers,
        arrivals: ArrivalOrder,
        parked: ParkedMessages,
        completion: MessageCompletion,
        leased: LeasedWork,
    ) -> None:
        self._backlog = backlog
        self._locks = locks
        self._awaiting = awaiting
        self._arrivals = arrivals
        self._parked = parked
        self._completion = completion
        self._leased = leased

    def due(self, now_ms: float) -> Iterator[Interrupt]:
        """Give the handlers that end because their deadlines have passed."""
        for waiting in self._awaiting.expired(now_ms):
            interrupt = self._interrupt(waiting, expired(waiting))
            if interrupt is not None:
                yield interrupt

    def take(self, batch: Batch, indexes: Iterable[int], now_ms: float) -> list[Interrupt | Recall]:
        """The source does not wait any more for these calls of its own."""
        reasons = split_column(batch.payloads)
        interrupts: list[Interrupt | Recall] = []
        for index in indexes:
            number, error = int(batch.keys[index]), cancellation_error(reasons[index])
            interrupt = self.cancel(batch.source, number, error, now_ms)
            if interrupt is not None:
                interrupts.append(interrupt)
        return interrupts

    def cancel(
        self, source: str, number: int, error: ErrorInfo, now_ms: float
    ) -> Interrupt | Recall | None:
        """End a call, if it is here and has not ended; it may have to be interrupted."""
        return self._end(source, number, error, now_ms, (Kind.CALL,))[1]

    def cancel_by_hand(
        self, source: str, number: int, now_ms: float
    ) -> tuple[QueuedMessage | None, Interrupt | Recall | None]:
        """End whatever message it is; return it, or None if it is not here, or runs in columns.

        It has ended, or will; whether by this, it says itself.
        """
        if is_pipeline(source):
            return None, None  # A row counts with its batch, or not at all.
        return self._end(source, number, CANCELLED_BY_HAND, now_ms, MESSAGES)

    def _end(
        self, source: str, number: int, error: ErrorInfo, now_ms: float, kinds: Collection[Kind]
    ) -> tuple[QueuedMessage | None, Interrupt | Recall | None]:
        ref = self._backlog.remove(source, number, kinds)
        if ref is not None:
            waiting = self._arrivals.message(*ref)
            self._completion.complete_queued(waiting, error, now_ms)
            return waiting, None
        message_id = f"{source}:{number}"
        parked = self._parked.find(source, number)
        if parked is None or parked.message.kind not in kinds:
            return None, None
        if parked.interrupted is not None:
            return parked, None
        if message_id in self._awaiting.by_id:
            return parked, self._interrupt(parked, error)
        if not self._completion.is_wanted_by_others(parked):
            return parked, self._end_waiting(parked, error, now_ms)
        return parked, None

    def _interrupt(self, waiting: QueuedMessage, error: ErrorInfo) -> Interrupt | None:
        """Let a handler that awaits something end now; its caller gets the error."""
        message_id = waiting.message.id
        if self._awaiting.by_id.get(message_id) is not waiting or waiting.interrupted is not None:
            return None
        if self._completion.is_wanted_by_others(waiting):
            return None
        waiting.interrupted = error
        return Interrupt(message_id, error)

    def _end_waiting(
        self, waiting: QueuedMessage, error: ErrorInfo, now_ms: float
    ) -> Recall | None:
        """End a message that stands somewhere; one that runs, or is about to, ends in its turn."""
        if self._locks.remove(waiting) or self._completion.awaits_answer(waiting):
            self._completion.complete_unexecuted(waiting, error, now_ms)
            return None
        waiting.interrupted = error
        # Who waits for a retry need not wait any longer.
        self._locks.retry_now(waiting, now_ms)
        lease = self._leased.interruptible_lease(waiting)
        return None if lease is None else Recall(lease)
