"""For every k: the k-th call of the store goes wrong, and all is as if nothing had happened."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from sublet.statestore.contract import Commit, Outcome
from sublet.testing import Harness
from tests.simulation.sweep import worlds as sweep_worlds
from tests.simulation.sweep.scenarios import SCENARIOS
from tests.simulation.sweep.store import SweptStore, Way

CALLS_MAX = 400

# To a single commit, a torn group is one that was done or was not.
WAYS_OF_WORLDS = [way for way in Way if way is not Way.TORN]


def _play(name: str, way: Way, failing: int) -> SweptStore:
    """Tell a story while one call goes wrong, and compare."""
    story = SCENARIOS[name]()
    # Failures are part of the stories; to print them would take most of the time.
    with capture_logs(), Harness(story.app, strict=False) as harness:
        store = harness._machine.store
        store.__class__ = SweptStore
        assert isinstance(store, SweptStore)
        store.way, store.failing = way, failing
        found = story.tell(harness)
        harness.assert_idle()
    assert found == story.expected, f"call {failing}: {way.value}"
    return store


@pytest.mark.parametrize("way", Way, ids=lambda way: way.name.lower())
@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_is_lost_or_doubled_whichever_call_of_the_store_goes_wrong(
    name: str, way: Way
) -> None:
    for failing in range(1, CALLS_MAX):
        if _play(name, way, failing).calls < failing:
            assert failing > 1, "the story never asks the store"
            return
    pytest.fail(f"{name} asks the store more than {CALLS_MAX} times")


@pytest.mark.parametrize("way", WAYS_OF_WORLDS, ids=lambda way: way.name.lower())
@pytest.mark.parametrize("name", sweep_worlds.STORIES)
def test_partitions_that_move_or_lend_lose_nothing_whichever_call_goes_wrong(
    name: str, way: Way
) -> None:
    for failing in range(1, CALLS_MAX):
        try:
            world = sweep_worlds.play(name, way, failing)
        except Exception as error:
            error.add_note(f"call {failing}: {way.value}")
            raise
        if world.swarm.calls < failing:
            assert failing > 30, "little happens in this story"
            return
    pytest.fail(f"{name} asks the store more than {CALLS_MAX} times")


def test_the_stories_of_worlds_are_about_what_they_say() -> None:
    moved = sweep_worlds.play("migrations", Way.FAILS, 0)
    taken = sweep_worlds.play("takeovers during load", Way.FAILS, 0)
    lent = sweep_worlds.play("leases", Way.FAILS, 0)
    in_parts = sweep_worlds.play("leases of windows", Way.FAILS, 0)

    assert moved.faults["migration"] == 6
    assert taken.faults["crash"] >= 3
    assert lent.leases.counts["returned"] >= 5
    assert in_parts.partial_leases >= 5


class LyingStore(SweptStore):
    """Says that the call was done, and forgets it."""

    async def commit(self, commits: Sequence[Commit]) -> list[Outcome]:
        if self._is_next(is_read=False):
            return [Outcome.DONE] * len(commits)
        return await super(SweptStore, self).commit(commits)


def test_the_sweep_notices_a_store_that_lies() -> None:
    story = SCENARIOS["counts"]()
    with Harness(story.app, strict=False) as harness:
        store = harness._machine.store
        store.__class__ = LyingStore
        assert isinstance(store, LyingStore)
        store.way, store.failing = Way.NO_ANSWER, 2

        with pytest.raises(AssertionError, match="was lost"):
            story.tell(harness)
