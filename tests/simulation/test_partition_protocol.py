"""Everything happens exactly once and in order, whatever is lost, repeated or taken over.

A failing seed is in the test's name and in its message. To replay one, or to try many:
`SUBLET_SEEDS=17 pytest tests/simulation` or `SUBLET_SEEDS=1000..9000 pytest -n auto …`.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.mutants import MUTANTS
from tests.simulation.verdict import ViolationError
from tests.simulation.world import World

SEEDS_DEFAULT = "0..300"
SEEDS_PER_TEST = 50
MUTANT_SEEDS_MAX = 200


def _seeds() -> range:
    first, _, stop = os.environ.get("SUBLET_SEEDS", SEEDS_DEFAULT).partition("..")
    return range(int(first), int(stop) if stop else int(first) + 1)


def _chunks() -> list[range]:
    seeds = _seeds()
    return [seeds[at : at + SEEDS_PER_TEST] for at in range(0, len(seeds), SEEDS_PER_TEST)]


@pytest.mark.parametrize("seeds", _chunks(), ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_every_effect_happens_once_and_in_order(seeds: range) -> None:
    for seed in seeds:
        try:
            World(seed).run()
        except Exception as error:
            error.add_note(f"replay: SUBLET_SEEDS={seed} pytest tests/simulation")
            raise


def test_a_seed_tells_the_same_story_each_time() -> None:
    one, other = World(3), World(3)
    one.run()
    other.run()

    assert one.events == other.events
    assert one.commits == other.commits


@pytest.mark.parametrize("name", MUTANTS)
def test_the_oracle_notices_a_partition_that(name: str) -> None:
    for seed in range(MUTANT_SEEDS_MAX):
        try:
            World(seed, MUTANTS[name]()).run()
        except ViolationError:
            return
    pytest.fail(f"{name} went unnoticed in {MUTANT_SEEDS_MAX} seeds")
