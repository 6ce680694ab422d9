"""Standing leases: who gets which messages, and whose plan counts."""

from __future__ import annotations

from collections import Counter

import pytest

from sublet.scheduler.binding.standing import (
    LENDING_MS,
    StandingLease,
    StandingLeases,
    is_worth_lending,
)
from sublet.scheduler.scaling.plan import Instance, Leaving, Plan, Redirection

KEYS = [f"key-{number}" for number in range(4_000)]


def plan(token: int, number: int, **redirects: tuple[float, tuple[str, ...]]) -> Plan:
    return Plan(
        token=token,
        number=number,
        redirects={name: Redirection(*each) for name, each in redirects.items()},
    )


# Keys


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95, 1.0])
def test_so_large_a_share_of_the_keys_is_away_evenly(share: float) -> None:
    lease = StandingLease(share, ["a", "b"])
    found = Counter(lease.lessee_of(key) for key in KEYS)
    assert found["a"] + found["b"] == pytest.approx(share * len(KEYS), rel=0.1)
    assert found["a"] == pytest.approx(found["b"], rel=0.15)


def test_a_key_goes_to_the_same_lessee_each_time() -> None:
    one, other = StandingLease(0.5, ["a", "b"]), StandingLease(0.5, ["b", "a"])
    assert [one.lessee_of(key) for key in KEYS] == [other.lessee_of(key) for key in KEYS]


def test_when_the_share_grows_no_key_changes_its_lessee() -> None:
    small, large = StandingLease(0.3, ["a", "b"]), StandingLease(0.6, ["a", "b"])
    moved = [key for key in KEYS if (at := small.lessee_of(key)) and at != large.lessee_of(key)]
    assert moved == []


def test_when_a_lessee_comes_only_keys_that_it_gets_move() -> None:
    two, three = StandingLease(0.5, ["a", "b"]), StandingLease(0.5, ["a", "b", "c"])
    moved = {three.lessee_of(key) for key in KEYS if two.lessee_of(key) != three.lessee_of(key)}
    assert moved == {"c"}


# In turn


def test_messages_go_to_lessees_in_turn() -> None:
    lease = StandingLease(1.0, ["a", "b"])
    assert lease.pieces(5, 2) == [("a", 2), ("b", 2), ("a", 1)]
    assert lease.pieces(1, 2) == [("b", 1)]


def test_a_share_of_single_messages_is_kept_over_time() -> None:
    lease = StandingLease(0.25, ["a"])
    given = [sum(count for _, count in lease.pieces(1, 10)) for _ in range(1_000)]
    assert sum(given) == 250
    assert max(given) == 1


def test_not_more_than_there_is_goes_away() -> None:
    lease = StandingLease(0.9, ["a"])
    for count in (1, 3, 100):
        assert sum(each for _, each in lease.pieces(count, 7)) <= count


# Whose plan counts


def test_a_plan_of_a_lower_token_is_ignored() -> None:
    leases = StandingLeases()
    assert leases.follow(plan(5, 1, f=(0.5, ("a",))))
    assert not leases.follow(plan(4, 9))
    assert leases.of("f") is not None
    assert leases.follow(plan(6, 1))
    assert not leases


def test_an_older_plan_of_the_same_controller_is_ignored() -> None:
    leases = StandingLeases()
    leases.follow(plan(5, 2))
    assert not leases.follow(plan(5, 1, f=(0.5, ("a",))))
    assert leases.of("f") is None


def test_what_stays_as_it_is_keeps_its_turn() -> None:
    leases = StandingLeases()
    leases.follow(plan(1, 1, f=(0.5, ("a",))))
    before = leases.of("f")
    assert not leases.follow(plan(1, 2, f=(0.5, ("a",))))
    assert leases.of("f") is before
    assert leases.follow(plan(1, 3, f=(0.4, ("a",))))
    assert leases.of("f") is not before


def test_nothing_is_redirected_without_a_share_or_lessees() -> None:
    leases = StandingLeases()
    leases.follow(plan(1, 1, f=(0.0, ("a",)), g=(0.5, ())))
    assert not leases


def test_who_leaves_is_known() -> None:
    leases = StandingLeases()
    leases.follow(Plan(token=1, number=1, leaving=[Leaving("a", 0)]))
    assert leases.leaving == {"a"}


def test_a_worker_has_its_share_at_its_own_instances() -> None:
    leases = StandingLeases("w1")
    leases.follow(
        Plan(
            token=1,
            number=1,
            instances=[Instance("+1", "w1", 0, 9), Instance("+2", "w2", 0, 9)],
            redirects={"f": Redirection(1.0, ("+1", "+2", "w3")), "g": Redirection(1.0, ("+2",))},
        )
    )
    lease = leases.of("f")
    assert lease is not None
    assert lease.lessees == ("+1", "w3")
    assert leases.of("g") is None


def test_all_instances_of_a_worker_can_be_named_at_once() -> None:
    leases = StandingLeases("w1")
    instances = [
        Instance("+1", "w1", 0, 9, serving=True),
        Instance("+2", "w2", 0, 9, serving=True),
        Instance("+3", "w1", 0, 9, serving=True),
        Instance("+4", "w1", 0, 9),
    ]
    redirects = {"f": Redirection(0.5, ("+",)), "g": Redirection(0.5, ("w3", "+"))}
    leases.follow(Plan(token=1, number=1, instances=instances, redirects=redirects))
    both = leases.of("f"), leases.of("g")

    assert [each.lessees for each in both if each] == [("+1", "+3"), ("w3", "+1", "+3")]
    assert leases.follow(Plan(token=1, number=2, instances=instances[:2], redirects=redirects))
    left = leases.of("f")
    assert left is not None
    assert left.lessees == ("+1",)
    leases.follow(Plan(token=1, number=3, instances=instances[1:2], redirects=redirects))
    assert leases.of("f") is None


# What is worth it


def test_a_message_has_to_cost_three_times_what_lending_it_does() -> None:
    assert is_worth_lending(0.31, 0.1)
    assert not is_worth_lending(0.3, 0.1)
    assert is_worth_lending(3.1 * LENDING_MS, 0.0)
    assert not is_worth_lending(3.0 * LENDING_MS, 0.0)
    assert not is_worth_lending(0.0, 0.0)
