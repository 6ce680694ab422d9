"""Who runs first under each order, and what that means for those who wait."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.scheduler.api import ArrivalOrder, QueueOrder, WorkView
from sublet.scheduler.orders import (
    BEHIND_MS,
    DEFAULT_ORDER,
    ORDERS,
    TOKEN_INTERVAL_MS,
    LeastLaxity,
    TokenFair,
    TokenShares,
    order_named,
)

SHARES = {"small": 20.0, "left": 40.0, "right": 40.0}


def work(
    name: str = "",
    *,
    tenant: str = "shop",
    count: int = 1,
    arrived_ms: float = 0.0,
    deadline_ms: float = 1_000.0,
    cost_ms: float = 1.0,
    path_ms: float = 0.0,
) -> WorkView:
    return WorkView("shop/f", name, tenant, count, arrived_ms, deadline_ms, cost_ms, path_ms)


def sequence(order: QueueOrder, *works: WorkView) -> list[str]:
    """Return the names in the order in which they would run, all waiting at once."""
    ranked = [(order.rank(each), number, each.partition) for number, each in enumerate(works)]
    return [name for _, _, name in sorted(ranked)]


def served(
    order: QueueOrder, arrivals: Iterable[WorkView], *, until_ms: float
) -> list[tuple[float, WorkView]]:
    """Return what one server has finished, and when; it is never idle while something waits."""
    coming = sorted(arrivals, key=lambda each: each.arrived_ms)[::-1]
    waiting: list[tuple[float, int, WorkView]] = []
    done: list[tuple[float, WorkView]] = []
    now_ms = 0.0
    while (waiting or coming) and now_ms < until_ms:
        if not waiting:
            now_ms = max(now_ms, coming[-1].arrived_ms)
        while coming and coming[-1].arrived_ms <= now_ms:
            each = coming.pop()
            heappush(waiting, (order.rank(each), len(coming) * -1, each))
        _, _, each = heappop(waiting)
        now_ms += each.cost_ms
        done.append((now_ms, each))
    return done


def messages_by_tenant(done: Iterable[tuple[float, WorkView]]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for _, each in done:
        counts[each.tenant] += each.count
    return counts


def backlogged(
    chunk_sizes: Mapping[str, int], *, rate_per_s: float, from_ms: float, to_ms: float
) -> list[WorkView]:
    """Each tenant sends at the full rate of a server that needs 1 ms a message."""
    arrivals = []
    for tenant, size in chunk_sizes.items():
        apart_ms = 1_000.0 * size / rate_per_s
        arrivals += [
            work(tenant=tenant, count=size, cost_ms=size, arrived_ms=from_ms + number * apart_ms)
            for number in range(int((to_ms - from_ms) / apart_ms))
        ]
    return arrivals


def test_least_laxity_runs_the_long_before_the_short_at_the_same_deadline() -> None:
    short, long = work("short", cost_ms=1.0), work("long", cost_ms=30.0)
    assert sequence(order_named("least-laxity"), short, long) == ["long", "short"]


def test_least_laxity_runs_first_what_has_the_longer_way_downstream() -> None:
    last, first = work("last stage"), work("first stage", path_ms=50.0)
    assert sequence(order_named("least-laxity"), last, first) == ["first stage", "last stage"]


def test_the_rank_of_least_laxity_is_the_latest_start() -> None:
    assert LeastLaxity().rank(work(deadline_ms=100.0, cost_ms=7.0, path_ms=13.0)) == 80.0


def test_earliest_deadline_minds_the_path_but_not_the_own_cost() -> None:
    soon, costly = work("soon", deadline_ms=90.0), work("costly", deadline_ms=100.0, cost_ms=50.0)
    upstream = work("upstream", deadline_ms=100.0, path_ms=20.0)
    expected = ["upstream", "soon", "costly"]
    assert sequence(order_named("earliest-deadline"), costly, soon, upstream) == expected


def test_shortest_job_minds_nothing_but_the_own_cost() -> None:
    urgent, short = work("urgent", cost_ms=5.0, deadline_ms=6.0), work("short", path_ms=99.0)
    assert sequence(order_named("shortest-job"), urgent, short) == ["short", "urgent"]


def test_arrival_runs_first_what_came_first() -> None:
    late, early = work("late", arrived_ms=2.0, deadline_ms=3.0), work("early", arrived_ms=1.0)
    assert sequence(order_named("arrival"), late, early) == ["early", "late"]


@given(deadline_ms=st.floats(0, 1e9), cost_ms=st.floats(0, 1e6), arrived_ms=st.floats(0, 1e9))
def test_in_round_robin_all_are_equal(
    deadline_ms: float, cost_ms: float, arrived_ms: float
) -> None:
    each = work(deadline_ms=deadline_ms, cost_ms=cost_ms, arrived_ms=arrived_ms)
    order = order_named("round-robin")
    assert order.rank(each) == order.rank(work())


def test_every_order_has_a_name_and_is_new_each_time() -> None:
    tokens = TokenShares(shares=SHARES, tokens_per_s=100.0)
    for name in ORDERS:
        assert order_named(name, tokens) is not order_named(name, tokens)
    assert isinstance(order_named(DEFAULT_ORDER), LeastLaxity)
    assert isinstance(order_named("arrival"), ArrivalOrder)
    assert set(ORDERS) == {
        "least-laxity",
        "least-laxity-late-last",
        "earliest-deadline",
        "shortest-job",
        "arrival",
        "round-robin",
        "token-fair",
    }


def test_an_unknown_order_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"order is 'fifo'; allowed: least-laxity, .*token-fair"):
        order_named("fifo")


def test_token_fair_cannot_be_had_without_tokens() -> None:
    with pytest.raises(ValueError, match="needs tokens_per_s"):
        order_named("token-fair")


# Late last.


def test_late_last_is_least_laxity_for_all_that_can_be_in_time() -> None:
    order = order_named("least-laxity-late-last")
    feasible = work(deadline_ms=100.0, cost_ms=30.0, path_ms=20.0, arrived_ms=50.0)
    assert order.rank(feasible) == LeastLaxity().rank(feasible)


def test_late_last_puts_what_arrives_too_late_behind_all_others_by_arrival() -> None:
    works = [
        work("late second", arrived_ms=500.0, deadline_ms=400.0),
        work("late first", arrived_ms=450.0, deadline_ms=449.0, path_ms=10.0),
        work("in an hour", arrived_ms=500.0, deadline_ms=3_600_500.0),
        work("now", arrived_ms=500.0, deadline_ms=501.0),
    ]
    expected = ["now", "in an hour", "late first", "late second"]
    assert sequence(order_named("least-laxity-late-last"), *works) == expected


@pytest.mark.parametrize(("name", "met"), [("least-laxity", 0), ("least-laxity-late-last", 10)])
def test_what_was_lost_on_arrival_makes_others_late_unless_it_is_last(name: str, met: int) -> None:
    lost = [work("lost", deadline_ms=-1.0, cost_ms=10.0) for _ in range(10)]
    fresh = [work("fresh", deadline_ms=10.0 * (n + 1), cost_ms=10.0) for n in range(10)]
    done = served(order_named(name), [*lost, *fresh], until_ms=math.inf)
    assert len(done) == 20
    assert sum(done_ms <= each.deadline_ms for done_ms, each in done) == met


# Shares by tokens.


def test_tokens_are_spread_evenly_over_a_second() -> None:
    order = TokenFair({"a": 1.0, "b": 3.0}, 40.0)
    ranks = {tenant: [order.rank(work(tenant=tenant)) for _ in range(3)] for tenant in "ab"}
    assert ranks["a"] == pytest.approx([0.0, 100.0, 200.0])
    assert ranks["b"] == pytest.approx([0.0, 100.0 / 3, 200.0 / 3])


def test_a_chunk_takes_a_token_for_each_message_and_ranks_by_its_last() -> None:
    order, one_by_one = TokenFair({"a": 1.0}, 10.0), TokenFair({"a": 1.0}, 10.0)
    ranks = [one_by_one.rank(work(tenant="a")) for _ in range(6)]
    assert order.rank(work(tenant="a", count=4)) == ranks[3]
    assert order.rank(work(tenant="a", count=2)) == ranks[5]


def test_a_burst_takes_the_tokens_of_one_second_and_no_more() -> None:
    order = TokenFair({"a": 1.0}, 10.0)
    ranks = [order.rank(work(tenant="a", arrived_ms=5_000.0)) for _ in range(12)]
    assert [rank < BEHIND_MS for rank in ranks] == [True] * 10 + [False] * 2
    assert order.rank(work(tenant="a", arrived_ms=5_000.0 + 100.1)) < BEHIND_MS


def test_without_tokens_work_runs_in_the_order_of_arrival_behind_all_that_has_one() -> None:
    order = TokenFair({"a": 1.0, "b": 1.0}, 0.2)
    works = [
        work("a token", tenant="a"),
        work("a first", tenant="a", arrived_ms=1.0),
        work("stranger", tenant="c", arrived_ms=2.0),
        work("a second", tenant="a", arrived_ms=3.0),
        work("b, much later", tenant="b", arrived_ms=1e9),
    ]
    expected = ["a token", "b, much later", "a first", "stranger", "a second"]
    assert sequence(order, *works) == expected


def test_a_chunk_larger_than_a_seconds_tokens_borrows_and_pays_back() -> None:
    order = TokenFair({"a": 1.0}, 10.0)
    assert order.rank(work(tenant="a", count=30)) == pytest.approx(2_900.0)
    # Its next token is that of 3,000 ms, which may be used from 2,000 ms on.
    assert order.rank(work(tenant="a", arrived_ms=1_999.0)) > BEHIND_MS
    assert order.rank(work(tenant="a", arrived_ms=2_001.0)) == pytest.approx(3_000.0)


def test_a_huge_chunk_of_a_tiny_share_still_has_a_token() -> None:
    order = TokenFair({"a": 1e-9, "b": 1.0}, 1.0)
    assert order.rank(work(tenant="a", count=10**6)) <= BEHIND_MS
    assert order.rank(work(tenant="a", arrived_ms=1.0)) > BEHIND_MS


def test_tenants_without_a_share_have_the_default_share_together() -> None:
    order = TokenFair({"a": 3.0}, 40.0, default_share=1.0)
    ranks = [order.rank(work(tenant=f"stranger {number}", arrived_ms=1.0)) for number in range(11)]
    assert ranks[:10] == pytest.approx([1.0 + 100.0 * number for number in range(10)])
    assert ranks[10] > BEHIND_MS


def test_a_share_of_0_means_running_when_nothing_else_waits() -> None:
    order = TokenFair({"a": 0.0, "b": 1.0}, 1_000.0)
    assert order.rank(work(tenant="a", arrived_ms=7.0)) == BEHIND_MS + 7.0
    assert order.rank(work(tenant="stranger", arrived_ms=8.0)) == BEHIND_MS + 8.0


def test_strangers_leave_nothing_behind() -> None:
    order = TokenFair({"a": 1.0}, 10.0, default_share=1.0)
    for number in range(1_000):
        order.rank(work(tenant=f"stranger {number}"))
    assert list(order._tenants) == ["a"]


@pytest.mark.parametrize(
    ("shares", "tokens_per_s", "default_share", "message"),
    [
        ({"a": -1.0}, 10.0, 0.0, "share of 'a' is -1.0; allowed: 0 or more"),
        ({"a": math.nan}, 10.0, 0.0, "share of 'a' is nan"),
        ({"a": 1.0}, 0.0, 0.0, "tokens_per_s is 0.0; allowed: more than 0"),
        ({"a": 1.0}, math.inf, 0.0, "tokens_per_s is inf"),
        ({"a": 1.0}, 10.0, -0.5, "default_share is -0.5; allowed: 0 or more"),
        ({}, 10.0, 0.0, "nobody has a share"),
        ({"a": 0.0}, 10.0, 0.0, "nobody has a share"),
    ],
)
def test_shares_that_make_no_sense_are_refused(
    shares: dict[str, float], tokens_per_s: float, default_share: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        TokenFair(shares, tokens_per_s, default_share=default_share)


@settings(deadline=None, max_examples=25)
@given(
    sizes=st.fixed_dictionaries({tenant: st.integers(1, 40) for tenant in SHARES}),
    idle_ms=st.sampled_from([0.0, 1.0, 777.0, 1e6]),
)
def test_shares_are_held_over_time_while_all_are_backlogged(
    sizes: dict[str, int], idle_ms: float
) -> None:
    end_ms = idle_ms + 12_000.0
    arrivals = backlogged(sizes, rate_per_s=1_000.0, from_ms=idle_ms, to_ms=end_ms)
    done = served(TokenFair(SHARES, 1_000.0), arrivals, until_ms=end_ms)
    for from_ms in range(2_000, 12_000, 2_000):
        from_ms += int(idle_ms)
        counts = messages_by_tenant(
            (at_ms, each) for at_ms, each in done if from_ms <= at_ms < from_ms + 2_000.0
        )
        for tenant, share in SHARES.items():
            # A chunk is all or nothing, at both ends of the two seconds.
            slack = 2 * max(sizes.values()) + 10
            assert abs(counts[tenant] - 2_000 * share / 100) <= slack, (from_ms, counts)


def test_with_more_tokens_than_capacity_all_fall_behind_alike() -> None:
    arrivals = backlogged(dict.fromkeys(SHARES, 5), rate_per_s=1_000.0, from_ms=0.0, to_ms=10_000.0)
    done = served(TokenFair(SHARES, 2_000.0), arrivals, until_ms=10_000.0)
    counts = messages_by_tenant(done)
    assert counts["left"] / counts["small"] == pytest.approx(2.0, rel=0.05)
    assert counts["left"] == pytest.approx(counts["right"], rel=0.05)


def test_shares_are_held_where_each_tenant_runs_in_the_order_of_arrival() -> None:
    order, now_ms, end_ms = TokenFair(SHARES, 1_000.0), 0.0, 10_000.0
    arrivals = backlogged(dict.fromkeys(SHARES, 5), rate_per_s=1_000.0, from_ms=0.0, to_ms=end_ms)
    coming = sorted(arrivals, key=lambda each: each.arrived_ms)[::-1]
    lines: dict[str, deque[WorkView]] = {tenant: deque() for tenant in SHARES}
    # Whoever is first in a line uses the smallest rank that the line has.
    ranks: dict[str, list[float]] = {tenant: [] for tenant in SHARES}
    done: list[tuple[float, WorkView]] = []
    while now_ms < end_ms:
        while coming and coming[-1].arrived_ms <= now_ms:
            each = coming.pop()
            lines[each.tenant].append(each)
            heappush(ranks[each.tenant], order.rank(each))
        tenant = min(
            (tenant for tenant in SHARES if lines[tenant]), key=lambda name: ranks[name][0]
        )
        heappop(ranks[tenant])
        each = lines[tenant].popleft()
        now_ms += each.cost_ms
        done.append((now_ms, each))
    for from_ms in range(2_000, 10_000, 2_000):
        counts = messages_by_tenant(each for each in done if from_ms <= each[0] < from_ms + 2_000.0)
        assert {tenant: counts[tenant] / 20 for tenant in SHARES} == pytest.approx(SHARES, abs=1.0)


@given(
    idle_ms=st.floats(0, 1e9),
    tokens_per_s=st.integers(1, 200),
    before=st.integers(0, 300),
)
def test_a_tenant_that_is_idle_saves_no_tokens(
    idle_ms: float, tokens_per_s: int, before: int
) -> None:
    order = TokenFair({"a": 1.0}, float(tokens_per_s))
    for _ in range(before):
        order.rank(work(tenant="a"))
    now_ms = idle_ms + 2 * TOKEN_INTERVAL_MS
    ranks = [order.rank(work(tenant="a", arrived_ms=now_ms)) for _ in range(tokens_per_s + 5)]
    with_token = [rank for rank in ranks if rank < BEHIND_MS]
    # One more where the last token falls on the end of the second, by rounding.
    assert tokens_per_s <= len(with_token) <= tokens_per_s + 1
    assert min(with_token) == now_ms


@settings(deadline=None, max_examples=50)
@given(
    arrivals=st.lists(
        st.builds(
            work,
            tenant=st.sampled_from([*SHARES, "stranger"]),
            arrived_ms=st.floats(0, 3_000),
            cost_ms=st.floats(0.5, 50),
            count=st.integers(1, 50),
        ),
        min_size=1,
        max_size=60,
    )
)
def test_no_work_waits_for_tokens_while_the_server_is_idle(arrivals: list[WorkView]) -> None:
    done = served(TokenFair(SHARES, 10.0), arrivals, until_ms=math.inf)
    by_arrival = served(ArrivalOrder(), arrivals, until_ms=math.inf)
    assert len(done) == len(arrivals)
    assert done[-1][0] == pytest.approx(by_arrival[-1][0])


def test_a_tenant_alone_gets_the_whole_server_until_others_come() -> None:
    alone = backlogged({"small": 5}, rate_per_s=1_000.0, from_ms=0.0, to_ms=6_000.0)
    other = backlogged({"left": 5}, rate_per_s=1_000.0, from_ms=3_000.0, to_ms=6_000.0)
    done = served(TokenFair(SHARES, 1_000.0), [*alone, *other], until_ms=6_000.0)
    before = messages_by_tenant(each for each in done if each[0] < 3_000.0)
    after = messages_by_tenant(each for each in done if each[0] >= 4_000.0)
    assert before["small"] == pytest.approx(3_000, abs=10)
    # Its share, and what it still has waiting from before goes ahead of the other's extra work.
    assert after["left"] >= 0.4 * 2_000 - 10
    assert after["small"] >= 0.2 * 2_000 - 10
