"""Functions of every kind that count what they do, for tests behind a load balancer."""

from __future__ import annotations

import asyncio

from sublet import App, Context

app = App("balanced", partitions=4)


@app.function(state=int)
def add(ctx: Context, amount: int) -> int:
    total: int = ctx.state.get() + amount
    ctx.state.set(total)
    ctx.emit("added", total)
    return total


@app.function(state=int)
async def add_slowly(ctx: Context, amount: int) -> int:
    """Takes a second, as a request that is under way while its worker is stopped."""
    await asyncio.sleep(1)
    ctx.state.set(ctx.state.get() + amount)
    return int(ctx.state.get())


@app.function(kind="stateful", state=int, partitions=1)
def add_to_all(ctx: Context, amount: int) -> int:
    ctx.state.set(ctx.state.get() + amount)
    return int(ctx.state.get())


@app.function(kind="stateless")
def double(ctx: Context, amount: int) -> int:
    return 2 * amount
