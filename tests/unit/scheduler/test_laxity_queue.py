"""The laxity queue says the same as a queue that looks at every entry, only faster."""

from __future__ import annotations

import math
import random
from bisect import insort
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sublet.scheduler.laxity_queue import Entry, LaxityQueue


class PlainQueue:
    """The same contract, entry by entry, from the definitions."""

    def __init__(self) -> None:
        self.entries: list[Entry[int]] = []

    def put(self, entry: Entry[int]) -> None:
        insort(self.entries, entry, key=lambda each: (each.deadline_ms, each._key[1]))

    def laxities(self, now_ms: float) -> dict[Entry[int], float]:
        found = {}
        for entry in self.entries:
            now_ms += entry.cost_ms
            found[entry] = entry.deadline_ms - now_ms
        return found

    def cost_ahead_ms(self, deadline_ms: float) -> float:
        return sum(each.cost_ms for each in self.entries if each.deadline_ms <= deadline_ms)

    def fits(self, deadline_ms: float, cost_ms: float, now_ms: float) -> bool:
        if now_ms + self.cost_ahead_ms(deadline_ms) + cost_ms >= deadline_ms:
            return False
        laxities = self.laxities(now_ms)
        return not any(
            0.0 < laxities[each] <= cost_ms
            for each in self.entries
            if each.deadline_ms > deadline_ms
        )

    def violators(self, now_ms: float) -> list[Entry[int]]:
        going = []
        for each in self.entries:
            if now_ms + each.cost_ms < each.deadline_ms:
                now_ms += each.cost_ms
            else:
                going.append(each)
        return going


# Whole numbers, which sum up to the same in any order.
COSTS_MS = st.integers(0, 20).map(float)
TIMES_MS = st.integers(0, 400).map(float)


class LaxityQueueModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue: LaxityQueue[int] = LaxityQueue()
        self.plain = PlainQueue()
        self.gone: list[Entry[int]] = []
        self.now_ms = 0.0

    @rule(deadline_ms=TIMES_MS, cost_ms=COSTS_MS)
    def put(self, deadline_ms: float, cost_ms: float) -> None:
        self.plain.put(self.queue.put(deadline_ms, cost_ms, len(self.plain.entries)))

    @rule(
        seed=st.integers(0, 2**32),
        count=st.integers(1, 400),
        load=st.sampled_from([0.5, 0.9, 1.0, 1.1, 5.0]),
    )
    def put_many(self, seed: int, count: int, load: float) -> None:
        """With a load near 1 some are late and some are not."""
        chance = random.Random(seed)
        start_ms = self.now_ms + self.queue.cost_ms
        for number in range(count):
            deadline_ms = start_ms + chance.randrange(int(2.0 * count / load) + 1)
            self.plain.put(self.queue.put(deadline_ms, float(chance.randrange(5)), number))

    @rule(deadline_ms=TIMES_MS, cost_ms=COSTS_MS)
    def put_what_fits(self, deadline_ms: float, cost_ms: float) -> None:
        deadline_ms += self.now_ms
        late_before = {each for each, ms in self.plain.laxities(self.now_ms).items() if ms <= 0}
        if self.queue.fits(deadline_ms, cost_ms, self.now_ms):
            entry = self.queue.put(deadline_ms, cost_ms, -1)
            self.plain.put(entry)
            late = {each for each, ms in self.plain.laxities(self.now_ms).items() if ms <= 0}
            assert late == late_before

    @rule(by_ms=st.integers(0, 100))
    def pass_time(self, by_ms: int) -> None:
        self.now_ms += by_ms

    @rule(now_ms=TIMES_MS, seed=st.integers(0, 2**32))
    def ask_about_another_time(self, now_ms: float, seed: int) -> None:
        self._ask(now_ms, random.Random(seed))

    @invariant()
    def both_answer_the_same(self) -> None:
        # After every step: what was worked out for the last answer must not show in this one.
        self._ask(self.now_ms, random.Random(len(self.plain.entries)))

    def _ask(self, now_ms: float, chance: random.Random) -> None:
        laxities = self.plain.laxities(now_ms)
        in_time = [(each, ms) for each, ms in laxities.items() if ms > 0.0]
        in_time.sort(key=lambda each: each[1])
        for _ in range(10):
            deadline_ms = now_ms + chance.randrange(-5, 3_000)
            cost_ms = float(chance.randrange(1, 4))
            if in_time:
                # Near the edge: before an entry, costs about as much as it has laxity.
                behind, laxity_ms = chance.choice(in_time[: chance.choice((1, 5, 500))])
                reach_ms = chance.choice((3, 300, 10_000))
                deadline_ms = behind.deadline_ms - chance.randrange(reach_ms)
                cost_ms = max(0.0, laxity_ms - chance.randrange(3))
            expected = self.plain.fits(deadline_ms, cost_ms, now_ms)
            assert self.queue.fits(deadline_ms, cost_ms, now_ms) == expected
            expected_ms = self.plain.cost_ahead_ms(deadline_ms)
            assert self.queue.cost_ahead_ms(deadline_ms) == expected_ms

    @rule()
    def offload_violators(self) -> None:
        violators = self.queue.violators(self.now_ms)
        assert violators == self.plain.violators(self.now_ms)
        for entry in violators:
            self._remove(entry)
        assert not self.queue.violators(self.now_ms)
        assert all(ms > 0.0 for ms in self.plain.laxities(self.now_ms).values())

    @precondition(lambda self: self.plain.entries)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        self._remove(data.draw(st.sampled_from(self.plain.entries)))

    @rule(seed=st.integers(0, 2**32), share=st.floats(0, 1))
    def remove_many(self, seed: int, share: float) -> None:
        chance = random.Random(seed)
        for entry in chance.sample(self.plain.entries, int(share * len(self.plain.entries))):
            self._remove(entry)

    def _remove(self, entry: Entry[int]) -> None:
        self.queue.remove(entry)
        self.plain.entries.remove(entry)
        self.gone.append(entry)

    @rule(count=st.integers(1, 60))
    def pop(self, count: int) -> None:
        for _ in range(count):
            entry = self.queue.pop()
            if not self.plain.entries:
                assert entry is None
                return
            assert entry is self.plain.entries.pop(0)
            self.now_ms += entry.cost_ms
            self.gone.append(entry)

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def remove_again(self, data: st.DataObject) -> None:
        with pytest.raises(KeyError):
            self.queue.remove(data.draw(st.sampled_from(self.gone)))

    @invariant()
    def both_hold_the_same(self) -> None:
        plain = self.plain
        assert self.queue.entries() == plain.entries
        assert len(self.queue) == len(plain.entries)
        assert self.queue.cost_ms == sum(each.cost_ms for each in plain.entries)
        assert self.queue.first() is (plain.entries[0] if plain.entries else None)
        laxities = plain.laxities(self.now_ms).values()
        assert self.queue.laxity_ms(self.now_ms) == min(laxities, default=math.inf)
        depth_of(self.queue)


def depth_of(queue: LaxityQueue[Any]) -> int:
    """Check that the tree is one, and return how deep it is."""

    def depth(node: Entry[Any] | None) -> int:
        if node is None:
            return 0
        left, right = node._left, node._right
        for child in (left, right):
            assert child is None or child._priority <= node._priority
        assert left is None or left._key < node._key
        assert right is None or right._key > node._key
        return 1 + max(depth(left), depth(right))

    return depth(queue._root)


LaxityQueueModel.TestCase.settings = settings(
    max_examples=50, stateful_step_count=30, deadline=None
)
test_the_queue_says_what_a_plain_one_says = LaxityQueueModel.TestCase


@pytest.mark.parametrize("seed", range(4))
def test_a_long_queue_in_which_some_are_late_says_what_a_plain_one_says(
    seed: int,
) -> None:
    model, chance = LaxityQueueModel(), random.Random(seed)
    model.put_many(seed, 2_500, 1.0)
    for _ in range(120):
        action = chance.randrange(5)
        if action == 0:
            model.put_what_fits(float(chance.randrange(5_000)), float(chance.randrange(5)))
        elif action == 1:
            # Whatever fits or not: what is behind it becomes late, or is in time again later.
            model.put(model.now_ms + chance.randrange(5_000), float(chance.randrange(200)))
        elif action == 2:
            model._remove(max(chance.sample(model.plain.entries, 20), key=lambda e: e.cost_ms))
        elif action == 3:
            model.pop(3)
        else:
            model.now_ms += chance.randrange(-5, 6)
        model._ask(model.now_ms, chance)
    model.both_hold_the_same()


def filled(*entries: tuple[float, float]) -> LaxityQueue[str]:
    queue: LaxityQueue[str] = LaxityQueue()
    for deadline_ms, cost_ms in entries:
        queue.put(deadline_ms, cost_ms, f"due {deadline_ms:g}")
    return queue


def items(entries: list[Entry[str]]) -> list[str]:
    return [entry.item for entry in entries]


def test_what_is_due_first_comes_first_and_equals_in_the_order_of_arrival() -> None:
    queue: LaxityQueue[str] = LaxityQueue()
    for deadline_ms, item in ((20.0, "c"), (10.0, "a"), (20.0, "d"), (10.0, "b")):
        queue.put(deadline_ms, 1.0, item)
    assert [entry.item for _ in range(4) if (entry := queue.pop())] == ["a", "b", "c", "d"]
    assert queue.pop() is None


def test_an_empty_queue_takes_what_is_not_late_itself() -> None:
    queue = filled()
    assert queue.fits(100.0, 10.0, 89.0)
    assert not queue.fits(100.0, 10.0, 90.0)  # Finished at its deadline, not before it.
    assert not queue.fits(100.0, 10.0, 200.0)
    assert queue.laxity_ms(0.0) == math.inf


def test_a_new_entry_waits_for_the_costs_of_all_with_an_earlier_or_the_same_deadline() -> None:
    queue = filled((50.0, 20.0), (60.0, 20.0), (90.0, 1.0))
    assert queue.cost_ahead_ms(60.0) == 40.0
    assert queue.fits(60.0, 19.0, 0.0)
    assert not queue.fits(60.0, 20.0, 0.0)


def test_a_new_entry_must_not_make_late_what_is_behind_it() -> None:
    queue = filled((100.0, 10.0), (200.0, 10.0), (210.0, 170.0))
    assert queue.laxity_ms(0.0) == 20.0
    assert queue.fits(50.0, 19.0, 0.0)
    assert not queue.fits(50.0, 20.0, 0.0)
    assert queue.fits(300.0, 20.0, 0.0)  # Nothing is behind it.


def test_passing_time_uses_up_laxity() -> None:
    queue = filled((100.0, 10.0))
    assert queue.fits(50.0, 30.0, 10.0)
    assert not queue.fits(50.0, 30.0, 30.0)


def test_late_entries_forbid_nothing_but_still_cost_time() -> None:
    # A bulk job of two hours that will be a second late must not stop all urgent work till then.
    queue = filled((7_200_000.0, 7_201_000.0))
    assert queue.laxity_ms(0.0) == -1_000.0
    assert queue.fits(100.0, 10.0, 0.0)
    assert not queue.fits(7_300_000.0, 100_000.0, 0.0)


def test_entries_in_time_stay_protected_among_late_ones() -> None:
    queue = filled((10.0, 20.0), (100.0, 10.0), (110.0, 100.0))
    assert queue.fits(95.0, 69.0, 0.0)
    assert not queue.fits(95.0, 70.0, 0.0)


def test_a_late_entry_is_protected_again_when_enough_before_it_is_gone() -> None:
    queue: LaxityQueue[str] = LaxityQueue()
    first = queue.put(50.0, 40.0, "first")
    queue.put(60.0, 30.0, "late behind it")
    assert queue.fits(45.0, 4.0, 0.0)
    queue.remove(first)
    assert queue.fits(45.0, 29.0, 0.0)
    assert not queue.fits(45.0, 30.0, 0.0)


def test_violators_are_those_due_last_and_none_that_is_helped_by_the_others_leaving() -> None:
    queue = filled((100.0, 60.0), (110.0, 60.0), (120.0, 50.0), (400.0, 100.0))
    assert items(queue.violators(0.0)) == ["due 110"]
    assert items(queue.violators(50.0)) == ["due 100", "due 110"]


def test_all_entries_can_be_violators() -> None:
    queue = filled(*((float(number), 1.0) for number in range(100)))
    assert len(queue.violators(1_000.0)) == 100
    assert queue.violators(-200.0) == []


@pytest.mark.parametrize("deadline_ms", [math.nan, math.inf, -math.inf])
def test_a_deadline_must_be_finite(deadline_ms: float) -> None:
    with pytest.raises(ValueError, match=r"deadline_ms is .*; allowed: finite numbers"):
        filled((deadline_ms, 1.0))


@pytest.mark.parametrize("cost_ms", [math.nan, math.inf, -1.0])
def test_a_cost_must_be_a_time(cost_ms: float) -> None:
    with pytest.raises(ValueError, match=r"cost_ms is .*; allowed: 0 or more"):
        filled((1.0, cost_ms))


@pytest.mark.parametrize("arrivals", ["ascending", "descending", "shuffled", "equal"])
def test_the_tree_stays_flat_in_whatever_order_deadlines_arrive(arrivals: str) -> None:
    numbers = list(range(4_096))
    if arrivals == "descending":
        numbers.reverse()
    elif arrivals == "shuffled":
        random.Random(5).shuffle(numbers)
    queue: LaxityQueue[int] = LaxityQueue()
    entries = [queue.put(float(arrivals != "equal" and each), 1.0, each) for each in numbers]
    assert depth_of(queue) <= 4 * 12
    # It would be 12 if it were perfect, and 4,096 if it were a list.
    for entry in entries[::2]:
        queue.remove(entry)
    assert depth_of(queue) <= 4 * 11
    assert len([queue.pop() for _ in range(2_048)]) == 2_048
    assert len(queue) == 0
    assert queue.first() is None


def test_sums_do_not_drift() -> None:
    queue: LaxityQueue[int] = LaxityQueue()
    chance = random.Random(6)
    for number in range(2_000):
        queue.put(chance.random(), chance.random() * 1e9, number)
    while len(queue) > 1:
        queue.pop()
    last = queue.first()
    assert last is not None
    assert queue.cost_ms == last.cost_ms
    queue.pop()
    assert queue.cost_ms == 0.0
