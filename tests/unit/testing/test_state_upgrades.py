"""A test sets a state as earlier code has stored it, and sees what becomes of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from sublet import NO_RETRY, App, Batch, Context, HandlerError, RejectedError, StateTypeError
from sublet.testing import Harness


def shop(*, breaks: bool = False) -> App:
    app = App("shop", partitions=2)

    @app.function(state=dict[str, int], retry=NO_RETRY)
    def cart(ctx: Context, item: str) -> int:
        if item == "refused":
            ctx.state.set({})
            raise RejectedError(item)
        items = ctx.state.get()
        if item:
            items[item] = items.get(item, 0) + 1
            ctx.state.set(items)
        return sum(items.values())

    @cart.upgrade(from_version=1)
    def count_items(old: list[str]) -> dict[str, int]:
        if breaks:
            raise LookupError("no such item")
        return dict(Counter(old))

    return app


def test_a_handler_sees_the_upgraded_state_and_stores_it() -> None:
    with Harness(shop()) as harness:
        harness.set_state("shop/cart", "ada", ["egg", "egg"], version=1)
        assert harness.state("shop/cart", "ada") == {"egg": 2}
        assert harness.call("shop/cart", "ada", "") == 2
        assert harness.call("shop/cart", "ada", "tea") == 3
        assert harness.states("shop/cart") == {"ada": {"egg": 2, "tea": 1}}
        assert harness.call("shop/cart", "bob", "tea") == 1


def test_a_handler_that_fails_leaves_the_state_to_be_upgraded_again() -> None:
    with Harness(shop()) as harness:
        harness.set_state("shop/cart", "ada", ["egg", "egg"], version=1)
        with pytest.raises(RejectedError):
            harness.call("shop/cart", "ada", "refused")
        assert harness.state("shop/cart", "ada") == {"egg": 2}
        assert harness.call("shop/cart", "ada", "tea") == 3


def test_an_upgrade_that_raises_fails_the_message_and_leaves_the_state_as_it_is() -> None:
    with Harness(shop(breaks=True)) as harness:
        harness.set_state("shop/cart", "ada", ["egg"], version=1)
        with pytest.raises((StateTypeError, HandlerError), match="raised LookupError: no such"):
            harness.call("shop/cart", "ada", "tea")
        assert harness.call("shop/cart", "bob", "tea") == 1
        harness.send("shop/cart", "ada", "tea")
        assert [each.key for each in harness.dead_letters()] == ["ada"]


def test_a_renamed_function_is_found_by_its_names() -> None:
    app = App("shop", partitions=2)

    @app.function(state=int, aliases=["cart"])
    def basket(ctx: Context, amount: int) -> int:
        ctx.state.set(ctx.state.get() + amount)
        if amount > 10:
            ctx.send("shop/cart", ctx.key, 1)
        return ctx.state.get()

    with Harness(app) as harness:
        assert harness.call("shop/cart", "ada", 20) == 20
        assert harness.call(basket, "ada", 1) == 22
        assert harness.state("shop/cart", "ada") == harness.state(basket, "ada") == 22


def test_a_version_that_nobody_knows_cannot_be_set() -> None:
    with Harness(shop()) as harness, pytest.raises(ValueError, match="no version 3; known: 1, 2"):
        harness.set_state("shop/cart", "ada", {}, version=3)


def changed(state: Any, amount: int) -> str:
    text = f"{state.get()}+{amount}"
    state.set(text)
    return text


def of_form(form: str, kind: Any) -> App:
    """An app whose function has text for a state, which was a number."""
    app = App("shop", partitions=1)
    options: dict[str, Any] = {"kind": kind, "state": str}

    def plain(ctx: Context, amount: int) -> str:
        return changed(ctx.state, amount)

    async def waiting(ctx: Context, amount: int) -> str:
        return changed(ctx.state, amount)

    def of_key(ctx: Context, amounts: list[int]) -> list[str]:
        return [changed(ctx.state, amount) for amount in amounts]

    def of_many(batch: Batch[int, Any]) -> list[str]:
        states: Any = batch.state
        own = [states[key if kind == "keyed" else ""] for key in batch.keys]
        return [changed(*each) for each in zip(own, batch.messages, strict=True)]

    match form:
        case "def":
            cart: Any = app.function(name="cart", **options)(plain)
        case "async":
            cart = app.function(name="cart", **options)(waiting)
        case "blocking":
            cart = app.function(name="cart", blocking=True, **options)(plain)
        case "batch_key":
            cart = app.function(name="cart", batch="key", **options)(of_key)
        case "batch":
            cart = app.function(name="cart", batch=True, **options)(of_many)
        case "columns":
            cart = app.function(name="cart", batch="columns", **options)(of_many)

    @cart.upgrade(from_version=1)  # type: ignore[untyped-decorator]
    def to_text(old: int) -> str:
        return str(old)

    return app


@pytest.mark.parametrize("kind", ["keyed", "stateful"])
@pytest.mark.parametrize("form", ["def", "async", "blocking", "batch_key", "batch", "columns"])
def test_every_kind_and_form_of_function_meets_an_upgraded_state(kind: str, form: str) -> None:
    with Harness(of_form(form, kind)) as harness:
        harness.set_state("shop/cart", "ada", 3, version=1)
        assert harness.call("shop/cart", "ada", 1) == "3+1"
        assert harness.call("shop/cart", "ada", 2) == "3+1+2"
        assert harness.state("shop/cart", "ada") == "3+1+2"
