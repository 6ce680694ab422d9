"""Requests that nobody waits for any more, wherever they stand: they end now, and do not run.

A caller has taken a request back, or its deadline has passed (`expiry` says what that is
called). One that waits ends at once; one that runs, or is about to, ends in its turn; a handler
that awaits something is interrupted, so the messages of those are kept here. What others ask for,
too, goes on. No effects: what is to be interrupted is returned.
"""

from __future__ import annotations

from collections.abc import Iterator

from sublet.runtime.partition.lifecycle.completion import Endings
from sublet.runtime.partition.lifecycle.expiry import Expiries, expired, withdrawals
from sublet.runtime.partition.lifecycle.message_dispatch import SingleMessages
from sublet.runtime.partition.model.effects import Interrupt
from sublet.runtime.partition.model.work import Waiting
from sublet.runtime.partition.queue.backlog import Backlog
from sublet.runtime.partition.queue.key_locks import KeyLines
from sublet.runtime.partition.records.channels import Inbox
from sublet.runtime.protocol.frames import Batch, ErrorInfo, Kind


class Interrupts:
    def __init__(
        self,
        inbox: Inbox,
        backlog: Backlog,
        lines: KeyLines,
        singles: SingleMessages,
        endings: Endings,
    ) -> None:
        self.awaiting: dict[str, Waiting] = {}
        """Messages whose handlers await something, by id."""
        self.expiries = Expiries()
        """Their deadlines."""
        self._inbox = inbox
        self._backlog = backlog
        self._lines = lines
        self._singles = singles
        self._endings = endings

    def suspended(self, waiting: Waiting) -> Interrupt | None:
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
        source, endings = batch.source, self._endings
        done = self._inbox.done_ahead(source, batch.first, skip, batch.count) or ()
        interrupts: list[Interrupt] = []
        for index, number, error in withdrawals(batch, skip, done):
            interrupt = self.withdraw(source, number, error, now_ms)
            if interrupt is not None:
                interrupts.append(interrupt)
            endings.took_ahead(source, batch.first + index)
        endings.pending.must_flush = True
        return interrupts

    def withdraw(
        self, source: str, number: int, error: ErrorInfo, now_ms: float
    ) -> Interrupt | None:
        """End a call, if it is here and has not ended; it may have to be interrupted."""
        place = self._backlog.remove_call(source, number)
        if place is not None:
            waiting = self._singles.message(*place)
            self._endings.took_ahead(source, number)
            self._endings.consume_unrun(waiting, error, now_ms)
            return None
        message_id = f"{source}:{number}"
        parked = self._endings.parked.get(message_id)
        if parked is None or parked.message.kind is not Kind.CALL or parked.interrupted is not None:
            return None
        if message_id in self.awaiting:
            return self._interrupt(parked, error)
        if not self._endings.is_wanted_by_others(parked):
            self._end_waiting(parked, error, now_ms)
        return None

    def _interrupt(self, waiting: Waiting, error: ErrorInfo) -> Interrupt | None:
        """Let a handler that awaits something end now; its caller gets the error."""
        message_id = waiting.message.id
        if self.awaiting.get(message_id) is not waiting or waiting.interrupted is not None:
            return None
        if self._endings.is_wanted_by_others(waiting):
            return None
        waiting.interrupted = error
        return Interrupt(message_id, error)

    def _end_waiting(self, waiting: Waiting, error: ErrorInfo, now_ms: float) -> None:
        """End a message that stands somewhere; one that runs, or is about to, ends in its turn."""
        if self._lines.remove(waiting) or (
            waiting.message.extra.idempotency_key and self._endings.answers.follows(waiting)
        ):
            self._endings.consume_unrun(waiting, error, now_ms)
        else:
            waiting.interrupted = error
            # Who waits for a retry need not wait any longer.
            self._lines.hurry(waiting, now_ms)
