"""What a worker remembers of its messages' times: bounds, order, and who was slow or late."""

from __future__ import annotations

import pytest

from sublet.runtime.partition import Counters
from sublet.runtime.telemetry import (
    Histogram,
    SlowLog,
    SpanTimes,
    Telemetry,
    parse_request_id,
    request_id,
)


def span(total_ms: float, *, first: int = 1, count: int = 1, late: int = 0) -> SpanTimes:
    return SpanTimes("shop/cart", "shop/cart/0", "~c", first, count, 0, 0, total_ms, 0, 0, 0, late)


def test_a_value_at_a_bound_belongs_to_the_bucket_that_ends_there() -> None:
    histogram = Histogram((1, 10))

    for value in (0.5, 1, 2, 10, 11):
        histogram.observe(value, times=2)

    assert histogram.counts == [4, 4, 2]
    assert (histogram.count, histogram.total) == (10, 49)


def test_the_slowest_are_kept_and_the_others_go() -> None:
    log = SlowLog(slowest_max=3)

    for number, total_ms in enumerate((5, 1, 9, 3, 7), start=1):
        log.note(span(total_ms, first=number), now_ms=1)

    assert [each.total_ms for each in log.slowest(10)] == [9, 7, 5]
    assert [each.total_ms for each in log.slowest(1)] == [9]


def test_the_slowest_of_the_period_before_are_told_and_older_ones_are_not() -> None:
    log = SlowLog()
    log.note(span(50), now_ms=1)
    log.note(span(9), now_ms=2 + log.PERIOD_MS)
    assert [each.total_ms for each in log.slowest(10)] == [50, 9]

    log.note(span(4), now_ms=3 + 2 * log.PERIOD_MS)
    assert [each.total_ms for each in log.slowest(10)] == [9, 4]


def test_the_latest_that_were_late_are_kept_newest_first() -> None:
    log = SlowLog(slowest_max=1, missed_max=2)

    for number in (1, 2, 3):
        log.note(span(number, first=number, late=1), now_ms=1)

    assert [each.first for each in log.missed(10)] == [3, 2]
    assert [each.first for each in log.missed(1)] == [3]


def test_a_message_is_found_in_its_span() -> None:
    log = SlowLog()
    log.note(span(1, first=10, count=5), now_ms=1)

    assert log.find("shop/cart/0", "~c", 14) is not None
    assert log.find("shop/cart/0", "~c", 15) is None
    assert log.find("shop/cart/1", "~c", 14) is None
    assert log.find("shop/cart/0", "~d", 14) is None


def test_a_request_id_is_read_as_it_was_written() -> None:
    for source in ("~3fb2", "shop/cart/7"):
        assert parse_request_id(request_id("a/b/3", source, 12)) == ("a/b/3", source, 12)


@pytest.mark.parametrize("text", ["", "a/b/3", "a/b/3@~c", "a/b/3@~c:", "a/b/3@~c:x", "~c:1"])
def test_what_is_no_request_id_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="allowed: app/function/3@source:number"):
        parse_request_id(text)


class Left:
    def __init__(self, consumed: int) -> None:
        self.counters = Counters()
        self.counters.consumed = consumed
        self.refusals = {"queue": 2}


def test_what_a_partition_has_counted_stays_when_it_leaves() -> None:
    telemetry = Telemetry()

    telemetry.partition_left("shop/cart", Left(consumed=3))
    telemetry.partition_left("shop/cart", Left(consumed=4))

    assert telemetry.left["shop/cart"]["consumed"] == 7
    assert telemetry.left_refusals["shop/cart", "queue"] == 4
