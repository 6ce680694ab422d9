"""Functions for the tests of the command line."""

from typing import Any

from sublet import NO_RETRY, App, Context, Fields, Map, RejectedError, Sum, TopK, Value

app = App("desk", partitions=4)


@app.function(state=int, slo="1m")
def add(ctx: Context, amount: int) -> int:
    """Add to the sum of the key."""
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


@app.function(state=str, retry=NO_RETRY)
def moody(ctx: Context, text: str) -> str:
    """Fails until its state says that all is well; then its state is the message."""
    if ctx.state.get() != "well":
        raise RuntimeError("not in the mood")
    ctx.state.set(text)
    return text


@app.function(state=Map(int, str))
def shelf(ctx: Context, books: list[tuple[int, str]]) -> int:
    for place, book in books:
        ctx.state.put(place, book)
    return len(ctx.state)


@app.function(state=Fields(name=Value(str), total=Sum()))
def account(ctx: Context, amount: int) -> list[Any]:
    ctx.state.total.add(amount)
    return [ctx.state.name.get(), ctx.state.total.value]


@app.function(state=TopK(2))
def popular(ctx: Context, item: str) -> None:
    ctx.state.add(item)


@app.function(kind="stateful", state=int)
def drawer(ctx: Context) -> int:
    count: int = ctx.state.get() + 1
    ctx.state.set(count)
    return count


@app.function(kind="stateless")
def announce(ctx: Context, text: str) -> None:
    ctx.emit("news", {"text": text})


@app.function
def remind(ctx: Context, minutes: int) -> None:
    ctx.send_after(f"{minutes}m", add, ctx.key, minutes)
