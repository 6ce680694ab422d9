"""The functions that the tests of whole workers call."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pydantic

from sublet import App, Batch, Context, List, Map, RejectedError, Retry, Sum, Value

app = App("test", partitions=4)

QUICK_RETRY = Retry(attempts=3, backoff="5ms", backoff_max="20ms")


# Kinds and shapes of handlers


@app.function(state=int)
def count(ctx: Context, amount: int) -> int:
    total: int = ctx.state.get() + amount
    ctx.state.set(total)
    return total


@app.function(state=int)
async def count_async(ctx: Context, amount: int) -> int:
    total: int = ctx.state.get() + amount
    ctx.state.set(total)
    return total


@app.function(state=int)
async def count_after_wait(ctx: Context, amount: int) -> int:
    total: int = ctx.state.get() + amount
    await asyncio.sleep(0.001)
    ctx.state.set(total)
    return total


@app.function(state=int, blocking=True)
def count_blocking(ctx: Context, amount: int) -> int:
    total: int = ctx.state.get() + amount
    ctx.state.set(total)
    return total


@app.function(state=int, batch="key")
def count_by_key(ctx: Context, amounts: list[int]) -> list[int]:
    totals = []
    for amount in amounts:
        ctx.state.set(ctx.state.get() + amount)
        totals.append(ctx.state.get())
    return totals


@app.function(state=int, batch=True)
def count_batch(batch: Batch[int]) -> list[int]:
    totals = batch.state.read()
    replies = []
    for key, amount in batch:
        totals[key] += amount
        replies.append(totals[key])
    batch.state.write(totals)
    return replies


@app.function(kind="stateful", state=Sum(), partitions=1)
def total(ctx: Context, amount: int) -> float:
    ctx.state.add(amount)
    return float(ctx.state.value)


@app.function(kind="stateful", state=int, partitions=1)
async def total_async(ctx: Context, amount: int) -> int:
    """Reads, waits, writes: two at a time would lose something."""
    before: int = ctx.state.get()
    await asyncio.sleep(0)
    ctx.state.set(before + amount)
    return before + amount


@app.function(kind="stateful", state=int, partitions=1, batch_size_max=1)
def slows_down(ctx: Context, number: int) -> int:
    """Takes milliseconds from the message on that says so."""
    count: int = ctx.state.get() + 1
    ctx.state.set(count)
    if number:
        time.sleep(0.005)
    return count


@app.function(kind="stateless")
def double(ctx: Context, number: int) -> int:
    return 2 * number


@app.function(state=List(int))
def history(ctx: Context, number: int) -> list[int]:
    ctx.state.append(number)
    return list(ctx.state)


@app.function(state=Map(str, int))
def tally(ctx: Context, word: str) -> int:
    ctx.state.put(word, ctx.state.get(word, 0) + 1)
    return int(ctx.state.get(word))


# Types


@dataclass
class Item:
    name: str
    price: float = 0.0


@dataclass
class Cart:
    items: list[Item] = field(default_factory=list)


class Order(msgspec.Struct):
    id: int
    lines: list[str] = []


class Person(pydantic.BaseModel):
    name: str
    age: int = 0


@app.function(state=Cart)
def cart(ctx: Context, item: Item) -> Cart:
    content: Cart = ctx.state.get()
    content.items.append(item)
    ctx.state.set(content)
    return content


@app.function(state=Value(Order, default=Order(0)))
def order(ctx: Context, update: Order) -> Order:
    merged = Order(update.id, [*ctx.state.get().lines, *update.lines])
    ctx.state.set(merged)
    return merged


@app.function(state=Value(Person, default=Person(name="")))
def person(ctx: Context, update: Person) -> Person:
    older = Person(name=update.name, age=ctx.state.get().age + update.age)
    ctx.state.set(older)
    return older


# Messages between functions


@app.function
def forward(ctx: Context, amounts: dict[str, int]) -> int:
    """Sends each amount on to the counter of its key."""
    for key, amount in amounts.items():
        ctx.send(count, key, amount)
    return len(amounts)


@app.function(state=int)
def ping(ctx: Context, hops: int) -> int:
    """Sends itself from key to key until no hop is left; each key counts its visits."""
    ctx.state.set(ctx.state.get() + 1)
    if hops > 0:
        name, _, number = ctx.key.rpartition("-")
        ctx.send(ping, f"{name}-{(int(number) + 1) % 8}", hops - 1)
    return int(ctx.state.get())


@app.function(state=Map(str, int))
def numbered(ctx: Context, stamped: tuple[str, int]) -> int:
    """Fails for good when a sender's messages arrive out of order or twice."""
    sender, number = stamped
    expected = ctx.state.get(sender, 0) + 1
    if number != expected:
        ctx.emit("disorder", [ctx.key, sender, number, expected])
    ctx.state.put(sender, number)
    return number


@app.function(state=int)
def number_source(ctx: Context, targets: list[str]) -> int:
    """Sends its next number to every target."""
    number: int = ctx.state.get() + 1
    ctx.state.set(number)
    for target in targets:
        ctx.send(numbered, target, (ctx.key, number))
    return number


@app.function(state=str)
def alarm(ctx: Context, command: tuple[str, float]) -> str:
    """("set", ms) rings the bell of this key later; ("cancel", 0) takes it back."""
    verb, delay_ms = command
    if verb == "set":
        ctx.state.set(ctx.send_after(f"{delay_ms:.0f}ms", bell, ctx.key, 1))
    elif ctx.state.get():
        ctx.cancel(ctx.state.get())
    return str(ctx.state.get())


@app.function(state=str)
def alarm_cancel(ctx: Context, token: str) -> None:
    """Cancels an alarm that another instance has set."""
    ctx.cancel(token)


@app.function(state=int)
def bell(ctx: Context, rings: int) -> int:
    ctx.state.set(ctx.state.get() + rings)
    return int(ctx.state.get())


@app.function(state=int)
async def caller(ctx: Context, plan: dict[str, Any]) -> list[Any]:
    """Calls `function` at each of `keys`, one after the other, and returns the replies."""
    replies = [
        await ctx.call(plan["function"], key, plan["message"], timeout=plan.get("timeout", "10s"))
        for key in plan["keys"]
    ]
    ctx.state.set(ctx.state.get() + 1)
    return replies


@app.function
async def gather(ctx: Context, keys: list[str]) -> list[int]:
    """Calls all at once."""
    return list(await asyncio.gather(*(ctx.call(count, key, 1) for key in keys)))


@app.function
async def circle(ctx: Context, path: list[str]) -> str:
    """Calls the first of the path with the rest of it."""
    if not path:
        return "end"
    return str(await ctx.call(circle, path[0], path[1:]))


@app.function
def publish(ctx: Context, values: list[Any]) -> int:
    for value in values:
        ctx.emit("news", value)
    return len(values)


# Failures


@app.function(state=int, retry=QUICK_RETRY)
def fail_until(ctx: Context, attempt: int) -> int:
    """Fails before the given attempt, after it has changed what must be rolled back."""
    ctx.state.set(ctx.state.get() + 1)
    ctx.emit("attempts", ctx.attempt)
    if ctx.attempt < attempt:
        raise OSError(f"attempt {ctx.attempt} of {attempt}")
    return ctx.attempt


@app.function(state=int, retry=QUICK_RETRY, batch=True)
def fail_some(batch: Batch[int]) -> list[int]:
    """Fails as a whole if one of its messages is negative."""
    totals = batch.state.read()
    for key, amount in batch:
        totals[key] += amount
        batch.context.emit("some", key)
        if amount < 0:
            raise ValueError(f"{amount} is negative")
    batch.state.write(totals)
    return [totals[key] for key in batch.keys]


@app.function(state=int)
def reject(ctx: Context, reason: str) -> None:
    ctx.state.set(ctx.state.get() + 1)
    raise RejectedError(reason)


@app.function(kind="stateless", retry=QUICK_RETRY)
def exit_process(ctx: Context, code: int) -> None:
    sys.exit(code)


@app.function(kind="stateless", retry=QUICK_RETRY)
async def exit_process_later(ctx: Context, code: int) -> None:
    await asyncio.sleep(0)
    sys.exit(code)


@app.function(kind="stateless", retry=QUICK_RETRY)
async def cancel_itself(ctx: Context) -> None:
    await asyncio.sleep(0)
    raise asyncio.CancelledError


@app.function(kind="stateless")
def unencodable(ctx: Context) -> Any:
    return object()


@app.function(kind="stateless")
def large(ctx: Context, size_bytes: int) -> bytes:
    return bytes(size_bytes)


@app.function(kind="stateless")
def send_large(ctx: Context, size_bytes: int) -> None:
    ctx.send(unencodable.name, "large", bytes(size_bytes))


@app.function(state=bytes)
def grow(ctx: Context, size_bytes: int) -> int:
    ctx.state.set(bytes(size_bytes))
    return size_bytes


@app.function(kind="stateless", retry=Retry(attempts=1))
def fail_long(ctx: Context, size: int) -> None:
    raise ValueError("x" * size)


class _UnspeakableError(Exception):
    def __str__(self) -> str:
        raise TypeError("no text")


@app.function(kind="stateless", retry=Retry(attempts=2, backoff="5ms"))
def half_characters(ctx: Context, where: str) -> None:
    """Says what is no text: as names of files and JSON may have it."""
    if where == "raised":
        raise ValueError("\udcff")
    if where == "rejected":
        raise RejectedError("\udcff")
    if where == "unspeakable":
        raise _UnspeakableError
    if where == "sent":
        ctx.send(half_characters, "\udcff", "sent")
    if where == "sent later":
        ctx.send_after("1h", half_characters, "\udcff", "sent")
    if where == "cancelled":
        ctx.cancel("test/half_characters/0|\udcff")
    ctx.emit("\udcff", 1)


# Handlers that never end. Each sleeps for the given time, or for ever if it is negative.

SHORT = Retry(attempts=2, backoff="5ms")


def _sleep(seconds: float) -> None:
    """Like `time.sleep`, but where the interpreter can be interrupted now and then."""
    until_s = time.monotonic() + (seconds if seconds >= 0 else 1e9)
    while time.monotonic() < until_s:
        time.sleep(min(0.01, max(0.0, until_s - time.monotonic())))


@app.function(state=int, timeout="200ms", retry=SHORT)
def stuck(ctx: Context, seconds: float) -> int:
    ctx.state.set(ctx.state.get() + 1)
    if seconds:
        _sleep(seconds)
    return int(ctx.state.get())


@app.function(state=int, timeout="200ms", retry=SHORT)
def stuck_busy(ctx: Context, spins: float) -> int:
    ctx.state.set(ctx.state.get() + 1)
    while spins:
        pass
    return int(ctx.state.get())


@app.function(state=int, timeout="200ms", retry=SHORT, blocking=True)
def stuck_blocking(ctx: Context, seconds: float) -> int:
    ctx.state.set(ctx.state.get() + 1)
    if seconds:
        _sleep(seconds)
    return int(ctx.state.get())


@app.function(state=int, timeout="200ms", retry=SHORT)
async def stuck_async(ctx: Context, seconds: float) -> int:
    """Awaits for ever: nothing is blocked, yet it never ends."""
    ctx.state.set(ctx.state.get() + 1)
    if seconds:
        await asyncio.sleep(seconds if seconds > 0 else 1e6)
    return int(ctx.state.get())


@app.function(state=int, timeout="200ms", retry=SHORT)
async def stuck_async_blocking(ctx: Context, seconds: float) -> int:
    """Blocks the loop it runs on, in its first step."""
    ctx.state.set(ctx.state.get() + 1)
    if seconds:
        _sleep(seconds)
    return int(ctx.state.get())


@app.function(state=int, timeout="200ms", retry=SHORT)
async def stuck_async_later(ctx: Context, seconds: float) -> int:
    """Blocks the loop it runs on, after it has waited once."""
    ctx.state.set(ctx.state.get() + 1)
    await asyncio.sleep(0)
    if seconds:
        _sleep(seconds)
    return int(ctx.state.get())


@app.function(state=int, timeout="200ms", retry=SHORT, blocking=True)
def stuck_deaf(ctx: Context, seconds: float) -> int:
    """Does not even hear that it is interrupted."""
    ctx.state.set(ctx.state.get() + 1)
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        try:
            time.sleep(0.01)
        except BaseException:  # What it is here for.
            continue
    return int(ctx.state.get())


@app.function(state=int, timeout="200ms", retry=SHORT)
async def stuck_async_stubborn(ctx: Context, seconds: float) -> int:
    """Does not let itself be cancelled."""
    ctx.state.set(ctx.state.get() + 1)
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        try:
            await asyncio.sleep(until_s - time.monotonic())
        except asyncio.CancelledError:
            continue
    return int(ctx.state.get())


@app.function(kind="stateless")
async def blocks_async(ctx: Context, seconds: float) -> None:
    """Blocks the loop it runs on, if it is not told to be short."""
    if seconds:
        _block_here(seconds)


@app.function(kind="stateless")
def blocks_plain(ctx: Context, seconds: float) -> None:
    if seconds:
        _block_here(seconds)


def _block_here(seconds: float) -> None:
    time.sleep(seconds)


interrupted_after_ms: list[float] = []
"""Of handlers of this process."""

_thread = threading.local()
"""`left_s`: when a handler near its limit was left here for the last time."""


@contextmanager
def _noting() -> Iterator[None]:
    """Note after how long a handler is interrupted, from when its thread left the one before it.

    The worker's clock for it begins later than that, on a busy machine much later: an interruption
    that is meant for it is never early. One that was meant for the one before it is.
    """
    begun_s = getattr(_thread, "left_s", -math.inf)
    try:
        yield
    except BaseException:
        interrupted_after_ms.append((time.monotonic() - begun_s) * 1000)
        raise
    finally:
        _thread.left_s = time.monotonic()


def _compute(milliseconds: float) -> None:
    until_s = time.monotonic() + milliseconds / 1000
    while time.monotonic() < until_s:
        pass


@app.function(state=int, timeout="30ms", retry=Retry(attempts=1), blocking=True)
def near_limit_blocking(ctx: Context, milliseconds: float) -> None:
    with _noting():
        time.sleep(milliseconds / 1000)


@app.function(state=int, timeout="30ms", retry=Retry(attempts=1))
def near_limit(ctx: Context, milliseconds: float) -> None:
    with _noting():
        _compute(milliseconds)


@app.function(state=int, timeout="30ms", retry=Retry(attempts=1), batch="key")
def near_limit_by_key(ctx: Context, milliseconds: list[float]) -> None:
    with _noting():
        _compute(sum(milliseconds))


@app.function(state=int, timeout="30ms", retry=Retry(attempts=1))
async def near_limit_async(ctx: Context, milliseconds: float) -> None:
    with _noting():
        _compute(milliseconds / 2)
        _thread.left_s = time.monotonic()
        await asyncio.sleep(0)
        _compute(milliseconds / 2)


@app.function(kind="stateless")
def interrupted(ctx: Context) -> list[float]:
    """Return after how long handlers of this worker were interrupted, each once."""
    told = [each for each in interrupted_after_ms if each < math.inf]
    interrupted_after_ms.clear()
    return told


@app.function(state=int, timeout="500ms", retry=Retry(attempts=1))
async def busy_async(ctx: Context, milliseconds: float) -> int:
    """Computes, within its time, but without ever letting others run."""
    until_s = time.monotonic() + milliseconds / 1000
    while time.monotonic() < until_s:
        pass
    ctx.state.set(ctx.state.get() + 1)
    return int(ctx.state.get())
