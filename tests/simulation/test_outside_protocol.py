"""What is on record is not done again, what was cancelled has no effect, whatever goes wrong."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.seeds import chunks, play_all
from tests.simulation.worlds.outside import OutsideWorld


@pytest.mark.parametrize("seeds", chunks(200), ids=str)
def test_side_effects_are_done_once_and_cancelled_requests_have_none(seeds: range) -> None:
    play_all("outside", seeds)


def test_cancellations_come_in_time_and_too_late_and_side_effects_fail_and_succeed() -> None:
    seen: Counter[str] = Counter()
    for seed in range(60):
        world = OutsideWorld(seed)
        world.run()
        for request in world.requests.values():
            seen["cancelled"] += request.cancelled
            seen["done"] += request.done
            seen["sent and cancelled"] += request.cancelled and not request.said.replies
            seen["neither"] += not request.cancels
        seen["acts"] += world.acts

    assert min(seen.values()) > 0
    assert seen["acts"] > 2 * len(seen)
