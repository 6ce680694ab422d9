"""Dead letters that somebody takes away: dropped for good, or run again as if just come."""

from __future__ import annotations

import msgspec

from sublet.functions.address import is_client
from sublet.runtime.partition.commit.pending_commit import PendingCommit
from sublet.runtime.partition.lifecycle.parked_messages import ParkedMessages
from sublet.runtime.partition.model.step_machine import StepMachine
from sublet.runtime.partition.model.work import QueuedMessage
from sublet.runtime.partition.queue.arrival_order import ArrivalOrder
from sublet.runtime.partition.queue.key_locks import KeyLocks
from sublet.runtime.partition.records.client_sessions import ClientSessions
from sublet.runtime.partition.records.dead_letters import DeadLetters
from sublet.runtime.protocol.messages import Message


class DeadLetterAdmin:
    def __init__(
        self,
        steps: StepMachine,
        *,
        dead_letters: DeadLetters,
        clients: ClientSessions,
        arrivals: ArrivalOrder,
        parked: ParkedMessages,
        locks: KeyLocks,
        pending: PendingCommit,
    ) -> None:
        self._steps = steps
        self._dead_letters = dead_letters
        self._clients = clients
        self._arrivals = arrivals
        self._parked = parked
        self._locks = locks
        self._pending = pending

    def drop(self, id_: str, ticket: object, now_ms: float) -> None:
        """Forget a dead letter; the ticket is settled when that is stored."""
        self._dead_letters.remove(id_)
        self._pending.add_ticket(ticket)
        self._steps.advance(now_ms)

    def replay(self, id_: str, letter: Message, ticket: object, now_ms: float) -> None:
        """Forget a dead letter, and let its message run again as if it had just come."""
        # Without its idempotency key, under which its failure is on record as the answer.
        extra = msgspec.structs.replace(letter.extra, idempotency_key="")
        message = msgspec.structs.replace(
            letter, order=self._arrivals.next(), attempt=1, last_error=None, extra=extra
        )
        waiting = QueuedMessage(message)
        if is_client(message.source):
            self._clients.unanswered += 1
        self._dead_letters.remove(id_)
        self._parked.park(waiting)
        # As a retry that is due: a run on the loop may be using its key without holding it.
        self._locks.retry_at(now_ms, waiting)
        self._pending.add_ticket(ticket)
        self._steps.advance(now_ms)
