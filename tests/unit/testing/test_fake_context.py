"""Handlers can be called directly, with a context that does nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sublet import (
    App,
    Context,
    Count,
    Map,
    PayloadError,
    RejectedError,
    State,
    Sum,
    TumblingWindow,
    Window,
)
from sublet.testing import FakeContext, Sent, Timer

app = App("shop")


@dataclass
class Order:
    article: str
    quantity: int = 1


class Basket(State):
    articles = Map(str, int)
    total = Sum()


@app.function
def count(ctx: Context[int], times: int) -> int:
    ctx.state.set(ctx.state.get() + times)
    return ctx.state.get()


@app.function
def place(ctx: Context[Basket], order: Order) -> None:
    ctx.state.articles.put(order.article, order.quantity)
    ctx.state.total.add(order.quantity)
    ctx.send(count, order.article, order.quantity)
    ctx.send_after("1h", again, ctx.key, order)
    ctx.cancel(ctx.send_after("1h", "other/unknown", ctx.key, 1))
    ctx.emit("orders", order)


@app.function
def again(ctx: Context, order: Order) -> None:
    ctx.send(place, ctx.key, order)


@app.function
async def asks(ctx: Context, article: str) -> int:
    return await ctx.call(count, article, 2) + await ctx.call("other/unknown", "", [1])


@app.function(window=TumblingWindow("1s"))
def windowed(ctx: Context[Count]) -> int:
    ctx.state.increment()
    return ctx.window.start_ms + ctx.now_ms


@app.function(kind="stateless")
def stateless(ctx: Context, text: str) -> str:
    return ctx.state.get() if text == "state" else text.upper()


def test_a_handler_is_called_with_the_state_that_a_test_sets() -> None:
    ctx = FakeContext(count, "ada", state=3)

    assert count(ctx, 2) == 5
    assert (ctx.key, ctx.function, ctx.state.get()) == ("ada", "shop/count", 5)
    assert count(FakeContext(count), 2) == 2


def test_what_a_handler_asks_for_is_listed() -> None:
    ctx = FakeContext(place, "ada", state={"articles": {"ink": 1}, "total": 1})

    place(ctx, Order("pen", 2))

    assert (ctx.state.total.value, len(ctx.state.articles)) == (3, 2)
    assert ctx.sent == [Sent("shop/count", "pen", 2, "shop/place")]
    assert ctx.timers == [Timer(timedelta(hours=1), "shop/again", "ada", Order("pen", 2))]
    assert ctx.emitted("orders") == [{"article": "pen", "quantity": 2}]
    assert ctx.emitted("mails") == []


async def test_calls_are_answered_by_the_test() -> None:
    def answer(function: str, key: str, message: Any) -> Any:
        return {"shop/count": 40, "other/unknown": 2}[function]

    ctx = FakeContext(asks, "ada", on_call=answer)

    assert await asks(ctx, "pen") == 42
    assert ctx.calls == [
        Sent("shop/count", "pen", 2, "shop/asks", is_call=True),
        Sent("other/unknown", "", [1], "shop/asks", is_call=True),
    ]


async def test_a_call_without_an_answer_says_how_to_give_one() -> None:
    with pytest.raises(RejectedError, match="shop/asks calls shop/count; say what it replies"):
        await asks(FakeContext(asks), "pen")


def test_a_plain_handler_cannot_call() -> None:
    ctx = FakeContext(count)

    with pytest.raises(RejectedError, match="is a plain `def`"):
        ctx.call(count, "other", 1)


@pytest.mark.parametrize(
    ("target", "message", "told"),
    [
        (count, "two", "Expected `int`, got `str`"),
        ("shop/count", "two", "Expected `int`, got `str`"),
        (count, None, "Expected `int`, got `None`"),
        (again, {"quantity": 1}, "missing required field `article`"),
        (again, Order("pen", "two"), r"Expected `int`, got `str` - at `.*quantity`"),  # type: ignore[arg-type]
    ],
)
def test_what_its_target_does_not_take_is_an_error_in_the_line_that_sends_it(
    target: Any, message: Any, told: str
) -> None:
    ctx: FakeContext[Any] = FakeContext(asks, "ada", on_call=lambda *_: 1)
    for act in (
        lambda: ctx.send(target, "k", message),
        lambda: ctx.send_many(target, ["k"], [message]),
        lambda: ctx.send_after("1h", target, "k", message),
        lambda: ctx.call(target, "k", message),
    ):
        with pytest.raises(PayloadError, match=f"shop/.* does not take this message: .*{told}"):
            act()
    assert (ctx.sent, ctx.timers, ctx.calls) == ([], [], [])


def test_what_its_target_can_read_may_be_of_another_type() -> None:
    ctx: FakeContext[Any] = FakeContext(place, "ada")
    ctx.send("shop/again", "k", {"article": "pen", "quantity": 2})
    ctx.send("other/unknown", "k", object.__name__)

    assert [each.message for each in ctx.sent] == [Order("pen", 2), "object"]


def test_a_windowed_handler_has_a_window_and_a_clock() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    ctx = FakeContext(windowed, "ada", window=Window(5, 1005), now=now, state=1)

    assert windowed(ctx) == 5 + now.timestamp() * 1000
    assert ctx.state.value == 2


def test_a_stateless_handler_has_no_state() -> None:
    ctx = FakeContext(stateless)

    assert stateless(ctx, "text") == "TEXT"
    with pytest.raises(AttributeError, match="a stateless function has no state"):
        stateless(ctx, "state")
