"""Which windows a message is in, and what declarations are refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet import (
    App,
    Context,
    Count,
    Fields,
    List,
    Merged,
    RejectedError,
    SessionWindow,
    SlidingWindow,
    Sum,
    TumblingWindow,
    Window,
)
from sublet.functions.app import functions_of
from sublet.functions.windows import watermark_ms_of

times = st.integers(-(10**13), 10**13)


@given(times, st.integers(1, 10**6), st.integers(0, 10**6))
def test_tumbling_windows_cover_each_time_once(at_ms: int, size_ms: int, offset_ms: int) -> None:
    (window,) = TumblingWindow(size_ms, offset=offset_ms).windows_of(at_ms)

    assert window.start_ms <= at_ms < window.end_ms
    assert window.end_ms - window.start_ms == size_ms
    assert (window.start_ms - offset_ms) % size_ms == 0


@given(times, st.integers(1, 1000), st.integers(1, 1000), st.integers(0, 1000))
def test_a_message_is_in_all_sliding_windows_that_cover_it(
    at_ms: int, size_ms: int, slide_ms: int, offset_ms: int
) -> None:
    slide_ms = min(slide_ms, size_ms)
    spec = SlidingWindow(size_ms, slide_ms, offset=offset_ms)

    expected = [
        Window(start_ms, start_ms + size_ms)
        for start_ms in range(at_ms - size_ms - slide_ms, at_ms + slide_ms)
        if (start_ms - offset_ms) % slide_ms == 0 and start_ms <= at_ms < start_ms + size_ms
    ]
    assert spec.windows_of(at_ms) == expected


def test_a_session_begins_as_long_as_its_gap() -> None:
    assert SessionWindow("5s").windows_of(100) == [Window(100, 5_100)]


def test_time_is_the_messages_own_if_it_is_told_where() -> None:
    assert TumblingWindow("1s").time == "ingestion"
    assert TumblingWindow("1s", event_time="at").time == "event"
    assert TumblingWindow("1s", time="processing").time == "processing"


@dataclass
class Reading:
    at: Any


@pytest.mark.parametrize(
    ("at", "expected_ms"),
    [(17, 17), (17.9, 17), (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 1_000), (-5, -5)],
)
def test_event_time_is_a_field_or_a_function(at: object, expected_ms: int) -> None:
    by_name = TumblingWindow("1s", event_time="at")
    assert by_name.event_time_of(Reading(at)) == expected_ms
    assert by_name.event_time_of({"at": at}) == expected_ms
    assert TumblingWindow("1s", event_time=lambda m: m[1]).event_time_of([0, at]) == expected_ms


@pytest.mark.parametrize(
    "message",
    [
        {},
        None,
        Reading(None),
        Reading("noon"),
        Reading(True),
        Reading(float("nan")),
        Reading(2**61),
        Reading(datetime(2026, 1, 1)),  # noqa: DTZ001  # Without a time zone on purpose.
    ],
)
def test_a_message_without_a_time_is_refused(message: object) -> None:
    with pytest.raises(RejectedError, match="event time"):
        TumblingWindow("1s", event_time="at").event_time_of(message)


@pytest.mark.parametrize("time", ["noon", True, float("inf"), 2**61, datetime(2026, 1, 1)])  # noqa: DTZ001
def test_a_watermark_that_is_no_time_is_refused(time: object) -> None:
    with pytest.raises(RejectedError, match="watermark"):
        watermark_ms_of(time)


def test_a_watermark_is_a_number_or_a_datetime() -> None:
    assert watermark_ms_of(5) == 5
    assert watermark_ms_of(5.9) == 5
    assert watermark_ms_of(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == 1_000


@pytest.mark.parametrize(
    ("declare", "refusal"),
    [
        (lambda: TumblingWindow(0), "size is 0; allowed: whole milliseconds, 1 or more"),
        (lambda: TumblingWindow("1.5ms"), "whole milliseconds"),
        (lambda: TumblingWindow("1s", time="noon"), "allowed: 'event', 'ingestion', 'processing'"),
        (lambda: TumblingWindow("1s", time="event"), "event time needs event_time"),
        (lambda: TumblingWindow("1s", time="processing", event_time="at"), "for time='event'"),
        (lambda: TumblingWindow("1s", lateness="1s"), "nothing is late in ingestion time"),
        (lambda: TumblingWindow("1s", open_max=0), "open_max is 0; allowed: 1 or more"),
        (lambda: TumblingWindow("1s", late_egress=""), "late_egress is empty"),
        (lambda: SlidingWindow("1s", "2s"), "slide is '2s'; allowed: at most the size"),
        (lambda: SlidingWindow("1h", "1s"), "would be in 3600 windows; allowed: 1000"),
        (lambda: SessionWindow(0), "gap is 0"),
    ],
)
def test_a_window_that_cannot_be_is_refused(declare: Any, refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal.replace("(", r"\(")):
        declare()


def declare(**options: Any) -> Any:
    app = App("app")

    @app.function(**options)
    def handle(ctx: Context, message: int) -> None: ...

    return handle


EVENTS = TumblingWindow("1s", event_time="at")


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"window": "10s"}, "allowed: TumblingWindow"),
        ({"window": EVENTS, "kind": "stateless"}, "allowed: kind='keyed'"),
        ({"window": EVENTS, "batch": "key"}, "batch=False"),
        ({"window": SessionWindow("1s"), "state": int}, "sessions merge"),
        ({"window": SessionWindow("1s"), "state": List(int)}, "sessions merge"),
        ({"window": SessionWindow("1s"), "state": Fields(n=Sum(), l=List(int))}, "sessions merge"),
        ({"window": TumblingWindow("1s"), "upstream": ["a"]}, "upstream is about watermarks"),
        ({"window": TumblingWindow("1s"), "idle_after": "1m"}, "idle_after is about watermarks"),
        ({"upstream": "app/parse"}, "allowed: a list"),
        ({"upstream": [7]}, "allowed: functions and sources"),
        ({"upstream": ["~client"]}, "allowed: functions and sources"),
        ({"upstream": [declare(window=TumblingWindow("1s"))]}, "tells no watermarks"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(options: dict[str, Any], refusal: str) -> None:
    with pytest.raises((TypeError, ValueError), match=refusal):
        declare(**options)


@pytest.mark.parametrize(
    "state",
    [None, Sum(), Count(), Merged(int, zero=0, merge=max), Fields(total=Sum(), count=Count())],
)
def test_sessions_take_states_that_merge_and_none(state: object) -> None:
    assert declare(window=SessionWindow("1s"), state=state).window.merges


def test_upstream_names_functions_and_sources() -> None:
    parse = declare()
    function = declare(window=EVENTS, upstream=[parse, "other/f", "gateway"])

    assert function.upstream_functions == ["app/handle", "other/f"]
    assert function.upstream_sources == ["gateway"]


def test_a_windowed_function_can_be_called_as_the_plain_function_that_it_is() -> None:
    app = App("app")

    @app.function(window=EVENTS)
    def double(ctx: object, message: int) -> int:
        return 2 * message

    assert double(None, 4) == 8


def test_on_close_belongs_to_windows_and_is_declared_once() -> None:
    with pytest.raises(ValueError, match="has no windows"):
        declare().on_close(lambda ctx: None)
    function = declare(window=EVENTS)
    with pytest.raises(TypeError, match="one argument"):
        function.on_close(lambda ctx, state: None)

    async def waits(ctx: object) -> None: ...

    with pytest.raises(TypeError, match="plain `def`"):
        function.on_close(waits)
    function.on_close(lambda ctx: None)
    with pytest.raises(ValueError, match="declared twice"):
        function.on_close(lambda ctx: None)


@pytest.mark.parametrize(
    ("upstream_of_one", "upstream_of_other", "refusal"),
    [
        ("app/other", "app/one", "is upstream of itself"),
        ("app/one", "", "is upstream of itself"),
        ("app/gone", "", "app/gone, which does not exist; known: app/one, app/other"),
        ("app/clock", "", "windows of ingestion time"),
    ],
)
def test_nobody_waits_for_watermarks_that_cannot_come(
    upstream_of_one: str, upstream_of_other: str, refusal: str
) -> None:
    app = App("app")

    @app.function(upstream=[upstream_of_one])
    def one(ctx: Context) -> None: ...

    @app.function(upstream=[upstream_of_other] if upstream_of_other else [])
    def other(ctx: Context) -> None: ...

    if upstream_of_one == "app/clock":

        @app.function(window=TumblingWindow("1s"))
        def clock(ctx: Context) -> None: ...

    with pytest.raises(ValueError, match=refusal):
        functions_of([app])
