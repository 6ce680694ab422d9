"""What a run has to wait for before it begins: states, and answers to requests that are repeated.

A work that was chosen begins when all that it needs is in memory, here or where it is lent to. What
was answered before does not run: if nothing else is in the work, it ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sublet.runtime.partition.lifecycle.completion import MessageCompletion
from sublet.runtime.partition.lifecycle.run_gate import RunGate
from sublet.runtime.partition.model.effects import Lend, LoadStates, Run
from sublet.runtime.partition.model.step_machine import StepMachine
from sublet.runtime.partition.model.work import QueuedMessage, Work
from sublet.runtime.partition.queue.key_locks import KeyLocks
from sublet.runtime.partition.queue.leased_work import LeasedWork
from sublet.runtime.partition.queue.state_loader import StateLoader
from sublet.statestore.contract import Record, StateRow


class LeaseHome(Protocol):
    """What comes back from lessees."""

    def come_home(self, work: Work, now_ms: float) -> None:
        """Let messages that were lent in vain run here."""
        ...

    def merge_parts(self, now_ms: float) -> None:
        """Merge what lessees have added, if there is any, to states that nobody has in hand."""
        ...


class RunPreparation:
    def __init__(
        self,
        steps: StepMachine,
        *,
        gate: RunGate,
        states: StateLoader,
        locks: KeyLocks,
        completion: MessageCompletion,
        leased: LeasedWork,
        returns: LeaseHome,
    ) -> None:
        self._steps = steps
        self._gate = gate
        self._states = states
        self._locks = locks
        self._completion = completion
        self._leased = leased
        self._returns = returns

    def load_or_begin(self, work: Work, now_ms: float) -> bool:
        """Let a work begin, or read first what it needs; return whether anything is left of it."""
        unknown: list[str] = []
        if work.columns is None and work.waiting:
            work = self._without_repeated(work, unknown, now_ms)
            if not work.count:
                self.ended(work)
                return False
        missing = self._states.needed(work)
        if missing or unknown:
            self._steps.effects.append(LoadStates(work, missing, unknown))
        elif not (self._states.prefetches and self._states.waits(work)):
            self.begin(work, now_ms)
            return True
        if work.lease is not None:
            self._leased.reads(work)
        return True

    def begin(self, work: Work, now_ms: float) -> None:
        """All that a work needs is in memory: let it run here, or where it was lent to."""
        if work.lease is None:
            self._steps.effects.append(Run(work))
        elif self._leased.is_read(work):
            self._returns.come_home(work, now_ms)
        elif work.id in self._leased.works:
            self._steps.effects.append(Lend(work))

    def ended(self, work: Work) -> None:
        """A work has run, or nothing is left of it."""
        if work.lease is not None:
            self._leased.dropped(work)
        else:
            self._gate.ended(work)

    # What was read

    def loaded(
        self,
        work: Work,
        keys: Sequence[str],
        rows: Sequence[StateRow],
        answers: Sequence[Record],
        now_ms: float,
    ) -> None:
        """What `LoadStates` asked for is here."""
        self._states.loaded(keys, rows)
        if answers:
            left = self._completion.without_answered(work.waiting, answers, now_ms)
            work = self._with_only(work, left)
            if not work.count:
                self._states.dropped(work)
                if work.lease is not None:
                    # Whoever has lent it learns that there is nothing in it.
                    self.begin(work, now_ms)
                self.ended(work)
                self._returns.merge_parts(now_ms)
                self._steps.advance(now_ms)
                return
        if self._leased.part_read(work):
            self._returns.merge_parts(now_ms)
            self._steps.advance(now_ms)
        elif not self._states.waits(work):
            self.begin(work, now_ms)

    def fetched(self, keys: Sequence[str], rows: Sequence[StateRow], now_ms: float) -> None:
        """What `Fetch` asked for is here."""
        able = self._states.fetched(keys, rows)
        for work in able:
            self.begin(work, now_ms)
        if able or self._gate.in_flight:
            self.fetch()

    def fetch(self) -> None:
        """Read the states of what has come and cannot run yet."""
        fetch = self._states.fetch()
        if fetch is not None:
            self._steps.effects.append(fetch)

    # Requests that are repeated

    def _without_repeated(self, work: Work, unknown: list[str], now_ms: float) -> Work:
        """Take out what is being answered or was just answered; `unknown` gets the ids of the
        records that may know the answers of others."""
        left = self._completion.without_repeated(work.waiting, unknown, now_ms)
        return self._with_only(work, left)

    def _with_only(self, work: Work, left: Sequence[QueuedMessage]) -> Work:
        """Return a work with those messages that are left; the keys of others are released."""
        if len(left) == work.count:
            return work
        remaining = Work(work.id, waiting=left)
        remaining.off_loop, remaining.exclusive = work.off_loop, work.exclusive
        remaining.recorded = work.recorded
        if work.lease is None:
            self._gate.in_flight[work.id] = remaining
        else:
            self._leased.replaced(work, remaining)
        lock_of = self._locks.lock_of
        still_used = {lock_of(each.message) for each in left}
        for lock in {lock_of(each.message): None for each in work.waiting}:
            if lock not in still_used:
                self._locks.release(lock)
        return remaining
