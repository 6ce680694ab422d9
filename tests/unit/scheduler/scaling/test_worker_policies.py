"""Policies for the number of workers: what they promise under any load, and what each is for."""

from __future__ import annotations

from itertools import pairwise
from math import ceil, cos, pi

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.scheduler.scaling.actions import AddWorkers, DrainWorker, Slot
from sublet.scheduler.scaling.policies.laxity import (
    DeadlineClass,
    classes_of,
    first_miss,
    least_workers,
)
from sublet.scheduler.scaling.policies.predictive import Predictive
from sublet.scheduler.scaling.policy import scaling_named
from tests.unit.scheduler.scaling.harness import Cluster
from tests.unit.scheduler.scaling.plant import Plant

POLICIES = ("reactive", "predictive", "laxity")


# What all of them promise


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from(POLICIES),
    st.floats(0.2, 7.0),
    st.sampled_from([0.5, 1.0, 5.0]),
    st.integers(0, 1_000),
)
def test_under_constant_load_nothing_oscillates(
    policy: str, load: float, start_s: float, seed: int
) -> None:
    plant = Plant(policy, lambda _: load, start_s=start_s, seed=seed).run(400)
    late = [action for _, action in plant.actions(200)]
    assert not any(isinstance(each, DrainWorker) for each in late) or not any(
        isinstance(each, AddWorkers) for each in late
    )
    assert len(late) <= 1
    assert load <= plant.workers <= load / 0.85 + 1.5
    assert plant.moments[-1].backlog < 100


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from(POLICIES),
    st.lists(st.floats(0, 15), min_size=4, max_size=4),
    st.integers(1, 4),
    st.integers(0, 5),
)
def test_workers_stay_within_bounds(
    policy: str, levels: list[float], least: int, more: int
) -> None:
    most = least + more
    plant = Plant(
        policy, lambda now_s: levels[int(now_s // 60)], workers=least, least=least, most=most
    ).run(240)
    assert all(least <= moment.workers <= most for moment in plant.moments)
    # The controller had to refuse nothing: policies know the bounds themselves.
    refused = [
        each.outcome.detail
        for each in plant.controller.decisions
        if each.outcome is not None and each.outcome.ending.value == "refused"
    ]
    assert refused == []


@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_leaves_while_somebody_is_silent(policy: str) -> None:
    cluster = Cluster({Slot.WORKERS: policy}, workers=6)
    cluster.rate, cluster.utilisation = 10, 0.02
    cluster.silent = {"w3"}
    cluster.tick(150)
    assert cluster.stopped == []
    cluster.silent = set()
    cluster.tick(40)
    assert cluster.stopped != []


@pytest.mark.parametrize("policy", POLICIES)
def test_a_load_that_falls_to_nothing_leaves_the_minimum(policy: str) -> None:
    plant = Plant(policy, lambda now_s: 6.0 if now_s < 60 else 0.0, workers=8, least=2).run(240)
    assert plant.workers == 2


@pytest.mark.parametrize("policy", POLICIES)
def test_a_load_that_rises_is_served(policy: str) -> None:
    plant = Plant(policy, lambda now_s: 1.0 if now_s < 60 else 6.0, start_s=5).run(200)
    assert 6 <= plant.workers <= 9
    assert plant.moments[-1].backlog < 100


@pytest.mark.parametrize("policy", POLICIES)
def test_every_decision_says_why_with_figures(policy: str) -> None:
    plant = Plant(policy, lambda now_s: 5.0 if 60 < now_s < 120 else 0.5).run(240)
    told = [action for _, action in plant.actions()]
    assert {AddWorkers, DrainWorker} <= {type(each) for each in told}
    assert all(each.because and each.figures["workers"] for each in told)
    (slot,) = plant.controller.slots()
    assert slot.failure == ""
    assert slot.figures["load"] == pytest.approx(0.5, rel=0.2)


@pytest.mark.parametrize("policy", POLICIES)
def test_who_starts_is_not_asked_for_again(policy: str) -> None:
    plant = Plant(policy, lambda now_s: 5.0, start_s=30).run(25)
    wanted = sum(each.count for _, each in plant.actions() if isinstance(each, AddWorkers))
    assert 5 <= 2 + wanted <= 9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("reactive:target=0.3", "reactive: idle is 0.4, target 0.3; allowed"),
        ("predictive:target=2", "predictive: target is 2.0; allowed"),
        ("predictive:season=5s", "predictive: season is 5000 ms; allowed: 10s or more"),
        ("predictive:bound=0.5", "predictive: allowed: bound 1 or more"),
        ("laxity:target=0", "laxity: target is 0.0; allowed"),
    ],
)
def test_wrong_parameters_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        scaling_named(Slot.WORKERS, text)


# Reactive


def test_reactive_takes_latency_for_a_reason_before_there_is_a_backlog() -> None:
    plant = Plant("reactive", lambda _: 2.6, workers=2, slo_s=0.2).run(8)
    (_, action) = plant.actions()[0]
    assert isinstance(action, AddWorkers)
    assert "turns of a/f take" in action.because


def test_reactive_waits_for_half_a_minute_of_calm_and_idle_workers() -> None:
    plant = Plant("reactive", lambda now_s: 3.0 if now_s < 60 else 1.0, workers=4).run(180)
    first = next(at for at, each in plant.actions() if isinstance(each, DrainWorker))
    assert first >= 60
    assert Plant("reactive", lambda _: 1.8, workers=4).run(120).actions() == []


def test_reactive_adds_nobody_for_what_waits_while_workers_are_idle() -> None:
    cluster = Cluster({Slot.WORKERS: "reactive"}, workers=4)
    cluster.waiting_ms, cluster.utilisation = 20_000.0, 0.2
    cluster.tick(60)
    assert cluster.started == []
    cluster.utilisation = 0.6
    cluster.tick(5)
    assert cluster.started != []


def test_reactive_cools_down_between_two_steps() -> None:
    plant = Plant("reactive", lambda now_s: 1 + now_s / 20, start_s=0.5).run(150)
    times = [at for at, _ in plant.actions()]
    assert len(times) >= 3
    assert all(after - before >= 29.9 for before, after in pairwise(times))


# Predictive


def wave(now_s: float) -> float:
    return 4 - 3.5 * cos(2 * pi * now_s / 120)


def test_predictive_has_workers_before_the_second_peak() -> None:
    predictive = Plant("predictive:season=120s", wave, start_s=10).run(360)
    reactive = Plant("reactive", wave, start_s=10).run(360)
    peaks = [max(each.backlog for each in plant.moments[120:]) for plant in (predictive, reactive)]
    assert peaks[0] * 10 <= peaks[1]


def test_predictive_is_not_above_the_ideal_by_two_for_longer_than_it_cools_down() -> None:
    predictive = Plant("predictive:season=120s", wave, start_s=1).run(360)
    above_s = longest_s = 0
    for moment in predictive.moments[120:]:
        ideal = max(1, ceil(wave(moment.second + 0.5) / 0.85))
        above_s = above_s + 1 if moment.workers > ideal + 1 else 0
        longest_s = max(longest_s, above_s)
    assert longest_s <= 30


def test_predictive_lets_workers_go_though_starts_are_long() -> None:
    """On the way down it looks no further than it must: of the next seconds it is sure."""

    def hill(now_s: float) -> float:
        return 1.0 + 6.0 * max(0.0, 1 - abs(now_s - 150) / 100)

    plant = Plant("predictive", hill, start_s=30).run(250)
    down = plant.moments[160:]
    over = [each.workers - max(1, ceil(hill(each.second + 0.5) / 0.85)) for each in down]
    assert sum(over) / len(over) < 3.5


def test_predictive_does_not_stay_at_the_maximum_after_a_step() -> None:
    plant = Plant("predictive", lambda now_s: 1.0 if now_s < 60 else 3.0, most=40).run(180)
    assert max(each.workers for each in plant.moments) <= 8
    assert plant.workers == 4


def test_predictive_remembers_its_series_after_a_failover() -> None:
    former = Predictive(season_ms=120_000.0)
    Plant(former, wave, start_s=10).run(300)
    memory = former.memory()
    assert len(memory["values"]) <= 300
    heir = Predictive(season_ms=120_000.0)
    heir.recall(memory)
    plant = Plant(heir, lambda now_s: wave(now_s + 300), workers=9, start_s=10).run(130)
    assert max(each.backlog for each in plant.moments[10:]) < 300


# Laxity


def test_the_first_miss_is_when_waiting_exceeds_what_a_class_can() -> None:
    tight, loose = DeadlineClass(0.05, 0.5, 0.0), DeadlineClass(5.0, 1.0, 0.0)
    assert first_miss([2.0] * 10, [tight, loose], [2] * 10)[0] == float("inf")
    assert first_miss([4.0] * 10, [tight, loose], [2] * 10) == (6.0, 20.0)
    assert first_miss([1.0, 5.0, 1.0], [tight, loose], [2] * 3)[0] == 2.0


def test_what_waits_already_counts() -> None:
    assert first_miss([0.0], [DeadlineClass(1.0, 1.0, 3.0)], [2])[0] == 0.0


def test_the_fewest_workers_that_miss_nothing_are_found() -> None:
    burst = [1.0] * 30 + [6.0] * 2 + [1.0] * 28
    assert least_workers(burst, [DeadlineClass(0.05, 1.0, 0.0)], 1, 10) == 6
    assert least_workers(burst, [DeadlineClass(5.0, 1.0, 0.0)], 1, 10) == 2


def test_many_classes_are_taken_for_few_that_are_due_earlier() -> None:
    plant = Plant("fixed", lambda _: 1.0, slo_s=0.2).run(3)
    view = plant.controller.view(3_000.0)
    (one,) = classes_of(view)
    assert one.slack_s == pytest.approx(0.199)
    assert one.share == 1.0


def test_a_short_burst_is_waited_out_by_those_who_can_wait() -> None:
    def burst(now_s: float) -> float:
        return 4.0 if 100 <= now_s < 101 else 1.0

    patient = Plant("laxity", burst, slo_s=5.0, start_s=0.5).run(150)
    hasty = Plant("laxity", burst, slo_s=0.05, start_s=0.5).run(150)
    assert patient.actions(90) == []
    assert isinstance(hasty.actions(90)[0][1], AddWorkers)
    assert sum(each.late for each in patient.moments) == 0


def test_a_worker_comes_just_before_the_first_miss() -> None:
    plant = Plant("laxity", lambda now_s: 1.5 if now_s < 60 else 2.3, slo_s=5.0, start_s=2).run(150)
    first = next(at for at, each in plant.actions() if isinstance(each, AddWorkers))
    # 0.3 of 2 workers too much: five seconds are waited after some thirty.
    assert 75 <= first <= 100
    assert sum(each.late for each in plant.moments) == 0
