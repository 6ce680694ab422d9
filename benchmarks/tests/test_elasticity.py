"""The ideal schedules that policies are compared with."""

from __future__ import annotations

from benchmarks.elasticity.bursts import dominated
from benchmarks.elasticity.ideal import by_formula, cheapest


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
