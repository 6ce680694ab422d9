"""Whose turn it is: by rank, by waiting among equals, and now and then by waiting alone."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sublet.scheduler.api import WorkView
from sublet.scheduler.orders import RoundRobin
from sublet.scheduler.ready_queue import GUARD_EVERY, STALE_MAX, ReadyQueue


def queue_of(*places: tuple[str, float, float], starvation_ms: float = 1e9) -> ReadyQueue[str]:
    queue: ReadyQueue[str] = ReadyQueue(starvation_ms)
    for name, rank, arrived_ms in places:
        queue.put(name, name, rank, arrived_ms)
    return queue


def drained(queue: ReadyQueue[str], now_ms: float = 0.0) -> list[str]:
    names = []
    while (name := queue.pop(now_ms)) is not None:
        names.append(name)
    return names


def test_the_smallest_rank_has_the_first_turn() -> None:
    queue = queue_of(("b", 2.0, 0.0), ("a", 1.0, 5.0), ("c", 3.0, 1.0))
    assert queue.rank() == 1.0
    assert drained(queue) == ["a", "b", "c"]
    assert queue.rank() is None
    assert queue.pop(0.0) is None


def test_among_equals_the_turn_goes_to_who_came_in_first() -> None:
    queue = queue_of(("b", 1.0, 9.0), ("a", 1.0, 8.0), ("c", 1.0, 7.0))
    assert drained(queue) == ["b", "a", "c"]


def test_who_is_ranked_anew_is_in_once_with_the_new_rank() -> None:
    queue = queue_of(("a", 2.0, 0.0), ("b", 3.0, 0.0))
    queue.put("b", "b", 1.0, 0.0)
    assert len(queue) == 2
    assert queue.rank() == 1.0
    queue.put("b", "b", 9.0, 0.0)
    assert queue.rank() == 2.0
    assert drained(queue) == ["a", "b"]


@pytest.mark.parametrize("arrived_ms", [0.0, 5.0, 10.0])
def test_who_is_ranked_anew_keeps_the_place_among_equals(arrived_ms: float) -> None:
    queue = queue_of(("a", 1.0, 5.0), ("b", 1.0, 5.0))
    queue.put("a", "a", 1.0, arrived_ms)
    assert drained(queue) == ["a", "b"]
    queue = queue_of(("a", 2.0, 5.0), ("b", 1.0, 5.0))
    queue.put("a", "a", 1.0, arrived_ms)
    assert drained(queue) == ["a", "b"]


def test_who_has_had_a_turn_comes_in_behind_its_equals() -> None:
    rank = RoundRobin().rank(WorkView("shop/f", "a", "shop", 1, 0.0, 0.0))
    queue = queue_of(("a", rank, 0.0), ("b", rank, 0.0), ("c", rank, 0.0))
    turns = []
    for _ in range(9):
        name = queue.pop(0.0)
        assert name is not None
        turns.append(name)
        queue.put(name, name, rank, 0.0)
    assert turns == ["a", "b", "c"] * 3


def test_who_left_has_no_turn_and_may_come_in_again() -> None:
    queue = queue_of(("a", 1.0, 0.0), ("b", 2.0, 0.0))
    queue.discard("a")
    queue.discard("nobody")
    assert len(queue) == 1
    assert queue.rank() == 2.0
    queue.put("a", "a", 3.0, 0.0)
    assert drained(queue) == ["b", "a"]


def test_the_latest_item_of_a_name_has_the_turn() -> None:
    queue: ReadyQueue[int] = ReadyQueue()
    queue.put("a", 1, 5.0, 0.0)
    queue.put("a", 2, 5.0, 0.0)
    assert queue.pop(0.0) == 2


def test_who_has_waited_too_long_has_a_turn_whatever_the_rank() -> None:
    queue = queue_of(("urgent", 0.0, 90.0), ("patient", 1e9, 0.0), starvation_ms=100.0)
    assert queue.pop(99.9) == "urgent"
    queue.put("urgent", "urgent", 0.0, 99.9)
    for _ in range(GUARD_EVERY):
        assert queue.pop(99.9) == "urgent"
        queue.put("urgent", "urgent", 0.0, 99.9)
    assert queue.pop(100.0) == "patient"


def test_waiting_counts_from_the_earliest_arrival_that_was_told() -> None:
    queue = queue_of(("urgent", 0.0, 90.0), ("patient", 1e9, 50.0), starvation_ms=100.0)
    queue.put("patient", "patient", 1e9, 10.0)
    queue.put("patient", "patient", 2e9, 70.0)
    assert queue.pop(110.0) == "patient"


def test_when_all_have_waited_too_long_most_turns_still_go_by_rank() -> None:
    queue = queue_of(("urgent", 0.0, 1.0), ("patient", 1e9, 0.0), starvation_ms=100.0)
    turns: Counter[str] = Counter()
    for _ in range(20 * GUARD_EVERY):
        name = queue.pop(1e6)
        assert name is not None
        turns[name] += 1
        queue.put(name, name, 0.0 if name == "urgent" else 1e9, float(name == "urgent"))
    assert turns["patient"] == 20


def test_nobody_starves_behind_a_stream_of_the_more_urgent() -> None:
    names = [f"bulk {number}" for number in range(5)]
    queue = queue_of(*((name, 1e9, 0.0) for name in names), starvation_ms=100.0)
    seen = set()
    for turn in range(1_000):
        queue.put("urgent", "urgent", 0.0, float(turn))
        seen.add(queue.pop(float(turn)))
    assert seen == {"urgent", *names}


def test_ranking_anew_for_ever_takes_no_memory() -> None:
    queue = queue_of(("a", 0.0, 0.0), ("b", 0.5, 0.0))
    for number in range(10_000):
        queue.put("a", "a", float(number % 3), float(-number))
        assert len(queue._by_rank) <= 2 * 2 + STALE_MAX
    assert len(drained(queue)) == 2


def test_coming_and_going_behind_one_who_waits_takes_no_memory() -> None:
    queue = queue_of(("patient", 1e9, 0.0), starvation_ms=1e9)
    for number in range(10_000):
        queue.put("urgent", "urgent", 0.0, float(number))
        if number % 2:
            assert queue.pop(float(number)) == "urgent"
        else:
            queue.discard("urgent")
        assert len(queue._by_rank) <= 2 * 2 + STALE_MAX


@dataclass
class ModelPlace:
    rank: float
    arrived_ms: float
    since: int


class ReadyQueueModel(RuleBasedStateMachine):
    """Against a queue that looks at everybody each time."""

    STARVATION_MS = 20.0
    NAMES = st.sampled_from([f"partition {number}" for number in range(12)])

    def __init__(self) -> None:
        super().__init__()
        self.queue: ReadyQueue[str] = ReadyQueue(self.STARVATION_MS)
        self.places: dict[str, ModelPlace] = {}
        self.entered = 0
        self.turns_since_guard = GUARD_EVERY
        self.now_ms = 0.0

    @rule(name=NAMES, rank=st.integers(0, 5), ago_ms=st.integers(0, 30))
    def put(self, name: str, rank: int, ago_ms: int) -> None:
        arrived_ms = self.now_ms - ago_ms
        self.queue.put(name, name, float(rank), arrived_ms)
        known = self.places.get(name)
        if known is None:
            self.entered += 1
            self.places[name] = ModelPlace(float(rank), arrived_ms, self.entered)
        else:
            known.rank = float(rank)
            known.arrived_ms = min(known.arrived_ms, arrived_ms)
        assert len(self.queue._by_rank) <= 2 * len(self.places) + STALE_MAX

    @rule(name=NAMES, seed=st.integers(0, 1_000))
    def rank_anew_often(self, name: str, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(STALE_MAX):
            self.put(name, chance.randrange(6), 0)

    @rule(name=NAMES)
    def discard(self, name: str) -> None:
        self.queue.discard(name)
        self.places.pop(name, None)

    @rule(by_ms=st.integers(0, 15))
    def pass_time(self, by_ms: int) -> None:
        self.now_ms += by_ms

    @rule(count=st.integers(1, 15))
    def pop(self, count: int) -> None:
        for _ in range(count):
            name = self.queue.pop(self.now_ms)
            assert name == self._expected()
            if name is not None:
                del self.places[name]

    def _expected(self) -> str | None:
        if not self.places:
            return None
        oldest = min(
            self.places, key=lambda name: (self.places[name].arrived_ms, self.places[name].since)
        )
        starving = self.now_ms - self.places[oldest].arrived_ms >= self.STARVATION_MS
        if starving and self.turns_since_guard >= GUARD_EVERY - 1:
            self.turns_since_guard = 0
            return oldest
        self.turns_since_guard += 1
        return min(self.places, key=lambda name: (self.places[name].rank, self.places[name].since))

    @invariant()
    def both_hold_the_same(self) -> None:
        assert len(self.queue) == len(self.places)
        ranks = [place.rank for place in self.places.values()]
        assert self.queue.rank() == (min(ranks) if ranks else None)


ReadyQueueModel.TestCase.settings = settings(max_examples=100, deadline=None)
test_the_queue_gives_turns_as_a_plain_one_does = ReadyQueueModel.TestCase
