"""Functions that raise what usually ends a process, a task or a generator."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import NamedTuple

import msgspec

from sublet import App, Batch, Context, Retry

app = App("exits", partitions=1)

ONCE = Retry(attempts=1)
EXITS = ["KeyboardInterrupt", "SystemExit", "GeneratorExit", "CancelledError"]


def _leave(way: str) -> None:
    match way:
        case "":
            return
        case "KeyboardInterrupt":
            raise KeyboardInterrupt
        case "SystemExit":
            sys.exit(3)
        case "GeneratorExit":
            raise GeneratorExit
        case "CancelledError":
            raise asyncio.CancelledError


def _count(ctx: Context) -> int:
    ctx.state.set(ctx.state.get() + 1)
    return int(ctx.state.get())


@app.function(state=int, retry=ONCE)
def plain(ctx: Context, way: str) -> int:
    count = _count(ctx)
    _leave(way)
    return count


@app.function(state=int, retry=ONCE, blocking=True)
def blocking(ctx: Context, way: str) -> int:
    count = _count(ctx)
    _leave(way)
    return count


@app.function(state=int, retry=ONCE, batch=True)
def batched(batch: Batch[str]) -> list[int]:
    counts = batch.state.read()
    for key, way in batch:
        counts[key] += 1
        _leave(way)
    batch.state.write(counts)
    return [counts[key] for key in batch.keys]


@app.function(state=int, retry=ONCE, batch="key")
def by_key(ctx: Context, ways: list[str]) -> list[int]:
    replies = []
    for way in ways:
        replies.append(_count(ctx))
        _leave(way)
    return replies


@app.function(state=int, retry=ONCE)
async def at_once(ctx: Context, way: str) -> int:
    """Leaves in its first step."""
    count = _count(ctx)
    _leave(way)
    return count


@app.function(state=int, retry=ONCE)
async def later(ctx: Context, way: str) -> int:
    """Leaves after it has waited."""
    count = _count(ctx)
    await asyncio.sleep(0.001)
    _leave(way)
    return count


@app.function(state=int, retry=ONCE)
async def cancels_itself(ctx: Context, way: str) -> int:
    """Cancels the task that it runs in, before or after a first wait."""
    count = _count(ctx)
    task = asyncio.current_task()
    assert task is not None
    if way == "later":
        await asyncio.sleep(0.001)
    if way:
        task.cancel()
    if way != "and ends":
        await asyncio.sleep(0.001)
    return count


class Order(msgspec.Struct):
    """A message whose type has code of its own."""

    way: str

    def __post_init__(self) -> None:
        _leave(self.way)


@app.function(state=int, retry=ONCE)
def typed(ctx: Context, order: Order) -> int:
    return _count(ctx)


@app.function(state=int, retry=ONCE, blocking=True)
def typed_blocking(ctx: Context, order: Order) -> int:
    return _count(ctx)


@app.function(state=int, retry=ONCE)
async def typed_async(ctx: Context, order: Order) -> int:
    return _count(ctx)


FORMS = [plain, blocking, batched, by_key, at_once, later]


TYPED = [typed, typed_blocking, typed_async]


# For workers that lend each other work


class Step(NamedTuple):
    home: int
    """Where it ends well."""
    way: str
    """How it ends elsewhere."""


def _compute() -> None:
    until_s = time.perf_counter() + 0.004
    while time.perf_counter() < until_s:
        pass


def _step(step: Step) -> int:
    """Return where it ran."""
    pid = os.getpid()
    if pid != step.home:
        _leave(step.way)
    return pid


@app.function(state=int, retry=Retry(attempts=20, backoff="1ms"), slo="40ms")
def lent(ctx: Context, step: Step) -> int:
    _count(ctx)
    time.sleep(0.004)
    return _step(step)


@app.function(state=int, retry=Retry(attempts=20, backoff="1ms"), slo="40ms")
async def lent_async(ctx: Context, step: Step) -> int:
    _count(ctx)
    _compute()
    await asyncio.sleep(0.001)
    return _step(step)
