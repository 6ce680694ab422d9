"""Handlers of every form that make every mistake, for `test_handler_mistakes`.

A line that is to blame ends with a comment that names its mistake.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from sublet import NO_RETRY, App, Batch, Context, RejectedError

app = App("mistaken", partitions=1)

STATE_BYTES_MAX = 10_000


@app.function
def target(ctx: Context[int], number: int) -> int:
    return number


def make(ctx: Context[Any], state: Any, mistake: str) -> Any:  # noqa: C901, PLR0912
    """Make one mistake, after something that must not happen then."""
    state.set("changed")
    ctx.emit("seen", mistake)
    ctx.send(target, "k", 1)
    match mistake:
        case "no mistake":
            return 1
        case "reply":
            return object()
        case "reply type":
            return "text"
        case "reply range":
            return 2**70
        case "emit":
            ctx.emit("seen", object())  # emit
        case "send":
            ctx.send(target, "k", object())  # type: ignore[call-overload]  # send
        case "send type":
            ctx.send(target, "k", "text")  # type: ignore[call-overload]  # send type
        case "send type by name":
            ctx.send("mistaken/target", "k", "text")  # send type by name
        case "send many":
            ctx.send_many(target, ["k", "k"], [1, "text"])  # type: ignore[list-item]  # send many
        case "send after":
            ctx.send_after("1h", target, "k", "text")  # type: ignore[call-overload]  # send after
        case "key":
            ctx.send(target, 7, 1)  # type: ignore[call-overload]  # key
        case "unknown":
            ctx.send("mistaken/nobody", "k", 1)  # unknown
        case "state type":
            state.set(7)  # state type
        case "state size":
            state.set("x" * (STATE_BYTES_MAX + 1))  # state size
        case "raise":
            return 1 // 0  # raise
    raise AssertionError(mistake)


@app.function(retry=NO_RETRY)
def plain(ctx: Context[str], mistake: str) -> int:  # plain
    if mistake == "call":
        ctx.call(target, "k", 1)  # call
    return make(ctx, ctx.state, mistake)  # type: ignore[no-any-return]


@app.function(retry=NO_RETRY)
async def at_once(ctx: Context[str], mistake: str) -> int:  # at_once
    return make(ctx, ctx.state, mistake)  # type: ignore[no-any-return]


@app.function(retry=NO_RETRY)
async def awaits(ctx: Context[str], mistake: str) -> int:  # awaits
    await asyncio.sleep(0)
    if mistake == "call type":
        await ctx.call(target, "k", "text")  # type: ignore[call-overload]  # call type
    return make(ctx, ctx.state, mistake)  # type: ignore[no-any-return]


@app.function(retry=NO_RETRY, blocking=True)
def in_thread(ctx: Context[str], mistake: str) -> int:  # in_thread
    return make(ctx, ctx.state, mistake)  # type: ignore[no-any-return]


@app.function(retry=NO_RETRY, batch=True)
def in_batch(batch: Batch[str, str]) -> list[int]:  # in_batch
    return [make(batch.context, batch.state[key], mistake) for key, mistake in batch]


@app.function(retry=NO_RETRY, batch="key")
def by_key(ctx: Context[str], mistakes: list[str]) -> list[int]:  # by_key
    return [make(ctx, ctx.state, mistake) for mistake in mistakes]


@app.function
def refuse(ctx: Context[int], text: str) -> int:
    raise RejectedError(text)


@app.function
async def ask(ctx: Context[int], text: str) -> int:
    """Lets a refusal through."""
    return await ctx.call(refuse, "k", text)


@app.function(slo="40ms", retry=NO_RETRY)
def lent(ctx: Context[str], number: int) -> int:
    until_s = time.perf_counter() + 0.004
    while time.perf_counter() < until_s:
        pass
    ctx.state.set("changed")
    ctx.send(f"mistaken/nobody{os.getpid()}", "k", 1)  # lent
    return 1


@app.function(slo="40ms", retry=NO_RETRY)
def lent_reply(ctx: Context[str], number: int) -> int:  # lent_reply
    until_s = time.perf_counter() + 0.004
    while time.perf_counter() < until_s:
        pass
    ctx.state.set("changed")
    return f"by {os.getpid()}"  # type: ignore[return-value]
