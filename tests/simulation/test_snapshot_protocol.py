"""What is read to its end is the state after one commit, whoever writes or dies meanwhile."""

from __future__ import annotations

import pytest

from tests.simulation.registry import WORLDS
from tests.simulation.seeds import chunks, play_all


@pytest.mark.parametrize("seeds", chunks(200), ids=str)
def test_every_snapshot_that_is_read_is_the_state_after_one_commit(seeds: range) -> None:
    play_all("snapshots", seeds)


def test_most_readers_come_to_the_end() -> None:
    played = [WORLDS["snapshots"].play(seed, "", None).faults for seed in range(20)]

    assert sum(each["snapshot read"] for each in played) > 50
    assert sum(each["snapshot lost"] for each in played) > 10
