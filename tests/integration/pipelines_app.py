"""Functions that get rows in batches, for the tests of `sublet pipelines`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sublet import NO_RETRY, App, Context

app = App("rows", partitions=4)


@app.function(state=int)
def add(ctx: Context, amount: int) -> int:
    ctx.state.set(ctx.state.get() + amount)
    return int(ctx.state.get())


@app.function(retry=NO_RETRY)
def fail(ctx: Context, text: str) -> None:
    raise RuntimeError(text)


@app.function
async def hold(ctx: Context, gate: str) -> None:
    """Goes on once there is a file."""
    while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240 - tests are another process
        await asyncio.sleep(0.01)


@app.function(state=int)
def other(ctx: Context, amount: int) -> None:
    ctx.state.set(amount)


@app.function(kind="stateless")
def unused(ctx: Context) -> None:
    """No rows come here."""
