"""Deliberate defects, one for each promise of the protocol."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from sublet.functions.address import is_client
from sublet.functions.app import Function
from sublet.runtime.partition.commit.pending_commit import CommitContents
from sublet.runtime.partition.features.timers import Timers
from sublet.runtime.partition.lifecycle.admission import Admission
from sublet.runtime.partition.lifecycle.cancellation import Cancellation
from sublet.runtime.partition.lifecycle.completion import MessageCompletion
from sublet.runtime.partition.lifecycle.message_dispatch import MessageDispatch
from sublet.runtime.partition.model.effects import Acknowledge, Deliver, Interrupt, Store
from sublet.runtime.partition.model.environment import Acquisition
from sublet.runtime.partition.model.work import Chunk, QueuedMessage, Work
from sublet.runtime.partition.partition import Partition
from sublet.runtime.partition.queue.backlog import PULL_MS, Backlog, MessageRef
from sublet.runtime.partition.queue.key_locks import KeyLocks
from sublet.runtime.partition.queue.work_queue import WorkQueue
from sublet.runtime.partition.records.channels import Inbox
from sublet.runtime.partition.records.client_sessions import ClientSessions
from sublet.runtime.partition.records.dead_letters import DeadLetters
from sublet.runtime.partition.records.idempotency import (
    Answer,
    IdempotencyCache,
    _digest,
    idempotency_id,
)
from sublet.runtime.protocol.frames import Ack, Batch, ErrorInfo, Extra, Kind
from sublet.runtime.protocol.messages import Message
from sublet.statestore.contract import (
    AHEAD,
    IDEMPOTENCY,
    JOURNAL,
    PARKED,
    TIMER,
    Commit,
    Outcome,
    Record,
    Recovered,
)
from tests.simulation.worlds.partition import Mutant, World


class _ForgetfulInbox(Inbox):
    __slots__ = ()

    def accept(self, source: str, first: int, count: int) -> int:
        skip = super().accept(source, first, count)
        return 0 if skip > 0 else skip


class TakesDuplicates(Mutant):
    """Runs what arrives a second time once more."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._inbox.__class__ = _ForgetfulInbox
            super().start(now_ms)


class _HighestInbox(Inbox):
    __slots__ = ()

    def accept(self, source: str, first: int, count: int) -> int:
        self.received[source] = max(self.received.get(source, 0), first - 1)
        return super().accept(source, first, count)


class SkipsGaps(Mutant):
    """Takes the highest number that it saw for all before it (max-watermark)."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._inbox.__class__ = _HighestInbox
            super().start(now_ms)


class AcknowledgesOnArrival(Mutant):
    """Acknowledges what is only in memory (early ack)."""

    class partition(Partition):  # noqa: N801
        def batch_arrived(self, batch: Batch, now_ms: float) -> None:
            super().batch_arrived(batch, now_ms)
            received = self._inbox.received.get(batch.source, 0)
            self.effects.append(Acknowledge(Ack(batch.target, batch.source, received)))


class _HastyAdmission(Admission):
    def _acknowledge_again(self, batch: Batch) -> Acknowledge:
        received = self._inbox.received.get(batch.source, 0)
        return Acknowledge(Ack(batch.target, batch.source, received))


class AcknowledgesDuplicatesBeforeTheCommit(Mutant):
    """Answers a repeated batch with how far it has come in memory (ack of a volatile watermark)."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._admission.__class__ = _HastyAdmission
            super().start(now_ms)


class DeliversBeforeTheCommit(Mutant):
    """Sends messages and replies before their commit (early send)."""

    class partition(Partition):  # noqa: N801
        def _seal(self, now_ms: float) -> None:
            before = self.in_flight_commit.commit
            super()._seal(now_ms)
            commit = self.in_flight_commit.commit
            if commit is not None and commit is not before:
                self.effects.extend(Deliver(entry) for entry in commit.outbox)


class ForgetsTheOutboxOnTakeover(Mutant):
    """A new owner does not send again what is in the outbox (no resend)."""

    def recovered(self, recovered: Recovered) -> None:
        recovered.outbox = []


class TrimsOnDelivery(Mutant):
    """Deletes from the outbox what it has sent, acknowledged or not (trim on delivery)."""

    class partition(Partition):  # noqa: N801
        def committed(self, outcome: Outcome, now_ms: float) -> None:
            commit = self.in_flight_commit.commit
            super().committed(outcome, now_ms)
            if commit is not None and self.in_flight_commit.commit is not commit:
                for entry in commit.outbox:
                    self.delivery.acknowledged(entry.destination, entry.first + entry.length - 1)


class NumbersAnewOnTakeover(Mutant):
    """A new owner numbers its messages from 1 again (sequence reset on takeover)."""

    def recovered(self, recovered: Recovered) -> None:
        recovered.sent = {}


class DoesNotStorePositions(Mutant):
    """Stores effects without how far the inbox was read."""

    def commit(self, commit: Commit) -> Commit:
        return msgspec.structs.replace(commit, inbox={})


class StoresPositionsBeforeTheRun(Mutant):
    """Stores how far it has read before that has run."""

    class partition(Partition):  # noqa: N801
        def _take_from_backlog(self, size: int, off_loop: bool, now_ms: float) -> Work | None:
            work = super()._take_from_backlog(size, off_loop, now_ms)
            for chunk, _, stop in () if work is None else work.spans:
                self._pending.reach(chunk.batch.source, chunk.batch.first + stop - 1)
            return work


class StoresPositionsWithoutWaiting(Mutant):
    """Stores how far it has read although an earlier message is neither done nor parked."""

    class partition(Partition):  # noqa: N801
        def _seal(self, now_ms: float) -> None:
            self._gate.unrecorded = None
            super()._seal(now_ms)


class _WithoutRecords(Mutant):
    kind = ""
    deletes = False

    def commit(self, commit: Commit) -> Commit:
        records = [
            each
            for each in commit.records
            if each.kind != self.kind or (each.value is None) is not self.deletes
        ]
        return msgspec.structs.replace(commit, records=records)


class DoesNotStoreParkedMessages(_WithoutRecords):
    """Takes messages that wait from their channel without a record of them."""

    kind = PARKED


class DoesNotDeleteParkedMessages(_WithoutRecords):
    """Keeps the record of a parked message that is done."""

    kind = PARKED
    deletes = True


class DoesNotStoreTheJournal(_WithoutRecords):
    """Forgets which calls a waiting handler has made."""

    kind = JOURNAL


class DoesNotStoreAnswers(_WithoutRecords):
    """Knows only in memory which requests were answered (memory-only idempotency table)."""

    kind = IDEMPOTENCY


class DoesNotStoreTimers(_WithoutRecords):
    """Keeps timers in memory only."""

    kind = TIMER


class DoesNotDeleteTimers(_WithoutRecords):
    """Keeps the row of a timer that has fired."""

    kind = TIMER
    deletes = True


class DoesNotStoreWhatWasDoneAhead(_WithoutRecords):
    """Forgets what was done ahead of its line."""

    kind = AHEAD


class DoesNotDeleteWhatWasDoneAhead(_WithoutRecords):
    """Keeps the record of what was done ahead for ever."""

    kind = AHEAD
    deletes = True


class _ShortInbox(Inbox):
    __slots__ = ()

    def reach_ahead(self, source: str, number: int) -> bool:
        return False


class TakesWhatWasDoneAheadForAllBefore(Mutant):
    """Takes an urgent message's number for all before it."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._inbox.__class__ = _ShortInbox
            super().start(now_ms)


class _PushyBacklog(Backlog):
    def pull(self, chunk: Chunk, room: int) -> list[MessageRef]:
        refs: list[MessageRef] = [(chunk, index) for index in chunk.most_urgent(PULL_MS)[:room]]
        for _, index in refs:
            self._remove(chunk, index)
        return refs


class PullsWithoutTheEarlierOnesOfTheKey(Mutant):
    """Lets an urgent message overtake earlier ones of its key."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._backlog.__class__ = _PushyBacklog
            super().start(now_ms)


class _KeepingBacklog(Backlog):
    def _remove(self, chunk: Chunk, index: int) -> None:
        return


class _IdleCancellation(Cancellation):
    def cancel(self, source: str, number: int, error: ErrorInfo, now_ms: float) -> Interrupt | None:
        self._backlog.__class__ = _KeepingBacklog
        interrupt = super().cancel(source, number, error, now_ms)
        self._backlog.__class__ = Backlog
        return interrupt


class RunsWhatWasWithdrawnAndAnswered(Mutant):
    """Runs a request whose caller was told that it will not."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._parts.cancellation.__class__ = _IdleCancellation
            super().start(now_ms)


class _GreedyCancellation(Cancellation):
    queued: dict[tuple[str, int], Batch]

    def cancel(self, source: str, number: int, error: ErrorInfo, now_ms: float) -> Interrupt | None:
        batch = self.queued.get((source, number))
        if batch is None or batch.kind is not Kind.SEND:
            return super().cancel(source, number, error, now_ms)
        batch.kind = Kind.CALL
        interrupt = super().cancel(source, number, error, now_ms)
        batch.kind = Kind.SEND
        return interrupt


class TakesBackSends(Mutant):
    """Lets sends be withdrawn, which nobody answers."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._parts.cancellation.__class__ = _GreedyCancellation
            self._parts.cancellation.queued = {}  # type: ignore[attr-defined]
            super().start(now_ms)

        def line_up(self, batch: Batch, skip: int, now_ms: float) -> None:
            super().line_up(batch, skip, now_ms)
            queued = self._parts.cancellation.queued  # type: ignore[attr-defined]
            for number in range(batch.first, batch.first + batch.count):
                queued[batch.source, number] = batch


class _OneByOne(WorkQueue):
    def is_single(self, chunk: Chunk, now_ms: float) -> bool:
        return True


class _ExpiringDispatch(MessageDispatch):
    def is_over(self, waiting: QueuedMessage, now_ms: float) -> ErrorInfo | None:
        waiting.expires = True
        return super().is_over(waiting, now_ms)


class LetsSendsExpire(Mutant):
    """Drops sends whose deadline has passed."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._queue.__class__ = _OneByOne
            self._parts.dispatch.__class__ = _ExpiringDispatch
            super().start(now_ms)


class _RememberingCompletion(MessageCompletion):
    def complete_unexecuted(self, waiting: QueuedMessage, error: ErrorInfo, now_ms: float) -> None:
        self.consume(waiting, None, error, now_ms)


class RemembersThatItDidNotRun(Mutant):
    """Keeps "it did not run" as the answer to an idempotency key."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._completion.__class__ = _RememberingCompletion
            super().start(now_ms)


class _CarelessLetters(DeadLetters):
    __slots__ = ()

    def bury(self, message: Message, error: ErrorInfo, now_ms: float) -> None:
        if error.code != "idempotency_conflict":
            super().bury(message, error, now_ms)


class DropsSendsThatConflict(Mutant):
    """Forgets an accepted send whose idempotency key is that of another request."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._parts.records.dead_letters.__class__ = _CarelessLetters
            super().start(now_ms)


class _ForgetfulAnswers(IdempotencyCache):
    __slots__ = ()

    def keep(self, message: Message, answer: Answer, now_ms: float) -> None:
        return None


class BuriesEveryRepeat(Mutant):
    """Makes a dead letter of each send that asks for what has failed before."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._parts.records.idempotency.__class__ = _ForgetfulAnswers
            super().start(now_ms)


class _BlindCompletion(MessageCompletion):
    def _answer_from_record(self, waiting: QueuedMessage, answer: Answer, now_ms: float) -> None:
        answer = msgspec.structs.replace(answer, digest=_digest(bytes(waiting.message.payload)))
        self._idempotency.given.pop(idempotency_id(waiting.message), None)
        super()._answer_from_record(waiting, answer, now_ms)


class TakesAnotherRequestForTheSame(Mutant):
    """Answers a request with what another one under its idempotency key has come to."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._completion.__class__ = _BlindCompletion
            super().start(now_ms)


class _LonelyCompletion(MessageCompletion):
    def complete_unexecuted(self, waiting: QueuedMessage, error: ErrorInfo, now_ms: float) -> None:
        message = waiting.message
        waiting.message = msgspec.structs.replace(message, extra=Extra())
        self.consume(waiting, None, error, now_ms)


class LeavesThoseWhoAskedForTheSameWaiting(Mutant):
    """Forgets those who asked for the same when a request ends early."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._completion.__class__ = _LonelyCompletion
            super().start(now_ms)


class ForgetsAnswersBeforeTheCommit(Mutant):
    """Forgets an answer in memory before it is stored."""

    class partition(Partition):  # noqa: N801
        def _seal(self, now_ms: float) -> None:
            self._parts.records.idempotency.given.clear()
            super()._seal(now_ms)


class _ForgetfulTimers(Timers):
    def loaded(self, records: Sequence[Record], now_ms: float) -> None:
        self._index._over.clear()
        super().loaded(records, now_ms)


class FiresWhatIsLoadedAgain(Mutant):
    """Fires a timer again that was read from the store before its end was committed."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self.timers.__class__ = _ForgetfulTimers
            super().start(now_ms)


class _BackToTheEnd(KeyLocks):
    __slots__ = ()

    def requeue_front(self, lock: str, messages: Sequence[QueuedMessage]) -> None:
        later = list(self.keys[lock]) if lock in self.keys else []
        super().requeue_front(lock, messages)
        queue = self.keys[lock]
        for waiting in later:
            queue.remove(waiting)
        queue.extendleft(reversed(later))


class PutsWhatCameBackLast(Mutant):
    """Puts what comes back from a run behind later messages of its key."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._locks.__class__ = _BackToTheEnd
            super().start(now_ms)


class _LooseKeys(KeyLocks):
    __slots__ = ()

    def hold(self, waiting: QueuedMessage) -> None:
        if waiting.message.attempt == 1:
            super().hold(waiting)


class LetsKeysGoWhileTheyWait(Mutant):
    """Lets others run on a key while a message of it waits for its retry."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._locks.__class__ = _LooseKeys
            super().start(now_ms)


class ChangesACommitOnResend(Mutant):
    """Sends a commit of unknown outcome as a new one (retried commit applied twice)."""

    class partition(Partition):  # noqa: N801
        def committed(self, outcome: Outcome, now_ms: float) -> None:
            in_flight_commit = self.in_flight_commit
            if outcome is Outcome.UNKNOWN and in_flight_commit.commit is not None:
                # "It failed, so the next one has its number."
                in_flight_commit.index += 1
                in_flight_commit.commit = msgspec.structs.replace(
                    in_flight_commit.commit,
                    index=in_flight_commit.index,
                    id=b"%d.%d" % (self.epoch, in_flight_commit.index),
                )
                self.effects.append(Store(in_flight_commit.commit))
                return
            super().committed(outcome, now_ms)


class KeepsTornCells(Mutant):
    """Goes on with state that an abandoned handler may have changed."""

    class partition(Partition):  # noqa: N801
        def cells_tainted(self, keys: Collection[str]) -> None:
            return


class _FaithfulClients(ClientSessions):
    __slots__ = ()

    def _leave_out_gone(self, contents: CommitContents) -> None:
        return


class RemembersClientsThatLeft(Mutant):
    """Stores positions of clients that have said goodbye."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._clients.__class__ = _FaithfulClients
            super().start(now_ms)


class IsNotFenced(Mutant):
    """The store takes commits of former owners (no fence)."""

    fences = False


class ChecksThenWrites(Mutant):
    """Compares the epoch when a commit leaves, not where it is written (check-then-write)."""

    checks_early = True


class ReadsBeforeFencing(Mutant):
    """A new owner reads before it raises the epoch (read before fencing)."""

    reads_early = True


class StoresPositionsSeparately(Mutant):
    """Stores how far the inbox was read after the effects (watermark written separately)."""

    def apply(self, world: World, commit: Commit) -> Outcome:
        outcome = super().apply(world, msgspec.structs.replace(commit, inbox={}))
        if outcome is Outcome.DONE:
            world.soon(self._store_positions, world, commit)
        return outcome

    def _store_positions(self, world: World, commit: Commit) -> None:
        if world.epoch_of(commit.partition) == commit.epoch:
            world.backend.partitions[commit.partition].inbox.update(commit.inbox)


class TearsCommits(Mutant):
    """The store may keep half a commit and say that it is unknown."""

    def apply(self, world: World, commit: Commit) -> Outcome:
        if world.faulty and world.chance.random() < 0.2:
            if world.epoch_of(commit.partition) == commit.epoch:
                world.backend.partitions[commit.partition]._apply_state(commit.state)
            return Outcome.UNKNOWN
        return super().apply(world, commit)


class AnswersBeforeTheCommit(Mutant):
    """Answers callers from memory: also as a former owner, and what may be lost (stale read)."""

    class partition(Partition):  # noqa: N801
        def _seal(self, now_ms: float) -> None:
            before = self.in_flight_commit.commit
            super()._seal(now_ms)
            commit = self.in_flight_commit.commit
            if commit is not None and commit is not before:
                answers = [each for each in commit.outbox if is_client(each.destination)]
                self.effects.extend(Deliver(entry) for entry in answers)


class BelievesItsOwnClock(Mutant):
    """A new owner goes on with its machine's clock, whatever is stored."""

    class partition(Partition):  # noqa: N801
        def __init__(self, function: Function, acquired: Acquisition, *around: Any) -> None:
            super().__init__(function, acquired, *around)
            self._clock.base_ms = acquired.wall_ms - int(acquired.now_ms)


class GoesOnAfterItIsFenced(Mutant):
    """Takes the store's refusal for an answer to its commit."""

    class partition(Partition):  # noqa: N801
        def committed(self, outcome: Outcome, now_ms: float) -> None:
            super().committed(Outcome.DONE if outcome is Outcome.FENCED else outcome, now_ms)


MUTANTS: dict[str, Any] = {
    each.__name__: each
    for each in list(globals().values())
    if isinstance(each, type)
    and issubclass(each, Mutant)
    and each is not Mutant
    and not each.__name__.startswith("_")
}
