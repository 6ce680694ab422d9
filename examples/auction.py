"""Follows the bids of an auction house: the highest ones, and how prices are spread, every 10 s.

    bid → sort_bids ─┬→ highest_bid (an auction) ──► highest_of_all ──► egress "highest_of_all"
          stateless  │        └──► egress "highest_bids"
                     └→ bid_quantization (a category) ──► egress "bid_quantiles"

    sublet run examples/auction.py:app --workers 2
    python examples/feed.py auction --connect HOST:PORT
    sublet tail highest_of_all --from start --no-follow
    sublet tail bid_quantiles --from start --no-follow

Windows are of the bids' own time, so results are those of a batch over the same bids, however late,
out of order or often interrupted they come; tests/unit/examples/test_auction.py compares them.

All that these functions do to their state is to add to it, every state can be merged (`Max`,
`Count`, `Quantiles`), and none depends on the order, which `order="none"` says: several workers may
add to one auction's or one category's window at once.
Everybody bids in the hot auction, and no other way would use more than one core for it.

The queries are those that the benchmark Nexmark calls highest bid and bid quantization.
`auction_bids.py` makes bids for it.
"""

from __future__ import annotations

import msgspec

from sublet import App, Batch, Context, Count, Max, Quantiles, TumblingWindow

app = App("auction")

WINDOW = "10s"
QUANTILES = (0.5, 0.9, 0.99)
ALL = "all"

Offer = tuple[int, int, str, str]
"""Price in cents, time in ms before 1970 (so that of equal prices the earlier is larger), auction
and bidder: compared in this order."""


class Bid(msgspec.Struct, frozen=True):
    """Somebody offers a price."""

    auction: str
    bidder: str
    category: str
    price_cents: int
    at_ms: int


class Offered(msgspec.Struct, frozen=True):
    """The highest bid of an auction in a window; its time is the window's last moment."""

    at_ms: int
    offer: Offer


class Highest(msgspec.Struct, frozen=True):
    """The highest bid of a window; of equal ones the earliest."""

    start_ms: int
    auction: str
    bidder: str
    price_cents: int
    at_ms: int


class Spread(msgspec.Struct, frozen=True):
    """How the prices of a category were spread in a window."""

    start_ms: int
    category: str
    bids: int
    price_cents: list[float]
    """For each of `QUANTILES`, within 1 %."""


@app.function(kind="stateless", batch=True, slo="100ms")
def sort_bids(batch: Batch[Bid]) -> None:
    """Send each bid to its auction and to its category."""
    bids = batch.messages
    batch.context.send_many(highest_bid, [each.auction for each in bids], bids)
    batch.context.send_many(bid_quantization, [each.category for each in bids], bids)


@app.function(
    window=TumblingWindow(WINDOW, event_time="at_ms"),
    state=Max(Offer),
    order="none",
    upstream=[sort_bids],
    slo="500ms",
)
def highest_bid(ctx: Context, bid: Bid) -> None:
    """Keep the highest bid of auction `ctx.key` in each window."""
    ctx.state.offer((bid.price_cents, -bid.at_ms, bid.auction, bid.bidder))


@highest_bid.on_close
def tell_highest(ctx: Context) -> None:
    offer: Offer = ctx.state.value
    ctx.emit("highest_bids", highest(ctx.window.start_ms, offer))
    ctx.send(highest_of_all, ALL, Offered(ctx.window.end_ms - 1, offer))


@app.function(
    window=TumblingWindow(WINDOW, event_time="at_ms"),
    state=Max(Offer),
    order="none",
    upstream=[highest_bid],
    partitions=1,
    slo="500ms",
)
def highest_of_all(ctx: Context, offered: Offered) -> None:
    """Keep the highest of all auctions' highest bids in each window."""
    ctx.state.offer(offered.offer)


@highest_of_all.on_close
def tell_highest_of_all(ctx: Context) -> None:
    ctx.emit("highest_of_all", highest(ctx.window.start_ms, ctx.state.value))


@app.function(
    window=TumblingWindow(WINDOW, event_time="at_ms"),
    state={"bids": Count(), "prices": Quantiles(relative_error=0.01)},
    order="none",
    upstream=[sort_bids],
    slo="500ms",
)
def bid_quantization(ctx: Context, bid: Bid) -> None:
    """Count the prices of category `ctx.key` in each window."""
    ctx.state.bids.increment()
    ctx.state.prices.add(bid.price_cents)


@bid_quantization.on_close
def tell_spread(ctx: Context) -> None:
    prices = [ctx.state.prices.quantile(share) for share in QUANTILES]
    ctx.emit("bid_quantiles", Spread(ctx.window.start_ms, ctx.key, ctx.state.bids.value, prices))


def highest(start_ms: int, offer: Offer) -> Highest:
    price_cents, minus_at_ms, auction, bidder = offer
    return Highest(start_ms, auction, bidder, price_cents, -minus_at_ms)
