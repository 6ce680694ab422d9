"""Functions that take their time and say where they ran, for workers that lend each other work."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import NamedTuple

from sublet import App, Batch, Context, List, SlidingWindow, Sum, TumblingWindow

app = App("lease", partitions=1)

SLO = "40ms"
TAKES_S = 0.004


def _compute() -> None:
    """Keep a core busy, in turns with others that want to."""
    until_s = time.perf_counter() + TAKES_S
    while time.perf_counter() < until_s:
        pass


class Step(NamedTuple):
    """One message of a key, with its place among those that were sent to it."""

    number: int


class Ran(NamedTuple):
    """Where a message ran, and as the which one of its key."""

    pid: int
    place: int


class Held(NamedTuple):
    """A step that ends at once only at `home`; elsewhere it waits at a gate."""

    number: int
    home: int
    gate: str


# Each keeps what it was sent, in the order in which it came, and says where it ran.


def _note(ctx: Context, step: Step) -> Ran:
    ctx.state.append(step.number)
    ctx.emit("walked", [ctx.key, step.number])
    return Ran(os.getpid(), len(ctx.state))


@app.function(state=List(int), slo=SLO)
def walk(ctx: Context, step: Step) -> Ran:
    time.sleep(TAKES_S)
    ctx.send(arrived, ctx.key, step.number)
    return _note(ctx, step)


@app.function(state=List(int))
def arrived(ctx: Context, number: int) -> list[int]:
    """What steps have sent, in the order in which it came; a negative number only asks."""
    if number >= 0:
        ctx.state.append(number)
    return list(ctx.state)


@app.function(state=List(int), slo=SLO)
def compute(ctx: Context, step: Step) -> Ran:
    _compute()
    return _note(ctx, step)


@app.function(state=List(int), slo=SLO)
async def walk_async(ctx: Context, step: Step) -> Ran:
    _compute()
    await asyncio.sleep(0.001)
    return _note(ctx, step)


@app.function(state=List(int), slo=SLO, blocking=True, concurrency=2)
def walk_blocking(ctx: Context, step: Step) -> Ran:
    time.sleep(TAKES_S)
    return _note(ctx, step)


@app.function(state=int, slo=SLO, batch=True, batch_size_max=4)
def walk_batch(batch: Batch[Step]) -> list[Ran]:
    time.sleep(TAKES_S)
    counts = batch.state.read()
    replies = []
    for key, step in batch:
        counts[key] += 1
        batch.context.emit("walked", [key, step.number])
        replies.append(Ran(os.getpid(), counts[key]))
    batch.state.write(counts)
    return replies


def _pass_gate(step: Held) -> None:
    if os.getpid() == step.home:
        time.sleep(TAKES_S)
        return
    gate = Path(step.gate)
    (gate / "reached").touch()
    while not (gate / "open").exists():
        time.sleep(0.005)


@app.function(state=List(int), slo=SLO)
def held(ctx: Context, step: Held) -> Ran:
    _pass_gate(step)
    ctx.send(arrived, ctx.key, step.number)
    return _note(ctx, Step(step.number))


@app.function(state=Sum(), order="none", slo=SLO)
def held_sum(ctx: Context, step: Held) -> int:
    """Only adds, unless it is asked for the sum by a negative number."""
    if step.number < 0:
        return int(ctx.state.value)
    _pass_gate(step)
    ctx.state.add(1)
    return os.getpid()


@app.function(kind="stateless", slo=SLO)
def wander(ctx: Context, step: Step) -> Ran:
    time.sleep(TAKES_S)
    ctx.emit("wandered", step.number)
    return Ran(os.getpid(), 0)


@app.function(state=List(int), slo=SLO)
async def asks(ctx: Context, step: Step) -> Ran:
    """Calls somebody, which only the owner of its partition can."""
    _compute()
    await ctx.call(arrived, ctx.key, step.number)
    return _note(ctx, step)


@app.function(state=Sum(), order="none", slo=SLO)
def tally(ctx: Context, amount: int) -> int:
    """Only adds, unless it is asked for the sum by a negative amount."""
    if amount < 0:
        return int(ctx.state.value)
    time.sleep(TAKES_S)
    ctx.state.add(amount)
    return os.getpid()


class Event(NamedTuple):
    at: int
    amount: int


@app.function(
    window=TumblingWindow("1s", event_time="at"),
    state=Sum(),
    order="none",
    upstream=["feed"],
    slo=SLO,
)
def summed(ctx: Context, event: Event) -> None:
    time.sleep(TAKES_S)
    ctx.state.add(event.amount)


@summed.on_close
def summed_ended(ctx: Context) -> None:
    ctx.emit("summed", [ctx.key, ctx.window.start_ms, ctx.state.value])


class HeldEvent(NamedTuple):
    """An event whose handler ends at once only at `home`; elsewhere it waits at a gate."""

    at: int
    amount: int
    home: int
    gate: str


LISTED = SlidingWindow("2s", "1s", event_time="at")


@app.function(window=LISTED, state=List(int), upstream=["feed"], slo=SLO)
def listed(ctx: Context, event: HeldEvent) -> None:
    """Keeps what can only be lent with all open windows of its key."""
    _pass_gate(Held(event.amount, event.home, event.gate))
    ctx.state.append(event.amount)


@listed.on_close
def listed_ended(ctx: Context) -> None:
    ctx.emit("listed", [ctx.key, ctx.window.start_ms, list(ctx.state)])


# What must not start

bad_option = App("bad", partitions=1)


@bad_option.function(binding="nearest")
def never(ctx: Context) -> None: ...
