"""The auction house's results are those of a batch over the same bids."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import pytest

from examples.auction import (
    QUANTILES,
    Bid,
    Highest,
    Spread,
    app,
    bid_quantization,
    highest_bid,
    highest_of_all,
    sort_bids,
)
from examples.auction_bids import DISORDER_MS_MAX, HOT_FOR_MS, generate_bids
from sublet.functions.state import mergeable_kind_of
from sublet.testing import Harness

WINDOW_MS = 10_000
LONG_AFTER_MS = 10**9


@pytest.fixture
def harness(sublet_harness: Callable[..., Harness]) -> Harness:
    return sublet_harness(app)


def bids(seed: int, count: int, **options: Any) -> list[Bid]:
    return [Bid(*each) for each in islice(generate_bids(seed, **options), count)]


def by_window(made: Iterable[Bid], field: str) -> dict[tuple[int, str], list[Bid]]:
    found: defaultdict[tuple[int, str], list[Bid]] = defaultdict(list)
    for bid in made:
        found[bid.at_ms // WINDOW_MS * WINDOW_MS, getattr(bid, field)].append(bid)
    return found


def highest_in(start_ms: int, made: Iterable[Bid]) -> Highest:
    best = max(made, key=lambda bid: (bid.price_cents, -bid.at_ms, bid.auction, bid.bidder))
    return Highest(start_ms, best.auction, best.bidder, best.price_cents, best.at_ms)


def expected_highest(made: Iterable[Bid]) -> list[Highest]:
    found = by_window(made, "auction")
    return in_order(highest_in(start_ms, each) for (start_ms, _), each in found.items())


def expected_highest_of_all(made: Iterable[Bid]) -> list[Highest]:
    found: defaultdict[int, list[Bid]] = defaultdict(list)
    for bid in made:
        found[bid.at_ms // WINDOW_MS * WINDOW_MS].append(bid)
    return in_order(highest_in(start_ms, each) for start_ms, each in found.items())


def in_order(found: Iterable[Highest]) -> list[Highest]:
    return sorted(found, key=lambda each: (each.start_ms, each.auction))


def assert_same(harness: Harness, made: list[Bid]) -> None:
    assert in_order(harness.emitted("highest_bids", Highest)) == expected_highest(made)
    assert in_order(harness.emitted("highest_of_all", Highest)) == expected_highest_of_all(made)
    spreads = {
        (each.start_ms, each.category): each for each in harness.emitted("bid_quantiles", Spread)
    }
    windows = by_window(made, "category")
    assert spreads.keys() == windows.keys()
    assert len(harness.emitted("bid_quantiles")) == len(windows)
    for window, in_it in windows.items():
        prices = sorted(bid.price_cents for bid in in_it)
        exact = [prices[math.floor(share * (len(prices) - 1))] for share in QUANTILES]
        assert spreads[window].bids == len(prices)
        assert spreads[window].price_cents == [pytest.approx(each, rel=0.01) for each in exact]
    assert harness.emitted("late") == []


def test_a_window_tells_its_highest_bid_and_the_spread_of_prices(harness: Harness) -> None:
    made = [
        Bid("lamp", "ada", "art", 500, 1_000),
        Bid("lamp", "bob", "art", 700, 9_999),
        Bid("vase", "ada", "art", 600, 2_000),
        Bid("lamp", "eve", "art", 100, 10_000),
    ]
    harness.send_many(sort_bids, None, made)
    assert harness.emitted("highest_bids") == []

    harness.watermark(sort_bids, WINDOW_MS)

    lamp = Highest(0, "lamp", "bob", 700, 9_999)
    assert in_order(harness.emitted("highest_bids", Highest)) == [
        lamp,
        Highest(0, "vase", "ada", 600, 2_000),
    ]
    assert harness.emitted("highest_of_all", Highest) == [lamp]
    (spread,) = harness.emitted("bid_quantiles", Spread)
    assert (spread.start_ms, spread.category, spread.bids) == (0, "art", 3)
    assert spread.price_cents[0] == pytest.approx(600, rel=0.01)


def test_of_equal_bids_the_earliest_wins(harness: Harness) -> None:
    made = [Bid("lamp", name, "art", 500, at_ms) for name, at_ms in (("ada", 7), ("bob", 3))]
    harness.send_many(sort_bids, None, made)
    harness.watermark(sort_bids, WINDOW_MS)

    assert harness.emitted("highest_bids", Highest) == [Highest(0, "lamp", "bob", 500, 3)]


def test_every_state_can_be_gathered_in_parts() -> None:
    for function in (highest_bid, highest_of_all, bid_quantization):
        assert function.state_kind is not None
        assert mergeable_kind_of(function.state_kind.kind) is not None  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("batch_size", [100, 1_000, 5_000])
def test_results_are_those_of_a_batch(
    sublet_harness: Callable[..., Harness], seed: int, batch_size: int
) -> None:
    harness = sublet_harness(app, seed=seed)
    made = bids(seed, 5_000, auction_count=20, rate_per_s=150)
    for start in range(0, len(made), batch_size):
        batch = made[start : start + batch_size]
        harness.send_many(sort_bids, None, batch)
        latest_ms = max(each.at_ms for each in batch)
        harness.watermark(sort_bids, latest_ms - DISORDER_MS_MAX)
    harness.watermark(sort_bids, LONG_AFTER_MS)

    assert len(expected_highest_of_all(made)) == 4
    assert_same(harness, made)
    for function in (highest_bid, highest_of_all, bid_quantization):
        assert harness.states(function) == {}


@pytest.mark.parametrize("at_commit", [1, 2, 5, 10, 20])
def test_results_are_the_same_when_the_worker_crashes(harness: Harness, at_commit: int) -> None:
    made = bids(5, 600, auction_count=10, rate_per_s=40)
    random.Random(5).shuffle(made)
    harness.crash(at_commit=at_commit, applied=at_commit % 2 == 0)
    for function in (sort_bids, highest_bid, bid_quantization, highest_of_all):
        harness.fail_next(function, times=2, after=True)

    harness.send_many(sort_bids, None, made)
    harness.watermark(sort_bids, LONG_AFTER_MS)
    harness.advance("1m")

    assert_same(harness, made)
    harness.assert_idle()


def test_the_same_seed_gives_the_same_bids() -> None:
    assert bids(3, 100) == bids(3, 100) != bids(4, 100)


def test_half_of_the_bids_go_to_one_auction_for_a_while() -> None:
    made = bids(1, 4_000, rate_per_s=100)
    while_hot = [each for each in made if each.at_ms < HOT_FOR_MS - DISORDER_MS_MAX]
    hot = sum(1 for each in while_hot if each.auction == "auction-0000")

    assert hot / len(while_hot) == pytest.approx(0.5, abs=0.04)
    assert len({each.auction for each in made}) == 100
    assert sum(1 for each in while_hot if each.bidder == "bidder-00000") / len(
        while_hot
    ) == pytest.approx(0.25, abs=0.04)


def test_bids_are_out_of_order_only_so_far() -> None:
    made = bids(2, 5_000)
    latest_ms, behind_ms = 0, 0
    for bid in made:
        latest_ms = max(latest_ms, bid.at_ms)
        behind_ms = max(behind_ms, latest_ms - bid.at_ms)

    assert 0 < behind_ms <= DISORDER_MS_MAX
    assert min(each.at_ms for each in made) >= 0
    assert all(100 <= each.price_cents <= 10**8 for each in made)


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"auction_count": 0}, "auction_count is 0; allowed: 1 or more"),
        ({"rate_per_s": 0}, "rate_per_s is 0; allowed: above 0"),
    ],
)
def test_what_cannot_be_generated_is_refused(options: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        next(generate_bids(1, **options))
