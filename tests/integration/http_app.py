"""The functions that the tests of the HTTP ingress call; those of `faulty` fail on purpose."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pydantic

from sublet import App, Context, List, Map, RejectedError, Retry, Sum

app = App("shop", partitions=4)
faulty = App("faulty", partitions=2)
apps = [app, faulty]

ONCE = Retry(attempts=1)


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Item:
    sku: str
    n: int = 1
    size: Size = Size.SMALL


@dataclass
class Cart:
    items: list[Item] = field(default_factory=list)


class Order(msgspec.Struct, forbid_unknown_fields=True):
    """Types for which JSON and msgpack have different forms."""

    id: UUID
    due: Annotated[datetime, msgspec.Meta(tz=True)]
    label: bytes
    counts: Annotated[
        dict[int, int],
        msgspec.Meta(extra_json_schema={"propertyNames": {"pattern": "^[1-9][0-9]{0,17}$"}}),
    ]
    price: Decimal | None = None
    tags: frozenset[str] = frozenset()


class Address(pydantic.BaseModel):
    street: str
    number: int = pydantic.Field(ge=1)


class Person(pydantic.BaseModel):
    name: str
    home: Address | None = None


@app.function(state=int)
def count(ctx: Context, amount: int) -> int:
    """Add to the count of a key.

    The first call starts from nothing.

    Example: 3
    Example: -1
    Example: "not of this function's type"
    """
    # Stays within 64 bits, whatever is added.
    total: int = (ctx.state.get() + amount) % 2**32
    ctx.state.set(total)
    return total


@app.function(state=Cart)
def cart(ctx: Context, item: Item) -> Cart:
    """Put an item into the cart.

    Example: {"sku": "tea", "n": 2}
    """
    content: Cart = ctx.state.get()
    content.items = [*content.items, item][-3:]
    ctx.state.set(content)
    return content


@app.function(kind="stateless")
def echo_order(ctx: Context, order: Order) -> Order:
    return order


@app.function(kind="stateless")
def echo_person(ctx: Context, person: Person) -> Person:
    return person


@app.function(kind="stateless")
def anything(ctx: Context, value: Any) -> Any:
    return value


@app.function(kind="stateless")
def hello(ctx: Context) -> str:
    return "hello"


@app.function(kind="stateful", state=Sum(), partitions=1)
def total(ctx: Context, amount: int) -> float:
    ctx.state.add(amount % 1000)
    return float(ctx.state.value)


@app.function(state=Map(str, int))
def tally(ctx: Context, word: str) -> int:
    ctx.state.put(word, ctx.state.get(word, 0) + 1)
    return int(ctx.state.get(word))


@app.function(state=List(int))
def publish(ctx: Context, values: list[int]) -> int:
    for value in values:
        ctx.emit("news", value)
    return len(values)


@faulty.function
def publish_large(ctx: Context, size_bytes: int) -> None:
    ctx.emit("large", "x" * size_bytes)


@faulty.function(kind="stateless", retry=ONCE)
def fail(ctx: Context, reason: str) -> None:
    raise OSError(reason)


@faulty.function(kind="stateless")
def refuse(ctx: Context, reason: str) -> None:
    raise RejectedError(reason)


@faulty.function(kind="stateless", retry=ONCE, timeout="100ms")
async def never(ctx: Context) -> None:
    await asyncio.sleep(3600)


@faulty.function(state=int)
async def slow(ctx: Context, ms: int) -> int:
    await asyncio.sleep(ms / 1000)
    return ms


@faulty.function
async def circle(ctx: Context, path: list[str]) -> str:
    return str(await ctx.call(circle, path[0], path[1:])) if path else "end"


@faulty.function(kind="stateless")
def pairs(ctx: Context) -> Any:
    """Returns what JSON has no form for."""
    return {(1, 2): 3}
