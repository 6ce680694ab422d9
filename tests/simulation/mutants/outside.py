"""Deliberate defects of side effects and of requests that are cancelled by hand."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from sublet.runtime.partition.features.requests import Requests
from sublet.runtime.partition.model.effects import Resume, Settled
from sublet.runtime.partition.model.work import QueuedMessage
from sublet.runtime.partition.partition import Partition
from sublet.runtime.partition.records.call_journal import CallJournal
from sublet.runtime.protocol.frames import ErrorInfo
from sublet.statestore.contract import JOURNAL, Commit, Record, Recovered
from tests.simulation.worlds.partition import Mutant

RUN = "/run/"
"""Stands in the ids of the records of side effects."""


def _is_side_effect(record: Record) -> bool:
    return record.kind == JOURNAL and RUN in record.id


class _HastyJournal(CallJournal):
    __slots__ = ()

    def performed(
        self, waiting: QueuedMessage, name: str, result: msgspec.Raw, error: ErrorInfo | None
    ) -> Resume | None:
        super().performed(waiting, name, result, error)
        return Resume(waiting.message.id, name, result, error)


class GoesOnBeforeTheRecord(Mutant):
    """Lets a handler go on before the result of its side effect is stored."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._journal.__class__ = _HastyJournal
            super().start(now_ms)


class DoesNotStoreSideEffects(Mutant):
    """Lets a handler go on although nothing of its side effect was stored."""

    def commit(self, commit: Commit) -> Commit:
        kept = [each for each in commit.records if not _is_side_effect(each)]
        return msgspec.structs.replace(commit, records=kept)


class ForgetsSideEffectsOnTakeover(Mutant):
    """Lets the next owner do again what is on record."""

    def recovered(self, recovered: Recovered) -> None:
        recovered.journal = [each for each in recovered.journal if not _is_side_effect(each)]


class _ForgetfulJournal(CallJournal):
    __slots__ = ()

    def tried(self, waiting: QueuedMessage) -> None:
        for name in [each for each in waiting.journal if isinstance(each, str)]:
            recorded = waiting.journal.pop(name)
            id_ = f"{recorded.message_id}{RUN}{name}"
            self._pending.record(Record(JOURNAL, id_, None))


class RepeatsSideEffectsInTheNextAttempt(Mutant):
    """Does side effects again that succeeded, when their handler is tried again."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._journal.__class__ = _ForgetfulJournal
            super().start(now_ms)


class _StubbornJournal(CallJournal):
    __slots__ = ()

    def tried(self, waiting: QueuedMessage) -> None:
        return


class NeverRepeatsAFailedSideEffect(Mutant):
    """Tells each attempt of a message that its side effect has failed in the first."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._journal.__class__ = _StubbornJournal
            super().start(now_ms)


class _HastyRequests(Requests):
    def cancel(self, source: str, number: int, now_ms: float) -> QueuedMessage | None:
        waiting = super().cancel(source, number, now_ms)
        if waiting is not None and not waiting.ended:
            told = QueuedMessage(waiting.message)
            told.ended = told.cancelled = True
            return told
        return waiting


class TellsOfACancellationBeforeTheEnd(Mutant):
    """Says that a request is cancelled while its handler may still end well."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self.requests.__class__ = _HastyRequests
            super().start(now_ms)


class _CarelessRequests(Requests):
    def flush(self, ticket: object, now_ms: float) -> None:
        self._steps.effects.append(Settled(ticket))


class TellsOfACancellationBeforeTheCommit(Mutant):
    """Says that a request is cancelled before that is stored."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self.requests.__class__ = _CarelessRequests
            super().start(now_ms)


class RunsWhatWasCancelledByHand(Mutant):
    """Says that a request is cancelled, and lets it wait for its turn."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self.requests.__class__ = _IdleRequests
            super().start(now_ms)


class _IdleRequests(Requests):
    def cancel(self, source: str, number: int, now_ms: float) -> QueuedMessage | None:
        found = self._parked.by_id.get(f"{source}:{number}")
        if found is None:
            return None
        told = QueuedMessage(found.message)
        told.ended = told.cancelled = True
        return told


MUTANTS: Mapping[str, type[Mutant]] = {
    each.__name__: each
    for each in (
        GoesOnBeforeTheRecord,
        DoesNotStoreSideEffects,
        ForgetsSideEffectsOnTakeover,
        RepeatsSideEffectsInTheNextAttempt,
        NeverRepeatsAFailedSideEffect,
        TellsOfACancellationBeforeTheEnd,
        TellsOfACancellationBeforeTheCommit,
        RunsWhatWasCancelledByHand,
    )
}
