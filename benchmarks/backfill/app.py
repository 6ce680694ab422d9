"""The function that live calls and history both go to."""

from sublet import App, Context

SLO_MS = 50

app = App("backfill", partitions=8)


@app.function(state=int, slo=f"{SLO_MS}ms")
def count(ctx: Context, n: int) -> int:
    total: int = ctx.state.get() + n
    ctx.state.set(total)
    return total
