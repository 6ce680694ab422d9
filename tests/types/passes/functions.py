"""Every form of declaration, and what its `ctx.state` is."""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import assert_type

from sublet import (
    App,
    Batch,
    Context,
    Count,
    Function,
    List,
    Map,
    Max,
    Mean,
    Merged,
    Min,
    Quantiles,
    Retry,
    SessionWindow,
    SetUnion,
    State,
    Sum,
    TopK,
    TumblingWindow,
    Value,
)
from sublet.functions.app import AsyncFunction, BatchFunction, WindowedFunction
from sublet.functions.state import (
    CountState,
    ListState,
    MapState,
    SetUnionState,
    SumState,
    ValueState,
)

app = App("types")


@dataclass
class Cart:
    items: int = 0


@dataclass
class Reading:
    celsius: float
    at_ms: int


# A value: by annotation, by declaration, by both


@app.function
def by_annotation(ctx: Context[Cart], message: int) -> int:
    assert_type(ctx.state, ValueState[Cart])
    assert_type(ctx.state.get(), Cart)
    ctx.state.set(Cart(message))
    return ctx.state.get().items


@app.function(state=int, slo="50ms")
def by_both(ctx: Context[int], message: int) -> int:
    return ctx.state.get() + message


@app.function(state=int, slo="50ms", retry=None)
def by_declaration(ctx: Context, message: int) -> int:
    total: int = ctx.state.get() + message
    ctx.state.set(total)
    return total


@app.function(state=Value(int, ttl="1h"))
def with_options(ctx: Context[int], message: str) -> None:
    assert_type(ctx.state, ValueState[int])


@app.function
def nullable(ctx: Context[datetime | None]) -> bool:
    assert_type(ctx.state.get(), datetime | None)
    return ctx.state.exists


@app.function(state=datetime | None)
def nullable_declared(ctx: Context[datetime | None]) -> None:
    assert_type(ctx.state.get(), datetime | None)


@app.function(state=list[Cart])
def of_lists(ctx: Context[list[Cart]], message: Cart) -> int:
    ctx.state.set([*ctx.state.get(), message])
    return len(ctx.state.get())


@app.function
def undeclared(ctx: Context, message: int) -> None:
    ctx.state.set(ctx.state.get(int) + message)


# The name of its parameter is part of a function's type.
takes_int: Function[[int], int, int] = by_both
assert_type(nullable, Function[[], bool, datetime | None])


# Other kinds


@app.function
def sums(ctx: Context[Sum], message: float) -> int | float:
    assert_type(ctx.state, SumState)
    ctx.state.add(message)
    return ctx.state.value


@app.function(state=Sum())
def declared_sums(ctx: Context[Sum], message: int) -> None:
    ctx.state.add(message)


@app.function
def maps(ctx: Context[Map[str, int]], message: str) -> int | None:
    assert_type(ctx.state, MapState[str, int])
    ctx.state.put(message, 1)
    return ctx.state.get(message)


@app.function(state=Map(str, int, ttl="1h"))
def declared_maps(ctx: Context[Map[str, int]], message: str) -> None:
    assert_type(ctx.state.items(), list[tuple[str, int]])


@app.function(state=Map(str, int | None))
def maps_of_unions(ctx: Context[Map[str, int | None]], message: str) -> None:
    ctx.state.put(message, None)


@app.function(state=List(Cart, length_max=3))
def lists(ctx: Context[List[Cart]], message: Cart) -> None:
    assert_type(ctx.state[0], Cart)


@app.function
def sets(ctx: Context[SetUnion[str]], message: str) -> bool:
    return ctx.state.add(message)


@app.function
def minima(ctx: Context[Min], message: float) -> int | float | None:
    ctx.state.offer(message)
    return ctx.state.value


@app.function(state=Min())
def declared_minima(ctx: Context[Min], message: float) -> int | float | None:
    return ctx.state.value


@app.function(state=Max(datetime))
def latest(ctx: Context[Max[datetime]], message: datetime) -> datetime | None:
    ctx.state.offer(message)
    return ctx.state.value


@app.function(state=TopK(3))
def top(ctx: Context[TopK], message: str) -> list[tuple[str, int]]:
    ctx.state.add(message)
    return ctx.state.top()


@app.function(state=TopK(3, of=int))
def top_numbers(ctx: Context[TopK[int]], message: int) -> list[tuple[int, int]]:
    return ctx.state.top()


@app.function
def quantiles(ctx: Context[Quantiles], message: float) -> float | None:
    return ctx.state.quantile(0.5)


@app.function(state=Merged(Cart, zero=Cart, merge=lambda one, other: Cart(one.items + other.items)))
def merged(ctx: Context[Merged[Cart]], message: Cart) -> Cart:
    ctx.state.merge(message)
    return ctx.state.get()


class Account(State):
    balance = Sum()
    owners = SetUnion(str)
    by_day = Map(str, int)
    log = List(str)
    cart = Value(Cart)

    def is_rich(self) -> bool:
        return self.balance.value > 1_000


@app.function
def account(ctx: Context[Account], message: int) -> bool:
    assert_type(ctx.state, Account)
    assert_type(ctx.state.balance, SumState)
    assert_type(ctx.state.owners, SetUnionState[str])
    assert_type(ctx.state.by_day, MapState[str, int])
    assert_type(ctx.state.log, ListState[str])
    assert_type(ctx.state.cart, ValueState[Cart])
    ctx.state.balance.add(message)
    return ctx.state.is_rich()


@app.function(state=Account)
def declared_account(ctx: Context[Account]) -> None:
    ctx.state.log.append("seen")


@app.function(state={"total": Sum(), "cart": Cart})
def fields_without_a_class(ctx: Context, message: int) -> None:
    ctx.state.total.add(message)


# Forms of handlers


@app.function
async def waits(ctx: Context[int], message: str) -> int:
    reply = await ctx.call(by_both, "key", 3)
    assert_type(reply, int)
    return reply + ctx.state.get()


def charged() -> Cart:
    return Cart(1)


async def charged_later() -> Cart:
    return Cart(1)


@app.function
async def acts(ctx: Context[int], message: str) -> int:
    assert_type(await ctx.run("charge", charged), Cart)
    assert_type(await ctx.run("later", charged_later), Cart)
    assert_type(await ctx.run("typed", lambda: Cart(2), returns=Cart), Cart)
    assert_type(await ctx.run("lambda", lambda: charged_later(), returns=Cart), Cart)
    assert_type(await ctx.run("nothing", lambda: [message].clear()), None)
    items: int = await ctx.run("retry", lambda: 1, retry=Retry(attempts=3, backoff="1s"))
    one, two = await asyncio.gather(ctx.run("one", charged), ctx.run("two", charged_later))
    assert_type(one, Cart)
    assert_type(two, Cart)
    assert_type(ctx.run_id("charge"), str)
    return items + one.items


@app.function(kind="stateless", blocking=True)
def stateless(ctx: Context, message: str) -> str:
    return message


@app.function(state=int, batch="key")
def by_key(ctx: Context[int], messages: list[int]) -> list[str]:
    return [str(ctx.state.get() + each) for each in messages]


@app.function(batch=True)
def batched(batch: Batch[int, int]) -> list[int]:
    totals = batch.state.read()
    assert_type(totals, dict[str, int])
    assert_type(batch.state["key"], ValueState[int])
    for key, message in batch:
        totals[key] += message
    batch.state.write(totals)
    return [totals[key] for key in batch.keys]


@app.function(state=Count(), batch=True)
def batched_counts(batch: Batch[str, Count]) -> None:
    assert_type(batch.state["key"], CountState)
    batch.context.send(by_both, "key", 1)


@app.function(batch=True)
def batched_perhaps(batch: Batch[str]) -> list[int] | None:
    batch.state.write(batch.state.read())
    return None


is_async: AsyncFunction[[str], int, int] = waits
assert_type(by_key, BatchFunction[[int], str, int])
assert_type(batched, BatchFunction[[int], int, int])
assert_type(batched_counts, BatchFunction[[str], None, Count])


# Windows


@app.function(window=TumblingWindow("10s", event_time="at_ms"), slo="100ms")
def temperature(ctx: Context[Mean], reading: Reading) -> None:
    ctx.state.add(reading.celsius)


@temperature.on_close
def average(ctx: Context[Mean]) -> None:
    ctx.emit("averages", [ctx.key, ctx.window.start_ms, ctx.state.value])


@app.function(window=SessionWindow("1m"), state=Count())
async def sessions(ctx: Context[Count], message: str) -> None:
    ctx.state.increment()


@sessions.on_close
async def session_ended(ctx: Context[Count]) -> None:
    await ctx.call(by_both, ctx.key, ctx.state.value)


has_windows: WindowedFunction[[Reading], None, Mean] = temperature


# Messages to others


@app.function
async def sends(ctx: Context, message: str) -> str:
    ctx.send(by_both, "key", 1)
    ctx.send(by_both, message=1)
    ctx.send(nullable, "key")
    ctx.send(nullable)
    ctx.send("types/by_both", "key", 1)
    ctx.send_many(by_both, ["a", "b"], [1, 2])
    ctx.send_many(nullable, ["a"], [None])
    ctx.cancel(ctx.send_after("1s", by_both, "key", 1))
    ctx.send_after("1s", nullable, "key")
    ctx.send_after("1s", "types/by_both", "key", 1)
    assert_type(await ctx.call(nullable, "key"), bool)
    assert_type(await ctx.call(waits, "key", "text", timeout="1s"), int)
    assert_type(await ctx.call(by_key, "key", 1), str)
    assert_type(await ctx.call(batched, "key", 1), int)
    assert_type(await ctx.call(stateless, message="text"), str)
    total: int = await ctx.call("types/by_both", "key", 1)
    return f"{message} {total}"


def notify(ctx: Context, targets: list[Function[[int]]]) -> None:
    for target in targets:
        ctx.send(target, "key", 1)


@app.function
def sends_to_all(ctx: Context) -> None:
    notify(ctx, [by_both, by_annotation, by_key, batched])


async def directly(ctx: Context[int]) -> None:
    assert_type(by_both(ctx, 1), int)
    assert_type(by_both(ctx, message=1), int)
    assert_type(await waits(ctx, "text"), int)
