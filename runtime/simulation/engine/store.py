"""The store as workers meet it: right at once, and late by a model.

What it keeps is kept by the store in memory, with all its checks, so that fenced owners, commits
that come twice and takeovers are those of the real thing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, TypeVar

from sublet.runtime.simulation.engine.events import Events
from sublet.runtime.simulation.engine.hosted import Hosted
from sublet.runtime.simulation.engine.ledger import FunctionTotals
from sublet.runtime.simulation.scenarios.distributions import Cost, stream
from sublet.runtime.simulation.scenarios.scenario import StoreModel
from sublet.statestore.contract import Commit, Outcome, Recovered, StateRow
from sublet.statestore.memory import MemoryBackend, MemoryStore

T = TypeVar("T")

ENTRY_BYTES = 200
"""What a state in memory weighs beside its value, about."""


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError(f"{coroutine!r} waits")


class SimulatedStore:
    """One for the cluster."""

    def __init__(self, events: Events, model: StoreModel, seed: int) -> None:
        rng = stream(seed, "store")
        self.memory = MemoryStore(MemoryBackend())
        self.model = model
        self.load_ms = Cost.of(model.load).sampler(rng)
        self.commit_ms = Cost.of(model.commit).sampler(rng)
        self.events = events
        self.commits = self.groups = self.rows = self.fenced = 0

    def acquire(self, partition: str, worker: str) -> Recovered:
        return at_once(self.memory.acquire(partition, worker))


class SimulatedCommitter:
    """Groups the commits of one worker, as `runtime.group_commit` does."""

    def __init__(
        self,
        store: SimulatedStore,
        applied: Callable[[Commit, Hosted], None],
        answered: Callable[[Sequence[Commit], Sequence[Outcome]], None],
    ) -> None:
        """`applied` is called at the moment from which nothing of a commit can be lost, and
        `answered` when the worker hears of it."""
        self._store = store
        self._applied = applied
        self._answered = answered
        self._waiting: list[tuple[Commit, Hosted]] = []
        self._busy = False

    def add(self, commit: Commit, hosted: Hosted) -> None:
        self._waiting.append((commit, hosted))
        if not self._busy:
            # What else is sealed in this moment goes along.
            self._busy = True
            self._store.events.after(0.0, self._start)

    def forget(self) -> None:
        """The worker is gone; what was on its way may still arrive."""
        self._waiting.clear()

    def _start(self) -> None:
        group, self._waiting = self._waiting, []
        if not group:
            self._busy = False
            return
        store = self._store
        elapsed_ms = store.commit_ms(sum([hosted.committing_count for _, hosted in group]))
        store.events.after(elapsed_ms / 2, self._apply, group, elapsed_ms / 2)

    def _apply(self, group: list[tuple[Commit, Hosted]], left_ms: float) -> None:
        store = self._store
        commits = [commit for commit, _ in group]
        outcomes = at_once(store.memory.commit(commits))
        store.groups += 1
        store.commits += len(group)
        for (commit, hosted), outcome in zip(group, outcomes, strict=True):
            if outcome is Outcome.DONE:
                store.rows += len(commit.state)
                self._applied(commit, hosted)
            else:
                store.fenced += 1
        store.events.after(left_ms, self._answer, commits, outcomes)

    def _answer(self, commits: Sequence[Commit], outcomes: Sequence[Outcome]) -> None:
        self._answered(commits, outcomes)
        self._start()


class ModelledCells:
    """States without content: which keys are in memory, and what that spares."""

    def __init__(
        self,
        totals: FunctionTotals,
        *,
        complete: bool,
        state_bytes: int,
        keys_max: Callable[[int], float],
    ) -> None:
        """`complete`: no key has state in the store. `keys_max` gets the bytes of a key's state
        and says how many of them may stay."""
        self._totals = totals
        self.is_complete = complete
        self._weight = state_bytes + ENTRY_BYTES
        self._keys_max = keys_max
        self._keys: OrderedDict[str, None] = OrderedDict()
        self._order_matters = False

    def missing(self, keys: Sequence[str]) -> Sequence[str]:
        known, totals = self._keys, self._totals
        distinct = dict.fromkeys(keys)
        absent = [key for key in distinct if key not in known]
        totals.hits += len(distinct) - len(absent)
        if self._order_matters:
            for key in distinct:
                if key in known:
                    known.move_to_end(key)
        if not absent:
            return ()
        if self.is_complete:
            known.update(dict.fromkeys(absent))
            return ()
        totals.misses += len(absent)
        return absent

    def unread(self, keys: Sequence[str]) -> Sequence[str]:
        return () if self.is_complete else [key for key in keys if key not in self._keys]

    def insert(self, keys: Sequence[str], rows: Sequence[StateRow]) -> None:
        self._keys.update(dict.fromkeys(keys))

    @property
    def mean_bytes(self) -> int:
        return self._weight - ENTRY_BYTES

    def apply(self, rows: Sequence[StateRow]) -> list[StateRow]:
        return []

    def drop(self, key: str) -> None:
        if self._keys.pop(key, self) is None:
            self.is_complete = False

    def over_bound(self) -> bool:
        keys_max = self._keys_max(self._weight)
        # While there is much room, nobody needs to know what was used last.
        self._order_matters = len(self._keys) > keys_max / 2
        return len(self._keys) > keys_max

    def shrink(self, in_use: Collection[str]) -> None:
        excess = len(self._keys) - self._keys_max(self._weight)
        oldest: list[str] = []
        for key in self._keys:
            if len(oldest) >= excess:
                break
            if key not in in_use:
                oldest.append(key)
        for key in oldest:
            self.drop(key)
        self._totals.evicted += len(oldest)
