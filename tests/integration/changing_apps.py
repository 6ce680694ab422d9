"""Two deployments of one function that do not agree about its state."""

from __future__ import annotations

from sublet import App, Context, Retry

number = App("changing", partitions=2)
text = App("changing", partitions=2)


@number.function(state=int, name="kept")
def kept_as_number(ctx: Context) -> int:
    ctx.state.set(ctx.state.get() + 1)
    return int(ctx.state.get())


@text.function(state=str, name="kept", retry=Retry(attempts=2, backoff="5ms"))
def kept_as_text(ctx: Context) -> str:
    ctx.state.set(ctx.state.get() + "x")
    return str(ctx.state.get())
