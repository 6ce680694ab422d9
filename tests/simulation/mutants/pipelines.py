"""Deliberate defects of staging and of what drives it, one for each promise."""

from __future__ import annotations

from typing import Any

import msgspec

from sublet.runtime.client.pipeline_protocol import Committed, PipelineDriver, Plan, Story
from sublet.runtime.partition.model.work import RunResult, Work
from sublet.runtime.partition.partition import Partition
from sublet.runtime.partition.records.staged_batches import Handled, Part, Staging, _Flow
from sublet.runtime.protocol.frames import Kind
from sublet.runtime.protocol.pipeline_messages import Complete, Decide, Forget, Seal
from sublet.statestore.contract import STAGED, STAGING, Commit, Record, Recovered
from tests.simulation.worlds.partition import Mutant

_decode = msgspec.msgpack.decode


def _replaced(kind: type[Staging]) -> type[Partition]:
    class Mutated(Partition):
        def start(self, now_ms: float) -> None:
            self._staging.__class__ = kind
            super().start(now_ms)

    return Mutated


def _is_pipeline(record: Record) -> bool:
    return record.kind == STAGING and "/" not in record.id and not record.id.startswith("=")


class _SealsAgain(Staging):
    def _seal(self, asked: Seal, clock_ms: int) -> Handled:
        flow = self._flow(asked.pipeline)
        if flow.stored is not None and asked.batch == flow.stored.sealed:
            flow.stored.sealed -= 1
        before = {id_: msgspec.structs.replace(part) for id_, part in flow.staged.items()}
        handled = super()._seal(asked, clock_ms)
        for id_, part in before.items():
            if id_ not in flow.staged:
                self._staged(flow, part)
        return handled


class AppliesASealTwice(Mutant):
    """Lets rows be messages once more when a seal is repeated."""

    partition = _replaced(_SealsAgain)


class DoesNotStoreSeals(Mutant):
    """Does not store how far a pipeline is sealed."""

    def commit(self, commit: Commit) -> Commit:
        kept = [each for each in commit.records if not _is_pipeline(each)]
        return msgspec.structs.replace(commit, records=kept)


class DeletesRowsWithTheirSeal(Mutant):
    """Deletes staged rows when they are sealed, before they are taken."""

    def commit(self, commit: Commit) -> Commit:
        gone = []
        for each in commit.records:
            if each.kind == STAGING and "/" in each.id and each.value is not None:
                part = msgspec.convert(_decode(each.value), Part)
                if part.first:
                    gone.append(Record(STAGED, each.id, None))
        return msgspec.structs.replace(commit, records=[*commit.records, *gone])


class _Overwrites(Staging):
    def _decide(self, asked: Decide) -> Handled:
        self._decisions.pop(asked.pipeline, None)
        return super()._decide(asked)


class OverwritesDecisions(Mutant):
    """Takes the latest word for what a batch consists of."""

    partition = _replaced(_Overwrites)


class DoesNotStoreDecisions(Mutant):
    """Keeps decisions in memory alone."""

    def commit(self, commit: Commit) -> Commit:
        kept = [each for each in commit.records if not each.id.startswith("=")]
        return msgspec.structs.replace(commit, records=kept)


class _Tolerant(Staging):
    def _decide(self, asked: Decide) -> Handled:
        known = self._decisions.get(asked.pipeline)
        generation = max(asked.generation, known.generation if known else 0)
        return super()._decide(msgspec.structs.replace(asked, generation=generation))


class LetsFormerDriversDecide(Mutant):
    """Lets a driver decide although another one has begun."""

    partition = _replaced(_Tolerant)


class FeedsFromTheBeginning(Mutant):
    """A new owner feeds a part again from its first row."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            for source, flow in self._staging.hungry.items():
                self._inbox.received[source] = flow.sealed[0].first - 1
            super().start(now_ms)


class _SealsWhatIsThere(Staging):
    def _chosen(self, asked: Seal, flow: _Flow) -> tuple[list[Part], str | None]:
        return [each for each in flow.staged.values() if each.batch == asked.batch], None


class SealsEverythingThatIsStaged(Mutant):
    """Seals all attempts of a batch, whether they count or not."""

    partition = _replaced(_SealsWhatIsThere)


class _ReachesOneFurther(Staging):
    def reached(self, source: str, upto: int) -> list[Record]:
        records = super().reached(source, upto)
        sealed = self._flows[source].sealed
        if sealed and sealed[0].last == upto + 1:
            records += [Record(kind, sealed[0].id, None) for kind in (STAGED, STAGING)]
        return records


class DeletesRowsBeforeTheLastIsTaken(Mutant):
    """Deletes the rows of a part when all but the last are taken."""

    partition = _replaced(_ReachesOneFurther)


class LosesMessagesAmongStates(Mutant):
    """Takes messages that stand between states for done."""

    class partition(Partition):  # noqa: N801
        def finished(self, work: Work, result: RunResult, now_ms: float) -> None:
            if work.assigns and work.waiting:
                result.unfinished -= {
                    index
                    for index, each in enumerate(work.waiting)
                    if each.message.kind is Kind.SEND
                }
            super().finished(work, result, now_ms)


class ForgetsStagedRows(Mutant):
    """A new owner does not know what was staged."""

    def recovered(self, recovered: Recovered) -> None:
        recovered.staging = [
            each
            for each in recovered.staging
            if "/" not in each.id or msgspec.convert(_decode(each.value or b""), Part).first
        ]


class _DoesNotPark(Staging):
    def parked(self, source: str, number: int) -> None:
        return


class TellsRowsThatWaitAsTaken(Mutant):
    """Takes rows for run that are on record because others hold their keys."""

    partition = _replaced(_DoesNotPark)


class _CompletesAgain(Staging):
    def _complete(self, asked: Complete, clock_ms: int) -> Handled:
        self._describe_as(asked.pipeline, None)
        return super()._complete(asked, clock_ms)


class TakesTheLastWordForTheEnd(Mutant):
    """Lets a pipeline's end be said again, at another place."""

    partition = _replaced(_CompletesAgain)


class SealsWhatItWanted(Mutant):
    """A driver seals its own attempts, whatever was decided."""

    class driver(PipelineDriver):  # noqa: N801
        def commit(self, batch: int, wanted: Plan, completed: int = -1) -> Story[Committed]:
            request = Decide(self.name, batch, self._encoded(batch, wanted), self.completed)
            yield {0: msgspec.structs.replace(request, generation=self.generation)}
            yield from self._seal(batch, wanted)
            self.completed = batch
            return Committed(None, is_ours=True)


class LeavesWhatWasDecided(Mutant):
    """A driver does not finish what its predecessors have decided."""

    class driver(PipelineDriver):  # noqa: N801
        def _seal(self, batch: int, plan: Plan) -> Story[None]:
            return super()._seal(batch, Plan([]) if not self.generation else plan)


class ForgetsOnlyWhereItIsDecided(Mutant):
    """A driver that forgets a pipeline tells one partition alone."""

    class driver(PipelineDriver):  # noqa: N801
        def forget(self) -> Story[None]:
            yield {0: Forget(self.name)}


MUTANTS: dict[str, type[Any]] = {
    each.__name__: each
    for each in (
        AppliesASealTwice,
        DoesNotStoreSeals,
        DeletesRowsWithTheirSeal,
        OverwritesDecisions,
        DoesNotStoreDecisions,
        LetsFormerDriversDecide,
        FeedsFromTheBeginning,
        SealsEverythingThatIsStaged,
        DeletesRowsBeforeTheLastIsTaken,
        LosesMessagesAmongStates,
        ForgetsStagedRows,
        TellsRowsThatWaitAsTaken,
        TakesTheLastWordForTheEnd,
        SealsWhatItWanted,
        LeavesWhatWasDecided,
        ForgetsOnlyWhereItIsDecided,
    )
}
