"""One function for each promise; all of them emit what they did to one egress."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from sublet import App, Context, List, Retry, Sum, TumblingWindow

app = App("promise", partitions=4)

EGRESS = "done"
WINDOW_MS = 1_000


class Bell(NamedTuple):
    """A bell that is to ring once, or, if it is cancelled, never."""

    number: int
    delay_ms: int


class Broken(NamedTuple):
    """A message that fails until there is a file at `mended`."""

    number: int
    mended: str


class Event(NamedTuple):
    at: int
    n: int


@app.function(state=int)
def pay(ctx: Context, amount: int) -> int:
    total: int = ctx.state.get() + amount
    ctx.state.set(total)
    ctx.emit(EGRESS, ["paid", ctx.key, amount])
    return total


@app.function(state=List(str))
def set_bell(ctx: Context, bell: Bell) -> str:
    return ctx.send_after(f"{bell.delay_ms}ms", ring, ctx.key, bell.number)


@app.function(kind="stateless")
def cancel_bell(ctx: Context, token: str) -> None:
    ctx.cancel(token)


@app.function(state=List(int))
def ring(ctx: Context, number: int) -> None:
    ctx.state.append(number)
    ctx.emit(EGRESS, ["rung", ctx.key, number])


@app.function(state=List(int), retry=Retry(attempts=2, backoff="5ms"))
def fragile(ctx: Context, broken: Broken) -> None:
    if not Path(broken.mended).exists():
        raise OSError("broken")
    ctx.state.append(broken.number)
    ctx.emit(EGRESS, ["mended", ctx.key, broken.number])


@app.function(state=List(int), slo="20ms", partitions=1)
def walk(ctx: Context, number: int) -> int:
    """Takes its time, so that a part of it is lent."""
    time.sleep(0.004)
    ctx.state.append(number)
    ctx.emit(EGRESS, ["walked", ctx.key, number])
    return len(ctx.state)


@app.function(window=TumblingWindow(f"{WINDOW_MS}ms", event_time="at"), state=Sum())
def tumble(ctx: Context, event: Event) -> None:
    ctx.state.add(event.n)


@tumble.on_close
def tumbled(ctx: Context) -> None:
    ctx.emit(EGRESS, ["summed", ctx.key, [ctx.window[0], int(ctx.state.value)]])
