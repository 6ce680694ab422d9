"""Functions that count, for tests in which workers come and go."""

from __future__ import annotations

import asyncio

from sublet import App, Batch, Context

app = App("count", partitions=8)
less = App("count", partitions=8)
"""The next deployment, which has lost all functions but one."""


@app.function(state=int)
def count(ctx: Context, amount: int) -> int:
    ctx.state.set(ctx.state.get() + amount)
    return int(ctx.state.get())


less.function(state=int)(count.handler)


@app.function(state=int, batch=True)
def count_batch(batch: Batch[int]) -> list[int]:
    totals = batch.state.read()
    replies = []
    for key, amount in batch:
        totals[key] += amount
        replies.append(totals[key])
    batch.state.write(totals)
    return replies


@app.function
def forward(ctx: Context, amounts: dict[str, int]) -> int:
    """Sends each amount on to the counter of its key."""
    for key, amount in amounts.items():
        ctx.send(count, key, amount)
    return len(amounts)


@app.function(state=int)
async def relay(ctx: Context, amount: int) -> int:
    """Counts, and lets another instance count: two states that must agree."""
    total: int = ctx.state.get() + amount
    counted = await ctx.call(count, f"relayed-{ctx.key}", amount)
    ctx.state.set(total)
    ctx.emit("relayed", f"{ctx.key} {total}")
    return total if total == counted else -1


@app.function(state=int)
async def linger(ctx: Context, seconds: float) -> int:
    """Is taken at once, and answers later."""
    await asyncio.sleep(seconds)
    ctx.state.set(ctx.state.get() + 1)
    return int(ctx.state.get())


@app.function
def remind(ctx: Context, delays_ms: list[int]) -> int:
    """Lets the counter of this key be raised by 1 after each of the delays."""
    for delay_ms in delays_ms:
        ctx.send_after(f"{delay_ms}ms", count, ctx.key, 1)
    return len(delays_ms)
