"""How windowed functions behave: kinds of time, sources, late messages, failures, bounds."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from sublet import (
    App,
    Context,
    Count,
    Merged,
    RejectedError,
    Retry,
    SessionWindow,
    SlidingWindow,
    Sum,
    TumblingWindow,
    Window,
)
from sublet.functions.windows import WindowSpec
from sublet.runtime.partition.records import watermarks
from sublet.testing import Harness


class Event(NamedTuple):
    at: int
    n: int = 1


def make_app(window: WindowSpec, *, state: Any = None, **options: Any) -> App:
    """One function `app/f` that adds up `n`, and emits what it has come to when a window ends."""
    app = App("app", partitions=1)

    @app.function(window=window, state=state or Sum(), **options)
    def f(ctx: Context, event: Event) -> list[int]:
        ctx.state.add(event.n)
        return [*ctx.window, ctx.state.value]

    @f.on_close
    def told(ctx: Context) -> None:
        ctx.emit("sums", [ctx.key, *ctx.window, ctx.state.value])

    return app


EVENTS = TumblingWindow(10, event_time="at")


def test_the_handler_sees_its_window_and_the_state_in_it() -> None:
    with Harness(make_app(EVENTS)) as harness:
        assert harness.call("app/f", "a", Event(3, 5)) == [0, 10, 5]
        assert harness.call("app/f", "a", Event(13, 6)) == [10, 20, 6]
        assert harness.call("app/f", "a", Event(9, 7)) == [0, 10, 12]
        assert harness.state("app/f", "a") == {Window(0, 10): 12, Window(10, 20): 6}


def test_in_sliding_windows_the_handler_runs_once_for_each() -> None:
    with Harness(make_app(SlidingWindow(10, 5, event_time="at"))) as harness:
        assert harness.call("app/f", "a", Event(7)) == [5, 15, 1]
        assert harness.state("app/f", "a") == {Window(0, 10): 1, Window(5, 15): 1}


def test_a_session_grows_in_both_directions_and_joins_others() -> None:
    with Harness(make_app(SessionWindow(10, event_time="at"))) as harness:
        assert harness.call("app/f", "a", Event(100)) == [100, 110, 1]
        assert harness.call("app/f", "a", Event(120)) == [120, 130, 1]
        assert harness.call("app/f", "a", Event(95)) == [95, 110, 2]
        assert harness.call("app/f", "a", Event(111)) == [111, 130, 2]
        assert harness.call("app/f", "a", Event(109)) == [95, 130, 5]
        harness.watermark("app/f", 129)
        assert harness.emitted("sums") == []
        harness.watermark("app/f", 130)
        assert harness.emitted("sums") == [["a", 95, 130, 5]]


def test_sessions_may_do_without_state() -> None:
    app = App("app", partitions=1)

    @app.function(window=SessionWindow(10, event_time="at"))
    def f(ctx: Context, event: Event) -> None: ...

    @f.on_close
    def told(ctx: Context) -> None:
        ctx.emit("ends", ctx.window.end_ms)

    with Harness(app) as harness:
        harness.send_many("app/f", ["a", "a", "a"], [Event(1), Event(12), Event(5)])
        harness.watermark("app/f", 50)
        assert harness.emitted("ends") == [22]


def test_sessions_merge_by_the_users_own_function() -> None:
    app = App("app", partitions=1)
    longest = Merged(str, zero="", merge=lambda one, other: max(one, other, key=len))

    @app.function(window=SessionWindow(10, event_time="at"), state=longest)
    def f(ctx: Context, event: Event) -> None:
        ctx.state.merge("x" * event.n)

    @f.on_close
    def told(ctx: Context) -> None:
        ctx.emit("longest", ctx.state.get())

    with Harness(app) as harness:
        harness.send_many("app/f", ["a", "a", "a"], [Event(1, 3), Event(18, 5), Event(9, 1)])
        harness.watermark("app/f", 50)
        assert harness.emitted("longest") == ["xxxxx"]


def test_a_late_message_within_the_lateness_closes_the_window_again() -> None:
    spec = TumblingWindow(10, event_time="at", lateness=5)
    with Harness(make_app(spec)) as harness:
        harness.send("app/f", "a", Event(3, 1))
        harness.watermark("app/f", 14)
        assert harness.emitted("sums") == [["a", 0, 10, 1]]
        harness.send("app/f", "a", Event(4, 2))
        harness.send("app/f", "b", Event(4, 7))
        assert harness.emitted("sums")[1:] == [["a", 0, 10, 3], ["b", 0, 10, 7]]
        harness.watermark("app/f", 15)
        harness.settle()
        assert harness.states("app/f") == {}
        assert harness.call("app/f", "a", Event(4, 2)) is None
        assert harness.emitted("late", value_type=Event) == [Event(4, 2)]
        assert len(harness.emitted("sums")) == 3


def test_late_messages_go_where_they_are_told_or_nowhere() -> None:
    for egress, told in (("too-late", 1), (None, 0)):
        spec = TumblingWindow(10, event_time="at", late_egress=egress)
        with Harness(make_app(spec)) as harness:
            harness.watermark("app/f", 100)
            harness.send("app/f", "a", Event(5))
            assert len(harness.emitted("too-late")) == told
            (hosted,) = harness._machine.host.partitions.values()
            assert hosted.partition.counters.too_late == 1
            assert harness.emitted("late") == []


def test_a_message_is_late_only_if_all_its_windows_are_over() -> None:
    with Harness(make_app(SlidingWindow(10, 5, event_time="at"))) as harness:
        harness.watermark("app/f", 12)
        harness.settle()
        assert harness.call("app/f", "a", Event(7)) == [5, 15, 1]
        assert harness.state("app/f", "a") == {Window(5, 15): 1}
        assert harness.emitted("late") == []


def test_windows_of_ingestion_time_are_closed_by_the_clock() -> None:
    with Harness(make_app(TumblingWindow("10s"))) as harness:
        start_ms = harness.now_ms
        harness.send("app/f", "a", Event(0, 1))
        harness.advance("9s")
        harness.send("app/f", "a", Event(0, 2))
        harness.advance("999ms")
        assert harness.emitted("sums") == []
        harness.advance("1ms")
        assert harness.emitted("sums") == [["a", start_ms, start_ms + 10_000, 3]]
        harness.advance("1h")
        assert harness.states("app/f") == {}


@pytest.mark.parametrize("time", ["ingestion", "processing"])
def test_a_message_that_is_tried_again_stays_in_the_window_of_its_arrival(time: Any) -> None:
    spec = TumblingWindow("10s", time=time)
    app = make_app(spec, retry=Retry(attempts=3, backoff="8s"))
    with Harness(app, strict=False) as harness:
        start_ms = harness.now_ms
        harness.fail_next("app/f")
        harness.advance("5s")
        harness.send("app/f", "a", Event(0, 1))
        harness.send("app/f", "b", Event(0, 2))
        harness.advance("6s")
        # The window of ingestion time waits for the message that arrived before its end.
        expected = [] if time == "ingestion" else [["b", start_ms, start_ms + 10_000, 2]]
        assert harness.emitted("sums") == expected
        harness.crash()
        harness.advance("30s")
        later_ms = start_ms if time == "ingestion" else start_ms + 10_000
        assert sorted(harness.emitted("sums")) == [
            ["a", later_ms, later_ms + 10_000, 1],
            ["b", start_ms, start_ms + 10_000, 2],
        ]


def test_the_clock_goes_on_in_another_worker() -> None:
    with Harness(make_app(TumblingWindow("10s", time="processing"))) as harness:
        harness.send("app/f", "a", Event(0))
        harness.settle()
        harness.crash()
        harness.advance("10s")
        assert len(harness.emitted("sums")) == 1


def test_the_source_that_is_furthest_behind_decides() -> None:
    with Harness(make_app(EVENTS, upstream=["x", "y"])) as harness:
        harness.send("app/f", "a", Event(3))
        harness.watermark("app/f", 50, source="x")
        assert harness.emitted("sums") == []
        harness.watermark("app/f", 9, source="y")
        assert harness.emitted("sums") == []
        harness.watermark("app/f", 10, source="y")
        assert len(harness.emitted("sums")) == 1


def test_a_source_that_has_nothing_to_say_is_not_waited_for_until_it_has() -> None:
    with Harness(make_app(EVENTS, upstream=["x", "y"])) as harness:
        harness.send_many("app/f", ["a", "a", "a"], [Event(3), Event(13), Event(23)])
        harness.watermark("app/f", 10, source="x")
        harness.watermark("app/f", None, source="y")
        assert len(harness.emitted("sums")) == 1
        harness.watermark("app/f", 15, source="y")
        harness.watermark("app/f", 30, source="x")
        assert len(harness.emitted("sums")) == 1
        harness.crash()
        harness.watermark("app/f", 20, source="y")
        assert len(harness.emitted("sums")) == 2
        harness.watermark("app/f", None, source="y")
        assert len(harness.emitted("sums")) == 3


def test_a_source_that_is_silent_for_too_long_is_not_waited_for() -> None:
    with Harness(make_app(EVENTS, upstream=["x", "y"], idle_after="10s")) as harness:
        harness.send("app/f", "a", Event(3))
        harness.watermark("app/f", 10, source="x")
        harness.advance("9s")
        harness.watermark("app/f", 10, source="x")
        assert harness.emitted("sums") == []
        harness.advance("2s")
        assert len(harness.emitted("sums")) == 1


def test_functions_downstream_do_not_wait_for_one_whose_sources_are_all_closed() -> None:
    app = App("app", partitions=2)

    @app.function(kind="stateless")
    def left(ctx: Context, event: Event) -> None:
        ctx.send("app/f", "a", event)

    @app.function(kind="stateless")
    def right(ctx: Context, event: Event) -> None:
        ctx.send("app/f", "a", event)

    @app.function(window=EVENTS, state=Count(), upstream=[left, right])
    def f(ctx: Context, event: Event) -> None:
        ctx.state.increment()

    @f.on_close
    def told(ctx: Context) -> None:
        ctx.emit("counts", ctx.state.value)

    with Harness(app) as harness:
        harness.send("app/left", "", Event(3))
        harness.watermark("app/left", 10)
        assert harness.emitted("counts") == []
        harness.watermark("app/right", None)
        assert harness.emitted("counts") == [1]


def test_handlers_may_ask_how_far_time_has_come() -> None:
    app = App("app", partitions=1)

    @app.function(window=EVENTS)
    def f(ctx: Context, event: Event) -> int:
        return ctx.watermark_ms

    with Harness(app) as harness:
        harness.watermark("app/f", 17)
        harness.watermark("app/f", 12)
        assert harness.call("app/f", "a", Event(20)) == 17


def test_what_a_failed_message_did_to_windows_is_taken_back() -> None:
    with Harness(make_app(EVENTS)) as harness:
        harness.call("app/f", "a", Event(3, 5))
        harness.fail_next("app/f", RejectedError("no"), after=True)
        with pytest.raises(RejectedError):
            harness.call("app/f", "a", Event(13, 6))
        assert harness.state("app/f", "a") == {Window(0, 10): 5}
        harness.watermark("app/f", 100)
        assert harness.emitted("sums") == [["a", 0, 10, 5]]


def test_a_message_without_a_time_is_refused() -> None:
    app = App("app", partitions=1)

    @app.function(window=EVENTS)
    def f(ctx: Context, event: Any) -> None: ...

    with Harness(app) as harness, pytest.raises(RejectedError, match="no event time"):
        harness.call("app/f", "a", {"when": 5})


def test_an_end_that_fails_for_good_is_a_dead_letter_and_keeps_its_window() -> None:
    app = App("app", partitions=1)

    @app.function(window=EVENTS, state=Sum(), retry=Retry(attempts=2))
    def f(ctx: Context, event: Event) -> None:
        ctx.state.add(event.n)

    @f.on_close
    def told(ctx: Context) -> None:
        raise RejectedError("never")

    with Harness(app) as harness:
        harness.send("app/f", "a", Event(3))
        harness.watermark("app/f", 10)
        (letter,) = harness.dead_letters()
        assert (letter.function, letter.key) == ("app/f", "a")
        assert "never" in str(letter.error)
        assert harness.state("app/f", "a") == {Window(0, 10): 1}
        harness.assert_idle()


def test_without_on_close_windows_just_end() -> None:
    app = App("app", partitions=1)

    @app.function(window=EVENTS, state=Sum())
    def f(ctx: Context, event: Event) -> None:
        ctx.state.add(event.n)

    with Harness(app) as harness:
        harness.send("app/f", "a", Event(3))
        harness.watermark("app/f", 10)
        assert harness.states("app/f") == {}


def test_a_key_cannot_have_more_open_windows_than_allowed() -> None:
    with Harness(make_app(TumblingWindow(10, event_time="at", open_max=2))) as harness:
        harness.send_many("app/f", ["a", "a"], [Event(3), Event(13)])
        with pytest.raises(Exception, match="2 open windows; allowed: 2"):
            harness.call("app/f", "a", Event(23))
        harness.watermark("app/f", 10)
        harness.settle()
        assert harness.call("app/f", "a", Event(23)) == [20, 30, 1]


def test_more_windows_end_at_once_than_are_closed_or_read_at_once() -> None:
    count = 3 * watermarks.CLOSINGS_MAX + 7
    with Harness(make_app(EVENTS), runs_max=10 * count) as harness:
        harness.send_many("app/f", [f"k{each}" for each in range(count)], [Event(3)] * count)
        harness.settle()
        harness.crash()
        harness.watermark("app/f", 10)
        harness.settle()
        assert len(harness.emitted("sums")) == count
        assert harness.states("app/f") == {}


def test_windows_far_in_the_future_wait_in_the_store() -> None:
    day_ms = 24 * 3_600_000
    with Harness(make_app(TumblingWindow("1d", event_time="at"))) as harness:
        harness.send_many(
            "app/f",
            [f"k{each}" for each in range(30)],
            [Event(each * day_ms) for each in range(30)],
        )
        for day in range(1, 31):
            harness.watermark("app/f", day * day_ms)
            assert len(harness.emitted("sums")) == day


@pytest.mark.parametrize("source", ["app/f/0", "~client"])
def test_a_source_cannot_be_named_as_a_partition_or_a_client(source: str) -> None:
    with (
        Harness(make_app(EVENTS)) as harness,
        pytest.raises(RejectedError, match="cannot be named"),
    ):
        harness.watermark("app/f", 10, source=source)


def test_windows_that_end_by_the_clock_take_no_watermarks() -> None:
    with (
        Harness(make_app(TumblingWindow("1s"))) as harness,
        pytest.raises(RejectedError, match="ingestion-time windows close by the clock"),
    ):
        harness.watermark("app/f", 10)
