"""A shop in one page: typed state, messages to others, timers, calls and an egress.

sublet run examples/shop.py --workers 2
sublet call cart ada '{"sku": "pen", "quantity": 2}'
sublet call stock pen 0
sublet call checkout ada
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sublet import App, Context, RejectedError

app = App("shop")

PRICES_CENTS = {"pen": 120, "ink": 450, "paper": 80}


@dataclass
class AddItem:
    sku: str
    quantity: int = 1


@dataclass
class Cart:
    items: dict[str, int] = field(default_factory=dict)
    reminder: str = ""
    """The token of the timer that will remind the customer."""


@app.function(state=Cart, slo="50ms")
def cart(ctx: Context, item: AddItem | None) -> dict[str, int]:
    """Put an item into the cart of customer `ctx.key`; a message of null only looks."""
    cart: Cart = ctx.state.get()
    if item is not None:
        if item.sku not in PRICES_CENTS:
            raise RejectedError(f"no {item.sku!r} here; there are: {', '.join(PRICES_CENTS)}")
        cart.items[item.sku] = cart.items.get(item.sku, 0) + item.quantity
        ctx.send(stock, item.sku, -item.quantity)
        if cart.reminder:
            ctx.cancel(cart.reminder)
        cart.reminder = ctx.send_after("30s", remind, ctx.key)
        ctx.state.set(cart)
    return cart.items


@app.function(state=int)
def stock(ctx: Context, change: int) -> int:
    """Change what is left of article `ctx.key`."""
    left: int = ctx.state.get() + change
    ctx.state.set(left)
    return left


@app.function
def remind(ctx: Context) -> None:
    """Tell the world that a customer has left a cart alone."""
    ctx.emit("reminders", ctx.key)


@app.function
async def checkout(ctx: Context) -> dict[str, int]:
    """Ask the customer's cart what is in it and reply with the price of it all."""
    items: dict[str, int] = await ctx.call(cart, ctx.key)
    return {"cents": sum(PRICES_CENTS[sku] * quantity for sku, quantity in items.items())}
