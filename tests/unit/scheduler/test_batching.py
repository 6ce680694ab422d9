"""When what waits is worth a run, decided by itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sublet.functions.app import App, Function
from sublet.scheduler.batching import (
    FIXED_MS_MIN,
    TRIED_EVERY,
    WAIT_MS_MAX,
    AdaptiveBatching,
    FixedBatching,
    FrameTurns,
    batching_of,
)
from tests.unit.partition.harness import make_function


def test_a_fixed_batch_waits_until_it_is_full() -> None:
    fixed = FixedBatching(10, 20.0)

    assert fixed.wait_ms(9, 0.0, 0.0) == 20
    assert fixed.wait_ms(10, 0.0, 0.0) == 0


def test_a_fixed_batch_waits_no_longer_than_its_window() -> None:
    fixed = FixedBatching(10, 20.0)

    assert fixed.wait_ms(1, 15.0, 0.0) == 5
    assert fixed.wait_ms(1, 20.0, 0.0) <= 0


def test_a_window_needs_no_size() -> None:
    assert FixedBatching(None, 20.0).wait_ms(10_000, 1.0, 0.0) == 19


class Costs:
    """All runs cost so much besides their messages."""

    def __init__(self, fixed_ms: float) -> None:
        self.value = fixed_ms

    def fixed_ms(self, function: Function) -> float:
        return self.value


def fed(fixed_ms: float, *, each_ms: float, **options: Any) -> AdaptiveBatching:
    """Return what has seen one message in so many ms until just now, which is 1,000."""
    batching = AdaptiveBatching(make_function(**options), Costs(fixed_ms))
    for now_ms in range(10, 1_001, 10):
        for _ in range(round(now_ms / each_ms) - round((now_ms - 10) / each_ms)):
            batching.arrived(1)
        batching.wait_ms(1, 0.0, float(now_ms))
    return batching


def test_a_single_message_never_waits() -> None:
    for fixed_ms in (0.1, 2.0, 50.0, 5_000.0):
        batching = AdaptiveBatching(make_function(), Costs(fixed_ms))
        batching.arrived(1)

        assert batching.wait_ms(1, 0.0, 1_000.0) == 0


def test_below_one_message_in_the_time_of_a_run_nobody_waits() -> None:
    assert fed(2.0, each_ms=2.5).wait_ms(1, 0.0, 1_000.0) == 0


def test_above_it_a_batch_gathers_what_comes_in_the_time_of_a_run() -> None:
    batching = fed(2.0, each_ms=0.1)

    assert batching.wait_ms(1, 0.0, 1_000.0) == pytest.approx(1.9, abs=0.1)
    assert batching.wait_ms(15, 0.0, 1_000.0) == pytest.approx(0.5, abs=0.1)
    assert batching.wait_ms(21, 0.0, 1_000.0) == 0


def test_callers_that_come_back_together_are_waited_for() -> None:
    batching = fed(2.0, each_ms=0.05)
    batching.ended(30, 30, 1_000.0)

    assert batching.wait_ms(45, 1.0, 1_000.5) == pytest.approx(1.5)
    assert batching.wait_ms(60, 1.5, 1_001.0) == 0


def test_callers_that_come_back_are_waited_for_no_longer_than_a_run_takes() -> None:
    batching = fed(2.0, each_ms=0.05)
    batching.ended(30, 30, 1_000.0)

    assert batching.wait_ms(45, 2.0, 1_002.0) == 0


def test_callers_who_never_come_back_are_not_waited_for_any_more() -> None:
    batching = fed(2.0, each_ms=0.05)
    waits = []
    for _ in range(TRIED_EVERY - 1):
        batching.ended(30, 30, 1_000.0)
        waits.append(batching.wait_ms(45, 0.0, 1_000.0))
        batching.wait_ms(45, 0.0, 1_002.0)

    assert waits[0] > 0
    assert waits[-1] == 0
    batching.ended(30, 30, 1_000.0)
    assert batching.wait_ms(45, 0.0, 1_000.0) > 0


def test_cheap_runs_never_wait() -> None:
    assert fed(FIXED_MS_MIN / 2, each_ms=0.01).wait_ms(1, 0.0, 1_000.0) == 0


def test_nobody_waits_longer_than_the_bound() -> None:
    batching = fed(200.0, each_ms=1.0)

    assert batching.wait_ms(1, 0.0, 1_000.0) == WAIT_MS_MAX
    assert batching.wait_ms(1, 15.0, 1_000.0) == WAIT_MS_MAX - 15
    assert batching.wait_ms(1, 25.0, 1_000.0) <= 0


def test_what_came_long_ago_is_not_waited_for() -> None:
    assert fed(2.0, each_ms=0.1).wait_ms(1, 0.0, 2_000.0) == 0


def test_runs_that_wait_for_something_else_leave_the_core_to_others() -> None:
    blocking = fed(2.0, each_ms=0.1, blocking=True, concurrency=4)

    assert blocking.wait_ms(1, 0.0, 1_000.0) == pytest.approx(0.4, abs=0.1)


def test_what_a_function_declares_comes_first() -> None:
    assert batching_of(make_function(), None) is None
    assert isinstance(batching_of(make_function(), Costs(1.0)), AdaptiveBatching)
    assert batching_of(make_function(batch_size=1), Costs(1.0)) is None
    declared = batching_of(make_function(batch_size=2, batch_wait="20ms"), Costs(1.0))
    assert isinstance(declared, FixedBatching)
    assert declared.wait_ms(1, 0.0, 0.0) == 20


def test_frames_that_come_alone_run_at_once() -> None:
    turns = FrameTurns()

    for _ in range(100):
        assert turns.arrived()
        turns.ended()


def test_where_many_frames_come_in_a_turn_they_run_together() -> None:
    turns = FrameTurns()
    for _ in range(10):
        for _ in range(3):
            turns.arrived()
        turns.ended()

    assert not turns.arrived()


def test_when_they_come_alone_again_they_run_at_once_again() -> None:
    turns = FrameTurns()
    for _ in range(10):
        for _ in range(3):
            turns.arrived()
        turns.ended()
    for _ in range(30):
        turns.arrived()
        turns.ended()

    assert turns.arrived()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; allowed: 1 or more"),
        ({"batch_size": 20}, "batch_size is 20 without batch_wait"),
        ({"batch_size": 20, "batch_wait": "2ms", "batch_size_max": 10}, "allowed: 1..10"),
        ({"batch_wait": "2m"}, "batch_wait is 120000 ms; allowed: 0..60000 ms"),
        ({"batch_wait": timedelta(minutes=2)}, "batch_wait is 120000 ms"),
        ({"batch_wait": "soon"}, "soon"),
    ],
)
def test_a_batch_that_cannot_be_is_refused_when_it_is_declared(
    options: dict[str, Any], message: str
) -> None:
    app = App("app")

    with pytest.raises(ValueError, match=message):

        @app.function(**options)
        def f(ctx: Any) -> None: ...
