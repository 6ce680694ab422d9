"""What becomes of a partition's messages: how they end, or stay on record, in the next commit.

Pure bookkeeping in the commit that is being filled (`pending_commit`); no effects. A message ends
once:
with its result, with a failure for good, or without having run. Until then it may be *parked*, as a
record of its own, since the position of its channel goes on without it. Whatever ends a message
also ends what belongs to it: its record, its journal, its claim on an idempotency key, its place
among those that watermarks wait for. One that fails may be tried again, and holds its key.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from sublet.functions.address import is_client, is_pipeline
from sublet.functions.app import Function
from sublet.runtime.config.limits import Limits
from sublet.runtime.partition.lifecycle.expiry import EXPIRED, WITHDRAWN
from sublet.runtime.partition.model.effects import Counters
from sublet.runtime.partition.model.work import Failure, QueuedMessage, RunResult, Span
from sublet.runtime.partition.queue.key_locks import KeyLocks
from sublet.runtime.partition.queue.work_queue import WorkQueue
from sublet.runtime.partition.records.call_journal import Calls
from sublet.runtime.partition.records.channels import REPLY_MARK, Inbox
from sublet.runtime.partition.records.idempotency import (
    Answer,
    IdempotencyCache,
    idempotency_id,
    still_valid,
)
from sublet.runtime.partition.records.pending_commit import PendingCommit
from sublet.runtime.partition.records.staged_batches import Staging
from sublet.runtime.partition.records.watermarks import StreamProgress
from sublet.runtime.protocol.frames import ErrorInfo, Extra, Kind
from sublet.runtime.protocol.messages import Message
from sublet.statestore.contract import DEAD, PARKED, Record

UNRUN_KEPT_MAX = 256
NO_ROOM_WAIT_MS = 1_000.0
"""So long waits what can only become a dead letter, while there is no room for more of them."""

_encode = msgspec.msgpack.Encoder().encode


class DeadLetter(msgspec.Struct, array_like=True):
    """A message that failed for good, as stored."""

    message: Message
    error: ErrorInfo
    at_ms: int


class MessageCompletion:
    def __init__(  # noqa: PLR0913  # Its surroundings are all named, and given once.
        self,
        name: str,
        function: Function,
        limits: Limits,
        *,
        inbox: Inbox,
        gone: dict[str, None],
        lines: KeyLocks,
        queue: WorkQueue,
        calls: Calls,
        progress: StreamProgress,
        staging: Staging,
        counters: Counters,
        dead_count: int,
        clock_ms: Callable[[float], int],
    ) -> None:
        """`gone` are the clients of whose numbers nothing is kept, `dead_count` the dead letters
        that there are already."""
        self.pending = PendingCommit()
        """The commit that is being filled."""
        self.parked: dict[str, QueuedMessage] = {}
        """All messages that are on record by themselves, by id."""
        self.open_from_clients = 0
        """Messages of clients taken and not finished."""
        self.dead_count = dead_count
        self.answers = IdempotencyCache(limits.message_bytes_max, function.message_codec)
        self.unrun: deque[QueuedMessage] = deque(maxlen=UNRUN_KEPT_MAX)
        """The latest that expired while they waited."""
        self._name = name
        self._function = function
        self._limits = limits
        self._inbox = inbox
        self._gone = gone
        self._lines = lines
        self._queue = queue
        self._calls = calls
        self._progress = progress
        self._staging = staging
        self._counters = counters
        self._clock_ms = clock_ms

    # Positions and records

    def took(self, source: str, upto: int) -> None:
        """All of a source's messages up to here are done, or on record."""
        if self._gone and source in self._gone:
            return  # Of its numbers nothing is kept.
        if source in self._inbox.ahead:
            self.pending.ahead.add(source)
        reached = self.pending.inbox[source] = self._inbox.reach(source, upto)
        if self._staging.fed_rows and is_pipeline(source):
            self.pending.records.extend(self._staging.reached(source, reached))

    def took_ahead(self, source: str, number: int) -> None:
        """One message is done, or on record, while earlier ones of its source may wait."""
        if self._gone and source in self._gone:
            return
        if self._inbox.reach_ahead(source, number):
            self.pending.ahead.add(source)
        else:
            self.took(source, number)

    def took_whole(self, span: Span) -> None:
        """Messages are done that nobody has to run."""
        batch, taken, pending = span.chunk.batch, span.stop - span.start, self.pending
        self.took(batch.source, batch.first + span.stop - 1)
        pending.message_count += taken
        pending.ended += taken
        pending.needs_commit = True
        if is_client(batch.source):
            self.open_from_clients -= taken
            pending.ended_of_clients += taken

    def began(self, waiting: QueuedMessage) -> None:
        """A message is about to run whose position counts already. It may be put back: until it has
        come to an end, a row of a pipeline is not told as taken."""
        message = waiting.message
        if is_pipeline(message.source) and message.attempt == 1:
            self._staging.parked(message.source, message.number)

    def park(self, waiting: QueuedMessage, *, anew: bool = False) -> None:
        """Put the message itself into the commit, since its channel goes on without it."""
        if waiting.parked and not anew:
            return
        message = waiting.message
        if not waiting.parked:
            self._counters.parked += 1
            if self._progress.is_used:
                self._progress.opened(message)
            if message.kind is Kind.MARKER:
                self.pending.records.append(self._progress.closed(message))
        waiting.parked = True
        self.parked[message.id] = waiting
        if is_pipeline(message.source):
            note = self._staging.parked if message.attempt == 1 else self._staging.unparked
            note(message.source, message.number)
        self.pending.record(Record(PARKED, message.id, _encode(message)))

    # Messages that ran

    def consume_spans(self, spans: Sequence[Span], values: list[Any]) -> None:
        """The fast way: every message of whole columns was handled."""
        pending, place = self.pending, 0
        for chunk, start, stop in spans:
            batch, count = chunk.batch, stop - start
            if batch.kind is Kind.CALL:
                replies = pending.replies_to(_reply_channel(batch.source))
                replies.refs.extend(range(batch.first + start, batch.first + stop))
                replies.values.extend(
                    values if count == len(values) else values[place : place + count]
                )
            place += count
            self.took(batch.source, batch.first + stop - 1)
            if chunk.deadlines_ms is not None:
                pending.due.append((chunk.deadlines_ms, start, stop))
            if chunk.from_client:
                self.open_from_clients -= count
                pending.ended_of_clients += count
        pending.message_count += place
        pending.ended += place

    def committed(self, sealed: PendingCommit, now_ms: float) -> None:
        """Count what has ended: nobody hears of it before, so that is when it is late or not. What
        was answered can be found in the store now."""
        counters = self._counters
        counters.consumed += sealed.ended
        for deadlines, start, stop in sealed.due:
            if isinstance(deadlines, list):
                due = deadlines[start:stop]
                counters.late += sum(1 for each in due if each is not None and each < now_ms)
            elif deadlines < now_ms:
                counters.late += stop - start
        if sealed.answers:
            self.answers.committed(sealed.answers)

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
        behind: dict[str, list[QueuedMessage]] = {}
        suspended: list[QueuedMessage] = []
        in_order = self._function.order == "key"
        # Messages of a batch that fail together have one failure, and nobody knows which of them
        # is to blame: each is tried by itself first.
        together = Counter(map(id, result.failed.values()))
        for index, waiting in enumerate(messages):
            lock = self._lines.lock_of(waiting.message)
            holds = held.get(lock, False)
            failure = result.failed.get(index)
            if index in result.suspended:
                self._lines.hold(waiting)
                self.park(waiting)
                suspended.append(waiting)
                holds = True
            elif index in result.unfinished:
                behind.setdefault(lock, []).append(waiting)
            elif failure is None:
                self.consume(waiting, result.values[index], None, now_ms)
            elif holds and in_order and failure.retryable:
                # One before it failed with it, and goes first.
                waiting.message.attempt = max(waiting.message.attempt, 2)
                behind.setdefault(lock, []).append(waiting)
            else:
                blamed = self._function.batch is False or together[id(failure)] == 1
                holds = self.fail(waiting, failure, now_ms, blamed=blamed) or holds
            held[lock] = holds
        for chunk, _, stop in spans:
            self.took(chunk.batch.source, chunk.batch.first + stop - 1)
        for lock, left in behind.items():
            self._lines.requeue_front(lock, left)
            for waiting in left:
                self.park(waiting, anew=waiting.message.attempt > 1)
        for lock, is_held in held.items():
            if not is_held:
                self._lines.release(lock)
        return suspended

    def settle_parts(
        self, messages: Sequence[QueuedMessage], result: RunResult, now_ms: float
    ) -> None:
        """End messages that ran in parts; those that could not, or failed, run here."""
        for index, waiting in enumerate(messages):
            failure = result.failed.get(index)
            if index in result.unfinished:
                self._lines.retry_at(now_ms, waiting)
            elif failure is None:
                self.consume(waiting, result.values[index], None, now_ms)
            elif failure.retryable or waiting.message.kind is not Kind.CALL:
                self._lines.retry_at(now_ms, waiting)
            else:
                # Not once more: if only its reply could not be told, what it added was merged.
                self.fail(waiting, failure, now_ms)

    def consume(
        self, waiting: QueuedMessage, value: Any, error: ErrorInfo | None, now_ms: float
    ) -> None:
        """End a message with its result, or with the error that is its answer."""
        message, pending = waiting.message, self.pending
        pending.needs_commit = True
        pending.message_count += 1
        pending.ended += 1
        if waiting.deadline_ms is not None:
            pending.due.append((waiting.deadline_ms, 0, 1))
        if is_client(message.source):
            self.open_from_clients -= 1
            pending.ended_of_clients += 1
        if waiting.parked:
            pending.records.append(Record(PARKED, message.id, None))
            self.parked.pop(message.id, None)
        elif message.kind is Kind.MARKER:
            pending.records.append(self._progress.closed(message))
        if is_pipeline(message.source):
            self._staging.unparked(message.source, message.number)
        if self._progress.is_used:
            self._progress.ended(message)
            self._counters.windows_ended += message.kind is Kind.MARKER
        waiting.ended = True
        if waiting.entry is not None:
            self._queue.unweigh_waiting(waiting)
        if waiting.journal:
            self._calls.ended(waiting, pending)
        self._reply(message, value, error)
        if message.extra.idempotency_key:
            self._remember_answer(message, value, error, now_ms)

    def _reply(self, message: Message, value: Any, error: ErrorInfo | None) -> None:
        if message.kind is not Kind.CALL:
            return
        self.answer(message.source, message.number, value, error)

    def answer(self, source: str, number: int, value: Any, error: ErrorInfo | None) -> None:
        """Reply to a message of a source."""
        replies = self.pending.replies_to(_reply_channel(source))
        if error is None:
            replies.add(number, value)
        else:
            replies.add_error(number, error)

    def fail(
        self, waiting: QueuedMessage, failure: Failure, now_ms: float, *, blamed: bool = True
    ) -> bool:
        """Try again later, or give up: then the failure is the answer, or a dead letter.

        Returns whether the message goes on holding its key.
        """
        message, retry = waiting.message, self._function.retry
        if waiting.interrupted is not None:
            self.complete_unexecuted(waiting, waiting.interrupted, now_ms)
            return False
        self._counters.failures += 1
        gives_up = not failure.retryable or (blamed and message.attempt >= retry.attempts)
        wants_grave = message.kind is not Kind.CALL
        if gives_up and wants_grave and not self._has_room_for_dead():
            gives_up = False  # There is no room to keep it, and it must not be lost.
        if not gives_up:
            self._counters.retries += 1
            message.last_error = failure.error
            wait_ms = retry.wait_ms(message.attempt)
            message.attempt += 1
            self.park(waiting, anew=True)
            self._lines.retry_at(now_ms + wait_ms, waiting)
            waiting.holds_key = self._function.order == "key"
            if waiting.holds_key:
                self._lines.hold(waiting)
            return waiting.holds_key
        if wants_grave:
            self._bury(message, failure.error, now_ms)
        self.consume(waiting, None, failure.error, now_ms)
        return False

    def _has_room_for_dead(self) -> bool:
        return self.dead_count < self._limits.dead_letters_max

    def _bury(self, message: Message, error: ErrorInfo, now_ms: float) -> None:
        letter = DeadLetter(message, error, self._clock_ms(now_ms))
        self.pending.record(Record(DEAD, message.id, _encode(letter)))
        self.dead_count += 1
        self._counters.dead += 1
        if is_pipeline(message.source):
            self._staging.died(message.source)

    # Messages that did not run

    def complete_unexecuted(self, waiting: QueuedMessage, error: ErrorInfo, now_ms: float) -> None:
        """End a message without effect; asked again by its idempotency key, it does run."""
        message = waiting.message
        self._counters.withdrawn += error is WITHDRAWN
        if error.code == EXPIRED:
            self._counters.expired += 1
            if waiting.interrupted is None:
                self.unrun.append(waiting)
        if message.extra.idempotency_key:
            for follower in self.answers.abandoned(waiting):
                # As a retry that is due: a run on the loop may be using its key without holding it.
                self._lines.retry_at(now_ms, follower)
            extra = msgspec.structs.replace(message.extra, idempotency_key="")
            waiting.message = msgspec.structs.replace(message, extra=extra)
        self.consume(waiting, None, error, now_ms)

    def is_wanted_by_others(self, waiting: QueuedMessage) -> bool:
        """Tell whether others have asked for the same by its idempotency key."""
        if not waiting.message.extra.idempotency_key:
            return False
        return self.answers.has_followers(waiting) or self._lines.has_same_behind(waiting)

    def set_repeated_aside(
        self, messages: Sequence[QueuedMessage], asked: list[str], now_ms: float
    ) -> Sequence[QueuedMessage]:
        """Return what is left without those that are being answered, or were just answered;
        `asked` gets the ids of records that may know the answers of others."""
        if not any(each.message.extra.idempotency_key for each in messages):
            return messages
        left: list[QueuedMessage] = []
        for waiting in messages:
            if not waiting.message.extra.idempotency_key:
                left.append(waiting)
                continue
            answer = self.answers.given.get(idempotency_id(waiting.message))
            if answer is not None:
                self._answer_from_record(waiting, answer, now_ms)
            elif self.answers.claim(waiting, asked):
                left.append(waiting)
            else:
                self.park(waiting)
        return left

    def answer_repeated(
        self, messages: Sequence[QueuedMessage], records: Sequence[Record], now_ms: float
    ) -> Sequence[QueuedMessage]:
        """Return what is left without those that were answered long before."""
        known = still_valid(self._name, records, self._clock_ms(now_ms))
        left: list[QueuedMessage] = []
        for waiting in messages:
            message, answer = waiting.message, None
            if message.extra.idempotency_key:
                answer = known.get(idempotency_id(message))
            if answer is None:
                left.append(waiting)
            else:
                for each in self.answers.answered_before(waiting):
                    self._answer_from_record(each, answer, now_ms)
        return left

    def _answer_from_record(self, waiting: QueuedMessage, answer: Answer, now_ms: float) -> None:
        message = waiting.message
        # There is a newer one if another that got this answer has become a dead letter just now.
        answer = self.answers.given.get(idempotency_id(message), answer)
        codec = self._function.message_codec
        error = answer.error_for(message, codec)
        loss = None if message.kind is Kind.CALL else answer.loss_of(message, codec)
        if loss is not None:
            # It was accepted, and nobody waits to be told.
            if not self._has_room_for_dead():
                self.park(waiting)
                self._lines.retry_at(now_ms + NO_ROOM_WAIT_MS, waiting)
                return
            self._bury(message, loss, now_ms)
            kept = self.answers.kept(message, answer, self._clock_ms(now_ms))
            if kept is not None:
                self._give(*kept)
        # Without its key, so that the answer is not remembered a second time.
        waiting.message = msgspec.structs.replace(message, extra=Extra())
        self.consume(waiting, answer.result, error, now_ms)

    def _remember_answer(
        self, message: Message, value: Any, error: ErrorInfo | None, now_ms: float
    ) -> None:
        clock_ms = self._clock_ms(now_ms)
        answer, record, followers = self.answers.remember(message, value, error, clock_ms)
        self._give(answer, record)
        for follower in followers:
            self._answer_from_record(follower, answer, now_ms)

    def _give(self, answer: Answer, record: Record) -> None:
        self.pending.answers.append((record.id, answer))
        self.pending.record(record)


def _reply_channel(source: str) -> str:
    return source if is_client(source) else source + REPLY_MARK
