"""What `zero.py` serves: a counter."""

from __future__ import annotations

from sublet import App, Context

app = App("zero", partitions=8)


@app.function(state=int)
def count(ctx: Context, amount: int) -> int:
    ctx.state.set(ctx.state.get() + amount)
    return int(ctx.state.get())
