"""Requests that nobody waits for any more, wherever they stand: they end now, and do not run.

A caller has taken a request back, or its deadline has passed (`expiry` says what that is
called). One that waits ends at once; one that runs, or is about to, ends in its turn; a handler
that awaits something is interrupted, so the messages of those are kept here. What others ask for,
too, goes on. No effects: what is to be interrupted is returned.
"""

from __future__ import annotations

from collections.abc import Iterator

from sublet.runtime.partition.lifecycle.completion import MessageCompletion
from sublet.runtime.partition.lifecycle.expiry import Expiries, expired, withdrawals
from sublet.runtime.partition.lifecycle.message_dispatch import SingleMessages
from sublet.runtime.partition.model.effects import Interrupt
from sublet.runtime.partition.model.work import QueuedMessage
from sublet.runtime.partition.queue.backlog import Backlog
from sublet.runtime.partition.queue.key_locks import KeyLocks
from sublet.runtime.partition.records.channels import Inbox
from sublet.runtime.protocol.frames import Batch, ErrorInfo, Kind


class Interrupts:
    def __init__(
        self,
        inbox: Inbox,
        backlog: Backlog,
        lines: KeyLocks,
        singles: SingleMessages,
        completion: MessageCompletion,
    ) -> None:
        self.awaiting: dict[str, QueuedMessage] = {}
        """Messages whose handlers await something, by id."""
        self.expiries = Expiries()
        """Their deadlines."""
        self._inbox = inbox
        self._backlog = backlog
        self._lines = lines
        self._singles = singles
        self._completion = completion

    def suspended(self, waiting: QueuedMessage) -> Interrupt | None:
        """A handler goes on later; if it is to end instead, return that."""
        message = waiting.message
        self.awaiting[message.id] = waiting
        if waiting.interrupted is not None:
            # Taken back during its first step.
            return Interrupt(message.id, waiting.interrupted)
        if waiting.expires and waiting.deadline_ms is not None:
            self.expiries.add(waiting, len(self.awaiting))
        return None

    def due(self, now_ms: float) -> Iterator[Interrupt]:
        """Give the handlers that end because their deadlines have passed."""
        for waiting in self.expiries.due(now_ms):
            interrupt = self._interrupt(waiting, expired(waiting))
            if interrupt is not None:
                yield interrupt

    def take(self, batch: Batch, skip: int, now_ms: float) -> list[Interrupt]:
        """The source does not wait any more for these calls of its own."""
        source, completion = batch.source, self._completion
        done = self._inbox.done_ahead(source, batch.first, skip, batch.count) or ()
        interrupts: list[Interrupt] = []
        for index, number, error in withdrawals(batch, skip, done):
            interrupt = self.withdraw(source, number, error, now_ms)
            if interrupt is not None:
                interrupts.append(interrupt)
            completion.took_ahead(source, batch.first + index)
        completion.pending.needs_commit = True
        return interrupts

    def withdraw(
        self, source: str, number: int, error: ErrorInfo, now_ms: float
    ) -> Interrupt | None:
        """End a call, if it is here and has not ended; it may have to be interrupted."""
        place = self._backlog.remove_call(source, number)
        if place is not None:
            waiting = self._singles.message(*place)
            self._completion.took_ahead(source, number)
            self._completion.complete_unexecuted(waiting, error, now_ms)
            return None
        message_id = f"{source}:{number}"
        parked = self._completion.parked.get(message_id)
        if parked is None or parked.message.kind is not Kind.CALL or parked.interrupted is not None:
            return None
        if message_id in self.awaiting:
            return self._interrupt(parked, error)
        if not self._completion.is_wanted_by_others(parked):
            self._end_waiting(parked, error, now_ms)
        return None

    def _interrupt(self, waiting: QueuedMessage, error: ErrorInfo) -> Interrupt | None:
        """Let a handler that awaits something end now; its caller gets the error."""
        message_id = waiting.message.id
        if self.awaiting.get(message_id) is not waiting or waiting.interrupted is not None:
            return None
        if self._completion.is_wanted_by_others(waiting):
            return None
        waiting.interrupted = error
        return Interrupt(message_id, error)

    def _end_waiting(self, waiting: QueuedMessage, error: ErrorInfo, now_ms: float) -> None:
        """End a message that stands somewhere; one that runs, or is about to, ends in its turn."""
        if self._lines.remove(waiting) or (
            waiting.message.extra.idempotency_key and self._completion.answers.follows(waiting)
        ):
            self._completion.complete_unexecuted(waiting, error, now_ms)
        else:
            waiting.interrupted = error
            # Who waits for a retry need not wait any longer.
            self._lines.retry_now(waiting, now_ms)
