"""Few partitions and functions that fill whatever a test has made small."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from sublet import App, Context, Retry

app = App("limit", partitions=2)


@app.function(state=int, partitions=1)
def count(ctx: Context, amount: int) -> int:
    ctx.state.set(ctx.state.get() + amount)
    return int(ctx.state.get())


def _is_open(gate: str) -> bool:
    return Path(gate).exists()


@app.function(state=int, partitions=1)
async def hold(ctx: Context, gate: str) -> int:
    """Waits until a file exists."""
    while not _is_open(gate):  # noqa: ASYNC110  # There is no event for what others do.
        await asyncio.sleep(0.01)
    ctx.state.set(ctx.state.get() + 1)
    return int(ctx.state.get())


@app.function(state=int, partitions=1, blocking=True, concurrency=1, batch_size_max=1)
def hold_thread(ctx: Context, gate: str) -> int:
    """Waits until a file exists, one message at a time."""
    while not _is_open(gate):
        time.sleep(0.01)
    ctx.state.set(ctx.state.get() + 1)
    return int(ctx.state.get())


@app.function(state=int, partitions=1)
async def ask(ctx: Context, gate: str) -> int:
    """Calls `hold` and waits for it."""
    return int(await ctx.call(hold, ctx.key, gate))


@app.function(state=int, partitions=1, retry=Retry(attempts=1, backoff="20ms", factor=1.0))
def fail_unless(ctx: Context, gate: str) -> int:
    if not _is_open(gate):
        raise OSError("the gate is closed")
    ctx.state.set(ctx.state.get() + 1)
    return int(ctx.state.get())


@app.function(partitions=1)
def publish(ctx: Context, values: list[int]) -> None:
    for value in values:
        ctx.emit("log", value)


@app.function(state=bytes, partitions=1)
def store(ctx: Context, size_bytes: int) -> int:
    """Keeps so many bytes; a negative size only looks."""
    if size_bytes >= 0:
        ctx.state.set(bytes(size_bytes))
    return len(ctx.state.get())


@app.function(state=bytes, partitions=1, blocking=True, batch_size_max=7)
def store_thread(ctx: Context, size_bytes: int) -> int:
    """As `store`, in many threads."""
    return int(store.handler(ctx, size_bytes))


@app.function(kind="stateless", partitions=1)
def reply_large(ctx: Context, size_bytes: int) -> bytes:
    return bytes(size_bytes)


@app.function(state=int)
def bounce(ctx: Context, hops: int) -> int:
    """Sends itself to two other keys until no hop is left; each key counts its visits."""
    ctx.state.set(ctx.state.get() + 1)
    if hops > 0:
        number = int(ctx.key)
        for step in (1, 7):
            ctx.send(bounce, str((number + step) % 32), hops - 1)
    return int(ctx.state.get())


@app.function(state=int, partitions=1)
def fan_out(ctx: Context, keys: list[str]) -> int:
    for key in keys:
        ctx.send(bounce, key, 0)
    return len(keys)


@app.function(state=int)
def doomed(ctx: Context, number: int) -> int:
    """Takes the next number and tells of any other; 0 only looks."""
    if number:
        if number != ctx.state.get() + 1:
            ctx.emit("disorder", [ctx.key, number, ctx.state.get()])
        ctx.state.set(number)
    return int(ctx.state.get())
