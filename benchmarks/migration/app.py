"""One partition, so that its place is the only thing that moves."""

from sublet import App, Context

app = App("moving")


@app.function(state=int, partitions=1)
def count(ctx: Context, n: int) -> int:
    total: int = ctx.state.get() + n
    ctx.state.set(total)
    return total
