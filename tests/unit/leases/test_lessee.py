"""A worker as lessee: what it takes in, and what it says of itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sublet.runtime.leases.lessee import GUEST_MESSAGES_MAX, OVER_KEPT_MAX, Lessee
from sublet.runtime.partition.model.worker_backlog import WorkerBacklog
from sublet.runtime.protocol.lease_messages import LeaseId
from sublet.scheduler.laxity_queue import LaxityQueue

FAR_MS = 10_000.0


def lease(number: int = 1) -> LeaseId:
    return LeaseId("app/f/0", 1, number)


class Door:
    """A lessee with what waits in its worker."""

    def __init__(self, messages_max: int = GUEST_MESSAGES_MAX) -> None:
        self.waiting: WorkerBacklog = LaxityQueue()
        self.lessee = Lessee(self.waiting, messages_max)

    def offer(
        self,
        number: int = 1,
        count: int = 1,
        *,
        cost_ms: float = 10.0,
        left_ms: float = 100.0,
        home_ms: float = FAR_MS,
        forced: bool = False,
        start_ms: float = 0.0,
    ) -> bool:
        return self.lessee.offered(
            lease(number),
            count,
            cost_ms=cost_ms,
            left_ms=left_ms,
            home_ms=home_ms,
            forced=forced,
            now_ms=0.0,
            start_ms=start_ms,
        )

    def has_room(
        self, cost_ms: float, left_ms: float, home_ms: float = FAR_MS, start_ms: float = 0.0
    ) -> bool:
        return self.lessee.has_room(cost_ms, left_ms, home_ms, 0.0, start_ms)


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door()
    yield door
    lessee = door.lessee
    for number in range(100):
        lessee.ended(lease(number))
    assert lessee.messages == 0
    assert not lessee._guests


def test_there_is_room_for_what_is_in_time_and_makes_nobody_late(door: Door) -> None:
    door.waiting.put(50.0, 30.0, object())
    assert door.has_room(10.0, 60.0)
    assert door.has_room(15.0, 49.0)
    assert not door.has_room(25.0, 40.0), "it would make another one late"
    assert not door.has_room(25.0, 54.0), "it would be late behind another one"


def test_a_worker_that_is_busy_says_so(door: Door) -> None:
    assert door.has_room(10.0, 50.0, start_ms=30.0)
    assert not door.has_room(10.0, 50.0, home_ms=0.0, start_ms=45.0)


def test_what_is_late_anyway_comes_where_it_is_finished_sooner(door: Door) -> None:
    door.waiting.put(1_000.0, 20.0, object())
    assert door.has_room(10.0, 5.0, home_ms=31.0)
    assert not door.has_room(10.0, 5.0, home_ms=30.0)
    assert not door.has_room(10.0, 5.0, home_ms=35.0, start_ms=5.0)


def test_what_was_taken_waits_with_everything_else_until_its_turn(door: Door) -> None:
    assert door.offer(1, 3, cost_ms=30.0)
    assert lease(1) in door.lessee
    assert door.lessee.load(4).queued == 7
    assert door.lessee.load(0).queued_ms == 30.0
    door.lessee.started(lease(1))
    door.lessee.started(lease(1))
    assert door.lessee.load(0).queued_ms == 0.0
    assert door.lessee.load(0).queued == 3, "it runs"
    assert door.lessee.ended(lease(1))
    assert door.lessee.load(0).queued == 0
    assert not door.lessee.ended(lease(1))


def test_a_guest_that_is_taken_away_before_its_turn_does_not_wait_any_more(door: Door) -> None:
    door.offer(1, cost_ms=30.0)
    assert door.lessee.ended(lease(1))
    assert len(door.waiting) == 0
    assert door.lessee.messages == 0


def test_an_offer_that_comes_again_after_its_end_is_not_taken(door: Door) -> None:
    """A second run could leave another state here than the one that its lessor was given."""
    door.offer(1)
    door.lessee.ended(lease(1))
    assert lease(1) in door.lessee
    assert not door.offer(1, forced=True)
    assert door.lessee.messages == 0


def test_of_so_many_leases_that_are_over_something_is_known() -> None:
    door = Door()
    for number in range(OVER_KEPT_MAX + 1):
        assert door.offer(number)
        door.lessee.ended(lease(number))
    assert lease(0) not in door.lessee
    assert lease(1) in door.lessee


def test_a_lease_that_was_declined_may_be_offered_again(door: Door) -> None:
    assert not door.offer(1, cost_ms=50.0, left_ms=10.0, home_ms=0.0)
    assert door.offer(1, cost_ms=50.0, left_ms=100.0)


def test_there_is_no_room_for_a_second_guest_that_makes_the_first_late(door: Door) -> None:
    assert door.offer(1, cost_ms=60.0, left_ms=100.0)
    assert not door.offer(2, cost_ms=60.0, left_ms=110.0, home_ms=0.0)
    assert (door.lessee.accepted, door.lessee.declined) == (1, 1)
    assert door.offer(3, cost_ms=60.0, left_ms=500.0)


def test_a_forced_guest_is_taken_in_any_case(door: Door) -> None:
    assert door.offer(1, cost_ms=200.0, left_ms=-5.0, home_ms=0.0, forced=True)


def test_an_offer_that_was_doubled_is_taken_once(door: Door) -> None:
    assert door.offer(1, 2)
    assert not door.offer(1, 2)
    assert door.lessee.messages == 2
    assert (door.lessee.accepted, door.lessee.declined) == (1, 0)


@pytest.mark.parametrize("forced", [False, True])
def test_so_many_messages_of_neighbours_are_taken_and_no_more(forced: bool) -> None:
    door = Door()
    assert door.offer(1, GUEST_MESSAGES_MAX - 1, forced=forced)
    assert not door.offer(2, 2, forced=forced)
    assert door.offer(3, 1, forced=forced)
    assert door.lessee.messages == GUEST_MESSAGES_MAX
    door.lessee.started(lease(1))
    assert not door.offer(4, 1, forced=forced), "those that run count, too"
    door.lessee.ended(lease(3))
    assert door.offer(4, 1, forced=forced)
