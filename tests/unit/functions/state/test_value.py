from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any

import msgspec
import pydantic
import pytest

from sublet.functions.errors import StateTooLargeError, StateTypeError
from sublet.functions.state import StateClock, Value, state_kind_of


@dataclass
class Cart:
    items: list[str] = field(default_factory=list)
    total: float = 0.0


@dataclass
class BigCart(Cart):
    gift: str = ""


@dataclass(frozen=True)
class Position:
    x: int
    tags: frozenset[str] = frozenset()


class Stats(msgspec.Struct):
    counts: dict[str, int] = {}


class Profile(pydantic.BaseModel):
    names: list[str] = []


class Level(IntEnum):
    LOW = 1


class Socketlike:
    pass


def new_cell(kind: Any, clock: StateClock | None = None, **stored: Any) -> Any:
    return state_kind_of(kind).cell(stored.get("rows", ()), clock or StateClock())


def settle(cell: Any) -> list[Any]:
    cell.undo.clear()
    return cell.drain()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("of", "value", "absent"),
    [
        (int, 7, 0),
        (float, 1.5, 0.0),
        (bool, True, False),
        (str, "grüß", ""),
        (bytes, b"\xff", b""),
        (int | None, 3, None),
        (tuple[int, ...], (1, 2), ()),
        (datetime, datetime(2026, 1, 1, tzinfo=UTC), None),
        (Position, Position(1, frozenset({"a"})), None),
        (list[int], [1, 2], []),
        (dict[str, int], {"a": 1}, {}),
        (set[str], {"a"}, set()),
        (Cart, Cart(["a"], 2.0), Cart()),
        (Stats, Stats({"a": 1}), Stats()),
        (Profile, Profile(names=["a"]), Profile()),
        (Any, {"a": [1]}, None),
    ],
)
def test_a_value_is_set_read_stored_and_loaded(of: Any, value: Any, absent: Any) -> None:
    cell = new_cell(Value(of))
    assert (cell.get(), cell.exists, cell.is_empty) == (absent, False, True)
    assert cell.get(of, value) == value

    cell.set(value)
    assert (cell.get(), cell.get(of), cell.exists, cell.is_empty) == (value, value, True, False)

    [(subkey, data, expires_ms)] = settle(cell)
    assert (subkey, msgspec.msgpack.decode(data, type=Any), expires_ms)[::2] == (b"", None)
    assert cell.drain() == []
    loaded = new_cell(of, rows=[(subkey, data, None)])
    assert loaded.get() == value
    assert loaded.drain() == []

    loaded.clear()
    assert (loaded.get(), loaded.exists) == (absent, False)
    assert settle(loaded) == [(b"", None, None)]


def test_none_is_a_value_where_the_type_allows_it() -> None:
    cell = new_cell(Value(int | None, default=5))
    assert cell.get() == 5

    cell.set(None)

    assert cell.get() is None
    assert cell.exists
    assert settle(cell) == [(b"", b"\xc0", None)]


@pytest.mark.parametrize(
    ("of", "wrong"),
    [
        (int, "1"),
        (int, True),
        (int, 1.0),
        (int, None),
        (int, 2**64),
        (float, "1.0"),
        (bool, 1),
        (str, b"x"),
        (str, "\ud800"),
        (bytes, "x"),
        (Cart, {"items": [], "total": 0.0}),
        (Cart, BigCart()),
        (Cart, Cart(["a"], "much")),  # type: ignore[arg-type]
        (Cart, Cart([1])),  # type: ignore[list-item]
        (list[int], (1, 2)),
        (list[int], ["a"]),
        (set[str], ["a"]),
        (Position, Position("x")),  # type: ignore[arg-type]
        (Any, Socketlike()),
        (Any, {"a": Socketlike()}),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_where_it_is_assigned(of: Any, wrong: Any) -> None:
    cell = new_cell(Value(of))

    with pytest.raises(StateTypeError, match="the state is declared as"):
        cell.set(wrong)

    assert not cell.undo
    assert not cell.exists


@pytest.mark.parametrize(
    ("of", "value", "kept"),
    [(float, 3, 3.0), (int, Level.LOW, 1), (Position, Position(1, {"a"}), None)],  # type: ignore[arg-type]
)
def test_what_a_type_checker_accepts_is_kept_as_the_declared_type(
    of: Any, value: Any, kept: Any
) -> None:
    cell = new_cell(Value(of))
    cell.set(value)

    assert cell.get() == (kept if kept is not None else Position(1, frozenset({"a"})))
    assert type(cell.get()) is of


def test_a_changed_copy_counts_only_when_it_is_set() -> None:
    cell = new_cell(Cart)
    mine = Cart(["a"])
    cell.set(mine)
    mine.items.append("b")
    cell.get().items.append("c")
    cell.get().items.append("d")

    assert cell.get() == Cart(["a"])
    settle(cell)
    cell.get().items.append("e")
    assert not cell.undo
    assert cell.drain() == []
    assert cell.get() == Cart(["a"])


@pytest.mark.parametrize("default", [Cart(["x"]), None])
def test_each_key_gets_a_default_of_its_own(default: Cart | None) -> None:
    kind: Value[Cart] = (
        Value(Cart, default=default)
        if default
        else Value(Cart, default_factory=lambda: Cart(["x"]))
    )
    first, second = (kind.cell((), StateClock()) for _ in range(2))
    first.get().items.append("y")

    assert first.get() == second.get() == Cart(["x"])
    assert not first.exists


def test_a_default_must_fit_and_be_given_once() -> None:
    with pytest.raises(StateTypeError, match="declared as int"):
        Value(int, default="x")
    with pytest.raises(ValueError, match="either"):
        Value(int, default=1, default_factory=int)


@pytest.mark.parametrize("of", [int, str, Cart, list[int], int | None, Any])
def test_a_rollback_restores_what_was_settled(of: Any) -> None:
    values = {int: (1, 2, 3), str: ("a", "b", "c"), Cart: (Cart(["a"]), Cart(["b"]), Cart())}
    first, second, third = values.get(of, ([1], [2], [3]) if of != int | None else (1, None, 3))
    cell = new_cell(of)
    cell.set(first)
    cell.rollback()
    assert not cell.exists
    assert cell.drain() == []

    cell.set(first)
    cell.undo.clear()
    cell.set(second)
    cell.set(third)
    cell.rollback()
    assert cell.get() == first
    assert not cell.undo

    cell.clear()
    cell.rollback()
    assert cell.get() == first
    [(_, data, _)] = cell.drain()
    assert new_cell(of, rows=[(b"", data, None)]).get() == first


@pytest.mark.parametrize("of", [int, Cart, int | None])
def test_stored_bytes_that_do_not_fit_are_named(of: Any) -> None:
    with pytest.raises(StateTypeError, match="stored state does not fit the declared type"):
        new_cell(of, rows=[(b"", msgspec.msgpack.encode("text"), None)]).get()
    with pytest.raises(StateTypeError, match="a different kind of state"):
        new_cell(of, rows=[(b"x", b"\x01", None)]).get()


@pytest.mark.parametrize(
    ("of", "fits", "too_large"),
    [
        (str, "x" * 90, "x" * 101),
        (str, "ä" * 45, "ä" * 50),
        (bytes, b"x" * 90, b"x" * 99),
        (list[int], [1] * 90, [1] * 100),
        (tuple[int, ...], (1,) * 90, (1,) * 100),
    ],
)
def test_a_value_above_the_bound_is_refused(of: Any, fits: Any, too_large: Any) -> None:
    cell = new_cell(of, StateClock(bytes_max=100))
    cell.set(fits)

    with pytest.raises(StateTooLargeError, match="allowed: 100"):
        cell.set(too_large)

    assert cell.get() == fits


def test_the_named_type_must_be_the_declared_one() -> None:
    cell = new_cell(list[int])
    assert cell.get(list[int]) == []
    with pytest.raises(StateTypeError, match=r"declared as list\[int\], not str"):
        cell.get(str)


def test_an_undeclared_state_takes_the_type_it_is_first_read_with() -> None:
    kind = state_kind_of(None)
    clock = StateClock()
    early: Any = kind.cell((), clock)
    early.set({"items": ["a"], "total": 1.0})
    early.undo.clear()
    assert early.get() == {"items": ["a"], "total": 1.0}

    assert early.get(Cart) == Cart(["a"], 1.0)

    assert early.get() == Cart(["a"], 1.0)
    late: Any = kind.cell((), clock)
    assert late.get() == Cart()
    for cell in (early, late):
        with pytest.raises(StateTypeError, match="first read with"):
            cell.get(int)
        with pytest.raises(StateTypeError):
            cell.set(1)
    early.set(Cart(["b"]))
    assert early.get(Cart) == Cart(["b"])


def test_an_undeclared_state_is_as_fast_as_a_declared_one_once_it_is_known() -> None:
    kind = state_kind_of(None)
    first: Any = kind.cell((), StateClock())
    first.set(first.get(int) + 1)

    assert type(kind.cell((), StateClock())) is type(new_cell(int))
    assert first.get() == 1


@pytest.mark.parametrize("of", [int, list[int]])
def test_a_value_is_gone_after_its_time(of: Any) -> None:
    clock = StateClock(now_ms=1000)
    kind: Value[Any] = Value(of, ttl="1s")
    one, two, empty = (1, 2, 0) if of is int else ([1], [2], [])
    cell: Any = kind.cell((), clock)
    cell.set(one)
    [row] = settle(cell)
    assert row[2] == 2000

    clock.now_ms = 1999
    assert cell.get() == one
    cell.set(two)
    cell.rollback()
    clock.now_ms = 2000
    assert (cell.get(), cell.exists, cell.is_empty) == (empty, False, True)
    assert not cell.undo

    loaded: Any = kind.cell([row], clock)
    assert not loaded.exists
    loaded.set(one)
    assert settle(loaded) == [(b"", row[1], 3000)]


def test_setting_an_equal_value_lengthens_its_life() -> None:
    clock = StateClock()
    cell: Any = Value(int, ttl="1s").cell((), clock)
    cell.set(1)
    settle(cell)
    clock.now_ms = 500
    cell.set(1)

    assert settle(cell) == [(b"", b"\x01", 1500)]


def test_a_value_lives_from_when_it_was_set_however_long_the_handler_had_run_before() -> None:
    clock = StateClock(now_ms=1_000, read=lambda: 4_000)
    cell: Any = Value(int, ttl="1s").cell((), clock)
    cell.set(1)

    assert settle(cell) == [(b"", b"\x01", 5_000)]
    clock.now_ms = 4_999
    assert cell.exists
    clock.now_ms = 5_000
    assert not cell.exists


def test_the_moment_is_never_before_the_clock_that_was_set() -> None:
    assert StateClock(now_ms=1_000).moment_ms() == 1_000
    assert StateClock(now_ms=1_000, read=lambda: 900).moment_ms() == 1_000
    assert StateClock(now_ms=1_000, read=lambda: 1_100).moment_ms() == 1_100


def test_a_shorter_ttl_counts_for_what_is_stored_and_none_honours_it() -> None:
    clock = StateClock()
    rows = [(b"", b"\x01", 10_000)]
    shortened: Any = Value(int, ttl="1s").cell(rows, clock)
    without: Any = Value(int).cell(rows, clock)

    clock.now_ms = 1000
    assert not shortened.exists
    assert without.exists
    clock.now_ms = 10_000
    assert not without.exists


@pytest.mark.parametrize("ttl", ["0s", 0.5, "soon"])
def test_a_ttl_is_a_millisecond_or_more(ttl: Any) -> None:
    with pytest.raises(ValueError, match="allowed"):
        Value(int, ttl=ttl)


def test_the_size_follows_the_value() -> None:
    cell = new_cell(list[int])
    small = cell.size_bytes
    cell.set([1] * 1000)
    assert cell.size_bytes > small + 1000
    text = new_cell(str)
    text.set("x" * 1000)
    assert text.size_bytes >= 1000
