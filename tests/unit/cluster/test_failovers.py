"""One line a failover: when it is over, and what it says."""

from __future__ import annotations

import pytest

from sublet.runtime.cluster.failovers import TOLD_MS_MAX, Failover, Failovers


@pytest.fixture
def failovers() -> Failovers:
    return Failovers()


def test_a_failover_is_over_when_all_its_partitions_are_served(failovers: Failovers) -> None:
    failovers.started({"w1": 100.0}, ["f/0", "f/1"], now_ms=2_100)

    failovers.took("f/0")
    assert failovers.over(2_200) == []
    failovers.took("f/1")
    assert failovers.over(2_300) == [Failover(["w1"], 2, 0, 2_200)]
    assert failovers.over(2_400) == []


def test_it_counts_from_the_last_sign_of_life_of_the_first_who_died(failovers: Failovers) -> None:
    failovers.started({"w2": 150.0, "w1": 100.0}, ["f/0"], now_ms=200)

    failovers.took("f/0")
    assert failovers.over(300) == [Failover(["w1", "w2"], 1, 0, 200)]


def test_a_placement_that_is_proposed_again_begins_no_other_failover(failovers: Failovers) -> None:
    failovers.started({"w1": 100.0}, ["f/0"], now_ms=200)
    failovers.started({"w1": 100.0}, ["f/0"], now_ms=250)

    failovers.took("f/0")
    assert failovers.over(300) == [Failover(["w1"], 1, 0, 200)]


def test_who_dies_during_a_failover_begins_one_of_its_own(failovers: Failovers) -> None:
    failovers.started({"w1": 100.0}, ["f/0"], now_ms=200)
    failovers.started({"w1": 100.0, "w2": 220.0}, ["f/0", "f/1"], now_ms=250)

    failovers.took("f/0")
    assert [each.workers for each in failovers.over(300)] == [["w1"]]
    failovers.took("f/1")
    assert [each.workers for each in failovers.over(400)] == [["w2"]]


def test_who_had_no_partition_is_told_at_once(failovers: Failovers) -> None:
    failovers.started({"w1": 100.0}, [], now_ms=200)

    assert failovers.over(200) == [Failover(["w1"], 0, 0, 100)]


def test_what_nobody_serves_is_told_as_missing_after_a_while(failovers: Failovers) -> None:
    failovers.started({"w1": 100.0}, ["f/0", "f/1"], now_ms=200)
    failovers.took("f/0")

    assert failovers.over(199 + TOLD_MS_MAX) == []
    assert failovers.over(200 + TOLD_MS_MAX) == [Failover(["w1"], 2, 1, 100 + TOLD_MS_MAX)]


def test_who_comes_back_and_dies_again_is_told_again(failovers: Failovers) -> None:
    for _ in range(2):
        failovers.started({"w1": 100.0}, [], now_ms=200)
        assert len(failovers.over(200)) == 1
