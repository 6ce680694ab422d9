"""Instances lose, double and reorder nothing, whatever becomes of them, and can only serve."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.seeds import chunks, play_all
from tests.simulation.worlds.instances import InstanceWorld


@pytest.mark.parametrize("seeds", chunks(200), ids=str)
def test_what_is_lent_to_instances_happens_once_and_in_order(seeds: range) -> None:
    play_all("lease-instances", seeds)


def test_instances_go_through_all_that_can_become_of_them() -> None:
    faults: Counter[str] = Counter()
    lent = 0
    for seed in range(40):
        world = InstanceWorld(seed)
        world.run()
        faults.update(world.faults)
        lent += world.lent_to_instances

    assert lent > 20
    assert {
        "death of an instance",
        "frozen instance",
        "instance invoked twice",
        "instance that has been here before",
        "instance that is not wanted any more",
        "an instance says what it may not",
        "plan of a former controller",
        "crash of a worker",
    } <= faults.keys()
