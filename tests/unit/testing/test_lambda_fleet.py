"""The local Lambda: which environment runs what; what is throttled, tried again, dropped."""

from __future__ import annotations

from itertools import pairwise

from sublet.runtime.testing.lambda_local.fleet import EVENTS_MAX, Event, Fleet


def event(name: str = "e", arrived_s: float = 0.0) -> Event:
    return Event(name, b"{}", arrived_s, arrived_s)


def test_the_environment_used_last_is_taken_first() -> None:
    fleet = Fleet[str]()
    assert [fleet.take(9), fleet.take(9)] == ["cold", "cold"]
    fleet.free("older")
    fleet.free("newer")

    assert [fleet.take(9), fleet.take(9), fleet.take(9)] == ["newer", "older", "cold"]


def test_what_is_too_much_is_throttled_until_one_is_free() -> None:
    fleet = Fleet[str]()
    assert [fleet.take(1), fleet.take(1)] == ["cold", "throttled"]
    fleet.free(None)

    assert fleet.take(1) == "cold"


def test_a_reclaimed_environment_is_not_used_again() -> None:
    fleet = Fleet[str]()
    fleet.take(9)
    fleet.free("a")
    fleet.lost("a")

    assert fleet.take(9) == "cold"


def test_events_wait_in_order_while_too_many_run() -> None:
    fleet = Fleet[str]()
    for name in "abc":
        assert fleet.put(event(name))
    first = fleet.next_event(1, 0.0)
    assert first is not None
    assert first.event.id == "a"
    assert fleet.next_event(1, 0.0) is None
    fleet.free("one")
    second = fleet.next_event(1, 0.0)

    assert second is not None
    assert (second.event.id, second.environment) == ("b", "one")
    assert fleet.waiting == 1


def test_an_event_that_failed_is_tried_again_as_often_as_configured() -> None:
    fleet, failed = Fleet[str](), event()
    endings = [fleet.ended(failed, True, 2, 60.0, 0.0) for _ in range(3)]

    assert endings == ["again", "again", "dropped"]
    assert fleet.ended(event(), True, 0, 60.0, 0.0) == "dropped"
    assert fleet.ended(event(), False, 0, 60.0, 0.0) == "done"


def test_a_retry_waits_for_its_time() -> None:
    fleet, failed = Fleet[str](), event()
    fleet.ended(failed, True, 2, 60.0, now_s=10.0)

    assert fleet.next_event(9, 69.0) is None
    assert fleet.next_event(9, 70.0) is not None


def test_an_event_that_is_too_old_is_dropped() -> None:
    fleet = Fleet[str]()
    fleet.put(event("old", 0.0))
    fleet.put(event("new", 50.0))

    assert [each.id for each in fleet.too_old(60.0, 61.0)] == ["old"]
    assert fleet.waiting == 1


def test_events_that_wait_have_a_bound() -> None:
    fleet = Fleet[str]()
    taken = [fleet.put(event()) for _ in range(EVENTS_MAX + 1)]

    assert taken.count(False) == 1
    assert all(one or not other for one, other in pairwise(taken))
