"""Bids of an auction house, a few of whose auctions get most of them.

As in the benchmark Nexmark, half of the bids go to the hottest auctions, which change as time goes
on, a quarter of them comes from one bidder, and prices are spread evenly over six orders of
magnitude (in their logarithm). They come in the order of time, but for a disorder of at most half
a second.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

AUCTION_COUNT = 100
BIDDER_COUNT = 1_000
CATEGORIES = ("art", "books", "cars", "coins", "stamps")
RATE_PER_S = 1_000.0
HOT_AUCTION_SHARE = 0.5
HOT_BIDDER_SHARE = 0.25
HOT_FOR_MS = 30_000
"""For so long an auction is the hottest one."""
DISORDER_MS_MAX = 500
"""No bid is older than the newest one before it by more than this."""
_PRICE_MAGNITUDES = 6
_PRICE_CENTS_MIN = 100


class MadeBid(NamedTuple):
    """A bid, with the fields of `auction.Bid`."""

    auction: str
    bidder: str
    category: str
    price_cents: int
    at_ms: int


def generate_bids(
    seed: int, auction_count: int = AUCTION_COUNT, rate_per_s: float = RATE_PER_S
) -> Iterator[MadeBid]:
    """Yield bids for ever, about in the order of time. The same seed gives the same."""
    if auction_count < 1:
        raise ValueError(f"auction_count is {auction_count}; allowed: 1 or more")
    if rate_per_s <= 0:
        raise ValueError(f"rate_per_s is {rate_per_s}; allowed: above 0")
    chance = random.Random(seed)
    for number in count():
        now_ms = DISORDER_MS_MAX + int(number * 1000 / rate_per_s)
        hot_auction, hot_bidder = now_ms // HOT_FOR_MS % auction_count, now_ms // HOT_FOR_MS
        auction, bidder = chance.randrange(auction_count), chance.randrange(BIDDER_COUNT)
        if chance.random() < HOT_AUCTION_SHARE:
            auction = hot_auction
        if chance.random() < HOT_BIDDER_SHARE:
            bidder = hot_bidder % BIDDER_COUNT
        yield MadeBid(
            auction=f"auction-{auction:04d}",
            bidder=f"bidder-{bidder:05d}",
            category=CATEGORIES[auction % len(CATEGORIES)],
            price_cents=round(_PRICE_CENTS_MIN * 10 ** (chance.random() * _PRICE_MAGNITUDES)),
            at_ms=now_ms - chance.randrange(DISORDER_MS_MAX + 1),
        )
