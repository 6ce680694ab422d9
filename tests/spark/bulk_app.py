"""Functions whose states show what was brought to them, in which order."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sublet import App, Context, Fields, List, Map, Sum, TopK

TARGET = "tests.spark.bulk_app:app"

app = App("bulk", partitions=4)


@app.function(state=List(str))
def timeline(ctx: Context, text: str) -> list[str]:
    """Notes what it is told; of nothing, tells what it has noted."""
    if text:
        ctx.state.append(text)
    return list(ctx.state)


@app.function(state=int)
def total(ctx: Context, amount: int) -> int:
    ctx.state.set(ctx.state.get() + amount)
    return int(ctx.state.get())


@dataclass
class Profile:
    """A state that is one value with several parts."""

    name: str
    score: float
    seen: datetime | None = None


@app.function(state=Profile)
def profile(ctx: Context) -> Profile | None:
    found: Profile | None = ctx.state.get()
    return found


@app.function(state=Fields(spent=Sum(), items=Map(str, int), last=List(str)))
def basket(ctx: Context) -> list[Any]:
    state = ctx.state
    return [state.spent.value, dict(state.items.items()), list(state.last)]


@app.function(state=TopK(3))
def popular(ctx: Context, name: str) -> None:
    ctx.state.add(name)
