"""How much runs at once, and where, follows from what runs have cost."""

from __future__ import annotations

from typing import Any

import pytest

from sublet.functions.app import App, Function
from sublet.scheduler.pace import (
    BATCH_SIZE_UNKNOWN,
    OUTLIERS_BEFORE_TRUST,
    QUANTUM_MS,
    RUNS_BEFORE_TRUST,
    SHORT_LEARNED_EVERY,
    SHORT_MS,
    SMALL_RUN_EVERY,
    CostModel,
    LearnedPace,
)
from tests.unit.partition.harness import make_function


def function(**options: Any) -> Function:
    app = App("app")

    @app.function(**options)
    def handler(ctx: Any, message: Any) -> None: ...

    return handler


def taught(each_ms: float, *, fixed_ms: float = 0.0, runs: int = 50) -> LearnedPace:
    """Return a pace that has seen runs of different sizes at this cost."""
    pace = LearnedPace()
    for number in range(runs):
        count = 1 + number % 10
        pace.learn(function(), count, fixed_ms + each_ms * count)
    return pace


def test_costs_of_a_run_and_of_a_message_are_told_apart() -> None:
    model = CostModel()
    for count in (1, 5, 10, 50):
        model.learn(count, 2.0 + 0.1 * count)

    a, b = model.coefficients()
    assert a == pytest.approx(2.0)
    assert b == pytest.approx(0.1)
    assert model.expected_ms(100) == pytest.approx(12.0)


def test_with_runs_of_one_size_everything_is_put_on_the_messages() -> None:
    model = CostModel()
    for _ in range(5):
        model.learn(10, 5.0)

    a, b = model.coefficients()
    assert a == 0.0
    assert b == pytest.approx(0.5)


def test_costs_are_never_negative() -> None:
    model = CostModel()
    for count, elapsed_ms in ((1, 10.0), (10, 5.0), (100, 1.0)):
        model.learn(count, elapsed_ms)

    a, b = model.coefficients()
    assert a >= 0
    assert b >= 0


def test_nothing_is_expected_of_a_function_that_never_ran() -> None:
    assert CostModel().expected_ms(100) == 0.0


def test_newer_runs_count_more() -> None:
    model = CostModel()
    for _ in range(100):
        model.learn(1, 10.0)
    for _ in range(100):
        model.learn(1, 1.0)

    assert model.expected_ms(1) == pytest.approx(1.0, abs=0.1)


def test_a_function_that_nobody_knows_runs_beside_the_loop_in_small_batches() -> None:
    pace = LearnedPace()

    assert pace.off_loop(function())
    assert pace.batch_size(function(), 1_000) == BATCH_SIZE_UNKNOWN
    assert pace.batch_size(function(), 3) == 3


def test_a_short_function_moves_to_the_loop_after_a_few_runs() -> None:
    pace = LearnedPace()
    for _ in range(RUNS_BEFORE_TRUST - 1):
        pace.learn(function(), 1, 0.01)
    assert pace.off_loop(function())

    pace.learn(function(), 1, 0.01)

    assert not pace.off_loop(function())


def test_a_function_that_blocks_never_runs_on_the_loop() -> None:
    pace = taught(0.001)

    assert pace.off_loop(function(blocking=True))


def test_a_long_function_stays_beside_the_loop() -> None:
    assert taught(5.0).off_loop(function())


def test_a_batch_takes_about_one_quantum() -> None:
    assert taught(QUANTUM_MS / 100).batch_size(function(), 1_000) == pytest.approx(100, abs=1)


def test_a_batch_is_never_larger_than_its_bound_nor_smaller_than_one() -> None:
    assert taught(0.0001).batch_size(function(), 1_000) == 1_000
    assert taught(50.0).batch_size(function(), 1_000) == 1


def test_a_costly_start_takes_its_share_of_the_quantum() -> None:
    pace = taught(0.01, fixed_ms=0.4)

    assert not pace.off_loop(function())
    assert pace.batch_size(function(), 1_000) == pytest.approx(60, abs=2)


def test_one_interrupted_run_does_not_send_a_function_off_the_loop() -> None:
    pace = taught(0.01)
    pace.learn(function(), 1, 500.0)

    assert not pace.off_loop(function())
    assert pace.batch_size(function(), 1_000) > 10


def test_a_function_that_has_become_slow_leaves_the_loop_after_a_few_runs() -> None:
    pace = taught(0.001)
    for _ in range(OUTLIERS_BEFORE_TRUST):
        assert not pace.off_loop(function())
        pace.learn(function(), 100, 1_000.0)

    assert pace.off_loop(function())
    assert pace.batch_size(function(), 1_000) == 1


def test_slow_runs_now_and_then_are_accidents() -> None:
    pace = taught(0.01)
    for _ in range(20):
        pace.learn(function(), 10, 50.0)
        pace.learn(function(), 10, 0.1)

    assert not pace.off_loop(function())


def test_a_function_that_has_become_fast_comes_back_to_the_loop() -> None:
    pace = taught(5.0)
    for _ in range(200):
        pace.learn(function(), 1, 0.01)

    assert not pace.off_loop(function())


def test_a_function_between_the_thresholds_stays_where_it_is() -> None:
    between_ms = QUANTUM_MS * 0.75
    slower = taught(5.0)
    faster = taught(0.01)
    for _ in range(300):
        slower.learn(function(), 1, between_ms)
        faster.learn(function(), 1, between_ms)

    assert slower.off_loop(function())
    assert not faster.off_loop(function())


def test_what_a_run_costs_besides_its_messages_is_remembered_while_all_runs_are_alike() -> None:
    pace = LearnedPace()
    for count in (1, 10, 30, 64):
        pace.learn(function(), count, 2.0 + 0.01 * count)
    for _ in range(200):
        pace.learn(function(), 64, 2.64)

    assert pace.fixed_ms(function()) == pytest.approx(2.0, abs=0.05)


def test_of_short_runs_nothing_is_remembered_besides_their_cost() -> None:
    assert taught(0.001, fixed_ms=0.2).fixed_ms(function()) == 0
    assert LearnedPace().fixed_ms(function()) == 0


def test_when_a_function_becomes_another_its_curve_is_forgotten() -> None:
    pace = LearnedPace()
    for count in (1, 10, 30, 64):
        pace.learn(function(), count, 2.0 + 0.01 * count)
    for _ in range(5):
        pace.learn(function(), 64, 200.0)

    assert pace.fixed_ms(function()) != pytest.approx(2.0, abs=0.5)


def test_a_fixed_size_may_take_longer_than_a_quantum_within_reason() -> None:
    fixed = make_function(batch_size=500, batch_wait="20ms")
    pace = LearnedPace()
    for count in (1, 2, 3, 10):
        pace.learn(fixed, count, QUANTUM_MS / 100 * count)

    assert pace.batch_size(fixed, 500) == 500
    assert pace.batch_size(fixed, 5_000) == pytest.approx(1_000, abs=10)


def test_a_slow_run_stays_off_the_loop_also_when_all_runs_are_alike() -> None:
    pace = LearnedPace()
    for count in (1, 10, 30, 64):
        pace.learn(function(), count, 2.0)
    for _ in range(1_000):
        pace.learn(function(), 64, 2.0)

    assert pace.expected_ms(function(), 1) < QUANTUM_MS / 2
    assert pace.off_loop(function())


def test_a_function_is_not_sent_off_the_loop_by_what_its_shortest_run_disproves() -> None:
    pace, each = taught(0.01), function()
    # Of alike sizes, and the longer ones happen to be the faster ones: a line through them says
    # that a run costs 2 ms before its first message.
    for number in range(200):
        count = 95 + number % 10
        pace.learn(each, count, 0.9 - 0.01 * (number % 10))

    assert not pace.off_loop(each)


def test_a_small_run_now_and_then_shows_that_the_loop_can_wait_after_all() -> None:
    pace, each = LearnedPace(), function()
    for number in range(RUNS_BEFORE_TRUST):
        pace.learn(each, 400 + number, 3.2)
    assert pace.off_loop(each)
    for _ in range(SMALL_RUN_EVERY + 1):
        count = pace.batch_size(each, 1_000)
        pace.learn(each, count, 0.05 + 0.008 * count)

    assert not pace.off_loop(each)


def test_accidents_of_a_short_function_are_not_taken_for_what_its_runs_cost() -> None:
    pace, each = taught(0.01), function()
    for number in range(200):
        pace.learn(each, 1, 1.5 if number % 20 == 0 else 0.02)

    assert pace.fixed_ms(each) < 0.05


def test_of_short_runs_on_the_loop_one_in_a_few_is_learned_from() -> None:
    pace, declared = taught(0.001), function()
    learned = pace.model(declared).runs

    for _ in range(10 * SHORT_LEARNED_EVERY):
        pace.learn(declared, 1, SHORT_MS / 2)

    assert pace.model(declared).runs == learned + 10


def test_a_short_function_that_has_become_slow_is_noticed_as_soon_as_ever() -> None:
    pace, declared = taught(0.001), function()
    assert not pace.off_loop(declared)

    for _ in range(OUTLIERS_BEFORE_TRUST):
        pace.learn(declared, 1, 20.0)

    assert pace.off_loop(declared)


def test_a_short_run_between_slow_ones_shows_that_they_were_accidents() -> None:
    pace, declared = taught(0.001), function()
    for _ in range(3 * SHORT_LEARNED_EVERY):
        for _ in range(OUTLIERS_BEFORE_TRUST - 1):
            pace.learn(declared, 1, 20.0)
        pace.learn(declared, 1, 0.001)

    assert not pace.off_loop(declared)
