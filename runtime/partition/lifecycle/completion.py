"""How messages end: with their result, with an error as their answer, or without having run.

Pure bookkeeping in the next commit; no effects. A message ends once, and whatever ends it also ends
what belongs to it: its record, its journal, its claim on an idempotency key, its place among those
that watermarks wait for. Whoever asked for the same by an idempotency key gets the same answer.
Whether a message that failed ends, or is tried again, is decided in `settlement`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from sublet.runtime.partition.commit.commit_participant import CommitParticipant
from sublet.runtime.partition.commit.pending_commit import CommitContents, PendingCommit
from sublet.runtime.partition.lifecycle.parked_messages import ParkedMessages
from sublet.runtime.partition.model.early_ends import CANCELLED, EXPIRED
from sublet.runtime.partition.model.effects import Counters
from sublet.runtime.partition.model.work import ColumnWork, QueuedMessage, Span
from sublet.runtime.partition.queue.key_locks import KeyLocks
from sublet.runtime.partition.records.dead_letters import DeadLetters
from sublet.runtime.partition.records.idempotency import (
    Answer,
    IdempotencyCache,
    idempotency_id,
)
from sublet.runtime.partition.records.positions import Positions
from sublet.runtime.protocol.frames import ErrorInfo, Extra
from sublet.statestore.contract import Record

UNRUN_KEPT_MAX = 256
NO_ROOM_WAIT_MS = 1_000.0
"""So long waits what can only become a dead letter, while there is no room for more of them."""


class MessageCompletion(CommitParticipant):
    def __init__(
        self,
        *,
        pending: PendingCommit,
        positions: Positions,
        parked: ParkedMessages,
        locks: KeyLocks,
        dead_letters: DeadLetters,
        idempotency: IdempotencyCache,
        counters: Counters,
    ) -> None:
        self.unrun: deque[QueuedMessage] = deque(maxlen=UNRUN_KEPT_MAX)
        """The latest that expired while they waited."""
        self._pending = pending
        self._positions = positions
        self._parked = parked
        self._locks = locks
        self._dead_letters = dead_letters
        self._idempotency = idempotency
        self._counters = counters

    # Columns

    def consume_spans(self, spans: Sequence[Span], values: list[Any]) -> None:
        """The fast way: every message of whole columns was handled."""
        pending, positions, place = self._pending, self._positions, 0
        for chunk, start, stop in spans:
            batch, count = chunk.batch, stop - start
            results = values if count == len(values) else values[place : place + count]
            pending.consume_span(chunk, start, stop, results)
            positions.took(batch.source, batch.first + stop - 1)
            place += count

    def consume_columns(self, work: ColumnWork, values: Sequence[Any]) -> None:
        """Every message that was lent as columns was handled."""
        self._pending.consume_columns(work, values)
        self._parked.columns_ended(work)

    def discard_span(self, span: Span) -> None:
        """Messages are done that nobody has to run."""
        chunk, start, stop = span
        self._positions.took(chunk.batch.source, chunk.batch.first + stop - 1)
        self._pending.discard(chunk, stop - start)

    # Commits

    def stored(self, contents: CommitContents, now_ms: float) -> None:
        """Count what has ended: nobody hears of it before, so that is when it is late or not."""
        counters = self._counters
        counters.consumed += contents.ended
        for source, count in contents.ended_from.items():
            counters.done[source] = counters.done.get(source, 0) + count
        for deadlines, start, stop in contents.due:
            if isinstance(deadlines, list):
                due = deadlines[start:stop]
                counters.late += sum(1 for each in due if each is not None and each < now_ms)
            elif deadlines < now_ms:
                counters.late += stop - start

    # Single messages

    def consume(
        self, waiting: QueuedMessage, value: Any, error: ErrorInfo | None, now_ms: float
    ) -> None:
        """End a message with its result, or with the error that is its answer."""
        message = waiting.message
        self._parked.ended(waiting)
        self._pending.consume(waiting, value, error)
        if message.extra.idempotency_key:
            answer, followers = self._idempotency.remember(message, value, error, now_ms)
            for follower in followers:
                self._answer_from_record(follower, answer, now_ms)

    def complete_unexecuted(self, waiting: QueuedMessage, error: ErrorInfo, now_ms: float) -> None:
        """End a message without effect; asked again by its idempotency key, it does run."""
        message = waiting.message
        if error.code == CANCELLED:
            self._counters.withdrawn += 1
            waiting.cancelled = True
        if error.code == EXPIRED:
            self._counters.expired += 1
            if waiting.interrupted is None:
                self.unrun.append(waiting)
        if message.extra.idempotency_key:
            for follower in self._idempotency.abandoned(waiting):
                # As a retry that is due: a run on the loop may be using its key without holding it.
                self._locks.retry_at(now_ms, follower)
            extra = msgspec.structs.replace(message.extra, idempotency_key="")
            waiting.message = msgspec.structs.replace(message, extra=extra)
        self.consume(waiting, None, error, now_ms)

    def complete_queued(self, waiting: QueuedMessage, error: ErrorInfo, now_ms: float) -> None:
        """As `complete_unexecuted`, for one that was pulled out of its line: others before it may
        not be done."""
        message = waiting.message
        self._positions.took_ahead(message.source, message.number)
        self.complete_unexecuted(waiting, error, now_ms)

    # Repeated requests

    def is_wanted_by_others(self, waiting: QueuedMessage) -> bool:
        """Tell whether others have asked for the same by its idempotency key."""
        if not waiting.message.extra.idempotency_key:
            return False
        return self._idempotency.has_followers(waiting) or self._locks.has_same_waiter(waiting)

    def awaits_answer(self, waiting: QueuedMessage) -> bool:
        """Tell whether a message waits for the answer of another one, by its idempotency key."""
        has_key = bool(waiting.message.extra.idempotency_key)
        return has_key and self._idempotency.follows(waiting)

    def without_repeated(
        self, messages: Sequence[QueuedMessage], unknown: list[str], now_ms: float
    ) -> Sequence[QueuedMessage]:
        """Return what is left without those that are being answered, or were just answered;
        `unknown` gets the ids of records that may know the answers of others."""
        if not any(each.message.extra.idempotency_key for each in messages):
            return messages
        left: list[QueuedMessage] = []
        for waiting in messages:
            if not waiting.message.extra.idempotency_key:
                left.append(waiting)
                continue
            answer = self._idempotency.answer_to(waiting)
            if answer is not None:
                self._answer_from_record(waiting, answer, now_ms)
            elif self._idempotency.claim(waiting, unknown):
                left.append(waiting)
            else:
                self._parked.park(waiting)
        return left

    def without_answered(
        self, messages: Sequence[QueuedMessage], records: Sequence[Record], now_ms: float
    ) -> Sequence[QueuedMessage]:
        """Return what is left without those that were answered long before."""
        known = self._idempotency.answers_in(records, now_ms)
        left: list[QueuedMessage] = []
        for waiting in messages:
            message, answer = waiting.message, None
            if message.extra.idempotency_key:
                answer = known.get(idempotency_id(message))
            if answer is None:
                left.append(waiting)
            else:
                for each in self._idempotency.answered_before(waiting):
                    self._answer_from_record(each, answer, now_ms)
        return left

    def _answer_from_record(self, waiting: QueuedMessage, answer: Answer, now_ms: float) -> None:
        message = waiting.message
        # There is a newer one if another that got this answer has become a dead letter just now.
        answer = self._idempotency.answer_to(waiting) or answer
        error = self._idempotency.error_for(answer, message)
        loss = self._idempotency.loss_of(answer, message)
        if loss is not None:
            # It was accepted, and nobody waits to be told.
            if self._dead_letters.is_full:
                self._parked.park(waiting)
                self._locks.retry_at(now_ms + NO_ROOM_WAIT_MS, waiting)
                return
            self._dead_letters.bury(message, loss, now_ms)
            self._idempotency.keep(message, answer, now_ms)
        # Without its key, so that the answer is not remembered a second time.
        waiting.message = msgspec.structs.replace(message, extra=Extra())
        self.consume(waiting, answer.result, error, now_ms)
