"""Whole workers and clients lose, double and reorder nothing, whatever happens around them.

Replay one seed, or try many, as in `test_partition_protocol`; what happened in one is told by
`python -m tests.simulation.worlds.cluster.world 17`.
"""

from __future__ import annotations

import gc
import json
import os
from collections import Counter
from collections.abc import Set
from functools import cache
from pathlib import Path

import pytest

from tests.simulation.mutants.cluster import MUTANTS
from tests.simulation.oracles.verdict import ViolationError
from tests.simulation.worlds.cluster.http import Balancer
from tests.simulation.worlds.cluster.loss import Losses
from tests.simulation.worlds.cluster.readers import Readers
from tests.simulation.worlds.cluster.world import ClusterWorld, run_seed

SEEDS_DEFAULT = "0..150"
SEEDS_PER_TEST = 15
MUTANT_SEEDS_MAX = 300
LOSS_SEEDS = [seed for seed in range(1_000) if Losses(seed).are_there]
MEASURED = Path(__file__).parents[2] / "benchmarks" / "results" / "mutants.json"
SEEDS_TRIED_FIRST = {
    each["mutant"]: each["seeds"] - 1
    for each in json.loads(MEASURED.read_text())["mutants"]
    if each["world"] == "cluster" and each["seeds"]
}
"""Where a mutant was noticed when that was measured: mostly it is there again, and much sooner."""


def _seeds() -> range:
    first, _, stop = os.environ.get("SUBLET_SEEDS", SEEDS_DEFAULT).partition("..")
    return range(int(first), int(stop) if stop else int(first) + 1)


def _chunks() -> list[range]:
    seeds = _seeds()
    return [seeds[at : at + SEEDS_PER_TEST] for at in range(0, len(seeds), SEEDS_PER_TEST)]


@pytest.mark.parametrize("seeds", _chunks(), ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_every_effect_of_a_cluster_happens_once_and_in_order(seeds: range) -> None:
    for seed in seeds:
        run_seed(seed)


@pytest.mark.parametrize("seed", [2, 7])
def test_a_cluster_tells_the_same_story_each_time(seed: int) -> None:
    one, other = run_seed(seed), run_seed(seed)

    assert one.loop.trace == other.loop.trace
    assert one.loop.turn_count == other.loop.turn_count


@cache
def _faults_of(seed: int) -> Set[str]:
    return run_seed(seed).faults.keys()


@pytest.mark.parametrize(
    "fault",
    [
        "clock",
        "crash",
        "cut from store",
        "cut",
        "freeze",
        "join",
        "leave",
        "refusals",
        "reset",
        "store away",
    ],
)
def test_everything_goes_wrong_somewhere(fault: str) -> None:
    """A world in which nothing fails proves nothing."""
    assert any(fault in _faults_of(seed) for seed in range(10))


def test_clusters_have_all_kinds_of_bindings() -> None:
    assert len({ClusterWorld(seed).config.binding for seed in range(40)}) > 4


def test_some_clusters_have_workers_with_different_functions() -> None:
    releases = [ClusterWorld(seed).releases for seed in range(60)]
    different = [each for each in releases if each.are_different]

    assert 10 < len(different) < 40
    for each in different:
        assert each.former.keys() != each.next.keys()
        assert each.missing([each.former, each.next]) is None
    disjoint = [each for each in different if each.former.keys().isdisjoint(each.next)]
    assert 0 < len(disjoint) < len(different)


def test_some_clusters_lose_data_all_of_it_or_what_is_newest() -> None:
    told = [run_seed(seed) for seed in LOSS_SEEDS[:12]]

    assert 80 < len(LOSS_SEEDS) < 170
    kept_ms = [kept for world in told for kept, _ in world.losses.happened]
    assert any(kept_ms)
    assert not all(kept_ms)


def test_some_clusters_lose_just_what_a_receiver_has_taken() -> None:
    between = [seed for seed in LOSS_SEEDS if Losses(seed).are_between]
    told = [run_seed(seed) for seed in between[:6]]

    assert 30 < len(between) < 70
    # Not all get there: the message may never be taken, or the story be over before.
    assert sum(1 for world in told if world.losses.happened) > 2


def test_some_clusters_tell_side_stories_of_every_kind() -> None:
    worlds = [ClusterWorld(seed) for seed in range(200)]
    sides = [side for world in worlds for side in world.sides]
    told = Counter(side.name for side in sides)

    assert told.keys() == {"repeats", "clockwork", "readers", "http"}
    assert min(told.values()) >= 10
    assert sum(1 for world in worlds if world.sides) < 70
    stores = Counter(side.has_sqlite for side in sides if isinstance(side, Readers))
    assert stores.keys() == {False, True}
    assert {side.is_quiet for side in sides if isinstance(side, Balancer)} == {False, True}


@pytest.mark.parametrize(
    "happening",
    ["conflict", "read by another than the owner", "request to a worker that drains"],
)
def test_side_stories_get_to_what_they_are_about(happening: str) -> None:
    seeds = [seed for seed in range(60) if ClusterWorld(seed).sides]

    assert any(happening in _faults_of(seed) for seed in seeds)


def test_callers_are_told_somewhere_that_nobody_has_a_function() -> None:
    different = [seed for seed in range(100) if ClusterWorld(seed).releases.are_different]

    assert any("nobody has it" in _faults_of(seed) for seed in different)


# A story that is ended in the middle leaves coroutines that nobody will go on with.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", MUTANTS)
def test_the_oracle_notices_a_cluster_that(name: str) -> None:
    first = SEEDS_TRIED_FIRST.get(name, 0)
    seeds = LOSS_SEEDS if MUTANTS[name].is_about_loss else range(MUTANT_SEEDS_MAX)
    for seed in (first, *seeds):
        try:
            run_seed(seed, MUTANTS[name]())
        except ViolationError:
            break
    else:
        pytest.fail(f"{name} went unnoticed in {len(seeds)} seeds")
    gc.collect()  # Here, not in the middle of another test.
