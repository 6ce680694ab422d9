"""Functions with every kind of state, for tests that read states as they were."""

from __future__ import annotations

from typing import NamedTuple

from sublet import App, Context, Count, Map, Sum, TumblingWindow, Value

app = App("kept", partitions=4)


class Seen(NamedTuple):
    at: int


@app.function(state=int)
def step(ctx: Context, value: int) -> int:
    """Is set to what it is told; 0 removes it."""
    if value:
        ctx.state.set(value)
    else:
        ctx.state.clear()
    return value


@app.function(state=Map(str, int))
def basket(ctx: Context, item: str) -> None:
    ctx.state.put(item, ctx.state.get(item, 0) + 1)


@app.function(state={"total": Sum(), "visits": Count()})
def totals(ctx: Context, amount: int) -> None:
    ctx.state.total.add(amount)
    ctx.state.visits.increment()


@app.function(state=Count(), window=TumblingWindow("1s", event_time="at"))
def by_second(ctx: Context, seen: Seen) -> None:
    ctx.state.increment()


@app.function(kind="stateful", state=int)
def tally(ctx: Context, amount: int) -> None:
    ctx.state.set(ctx.state.get() + amount)


@app.function(state=Value(str, ttl="50ms"))
def fleeting(ctx: Context, text: str) -> None:
    ctx.state.set(text)


@app.function(state=str)
def note(ctx: Context, text: str) -> None:
    ctx.state.set(text)


@app.function(kind="stateless")
def echo(ctx: Context, value: int) -> int:
    return value
