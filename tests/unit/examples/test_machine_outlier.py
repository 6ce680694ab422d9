"""The search for outliers raises the alerts that a plain loop over the same observations raises."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from itertools import groupby, islice

import pytest

from examples.machine_outlier import (
    WINDOW_SCORES,
    Alert,
    Observation,
    Scored,
    Tracked,
    alerts,
    app,
    distances,
    judge,
    score,
    track,
)
from examples.machine_outlier_observations import INTERVAL_S, generate_observations
from sublet.testing import Harness


@pytest.fixture
def harness(sublet_harness: Callable[..., Harness]) -> Harness:
    return sublet_harness(app)


def observations(seed: int, machine_count: int, moment_count: int) -> list[Observation]:
    """Return whole moments, and the first observation of the next, which ends the last one."""
    made = generate_observations(seed, machine_count)
    return [Observation(*each) for each in islice(made, machine_count * moment_count + 1)]


def expected_alerts(observed: Iterable[Observation]) -> list[Alert]:
    windows: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW_SCORES))
    found: list[Alert] = []
    *moments, _unfinished = [list(each) for _, each in groupby(observed, lambda each: each.at_s)]
    for moment in moments:
        tracked = []
        scores = distances([(each.cpu, each.memory) for each in moment])
        for each, own in zip(moment, scores, strict=True):
            window = windows[each.machine]
            window.append(own)
            mean = sum(window) / len(window)
            tracked.append(Tracked(each.machine, own, mean, len(moment)))
        found += alerts(moment[0].at_s, tracked)
    return found


def in_order(found: Iterable[Alert]) -> list[Alert]:
    return sorted(found, key=lambda each: (each.at_s, each.machine))


def test_a_distance_is_from_the_middle_in_units_of_the_spread() -> None:
    assert distances([(0.1, 0.5), (0.2, 0.5), (0.3, 0.5), (0.5, 0.5), (0.2, 0.5)]) == [
        pytest.approx(each) for each in (0.25, 0.0, 0.25, 0.75, 0.0)
    ]
    assert distances([]) == []


def test_a_moment_is_scored_when_the_next_one_begins(harness: Harness) -> None:
    moment = [Observation(300, f"m{n}", cpu, 0.5) for n, cpu in enumerate([0.1, 0.2, 0.6])]
    harness.send_many(score, None, moment)
    assert harness.sent == []

    harness.send(score, "", Observation(600, "m0", 0.1, 0.5))

    scored = [each for each in harness.sent if each.function == track.name]
    assert [each.key for each in scored] == ["m0", "m1", "m2"]
    assert [each.message for each in scored] == [
        Scored(300, pytest.approx(own), 3) for own in (0.2, 0.0, 0.8)
    ]


def test_what_comes_too_late_is_told_and_changes_nothing(harness: Harness) -> None:
    late = Observation(300, "m1", 0.9, 0.9)
    harness.send(score, "", Observation(600, "m0", 0.1, 0.5))
    harness.send(score, "", late)

    assert harness.emitted("late", Observation) == [late]
    assert harness.state(score, "")["at_s"] == 600
    assert len(harness.state(score, "")["observations"]) == 1


def test_only_the_latest_scores_are_averaged(harness: Harness) -> None:
    for at_s in range(WINDOW_SCORES + 5):
        harness.send(track, "m0", Scored(at_s, float(at_s), 2))

    assert harness.call(track, "m0") == [float(each) for each in range(5, WINDOW_SCORES + 5)]
    assert harness.sent_to(judge)[-1].average == 9.5


def test_a_moment_is_judged_when_all_its_scores_are_there(harness: Harness) -> None:
    tracked = [Tracked(f"m{n}", own, own, 4) for n, own in enumerate([0.1, 0.1, 0.9, 0.1])]
    harness.send_many(judge, ["300"] * 3, tracked[:3])
    assert harness.emitted("alerts") == []

    harness.send(judge, "300", tracked[3])

    assert harness.emitted("alerts", Alert) == [Alert(300, "m2", 0.9, 0.1)]
    assert harness.states(judge) == {}


def test_a_machine_that_has_calmed_down_is_no_outlier() -> None:
    tracked = [Tracked("m0", 0.1, 0.1, 3), Tracked("m1", 0.1, 0.1, 3), Tracked("m2", 0.05, 0.9, 3)]

    assert alerts(300, tracked) == []


@pytest.mark.parametrize("batch_size", [1, 37, 2_000])
def test_the_alerts_are_those_of_a_plain_loop(harness: Harness, batch_size: int) -> None:
    observed = observations(seed=3, machine_count=40, moment_count=100)
    expected = expected_alerts(observed)
    assert len({each.machine for each in expected}) > 1

    for start in range(0, len(observed), batch_size):
        harness.send_many(score, None, observed[start : start + batch_size])

    assert in_order(harness.emitted("alerts", Alert)) == in_order(expected)
    assert harness.states(judge) == {}


@pytest.mark.parametrize("at_commit", [1, 2, 5, 10, 20])
def test_the_alerts_are_the_same_when_the_worker_crashes(harness: Harness, at_commit: int) -> None:
    observed = observations(seed=3, machine_count=20, moment_count=60)
    harness.crash(at_commit=at_commit, applied=at_commit % 2 == 0)
    for function in (score, track, judge):
        harness.fail_next(function, times=2, after=True)

    harness.send_many(score, None, observed)
    harness.advance("1m")

    assert in_order(harness.emitted("alerts", Alert)) == in_order(expected_alerts(observed))
    harness.assert_idle()


def test_the_same_seed_gives_the_same_observations() -> None:
    first, again, other = (observations(seed, 10, 50) for seed in (3, 3, 4))

    assert first == again != other


def test_observations_look_like_those_of_a_cluster() -> None:
    observed = observations(seed=5, machine_count=100, moment_count=288)

    assert len({each.machine for each in observed}) == 100
    assert observed[-1].at_s == 288 * INTERVAL_S
    assert all(0 <= each.cpu <= 1 and 0 <= each.memory <= 1 for each in observed)
    found = expected_alerts(observed)
    assert 0 < len(found) / len(observed) < 0.03


def test_there_is_at_least_one_machine() -> None:
    with pytest.raises(ValueError, match="machine_count is 0; allowed: 1 or more"):
        next(generate_observations(seed=1, machine_count=0))
