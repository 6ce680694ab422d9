"""Functions with fixed batches in the harness: their waits take virtual time."""

from __future__ import annotations

from sublet import App, Context
from sublet.testing import Harness


def make_app() -> App:
    app = App("app")

    @app.function(state=int, partitions=1, batch_size=3, batch_wait="20ms")
    def add(ctx: Context, n: int) -> int:
        ctx.state.set(ctx.state.get() + n)
        return int(ctx.state.get())

    return app


def test_a_call_is_answered_when_its_window_is_over() -> None:
    with Harness(make_app()) as harness:
        before_ms = harness.now_ms

        assert harness.call("app/add", "k", 3) == 3
        assert harness.now_ms == before_ms + 20


def test_a_full_batch_is_answered_at_once() -> None:
    with Harness(make_app()) as harness:
        before_ms = harness.now_ms

        assert harness.call_many("app/add", ["a", "b", "c"], [1, 2, 3]) == [1, 2, 3]
        assert harness.now_ms == before_ms


def test_what_waits_for_a_batch_runs_when_time_passes() -> None:
    with Harness(make_app()) as harness:
        harness.send("app/add", "k", 3)
        harness.settle()
        assert harness.state("app/add", "k") == 0

        harness.advance("20ms")

        assert harness.state("app/add", "k") == 3
