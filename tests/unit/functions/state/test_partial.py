"""States gathered in parts: what handlers may do with them, and that merging them is exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet import App, Batch, Context, SessionWindow, TumblingWindow
from sublet.functions.codec import codec_for
from sublet.functions.errors import EncodeError, HandlerError, ReadsStateError, StateTooLargeError
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
    state_kind_of,
)
from sublet.functions.state.partial import (
    absorb,
    has_refused,
    is_mergeable,
    partial_cell,
    partial_value,
    partial_windows,
    runs_in_parts,
)
from sublet.functions.state.windowed import NoWindowState, OpenWindow, Windowed


def change_fields(cell: Any, number: int) -> None:
    if number % 2:
        cell.total.add(number)
    else:
        cell.inner.seen.add(number)


# kind, how a handler adds, what the owner can see
KINDS: dict[str, tuple[StateKind, Callable[[Any, int], Any], Callable[[Any], Any]]] = {
    "sum": (Sum(), lambda cell, n: cell.add(n), lambda cell: cell.value),
    "count": (Count(), lambda cell, n: cell.increment(n), lambda cell: cell.value),
    "min": (Min(), lambda cell, n: cell.offer(n), lambda cell: cell.value),
    "max": (Max(str), lambda cell, n: cell.offer(str(n)), lambda cell: cell.value),
    "mean": (Mean(), lambda cell, n: cell.add(n), lambda cell: cell.total_and_count),
    "set_union": (SetUnion(int), lambda cell, n: cell.add(n), sorted),
    "top_k": (TopK(5, of=int), lambda cell, n: cell.add(n), lambda cell: cell.partial()),
    "quantiles": (Quantiles(), lambda cell, n: cell.add(n), lambda cell: cell.bins()),
    "merged": (
        Merged(list[int], zero=list, merge=lambda one, other: sorted(one + other)),
        lambda cell, n: cell.merge([n]),
        lambda cell: cell.get(),
    ),
    "fields": (
        Fields(total=Sum(), inner=Fields(seen=SetUnion(int))),
        change_fields,
        lambda cell: (cell.total.value, sorted(cell.inner.seen)),
    ),
}


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=40)
@given(data=st.data())
def test_parts_and_home_merged_in_any_order_give_what_one_state_would_have(
    name: str, data: Any
) -> None:
    kind, add, view = KINDS[name]
    clock = StateClock()
    one: Any = kind.cell((), clock)
    home: Any = kind.cell((), clock)
    parts: list[Any] = [partial_cell(kind, clock) for _ in range(3)]
    numbers = st.tuples(st.integers(0, 9), st.integers(0, 3), st.booleans())
    for number, place, fails in data.draw(st.lists(numbers, max_size=30)):
        cell = home if place == 3 else parts[place]
        add(cell, number)
        if fails:
            cell.rollback()
        elif cell.undo:
            cell.undo.clear()
        if not fails:
            add(one, number)
        assert not cell.undo
    values = [partial_value(kind, each) for each in parts if not each.is_empty]
    for value in data.draw(st.permutations(values)):
        absorb(kind, home, value)
        home.rollback()
        absorb(kind, home, value)
        if home.undo:
            home.undo.clear()

    assert view(home) == view(one)
    assert home.is_empty == one.is_empty
    assert view(kind.cell(home.rows(), clock)) == view(one)
    assert all(each.drain() == [] for each in parts)


READS: list[tuple[str, Callable[[Any], Any]]] = [
    ("sum", lambda cell: cell.value),
    ("count", lambda cell: cell.value),
    ("min", lambda cell: cell.value),
    ("min", lambda cell: "new" if cell.offer(3) else "old"),
    ("min", lambda cell: cell.offer(3) == True),  # noqa: E712  # This is what is refused.
    ("mean", lambda cell: cell.value),
    ("mean", lambda cell: cell.count),
    ("mean", lambda cell: cell.total_and_count),
    ("set_union", len),
    ("set_union", list),
    ("set_union", bool),
    ("set_union", lambda cell: 3 in cell),
    ("set_union", lambda cell: not cell.add(3)),
    ("set_union", lambda cell: f"{cell.add(3)}"),
    ("top_k", lambda cell: cell.top()),
    ("top_k", lambda cell: cell.error),
    ("top_k", lambda cell: cell.partial()),
    ("top_k", lambda cell: cell.replace(None)),
    ("quantiles", lambda cell: cell.quantile(0.5)),
    ("quantiles", lambda cell: cell.count),
    ("quantiles", lambda cell: cell.bins()),
    ("merged", lambda cell: cell.get()),
    ("merged", lambda cell: hasattr(cell, "get")),
    ("fields", lambda cell: cell.total.value),
    ("fields", lambda cell: 3 in cell.inner.seen),
]


@pytest.mark.parametrize(("name", "read"), READS)
def test_whatever_tells_of_the_state_is_refused(name: str, read: Callable[[Any], Any]) -> None:
    kind, add, _ = KINDS[name]
    cell: Any = partial_cell(kind, StateClock())
    add(cell, 4)
    cell.undo.clear()
    before = partial_value(kind, cell)
    with pytest.raises(ReadsStateError):
        read(cell)
    assert has_refused(cell)
    cell.rollback()
    assert not has_refused(cell)
    assert partial_value(kind, cell) == before


def test_a_handler_that_catches_every_exception_does_not_catch_a_refusal() -> None:
    cell: Any = partial_cell(Sum(), StateClock())

    def handler() -> None:
        try:
            cell.add(cell.value + 1)
        except Exception:
            cell.add(1)

    with pytest.raises(ReadsStateError):
        handler()


@pytest.mark.parametrize("name", ["sum", "fields"])
def test_what_is_added_after_a_refusal_that_was_kept_secret_is_not_handed_out(name: str) -> None:
    kind = KINDS[name][0]
    cell: Any = partial_cell(kind, StateClock())
    total = cell if name == "sum" else cell.total
    try:
        total.add(total.value + 1)
    except BaseException:
        total.add(1)
    cell.undo.clear()

    assert has_refused(cell)
    with pytest.raises(ReadsStateError, match="suppressed"):
        partial_value(kind, cell)


def test_what_an_addition_tells_cannot_be_sent() -> None:
    cell: Any = partial_cell(SetUnion(str), StateClock())
    with pytest.raises((EncodeError, ReadsStateError)):
        codec_for(Any).encode({"new": cell.add("x")})


def divide(one: int, other: int) -> int:
    return one // other


@pytest.mark.parametrize(
    ("kind", "add"),
    [
        (Sum(), lambda cell: cell.add(2**63 - 1) or cell.add(1)),
        (Sum(), lambda cell: cell.add("text")),
        (Max(int | str), lambda cell: (cell.offer(1), cell.offer("x"))),
        (SetUnion(str), lambda cell: cell.add("x" * 200)),
        (Merged(int, zero=0, merge=divide), lambda cell: cell.merge(0)),
    ],
)
def test_an_addition_that_fails_is_refused_because_it_might_not_fail_at_home(
    kind: Any, add: Callable[[Any], Any]
) -> None:
    cell: Any = partial_cell(kind, StateClock(bytes_max=100))
    with pytest.raises(ReadsStateError, match="failed"):
        add(cell)
    cell.rollback()
    assert cell.is_empty


def test_a_part_that_is_too_much_for_the_state_leaves_it_as_it_was() -> None:
    kind = SetUnion(str)
    home, part = kind.cell((), StateClock(bytes_max=200)), partial_cell(kind, StateClock())
    home.add("here")
    home.undo.clear()
    for each in range(10):
        part.add(str(each))  # type: ignore[attr-defined]
    part.undo.clear()
    with pytest.raises(StateTooLargeError):
        absorb(kind, home, partial_value(kind, part))
    home.rollback()

    assert list(home) == ["here"]


def test_a_merge_function_that_raises_is_the_users_fault() -> None:
    kind = Merged(int, zero=1, merge=divide)
    home = kind.cell((), StateClock())
    with pytest.raises(HandlerError, match="merging raised ZeroDivisionError"):
        absorb(kind, home, b"\x00")
    home.rollback()
    assert home.is_empty


class Theirs(Sum):
    """Nobody knows what its cells can do."""


def test_kinds_that_cannot_be_merged_cannot_be_gathered_in_parts() -> None:
    refused = [Value(int), Map(str, int), List(int), state_kind_of(None), Fields(a=Sum(), b=int)]
    for kind in [*refused, Theirs(), Fields(a=Theirs()), Windowed(Value(int), 5)]:
        assert not is_mergeable(kind)
        with pytest.raises(TypeError, match="cannot be gathered in parts"):
            partial_cell(kind, StateClock())
    assert is_mergeable(Fields(a=Sum(), b=Fields(c=Max())))
    assert is_mergeable(Windowed(Sum(), 5))


def test_a_kind_that_cannot_be_hashed_is_not_gathered_in_parts() -> None:
    class Unhashable(Sum):
        __hash__ = None  # type: ignore[assignment]

    assert not is_mergeable(Unhashable())


def test_only_functions_of_single_keys_without_order_run_in_parts() -> None:
    app = App("app")

    def handler(ctx: Context, message: Any) -> None: ...
    def whole(batch: Batch[Any]) -> None: ...

    def made(**options: Any) -> Any:
        return app.function(**{"order": "none", **options})

    assert runs_in_parts(made(name="a", state=Sum())(handler))
    assert runs_in_parts(made(name="b", state=Sum(), batch="key")(handler))
    assert runs_in_parts(made(name="c", state=Sum(), window=TumblingWindow(10))(handler))
    assert runs_in_parts(made(name="d", window=SessionWindow(10))(handler))
    assert not runs_in_parts(made(name="i", state=Sum(), order="key")(handler))
    assert not runs_in_parts(made(name="e", state=Sum(), batch=True)(whole))
    assert not runs_in_parts(made(name="f", state=Sum(), kind="stateful")(handler))
    assert not runs_in_parts(made(name="g", kind="stateless")(handler))
    assert not runs_in_parts(made(name="h", window=TumblingWindow(10))(handler))


def test_windows_that_are_gathered_in_parts_are_bounded_by_sending_messages_home() -> None:
    cell: Any = partial_cell(kind := Windowed(Sum(), open_max=2), StateClock())
    for start_ms in (0, 10):
        cell.put(OpenWindow(start_ms, start_ms + 10, str(start_ms), False, cell.new_cell()))
    with pytest.raises(ReadsStateError):
        cell.put(OpenWindow(20, 30, "20", False, cell.new_cell()))
    cell.undo.clear()
    assert cell.size_bytes > 0
    assert [each[:2] for each in partial_windows(kind, cell)] == [(0, 10), (10, 20)]


def test_windows_without_state_travel_as_nothing() -> None:
    kind = Windowed(NoWindowState(), open_max=5)
    cell: Any = partial_cell(kind, StateClock())
    cell.put(window := OpenWindow(0, 10, "~1", False, cell.new_cell()))
    with pytest.raises(ReadsStateError):
        cell.use(window).set(5)
    cell.rollback()
    cell.put(window)
    cell.undo.clear()
    assert partial_windows(kind, cell) == [(0, 10, b"\xc0")]
