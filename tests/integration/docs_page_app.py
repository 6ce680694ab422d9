"""Functions for the tests of the docs page; some of them mean no good."""

from dataclasses import dataclass

from sublet import App, Context, RejectedError

app = App("shop", partitions=4, egress=["added"])
evil = App("evil")
apps = [app, evil]

MARKUP = "</textarea></code>'\"><img src=x onerror='alert(1)'><script>alert(2)</script>"


@dataclass
class Item:
    sku: str
    n: int = 1


@app.function(state=int, slo="50ms")
def cart(ctx: Context, item: Item) -> int:
    """Put something into a cart.

    Example: {"sku": "tea", "n": 2}
    """
    if item.n < 1:
        raise RejectedError("a cart takes one or more")
    ctx.state.set(ctx.state.get() + item.n)
    ctx.emit("added", [ctx.key, item.sku])
    return ctx.state.get()


@app.function(kind="stateless")
def price(ctx: Context, sku: str) -> float:
    return 2.5


@app.function(kind="stateful", state=int)
def visits(ctx: Context) -> int:
    ctx.state.set(ctx.state.get() + 1)
    return ctx.state.get()


@evil.function(state=str)
def echo(ctx: Context, text: str) -> str:
    ctx.state.set(text)
    return text


echo.__doc__ = f"{MARKUP}\n\n{MARKUP}\n\nExample: {MARKUP!r}"
