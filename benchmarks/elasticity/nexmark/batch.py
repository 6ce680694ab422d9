"""What Nexmark's queries have to find: all events at once, in plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.elasticity.nexmark.app import EURO_PERMILLE, LAST
from benchmarks.elasticity.nexmark.events import Auction, Bid, Closed, Event, Person


def expected(made: Sequence[Event], window_ms: int, slide_ms: int) -> dict[str, Any]:
    bids = [each for each in made if isinstance(each, Bid)]
    found: dict[str, Any] = {
        "q1": sorted(
            (each.auction, each.bidder, each.price_cents * EURO_PERMILLE // 1000) for each in bids
        ),
        "q4": [],
        "q5": [],
        "q6": _q6(made),
        "q7": [],
        "q8": [],
    }
    for end_ms, some in _windows(made, window_ms, slide_ms):
        in_it = [each for each in some if isinstance(each, Bid)]
        if in_it:
            found["q7"].append((end_ms, *max((each.price_cents, each.bidder) for each in in_it)))
            counts: defaultdict[str, int] = defaultdict(int)
            for bid in in_it:
                counts[bid.auction] += 1
            found["q5"].append((end_ms, *max((count, name) for name, count in counts.items())))
        found["q4"] += [(end_ms, *row) for row in _q4(some)]
        found["q8"] += [(end_ms, *row) for row in _q8(some)]
    return {name: sorted(rows) if isinstance(rows, list) else rows for name, rows in found.items()}


def _windows(
    made: Sequence[Event], window_ms: int, slide_ms: int
) -> Iterator[tuple[int, list[Event]]]:
    last_ms = max(each.at_ms for each in made)
    for end_ms in range(slide_ms, last_ms + window_ms + slide_ms, slide_ms):
        some = [each for each in made if end_ms - window_ms <= each.at_ms < end_ms]
        if some:
            yield end_ms, some


def _q4(some: Sequence[Event]) -> list[tuple[str, int, int]]:
    categories = {each.id: each.category for each in some if isinstance(each, Auction)}
    prices: dict[str, int] = {}
    for each in some:
        if isinstance(each, Bid):
            prices[each.auction] = max(prices.get(each.auction, 0), each.price_cents)
    by_category: defaultdict[str, list[int]] = defaultdict(list)
    for auction, price in prices.items():
        if auction in categories:
            by_category[categories[auction]].append(price)
    return [(name, sum(each), len(each)) for name, each in by_category.items()]


def _q6(made: Sequence[Event]) -> dict[str, list[tuple[int, str, int]]]:
    highest: dict[str, int] = {}
    sold: defaultdict[str, list[tuple[int, str, int]]] = defaultdict(list)
    for each in made:
        if isinstance(each, Bid):
            highest[each.auction] = max(highest.get(each.auction, 0), each.price_cents)
        elif isinstance(each, Closed) and each.auction in highest:
            sold[each.seller].append((each.at_ms, each.auction, highest[each.auction]))
    return {seller: sorted(all_)[-LAST:] for seller, all_ in sold.items()}


def _q8(some: Sequence[Event]) -> list[tuple[str, str]]:
    names = {each.id: each.name for each in some if isinstance(each, Person)}
    sellers = {each.seller for each in some if isinstance(each, Auction)}
    return [(id_, name) for id_, name in names.items() if id_ in sellers]
