"""Two apps that share a store, and the next version of one of them."""

from __future__ import annotations

from sublet import App, Context

visits = App("visits", partitions=4)
visits_next = App("visits", partitions=4)
"""It has one function more."""
orders = App("orders", partitions=4)


@visits.function(state=int)
def visit(ctx: Context, amount: int) -> int:
    ctx.state.set(ctx.state.get() + amount)
    return int(ctx.state.get())


visits_next.function(state=int)(visit.handler)


@visits_next.function(state=int)
def rate(ctx: Context, stars: int) -> int:
    ctx.state.set(stars)
    return stars


@orders.function(state=int)
def order(ctx: Context, amount: int) -> int:
    ctx.state.set(ctx.state.get() + amount)
    return int(ctx.state.get())


@orders.function(kind="stateless")
def welcome(ctx: Context, amount: int) -> None:
    """Sends to a function of the other app, which this app's workers lack."""
    ctx.send("visits/visit", ctx.key, amount)
