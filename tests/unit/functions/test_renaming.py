"""Functions with several names, and the one under which they are stored."""

from __future__ import annotations

from typing import Any

import pytest

from sublet import App, Context
from sublet.functions.app import Function, functions_of
from sublet.functions.renaming import RenameError, as_stored, find_function, stored_name


def declared(name: str = "basket", aliases: Any = ("cart", "wagon")) -> Function:
    app = App("shop")

    @app.function(name=name, aliases=aliases)
    def handler(ctx: Context) -> None: ...

    return handler


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ((), "shop/basket"),
        (("shop/basket",), "shop/basket"),
        (("shop/cart", "shop/other"), "shop/cart"),
        (("shop/wagon",), "shop/wagon"),
    ],
)
def test_a_function_stays_where_its_state_is(stored: tuple[str, ...], name: str) -> None:
    assert stored_name(declared(), stored) == name


def test_state_under_two_names_is_for_people_to_decide() -> None:
    with pytest.raises(RenameError, match="shop/basket and shop/cart are both stored") as told:
        stored_name(declared(), ["shop/cart", "shop/basket"])
    assert "declare name='cart' to serve shop/cart" in str(told.value)


def test_a_function_that_is_stored_under_a_former_name_has_its_own_among_its_aliases() -> None:
    basket = declared()
    functions = as_stored({"shop/basket": basket}, ["shop/cart"])
    (found,) = functions.values()
    assert list(functions) == ["shop/cart"]
    assert (found.name, found.aliases) == ("shop/cart", ("shop/basket", "shop/wagon"))
    assert found.handler is basket.handler
    assert basket.name == "shop/basket"
    for name in ("shop/cart", "shop/basket", "shop/wagon"):
        assert find_function(functions, name) is found
    assert find_function(functions, "shop/other") is None


def test_nothing_changes_for_functions_that_were_never_renamed() -> None:
    functions = {"shop/basket": declared(aliases=())}
    assert as_stored(functions, ["shop/basket", "shop/gone"]) is functions


def test_who_waits_for_a_renamed_function_waits_for_what_is_stored() -> None:
    app = App("shop")

    @app.function(aliases=["visits"])
    def clicks(ctx: Context) -> None: ...

    @app.function(upstream=[clicks])
    def daily(ctx: Context) -> None: ...

    found = as_stored(functions_of([app]), ["shop/visits"])
    assert found["shop/daily"].upstream_functions == ["shop/visits"]
    assert found["shop/daily"].name == "shop/daily"
    assert daily.upstream_functions == ["shop/clicks"]


@pytest.mark.parametrize(
    ("aliases", "error"),
    [
        ("cart", "aliases is 'cart'; allowed: a list"),
        ([1], "allowed: a list of names"),
        (["desk/cart"], "of the same app"),
        (["a b"], "of the same app"),
        (["basket"], "other names of it, each of them once"),
        (["cart", "cart"], "other names of it, each of them once"),
    ],
)
def test_wrong_aliases_say_what_is_allowed(aliases: Any, error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        declared(aliases=aliases)


def test_a_name_stands_for_one_function() -> None:
    app = App("shop")

    @app.function(aliases=["cart"])
    def basket(ctx: Context) -> None: ...

    @app.function
    def cart(ctx: Context) -> None: ...

    with pytest.raises(ValueError, match="shop/cart is a name or alias of both"):
        functions_of([app])
