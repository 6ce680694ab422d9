"""Who runs first under each order, and what that means for those who wait."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.scheduler.api import ArrivalOrder, FollowsWork, QueueOrder, WorkView
from sublet.scheduler.orders import (
    DEFAULT_ORDER,
    ORDERS,
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
        rank, _, each = heappop(waiting)
        if isinstance(order, FollowsWork):
            order.started(rank)
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
    tokens = TokenShares(shares=SHARES)
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
        "shared-laxity",
    }


def test_an_unknown_order_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"order is 'fifo'; allowed: least-laxity, .*token-fair"):
        order_named("fifo")


def test_token_fair_cannot_be_had_without_shares() -> None:
    with pytest.raises(ValueError, match="needs shares by tenant"):
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


def test_the_tokens_of_a_small_share_are_further_apart() -> None:
    order = TokenFair({"a": 1.0, "b": 3.0})
    ranks = {tenant: [order.rank(work(tenant=tenant)) for _ in range(3)] for tenant in "ab"}
    assert ranks["a"] == pytest.approx([4.0, 8.0, 12.0])
    assert ranks["b"] == pytest.approx([4.0 / 3, 8.0 / 3, 4.0])


def test_a_chunk_takes_a_token_for_each_message_and_ranks_by_its_last() -> None:
    order, one_by_one = TokenFair({"a": 1.0}), TokenFair({"a": 1.0})
    ranks = [one_by_one.rank(work(tenant="a")) for _ in range(6)]
    assert order.rank(work(tenant="a", count=4)) == ranks[3]
    assert order.rank(work(tenant="a", count=2)) == ranks[5]


def test_who_was_idle_begins_at_the_present() -> None:
    order = TokenFair({"a": 1.0, "b": 1.0})
    for _ in range(100):
        order.started(order.rank(work(tenant="a")))
    assert order.rank(work(tenant="b")) == order.rank(work(tenant="a"))


def test_what_waits_while_others_work_keeps_its_place() -> None:
    order = TokenFair({"a": 1.0, "b": 1.0})
    first = order.rank(work(tenant="b"))
    for _ in range(100):
        order.started(order.rank(work(tenant="a")))
    assert first < order.rank(work(tenant="a"))


def test_tenants_without_a_share_have_the_default_share_together() -> None:
    order = TokenFair({"a": 3.0}, default_share=1.0)
    ranks = [order.rank(work(tenant=f"stranger {number}")) for number in range(3)]
    assert ranks == pytest.approx([4.0, 8.0, 12.0])


def test_a_share_of_0_means_running_when_nothing_else_waits() -> None:
    order = TokenFair({"a": 0.0, "b": 1.0})
    assert order.rank(work(tenant="a")) == math.inf
    assert order.rank(work(tenant="stranger")) == math.inf
    order.started(math.inf)
    assert order.rank(work(tenant="b")) < math.inf


def test_strangers_leave_nothing_behind() -> None:
    order = TokenFair({"a": 1.0}, default_share=1.0)
    for number in range(1_000):
        order.rank(work(tenant=f"stranger {number}"))
    assert list(order._tenants) == ["a"]


@pytest.mark.parametrize(
    ("shares", "default_share", "message"),
    [
        ({"a": -1.0}, 0.0, "share of 'a' is -1.0; allowed: 0 or more"),
        ({"a": math.nan}, 0.0, "share of 'a' is nan"),
        ({"a": 1.0}, -0.5, "default_share is -0.5; allowed: 0 or more"),
        ({}, 0.0, "nobody has a share"),
        ({"a": 0.0}, 0.0, "nobody has a share"),
    ],
)
def test_shares_that_make_no_sense_are_refused(
    shares: dict[str, float], default_share: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        TokenFair(shares, default_share=default_share)


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
    done = served(TokenFair(SHARES), arrivals, until_ms=end_ms)
    for from_ms in range(2_000, 12_000, 2_000):
        from_ms += int(idle_ms)
        counts = messages_by_tenant(
            (at_ms, each) for at_ms, each in done if from_ms <= at_ms < from_ms + 2_000.0
        )
        for tenant, share in SHARES.items():
            # A chunk is all or nothing, at both ends of the two seconds.
            slack = 2 * max(sizes.values()) + 10
            assert abs(counts[tenant] - 2_000 * share / 100) <= slack, (from_ms, counts)


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
    done = served(TokenFair(SHARES), arrivals, until_ms=math.inf)
    by_arrival = served(ArrivalOrder(), arrivals, until_ms=math.inf)
    assert len(done) == len(arrivals)
    assert done[-1][0] == pytest.approx(by_arrival[-1][0])


def test_a_tenant_alone_gets_the_whole_server_until_others_come() -> None:
    alone = backlogged({"small": 5}, rate_per_s=1_000.0, from_ms=0.0, to_ms=6_000.0)
    other = backlogged({"left": 5}, rate_per_s=1_000.0, from_ms=3_000.0, to_ms=6_000.0)
    done = served(TokenFair(SHARES), [*alone, *other], until_ms=6_000.0)
    before = messages_by_tenant(each for each in done if each[0] < 3_000.0)
    after = messages_by_tenant(each for each in done if each[0] >= 3_100.0)
    assert before["small"] == pytest.approx(3_000, abs=10)
    # It owes nothing for what nobody else wanted.
    assert after["left"] / after["small"] == pytest.approx(2.0, rel=0.05)
