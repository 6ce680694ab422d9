"""What a worker remembers of its messages' times: bounds, order, and who was slow or late."""

from __future__ import annotations

from concurrent.futures import Future

import msgspec
import pytest
import structlog

from sublet.runtime.client.channel import Channel
from sublet.runtime.client.segment import ANY, Segment
from sublet.runtime.config.limits import Limits
from sublet.runtime.observability.telemetry import (
    Histogram,
    PartitionTimes,
    SlowLog,
    SpanTimes,
    Spells,
    Telemetry,
    parse_request_id,
    request_id,
)
from sublet.runtime.observability.throttled_log import SLOW_COMMIT_MS, Notices
from sublet.runtime.partition.model.effects import Counters
from sublet.runtime.partition.model.work import Failure, QueuedMessage, RunResult, Work
from sublet.runtime.protocol.frames import ErrorInfo, Kind, Refused
from sublet.runtime.protocol.messages import Message
from tests.unit.partition.harness import Owner, batch


def span(total_ms: float, *, first: int = 1, count: int = 1, late: int = 0) -> SpanTimes:
    return SpanTimes("shop/cart", "shop/cart/0", "~c", first, count, 0, 0, total_ms, 0, 0, 0, late)


def test_zeros_that_were_added_without_a_call_are_in_the_first_bucket() -> None:
    histogram = Histogram((1, 10))
    histogram.observe(5, 2)
    histogram.zeros += 3

    assert (histogram.counts, histogram.count, histogram.total) == ([3, 2, 0], 5, 10)


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


# What was lent


def lent(count: int, *, arrived_ms: float, deadline_ms: float | None = None) -> Work:
    payload = msgspec.Raw(b"\xc0")
    return Work(
        1,
        waiting=[
            QueuedMessage(
                Message("~c", number, Kind.CALL, "k", payload, number),
                deadline_ms,
                arrived_ms=arrived_ms,
            )
            for number in range(1, count + 1)
        ],
    )


def came_to(elapsed_ms: float, *, home: set[int] | None = None) -> RunResult:
    result = RunResult()
    result.elapsed_ms = elapsed_ms
    result.unfinished = home or set()
    return result


def test_a_lent_message_was_away_from_offer_to_return_but_for_its_run() -> None:
    telemetry = Telemetry()
    times = PartitionTimes(telemetry, "shop/cart/0", "shop/cart")
    work = lent(1, arrived_ms=100, deadline_ms=140)
    work.loading_ms = 4

    times.returned(work, came_to(12), offered_ms=110, now_ms=140, wall_ms=1_000)
    times.sealed(1)
    times.committed(now_ms=145)

    (told,) = telemetry.slow.missed(10)
    assert (told.queue_ms, told.state_ms, told.away_ms) == (6, 4, 18)
    assert (told.running_ms, told.committing_ms, told.total_ms) == (12, 5, 45)
    function = telemetry.of("shop/cart")
    assert (function.leases.count, function.leases.total) == (1, 30)
    assert (function.stages["away"].count, function.stages["away"].total) == (1, 18)
    assert (function.messages, function.late, function.batch_size.count) == (1, 1, 1)


def test_what_comes_home_unrun_is_not_told_before_it_has_run() -> None:
    telemetry = Telemetry()
    times = PartitionTimes(telemetry, "shop/cart/0", "shop/cart")

    times.returned(lent(3, arrived_ms=0), came_to(1, home={0, 2}), 0, 5, 0)
    times.sealed(1)
    times.committed(now_ms=6)

    assert [each.first for each in telemetry.slow.slowest(10)] == [2]
    assert telemetry.of("shop/cart").messages == 1


def test_a_run_that_seems_longer_than_its_lease_took_all_of_it() -> None:
    telemetry = Telemetry()
    times = PartitionTimes(telemetry, "shop/cart/0", "shop/cart")

    times.returned(lent(1, arrived_ms=0), came_to(50), offered_ms=10, now_ms=30, wall_ms=0)
    times.sealed(1)
    times.committed(now_ms=30)

    (told,) = telemetry.slow.slowest(10)
    assert (told.queue_ms, told.away_ms, told.running_ms) == (10, 0, 20)


# What the log says


def test_a_spell_is_told_when_it_begins_and_then_now_and_then() -> None:
    spells = Spells()

    assert spells.note("full", 0) == 0
    assert [spells.note("full", at_ms) for at_ms in (1, 5_000, 9_999)] == [None] * 3
    assert spells.note("full", 10_000, times=5) == 8
    assert spells.note("full", 10_001) is None
    assert spells.note("broken", 10_001) == 0


def test_what_was_quiet_for_long_begins_anew() -> None:
    spells = Spells()
    spells.note("full", 0)

    assert spells.note("full", spells.OVER_MS) == 1
    assert spells.note("full", 2 * spells.OVER_MS + 1) == 0


def test_so_many_spells_are_remembered_and_no_more() -> None:
    spells = Spells()
    for number in range(spells.KEPT_MAX + 1):
        spells.note(f"spell {number}", 0)

    assert spells.note(f"spell {spells.KEPT_MAX}", 1) is None
    assert spells.note("spell 0", 1) == 0


def fault(error: Exception) -> Failure:
    told = ErrorInfo("handler_failed", f"f raised {error}")
    return Failure(told, True, error, lambda: "Traceback …", f"{type(error).__name__} f.py:3")


def test_a_handlers_traceback_is_told_once_a_spell() -> None:
    now_ms = 0.0
    notices = Notices(lambda: now_ms)
    error = ValueError("no")
    with structlog.testing.capture_logs() as told:
        notices.failed("a/f", "a/f/0", [fault(error), fault(error)], 0)
        now_ms = 10_000.0
        notices.failed("a/f", "a/f/0", [fault(error)], 0)

    first, second = told
    assert (first["event"], first["stack"]) == ("a handler failed", "Traceback …")
    assert "stack" not in second
    assert second["times"] == 2


def test_a_refusal_that_a_handler_means_is_not_told() -> None:
    with structlog.testing.capture_logs() as told:
        refusal = Failure(ErrorInfo("rejected", "sold out"), False)
        Notices(lambda: 0.0).failed("a/f", "a/f/0", [refusal], 0)

    assert told == []


def test_dead_letters_full_queues_and_a_slow_store_are_told() -> None:
    notices = Notices(lambda: 0.0)
    with structlog.testing.capture_logs() as told:
        notices.failed("a/f", "a/f/0", [], 1)
        full = ErrorInfo("overloaded", "the queue of a/f/0 is full", 50)
        notices.refused("a/f", Refused("a/f/0", "~c", 1, full))
        notices.refused("a/f", Refused("a/f/0", "~c", 1, ErrorInfo("gap", "expected 1")))
        notices.group_committed(SLOW_COMMIT_MS, 1)
        notices.group_committed(SLOW_COMMIT_MS + 1, 3)

    assert [each["event"] for each in told] == [
        "a message failed permanently; see `sublet dead list`",
        "refusing messages",
        "the store is slow",
    ]


# Where it is counted


def test_a_partition_counts_refused_messages_by_reason() -> None:
    owner = Owner(limits=Limits(queue_max=2))
    owner.arrive(1, ["a"])
    owner.arrive(2, ["b", "c"])
    owner.arrive(4, ["d", "e"])
    full = ErrorInfo("overloaded", "no room", 50)
    owner.partition.refuse(batch(4, ["d"]), "in_flight", full, owner.now_ms)

    assert owner.partition.refusals == {"queue": 2, "in_flight": 1}
    assert owner.partition.counters.refused == 3


# What a client knows


def test_a_batch_tells_how_long_its_first_message_has_waited() -> None:
    segment = Segment(Kind.CALL, None, ANY, born_ms=100.0)
    segment.add("k", b"\x01", Future())

    assert segment.batch("a/f/0", "~c", None, 130.5).age_ms == 30
    assert segment.batch("a/f/0", "~c", None, 99.0).age_ms == 0
    assert Segment(Kind.CALL, None, ANY).batch("a/f/0", "~c", None, 99.0).age_ms == 0


def test_a_message_is_found_by_its_number_after_its_segment_was_cut() -> None:
    channel = Channel("a/f/0", "~c")
    segment = Segment(Kind.CALL, None, ANY, born_ms=100.0)
    for key in "abcde":
        segment.add(key, b"\x01", Future())
    channel.unsent.append(segment)
    assert segment.place(4) == (None, 0)

    channel.cut_next(3)
    channel.cut_next(1)
    while channel.has_work:
        channel.send_next()

    assert [segment.place(index) for index in range(5)] == [
        (channel, number) for number in range(1, 6)
    ]
