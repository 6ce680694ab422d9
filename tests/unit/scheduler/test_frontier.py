"""Deadlines of windowed messages count from when their window can close."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.scheduler.frontier import (
    ClockFrontier,
    EventTimeFrontier,
    ProgressFit,
    window_end_ms,
)


@pytest.mark.parametrize(
    ("progress_ms", "end_ms"), [(0, 10), (9.5, 10), (10, 20), (19, 20), (-1, 0)]
)
def test_progress_counts_up_to_the_end_of_its_window(progress_ms: float, end_ms: float) -> None:
    assert window_end_ms(progress_ms, 10) == end_ms


def test_results_of_windows_as_long_as_ours_wait_for_nobody() -> None:
    assert window_end_ms(20, 10, sender_slide_ms=10) == 20
    assert window_end_ms(20, 10, sender_slide_ms=100) == 20
    assert window_end_ms(20, 100, sender_slide_ms=10) == 100


def test_a_function_without_windows_of_known_length_is_regular() -> None:
    assert window_end_ms(7, None) == 7
    assert EventTimeFrontier(None).frontier_ms(7.0, 100.0) == 100.0
    assert ClockFrontier(None).frontier_ms(7.0, 100.0) == 100.0


@given(
    start_ms=st.integers(0, 2**41),
    delay_ms=st.floats(-1e5, 1e5),
    speed=st.floats(0.1, 100),
    count=st.integers(2, 50),
    ahead_ms=st.integers(0, 100_000),
)
def test_the_fit_finds_a_steady_stream(
    start_ms: int, delay_ms: float, speed: float, count: int, ahead_ms: int
) -> None:
    fit = ProgressFit()
    for step in range(count):
        fit.learn(start_ms + 1000 * step, 5_000.0 + delay_ms + 1000 * step / speed)

    expected_ms = 5_000.0 + delay_ms + ahead_ms / speed
    assert fit.arrival_ms(start_ms + ahead_ms) == pytest.approx(expected_ms, rel=1e-6, abs=1)


def test_nothing_is_inferred_from_one_watermark_nor_from_equal_ones() -> None:
    fit = ProgressFit()
    assert fit.arrival_ms(10) is None
    fit.learn(10, 100)
    assert fit.arrival_ms(20) is None
    fit.learn(10, 200)
    assert fit.arrival_ms(20) is None


def test_nothing_is_inferred_from_watermarks_that_go_back() -> None:
    fit = ProgressFit()
    fit.learn(20, 100)
    fit.learn(10, 200)
    assert fit.arrival_ms(30) is None


def test_the_fit_follows_a_stream_that_becomes_slower() -> None:
    fit = ProgressFit()
    for step in range(50):
        fit.learn(1000 * step, 1000 * step)
    for step in range(50):
        fit.learn(50_000 + 1000 * step, 50_000 + 3000 * step)

    assert fit.arrival_ms(100_000) == pytest.approx(200_000, rel=0.02)


def test_a_message_for_a_longer_window_counts_from_later() -> None:
    short, long = EventTimeFrontier(1_000), EventTimeFrontier(10_000)
    for frontier in (short, long):
        for second in range(5):
            frontier.learn(second * 1000, 200.0 + second * 1000)

    assert short.frontier_ms(4_100, 4_300.0) == pytest.approx(5_200)
    assert long.frontier_ms(4_100, 4_300.0) == pytest.approx(10_200)


def test_a_window_that_should_have_closed_counts_from_now() -> None:
    frontier = EventTimeFrontier(1_000)
    frontier.learn(0, 0)
    frontier.learn(1_000, 1_000)

    assert frontier.frontier_ms(1_500, 99_000.0) == 99_000.0
    assert frontier.frontier_ms(None, 1_200.0) == 1_200.0


def test_the_clock_closes_windows_of_ingestion_time() -> None:
    assert ClockFrontier(1_000).frontier_ms(clock_ms=7_250, now_ms=50.0) == 800.0
