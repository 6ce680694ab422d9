"""Requests that nobody waits for any more, wherever they stand: they end now, and do not run.

A caller has cancelled a request, or its deadline has passed (`expiry` says what that is called).
One that waits ends at once; one that runs, or is about to, ends in its turn; a handler that awaits
something is interrupted. What others ask for, too, goes on. No effects: what is to be interrupted
is returned.
"""

from __future__ import annotations

from collections.abc import Iterator

from sublet.functions.codec import split_column
from sublet.runtime.partition.lifecycle.completion import MessageCompletion
from sublet.runtime.partition.lifecycle.parked_messages import ParkedMessages
from sublet.runtime.partition.model.early_ends import cancellation_error, expired
from sublet.runtime.partition.model.effects import Interrupt
from sublet.runtime.partition.model.work import QueuedMessage
from sublet.runtime.partition.queue.arrival_order import ArrivalOrder
from sublet.runtime.partition.queue.awaiting_handlers import AwaitingHandlers
from sublet.runtime.partition.queue.backlog import Backlog
from sublet.runtime.partition.queue.key_locks import KeyLocks
from sublet.runtime.partition.records.positions import Positions
from sublet.runtime.protocol.frames import Batch, ErrorInfo, Kind


class Cancellation:
    def __init__(
        self,
        *,
        backlog: Backlog,
        locks: KeyLocks,
        awaiting: AwaitingHandlers,
        arrivals: ArrivalOrder,
        positions: Positions,
        parked: ParkedMessages,
        completion: MessageCompletion,
    ) -> None:
        self._backlog = backlog
        self._locks = locks
        self._awaiting = awaiting
        self._arrivals = arrivals
        self._positions = positions
        self._parked = parked
        self._completion = completion

    def due(self, now_ms: float) -> Iterator[Interrupt]:
        """Give the handlers that end because their deadlines have passed."""
        for waiting in self._awaiting.expired(now_ms):
            interrupt = self._interrupt(waiting, expired(waiting))
            if interrupt is not None:
                yield interrupt

    def take(self, batch: Batch, skip: int, now_ms: float) -> list[Interrupt]:
        """The source does not wait any more for these calls of its own."""
        reasons = split_column(batch.payloads)
        interrupts: list[Interrupt] = []
        for index in self._positions.take_each(batch, skip):
            number, error = int(batch.keys[index]), cancellation_error(reasons[index])
            interrupt = self.cancel(batch.source, number, error, now_ms)
            if interrupt is not None:
                interrupts.append(interrupt)
        return interrupts

    def cancel(self, source: str, number: int, error: ErrorInfo, now_ms: float) -> Interrupt | None:
        """End a call, if it is here and has not ended; it may have to be interrupted."""
        ref = self._backlog.remove_call(source, number)
        if ref is not None:
            waiting = self._arrivals.message(*ref)
            self._positions.took_ahead(source, number)
            self._completion.complete_unexecuted(waiting, error, now_ms)
            return None
        message_id = f"{source}:{number}"
        parked = self._parked.by_id.get(message_id)
        if parked is None or parked.message.kind is not Kind.CALL or parked.interrupted is not None:
            return None
        if message_id in self._awaiting.by_id:
            return self._interrupt(parked, error)
        if not self._completion.is_wanted_by_others(parked):
            self._end_waiting(parked, error, now_ms)
        return None

    def _interrupt(self, waiting: QueuedMessage, error: ErrorInfo) -> Interrupt | None:
        """Let a handler that awaits something end now; its caller gets the error."""
        message_id = waiting.message.id
        if self._awaiting.by_id.get(message_id) is not waiting or waiting.interrupted is not None:
            return None
        if self._completion.is_wanted_by_others(waiting):
            return None
        waiting.interrupted = error
        return Interrupt(message_id, error)

    def _end_waiting(self, waiting: QueuedMessage, error: ErrorInfo, now_ms: float) -> None:
        """End a message that stands somewhere; one that runs, or is about to, ends in its turn."""
        if self._locks.remove(waiting) or self._completion.awaits_answer(waiting):
            self._completion.complete_unexecuted(waiting, error, now_ms)
        else:
            waiting.interrupted = error
            # Who waits for a retry need not wait any longer.
            self._locks.retry_now(waiting, now_ms)
