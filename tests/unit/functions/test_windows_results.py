"""Windowed results equal a batch computation: out of order, late, after failures and takeovers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet import (
    App,
    Context,
    Retry,
    RetryLaterError,
    SessionWindow,
    SlidingWindow,
    Sum,
    TumblingWindow,
)
from sublet.functions.windows import WindowSpec
from sublet.testing import Harness
from tests.unit.functions.windows_model import (
    Event,
    batch_results,
    final_results,
    taken_by_watermark,
)

END = 10**12

LATENESS_MS = 7


def specs(lateness: int) -> list[WindowSpec]:
    return [
        TumblingWindow(10, event_time="at", lateness=lateness),
        SlidingWindow(10, 3, event_time="at", lateness=lateness),
        SessionWindow(6, event_time="at", lateness=lateness),
    ]


def sums(spec: WindowSpec, *, waits: bool = False, upstream: Any = (), partitions: int = 2) -> App:
    """Return an app with one windowed sum, which emits (key, start, end, sum)."""
    app = App("app", partitions=partitions)
    retry = Retry(attempts=10, backoff="20ms")
    if waits:

        @app.function(window=spec, state=Sum(), retry=retry, upstream=upstream)
        async def total(ctx: Context, event: Event) -> None:
            ctx.state.add(event.n)
            if event.n % 3 == 0:
                await asyncio.sleep(0.005 * event.n)

        @total.on_close
        async def told(ctx: Context) -> None:
            if ctx.state.value % 2:
                await asyncio.sleep(0.01)
            ctx.emit("sums", [ctx.key, *ctx.window, ctx.state.value])

    else:

        @app.function(window=spec, state=Sum(), retry=retry, upstream=upstream)
        def total(ctx: Context, event: Event) -> None:
            ctx.state.add(event.n)

        @total.on_close
        def told_at_once(ctx: Context) -> None:
            ctx.emit("sums", [ctx.key, *ctx.window, ctx.state.value])

    return app


events = st.builds(Event, st.sampled_from("abc"), st.integers(-30, 60), st.integers(1, 9))


@pytest.mark.parametrize("lateness", [0, LATENESS_MS])
@pytest.mark.parametrize("kind", [0, 1])
@settings(max_examples=40, deadline=None)
@given(steps=st.lists(events | st.integers(-30, 60) | st.sampled_from(["settle", "crash"])))
def test_late_events_are_told_apart_exactly(kind: int, lateness: int, steps: list[Any]) -> None:
    spec = specs(lateness)[kind]
    with Harness(sums(spec)) as harness:
        for step in steps:
            match step:
                case Event():
                    harness.send("app/total", step.key, step)
                case int():
                    harness.watermark("app/total", step)
                case "settle":
                    harness.settle()
                case "crash":
                    harness.crash()
        harness.watermark("app/total", END)

        results, late = taken_by_watermark(spec, [each for each in steps if type(each) is not str])
        assert final_results(spec, harness.emitted("sums")) == results
        assert sorted(harness.emitted("late", value_type=Event)) == sorted(late)
        assert harness.states("app/total") == {}
        harness.assert_idle()


@st.composite
def histories(draw: st.DrawFn, sources: int = 1) -> list[Any]:
    """Events never further behind their source's watermark than windows wait for them."""
    told = [-50] * sources
    steps: list[Any] = []
    for _ in range(draw(st.integers(0, 40))):
        source = draw(st.integers(0, sources - 1))
        what = draw(st.integers(0, 9))
        if what < 5:
            at = told[source] - LATENESS_MS + draw(st.integers(0, 40))
            steps.append(Event(draw(st.sampled_from("abcd")), at, draw(st.integers(1, 9))))
        elif what < 7:
            told[source] += draw(st.integers(1, 15))
            steps.append((source, told[source]))
        else:
            faults = ["settle", "advance", "crash", "crash at commit", "fail", "fail commit"]
            steps.append(draw(st.sampled_from(faults)))
    return steps


def carry_out(harness: Harness, step: Any, first: str) -> None:
    match step:
        case Event():
            harness.send(first, step.key, step)
        case (source, watermark):
            harness.watermark(first, watermark, source=f"source{source}")
        case "settle":
            harness.settle()
        case "advance":
            harness.advance("10ms")
        case "crash":
            harness.crash()
        case "crash at commit":
            harness.crash(at_commit=2, applied=True)
        case "fail":
            # Not any exception: their tracebacks would be written.
            harness.fail_next("app/total", RetryLaterError("again"), times=2, after=True)
        case "fail commit":
            harness.fail_commits()


def finish(harness: Harness, first: str, sources: int) -> None:
    for source in range(sources):
        harness.watermark(first, END, source=f"source{source}")
    harness.advance("10s")
    harness.assert_idle()


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "waits"])
@pytest.mark.parametrize("kind", [0, 1, 2], ids=["tumbling", "sliding", "session"])
@settings(max_examples=40, deadline=None)
@given(history=histories(sources=2), seed=st.integers(0, 3))
def test_results_equal_a_batch_through_failures_and_takeovers(
    kind: int, waits: bool, history: list[Any], seed: int
) -> None:
    spec = specs(LATENESS_MS)[kind]
    app = sums(spec, waits=waits, upstream=["source0", "source1"])
    with Harness(app, seed=seed, strict=False) as harness:
        for step in history:
            carry_out(harness, step, "app/total")
        finish(harness, "app/total", 2)

        expected = batch_results(spec, [each for each in history if isinstance(each, Event)])
        assert final_results(spec, harness.emitted("sums")) == expected
        assert harness.emitted("late") == []
        assert harness.states("app/total") == {}


def punctual(history: list[Any]) -> list[Any]:
    """Return the history without events behind the watermark."""
    told = -50
    steps: list[Any] = []
    for step in history:
        if isinstance(step, Event):
            steps.append(step._replace(at=max(step.at, told)))
        else:
            steps.append(step)
            if isinstance(step, tuple):
                told = step[1]
    return steps


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["tumbling", "sliding", "session"])
@settings(max_examples=40, deadline=None)
@given(history=histories().map(punctual), seed=st.integers(0, 3))
def test_without_lateness_each_window_is_closed_once(
    kind: int, history: list[Any], seed: int
) -> None:
    spec = specs(0)[kind]
    with Harness(sums(spec), seed=seed, strict=False) as harness:
        for step in history:
            carry_out(harness, step, "app/total")
        finish(harness, "app/total", 1)

        closings = [tuple(each) for each in harness.emitted("sums")]
        expected = batch_results(spec, [each for each in history if isinstance(each, Event)])
        assert sorted(closings) == sorted(expected)


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "waits"])
@settings(max_examples=40, deadline=None)
@given(history=histories().map(punctual), seed=st.integers(0, 3))
def test_watermarks_pass_through_functions_behind_all_that_those_send(
    waits: bool, history: list[Any], seed: int
) -> None:
    app = App("app", partitions=2)
    first_spec, second_spec = specs(0)[0], TumblingWindow(30, event_time="at")

    async def parse(ctx: Context, event: Event) -> None:
        if waits and event.n % 2:
            await asyncio.sleep(0.002 * event.n)
        ctx.send("app/total", event.key, event)

    entry = app.function(kind="stateless")(parse)

    @app.function(window=first_spec, state=Sum(), upstream=[entry], retry=Retry(attempts=9))
    async def total(ctx: Context, event: Event) -> None:
        ctx.state.add(event.n)

    @total.on_close
    async def told(ctx: Context) -> None:
        if waits and ctx.state.value % 2:
            await asyncio.sleep(0.01)
        ctx.send(count, "all", Event("all", ctx.window.end_ms - 1, ctx.state.value))

    @app.function(window=second_spec, state=Sum(), upstream=[total])
    def count(ctx: Context, event: Event) -> None:
        ctx.state.add(event.n)

    @count.on_close
    def counted(ctx: Context) -> None:
        ctx.emit("counts", [ctx.key, *ctx.window, ctx.state.value])

    with Harness(app, seed=seed, strict=False) as harness:
        for step in history:
            carry_out(harness, step, "app/parse")
        finish(harness, "app/parse", 1)

        results = batch_results(first_spec, [each for each in history if isinstance(each, Event)])
        sent = [Event("all", end_ms - 1, total) for _, _, end_ms, total in results]
        assert sorted(map(tuple, harness.emitted("counts"))) == sorted(
            batch_results(second_spec, sent)
        )
        assert harness.emitted("late") == []
