"""Workers come and go by the controller's decisions: nothing is lost, and no rule of it is broken,
whatever happens around them.

Replay one seed: `python -m tests.simulation.campaign --world elastic --replay 17 --trace`.
"""

from __future__ import annotations

import gc
from collections import Counter
from functools import cache

import pytest

from tests.simulation.mutants.elastic import MUTANTS
from tests.simulation.oracles.verdict import ViolationError
from tests.simulation.worlds.cluster.elastic import ElasticWorld, run_seed

SEEDS = 60
SEEDS_PER_TEST = 10
MUTANT_SEEDS_MAX = 300
SEEDS_TRIED_FIRST = {
    "ActsBeforeItsIntent": 14,
    "ActsWithoutItsToken": 6,
    "DrainsTheLastWithAFunction": 11,
    "DrainsWithoutLookingAgain": 368,
    "ForgetsMoneyInAFailover": 19,
    "GoesOnWithoutAStoredPlan": 14,
    "IgnoresTheCap": 19,
    "MovesWithoutGain": 14,
    "ReconcilesNothing": 5,
}
"""Where a mutant was noticed once: mostly it is there again, and much sooner."""


@cache
def _faults_of(seed: int) -> Counter[str]:
    return Counter(run_seed(seed).faults)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_a_cluster_that_scales_loses_nothing_and_keeps_its_rules(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        _faults_of(seed)


def test_a_cluster_that_scales_tells_the_same_story_each_time() -> None:
    one, other = run_seed(4), run_seed(4)

    assert one.loop.trace == other.loop.trace
    assert one.loop.turn_count == other.loop.turn_count


@pytest.mark.parametrize(
    "happening",
    [
        "crash",
        "cut",
        "cut from store",
        "freeze",
        "launch failed",
        "launch forgotten",
        "launch refused",
        "leader frozen in an act",
        "leader killed in an act",
        "load",
        "move",
        "scaled in",
        "scaled out",
        "store away",
    ],
)
def test_everything_happens_to_a_cluster_that_scales(happening: str) -> None:
    """A world in which nothing fails proves nothing."""
    assert any(happening in _faults_of(seed) for seed in range(SEEDS))


def test_clusters_that_scale_have_all_policies_different_functions_and_caps() -> None:
    worlds = [ElasticWorld(seed) for seed in range(150)]
    scaling = Counter(world.config.scaling.partition(":")[0] for world in worlds)
    placement = Counter(world.config.placement for world in worlds)

    assert scaling.keys() == {"whim", "fixed", "reactive", "predictive", "laxity"}
    assert placement.keys() == {"", "whim-places", "even", "balance", "colocate", "stela"}
    assert sum(world.releases.are_different for world in worlds) > 20
    assert sum(world.is_capped for world in worlds) > 10


# A story that is ended in the middle leaves coroutines that nobody will go on with.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", MUTANTS)
def test_the_oracle_notices_a_cluster_that_scales_and(name: str) -> None:
    for seed in (SEEDS_TRIED_FIRST.get(name, 0), *range(MUTANT_SEEDS_MAX)):
        try:
            run_seed(seed, MUTANTS[name]())
        except ViolationError:
            break
    else:
        pytest.fail(f"{name} went unnoticed in {MUTANT_SEEDS_MAX} seeds")
    gc.collect()  # Here, not in the middle of another test.
