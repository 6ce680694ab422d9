"""Functions for the tests of the command line."""

from typing import Any

from sublet import NO_RETRY, App, Context, RejectedError

app = App("desk")


@app.function(state=int)
def add(ctx: Context, amount: int) -> int:
    total: int = ctx.state.get() + amount
    ctx.state.set(total)
    return total


@app.function(retry=NO_RETRY)
def fail(ctx: Context, text: str) -> None:
    raise RuntimeError(text)


@app.function
def refuse(ctx: Context) -> None:
    raise RejectedError("not today")


@app.function(kind="stateless")
def echo(ctx: Context, value: Any) -> Any:
    return value
