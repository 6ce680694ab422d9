"""Leases lose, double and reorder nothing, whatever becomes of lessors, lessees and their words.

Replay one seed, or try many, as in `test_partition_protocol`.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.lease_mutants import MUTANTS, WINDOW_MUTANTS
from tests.simulation.lease_world import LeaseWindowWorld, LeaseWorld
from tests.simulation.verdict import ViolationError

SEEDS_DEFAULT = "0..300"
WINDOW_SEEDS_DEFAULT = "0..100"
SEEDS_PER_TEST = 50
MUTANT_SEEDS_MAX = 400


def _seeds(default: str) -> range:
    first, _, stop = os.environ.get("SUBLET_SEEDS", default).partition("..")
    return range(int(first), int(stop) if stop else int(first) + 1)


def _chunks(default: str) -> list[range]:
    seeds = _seeds(default)
    return [seeds[at : at + SEEDS_PER_TEST] for at in range(0, len(seeds), SEEDS_PER_TEST)]


def _run(kind: type[LeaseWorld | LeaseWindowWorld], seeds: range) -> None:
    for seed in seeds:
        try:
            kind(seed).run()
        except Exception as error:
            error.add_note(f"replay: SUBLET_SEEDS={seed} pytest tests/simulation -k lease")
            raise


@pytest.mark.parametrize("seeds", _chunks(SEEDS_DEFAULT), ids=lambda each: f"{each[0]}-{each[-1]}")
def test_what_is_lent_happens_once_and_in_order(seeds: range) -> None:
    _run(LeaseWorld, seeds)


@pytest.mark.parametrize(
    "seeds", _chunks(WINDOW_SEEDS_DEFAULT), ids=lambda each: f"{each[0]}-{each[-1]}"
)
def test_windows_end_with_all_that_was_lent(seeds: range) -> None:
    _run(LeaseWindowWorld, seeds)


def test_leases_end_in_all_ways() -> None:
    ways: dict[str, int] = {}
    for seed in range(40):
        world = LeaseWorld(seed)
        world.run()
        for way, count in world.leases.counts.items():
            ways[way] = ways.get(way, 0) + count

    assert {"returned", "declined", "expired", "revoked", "empty", "void", "dead"} <= ways.keys()


@pytest.mark.parametrize("name", MUTANTS)
def test_the_oracle_notices_a_worker_that(name: str) -> None:
    for seed in range(MUTANT_SEEDS_MAX):
        try:
            LeaseWorld(seed, MUTANTS[name]()).run()
        except ViolationError:
            return
    pytest.fail(f"{name} went unnoticed in {MUTANT_SEEDS_MAX} seeds")


@pytest.mark.parametrize("name", WINDOW_MUTANTS)
def test_it_is_noticed_in_windows_when_a_worker(name: str) -> None:
    for seed in range(MUTANT_SEEDS_MAX):
        try:
            LeaseWindowWorld(seed, WINDOW_MUTANTS[name]()).run()
        except ViolationError:
            return
    pytest.fail(f"{name} went unnoticed in {MUTANT_SEEDS_MAX} seeds")
