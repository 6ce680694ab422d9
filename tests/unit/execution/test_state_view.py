"""What people see of each kind of state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from sublet.functions.state import (
    Count,
    Fields,
    List,
    Map,
    Max,
    Mean,
    Merged,
    Quantiles,
    SetUnion,
    StateClock,
    Sum,
    TopK,
    Value,
    state_kind_of,
)
from sublet.runtime.execution.state_view import state_json
from sublet.statestore.contract import StateRow


class Item(msgspec.Struct):
    sku: str


def rows_after(kind: Any, change: Callable[[Any], object]) -> list[StateRow]:
    cell = kind.cell((), StateClock(1_000))
    change(cell)
    cell.undo.clear()
    return [StateRow("k", subkey, value, end) for subkey, value, end in cell.drain()]


def fill(cell: Any, *items: Any, by: str = "add") -> None:
    for item in items:
        getattr(cell, by)(item)


@pytest.mark.parametrize(
    ("declared", "change", "shown"),
    [
        (None, lambda cell: cell.set({"a": [1, 2.5, None]}), {"a": [1, 2.5, None]}),
        (int, lambda cell: cell.set(3), 3),
        (Value(Item, default=Item("")), lambda cell: cell.set(Item("tea")), {"sku": "tea"}),
        (Map(str, Item), lambda cell: cell.put("a", Item("tea")), {"a": {"sku": "tea"}}),
        (Map(int, int), lambda cell: cell.put(1, 2), [[1, 2]]),
        (List(int), lambda cell: cell.extend([1, 2]), [1, 2]),
        (Sum(), lambda cell: cell.add(2), 2),
        (Count(), lambda cell: cell.increment(), 1),
        (Max(), lambda cell: cell.offer(7), 7),
        (Mean(), lambda cell: fill(cell, 1, 2), {"mean": 1.5, "count": 2}),
        (SetUnion(str), lambda cell: cell.add("a"), ["a"]),
        (Merged(int, zero=0, merge=max), lambda cell: cell.merge(4), 4),
        (TopK(2), lambda cell: fill(cell, "a", "b", "a"), [["a", 2], ["b", 1]]),
        (
            Fields(n=Sum(), words=Map(str, int)),
            lambda cell: (cell.n.add(1), cell.words.put("a", 1)),
            {"n": 1, "words": {"a": 1}},
        ),
    ],
)
def test_a_state_is_shown_as_plain_values(
    declared: Any, change: Callable[[Any], object], shown: object
) -> None:
    kind = state_kind_of(declared)

    assert msgspec.json.decode(state_json(kind, rows_after(kind, change), 1_000)) == shown


def test_quantiles_are_shown_by_what_they_say() -> None:
    kind = Quantiles()
    rows = rows_after(kind, lambda cell: fill(cell, *range(1, 101)))

    shown = msgspec.json.decode(state_json(kind, rows, 1_000))

    assert shown["count"] == 100
    assert shown["p50"] == pytest.approx(50, rel=0.03)
    assert shown["p99"] == pytest.approx(99, rel=0.03)


def test_a_key_without_state_is_null() -> None:
    assert state_json(state_kind_of(int), [], 0) == "null"
    assert state_json(None, [], 0) == "null"


def test_what_has_expired_is_not_shown() -> None:
    kind = Value(int, ttl="1s")
    rows = rows_after(kind, lambda cell: cell.set(3))

    assert state_json(kind, rows, 1_999) == "3"
    assert state_json(kind, rows, 2_001) == "null"
