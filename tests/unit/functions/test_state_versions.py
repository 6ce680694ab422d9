"""States that earlier code has stored, as the code of today reads and stores them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from sublet import App, Context, Count, Fields, List, Map, SetUnion, State, Sum, TopK, Value
from sublet.functions.app import Function, functions_of
from sublet.functions.errors import StateTypeError
from sublet.functions.plain_state import arrange, plain_value
from sublet.functions.state import StateClock, StateKind, StoredRow, state_kind_of
from sublet.functions.state_versions import MARK, mark_rows


class CartV1(msgspec.Struct):
    items: list[str]


class Cart(msgspec.Struct):
    items: dict[str, int] = {}


def declared(state: Any, **options: Any) -> Function:
    app = App("shop")

    def cart(ctx: Context) -> None: ...

    return app.function(state=state, **options)(cart)


def stored(kind: Any, value: Any, version: int = 1, clock: StateClock | None = None) -> Any:
    """Return what code that declares this kind stores."""
    kind = state_kind_of(kind)
    cell: Any = kind.cell((), clock or StateClock())
    arrange(kind, cell, value)
    if cell.undo:
        cell.undo.clear()
    return mark_rows(version, cell.rows())


def read(function: Function, rows: Sequence[StoredRow], now_ms: int = 0) -> Any:
    kind, versions = function.state_kind, function.state_versions
    assert kind is not None
    assert versions is not None
    clock = StateClock(now_ms)
    return plain_value(kind, kind.cell(versions.read(rows, clock).rows, clock))


def a_cart() -> Function:
    cart = declared(Cart)

    @cart.upgrade(from_version=1)
    def count_items(old: CartV1) -> Cart:
        return Cart(dict(Counter(old.items)))

    return cart


def test_a_state_of_an_earlier_version_becomes_what_its_upgrade_returns() -> None:
    assert read(a_cart(), stored(CartV1, CartV1(["egg", "egg"]))) == Cart({"egg": 2})


def test_a_state_of_this_version_is_read_as_it_is() -> None:
    assert read(a_cart(), stored(Cart, Cart({"egg": 3}), 2)) == Cart({"egg": 3})


def test_without_upgrades_rows_are_stored_as_ever() -> None:
    cart = declared(Cart)
    assert cart.state_versions is not None
    rows = stored(Cart, Cart({"egg": 3}))
    assert cart.state_versions.current == 1
    assert cart.state_versions.marked(rows) == rows
    assert not any(subkey.startswith(MARK) for subkey, _, _ in rows)


@pytest.mark.parametrize("state", [Cart, Map(str, int), List(int), Fields(n=Count()), TopK(3), int])
def test_code_of_an_earlier_version_refuses_what_later_code_has_stored(state: Any) -> None:
    rows = mark_rows(2, [(b"", b"\x01", None)])
    with pytest.raises(StateTypeError, match="has version 2, and this code has version 1"):
        read(declared(state), rows)


def test_upgrades_follow_each_other() -> None:
    cart = declared(Map(str, int))

    @cart.upgrade(from_version=2)
    def as_map(old: Cart) -> dict[str, int]:
        return old.items

    @cart.upgrade(from_version=1)
    def count_items(old: CartV1) -> Cart:
        return Cart(dict(Counter(old.items)))

    assert read(cart, stored(CartV1, CartV1(["egg", "egg"]))) == {"egg": 2}
    assert read(cart, stored(Cart, Cart({"egg": 5}), 2)) == {"egg": 5}
    assert read(cart, stored(Map(str, int), {"egg": 7}, 3)) == {"egg": 7}


@dataclass
class Point:
    x: int = 0


@pytest.mark.parametrize(
    ("was", "old", "now", "new"),
    [
        (int, 3, str, "3"),
        (Value(Point), Point(3), int, 3),
        (Map(str, int), {"a": 1}, Map(str, str), {"a": "1"}),
        (List(int), [1, 2], List(str), ["1", "2"]),
        (List(str), ["a", "b"], SetUnion(str), {"a", "b"}),
        (int, 3, Count(), 3),
        (Sum(), 5, Value(float), 5.0),
        (Value(dict[str, int]), {"a": 1}, Map(str, int), {"a": 1}),
        (int, 4, Fields(total=Sum(), seen=Count()), {"total": 4, "seen": 1}),
        (Fields(total=Sum(), name=str), {"total": 4, "name": "x"}, int, 4),
    ],
)
def test_any_kind_of_state_becomes_any_other(was: Any, old: Any, now: Any, new: Any) -> None:
    function = declared(now)
    given: list[Any] = []

    @function.upgrade(from_version=1, state=was)
    def upgrade(state: Any) -> Any:
        given.append(state)
        return new

    assert read(function, stored(was, old)) == new
    assert given == [old]


class Account(State):
    balance = Sum()
    owners = SetUnion(str)
    often = TopK(3)


def test_fields_about_which_an_upgrade_says_nothing_stay_as_they_are() -> None:
    account = declared(Account)

    @account.upgrade(from_version=1, state={"owner": str})
    def one_owner(old: dict[str, Any]) -> dict[str, Any]:
        return {"owners": {old["owner"]}}

    was = Fields(balance=Sum(), owner=str, often=TopK(3))
    rows = stored(was, {"balance": 7, "owner": "ada", "often": [("tea", 2)]})
    assert read(account, rows) == {"balance": 7, "owners": {"ada"}, "often": [("tea", 2)]}
    # The key has none of the fields that change.
    assert read(account, stored(was, {"balance": 7})) == {
        "balance": 7,
        "owners": set(),
        "often": [],
    }
    versions = account.state_versions
    assert versions is not None
    subkeys = [subkey for subkey, _, _ in versions.read(rows, StateClock()).rows]
    assert not any(subkey.startswith(b"owner\0") for subkey in subkeys)


def test_a_state_that_was_never_declared_comes_as_plain_values() -> None:
    cart = declared(Cart)

    @cart.upgrade(from_version=1)
    def typed(old):  # type: ignore[no-untyped-def]
        return Cart(old["items"])

    assert read(cart, stored(dict, {"items": {"egg": 1}})) == Cart({"egg": 1})


def test_what_has_expired_is_not_upgraded() -> None:
    function = declared(Value(str, ttl="1s", default=""))

    @function.upgrade(from_version=1)
    def to_text(old: int) -> str:
        return str(old)

    rows = stored(Value(int, ttl="1s"), 3)
    assert read(function, rows, now_ms=999) == "3"
    assert read(function, rows, now_ms=1_000) == ""


def test_nothing_lives_longer_because_it_is_upgraded() -> None:
    function = declared(Map(str, str, ttl="1s"))
    versions = function.state_versions
    assert versions is not None

    @function.upgrade(from_version=1, state=Map(str, int, ttl="1s"))
    def renamed(old: dict[str, int]) -> dict[str, str]:
        return {"same": str(old["same"]), "other": "x"}

    first = stored(Map(str, int, ttl="1s"), {"same": 1})
    second = stored(Map(str, int, ttl="1s"), {"later": 1}, clock=StateClock(300))
    ends = {row[0]: row[2] for row in versions.read([*first, *second], StateClock(900)).rows}
    assert ends == {b"\xa4same": 1_000, b"\xa5other": 1_300}


def test_an_upgrade_that_raises_says_where() -> None:
    cart = declared(Cart)

    @cart.upgrade(from_version=1)
    def count_items(old: CartV1) -> Cart:
        return Cart({"egg": len(old.items[7])})

    with pytest.raises(
        StateTypeError,
        match=r"its upgrade from version 1 raised IndexError: .* \(test_state_versions.py:\d+\)",
    ) as caught:
        read(cart, stored(CartV1, CartV1([])))
    assert isinstance(caught.value.__cause__, IndexError)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_upgrade_that_raises_what_ends_a_process_fails_its_own_state(
    error: type[BaseException],
) -> None:
    cart = declared(Cart)

    @cart.upgrade(from_version=1)
    def leave(old: CartV1) -> Cart:
        raise error

    with pytest.raises(StateTypeError, match=rf"from version 1 raised {error.__name__}"):
        read(cart, stored(CartV1, CartV1([])))


def test_an_upgrade_that_forgets_to_return_loses_nothing() -> None:
    cart = declared(Cart)

    @cart.upgrade(from_version=1)
    def count_items(old: CartV1) -> None: ...

    with pytest.raises(StateTypeError, match=r"its upgrade from version 1 failed: .*Cart"):
        read(cart, stored(CartV1, CartV1([])))


def test_a_state_that_does_not_fit_what_its_upgrade_takes_is_an_error() -> None:
    with pytest.raises(StateTypeError, match="its upgrade from version 1 failed"):
        read(a_cart(), stored(int, 3))


def test_a_state_from_before_the_first_upgrade_that_is_left_is_an_error() -> None:
    cart = declared(int)

    @cart.upgrade(from_version=2)
    def kept(old: int) -> int:
        return old

    assert read(cart, stored(int, 3, 2)) == 3
    with pytest.raises(StateTypeError, match="no upgrade from that version"):
        read(cart, stored(int, 3))


def test_rows_of_two_versions_under_one_key_are_nobodys_state() -> None:
    cart = a_cart()
    rows = [*stored(CartV1, CartV1([])), *stored(Cart, Cart(), 2)]
    with pytest.raises(StateTypeError, match="rows of the versions 1, 2"):
        read(cart, rows)


def test_every_window_of_a_key_is_upgraded_by_itself() -> None:
    from sublet import TumblingWindow
    from sublet.functions.state.windowed import OpenWindow, Windowed

    clicks = declared(str, window=TumblingWindow("10ms"))

    @clicks.upgrade(from_version=1)
    def to_text(old: int) -> str:
        return str(old)

    versions = clicks.state_versions
    assert versions is not None
    was = versions.kind_of(1)
    assert isinstance(was, Windowed)
    cell = was.cell((), StateClock())
    for start_ms in (0, 10):
        window = OpenWindow(start_ms, start_ms + 10, f"1.{start_ms}", False, cell.new_cell())
        cell.put(window)
        cell.use(window).set(start_ms + 1)  # type: ignore[attr-defined]
    cell.undo.clear()
    found = read(clicks, cell.rows())
    assert {(each.start_ms, each.end_ms): value for each, value in found.items()} == {
        (0, 10): "1",
        (10, 20): "11",
    }


def test_wrong_declarations_say_what_is_allowed() -> None:
    cart = a_cart()
    stateless = declared(None, kind="stateless")

    def takes_two(one: int, two: int) -> int:
        return one

    async def waits(old: int) -> int:
        return old

    def fine(old: int) -> int:
        return old

    for from_version in (0, -1, 2**16, "1"):
        with pytest.raises(ValueError, match=r"from_version is .*; allowed: 1\.\."):
            cart.upgrade(from_version=from_version)(fine)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="from version 1 is declared twice"):
        cart.upgrade(from_version=1)(fine)
    with pytest.raises(TypeError, match="takes one argument"):
        cart.upgrade(from_version=2)(takes_two)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="plain `def`"):
        cart.upgrade(from_version=2)(waits)
    with pytest.raises(TypeError, match="stateless"):
        stateless.upgrade(from_version=1)(fine)
    with pytest.raises(TypeError, match=r"the upgrade from version 2: .*without its type"):
        cart.upgrade(from_version=2, state=Map)(fine)


def test_a_gap_between_upgrades_is_noticed_when_the_app_is_loaded() -> None:
    app = App("shop")

    @app.function(state=int)
    def cart(ctx: Context) -> None: ...

    @cart.upgrade(from_version=1)
    def first(old: int) -> int:
        return old

    @cart.upgrade(from_version=3)
    def third(old: int) -> int:
        return old

    with pytest.raises(ValueError, match=r"no upgrade from version 2.*from_version=2"):
        functions_of([app])


def kinds_of_a_version(function: Function, version: int) -> StateKind:
    assert function.state_versions is not None
    return function.state_versions.kind_of(version)


def test_what_a_version_was_can_be_asked() -> None:
    cart = a_cart()
    assert repr(kinds_of_a_version(cart, 1)).endswith("CartV1)")
    assert repr(kinds_of_a_version(cart, 2)).endswith("Cart)")
    with pytest.raises(ValueError, match="no version 3; known: 1, 2"):
        kinds_of_a_version(cart, 3)
