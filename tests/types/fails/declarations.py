"""Declarations that do not agree with their handlers."""

from typing import Any

from sublet import App, Batch, Context, Count, Map, Sum, TumblingWindow, Value

app = App("fails")


# fails: mypy[arg-type] pyright[reportArgumentType]
@app.function(state=int)
def another_value(ctx: Context[str], message: int) -> int:
    return message


# fails: mypy[arg-type] pyright[reportArgumentType]
@app.function(state=Sum())
def another_kind(ctx: Context[Count], message: int) -> int:
    return message


# fails: mypy[arg-type] pyright[reportArgumentType]
@app.function(state=Map(str, int))
def another_map(ctx: Context[Map[str, str]], message: int) -> int:
    return message


# fails: mypy[arg-type] pyright[reportArgumentType]
@app.function(state=Value(int, ttl="1h"))
async def another_value_with_options(ctx: Context[str], message: int) -> int:
    return message


# fails: mypy[arg-type] pyright[reportArgumentType]
@app.function(state=int, batch=True)
def another_batch(batch: Batch[str, str]) -> None:
    return


@app.function(state=Sum(), window=TumblingWindow("1s"))
def windowed(ctx: Context[Sum], message: int) -> None:
    return


# fails: mypy[arg-type] pyright[reportArgumentType]
@windowed.on_close
def closes_another_state(ctx: Context[Count]) -> None:
    return


@app.function
def without_windows(ctx: Context[Sum], message: int) -> None:
    return


# fails: mypy[attr-defined] pyright[reportAttributeAccessIssue]
@without_windows.on_close
def closes_nothing(ctx: Context[Sum]) -> None:
    return


# fails: mypy[call-overload] pyright[reportCallIssue]
@app.function(state=int, sl0="50ms")
def misspelt_option(ctx: Context[int], message: int) -> None:
    return


# fails: mypy[call-overload] pyright[reportArgumentType]
@app.function(slo=50)
def wrong_option(ctx: Context[int], message: int) -> None:
    return


# fails: mypy[arg-type] pyright[reportArgumentType]
@app.function(batch="key")
def not_a_list(ctx: Context[int], messages: int) -> None:
    return


# fails: mypy[arg-type] pyright[reportArgumentType]
@app.function(batch="key")
def not_a_list_of_replies(ctx: Context[int], messages: list[int]) -> int:
    return 1


@app.function
def state_methods(ctx: Context[Sum], message: int) -> None:
    # fails: mypy[attr-defined] pyright[reportAttributeAccessIssue]
    ctx.state.increment()
    # fails: mypy[arg-type] pyright[reportArgumentType]
    ctx.state.add("1")


@app.function
def values(ctx: Context[int], message: str) -> str:
    # fails: mypy[arg-type] pyright[reportArgumentType]
    ctx.state.set(message)
    # fails: mypy[attr-defined] pyright[reportAttributeAccessIssue]
    ctx.state.sett(1)
    # fails: mypy[return-value] pyright[reportReturnType]
    return ctx.state.get()


@app.function
def maps(ctx: Context[Map[str, int]], message: str) -> None:
    # fails: mypy[arg-type] pyright[reportArgumentType]
    ctx.state.put(1, 1)
    # fails: mypy[arg-type] pyright[reportArgumentType]
    ctx.state.put("key", message)


@app.function(batch=True)
def batches(batch: Batch[int, int]) -> list[int]:
    # fails: mypy[dict-item] pyright[reportArgumentType]
    batch.state.write({"key": "text"})
    # fails: mypy[attr-defined] pyright[reportAttributeAccessIssue]
    batch.messages[0].upper()
    return [len(batch)]


def untyped(value: Any) -> None:
    """Any fits everywhere."""
    app.function(state=value)
