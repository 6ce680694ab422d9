"""Forecasts are chosen by their own errors, and never exceed by much what was seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import cos, pi
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.scheduler.scaling.forecast import Forecaster, season_of


def fed(values: Iterable[float], **arguments: float) -> Forecaster:
    forecaster = Forecaster(**arguments)  # type: ignore[arg-type]
    for value in values:
        forecaster.observe(value)
    return forecaster


def wave(seconds: int, period: int, noise: float = 0.0, seed: int = 1) -> list[float]:
    rng = Random(seed)
    return [100 - 100 * cos(2 * pi * t / period) + rng.gauss(0, noise) for t in range(seconds)]


def error(values: Callable[[int], float], forecaster: Forecaster, now: int, steps: int) -> float:
    return abs(forecaster.path(steps)[-1] - values(now + steps - 1))


def test_nothing_is_expected_before_anything_was_seen() -> None:
    assert Forecaster(horizon=5).path(3) == [0.0, 0.0, 0.0]


def test_a_constant_goes_on() -> None:
    assert fed([7.0] * 50, horizon=10).path(10) == pytest.approx([7.0] * 10)


def test_a_trend_is_followed_and_fades() -> None:
    forecaster = fed(map(float, range(100)), horizon=10)
    assert forecaster.best == "holt"
    near, far = forecaster.path(60)[9], forecaster.path(60)[59]
    assert 104 < near < 110
    assert far < 99 + 60


def test_a_given_season_is_used_from_the_second_one_on() -> None:
    forecaster = fed(wave(330, 300, noise=3.0), horizon=10, season=300)
    assert forecaster.best in ("seasonal", "holt-winters")
    assert error(lambda t: wave(400, 300)[t], forecaster, 330, 10) < 10


def test_a_season_is_found_when_it_was_seen_twice() -> None:
    forecaster = fed(wave(650, 300, noise=3.0), horizon=10)
    assert abs(forecaster.season - 300) <= 4
    assert error(lambda t: wave(700, 300)[t], forecaster, 650, 10) < 12


def test_a_season_is_found_in_a_long_series_to_the_second() -> None:
    assert abs(season_of(wave(3_600, 317, noise=5.0)) - 317) <= 1


@pytest.mark.parametrize(
    "values",
    [[], [5.0] * 300, [float(t) for t in range(300)], wave(300, 10_000, noise=9.0)],
    ids=["nothing", "constant", "slope", "noise"],
)
def test_what_does_not_repeat_itself_has_no_season(values: list[float]) -> None:
    assert season_of(values) == 0


def test_a_season_that_changed_is_not_believed_for_long() -> None:
    values = wave(600, 300) + [20.0] * 40
    forecaster = fed(values, horizon=5, season=300)
    assert forecaster.best in ("last", "holt")
    assert forecaster.path(5)[-1] == pytest.approx(20.0, abs=5)


def test_a_new_level_is_added_to_the_season() -> None:
    values = wave(600, 300) + [value + 100 for value in wave(300, 300)]
    forecaster = fed(values, horizon=20, season=300)
    assert forecaster.path(20)[-1] == pytest.approx(100 + wave(20, 300)[19], abs=20)


def test_errors_at_the_horizon_tell_how_sure_it_is() -> None:
    calm, rough = (fed(wave(700, 300, noise=n), horizon=5, season=300) for n in (1.0, 20.0))
    assert 0.5 < calm.sigma < 3
    assert 15 < rough.sigma < 35


def test_another_horizon_is_judged_by_its_own_errors() -> None:
    forecaster = fed(wave(250, 300), horizon=2)
    near = forecaster.sigma
    forecaster.aim(40)
    assert forecaster.horizon == 40
    assert forecaster.sigma > near


def test_a_small_change_of_the_horizon_is_ignored() -> None:
    forecaster = fed(wave(250, 300), horizon=20)
    forecaster.aim(22)
    assert forecaster.horizon == 20


def test_a_series_of_before_is_gone_on_with() -> None:
    forecaster = Forecaster(horizon=10, season=300)
    forecaster.recall(wave(600, 300))
    for value in wave(610, 300)[600:]:
        forecaster.observe(value)
    assert forecaster.path(10)[-1] == pytest.approx(wave(620, 300)[619], abs=5)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=150),
    st.integers(1, 60),
    st.sampled_from([0, 10, 30]),
)
def test_a_forecast_is_bounded_by_what_was_seen(
    values: list[float], horizon: int, season: int
) -> None:
    path = fed(values, horizon=horizon, season=season, bound=1.5).path(2 * horizon)
    assert all(0 <= each <= 1.5 * max(values) for each in path)
