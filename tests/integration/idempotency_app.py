"""Functions of every kind that emit what they did, so that a test can count effects."""

from __future__ import annotations

import time

from sublet import App, Batch, Context, RejectedError

app = App("once", partitions=8)
other = App("other", partitions=8)
"""Another app on the same store, whose workers lack the functions of the first."""

EGRESS = "effects"


@app.function(state=int)
def keyed(ctx: Context, text: str) -> str:
    ctx.state.set(ctx.state.get() + 1)
    ctx.emit(EGRESS, text)
    return f"did {text}"


@app.function(state=int, batch=True)
def batched(batch: Batch[str]) -> list[str]:
    for _, text in batch:
        batch.context.emit(EGRESS, text)
    return [f"did {text}" for _, text in batch]


@app.function(kind="stateful", state=int)
def shared(ctx: Context, text: str) -> str:
    ctx.state.set(ctx.state.get() + 1)
    ctx.emit(EGRESS, text)
    return f"did {text}"


@app.function(kind="stateless")
def plain(ctx: Context, text: str) -> str:
    ctx.emit(EGRESS, text)
    return f"did {text}"


@app.function(kind="stateless", slo="20ms", partitions=1)
def slow(ctx: Context, text: str) -> str:
    """Takes its time, so that a part of it is lent."""
    time.sleep(0.004)
    ctx.emit(EGRESS, text)
    return f"did {text}"


@app.function(kind="stateless")
def refuses(ctx: Context, text: str) -> str:
    raise RejectedError(f"not {text}")


@other.function(state=int)
def elsewhere(ctx: Context, number: int) -> int:
    return number
