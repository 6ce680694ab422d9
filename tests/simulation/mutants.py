"""Deliberate defects, one for each promise of the protocol."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from sublet.runtime.admission import Clients
from sublet.runtime.backlog import PULL_MS, Backlog, Place
from sublet.runtime.channels import Inbox
from sublet.runtime.frames import Ack, Batch, ErrorInfo, Extra, Kind
from sublet.runtime.key_lines import KeyLines
from sublet.runtime.partition import Partition
from sublet.runtime.pending import Pending
from sublet.runtime.steps import Acknowledge, Deliver, Store
from sublet.runtime.work import Chunk, Waiting, Work
from sublet.runtime.work_queue import WorkQueue
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
from tests.simulation.world import Mutant


class _ForgetfulInbox(Inbox):
    __slots__ = ()

    def accept(self, source: str, first: int, count: int) -> int:
        skip = super().accept(source, first, count)
        return 0 if skip > 0 else skip


class TakesDuplicates(Mutant):
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
    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._inbox.__class__ = _HighestInbox
            super().start(now_ms)


class AcknowledgesOnArrival(Mutant):
    class partition(Partition):  # noqa: N801
        def batch_arrived(self, batch: Batch, now_ms: float) -> None:
            super().batch_arrived(batch, now_ms)
            received = self._inbox.received.get(batch.source, 0)
            self.effects.append(Acknowledge(Ack(batch.target, batch.source, received)))


class AcknowledgesDuplicatesBeforeTheCommit(Mutant):
    class partition(Partition):  # noqa: N801
        def _acknowledge_again(self, batch: Batch) -> None:
            received = self._inbox.received.get(batch.source, 0)
            self.effects.append(Acknowledge(Ack(batch.target, batch.source, received)))


class DeliversBeforeTheCommit(Mutant):
    class partition(Partition):  # noqa: N801
        def _seal_if_wanted(self, now_ms: float) -> None:
            before = self._committing
            super()._seal_if_wanted(now_ms)
            if self._committing is not None and self._committing is not before:
                self.effects.extend(Deliver(entry) for entry in self._committing.outbox)


class ForgetsTheOutboxOnTakeover(Mutant):
    def recovered(self, recovered: Recovered) -> None:
        recovered.outbox = []


class TrimsOnDelivery(Mutant):
    class partition(Partition):  # noqa: N801
        def committed(self, outcome: Outcome, now_ms: float) -> None:
            commit = self._committing
            super().committed(outcome, now_ms)
            if commit is not None and self._committing is not commit:
                for entry in commit.outbox:
                    self.acknowledged(entry.destination, entry.first + entry.length - 1)


class NumbersAnewOnTakeover(Mutant):
    def recovered(self, recovered: Recovered) -> None:
        recovered.sent = {}


class DoesNotStorePositions(Mutant):
    def commit(self, commit: Commit) -> Commit:
        return msgspec.structs.replace(commit, inbox={})


class StoresPositionsBeforeTheRun(Mutant):
    class partition(Partition):  # noqa: N801
        def _take_from_backlog(self, size: int, off_loop: bool, now_ms: float) -> Work | None:
            work = super()._take_from_backlog(size, off_loop, now_ms)
            for chunk, _, stop in () if work is None else work.spans:
                self._pending.inbox[chunk.batch.source] = chunk.batch.first + stop - 1
                self._pending.must_flush = True
            return work


class StoresPositionsWithoutWaiting(Mutant):
    class partition(Partition):  # noqa: N801
        def _seal_if_wanted(self, now_ms: float) -> None:
            self._unrecorded = None
            super()._seal_if_wanted(now_ms)


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
    kind = PARKED


class DoesNotDeleteParkedMessages(_WithoutRecords):
    kind = PARKED
    deletes = True


class DoesNotStoreTheJournal(_WithoutRecords):
    kind = JOURNAL


class DoesNotStoreAnswers(_WithoutRecords):
    kind = IDEMPOTENCY


class DoesNotStoreTimers(_WithoutRecords):
    kind = TIMER


class DoesNotDeleteTimers(_WithoutRecords):
    kind = TIMER
    deletes = True


class DoesNotStoreWhatWasDoneAhead(_WithoutRecords):
    kind = AHEAD


class DoesNotDeleteWhatWasDoneAhead(_WithoutRecords):
    kind = AHEAD
    deletes = True


class _ShortInbox(Inbox):
    __slots__ = ()

    def reach_ahead(self, source: str, number: int) -> bool:
        return False


class TakesWhatWasDoneAheadForAllBefore(Mutant):
    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._inbox.__class__ = _ShortInbox
            super().start(now_ms)


class _PushyBacklog(Backlog):
    def pull(self, chunk: Chunk, room: int) -> list[Place]:
        places = [(chunk, index) for index in chunk.most_urgent(PULL_MS)[:room]]
        for _, index in places:
            self._remove(chunk, index)
        return places


class PullsWithoutTheEarlierOnesOfTheKey(Mutant):
    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._backlog.__class__ = _PushyBacklog
            super().start(now_ms)


class _KeepingBacklog(Backlog):
    def _remove(self, chunk: Chunk, index: int) -> None:
        return


class RunsWhatWasWithdrawnAndAnswered(Mutant):
    class partition(Partition):  # noqa: N801
        def _withdraw(self, source: str, number: int, error: ErrorInfo, now_ms: float) -> None:
            self._backlog.__class__ = _KeepingBacklog
            super()._withdraw(source, number, error, now_ms)
            self._backlog.__class__ = Backlog


class TakesBackSends(Mutant):
    class partition(Partition):  # noqa: N801
        def _line_up(self, batch: Batch, skip: int, now_ms: float) -> None:
            super()._line_up(batch, skip, now_ms)
            self.queued_kinds = getattr(self, "queued_kinds", {})
            for number in range(batch.first, batch.first + batch.count):
                self.queued_kinds[batch.source, number] = batch

        def _withdraw(self, source: str, number: int, error: ErrorInfo, now_ms: float) -> None:
            batch = self.queued_kinds.get((source, number))
            if batch is None or batch.kind is not Kind.SEND:
                super()._withdraw(source, number, error, now_ms)
                return
            batch.kind = Kind.CALL
            super()._withdraw(source, number, error, now_ms)
            batch.kind = Kind.SEND


class _OneByOne(WorkQueue):
    def is_single(self, chunk: Chunk, now_ms: float) -> bool:
        return True


class LetsSendsExpire(Mutant):
    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._queue.__class__ = _OneByOne
            super().start(now_ms)

        def _is_over(self, waiting: Waiting, now_ms: float) -> ErrorInfo | None:
            waiting.expires = True
            return super()._is_over(waiting, now_ms)


class RemembersThatItDidNotRun(Mutant):
    class partition(Partition):  # noqa: N801
        def _consume_unrun(self, waiting: Waiting, error: ErrorInfo, now_ms: float) -> None:
            self._consume(waiting, None, error, now_ms)


class LeavesThoseWhoAskedForTheSameWaiting(Mutant):
    class partition(Partition):  # noqa: N801
        def _consume_unrun(self, waiting: Waiting, error: ErrorInfo, now_ms: float) -> None:
            message = waiting.message
            waiting.message = msgspec.structs.replace(message, extra=Extra())
            self._consume(waiting, None, error, now_ms)


class ForgetsAnswersBeforeTheCommit(Mutant):
    class partition(Partition):  # noqa: N801
        def _seal_if_wanted(self, now_ms: float) -> None:
            self._answers.given.clear()
            super()._seal_if_wanted(now_ms)


class FiresWhatIsLoadedAgain(Mutant):
    class partition(Partition):  # noqa: N801
        def timers_loaded(self, records: Sequence[Record], until_ms: int, now_ms: float) -> None:
            self._timers._over.clear()
            super().timers_loaded(records, until_ms, now_ms)


class _BackToTheEnd(KeyLines):
    __slots__ = ()

    def put_first(self, lock: str, messages: Sequence[Waiting]) -> None:
        later = list(self.keys[lock]) if lock in self.keys else []
        super().put_first(lock, messages)
        queue = self.keys[lock]
        for waiting in later:
            queue.remove(waiting)
        queue.extendleft(reversed(later))


class PutsWhatCameBackLast(Mutant):
    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._lines.__class__ = _BackToTheEnd
            super().start(now_ms)


class _LooseKeys(KeyLines):
    __slots__ = ()

    def hold(self, waiting: Waiting) -> None:
        if waiting.message.attempt == 1:
            super().hold(waiting)


class LetsKeysGoWhileTheyWait(Mutant):
    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._lines.__class__ = _LooseKeys
            super().start(now_ms)


class ChangesACommitOnResend(Mutant):
    class partition(Partition):  # noqa: N801
        def committed(self, outcome: Outcome, now_ms: float) -> None:
            commit = self._committing
            if outcome is Outcome.UNKNOWN and commit is not None:
                # "It failed, so the next one has its number."
                self._index += 1
                commit = msgspec.structs.replace(
                    commit, index=self._index, id=b"%d.%d" % (self.epoch, self._index)
                )
                self._committing = commit
                self.effects.append(Store(commit))
                return
            super().committed(outcome, now_ms)


class KeepsTornCells(Mutant):
    class partition(Partition):  # noqa: N801
        def cells_suspect(self, keys: Collection[str]) -> None:
            return


class _FaithfulClients(Clients):
    __slots__ = ()

    def leave_out_gone(self, pending: Pending, *, any_open: bool) -> None:
        return


class RemembersClientsThatLeft(Mutant):
    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._clients.__class__ = _FaithfulClients
            super().start(now_ms)


class IsNotFenced(Mutant):
    fences = False


MUTANTS: dict[str, Any] = {
    each.__name__: each
    for each in list(globals().values())
    if isinstance(each, type)
    and issubclass(each, Mutant)
    and each is not Mutant
    and not each.__name__.startswith("_")
}
