"""Everything happens exactly once and in order, whatever is lost, repeated or taken over.

A failing seed is in the test's message, with the command that replays it. To try many:
`make campaign SEEDS=10000`.
"""

from __future__ import annotations

import pytest

from tests.simulation.seeds import chunks, play_all
from tests.simulation.worlds.partition import World


@pytest.mark.parametrize("seeds", chunks(300), ids=str)
def test_every_effect_happens_once_and_in_order(seeds: range) -> None:
    play_all("partition", seeds)


def test_a_seed_tells_the_same_story_each_time() -> None:
    one, other = World(3), World(3)
    one.run()
    other.run()

    assert one.events == other.events
    assert one.commits == other.commits
    assert one.faults == other.faults


def test_everything_goes_wrong_in_some_seed() -> None:
    seen: set[str] = set()
    for seed in range(60):
        world = World(seed)
        world.run()
        seen |= world.faults.keys()

    assert seen == {
        "clock jump",
        "clogged link",
        "crash",
        "late copy",
        "late frame",
        "lost answer to a commit",
        "lost commit",
        "lost frame",
        "migration",
        "one-way loss",
        "pause",
        "read failed",
        "reset link",
        "slow store",
        "takeover from the living",
        "torn group",
    }
