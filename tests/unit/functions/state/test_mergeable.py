from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.functions.codec import codec_for
from sublet.functions.errors import StateTooLargeError, StateTypeError
from sublet.functions.state import (
    Count,
    Fields,
    List,
    Max,
    Mean,
    Merged,
    Min,
    Quantiles,
    SetUnion,
    StateClock,
    Sum,
    TopK,
    Value,
    mergeable_kind_of,
)

JANUARY = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Tags:
    names: list[str] = field(default_factory=list)


def join(one: Tags, other: Tags) -> Tags:
    one.names = sorted({*one.names, *other.names})
    return one


def repr_of_both(one: object, other: object) -> str:
    return f"{one} {other}"


def add_to(method: str) -> Callable[[Any, Any], None]:
    return lambda cell, value: getattr(cell, method)(value)


INTS = st.integers(-1000, 1000)
# kind, how a handler adds a value, and the values
MERGEABLE: dict[str, tuple[Any, Callable[[Any, Any], None], st.SearchStrategy[Any]]] = {
    "sum": (Sum(), add_to("add"), INTS),
    "count": (Count(), add_to("increment"), st.integers(0, 9)),
    "min": (Min(), add_to("offer"), INTS),
    "max": (Max(str), add_to("offer"), st.text(max_size=3)),
    "mean": (Mean(), add_to("add"), INTS),
    "set_union": (SetUnion(int), add_to("add"), st.integers(0, 20)),
    "top_k_exact": (TopK(3, 30, of=int), add_to("add"), st.integers(0, 20)),
    "quantiles": (Quantiles(), add_to("add"), INTS),
    "quantiles_cut": (Quantiles(0.1, bins_max=4), add_to("add"), INTS),
    "merged": (
        Merged(Tags, zero=Tags, merge=join),
        lambda cell, value: cell.merge(Tags([value])),
        st.sampled_from("abcd"),
    ),
    "fields": (
        mergeable_kind_of(Fields(n=Count(), seen=SetUnion(int), top=TopK(3, of=str))),
        lambda cell, value: (cell.n.increment(), cell.seen.add(value), cell.top.add(str(value))),
        st.integers(0, 9),
    ),
}


def filled(kind: Any, add: Callable[[Any, Any], None], values: list[Any]) -> Any:
    cell = kind.cell((), StateClock())
    for value in values:
        add(cell, value)
    return cell


@pytest.mark.parametrize("name", MERGEABLE)
@settings(max_examples=40)
@given(data=st.data())
def test_parts_merge_in_any_order_and_grouping_to_the_whole(name: str, data: Any) -> None:
    kind, add, values = MERGEABLE[name]
    lists = [data.draw(st.lists(values, max_size=8)) for _ in range(3)]
    one, two, three = (kind.partial_of(filled(kind, add, each)) for each in lists)
    whole = kind.partial_of(filled(kind, add, list(chain(*lists))))
    codec = codec_for(kind.partial_type)
    before = codec.encode_column([one, two, three])

    assert kind.merge(kind.merge(one, two), three) == whole
    assert kind.merge(one, kind.merge(two, three)) == whole
    assert kind.merge(two, one) == kind.merge(one, two)
    assert kind.merge(one, kind.zero()) == one == kind.merge(kind.zero(), one)
    assert codec.encode_column([one, two, three]) == before
    assert codec.decode_column(before) == [one, two, three]


@pytest.mark.parametrize("name", MERGEABLE)
@settings(max_examples=40)
@given(data=st.data())
def test_an_absorbed_part_counts_and_can_be_taken_back(name: str, data: Any) -> None:
    kind, add, values = MERGEABLE[name]
    some, more = (data.draw(st.lists(values, max_size=8)) for _ in range(2))
    cell = filled(kind, add, some)
    if cell.undo:
        cell.undo.clear()
    before = kind.partial_of(cell)
    part = kind.partial_of(filled(kind, add, more))

    kind.absorb(cell, part)
    assert kind.partial_of(cell) == kind.merge(before, part)
    cell.rollback()
    assert kind.partial_of(cell) == before

    kind.absorb(cell, part)
    if cell.undo:
        cell.undo.clear()
    rows = [row for row in cell.drain() if row[1] is not None]
    assert kind.partial_of(kind.cell(rows, StateClock())) == kind.merge(before, part)


@pytest.mark.parametrize("kind", [Value(int), List(int), Fields(n=Count(), cart=Value(int))])
def test_other_kinds_cannot_be_merged(kind: Any) -> None:
    assert mergeable_kind_of(kind) is None


def test_what_handlers_read() -> None:
    clock = StateClock()
    total = Sum().cell((), clock)
    assert total.value == 0
    total.add(2)
    total.add(0.5)
    assert total.value == 2.5

    count = Count().cell((), clock)
    count.increment()
    count.increment(4)
    assert count.value == 5

    smallest: Any = Min(datetime).cell((), clock)
    assert smallest.value is None
    assert (smallest.offer(JANUARY), smallest.offer(JANUARY.replace(year=2027))) == (True, False)
    assert smallest.value == JANUARY
    largest: Any = Max().cell((), clock)
    assert [largest.offer(each) for each in (1, 3.5, 2)] == [True, True, False]
    assert largest.value == 3.5

    mean = Mean().cell((), clock)
    assert mean.value is None
    mean.add(1)
    mean.add(2)
    assert (mean.value, mean.count) == (1.5, 2)

    seen: Any = SetUnion(str).cell((), clock)
    assert (seen.add("a"), seen.add("a"), seen.add("b")) == (True, False, True)
    assert ("a" in seen, "c" in seen, len(seen), sorted(seen)) == (True, False, 2, ["a", "b"])

    longest: Any = Merged(str, zero="", merge=lambda one, other: max(one, other, key=len))
    merged = longest.cell((), clock)
    assert merged.get() == ""
    merged.merge("abc")
    merged.merge("d")
    assert merged.get() == "abc"
    assert not hasattr(merged, "set")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda clock: Sum().cell((), clock).add("1"),  # type: ignore[arg-type]
        lambda clock: Sum().cell((), clock).add(True),
        lambda clock: Count().cell((), clock).increment(-1),
        lambda clock: Count().cell((), clock).increment(1.0),  # type: ignore[arg-type]
        lambda clock: Min[float]().cell((), clock).offer(float("nan")),
        lambda clock: Max[Any](int).cell((), clock).offer("x"),
        lambda clock: Mean().cell((), clock).add(None),  # type: ignore[arg-type]
        lambda clock: SetUnion[Any](str).cell((), clock).add(1),
        lambda clock: Merged[Any](int, zero=0, merge=repr_of_both).cell((), clock).merge(1),
        lambda clock: Sum().cell([(b"", b"\xa1x", None)], clock),
        lambda clock: Mean().cell([(b"", b"\x01", None)], clock),
        lambda clock: Count().cell([(b"x", b"\x01", None)], clock),
        lambda clock: list(SetUnion[int](int).cell([(b"\xa1x", b"\xc0", None)], clock)),
    ],
)
def test_what_does_not_fit_is_a_state_type_error(wrong: Callable[[StateClock], Any]) -> None:
    with pytest.raises(StateTypeError):
        wrong(StateClock())


@pytest.mark.parametrize(
    "grow",
    [
        lambda clock: Sum().cell((), clock).add(2**63),
        lambda clock: (
            Count().cell([(b"", b"\xcf" + b"\x7f" + b"\xff" * 7, None)], clock).increment()
        ),
        lambda clock: Mean().cell((), clock).add(-(2**63) - 1),
        lambda clock: Max[str](str).cell((), clock).offer("x" * 100),
        lambda clock: [SetUnion[int](int).cell((), StateClock(bytes_max=30)).add(1)],
        lambda clock: Merged[str](str, zero="", merge=max).cell((), clock).merge("x" * 100),
    ],
)
def test_growth_above_a_bound_is_refused(grow: Callable[[StateClock], Any]) -> None:
    with pytest.raises(StateTooLargeError):
        grow(StateClock(bytes_max=50))


def test_a_mergeable_declaration_is_checked() -> None:
    with pytest.raises(TypeError, match="immutable"):
        SetUnion(list[int])
    with pytest.raises(TypeError, match="immutable"):
        Min(list[int])
    with pytest.raises(TypeError, match="function of two values"):
        Merged(int, zero=0, merge=3)  # type: ignore[arg-type]
    with pytest.raises(StateTypeError):
        Merged(int, zero="x", merge=max)
