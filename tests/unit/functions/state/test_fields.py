from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from sublet.functions.errors import StateTypeError
from sublet.functions.state import (
    Count,
    Fields,
    List,
    Map,
    SetUnion,
    State,
    StateClock,
    Sum,
    Value,
    mergeable_kind_of,
    state_kind_of,
)


@dataclass
class Cart:
    items: list[str] = field(default_factory=list)


class Sheet:
    """Has a method that kinds of state have too."""

    def cell(self) -> None: ...


def new_cell(declaration: Any, rows: Any = ()) -> Any:
    return state_kind_of(declaration).cell(rows, StateClock())


def test_fields_are_states_of_their_own_under_one_key() -> None:
    kind = Fields(cart=Value(Cart), seen=SetUnion(str), n=int)
    cell: Any = kind.cell((), StateClock())
    cell.cart.set(Cart(["a"]))
    cell.seen.add("x")
    assert (len(cell.undo), cell.is_empty) == (2, False)

    cell.undo.clear()
    rows = cell.drain()

    assert [row[0] for row in rows] == [b"cart\0", b"seen\0\xa1x"]
    assert (cell.drain(), len(cell.undo)) == ([], 0)
    loaded: Any = kind.cell(rows, StateClock())
    assert (loaded.cart.get(), list(loaded.seen), loaded.n.get()) == (Cart(["a"]), ["x"], 0)
    loaded.n.set(3)
    loaded.undo.clear()
    assert loaded.drain() == [(b"n\0", b"\x03", None)]


def test_a_rollback_takes_back_all_fields() -> None:
    cell = new_cell({"n": int, "log": List(str), "by": {"day": Map(str, int)}})
    cell.n.set(1)
    cell.by.day.put("monday", 1)
    cell.undo.clear()
    cell.n.set(2)
    cell.log.append("x")
    cell.by.day.put("monday", 2)

    cell.rollback()

    assert (cell.n.get(), list(cell.log), cell.by.day.items()) == (1, [], [("monday", 1)])
    assert not cell.undo
    assert [row[0] for row in cell.drain()] == [b"n\0", b"by\0day\0\xa6monday"]


def test_a_field_cannot_be_assigned_or_mistyped() -> None:
    cell = new_cell({"n": int})
    with pytest.raises(AttributeError, match=r"ctx\.state\.n\.set"):
        cell.n = 3
    with pytest.raises(AttributeError):
        _ = cell.m


@pytest.mark.parametrize("name", ["", "a b", "_x", "undo", "drain", "rollback", "rows"])
def test_a_field_needs_a_name_that_is_free(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be named"):
        state_kind_of({name: int})


def test_a_stored_field_that_does_not_fit_is_named() -> None:
    with pytest.raises(StateTypeError, match="field n: stored state does not fit"):
        new_cell({"n": int}, [(b"n\0", b"\xa1x", None)])
    with pytest.raises(StateTypeError, match="no fields"):
        new_cell({"n": int}, [(b"", b"\x01", None)])


def test_rows_of_a_field_that_is_no_longer_declared_stay_where_they_are() -> None:
    cell = new_cell({"n": int}, [(b"old\0", b"\x01", None), (b"n\0", b"\x02", None)])

    assert cell.n.get() == 2
    assert cell.drain() == []


@pytest.mark.parametrize(
    ("declaration", "kind"),
    [
        (None, "Value(typing.Any)"),
        (int, "Value(int)"),
        (list[int], "Value(list[int])"),
        (int | None, "Value(int | None)"),
        (Value(str), "Value(str)"),
        (Map(str, int), "Map(str, int)"),
        (Sum(), "Sum()"),
        ({"n": int, "c": Count()}, "Fields(n=Value(int), c=Count())"),
    ],
)
def test_a_declaration_becomes_a_kind(declaration: Any, kind: str) -> None:
    assert repr(state_kind_of(declaration)) == kind


@pytest.mark.parametrize(
    ("declaration", "text"),
    [
        (object(), "cannot be encoded"),
        (Sheet, "cannot be encoded"),
        (Map, r"write state=Map\(…\)"),
        (Sum, r"write state=Sum\(…\)"),
        ({1: int}, "must be strings"),
        ("int", "cannot be encoded"),
    ],
)
def test_a_declaration_that_means_nothing_is_refused(declaration: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        state_kind_of(declaration)


def test_fields_cannot_be_empty() -> None:
    with pytest.raises(ValueError, match="at least one"):
        state_kind_of({})


class Account(State):
    LIMIT = 10

    balance = Sum()
    cart = Value(Cart)

    def is_full(self) -> bool:
        return self.balance.value > self.LIMIT


class JointAccount(Account):
    owners = SetUnion(str)


def test_a_class_of_fields_is_the_state() -> None:
    cell = new_cell(Account)
    cell.balance.add(20)
    cell.cart.set(Cart(["a"]))

    assert isinstance(cell, Account)
    assert cell.is_full()
    cell.undo.clear()
    rows = cell.drain()
    assert [row[0] for row in rows] == [b"balance\0", b"cart\0"]
    loaded = new_cell({"balance": Sum(), "cart": Cart}, rows)
    assert (loaded.balance.value, loaded.cart.get()) == (20, Cart(["a"]))


def test_a_class_of_fields_inherits_fields() -> None:
    assert repr(state_kind_of(JointAccount)) == "JointAccount"
    cell = new_cell(JointAccount)
    cell.owners.add("ada")
    cell.balance.add(1)
    cell.rollback()

    assert (list(cell.owners), cell.balance.value, cell.is_empty) == ([], 0, True)


def test_a_class_of_fields_can_be_merged_if_its_fields_can() -> None:
    class Totals(State):
        total = Sum()
        count = Count()

    kind = mergeable_kind_of(state_kind_of(Totals))

    assert kind is not None
    assert isinstance(kind.cell((), StateClock()), Totals)
    assert mergeable_kind_of(state_kind_of(Account)) is None


def test_a_field_of_a_class_is_not_assigned_to() -> None:
    with pytest.raises(AttributeError, match=r"such as ctx\.state\.balance\.set"):
        new_cell(Account).balance = 3


@pytest.mark.parametrize(
    ("body", "error", "text"),
    [
        ({"cart": Cart}, TypeError, r"Odd.cart is a type; write cart = Value\(Cart\)"),
        ({"__annotations__": {"cart": Cart}}, TypeError, "Odd.cart has a type but no kind"),
        ({"rows": Sum()}, ValueError, "a state field cannot be named 'rows'"),
        ({"_total": Sum()}, ValueError, "a state field cannot be named '_total'"),
    ],
)
def test_a_class_that_cannot_be_a_state_is_refused(
    body: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        type("Odd", (State,), body)


def test_a_class_without_fields_cannot_be_declared() -> None:
    class Empty(State):
        pass

    with pytest.raises(TypeError, match="Empty has no fields"):
        state_kind_of(Empty)
