"""Handlers with side effects, which tell by files what they do, and wait until they may."""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from pathlib import Path

import msgspec

from sublet import App, Context, Retry

app = App("effects", partitions=1)


class Paid(msgspec.Struct):
    id: str
    pid: int
    """Of the worker that has done it."""


def _tell(place: str, what: str, text: str) -> None:
    with Path(f"{place}.{what}").open("a") as file:
        file.write(f"{text}\n")


def _is_open(place: str, gate: str) -> bool:
    return Path(f"{place}.{gate}").exists()


def charge(place: str, id_: str) -> Paid:
    _tell(place, "begun", id_)
    while not _is_open(place, "may_pay"):
        time.sleep(0.01)
    _tell(place, "paid", id_)
    return Paid(id_, os.getpid())


async def charge_later(place: str, id_: str) -> Paid:
    _tell(place, "begun", id_)
    while not _is_open(place, "may_pay"):  # noqa: ASYNC110  # There is no event for files.
        await asyncio.sleep(0.01)
    _tell(place, "paid", id_)
    return Paid(id_, os.getpid())


async def _pay(ctx: Context, place: str) -> Paid:
    act = charge_later if ctx.key.startswith("async") else charge
    paid = await ctx.run("charge", partial(act, place, ctx.run_id("charge")))
    _tell(place, "recorded", paid.id)
    while not _is_open(place, "may_end"):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    ctx.state.set(ctx.state.get() + 1)
    return paid


@app.function(state=int, retry=Retry(attempts=3, backoff="10ms"))
async def pay(ctx: Context, place: str) -> Paid:
    return await _pay(ctx, place)


@app.function(state=int, retry=Retry(attempts=3, backoff="10ms"))
async def pay_after_work(ctx: Context, place: str) -> Paid:
    """Is slow on its first step, so that it soon runs on the second loop."""
    time.sleep(0.05)  # noqa: ASYNC251
    return await _pay(ctx, place)
