"""What Dirigo's experiments are made of is what their tables say."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest

from benchmarks.dirigo.experiments import EXPERIMENTS, POLICIES
from benchmarks.dirigo.show import auto_against_best
from benchmarks.dirigo.simulated import merged
from benchmarks.dirigo.workloads import WORKERS, Objects, Users, UsersOfOneWorker, nexmark
from sublet.functions.address import partition_index_of


def workers_of(keys: list[str]) -> Counter[int]:
    return Counter(partition_index_of(key, WORKERS) for key in keys)


def test_every_dataflow_has_an_object_at_every_worker() -> None:
    names = Objects(3, 1.0).names()
    assert len(set(names)) == len(names)
    assert set(workers_of(list(names)).values()) == {3}


def test_without_bound_of_skew_all_requests_go_to_one_worker() -> None:
    drawn = Objects(4, math.inf).sampler(random.Random(1))(200)
    assert len(workers_of(list(drawn))) == 1
    assert len(set(drawn)) == 4


def test_objects_are_asked_for_by_zipfs_law() -> None:
    drawn = Objects(2, 1.0).sampler(random.Random(1))(40_000)
    shares = [count / 40_000 for _, count in workers_of(list(drawn)).most_common()]
    expected = 1 / sum(1 / rank for rank in range(1, WORKERS + 1))
    assert shares[0] == pytest.approx(expected, rel=0.1)
    assert shares[3] == pytest.approx(expected / 4, rel=0.15)


def test_few_users_make_most_requests() -> None:
    drawn = Counter(Users(1_000, 0.01).sampler(random.Random(1))(20_000))
    busiest = sum(count for _, count in drawn.most_common(10))
    assert busiest / 20_000 == pytest.approx(0.9, abs=0.02)


def test_every_source_of_spikes_has_the_users_of_another_worker() -> None:
    users = UsersOfOneWorker(5 * WORKERS)
    first = users.sampler(random.Random(1))(50)
    second = users.sampler(random.Random(1))(50)
    assert len(workers_of(list(first))) == len(workers_of(list(second))) == 1
    assert workers_of(list(first)) != workers_of(list(second))


def test_hot_auctions_and_their_bidders_are_at_different_workers() -> None:
    simulation = nexmark("HighestBid", 4, window_s=1, windows=1)
    auctions = simulation.stages[0].sends[0].keys
    bidders = simulation.loads[0].keys
    assert not workers_of(list(auctions.names())) & workers_of(list(bidders.names()))  # type: ignore[union-attr]


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("quick", [True, False])
def test_every_experiment_compares_policies_on_the_same_workload(name: str, quick: bool) -> None:
    cases = EXPERIMENTS[name](quick)
    assert {each.experiment.replace(" ", "-") for each in cases} == {name}
    for value in {each.value for each in cases}:
        of_value = [each for each in cases if each.value == value]
        assert len({each.binding for each in of_value}) == len(of_value)
        assert len({repr(each.simulation.stages) for each in of_value}) == 1
    if name == "skew" and not quick:
        assert {each.binding for each in cases} == set(POLICIES)


def record(experiment: str, value: str, binding: str, p99_ms: float) -> dict[str, Any]:
    return {
        "experiment": experiment,
        "value": value,
        "binding": binding,
        "p50_ms": p99_ms / 2,
        "p99_ms": p99_ms,
        "late": 0.0,
    }


def test_auto_is_compared_with_the_best_other_policy_of_the_same_case() -> None:
    records = [
        record("skew", "a", "static", 100),
        record("skew", "a", "laxity-direct", 50),
        record("skew", "a", "auto", 60),
        record("skew", "b", "static", 10),
    ]
    (found,) = auto_against_best(records)
    assert found["best"] == "laxity-direct"
    assert found["p99_ratio"] == pytest.approx(1.2)


def test_only_experiments_that_were_run_anew_are_replaced() -> None:
    kept = [record("skew", "a", "static", 1), record("spikes", "a", "static", 2)]
    new = [record("skew", "a", "static", 3), record("cache size", "a", "static", 4)]
    assert [each["p99_ms"] for each in merged(kept, new)] == [3, 4, 2]
