"""What policies are compared with: ideal schedules, a model of Storm, the same load simulated."""

from __future__ import annotations

import pytest

from benchmarks.elasticity.bursts import dominated
from benchmarks.elasticity.henge import AS_IN_PAPER, WORKERS, storm
from benchmarks.elasticity.ideal import by_formula, cheapest
from benchmarks.elasticity.real.cluster import Seen
from benchmarks.elasticity.real.experiment import same_order, satisfaction
from benchmarks.elasticity.storm import (
    TOPOLOGIES,
    Component,
    Topology,
    allocations,
    placed,
    rates,
    throughput,
)


def test_the_formula_follows_the_load_within_bounds() -> None:
    assert by_formula([0.0, 3.4, 3.5, 99.0], 2, 10, 0.85) == [2, 4, 5, 10]


def test_without_starts_the_cheapest_is_the_formula() -> None:
    loads = [1.0, 2.5, 4.2, 3.0, 0.5]
    total, schedule = cheapest(loads, 1, 6, utilisation=0.85)
    assert schedule == by_formula(loads, 1, 6, 0.85)
    assert total == sum(schedule)


def test_a_worker_is_kept_over_a_gap_that_is_shorter_than_its_start() -> None:
    loads = [2.0, 1.0, 1.0, 2.0]
    assert cheapest(loads, 1, 4, start_s=5.0)[1] == [2, 2, 2, 2]
    assert cheapest(loads, 1, 4, start_s=1.0)[1] == [2, 1, 1, 2]


def test_what_may_wait_saves_workers() -> None:
    loads = [1.0, 3.0, 0.0, 0.0, 0.0]
    assert cheapest(loads, 1, 4)[0] == 7.0
    total, schedule = cheapest(loads, 1, 4, backlog_max=2.0)
    assert total == 5.0
    assert schedule == [1, 1, 1, 1, 1]


def test_a_policy_is_dominated_by_one_that_is_better_in_both() -> None:
    one, other = (
        {"policy": name, "late": late, "cost": cost}
        for name, late, cost in (("a", 0.1, 1.0), ("b", 0.2, 2.0))
    )
    assert dominated(other, [one, other]) == "a"
    assert dominated(one, [one, other]) == ""


def chain(*times_s: float, tasks: int = 4) -> Topology:
    names = [f"{number}" for number in range(len(times_s))]
    return Topology(
        "chain",
        2,
        [
            Component(name, names[place + 1 : place + 2], time_s, 2, tasks, is_spout=place == 0)
            for place, (name, time_s) in enumerate(zip(names, times_s, strict=True))
        ],
        0.0,
    )


def test_storm_is_as_fast_as_its_slowest_operator() -> None:
    topology = chain(0.1, 0.5, 0.2)
    assert rates(topology, placed(topology, 2)) == {"0": 20.0, "1": 4.0, "2": 4.0}


def test_an_executor_of_storm_gets_the_tuples_of_its_tasks() -> None:
    topology = chain(0.1, 0.15, 0.01)
    # Four tasks on three executors: one of them gets half of 20, and is too slow for it.
    assert rates(topology, [*placed(topology, 2), ("1", 2)])["1"] == pytest.approx(5 + 5 + 1 / 0.15)


def test_executors_of_storm_share_a_core_if_that_is_the_limit() -> None:
    topology = chain(0.1, 0.1)
    # One spout and one sink on each machine: half of a core for both.
    assert throughput(topology, rates(topology, placed(topology, 2), 1.0)) == pytest.approx(10.0)


def test_all_allocations_are_tried_and_none_exceeds_the_tasks() -> None:
    assert set(allocations(chain(0.1, 0.1, tasks=3), 2)) == {("0", "1")}


def test_the_paper_says_how_many_instances_a_machine_has() -> None:
    assert [each.slots for each in TOPOLOGIES] == [2, 4, 4, 4, 4, 5]


def test_peaks_fit_in_the_papers_setting_and_a_small_default_never_catches_up() -> None:
    tenants = AS_IN_PAPER.tenants().values()
    highest = max(sum(rate(second) for rate in tenants) for second in range(24 * 60))
    assert highest * AS_IN_PAPER.cost_s == pytest.approx(0.9 * WORKERS)
    default = storm(AS_IN_PAPER, "default: for the lowest load", 24)
    hand = storm(AS_IN_PAPER, "by hand: for the median load", 24)
    assert default["satisfied"] < 0.15 < hand["satisfied"]


def test_policies_stand_in_the_same_order_where_the_simulation_tells_them_apart() -> None:
    model = [{"policy": name, "cost": cost} for name, cost in (("a", 100), ("b", 102), ("c", 200))]
    real = [{"policy": name, "cost": cost} for name, cost in (("a", 130), ("b", 120), ("c", 125))]
    # a and b are alike; of a and c, the order has changed.
    assert same_order(real, model, "cost") == (2, 1)


def test_who_waits_and_gets_nothing_is_not_satisfied() -> None:
    slow, nothing = Seen(0, latencies_ms=[2_000.0]), Seen(1, backlog=3)
    assert satisfaction([slow] * 5 + [nothing] * 5) == [0.5, 0.0]
