"""Handlers of every kind that take their time between two timers, and say what they have asked for.

Each sets a long timer first, waits, and sets a short one that is due after the long one. A timer
whose delay counts from the beginning of the handler rings too early, and before the other.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from sublet import App, Batch, Context, List, TumblingWindow, Value

app = App("timer", partitions=1)

EGRESS = "rung"
WAIT_S = 0.25
FIRST_MS = 300
SECOND_MS = 120
"""From the end of the wait: due after the first, and before it if it counted from the beginning."""
COMPUTES_S = 0.004
TTL_S = 1.0


class Pause(msgspec.Struct):
    """How long a handler takes between its timers."""

    wait_s: float


class Bell(NamedTuple):
    """A timer's message, with when it was set, by the clock that all processes here share."""

    name: str
    delay_ms: int
    set_s: float
    pid: int


class Heard(NamedTuple):
    """A bell, with when it rang."""

    key: str
    bell: Bell
    rung_s: float


def _set(ctx: Context, key: str, name: str, delay_ms: int) -> None:
    bell = Bell(name, delay_ms, time.monotonic(), os.getpid())
    ctx.send_after(f"{delay_ms}ms", ring, key, bell)


def _set_first(ctx: Context, key: str) -> None:
    _set(ctx, key, "first", FIRST_MS)


def _set_second(ctx: Context, key: str) -> None:
    _set(ctx, key, "second", SECOND_MS)


@app.function(state=List(str))
def ring(ctx: Context, bell: Bell) -> None:
    ctx.state.append(bell.name)
    ctx.emit(EGRESS, Heard(ctx.key, bell, time.monotonic()))


@app.function(kind="stateless", blocking=True)
def nap(ctx: Context, pause: Pause) -> None:
    time.sleep(pause.wait_s)


@app.function(state=int)
def plain(ctx: Context, pause: Pause) -> int:
    """With no wait it only lets itself be measured: as a short one it runs on the loop."""
    if pause.wait_s:
        _set_first(ctx, ctx.key)
        time.sleep(pause.wait_s)
        _set_second(ctx, ctx.key)
    return os.getpid()


@app.function(state=int, blocking=True)
def blocking(ctx: Context, pause: Pause) -> int:
    _set_first(ctx, ctx.key)
    time.sleep(pause.wait_s)
    _set_second(ctx, ctx.key)
    return os.getpid()


@app.function(kind="stateful", state=int)
def stateful(ctx: Context, pause: Pause) -> int:
    return blocking.handler(ctx, pause)  # type: ignore[no-any-return]


@app.function(kind="stateless")
def stateless(ctx: Context, pause: Pause) -> int:
    return blocking.handler(ctx, pause)  # type: ignore[no-any-return]


@app.function(state=int)
async def sleeping(ctx: Context, pause: Pause) -> int:
    _set_first(ctx, ctx.key)
    await asyncio.sleep(pause.wait_s)
    _set_second(ctx, ctx.key)
    return os.getpid()


@app.function(state=int)
async def calling(ctx: Context, pause: Pause) -> int:
    _set_first(ctx, ctx.key)
    await ctx.call(nap, "", pause)
    _set_second(ctx, ctx.key)
    return os.getpid()


def _ring_all(batch: Batch[Pause], pause: Pause) -> list[int]:
    for key in batch.keys:
        _set_first(batch.context, key)
    time.sleep(pause.wait_s)
    for key in batch.keys:
        _set_second(batch.context, key)
    return [os.getpid()] * len(batch)


@app.function(state=int, batch=True)
def batched(batch: Batch[Pause]) -> list[int]:
    return _ring_all(batch, batch.messages[0])


@app.function(state=int, batch="key")
def by_key(ctx: Context, pauses: list[Pause]) -> list[int]:
    return [blocking.handler(ctx, pauses[0])] * len(pauses)


@app.function(state=int, batch="columns")
def columns(batch: Batch[Pause]) -> list[int]:
    return _ring_all(batch, Pause(batch.columns["wait_s"][0].as_py()))


@app.function(state=int, window=TumblingWindow("1h", time="processing"))
def windowed(ctx: Context, pause: Pause) -> int:
    return blocking.handler(ctx, pause)  # type: ignore[no-any-return]


@app.function(state=int, slo="40ms")
def lent(ctx: Context, pause: Pause) -> int:
    return blocking.handler(ctx, pause)  # type: ignore[no-any-return]


@app.function(state=int, slo="40ms")
async def lent_async(ctx: Context, pause: Pause) -> int:
    """Computes and waits: what keeps no core busy is not lent."""
    _set_first(ctx, ctx.key)
    until_s = time.perf_counter() + COMPUTES_S
    while time.perf_counter() < until_s:
        pass
    await asyncio.sleep(pause.wait_s)
    _set_second(ctx, ctx.key)
    return os.getpid()


# What else counts from a moment


@app.function(state=Value(str, ttl=f"{TTL_S}s"), blocking=True)
def kept(ctx: Context, pause: Pause) -> tuple[str | None, float]:
    """Keep a value after a wait, or say what is kept; and when that was."""
    if pause.wait_s:
        time.sleep(pause.wait_s)
        ctx.state.set("kept")
    return ctx.state.get(default=None), time.monotonic()


class Gate(NamedTuple):
    """A handler touches `reached`, and goes on once there is a file at `opened`."""

    reached: str
    opened: str


@app.function(state=int)
async def looking(ctx: Context, gate: Gate) -> tuple[int, int]:
    """Look at the clock, before and after a wait in which other keys have their turn."""
    before_ms = ctx.now_ms
    while not _is_open(gate):  # noqa: ASYNC110  # It is opened by another process.
        await asyncio.sleep(0.005)
    return before_ms, ctx.now_ms


def _is_open(gate: Gate) -> bool:
    Path(gate.reached).touch()
    return Path(gate.opened).exists()
