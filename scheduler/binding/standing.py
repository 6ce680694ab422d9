"""Standing leases: a fixed share of a function's messages runs at named lessees, for good.

Pure choice. The controller's plan says which function, which share and who (`Redirect`); every
owner of the function follows it by itself, and goes on merging and committing. Work that can be
merged, or has no state, goes to the lessees in turn. Otherwise a key goes to the same lessee each
time, so that its state travels once. The part of a lessee that is gone runs at home: nobody else
takes it before the plan says so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import xxhash

from sublet.scheduler.scaling.plan import OWN_INSTANCES, Plan

WORTH_FACTOR = 3.0
"""A message has to cost so many times what lending it costs."""
LENDING_MS = 0.01
"""What lending a message costs, as long as nobody has measured it."""
STATE_LENDING_MS = 0.025
"""The same, where its state travels with it."""

_HASH_MAX = 2.0**64


def is_worth_lending(cost_ms: float, lending_ms: float) -> bool:
    """Tell whether a function may be redirected: what a message costs, and what lending one does (0
    if that was not measured)."""
    return cost_ms > WORTH_FACTOR * (lending_ms or LENDING_MS)


class StandingLease:
    """Who gets which messages of one function."""

    __slots__ = ("_owed", "_turn", "lessees", "share")

    def __init__(self, share: float, lessees: Sequence[str]) -> None:
        self.share = share
        self.lessees = tuple(lessees)
        self._owed = 0.0
        """Messages that were due to lessees and not given: a share of few is less than one."""
        self._turn = 0

    def lessee_of(self, key: str) -> str | None:
        """Return where a key runs; None: at home.

        Rendezvous hashing: if the share grows or shrinks, or a lessee comes or goes, only those
        keys run elsewhere than before that have to.
        """
        if xxhash.xxh64_intdigest(key.encode(), seed=1) >= self.share * _HASH_MAX:
            return None
        return max(self.lessees, key=lambda each: xxhash.xxh64_intdigest(f"{key}\0{each}".encode()))

    def pieces(self, count: int, size: int) -> list[tuple[str, int]]:
        """Return who gets how many of so many messages, in turn, at most `size` at a time."""
        self._owed += self.share * count
        left = min(count, int(self._owed))
        self._owed -= left
        pieces: list[tuple[str, int]] = []
        while left:
            taken = min(left, size)
            pieces.append((self.lessees[self._turn % len(self.lessees)], taken))
            self._turn += 1
            left -= taken
        return pieces


class StandingLeases:
    """Those of a worker, as the newest plan says that it has seen."""

    def __init__(self, worker: str = "") -> None:
        self._worker = worker
        self._by_function: dict[str, StandingLease] = {}
        self._seen = (-1, -1)
        self.leaving: frozenset[str] = frozenset()
        """Workers that are to be drained: nothing is redirected to them any more."""

    def __bool__(self) -> bool:
        return bool(self._by_function)

    @property
    def functions(self) -> Collection[str]:
        return self._by_function.keys()

    def of(self, function: str) -> StandingLease | None:
        return self._by_function.get(function)

    def follow(self, plan: Plan) -> bool:
        """Follow a plan, unless a newer one was seen; return whether anything has changed.

        Of two controllers, the one with the higher token leads.
        """
        if (plan.token, plan.number) < self._seen:
            return False
        self._seen = (plan.token, plan.number)
        self.leaving = frozenset(each.worker for each in plan.leaving)
        before, self._by_function = self._by_function, {}
        for function, (share, lessees) in self._wanted(plan).items():
            known = before.get(function)
            if known is None or (known.share, known.lessees) != (share, lessees):
                known = StandingLease(share, lessees)
            self._by_function[function] = known
        return before != self._by_function

    def _wanted(self, plan: Plan) -> dict[str, tuple[float, tuple[str, ...]]]:
        # Each worker has its share at its own instances, and knows no others.
        own = tuple(
            each.id for each in plan.instances if each.worker == self._worker and each.serving
        )
        others = {each.id for each in plan.instances if each.worker != self._worker}
        found = {
            function: (each.share, self._resolved(each.lessees, own, others))
            for function, each in plan.redirects.items()
            if each.share > 0
        }
        return {function: each for function, each in found.items() if each[1]}

    def _resolved(
        self, lessees: Sequence[str], own: tuple[str, ...], others: Collection[str]
    ) -> tuple[str, ...]:
        if tuple(lessees) == (OWN_INSTANCES,):
            return own
        named = [each for each in lessees if each not in others]
        if OWN_INSTANCES not in named:
            return tuple(named)
        return tuple(dict.fromkeys([*(each for each in named if each != OWN_INSTANCES), *own]))
