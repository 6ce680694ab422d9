"""Small apps that the tests of the harness run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sublet import NO_RETRY, App, Context, List, Map, RejectedError, Retry, Sum

bank = App("bank", partitions=4)


@dataclass
class Move:
    """An amount for an account, or from it."""

    amount: int
    to: str = ""


@bank.function(state=int)
def account(ctx: Context, move: Move) -> int:
    """Change a balance; with `to`, send the amount on. Tell the statement of either."""
    balance: int = ctx.state.get() + (-move.amount if move.to else move.amount)
    if balance < 0:
        raise RejectedError(f"{ctx.key} has only {ctx.state.get()}")
    ctx.state.set(balance)
    if move.to:
        ctx.send(account, move.to, Move(move.amount))
    ctx.send(turnover, "all", move.amount)
    ctx.emit("moves", move)
    return balance


@bank.function(state=Sum())
def turnover(ctx: Context, amount: int) -> None:
    """Add up all that moves."""
    ctx.state.add(amount)


@bank.function
async def transfer(ctx: Context, move: Move) -> list[int]:
    """Take from one account and give to another, waiting for both."""
    left = await ctx.call(account, ctx.key, Move(-move.amount))
    return [left, await ctx.call(account, move.to, Move(move.amount))]


odd = App("odd", partitions=2)


@odd.function(state=List(int), retry=Retry(attempts=3, backoff="1s", factor=2.0))
def flaky(ctx: Context, fails: int) -> int:
    """Fail so many times before it works; remember the attempt that did."""
    if ctx.attempt <= fails:
        raise LookupError(f"attempt {ctx.attempt}")
    ctx.state.append(ctx.attempt)
    return ctx.attempt


@odd.function(retry=NO_RETRY)
def broken(ctx: Context, what: str) -> None:
    """Always fail."""
    raise LookupError(what)


@odd.function
async def calls_broken(ctx: Context) -> None:
    """Fail because another does."""
    await ctx.call(broken, ctx.key, "down there")


@odd.function(state=Map(str, int))
async def sleeper(ctx: Context, wait_s: float) -> int:
    """Wait, then say when that was."""
    before = ctx.now_ms
    await asyncio.sleep(wait_s)
    ctx.state.put("woke_ms", int(asyncio.get_running_loop().time() * 1000))
    return before


@odd.function(timeout=None)
async def waits_for_ever(ctx: Context) -> None:
    """Wait for what nobody does."""
    await asyncio.get_running_loop().create_future()


@odd.function
def echo_for_ever(ctx: Context, number: int) -> None:
    """Send to itself, without end."""
    ctx.send(echo_for_ever, ctx.key, number + 1)


@odd.function(state=int)
def ticks(ctx: Context) -> None:
    """Count once a minute, as a cron job does."""
    ctx.state.set(ctx.state.get() + 1)
    ctx.send_after("1m", ticks, ctx.key)


@odd.function
async def slow_timers(ctx: Context) -> list[int]:
    """Set a timer, wait, and set one that is shorter and yet due later."""
    before_ms = ctx.now_ms
    ctx.send_after("3s", noted, ctx.key, "first")
    await asyncio.sleep(2)
    ctx.send_after("1.5s", noted, ctx.key, "second")
    return [before_ms, ctx.now_ms]


@odd.function(state=List(str))
def noted(ctx: Context, text: str) -> None:
    """Keep what came, in order."""
    ctx.state.append(text)


@odd.function
async def slow_at_first(ctx: Context) -> int:
    """Fail after a while, then say when it was tried again."""
    if ctx.attempt == 1:
        await asyncio.sleep(2)
        raise LookupError("at first")
    return ctx.now_ms


@odd.function(kind="stateless", blocking=True)
def blocking(ctx: Context, text: str) -> str:
    """Would run in a thread of its own."""
    return text.upper()


@odd.function(kind="stateful", state=int)
def counter(ctx: Context, amount: int) -> int:
    """One number for each partition."""
    ctx.state.set(ctx.state.get() + amount)
    return int(ctx.state.get())


@odd.function
def time_left(ctx: Context) -> float | None:
    """Say how much time is left."""
    return ctx.time_left_ms
