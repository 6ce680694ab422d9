"""Nexmark Q1, Q4, Q5, Q6, Q7 and Q8 as Sublet functions.

| query | asks for | state |
|---|---|---|
| Q1 | bids in euros | none |
| Q4 | mean of the highest bids of a category's auctions, in windows | mergeable |
| Q5 | the auction with most bids, in windows | mergeable |
| Q6 | the mean selling price of a seller's last ten auctions | not mergeable |
| Q7 | the highest bid, in windows | mergeable |
| Q8 | who has registered and opened an auction, in windows | mergeable |

Windows slide and are of the events' own time, so results are those of a batch over the same events
(`batch.py`). Of equal bids the one with the larger name wins, as there.
"""

from __future__ import annotations

from typing import Any

import msgspec

from benchmarks.elasticity.nexmark.events import Auction, Bid, Closed, Event, Person
from sublet import App, Context, Count, Max, SlidingWindow, Sum, TumblingWindow

EURO_PERMILLE = 908
LAST = 10
"""Auctions of a seller that Q6 remembers."""


class Priced(msgspec.Struct, frozen=True):
    """What a window has found; its time is the window's last moment."""

    at_ms: int
    start_ms: int
    price_cents: int
    name: str = ""


class Sold(msgspec.Struct, frozen=True):
    at_ms: int
    auction: str
    price_cents: int


class Sale(msgspec.Struct, frozen=True):
    """An auction: its highest bid, and when it was over."""

    price_cents: int = 0
    seller: str = ""
    closed_ms: int = 0


def nexmark(window: str = "60s", slide: str = "1s") -> App:  # noqa: C901, PLR0915
    """Return the app. It is long because functions are declared where it is made: a test wants
    shorter windows."""
    app = App("nexmark")

    def sliding() -> SlidingWindow:
        return SlidingWindow(window, slide, event_time="at_ms")

    def ends() -> TumblingWindow:
        """Return windows of which each has the results of one sliding window."""
        return TumblingWindow(slide, event_time="at_ms")

    @app.function(kind="stateless")
    def source(ctx: Context, event: Event) -> None:
        """Send an event to the queries that want it."""
        match event:
            case Person():
                ctx.send(q8, event.id, event)
            case Auction():
                ctx.send(q4, event.id, event)
                ctx.send(q8, event.seller, event)
            case Bid():
                ctx.send(q1, message=event)
                for query in (q4, q5, q6, q7):
                    ctx.send(query, event.auction, event)
            case Closed():
                ctx.send(q6, event.auction, event)

    @app.function(kind="stateless")
    def q1(ctx: Context, bid: Bid) -> None:
        ctx.emit("q1", [bid.auction, bid.bidder, bid.price_cents * EURO_PERMILLE // 1000])

    @app.function(
        window=sliding(),
        state={"price": Max(int), "category": Max(str)},
        order="none",
        upstream=[source],
    )
    def q4(ctx: Context, event: Auction | Bid) -> None:
        """Keep an auction's highest bid, and its category."""
        if isinstance(event, Bid):
            ctx.state.price.offer(event.price_cents)
        else:
            ctx.state.category.offer(event.category)

    @q4.on_close
    def q4_close(ctx: Context) -> None:
        price, category = ctx.state.price.value, ctx.state.category.value
        if price is not None and category is not None:
            found = Priced(ctx.window.end_ms - 1, ctx.window.start_ms, price)
            ctx.send(q4_category, category, found)

    @app.function(
        window=ends(), state={"total": Sum(), "auctions": Count()}, order="none", upstream=[q4]
    )
    def q4_category(ctx: Context, found: Priced) -> None:
        ctx.state.total.add(found.price_cents)
        ctx.state.auctions.increment()

    @q4_category.on_close
    def q4_tell(ctx: Context) -> None:
        ends_ms, state = ctx.window.end_ms, ctx.state
        ctx.emit("q4", [ends_ms, ctx.key, state.total.value, state.auctions.value])

    @app.function(window=sliding(), state=Count(), order="none", upstream=[source])
    def q5(ctx: Context, bid: Bid) -> None:
        ctx.state.increment()

    @q5.on_close
    def q5_close(ctx: Context) -> None:
        window, count = ctx.window, ctx.state.value
        ctx.send(q5_hot, "all", Priced(window.end_ms - 1, window.start_ms, count, ctx.key))

    @app.function(
        window=ends(), state=Max(tuple[int, str]), order="none", upstream=[q5], partitions=1
    )
    def q5_hot(ctx: Context, found: Priced) -> None:
        ctx.state.offer((found.price_cents, found.name))

    @q5_hot.on_close
    def q5_tell(ctx: Context) -> None:
        ctx.emit("q5", [ctx.window.end_ms, *ctx.state.value])

    @app.function
    def q6(ctx: Context[Sale], event: Bid | Closed) -> None:
        """Keep an auction's highest bid, and tell its seller when it is over. The source runs in
        several partitions: a bid may come after the end, and then the price is told once more."""
        known = ctx.state.get()
        sale = (
            Sale(max(known.price_cents, event.price_cents), known.seller, known.closed_ms)
            if isinstance(event, Bid)
            else Sale(known.price_cents, event.seller, event.at_ms)
        )
        if sale == known:
            return
        ctx.state.set(sale)
        if sale.seller and sale.price_cents:
            ctx.send(q6_seller, sale.seller, Sold(sale.closed_ms, ctx.key, sale.price_cents))

    @app.function
    def q6_seller(ctx: Context[list[Sold]], sold: Sold) -> None:
        """Keep a seller's last ten, by when they ended."""
        known = [each for each in ctx.state.get() if each.auction != sold.auction]
        known.append(sold)
        known.sort(key=lambda each: (each.at_ms, each.auction))
        ctx.state.set(known[-LAST:])

    @app.function(window=sliding(), state=Max(tuple[int, str]), order="none", upstream=[source])
    def q7(ctx: Context, bid: Bid) -> None:
        ctx.state.offer((bid.price_cents, bid.bidder))

    @q7.on_close
    def q7_close(ctx: Context) -> None:
        price, bidder = ctx.state.value
        ctx.send(q7_all, "all", Priced(ctx.window.end_ms - 1, ctx.window.start_ms, price, bidder))

    @app.function(
        window=ends(), state=Max(tuple[int, str]), order="none", upstream=[q7], partitions=1
    )
    def q7_all(ctx: Context, found: Priced) -> None:
        ctx.state.offer((found.price_cents, found.name))

    @q7_all.on_close
    def q7_tell(ctx: Context) -> None:
        ctx.emit("q7", [ctx.window.end_ms, *ctx.state.value])

    @app.function(
        window=sliding(),
        state={"name": Max(str), "auctions": Count()},
        order="none",
        upstream=[source],
    )
    def q8(ctx: Context, event: Person | Auction) -> None:
        """Keep who registers, and count the auctions that they open."""
        if isinstance(event, Person):
            ctx.state.name.offer(event.name)
        else:
            ctx.state.auctions.increment()

    @q8.on_close
    def q8_tell(ctx: Context) -> None:
        name, auctions = ctx.state.name.value, ctx.state.auctions.value
        if name is not None and auctions:
            ctx.emit("q8", [ctx.window.end_ms, ctx.key, name])

    return app


def results_of(emitted: dict[str, list[Any]], sellers: dict[str, list[Sold]]) -> dict[str, Any]:
    """Return what queries have found, in an order of its own."""
    found: dict[str, Any] = {name: sorted(map(tuple, rows)) for name, rows in emitted.items()}
    found["q6"] = {
        seller: [(each.at_ms, each.auction, each.price_cents) for each in last]
        for seller, last in sellers.items()
        if last
    }
    return found
