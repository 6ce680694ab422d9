"""Small stories of what functions can do, each with what must have come of it in the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from sublet.functions.app import App
from sublet.functions.context import Batch, Context
from sublet.functions.errors import RejectedError
from sublet.functions.retry import Retry
from sublet.functions.state import List, Map, Sum
from sublet.functions.windows import TumblingWindow
from sublet.testing import Harness

LONG = "10m"
"""Longer than all that waits in the stories, retries of the store included."""


class Scenario(NamedTuple):
    app: App
    tell: Callable[[Harness], Any]
    """Acts, lets time pass, and returns what has come of it."""
    expected: Any


SCENARIOS: dict[str, Callable[[], Scenario]] = {}


def scenario(make: Callable[[], Scenario]) -> Callable[[], Scenario]:
    SCENARIOS[make.__name__.replace("_", " ")] = make
    return make


def _values(harness: Harness, function: Any, keys: str) -> dict[str, Any]:
    return {key: harness.state(function, key) for key in keys}


@scenario
def counts() -> Scenario:
    app = App("shop", partitions=2)

    @app.function(state=int)
    def count(ctx: Context, n: int) -> int:
        total: int = ctx.state.get() + n
        ctx.state.set(total)
        return total

    def tell(harness: Harness) -> Any:
        harness.send_many(count, list("abcabc"), [1, 2, 3, 10, 20, 30])
        replies = harness.call_many(count, list("abca"), [100, 200, 300, 1000])
        harness.advance(LONG)
        return replies, _values(harness, count, "abc")

    expected = ([111, 222, 333, 1111], {"a": 1111, "b": 222, "c": 333})
    return Scenario(app, tell, expected)


@scenario
def sends_between_functions() -> Scenario:
    app = App("bank", partitions=2)

    @app.function(state=int)
    def account(ctx: Context, order: dict[str, Any]) -> None:
        ctx.state.set(ctx.state.get() + order["amount"])
        if order.get("to"):
            ctx.send(account, order["to"], {"amount": -order["amount"]})
            ctx.send(journal, "all", [ctx.key, order["to"], order["amount"]])

    @app.function(state=List(list))
    def journal(ctx: Context, entry: list[Any]) -> None:
        ctx.state.append(entry)

    def tell(harness: Harness) -> Any:
        for source, target, amount in (("a", "b", -5), ("b", "c", -7), ("c", "a", -9)):
            harness.send(account, source, {"amount": amount, "to": target})
        harness.advance(LONG)
        entries = sorted(harness.state(journal, "all"))
        return _values(harness, account, "abc"), entries

    entries = [["a", "b", -5], ["b", "c", -7], ["c", "a", -9]]
    return Scenario(app, tell, ({"a": 4, "b": -2, "c": -2}, entries))


@scenario
def calls() -> Scenario:
    app = App("store", partitions=2)

    @app.function(state=int)
    def stock(ctx: Context, taken: int) -> int:
        total: int = ctx.state.get() + taken
        ctx.state.set(total)
        return total

    @app.function(state=List(list))
    async def basket(ctx: Context, articles: list[str]) -> list[int]:
        left = [await ctx.call(stock, article, 1) for article in articles]
        ctx.state.append(articles)
        return left

    def tell(harness: Harness) -> Any:
        first = harness.call(basket, "ada", ["pen", "ink"])
        second = harness.call(basket, "bob", ["pen", "pen"])
        harness.advance(LONG)
        stocks = [harness.state(stock, each) for each in ("pen", "ink")]
        return first, second, stocks, harness.state(basket, "ada")

    return Scenario(app, tell, ([1, 1], [2, 3], [3, 1], [["pen", "ink"]]))


@scenario
def timers() -> Scenario:
    app = App("clock", partitions=2)

    @app.function(state=Map(str, str))
    def alarm(ctx: Context, order: list[str]) -> None:
        what, name = order
        if what == "set":
            ctx.state.put(name, ctx.send_after("30s", ring, ctx.key, name))
            ctx.send_after("2m", ring, ctx.key, f"{name} late")
        else:
            ctx.cancel(ctx.state.get(name))

    @app.function(state=List(str))
    def ring(ctx: Context, name: str) -> None:
        ctx.state.append(name)

    def tell(harness: Harness) -> Any:
        for name in ("one", "two"):
            harness.send(alarm, "a", ["set", name])
        harness.send(alarm, "b", ["set", "three"])
        harness.settle()
        harness.advance("5s")
        harness.send(alarm, "a", ["cancel", "two"])
        harness.advance(LONG)
        return sorted(harness.state(ring, "a")), sorted(harness.state(ring, "b")), harness.timers()

    return Scenario(app, tell, (["one", "one late", "two late"], ["three", "three late"], []))


@scenario
def idempotency() -> Scenario:
    app = App("pay", partitions=2)

    @app.function(state=int)
    def charge(ctx: Context, amount: int) -> list[int]:
        ctx.state.set(ctx.state.get() + amount)
        ctx.send(book, "all", amount)
        return [amount, ctx.state.get()]

    @app.function(state=Sum())
    def book(ctx: Context, amount: int) -> None:
        ctx.state.add(amount)

    def tell(harness: Harness) -> Any:
        replies = [
            harness.call(charge, "ada", amount, idempotency_key=key)
            for key, amount in (("x", 5), ("x", 5), ("y", 7), ("x", 5))
        ]
        harness.send(charge, "ada", 7, idempotency_key="y")
        harness.advance(LONG)
        return replies, harness.state(charge, "ada"), harness.state(book, "all")

    return Scenario(app, tell, ([[5, 5], [5, 5], [7, 12], [5, 5]], 12, 12))


@scenario
def dead_letters() -> Scenario:
    app = App("mail", partitions=2)

    @app.function(state=List(str), retry=Retry(attempts=3, backoff="1s"))
    def post(ctx: Context, letter: str) -> None:
        ctx.state.append(letter)
        ctx.emit("posted", letter)
        if letter == "never":
            raise RuntimeError("no such address")
        if letter == "third time" and ctx.attempt < 3:
            raise RuntimeError("nobody at home")
        if letter == "refused":
            raise RejectedError("too heavy")

    def tell(harness: Harness) -> Any:
        harness.send_many(post, list("aaab"), ["one", "never", "two", "third time"])
        harness.send(post, "b", "refused")
        harness.advance(LONG)
        dead = sorted((each.message, each.attempts) for each in harness.dead_letters())
        return dead, _values(harness, post, "ab"), sorted(harness.emitted("posted"))

    return Scenario(
        app,
        tell,
        (
            [("never", 3), ("refused", 1)],
            {"a": ["one", "two"], "b": ["third time"]},
            ["one", "third time", "two"],
        ),
    )


@scenario
def egress() -> Scenario:
    app = App("feed", partitions=2)

    @app.function(state=int)
    def tick(ctx: Context, n: int) -> None:
        ctx.state.set(ctx.state.get() + 1)
        ctx.emit("ticks", [ctx.key, ctx.state.get()])

    @app.function
    def echo(ctx: Context, n: int) -> None:
        ctx.emit("echoes", n)

    def tell(harness: Harness) -> Any:
        harness.send_many(tick, list("abab"), [0] * 4)
        harness.send_many(echo, list("cd"), [1, 2])
        harness.settle()
        harness.send_many(tick, list("ab"), [0] * 2)
        harness.advance(LONG)
        ticks = harness.emitted("ticks")
        by_key = {key: [n for each, n in ticks if each == key] for key in "ab"}
        return by_key, sorted(harness.emitted("echoes"))

    return Scenario(app, tell, ({"a": [1, 2, 3], "b": [1, 2, 3]}, [1, 2]))


class Reading(msgspec.Struct):
    at: int
    n: int


@scenario
def windows() -> Scenario:
    app = App("wind", partitions=2)

    @app.function(window=TumblingWindow(100, event_time="at"), state=Sum(), upstream=["probe"])
    def total(ctx: Context, reading: Reading) -> None:
        ctx.state.add(reading.n)

    @total.on_close
    def ended(ctx: Context) -> None:
        ctx.emit("totals", [ctx.key, ctx.window.start_ms, ctx.state.value])

    def tell(harness: Harness) -> Any:
        harness.send_many(total, list("aba"), [Reading(10, 1), Reading(20, 2), Reading(130, 4)])
        harness.watermark(total, 100, source="probe")
        harness.settle()
        harness.send_many(total, list("ab"), [Reading(150, 8), Reading(160, 16)])
        harness.watermark(total, 10**12, source="probe")
        harness.advance(LONG)
        return sorted(harness.emitted("totals"))

    expected = [["a", 0, 1], ["a", 100, 12], ["b", 0, 2], ["b", 100, 16]]
    return Scenario(app, tell, expected)


@scenario
def batch_handlers() -> Scenario:
    app = App("bulk", partitions=2)

    @app.function(batch=True, state=int)
    def tally(batch: Batch[int]) -> list[int]:
        totals, replies = batch.state.read(), []
        for key, n in batch:
            totals[key] += n
            batch.context.send(seen, "all", [key, n])
            replies.append(totals[key])
        batch.state.write(totals)
        return replies

    @app.function(state=List(list))
    def seen(ctx: Context, entry: list[Any]) -> None:
        ctx.state.append(entry)

    def tell(harness: Harness) -> Any:
        replies = harness.call_many(tally, list("aabc"), [1, 2, 4, 8])
        harness.send_many(tally, list("abc"), [16, 32, 64])
        harness.advance(LONG)
        return replies, _values(harness, tally, "abc"), sorted(harness.state(seen, "all"))

    entries = [["a", 1], ["a", 2], ["a", 16], ["b", 4], ["b", 32], ["c", 8], ["c", 64]]
    return Scenario(app, tell, ([1, 3, 4, 8], {"a": 19, "b": 36, "c": 72}, entries))


@scenario
def a_takeover_during_load() -> Scenario:
    app = App("load", partitions=2)

    @app.function(state=int)
    def count(ctx: Context, n: int) -> int:
        counted: int = ctx.state.get() + n
        ctx.state.set(counted)
        ctx.send(total, "all", n)
        return counted

    @app.function(state=Sum())
    def total(ctx: Context, n: int) -> None:
        ctx.state.add(n)

    def tell(harness: Harness) -> Any:
        harness.send_many(count, list("abab"), [1, 2, 4, 8])
        harness.crash(at_commit=2)
        harness.send_many(count, list("ab"), [16, 32])
        harness.settle()
        harness.send_many(count, list("ba"), [64, 128])
        harness.crash()
        replies = harness.call_many(count, list("ab"), [256, 512])
        harness.advance(LONG)
        return replies, _values(harness, count, "ab"), harness.state(total, "all")

    return Scenario(app, tell, ([405, 618], {"a": 405, "b": 618}, 1023))


@scenario
def handlers_that_wait() -> Scenario:
    app = App("wait", partitions=2)

    @app.function(state=List(int), retry=Retry(attempts=5, backoff="100ms"))
    async def slow(ctx: Context, n: int) -> int:
        if n % 2 and ctx.attempt == 1:
            raise RuntimeError("once")
        reply: int = await ctx.call(double, str(n), n)
        ctx.state.append(reply)
        return reply

    @app.function
    def double(ctx: Context, n: int) -> int:
        ctx.emit("doubled", n)
        return 2 * n

    def tell(harness: Harness) -> Any:
        replies = harness.call_many(slow, list("aaba"), [1, 2, 3, 4])
        harness.advance(LONG)
        return replies, _values(harness, slow, "ab"), sorted(harness.emitted("doubled"))

    return Scenario(app, tell, ([2, 4, 6, 8], {"a": [2, 4, 8], "b": [6]}, [1, 2, 3, 4]))
