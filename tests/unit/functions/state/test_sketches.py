from __future__ import annotations

import math
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.functions.errors import StateTooLargeError, StateTypeError
from sublet.functions.state import Quantiles, QuantilesState, StateClock, TopK, TopKState

WEIGHTED = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 9)), max_size=60)
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def top_k(
    items: list[tuple[int, int]], kind: TopK[int], clock: StateClock | None = None
) -> TopKState[int]:
    cell = kind.cell((), clock or StateClock())
    for item, weight in items:
        cell.add(item, weight)
    return cell


def quantiles(values: list[float], kind: Quantiles | None = None) -> QuantilesState:
    cell = (kind or Quantiles()).cell((), StateClock())
    for value in values:
        cell.add(value)
    return cell


def check_counts(cell: TopKState[int], truth: Counter[int], kind: TopK[int]) -> None:
    partial = cell.partial()
    counts = {msgspec.msgpack.decode(item): count for item, count in partial.counts.items()}
    assert len(counts) <= kind.capacity
    assert partial.error * (kind.capacity + 1) <= truth.total()
    for item, weight in truth.items():
        assert counts.get(item, 0) <= weight <= counts.get(item, 0) + partial.error
    assert all(count > 0 for count in counts.values())


def test_the_heaviest_items_come_first() -> None:
    cell = TopK[str](2).cell((), StateClock())
    for word in ("the", "cat", "and", "the", "dog", "and", "the", "bird"):
        cell.add(word)

    assert cell.top() == [("the", 3), ("and", 2)]
    assert cell.error == 0


@given(WEIGHTED, st.integers(1, 6))
def test_counts_are_never_too_high_and_too_low_by_at_most_the_stated_error(
    items: list[tuple[int, int]], capacity: int
) -> None:
    kind: TopK[int] = TopK(1, capacity, of=int)
    truth: Counter[int] = Counter()
    for item, weight in items:
        truth[item] += weight

    check_counts(top_k(items, kind), truth, kind)


@given(st.lists(WEIGHTED, min_size=2, max_size=5), st.integers(1, 6))
def test_the_error_stays_within_its_bound_when_parts_are_merged(
    parts: list[list[tuple[int, int]]], capacity: int
) -> None:
    kind: TopK[int] = TopK(1, capacity, of=int)
    truth: Counter[int] = Counter()
    cell = top_k([], kind)
    for items in parts:
        for item, weight in items:
            truth[item] += weight
        kind.absorb(cell, top_k(items, kind).partial())

    check_counts(cell, truth, kind)


def test_a_rollback_forgets_how_low_the_counters_were_meanwhile() -> None:
    kind: TopK[int] = TopK(1, 2, of=int)
    cell = top_k([(1, 1), (2, 5)], kind)
    cell.undo.clear()
    cell.add(1, 8)
    cell.add(3, 1)  # all counters are taken, so it looks for the lowest, which is 5
    cell.rollback()

    cell.add(3, 2)

    check_counts(cell, Counter({1: 1, 2: 5, 3: 2}), kind)


def test_top_k_is_bounded_and_checked() -> None:
    kind: TopK[int] = TopK(1, of=int)
    cell = top_k([(1, 1), (2, 1)], kind, StateClock(bytes_max=50))
    with pytest.raises(StateTooLargeError):
        cell.add(3)
    with pytest.raises(StateTooLargeError):
        kind.absorb(cell, top_k([(4, 1)], kind).partial())
    with pytest.raises(StateTooLargeError):
        top_k([(1, 2**62), (1, 2**62)], kind)
    wrong: Any = "x"
    for item, weight in ((wrong, 1), (1, 0), (1, wrong), (1, True)):
        with pytest.raises(StateTypeError):
            cell.add(item, weight)
    with pytest.raises(ValueError, match="allowed"):
        TopK(0)
    with pytest.raises(ValueError, match=r"allowed: 1\.\.3"):
        TopK(5, 3)
    with pytest.raises(TypeError, match="immutable"):
        TopK(1, of=list[int])


def test_a_smaller_capacity_cuts_what_is_stored() -> None:
    cell = top_k([(1, 5), (2, 3), (3, 2)], TopK(1, 3, of=int))
    cell.undo.clear()

    smaller = TopK[int](1, 2, of=int).cell(cell.drain(), StateClock())

    assert smaller.partial().error == 2
    assert smaller.top() == [(1, 3)]


@given(st.lists(FINITE, min_size=1, max_size=60), st.floats(0, 1))
def test_a_quantile_is_within_the_relative_error(values: list[float], q: float) -> None:
    cell = quantiles(values)
    exact = sorted(values)[math.floor(q * (len(values) - 1))]

    estimate = cell.quantile(q)

    assert estimate is not None
    assert cell.count == len(values)
    # The smallest floats have too few digits for any relative error.
    assert estimate == pytest.approx(exact, rel=0.01 + 1e-9, abs=1e-320)


def test_quantiles_of_a_known_distribution() -> None:
    cell = quantiles([float(value) for value in range(1, 1001)])

    assert cell.quantile(0.5) == pytest.approx(500, rel=0.011)
    assert cell.quantile(0.99) == pytest.approx(990, rel=0.011)
    assert cell.quantile(0) == pytest.approx(1, rel=0.01)
    assert quantiles([]).quantile(0.5) is None


def test_too_many_bins_cost_the_values_nearest_to_zero() -> None:
    cell = quantiles([10.0**power for power in range(-5, 5)], Quantiles(bins_max=4))

    assert len(cell.bins()) == 5
    assert cell.quantile(0) == 0
    assert cell.quantile(1) == pytest.approx(10_000, rel=0.01)
    assert cell.count == 10


def test_quantiles_are_bounded_and_checked() -> None:
    wrong: Any = "x"
    cell = Quantiles().cell((), StateClock(bytes_max=50))
    for value in (math.nan, math.inf, 10**400, wrong, None, True):
        with pytest.raises(StateTypeError):
            cell.add(value)
    cell.add(1)
    cell.add(1000)
    cell.add(1000)
    with pytest.raises(StateTooLargeError):
        cell.add(0)
    for q in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match=r"allowed: 0\.\.1"):
            cell.quantile(q)
    for relative_error in (0.0001, 0.9, math.nan):
        with pytest.raises(ValueError, match="allowed"):
            Quantiles(relative_error)
    with pytest.raises(ValueError, match="allowed"):
        Quantiles(bins_max=0)


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        (TopK(1), [2, {}, 0]),
        (TopK(1), "x"),
        (TopK(1), [1, {b"x": "y"}, 0]),
        (Quantiles(), [2, 0.01, {}]),
        (Quantiles(), [1, 0.02, {}]),
        (Quantiles(), {}),
    ],
)
def test_a_stored_sketch_of_another_format_is_refused(kind: Any, stored: Any) -> None:
    with pytest.raises(StateTypeError, match="stored"):
        kind.cell([(b"", msgspec.msgpack.encode(stored), None)], StateClock())
