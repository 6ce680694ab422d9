"""Leases lose, double and reorder nothing, whatever becomes of lessors, lessees and their words."""

from __future__ import annotations

import pytest

from tests.simulation.seeds import chunks, play_all
from tests.simulation.worlds.leases import LeaseWorld


@pytest.mark.parametrize("seeds", chunks(300), ids=str)
def test_what_is_lent_happens_once_and_in_order(seeds: range) -> None:
    play_all("leases", seeds)


@pytest.mark.parametrize("seeds", chunks(100), ids=str)
def test_windows_end_with_all_that_was_lent(seeds: range) -> None:
    play_all("lease-windows", seeds)


def test_leases_end_in_all_ways() -> None:
    ways: dict[str, int] = {}
    for seed in range(40):
        world = LeaseWorld(seed)
        world.run()
        for way, count in world.leases.counts.items():
            ways[way] = ways.get(way, 0) + count

    assert {"returned", "declined", "expired", "revoked", "empty", "void", "dead"} <= ways.keys()
