"""Deliberate defects of leases, one for each promise."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar, cast

from sublet.functions.app import Function
from sublet.functions.effects import Effect
from sublet.runtime.execution.state_cache import StateCache
from sublet.runtime.leases.borrowed_runs import GuestStates
from sublet.runtime.leases.lessee import Lessee
from sublet.runtime.leases.state_merge import StateMerger
from sublet.runtime.partition.lifecycle.completion import MessageCompletion
from sublet.runtime.partition.model.lease import Lease, LeaseState, StateVersions
from sublet.runtime.partition.model.work import QueuedMessage, RunResult, Work
from sublet.runtime.partition.partition import Partition
from sublet.runtime.partition.queue.leased_work import LentWork
from sublet.runtime.partition.records.watermarks import OpenMessages
from sublet.runtime.protocol.lease_messages import LeaseId, Load, PartialState, StoredState
from sublet.statestore.contract import Outcome, StateRow
from tests.simulation.worlds.lease_worker import LeaseMutant, TimedLending, WatchedLessor

# The lessor's table


class AcceptsLateReturns(LeaseMutant):
    """Takes what a lessee returns after the work was given up and done at home

    (untagged partial sums).
    """

    class lessor(WatchedLessor):  # noqa: N801
        def _home(self, lease: Lease, state: LeaseState) -> None:
            super()._home(lease, state)
            self.given_up = {**getattr(self, "given_up", {}), lease.id: lease}

        def returned(self, worker: str, id_: LeaseId, load: Load, now_ms: float) -> Lease | None:
            lease = super().returned(worker, id_, load, now_ms)
            late: Lease | None = getattr(self, "given_up", {}).pop(id_, None)
            if lease is None and late is not None and late.lessee == worker:
                self.open[id_] = lease = late
                late.partition._lent.works[late.work.id] = late.work
            return lease


class KeepsReturnedLeasesOpen(LeaseMutant):
    """Lets a lease be returned a second time."""

    class lessor(WatchedLessor):  # noqa: N801
        def finish(
            self, lease: Lease, result: RunResult, local_only: int, reason: str, now_ms: float
        ) -> None:
            super().finish(lease, result, local_only, reason, now_ms)
            if lease.work.id not in lease.partition._lent.works:
                self.open[lease.id] = lease
                lease.partition._lent.works[lease.work.id] = lease.work


class RunsAtHomeWithoutEndingTheLease(LeaseMutant):
    """Runs at home what is late, and still takes it from the lessee."""

    class lessor(WatchedLessor):  # noqa: N801
        def _home(self, lease: Lease, state: LeaseState) -> None:
            if state is not LeaseState.EXPIRED:
                super()._home(lease, state)
                return
            lease.partition.lease_ended(lease, None, self.now_ms)
            lease.partition._lent.works[lease.work.id] = lease.work


class DropsWhatWasDeclined(LeaseMutant):
    """Forgets what a lessee did not want."""

    class lessor(WatchedLessor):  # noqa: N801
        def _home(self, lease: Lease, state: LeaseState) -> None:
            if state is LeaseState.DECLINED:
                lease.partition._lent.works.pop(lease.work.id, None)
            super()._home(lease, state)


class ForgetsToEndTerms(LeaseMutant):
    """Waits for ever for a lessee that is gone."""

    class lessor(WatchedLessor):  # noqa: N801
        def woken(self, now_ms: float) -> None:
            self._terms.clear()
            super().woken(now_ms)


class TakesOneLeaseForAnother(LeaseMutant):
    """Takes a return of one lease for another one of the partition."""

    class lessor(WatchedLessor):  # noqa: N801
        def returned(self, worker: str, id_: LeaseId, load: Load, now_ms: float) -> Lease | None:
            for each, lease in self.open.items():
                if each.partition == id_.partition and id_ not in self.open and lease.lessee:
                    id_ = each
            return super().returned(worker, id_, load, now_ms)


class IgnoresTheEpochOfReturns(LeaseMutant):
    """Takes returns of leases that a former owner gave."""

    circumstances: ClassVar = {"calm": True, "dawdling": 0.5, "term_ms": 1_000.0}

    class lessor(WatchedLessor):  # noqa: N801
        def returned(self, worker: str, id_: LeaseId, load: Load, now_ms: float) -> Lease | None:
            for each, lease in self.open.items():
                is_same = each.partition == id_.partition and lease.lessee == worker
                if is_same and each.epoch > id_.epoch:
                    id_ = each
            return super().returned(worker, id_, load, now_ms)


# What the partition does with what is lent


class ForgetsToHoldKeys(LeaseMutant):
    """Runs a key at home while it is lent."""

    class partition(Partition):  # noqa: N801
        def _lend(self, work: Work, lease: Lease, now_ms: float) -> bool:
            for waiting in work.waiting:
                self._lines.release(self._lines.lock_of(waiting.message))
            return super()._lend(work, lease, now_ms)


class _ForgetfulEndings(MessageCompletion):
    is_lending = False

    def park(self, waiting: QueuedMessage, *, anew: bool = False) -> None:
        if not self.is_lending:
            super().park(waiting, anew=anew)


class DoesNotParkWhatIsLent(LeaseMutant):
    """Lends messages without a record of them."""

    class partition(Partition):  # noqa: N801
        def lend(self, *arguments: Any) -> bool:
            self._completion.__class__ = _ForgetfulEndings
            completion = cast("_ForgetfulEndings", self._completion)
            completion.is_lending = True
            is_lent = super().lend(*arguments)
            completion.is_lending = False
            return is_lent


class GivesHomeTwice(LeaseMutant):
    """Takes what comes home twice."""

    class partition(Partition):  # noqa: N801
        def _come_home(self, work: Work, now_ms: float) -> None:
            super()._come_home(work, now_ms)
            self._lent.works[work.id] = work
            super()._come_home(work, now_ms)


class LetsEffectsLeaveBeforeTheMessagesEnd(LeaseMutant):
    """Commits what a lessee did before the messages that it came from."""

    circumstances: ClassVar = {"calm": False, "slowness": 20.0}

    class partition(Partition):  # noqa: N801
        def lease_ended(self, lease: Lease, result: RunResult | None, now_ms: float) -> None:
            if result is None or lease.partial or not result.effects:
                super().lease_ended(lease, result, now_ms)
                return
            self._gather(lease.work, result)
            result.effects = []
            self.not_ended = [*getattr(self, "not_ended", ()), (lease, result)]
            self._advance(now_ms)

        def committed(self, outcome: Outcome, now_ms: float) -> None:
            super().committed(outcome, now_ms)
            for lease, result in getattr(self, "not_ended", ()):
                super().lease_ended(lease, result, now_ms)
            self.not_ended = []


class AppliesRowsToOtherKeys(LeaseMutant):
    """Writes what comes back to another key."""

    class partition(Partition):  # noqa: N801
        def lease_ended(self, lease: Lease, result: RunResult | None, now_ms: float) -> None:
            cells: Any = self._cells
            if result is not None and result.rows:
                others = [each for each in cells.cells if each != result.rows[0].key]
                if others:
                    result.rows = [StateRow(others[0], *row[1:]) for row in result.rows]
            super().lease_ended(lease, result, now_ms)


class LeavesItsOwnCopyAsItWas(LeaseMutant):
    """Stores what a lessee changed, but not in its own memory."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            cells: Any = self._cells
            if not hasattr(cells, "is_readable"):
                cells.apply = lambda rows: []
            super().start(now_ms)


class TakesWhatGoesHomeForDone(LeaseMutant):
    """Takes what a lessee has left undone for done."""

    class partition(Partition):  # noqa: N801
        def lease_ended(self, lease: Lease, result: RunResult | None, now_ms: float) -> None:
            if result is not None:
                result.unfinished = set()
            super().lease_ended(lease, result, now_ms)


class _LenientEndings(MessageCompletion):
    def settle_parts(
        self, messages: Sequence[QueuedMessage], result: RunResult, now_ms: float
    ) -> None:
        result.failed = {}
        super().settle_parts(messages, result, now_ms)


class TakesFailedPartsForDone(LeaseMutant):
    """Takes what failed at a lessee for done."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._completion.__class__ = _LenientEndings
            super().start(now_ms)


class LendsWithoutAskingForAnswers(LeaseMutant):
    """Lends requests without asking whether they were answered before."""

    class partition(Partition):  # noqa: N801
        def _set_repeated_aside(self, work: Work, asked: list[str], now_ms: float) -> Work:
            return work if work.lease else super()._set_repeated_aside(work, asked, now_ms)


class DoesNotWaitForWhatItReads(LeaseMutant):
    """Ends a lease while answers are still being read for it."""

    class partition(Partition):  # noqa: N801
        def lease_ended(self, lease: Lease, result: RunResult | None, now_ms: float) -> None:
            self._lent.is_read(lease.work)
            super().lease_ended(lease, result, now_ms)


# States in parts


class MergesTwice(LeaseMutant):
    """Merges a partial state twice."""

    class merger(StateMerger):  # noqa: N801
        def absorb(
            self, partials: Sequence[PartialState]
        ) -> tuple[list[StateRow], list[Effect]] | None:
            super().absorb(partials)
            return super().absorb(partials)


class _AlwaysAside:
    """Lets nothing run on the loop."""

    def batch_size(self, function: Function, limit: int) -> int:
        return min(limit, 3)

    def off_loop(self, function: Function) -> bool:
        return True

    def learn(self, function: Function, count: int, elapsed_ms: float) -> None:
        return


class MergesWhatIsInUse(LeaseMutant):
    """Merges into a state that a handler has in hands."""

    circumstances: ClassVar = {"pace": _AlwaysAside()}

    class partition(Partition):  # noqa: N801
        def _keys_in_hands(self) -> set[str]:
            running, self._running = self._running, {}
            in_hands = super()._keys_in_hands()
            self._running = running
            return in_hands


class _KnowsNoWholeLeases(LentWork):
    __slots__ = ()

    def is_lent_whole(self, keys: Collection[str]) -> bool:
        return False


class MergesIntoWhatIsLent(LeaseMutant):
    """Merges into a state that is lent as a whole."""

    circumstances: ClassVar = {
        "calm": True,
        "dawdling": 0.5,
        "focus": "sim/crowd",
        "loss": 0.0,
        "term_ms": 1_000.0,
    }

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._lent.__class__ = _KnowsNoWholeLeases
            super().start(now_ms)


class _BlindToLeases(OpenMessages):
    partition: Partition

    def first(self) -> int | None:
        return None if self.partition._lent.works else super().first()


class LetsMarkersPassLeases(LeaseMutant):
    """Lets a watermark overtake what is lent."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self.progress._open.__class__ = _BlindToLeases
            self.progress._open.partition = self  # type: ignore[attr-defined]
            super().start(now_ms)


class NumbersFromTheParked(LeaseMutant):
    """Gives what comes after a takeover places before the markers that wait."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            parked = self._completion.parked.values()
            self._singles.order = max([each.message.order for each in parked], default=0)
            super().start(now_ms)


# Versions of states


class KeepsVersionsAfterHomeRuns(LeaseMutant):
    """Takes a lessee's copy for current after a run at home."""

    class versions(StateVersions):  # noqa: N801
        def forget(self, keys: Collection[str]) -> None:  # type: ignore[override]
            return


class SendsWhatIsStored(LeaseMutant):
    """Sends lessees the stored state, not the newer one in memory."""

    class lending(TimedLending):  # noqa: N801
        def _states_for(self, lease: Lease) -> list[StoredState]:
            tables = self.worker.world.backend.partitions[lease.partition.name]
            states = super()._states_for(lease)
            for each in states:
                stored = tables.state.get(each.key, {})
                if each.rows is not None:
                    each.rows = [
                        (row.subkey, row.value, row.expires_ms)
                        for row in stored.values()
                        if row.value is not None
                    ]
            return states


# The lessee


class TakesALeaseTwice(LeaseMutant):
    """A lessee works an offer off that it has worked off before."""

    circumstances: ClassVar = {"calm": True, "doubling": 0.5, "loss": 0.0}

    class lessee(Lessee):  # noqa: N801
        def ended(self, lease: LeaseId) -> bool:
            is_ended = super().ended(lease)
            self._over.clear()
            return is_ended


class KeepsDoubtfulStates(LeaseMutant):
    """A lessee keeps a copy of a state that an abandoned handler may have changed."""

    circumstances: ClassVar = {"calm": True, "hangs": 0.5}

    class states(GuestStates):  # noqa: N801
        def settled(
            self,
            lease: LeaseId,
            cache: StateCache,
            versions: dict[str, int],
            changed: Collection[str],
            doubtful: Collection[str],
        ) -> None:
            super().settled(lease, cache, versions, changed, ())


MUTANTS: dict[str, Any] = {
    each.__name__: each
    for each in list(globals().values())
    if isinstance(each, type)
    and issubclass(each, LeaseMutant)
    and each not in (LeaseMutant, LetsMarkersPassLeases, MergesWhatIsInUse, NumbersFromTheParked)
}
WINDOW_MUTANTS: dict[str, Any] = {
    each.__name__: each
    for each in (
        LetsMarkersPassLeases,
        MergesTwice,
        MergesWhatIsInUse,
        NumbersFromTheParked,
    )
}
