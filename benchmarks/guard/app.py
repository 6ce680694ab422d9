"""The keyed count, with every option at its default, as both sides serve it."""

from sublet import App, Context

app = App("guard")


@app.function(state=int)
def count(ctx: Context, n: int) -> int:
    total: int = ctx.state.get() + n
    ctx.state.set(total)
    return total
