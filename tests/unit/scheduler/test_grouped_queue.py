"""Requests for one key run together, and no request is overtaken by more than the bound."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.scheduler.grouped_queue import (
    BATCH_SIZE,
    BATCH_WAIT_MS,
    EXECUTORS_MAX,
    GroupedQueue,
)

Queue = GroupedQueue[str, int]


def queue_of(keys: str, *, now_ms: float = 0.0, **options: Any) -> Queue:
    """Return a queue in which each letter is the key of a request; items count from 0."""
    queue = Queue(**options)
    for number, key in enumerate(keys):
        queue.put(key, number, now_ms)
    return queue


def drained(queue: Queue, now_ms: float = 1e6) -> list[list[int]]:
    batches = []
    while batch := queue.take(now_ms, 0):
        batches.append(batch)
    return batches


def test_the_defaults_are_those_of_the_paper() -> None:
    assert (BATCH_SIZE, BATCH_WAIT_MS, EXECUTORS_MAX) == (20, 20.0, 10)


def test_a_batch_goes_on_with_the_key_that_it_has_begun_with() -> None:
    queue = queue_of("abcabcabc", batch_size=3)
    assert drained(queue) == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_a_batch_takes_the_oldest_when_its_key_has_no_more() -> None:
    queue = queue_of("abbca", batch_size=4)
    assert drained(queue) == [[0, 4, 1, 2], [3]]


def test_each_batch_begins_with_the_oldest_of_all() -> None:
    queue = queue_of("abaaaa", batch_size=2)
    assert drained(queue) == [[0, 2], [1, 3], [4, 5]]


def test_a_key_is_not_preferred_where_it_is_too_far_ahead() -> None:
    # By arrival, 0 and 1 are the first batch, 2 and 3 the second, 4 and 5 the third.
    keys = "abccca"
    assert drained(queue_of(keys, batch_size=2, executors_max=3))[0] == [0, 5]
    assert drained(queue_of(keys, batch_size=2, executors_max=2))[0] == [0, 1]


def test_with_one_executor_only_requests_of_one_batch_change_places() -> None:
    queue = queue_of("abaabb", batch_size=3, executors_max=1)
    assert drained(queue) == [[0, 2, 1], [3, 4, 5]]


def test_a_full_batch_is_ready_at_once() -> None:
    queue = queue_of("aaa", batch_size=3, now_ms=5.0)
    assert queue.next_ready_ms(5.0) == 5.0
    assert queue.take(5.0, 0) == [0, 1, 2]
    assert queue.next_ready_ms(5.0) is None
    assert queue.take(5.0, 0) == []


def test_a_batch_that_is_not_full_is_ready_when_its_oldest_has_waited() -> None:
    queue = queue_of("a", batch_size=3, batch_wait_ms=20.0, now_ms=100.0)
    queue.put("b", 1, 115.0)
    assert queue.next_ready_ms(116.0) == 120.0
    assert queue.take(119.9, 0) == []
    assert queue.take(120.0, 0) == [0, 1]


def test_what_has_waited_for_long_is_ready_now_not_in_the_past() -> None:
    queue = queue_of("a", batch_size=3, batch_wait_ms=20.0)
    assert queue.next_ready_ms(500.0) == 500.0


def test_the_wait_counts_from_the_oldest_that_is_left() -> None:
    queue = queue_of("ab", batch_size=2, now_ms=0.0)
    queue.put("a", 2, 10.0)
    assert queue.take(10.0, 0) == [0, 2]
    assert queue.next_ready_ms(10.0) == BATCH_WAIT_MS
    assert queue.take(BATCH_WAIT_MS, 0) == [1]


def test_without_a_free_executor_nothing_is_taken() -> None:
    queue = queue_of("aa", batch_size=2, executors_max=3)
    assert queue.take(0.0, 3) == []
    assert len(queue) == 2
    assert queue.take(0.0, 2) == [0, 1]


def test_what_comes_after_a_part_of_a_batch_was_taken_counts_to_the_next() -> None:
    queue = queue_of("a", batch_size=3, executors_max=1, batch_wait_ms=0.0)
    assert queue.take(0.0, 0) == [0]
    for number, key in enumerate("abcab", start=1):
        queue.put(key, number, 1.0)
    # Three to a batch, though the first batch had room for two more.
    assert drained(queue) == [[1, 2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; allowed: 1 or more"),
        ({"batch_wait_ms": -1.0}, "batch_wait_ms is -1.0; allowed: 0 or more"),
        ({"batch_wait_ms": math.inf}, "batch_wait_ms is inf; allowed: 0 or more"),
        ({"executors_max": 0}, "executors_max is 0; allowed: 1 or more"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Queue(**options)


def test_a_request_is_overtaken_by_all_of_the_batches_beside_its_own_and_by_no_other() -> None:
    # r is the fourth of its batch. Three batches of 8 may run at once: 20 requests follow it there,
    # and each of the three before it can pull some along. No z of the fourth batch comes in.
    keys = "xyzr" + "x" * 7 + "y" * 7 + "z" * 6 + "z" * 50
    queue = queue_of(keys, batch_size=8, executors_max=3)
    order = [item for batch in drained(queue) for item in batch]
    overtakers = [item for item in order[: order.index(keys.index("r"))] if item > 3]
    assert overtakers == list(range(4, 24))
    assert queue.overtaking_max == 24


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("aaaabbcdefgh")),
        st.tuples(st.just("wait"), st.integers(0, 30)),
        st.tuples(st.just("take"), st.integers(0, 5)),
    ),
    max_size=300,
)


class PlainGroupedQueue:
    """The paper's algorithm, looking at every request."""

    def __init__(self, batch_size: int, batch_wait_ms: float, executors_max: int) -> None:
        self.options = batch_size, batch_wait_ms, executors_max
        self.waiting: list[tuple[int, str, int, float]] = []
        self.batch, self.fill = 1, 0

    def put(self, key: str, item: int, now_ms: float) -> None:
        self.waiting.append((self.batch, key, item, now_ms))
        self.fill += 1
        if self.fill == self.options[0]:
            self.batch, self.fill = self.batch + 1, 0

    def take(self, now_ms: float, executors_busy: int) -> list[int]:
        batch_size, wait_ms, executors_max = self.options
        if not self.waiting or executors_busy >= executors_max:
            return []
        if len(self.waiting) < batch_size and now_ms < self.waiting[0][3] + wait_ms:
            return []
        taken: list[int] = []
        key = None
        while self.waiting and len(taken) < batch_size:
            smallest = min(each[0] for each in self.waiting)
            same = [
                each
                for each in self.waiting
                if each[1] == key and each[0] - smallest < executors_max
            ]
            chosen = same[0] if same else self.waiting[0]
            self.waiting.remove(chosen)
            key = chosen[1]
            taken.append(chosen[2])
        if not self.waiting and len(taken) < batch_size:
            self.batch, self.fill = self.batch + 1, 0
        return taken


@settings(max_examples=300)
@given(
    steps=STEPS,
    batch_size=st.integers(1, 8),
    executors_max=st.integers(1, 4),
    wait_ms=st.sampled_from([0.0, 5.0, 20.0]),
)
def test_the_queue_takes_what_the_papers_algorithm_takes_within_its_bounds(
    steps: list[tuple[str, Any]], batch_size: int, executors_max: int, wait_ms: float
) -> None:
    queue = Queue(batch_size=batch_size, batch_wait_ms=wait_ms, executors_max=executors_max)
    plain = PlainGroupedQueue(batch_size, wait_ms, executors_max)
    now_ms = 0.0
    keys: list[str] = []
    order: list[int] = []
    # In the end all is taken, so that every request's fate is known.
    for action, value in [*steps, ("wait", 1_000), *[("take", 0)] * 300]:
        if action == "put":
            queue.put(value, len(keys), now_ms)
            plain.put(value, len(keys), now_ms)
            keys.append(value)
        elif action == "wait":
            now_ms += value
        else:
            ready_ms = queue.next_ready_ms(now_ms)
            batch = queue.take(now_ms, value)
            assert batch == plain.take(now_ms, value)
            assert len(batch) <= batch_size
            assert bool(batch) == (ready_ms == now_ms and value < executors_max)
            order += batch
        assert len(queue) == len(plain.waiting)
        stale = sum(request.taken for request in queue._by_arrival)
        assert stale < queue.overtaking_max
        assert len(queue._by_key) == len({each[1] for each in plain.waiting})
    assert sorted(order) == list(range(len(keys)))
    for place, item in enumerate(order):
        overtaken_by = sum(other > item for other in order[:place])
        assert overtaken_by < queue.overtaking_max
    for key in set(keys):
        of_key = [item for item in order if keys[item] == key]
        assert of_key == sorted(of_key)
