"""One function whose every commit has something of all that can be read from outside."""

from __future__ import annotations

from sublet import App, Context, RejectedError

app = App("told", partitions=2)

EGRESS = "steps"


@app.function(state=int)
def step(ctx: Context, amount: int) -> int:
    """Counts, emits the total, and sets a timer for much later; or becomes a dead letter."""
    if amount < 0:
        raise RejectedError("no step back")
    total: int = ctx.state.get() + amount
    ctx.state.set(total)
    ctx.emit(EGRESS, [ctx.key, total])
    ctx.send_after("1h", step, ctx.key, amount)
    return total
