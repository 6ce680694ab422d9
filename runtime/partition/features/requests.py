"""Messages that people ask about while they are open: which there are, and an end for one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from sublet.runtime.partition.commit.pending_commit import PendingCommit
from sublet.runtime.partition.lifecycle.cancellation import MESSAGES, Cancellation
from sublet.runtime.partition.lifecycle.parked_messages import ParkedMessages
from sublet.runtime.partition.lifecycle.run_gate import RunGate
from sublet.runtime.partition.model.step_machine import StepMachine
from sublet.runtime.partition.model.work import QueuedMessage
from sublet.runtime.partition.queue.awaiting_handlers import AwaitingHandlers
from sublet.runtime.partition.queue.work_queue import WorkQueue


class OpenMessage(NamedTuple):
    """A message that was taken and has not ended."""

    source: str
    number: int
    key: str
    attempt: int
    arrived_ms: float | None
    """None if it arrived at an earlier owner of the partition."""
    has_begun: bool
    """Its handler runs or awaits something, here or elsewhere."""


class Requests:
    def __init__(
        self,
        steps: StepMachine,
        *,
        cancellation: Cancellation,
        pending: PendingCommit,
        parked: ParkedMessages,
        awaiting: AwaitingHandlers,
        gate: RunGate,
        queue: WorkQueue,
    ) -> None:
        self._steps = steps
        self._cancellation = cancellation
        self._pending = pending
        self._parked = parked
        self._awaiting = awaiting
        self._gate = gate
        self._queue = queue

    def open(self, limit: int) -> list[OpenMessage]:
        """Return what was taken and has not ended: what runs, then what waits, up to a bound."""
        running = {
            each.message.id for work in self._gate.in_flight.values() for each in work.waiting
        }
        running.update(self._awaiting.by_id)
        parked = [
            OpenMessage(
                message.source,
                message.number,
                message.key,
                message.attempt,
                waiting.arrived_ms,
                message.id in running,
            )
            for waiting in self._parked.by_id.values()
            if (message := waiting.message).kind in MESSAGES
        ]
        parked.sort(key=lambda each: (not each.has_begun, each.arrived_ms or 0.0))
        return [*parked[:limit], *islice(self._queued(), max(0, limit - len(parked)))]

    def _queued(self) -> Iterator[OpenMessage]:
        for chunk, index in self._queue.backlog.refs():
            batch = chunk.batch
            if batch.kind in MESSAGES:
                number = batch.first + index
                yield OpenMessage(
                    batch.source, number, batch.keys[index], 1, chunk.arrived_ms, False
                )

    def cancel(self, source: str, number: int, now_ms: float) -> QueuedMessage | None:
        """End a message; return it, or None if it is not here any more, or never was.

        Whoever asks waits until it has `ended`, then for a commit (`flush`); whether it was
        `cancelled`, it says itself.
        """
        if self._steps.stopped or self._steps.leaving:
            return None
        waiting, interrupt = self._cancellation.cancel_by_hand(source, number, now_ms)
        if interrupt is not None:
            self._steps.effects.append(interrupt)
        self._steps.advance(now_ms)
        return waiting

    def flush(self, ticket: object, now_ms: float) -> None:
        """Settle the ticket when everything until now is stored."""
        self._pending.add_ticket(ticket)
        self._steps.advance(now_ms)
