"""Which functions which worker of a simulated cluster has: all of them, in most of the seeds.

In the others there are two releases. Either they are of two apps on one store, or of one app, where
workers of the next version join while those of the former one leave, crash and come back. What
nobody has for a while is part of the story; in the end each function is somewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random

from sublet.functions.app import Function
from tests.simulation.worlds.cluster.app import PARSE, POT, STORY_FUNCTIONS, TOTAL

Release = Mapping[str, Function]

DIFFERENT_SHARE = 0.35
"""How many of the seeds have workers with different functions."""
INSEPARABLE: Sequence[tuple[str, ...]] = (
    *((each,) for each in STORY_FUNCTIONS),
    (POT,),
    # Windows name what is upstream of them, and only whoever has them tells it so.
    (PARSE, TOTAL),
)
NOVEL: Sequence[frozenset[str]] = (frozenset(), frozenset({POT}), frozenset({PARSE, TOTAL}))
"""What the store may never have heard of before the story. To the others handlers send: before a
function is known for the first time, that would fail for good."""


class Releases:
    """Draws from a stream of its own, so that seeds without it go on to tell the same story."""

    def __init__(self, seed: int, functions: Mapping[str, Function]) -> None:
        self._functions = functions
        self._chance = chance = Random(f"functions {seed}")
        self.are_different = chance.random() < DIFFERENT_SHARE
        self.novel: frozenset[str] = frozenset()
        self.former: Release = functions
        self.next: Release = functions
        self._is_upgrade = chance.random() < 0.5
        self._same_again = chance.choice([0.0, 0.5, 1.0])
        """How often a worker comes back from a crash with the functions that it had."""
        self.back_after_ms = 0
        """How long after the end of all faults a function stays away that is nowhere then."""
        if self.are_different:
            self._divide()
            self.back_after_ms = Random(f"back {seed}").choice([0, 0, 1_000, 3_000, 6_000])

    def _divide(self) -> None:
        chance = self._chance
        self.novel = chance.choice(NOVEL)
        units = list(INSEPARABLE)
        chance.shuffle(units)
        some = units[: chance.randint(1, len(units) - 1)]
        others = [each for each in units if each not in some]
        if self._is_upgrade:
            # The next version adds some, or has them no more.
            whole, part = self._functions, self._of(others)
            self.former, self.next = (part, whole) if chance.random() < 0.6 else (whole, part)
        else:
            shared = [each for each in some if chance.random() < 0.25]
            self.former, self.next = self._of(some), self._of([*others, *shared])

    def _of(self, units: Iterable[tuple[str, ...]]) -> Release:
        names = {name for unit in units for name in unit}
        return {name: each for name, each in self._functions.items() if name in names}

    def known_before(self) -> dict[str, int]:
        """Return the functions that the store knows from earlier, with their partitions."""
        if not self.are_different:
            return {}
        return {
            name: each.partition_count
            for name, each in self._functions.items()
            if name not in self.novel
        }

    def at_first(self) -> Release:
        """Return what one of the first workers has."""
        return self._one_of(0.2 if self._is_upgrade else 0.5)

    def later(self) -> Release:
        """Return what a worker has that joins in the middle of the story."""
        return self._one_of(0.7 if self._is_upgrade else 0.5)

    def after(self, crashed: Release) -> Release:
        """Return what a worker has that is started instead of one that has crashed."""
        if not self.are_different or self._chance.random() < self._same_again:
            return crashed
        return self.next if crashed is self.former else self.former

    def _one_of(self, next_share: float) -> Release:
        if not self.are_different:
            return self._functions
        return self.next if self._chance.random() < next_share else self.former

    def missing(self, living: Iterable[Release]) -> Release | None:
        """Return a release that has something which none of the living has; None if all is
        there."""
        there = {name for each in living for name in each}
        lacking = self._functions.keys() - there
        if not lacking:
            return None
        return max((self.former, self.next), key=lambda each: len(lacking & each.keys()))
