"""The functions of the containers; their folder is mounted into them."""

from __future__ import annotations

from sublet import App, Context

app = App("image", partitions=8)


@app.function(state=int)
def count(ctx: Context[int], amount: int) -> int:
    """Add to the number of a key and reply with it; adding 0 only asks."""
    total = ctx.state.get() + amount
    if amount:
        ctx.state.set(total)
    return total
