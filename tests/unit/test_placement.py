"""Partitions are spread evenly, and move only when they have to."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.functions.address import split_partition_name
from sublet.scheduler.placement import place

WORKERS = ["w1", "w2", "w3"]


def counts(placement: dict[str, str], function: str) -> Counter[str]:
    return Counter(
        owner
        for partition, owner in placement.items()
        if split_partition_name(partition)[0] == function
    )


def test_without_workers_nothing_is_placed() -> None:
    assert place({"app/f": 4}, [], {}, rebalance=False) == {}


def test_the_partitions_of_a_function_are_spread_evenly() -> None:
    placement = place({"app/f": 8}, WORKERS, {}, rebalance=False)

    assert sorted(counts(placement, "app/f").values()) == [2, 3, 3]


def test_small_functions_do_not_all_go_to_the_first_worker() -> None:
    functions = {f"app/f{number}": 1 for number in range(6)}

    assert set(Counter(place(functions, WORKERS, {}, rebalance=False).values()).values()) == {2}


def test_what_is_placed_stays_where_it_is() -> None:
    before = place({"app/f": 8}, WORKERS[:2], {}, rebalance=False)

    assert place({"app/f": 8}, WORKERS, before, rebalance=False) == before


def test_only_the_partitions_of_a_lost_worker_move() -> None:
    before = place({"app/f": 9}, WORKERS, {}, rebalance=False)
    after = place({"app/f": 9}, WORKERS[:2], before, rebalance=False)

    assert {p for p in before if before[p] != after[p]} == {p for p in before if before[p] == "w3"}
    assert sorted(counts(after, "app/f").values()) == [4, 5]


def test_a_new_worker_gets_its_share_by_the_fewest_moves() -> None:
    before = place({"app/f": 9}, WORKERS[:2], {}, rebalance=False)
    after = place({"app/f": 9}, WORKERS, before, rebalance=True)

    assert sorted(counts(after, "app/f").values()) == [3, 3, 3]
    assert sum(before[partition] != after[partition] for partition in before) == 3


def test_a_difference_of_one_is_no_reason_to_move() -> None:
    before = place({"app/f": 5}, WORKERS[:2], {}, rebalance=False)

    assert place({"app/f": 5}, WORKERS[:2], before, rebalance=True) == before


def test_partitions_that_no_function_has_are_forgotten() -> None:
    assert place({"app/f": 1}, ["w1"], {"app/gone/0": "w1"}, rebalance=True) == {"app/f/0": "w1"}


def test_the_order_of_the_workers_does_not_matter() -> None:
    functions = {"app/f": 5, "app/g": 2}

    assert place(functions, WORKERS, {}, rebalance=True) == place(
        functions, WORKERS[::-1], {}, rebalance=True
    )


FUNCTIONS = st.dictionaries(st.sampled_from(["a/f", "a/g", "b/f"]), st.integers(1, 20), min_size=1)
SOME_WORKERS = st.lists(st.sampled_from([f"w{n}" for n in range(6)]), min_size=1, unique=True)


@given(functions=FUNCTIONS, before=SOME_WORKERS, after=SOME_WORKERS)
def test_every_partition_is_placed_and_evened_out(
    functions: dict[str, int], before: list[str], after: list[str]
) -> None:
    placed = place(functions, before, {}, rebalance=True)
    placed = place(functions, after, placed, rebalance=True)

    assert len(placed) == sum(functions.values())
    for function in functions:
        shares = counts(placed, function)
        each = [shares.get(worker, 0) for worker in after]
        assert max(each) - min(each) <= 1
    assert place(functions, after, placed, rebalance=True) == placed


@pytest.mark.parametrize("rebalance", [False, True])
@given(functions=FUNCTIONS, before=SOME_WORKERS, after=SOME_WORKERS)
def test_nothing_stays_on_a_worker_that_is_gone(
    rebalance: bool, functions: dict[str, int], before: list[str], after: list[str]
) -> None:
    placed = place(functions, before, {}, rebalance=False)

    assert set(place(functions, after, placed, rebalance=rebalance).values()) <= set(after)
