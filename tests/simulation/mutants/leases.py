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
from sublet.runtime.partition.features.leases import LeaseReturns, Leases
from sublet.runtime.partition.lifecycle.keys_in_use import KeysInUse
from sublet.runtime.partition.lifecycle.parked_messages import ParkedMessages
from sublet.runtime.partition.lifecycle.run_preparation import RunPreparation
from sublet.runtime.partition.lifecycle.settlement import RunSettlement
from sublet.runtime.partition.model.lease import Lease, LeaseState, StateVersions
from sublet.runtime.partition.model.work import ColumnWork, QueuedMessage, RunResult, Work
from sublet.runtime.partition.partition import Partition
from sublet.runtime.partition.queue.key_locks import KeyLocks
from sublet.runtime.partition.queue.leased_work import LeasedWork
from sublet.runtime.partition.records.watermarks import OpenMessages
from sublet.runtime.protocol.frames import Kind
from sublet.runtime.protocol.lease_messages import (
    LeaseId,
    OfferedStates,
    PartialState,
    StateRows,
    WorkerLoad,
)
from sublet.scheduler.binding.standing import StandingLease, StandingLeases
from sublet.scheduler.scaling.plan import Plan
from sublet.statestore.contract import Outcome, StateRow
from tests.simulation.worlds.lease_worker import LeaseMutant, TimedLending, WatchedLessor

# Plans


class _Unfenced(StandingLeases):
    def follow(self, plan: Plan) -> bool:
        self._seen = (-1, -1)
        return super().follow(plan)


class FollowsFormerControllers(LeaseMutant):
    """Redirects what the plan of a former controller says, with a lower token."""

    circumstances: ClassVar[dict[str, Any]] = {"redirects": True}
    standing = _Unfenced


class RedirectsWhatIsNotWorthIt(LeaseMutant):
    """Redirects messages that cost less than three times what lending them costs."""

    circumstances: ClassVar[dict[str, Any]] = {"redirects": True}

    class lessor(WatchedLessor):  # noqa: N801
        def _standing_of(self, partition: Partition) -> StandingLease | None:
            standing = self.standing.of(partition.function.name)
            return standing if standing is not None and self._may_lend(partition) else None


# The lessor's table


class AcceptsLateReturns(LeaseMutant):
    """Takes what a lessee returns after the work was given up and done at home

    (untagged partial sums).
    """

    class lessor(WatchedLessor):  # noqa: N801
        def _home(self, lease: Lease, state: LeaseState) -> None:
            super()._home(lease, state)
            self.given_up = {**getattr(self, "given_up", {}), lease.id: lease}

        def returned(
            self, worker: str, id_: LeaseId, load: WorkerLoad, now_ms: float
        ) -> Lease | None:
            lease = super().returned(worker, id_, load, now_ms)
            late: Lease | None = getattr(self, "given_up", {}).pop(id_, None)
            if lease is None and late is not None and late.lessee == worker:
                self.open[id_] = lease = late
                late.partition._leased.works[late.work.id] = late.work
            return lease


class KeepsReturnedLeasesOpen(LeaseMutant):
    """Lets a lease be returned a second time."""

    class lessor(WatchedLessor):  # noqa: N801
        def finish(
            self, lease: Lease, result: RunResult, local_only: int, reason: str, now_ms: float
        ) -> None:
            super().finish(lease, result, local_only, reason, now_ms)
            if lease.work.id not in lease.partition._leased.works:
                self.open[lease.id] = lease
                lease.partition._leased.works[lease.work.id] = lease.work


class RunsAtHomeWithoutEndingTheLease(LeaseMutant):
    """Runs at home what is late, and still takes it from the lessee."""

    class lessor(WatchedLessor):  # noqa: N801
        def _home(self, lease: Lease, state: LeaseState) -> None:
            if state is not LeaseState.EXPIRED:
                super()._home(lease, state)
                return
            lease.partition.leases.ended(lease, None, self.now_ms)
            lease.partition._leased.works[lease.work.id] = lease.work


class DropsWhatWasDeclined(LeaseMutant):
    """Forgets what a lessee did not want."""

    class lessor(WatchedLessor):  # noqa: N801
        def _home(self, lease: Lease, state: LeaseState) -> None:
            if state is LeaseState.DECLINED:
                lease.partition._leased.works.pop(lease.work.id, None)
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
        def returned(
            self, worker: str, id_: LeaseId, load: WorkerLoad, now_ms: float
        ) -> Lease | None:
            for each, lease in self.open.items():
                if each.partition == id_.partition and id_ not in self.open and lease.lessee:
                    id_ = each
            return super().returned(worker, id_, load, now_ms)


class IgnoresTheEpochOfReturns(LeaseMutant):
    """Takes returns of leases that a former owner gave."""

    circumstances: ClassVar = {"calm": True, "dawdling": 0.5, "term_ms": 1_000.0}

    class lessor(WatchedLessor):  # noqa: N801
        def returned(
            self, worker: str, id_: LeaseId, load: WorkerLoad, now_ms: float
        ) -> Lease | None:
            for each, lease in self.open.items():
                is_same = each.partition == id_.partition and lease.lessee == worker
                if is_same and each.epoch > id_.epoch:
                    id_ = each
            return super().returned(worker, id_, load, now_ms)


# What the partition does with what is lent


def _leasing(kind: type[Leases]) -> type[Partition]:
    class Mutated(Partition):
        def start(self, now_ms: float) -> None:
            self.leases.__class__ = kind
            super().start(now_ms)

    return Mutated


def _returning(kind: type[LeaseReturns]) -> type[Partition]:
    class Mutated(Partition):
        def start(self, now_ms: float) -> None:
            self._parts.returns.__class__ = kind
            super().start(now_ms)

    return Mutated


class _Unheld(Leases):
    def _lend(self, work: Work, lease: Lease, now_ms: float) -> bool:
        locks = self._dispatch._locks
        for waiting in work.waiting:
            locks.release(locks.lock_of(waiting.message))
        return super()._lend(work, lease, now_ms)


class ForgetsToHoldKeys(LeaseMutant):
    """Runs a key at home while it is lent."""

    partition = _leasing(_Unheld)


class _Unparked(ParkedMessages):
    __slots__ = ()

    def park(self, waiting: QueuedMessage, *, anew: bool = False) -> None:
        return

    def keeps_columns(self, source: str) -> bool:
        return False


class _LendsUnparked(Leases):
    def lend(self, *arguments: Any) -> bool:
        parked = self._dispatch._parked
        parked.__class__ = _Unparked
        is_lent = super().lend(*arguments)
        parked.__class__ = ParkedMessages
        return is_lent


class DoesNotParkWhatIsLent(LeaseMutant):
    """Lends messages without a record of them."""

    partition = _leasing(_LendsUnparked)


def _parking(kind: type[ParkedMessages]) -> type[Partition]:
    class Mutated(Partition):
        def start(self, now_ms: float) -> None:
            self._parts.parked.__class__ = kind
            super().start(now_ms)

    return Mutated


class _Unwritten(ParkedMessages):
    __slots__ = ()

    def park_columns(self, work: ColumnWork) -> None:
        super().park_columns(work)
        self._pending._contents.records.pop()


class DoesNotParkColumns(LeaseMutant):
    """Lends messages together without a record of them."""

    partition = _parking(_Unwritten)


class _StaysOnRecord(ParkedMessages):
    __slots__ = ()

    def columns_ended(self, work: ColumnWork) -> None:
        self.lent = {id_: each for id_, each in self.lent.items() if each is not work}


class KeepsRecordsOfColumnsThatHaveEnded(LeaseMutant):
    """Leaves messages that were lent together on record when they have ended."""

    partition = _parking(_StaysOnRecord)


class _SplitsInVain(ParkedMessages):
    __slots__ = ()

    def _split(self, work: ColumnWork, messages: Sequence[QueuedMessage]) -> None:
        self._forget_columns(work)
        for waiting in messages:
            self.by_id[waiting.message.id] = waiting


class LosesColumnsThatComeHome(LeaseMutant):
    """Keeps no record of messages that were lent together and come home one by one."""

    partition = _parking(_SplitsInVain)


class _HomeTwice(LeaseReturns):
    def come_home(self, work: Work, now_ms: float) -> None:
        super().come_home(work, now_ms)
        self._leased.works[work.id] = work
        super().come_home(work, now_ms)


class GivesHomeTwice(LeaseMutant):
    """Takes what comes home twice."""

    partition = _returning(_HomeTwice)


class _EffectsFirst(Leases):
    not_ended: list[tuple[Lease, RunResult]]

    def ended(self, lease: Lease, result: RunResult | None, now_ms: float) -> None:
        if result is None or lease.partial or not result.effects:
            super().ended(lease, result, now_ms)
            return
        self._returns._results.add(lease.work, result)
        result.effects = []
        self.not_ended.append((lease, result))
        self._steps.advance(now_ms)


class LetsEffectsLeaveBeforeTheMessagesEnd(LeaseMutant):
    """Commits what a lessee did before the messages that it came from."""

    circumstances: ClassVar = {"calm": False, "slowness": 20.0}

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self.leases.__class__ = _EffectsFirst
            cast("_EffectsFirst", self.leases).not_ended = []
            super().start(now_ms)

        def committed(self, outcome: Outcome, now_ms: float) -> None:
            super().committed(outcome, now_ms)
            leases = cast("_EffectsFirst", self.leases)
            for lease, result in leases.not_ended:
                Leases.ended(leases, lease, result, now_ms)
            leases.not_ended = []


class _OtherKeys(LeaseReturns):
    def returned(self, lease: Lease, result: RunResult, now_ms: float) -> None:
        cells: Any = self._leased._cells
        if result.rows:
            others = [each for each in cells.cells if each != result.rows[0].key]
            if others:
                result.rows = [StateRow(others[0], *row[1:]) for row in result.rows]
        super().returned(lease, result, now_ms)


class AppliesRowsToOtherKeys(LeaseMutant):
    """Writes what comes back to another key."""

    partition = _returning(_OtherKeys)


class LeavesItsOwnCopyAsItWas(LeaseMutant):
    """Stores what a lessee changed, but not in its own memory."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            cells: Any = self._cells
            if not hasattr(cells, "is_readable"):
                cells.apply = lambda rows: []
            super().start(now_ms)


class _AllDone(LeaseReturns):
    def returned(self, lease: Lease, result: RunResult, now_ms: float) -> None:
        result.unfinished = set()
        super().returned(lease, result, now_ms)


class TakesWhatGoesHomeForDone(LeaseMutant):
    """Takes what a lessee has left undone for done."""

    partition = _returning(_AllDone)


class _LenientSettlement(RunSettlement):
    def settle_parts(self, work: Work, result: RunResult, now_ms: float) -> None:
        result.failed = {}
        super().settle_parts(work, result, now_ms)


class TakesFailedPartsForDone(LeaseMutant):
    """Takes what failed at a lessee for done."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._parts.settlement.__class__ = _LenientSettlement
            super().start(now_ms)


class _LendsUnasked(RunPreparation):
    def _without_repeated(self, work: Work, unknown: list[str], now_ms: float) -> Work:
        return work if work.lease else super()._without_repeated(work, unknown, now_ms)


class LendsWithoutAskingForAnswers(LeaseMutant):
    """Lends requests without asking whether they were answered before."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._preparation.__class__ = _LendsUnasked
            super().start(now_ms)


class _EndsUnread(Leases):
    def ended(self, lease: Lease, result: RunResult | None, now_ms: float) -> None:
        self._leased.is_read(lease.work)
        super().ended(lease, result, now_ms)


class DoesNotWaitForWhatItReads(LeaseMutant):
    """Ends a lease while answers are still being read for it."""

    partition = _leasing(_EndsUnread)


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


class _BlindToRuns(KeysInUse):
    __slots__ = ()

    def in_hand(self) -> set[str]:
        return {*self.edited, *self._awaiting.keys()}


class MergesWhatIsInUse(LeaseMutant):
    """Merges into a state that a handler has in hands."""

    circumstances: ClassVar = {"pace": _AlwaysAside()}

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._parts.keys.__class__ = _BlindToRuns
            super().start(now_ms)


class _KnowsNoWholeLeases(LeasedWork):
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
            self._leased.__class__ = _KnowsNoWholeLeases
            super().start(now_ms)


class _BlindToLeases(OpenMessages):
    partition: Partition

    def first(self) -> int | None:
        return None if self.partition._leased.works else super().first()


class LetsMarkersPassLeases(LeaseMutant):
    """Lets a watermark overtake what is lent."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self.progress._open.__class__ = _BlindToLeases
            self.progress._open.partition = self  # type: ignore[attr-defined]
            super().start(now_ms)


class _BlindToWindowsAway(OpenMessages):
    partition: Partition

    def first(self) -> int | None:
        lent = [each.lease for each in self.partition._leased.works.values()]
        is_away = any(lease is not None and not lease.partial for lease in lent)
        return None if is_away else super().first()


class LetsMarkersPassWindowsThatAreAway(LeaseMutant):
    """Lets a watermark overtake messages that were lent with their windows."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self.progress._open.__class__ = _BlindToWindowsAway
            self.progress._open.partition = self  # type: ignore[attr-defined]
            super().start(now_ms)


class _ClosesAtOnce(KeyLocks):
    __slots__ = ()

    def make_ready_or_wait(self, waiting: QueuedMessage) -> None:
        if waiting.message.kind is Kind.MARKER:
            self.hold(waiting)
            self.ready.append(waiting)
        else:
            super().make_ready_or_wait(waiting)


class ClosesWindowsThatAreAway(LeaseMutant):
    """Closes a window at home while its lessee has it."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            self._locks.__class__ = _ClosesAtOnce
            super().start(now_ms)


class LeavesAWindowBehind(LeaseMutant):
    """Lends a key without the latest of its open windows."""

    class lending(TimedLending):  # noqa: N801
        def _states_for(self, lease: Lease) -> OfferedStates | None:
            states = super()._states_for(lease)
            if states is not None and lease.partition.function.window is not None:
                latest: dict[int, bytes] = {}
                for place, subkey, *_ in states.rows.each():
                    latest[place] = max(subkey[1:9], latest.get(place, b""))
                rows = [row for row in states.rows.each() if row[1][1:9] != latest[row[0]]]
                states.rows = StateRows.of(rows)
            return states


class NumbersFromTheParked(LeaseMutant):
    """Gives what comes after a takeover places before the markers that wait."""

    class partition(Partition):  # noqa: N801
        def start(self, now_ms: float) -> None:
            parked = self._parts.parked.by_id.values()
            self._parts.arrivals.last = max([each.message.order for each in parked], default=0)
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
        def _states_for(self, lease: Lease) -> OfferedStates | None:
            tables = self.worker.world.backend.partitions[lease.partition.name]
            states = super()._states_for(lease)
            if states is not None:
                keys = list(lease.partition.leases.state_keys(lease.work))
                rows = [
                    (place, row.subkey, row.value, row.expires_ms)
                    for place in states.sent
                    for row in tables.state.get(keys[place], {}).values()
                    if row.value is not None
                ]
                states.rows = StateRows.of(rows)
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


WINDOW_MUTANTS: dict[str, Any] = {
    each.__name__: each
    for each in (
        LetsMarkersPassLeases,
        LetsMarkersPassWindowsThatAreAway,
        ClosesWindowsThatAreAway,
        LeavesAWindowBehind,
        MergesTwice,
        MergesWhatIsInUse,
        NumbersFromTheParked,
    )
}
MUTANTS: dict[str, Any] = {
    each.__name__: each
    for each in list(globals().values())
    if isinstance(each, type)
    and issubclass(each, LeaseMutant)
    and each is not LeaseMutant
    and (each is MergesTwice or each not in WINDOW_MUTANTS.values())
}
