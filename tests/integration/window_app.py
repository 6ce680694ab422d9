"""Sums in windows, fed through another function: for workers that are killed under load."""

from __future__ import annotations

from typing import NamedTuple

from sublet import App, Context, SessionWindow, SlidingWindow, Sum, TumblingWindow

app = App("windows", partitions=4)


class Event(NamedTuple):
    key: str
    at: int
    n: int


TUMBLING = TumblingWindow("1s", event_time="at")
SLIDING = SlidingWindow("2s", "1s", event_time="at")
SESSION = SessionWindow("200ms", event_time="at")


@app.function(kind="stateless", upstream=["left", "right"])
def parse(ctx: Context, event: Event) -> None:
    for function in (tumbling, sliding, session):
        ctx.send(function, event.key, event)


@app.function(window=TUMBLING, state=Sum(), upstream=[parse], slo="100ms")
def tumbling(ctx: Context, event: Event) -> None:
    ctx.state.add(event.n)


@tumbling.on_close
def tumbling_ended(ctx: Context) -> None:
    ctx.emit("tumbling", [ctx.key, *ctx.window, ctx.state.value])


@app.function(window=SLIDING, state=Sum(), upstream=[parse])
async def sliding(ctx: Context, event: Event) -> None:
    ctx.state.add(event.n)


@sliding.on_close
async def sliding_ended(ctx: Context) -> None:
    ctx.emit("sliding", [ctx.key, *ctx.window, ctx.state.value])


@app.function(window=SESSION, state=Sum(), upstream=[parse])
def session(ctx: Context, event: Event) -> None:
    ctx.state.add(event.n)


@session.on_close
def session_ended(ctx: Context) -> None:
    ctx.emit("session", [ctx.key, *ctx.window, ctx.state.value])
