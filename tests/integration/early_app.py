"""Handlers that tell by files when they begin and how they end, and wait until they may."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from sublet import App, Context, DeadlineExceededError

app = App("early", partitions=1)


def _may_go_on(place: str) -> bool:
    return Path(f"{place}.gate").exists()


def _tell(place: str, what: str) -> None:
    with Path(f"{place}.{what}").open("a") as file:
        file.write(".")


@app.function(state=int)
async def wait(ctx: Context, place: str) -> int:
    """Counts, waits for a file, and tells if it was interrupted meanwhile."""
    ctx.state.set(ctx.state.get() + 1)
    _tell(place, "begun")
    try:
        while not _may_go_on(place):  # noqa: ASYNC110  # There is no event for what others do.
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        _tell(place, "interrupted")
        raise
    _tell(place, "done")
    return int(ctx.state.get())


@app.function(state=int, slo="20ms")
async def wait_with_slo(ctx: Context, place: str) -> int:
    return int(await ctx.call(wait, ctx.key, place))


@app.function(state=int, blocking=True, concurrency=1, batch_size_max=1)
def wait_in_thread(ctx: Context, place: str) -> int:
    """As `wait`, but nobody can interrupt it, and others wait in the queue."""
    _tell(place, "begun")
    while not _may_go_on(place):
        time.sleep(0.01)
    ctx.state.set(ctx.state.get() + 1)
    _tell(place, "done")
    return int(ctx.state.get())


@app.function(state=int)
async def ask(ctx: Context, place: str) -> int:
    ctx.state.set(ctx.state.get() + 1)
    await ctx.call(wait, ctx.key, place)
    return int(ctx.state.get())


@app.function
async def ask_somebody_who_asks(ctx: Context, place: str) -> int:
    return int(await ctx.call(ask, ctx.key, place))


@app.function
async def ask_for_a_while(ctx: Context, place: str) -> str:
    """Gives its call up by means of asyncio, and goes on for as long as it may."""
    try:
        async with asyncio.timeout(0.1):
            await ctx.call(wait, ctx.key, place)
    except TimeoutError:
        while not _may_go_on(place):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return "gave up"
    return "heard"


@app.function
async def ask_without_patience(ctx: Context, place: str) -> str:
    try:
        await ctx.call(wait, ctx.key, place, timeout="100ms")
    except DeadlineExceededError:
        return "gave up"
    return "heard"
