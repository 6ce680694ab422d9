"""What of a partition somebody else may run: how messages go, and how what came of them returns.

To the partition a lease is a run in a thread that happens to be far away: its messages are parked
and their keys held while it lasts, and its results go into the next commit as those of any run.
`LeasedWork` knows what is away; the lessor decides what goes where.

- `Leases` is for the lessor: what could be lent, what is lent, and that a lease has ended.
- `LeaseReturns` settles what comes back: whole, in parts that are merged into states which nobody
  has in hand, or not at all: then it runs here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sublet.runtime.partition.lifecycle.keys_in_use import KeysInUse
from sublet.runtime.partition.lifecycle.message_dispatch import MessageDispatch
from sublet.runtime.partition.lifecycle.run_gate import RunGate
from sublet.runtime.partition.lifecycle.run_preparation import RunPreparation
from sublet.runtime.partition.lifecycle.run_results import RunResults
from sublet.runtime.partition.lifecycle.settlement import RunSettlement
from sublet.runtime.partition.model.effects import LoadStates
from sublet.runtime.partition.model.lease import Lease
from sublet.runtime.partition.model.step_machine import StepMachine
from sublet.runtime.partition.model.work import Chunk, QueuedMessage, RunResult, Work
from sublet.runtime.partition.queue.backlog import MessageRef
from sublet.runtime.partition.queue.leased_work import LeasedWork
from sublet.runtime.partition.queue.load_tracker import LoadTracker
from sublet.runtime.partition.queue.work_queue import WorkQueue


class LeaseReturns:
    def __init__(
        self,
        steps: StepMachine,
        *,
        leased: LeasedWork,
        load: LoadTracker,
        keys: KeysInUse,
        results: RunResults,
        settlement: RunSettlement,
    ) -> None:
        self._steps = steps
        self._leased = leased
        self._load = load
        self._keys = keys
        self._results = results
        self._settlement = settlement

    def returned(self, lease: Lease, result: RunResult, now_ms: float) -> None:
        """A lessee has worked off what it was lent."""
        work, leased = lease.work, self._leased
        if not lease.partial and self._results.comes_too_late(result):
            self.come_home(work, now_ms)
            return
        leased.returned(work, result)
        if lease.partial:
            self.merge_parts(now_ms)
        else:
            self._results.add(work, result)
            self._results.add_rows(leased.apply(result.rows))
            self._settlement.settle_lent(work, result, now_ms)
            for lock in leased.busy_locks(work):
                self._load.is_hot(lock)
            self.merge_parts(now_ms)
        self._steps.advance(now_ms)

    def come_home(self, work: Work, now_ms: float) -> None:
        """Let messages that were lent in vain run here."""
        assert work.lease is not None
        result = self._leased.came_home(work)
        for waiting in work.waiting:
            waiting.stays = True
            self._load.track_message(waiting, now_ms)
        if work.lease.partial:
            self._settlement.settle_parts(work, result, now_ms)
        else:
            self._settlement.settle_lent(work, result, now_ms)
            self.merge_parts(now_ms)
        self._steps.advance(now_ms)

    def merge_parts(self, now_ms: float) -> None:
        """Merge what lessees have added, if there is any, to states that nobody has in hand."""
        if not self._leased.parts:
            return
        for merged in self._leased.merge(self._keys.in_hand()):
            if isinstance(merged, LoadStates):
                self._steps.effects.append(merged)
                continue
            (work, result), is_merged = merged
            if is_merged:
                self._results.add(work, result)
            self._settlement.settle_parts(work, result, now_ms)

    def forget_version(self, key: str) -> None:
        """The state of a key was changed here: no lessee has it as it is."""
        if self._leased.versions:
            self._leased.versions.forget((key,))


class Leases:
    def __init__(
        self,
        steps: StepMachine,
        *,
        gate: RunGate,
        queue: WorkQueue,
        dispatch: MessageDispatch,
        preparation: RunPreparation,
        leased: LeasedWork,
        returns: LeaseReturns,
    ) -> None:
        self.mergeable = leased.mergeable
        """Messages may run in parts."""
        self.versions = leased.versions
        """Of the states that lessees have."""
        self._steps = steps
        self._gate = gate
        self._queue = queue
        self._dispatch = dispatch
        self._preparation = preparation
        self._leased = leased
        self._returns = returns

    # What could be lent

    def lends(self, *, in_parts: bool) -> bool:
        """Tell whether somebody else may run messages now."""
        steps = self._steps
        if steps.stopped or steps.leaving or not self._gate.may_begin_elsewhere():
            return False
        return (in_parts and self.mergeable) or self._leased.lends_whole()

    def state_keys(self, work: Work) -> Collection[str]:
        """Return the keys whose states a work uses."""
        return self._leased.state_keys(work)

    @property
    def state_bytes(self) -> int:
        """What the state of one key weighs, about."""
        return self._leased.state_bytes

    def track_load(self, chunk: Chunk) -> None:
        """Count a chunk of the backlog in all that waits in the worker."""
        self._queue.load.track(chunk)

    def untrack_load(self, chunk: Chunk) -> None:
        self._queue.load.untrack(chunk)

    def hot_key_queue(self, lock: str, *, in_parts: bool) -> list[QueuedMessage]:
        """Return what waits for a key and could be lent: in parts, all its waiters; whole, also
        who is first, if nobody is running yet."""
        return self._leased.hot_key_queue(lock, in_parts=in_parts)

    # What is lent

    def lend(self, parts: Sequence[tuple[Chunk, int]], lease: Lease, now_ms: float) -> bool:
        """Take so many messages of each chunk, or what must run before them, for a lease.

        Returns whether there is anything in it; then `lease.work` is set, and `Lend` is said as
        soon as the states are in memory. `ended` follows.
        """
        refs = self._queue.lend(parts, in_order=self._keeps_order(lease))
        return self._lend_refs(refs, lease, now_ms)

    def lend_places(self, chunk: Chunk, places: Sequence[int], lease: Lease, now_ms: float) -> bool:
        """As `lend`: these messages of a chunk, and what must run before them."""
        refs = self._queue.lend_places(chunk, places, in_order=self._keeps_order(lease))
        return self._lend_refs(refs, lease, now_ms)

    def _keeps_order(self, lease: Lease) -> bool:
        return not lease.partial and self._steps.function.order == "key"

    def _lend_refs(self, refs: Sequence[MessageRef], lease: Lease, now_ms: float) -> bool:
        if not refs:
            return False
        work = self._dispatch.take_for_lease(refs, now_ms, in_parts=lease.partial)
        is_lent = work is not None and self._lend(work, lease, now_ms)
        self._steps.advance(now_ms)
        return is_lent

    def lend_hot_key(self, lock: str, count: int, lease: Lease, now_ms: float) -> bool:
        """As `lend`: what `hot_key_queue` returned; in parts, the last of it."""
        taken = self._leased.take_hot_key_queue(lock, count, in_parts=lease.partial)
        if not taken:
            return False
        for waiting in taken:
            self._queue.load.untrack_message(waiting)
        is_lent = self._lend(self._queue.work(taken), lease, now_ms)
        self._steps.advance(now_ms)
        return is_lent

    def _lend(self, work: Work, lease: Lease, now_ms: float) -> bool:
        self._leased.begin(work, lease)
        if lease.partial:
            self._preparation.begin(work, now_ms)
            return True
        return self._preparation.load_or_begin(work, now_ms)

    def ended(self, lease: Lease, result: RunResult | None, now_ms: float) -> None:
        """What was lent has been worked off; without a result, it has not, and runs here."""
        work = lease.work
        if self._steps.stopped or work.id not in self._leased.works:
            return
        if result is not None:
            self._returns.returned(lease, result, now_ms)
        elif self._leased.gives_up(work):
            self._returns.come_home(work, now_ms)
