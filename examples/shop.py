"""A shop in one page: typed state, messages to others, timers, calls, sums and an egress.

    sublet run examples/shop.py --workers 2
    sublet call cart ada '{"sku": "pen", "quantity": 2}'
    sublet call stock pen 0
    sublet call checkout ada
    sublet call sold pen 0

tests/unit/examples/test_shop.py tests it without a worker, an hour in no time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sublet import App, Context, RejectedError, Sum

app = App("shop")

PRICES_CENTS = {"pen": 120, "ink": 450, "paper": 80}
ABANDONED_AFTER = "1h"


@dataclass
class AddItem:
    sku: str
    quantity: int = 1


@dataclass
class Cart:
    items: dict[str, int] = field(default_factory=dict)
    reminder: str = ""
    """The token of the timer that will remind the customer; empty for none."""


@dataclass
class Order:
    customer: str
    items: dict[str, int]
    cents: int


@app.function(state=Cart, slo="50ms")
def cart(ctx: Context, message: AddItem | Literal["take"] | None) -> dict[str, int]:
    """Add to the cart of customer `ctx.key`; "take" empties it, null only looks. Reply with what
    is (or was) in it."""
    cart: Cart = ctx.state.get()
    if message is None:
        return cart.items
    if cart.reminder:
        ctx.cancel(cart.reminder)
    if message == "take":
        ctx.state.clear()
        return cart.items
    if message.sku not in PRICES_CENTS:
        raise RejectedError(f"no {message.sku!r} here; there are: {', '.join(PRICES_CENTS)}")
    cart.items[message.sku] = cart.items.get(message.sku, 0) + message.quantity
    cart.reminder = ctx.send_after(ABANDONED_AFTER, remind, ctx.key)
    ctx.state.set(cart)
    ctx.send(stock, message.sku, -message.quantity)
    return cart.items


@app.function(state=int)
def stock(ctx: Context, change: int) -> int:
    """Change what is left of article `ctx.key`."""
    left: int = ctx.state.get() + change
    ctx.state.set(left)
    return left


@app.function
def remind(ctx: Context) -> None:
    """Tell the world that customer `ctx.key` has left a cart alone."""
    ctx.emit("reminders", ctx.key)


@app.function
async def checkout(ctx: Context) -> Order:
    """Buy what is in the cart of customer `ctx.key`.

    If this fails half way it is run again, and gets the same items: calls are on record.
    """
    items: dict[str, int] = await ctx.call(cart, ctx.key, "take")
    if not items:
        raise RejectedError(f"the cart of {ctx.key} is empty")
    cents = sum(PRICES_CENTS[sku] * quantity for sku, quantity in items.items())
    order = Order(ctx.key, items, cents)
    ctx.emit("orders", order)
    ctx.send_many(sold, list(items), list(items.values()))
    return order


@app.function(state=Sum())
def sold(ctx: Context, quantity: int) -> int:
    """Add to how many of article `ctx.key` were sold, and reply with it."""
    ctx.state.add(quantity)
    return int(ctx.state.value)
