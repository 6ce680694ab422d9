"""A plain value becomes the rows of a declared state, or is refused with what is allowed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from sublet.functions.errors import PayloadError, TooLargeError
from sublet.functions.state import (
    Count,
    Fields,
    List,
    Map,
    Max,
    Mean,
    Merged,
    Min,
    Quantiles,
    SetUnion,
    StateClock,
    StateKind,
    Sum,
    TopK,
    Value,
)
from sublet.functions.state.fields import state_kind_of
from sublet.runtime.execution.state_assignment import rows_of
from sublet.runtime.execution.state_view import shown
from sublet.statestore.contract import StateRow


@dataclass(frozen=True)
class Cart:
    items: dict[str, int]
    note: str = ""


def read(kind: StateKind, value: Any) -> Any:
    """Return what somebody sees who reads the rows."""
    return shown(kind.cell(rows_of(kind, value, StateClock()), StateClock()))


@pytest.mark.parametrize(
    ("kind", "value", "seen"),
    [
        (Value(int), 7, 7),
        (Value(int | None), None, None),
        (Value(Cart), {"items": {"a": 1}, "note": "x"}, {"items": {"a": 1}, "note": "x"}),
        (state_kind_of(None), {"any": ["thing"]}, {"any": ["thing"]}),
        (Map(str, int), {"a": 1, "b": 2}, {"a": 1, "b": 2}),
        (Map(str, int), {}, {}),
        (Map(int, str), {"1": "one"}, [(1, "one")]),
        (Map(int, str), [[1, "one"]], [(1, "one")]),
        (Map(bool, int), {"true": 1}, [(True, 1)]),
        (List(int), [3, 1, 2], [3, 1, 2]),
        (List(int, length_max=2), [3, 1, 2], [1, 2]),
        (SetUnion(str), ["a", "a"], ["a"]),
        (Sum(), 2.5, 2.5),
        (Count(), 4, 4),
        (Min(), 4, 4),
        (Max(str), "z", "z"),
        (Max(), None, None),
        (Mean(), [10, 4], {"mean": 2.5, "count": 4}),
        (Merged(int, zero=0, merge=max), 9, 9),
        (Fields(a=Value(int), b=Sum()), {"a": 1, "b": 2}, {"a": 1, "b": 2}),
        (Fields(a=Value(int), b=Sum()), {"b": 2}, {"a": None, "b": 2}),
    ],
)
def test_a_value_becomes_the_state_that_reads_as_it(kind: Any, value: Any, seen: Any) -> None:
    assert read(kind, value) == seen


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        (Value(int), "x", "the state is declared as Value(int); the payload does not fit int"),
        (Value(Cart), {"item": {}}, "missing required field `items`"),
        (Map(str, int), 3, "allowed: an object, or an array of [key, value]"),
        (Map(str, int), [[1]], "allowed: an object, or an array of [key, value]"),
        (Map(int, int), {"one": 1}, "does not fit int"),
        (Map(int, int), {'"one"': 1}, "does not fit int"),
        (Map(str, int), {"a": "b"}, "does not fit int"),
        (List(int), {"a": 1}, "allowed: an array"),
        (SetUnion(int), "a", "allowed: an array"),
        (Sum(), "1", "does not fit"),
        (Count(), -1, "cannot count -1"),
        (Mean(), 3, "allowed: [total, count]"),
        (Mean(), [3], "does not fit"),
        (Fields(a=Value(int)), 3, "allowed: an object with some of a"),
        (Fields(a=Value(int)), {"b": 3}, "there is no field 'b'; allowed: a"),
        (Fields(a=Value(int)), {"a": "x"}, "field a: the payload does not fit int"),
        (TopK(3), [], "such a state cannot be written by hand; delete it, or send"),
        (Quantiles(), [1], "such a state cannot be written by hand"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(kind: Any, value: Any, told: str) -> None:
    with pytest.raises(PayloadError) as refusal:
        rows_of(kind, value, StateClock())

    assert told in str(refusal.value)


def test_a_state_above_its_bound_is_refused() -> None:
    clock = StateClock(bytes_max=100)

    assert rows_of(Value(str), "x" * 50, clock)
    with pytest.raises(TooLargeError, match="allowed: 100"):
        rows_of(Value(str), "x" * 200, clock)


def test_a_state_that_expires_does_so_from_now_on() -> None:
    rows = rows_of(Value(int, ttl="10ms"), 7, StateClock(now_ms=1_000))

    assert rows == [(b"", b"\x07", 1_010)]
    assert StateRow("k", *rows[0]).expires_ms == 1_010
