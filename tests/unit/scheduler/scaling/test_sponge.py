"""`sponge`: how many instances a worker gets, what is redirected to them, and when they go."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import pytest

from sublet.scheduler.scaling.actions import (
    Action,
    AddInstances,
    Provision,
    Redirect,
    ReleaseInstances,
)
from sublet.scheduler.scaling.plan import OWN_INSTANCES, Instance, Plan, Redirection
from sublet.scheduler.scaling.policies.sponge import SHARE_MAX, Sponge
from sublet.scheduler.scaling.view import (
    Actuation,
    Bounds,
    ClusterView,
    FunctionFacts,
    FunctionView,
    WorkerFacts,
    WorkerView,
)

FUNCTION = "shop/cart"
OWN = (OWN_INSTANCES,)


def sponge(**parameters: Any) -> Sponge:
    """One that acts from the first sample on."""
    return Sponge(**{"ignore_samples": 0, "ignore_ms": 0.0, **parameters})


def cluster(  # noqa: PLR0913  # Tests say what matters to them.
    *,
    busy: float = 0.7,
    load: float = 0.7,
    waiting_ms: float = 0.0,
    helpers: int = 0,
    redirects: Mapping[str, Redirection] | None = None,
    cost_ms: float = 5.0,
    lease_ms: float = 0.001,
    laxity_ms: float = inf,
    speed: float = 0.0,
    instances_max: int = 100,
    others: Mapping[str, FunctionView] | None = None,
    prices: tuple[float, float] = (0.0, 0.0),
    floor: int = 0,
) -> ClusterView:
    """One worker that has all of one function, with so many instances."""
    names = [f"+1-{number}" for number in range(helpers)]
    function = FunctionView(
        facts=FunctionFacts(name=FUNCTION, partitions=1),
        cost_ms=cost_ms,
        lease_ms=lease_ms,
        loads={f"{FUNCTION}/0": load},
    )
    worker = WorkerView(
        facts=WorkerFacts(id="w"),
        joined_ms=0.0,
        utilisation=busy,
        waiting_ms=waiting_ms,
        laxity_ms=laxity_ms,
        instance_speed=speed,
    )
    functions = {FUNCTION: function, **(others or {})}
    return ClusterView(
        workers={"w": worker},
        functions=functions,
        placement={f"{name}/0": "w" for name in functions},
        plan=Plan(
            instances=[Instance(name, "w", 0, 1_000) for name in names],
            redirects=redirects or {},
            floor=floor,
        ),
        bounds=Bounds(instances_max=instances_max),
        actuation=Actuation(instance_hour=prices[0], price_worker_hour=prices[1]),
        instances={"w": names} if names else {},
    )


def added(view: ClusterView, policy: Sponge | None = None, seconds: int = 2) -> int:
    """Return how many instances are asked for after so many seconds alike."""
    policy = policy or sponge()
    actions = [each for n in range(seconds) for each in policy.decide(view, 1_000.0 * n)]
    return sum(each.count for each in actions if isinstance(each, AddInstances))


def test_so_many_come_that_the_worker_stays_at_its_target() -> None:
    """A load of 5 workers: the worker keeps 0.7, and each instance does 0.7 of 0.67."""
    assert added(cluster(busy=1.0, load=5.0)) == 10  # ⌈4.3 / 0.469⌉


def test_a_backlog_is_to_be_gone_in_time() -> None:
    """10 s of work are worked off in 10 s by one worker more."""
    assert added(cluster(busy=1.0, load=1.0, waiting_ms=10_000.0), seconds=1) == 3  # ⌈1.3 / 0.469⌉


def test_one_busy_second_is_no_burst() -> None:
    assert added(cluster(busy=1.0, load=5.0), seconds=1) == 0


@pytest.mark.parametrize("busy", [0.0, 0.6, 0.7, 0.8])
def test_a_worker_that_is_as_busy_as_it_should_be_gets_none(busy: float) -> None:
    assert added(cluster(busy=busy, load=busy), seconds=20) == 0


def test_no_more_are_asked_for_than_there_may_be() -> None:
    assert added(cluster(busy=1.0, load=50.0, instances_max=7)) == 7
    assert added(cluster(busy=1.0, load=50.0, instances_max=3, helpers=3)) == 0


def test_those_that_are_there_count() -> None:
    assert added(cluster(busy=1.0, load=5.0, helpers=8)) == 2


def test_what_the_worker_cannot_do_is_redirected() -> None:
    actions = sponge().decide(cluster(busy=1.0, load=2.8, helpers=5), 0.0)

    (redirect,) = [each for each in actions if isinstance(each, Redirect)]
    assert redirect.share == pytest.approx(0.75, rel=0.01)  # 1 - 0.7 / 2.8
    assert redirect.lessees == OWN


def test_a_share_is_not_changed_for_nothing() -> None:
    known = {FUNCTION: Redirection(0.75, OWN)}
    view = cluster(busy=0.75, load=2.9, helpers=5, redirects=known)

    assert not sponge().decide(view, 0.0)


def test_a_share_is_raised_at_once_and_lowered_after_a_while() -> None:
    policy = sponge(calm_samples=3)
    known = {FUNCTION: Redirection(0.5, OWN)}
    more = cluster(busy=0.75, load=2.8, helpers=5, redirects=known)
    assert [each for each in policy.decide(more, 0.0) if isinstance(each, Redirect)]
    less = cluster(busy=0.7, load=1.0, helpers=1, redirects=known)
    actions = [policy.decide(less, 1_000.0 * second) for second in range(1, 4)]

    assert [len(each) for each in actions] == [0, 0, 1]
    (redirect,) = actions[-1]
    assert isinstance(redirect, Redirect)
    assert redirect.share == pytest.approx(0.3, rel=0.01)


def test_messages_that_cost_less_than_lending_them_stay_home() -> None:
    view = cluster(busy=0.75, load=2.8, helpers=2, cost_ms=0.2, lease_ms=0.1)
    assert not [each for each in sponge().decide(view, 0.0) if isinstance(each, Redirect)]


def test_after_a_burst_they_are_released_and_nothing_is_redirected() -> None:
    policy = sponge(calm_samples=3)
    known = {FUNCTION: Redirection(0.75, OWN)}
    calm = cluster(busy=0.3, load=0.4, helpers=2, redirects=known)
    actions = [each for second in range(3) for each in policy.decide(calm, 1_000.0 * second)]

    assert [each.count for each in actions if isinstance(each, ReleaseInstances)] == [2]
    assert {each.share for each in actions if isinstance(each, Redirect)} == {0.0}


def test_a_short_pause_releases_nobody() -> None:
    policy = sponge(calm_samples=3)
    calm, busy = cluster(load=0.4, helpers=2), cluster(load=2.0, helpers=2)
    for view in (calm, calm, busy, calm, calm):
        assert not [each for each in policy.decide(view, 0.0) if isinstance(each, ReleaseInstances)]


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"low": 0.8}, "low, target, high"),
        ({"speed": 0.0}, "speed"),
        ({"ignore_samples": -1}, "ignore_samples"),
        ({"count": "many"}, "allowed: spare, seed"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(
    parameters: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        Sponge(**parameters)


# The first samples


def decided(policy: Sponge, view: ClusterView, seconds: int, since_s: int = 0) -> list[Action]:
    return [
        action
        for second in range(since_s, since_s + seconds)
        for action in policy.decide(view, 1_000.0 * second)
    ]


def test_the_first_samples_of_a_worker_are_ignored() -> None:
    policy, busy = Sponge(), cluster(busy=1.0, load=5.0)

    assert not decided(policy, busy, 30)
    assert [type(each) for each in decided(policy, busy, 1, since_s=30)] == [AddInstances]


def test_ten_samples_are_ignored_however_long_they_take() -> None:
    policy, busy = Sponge(ignore_ms=0.0), cluster(busy=1.0, load=5.0)

    assert not decided(policy, busy, 10)
    assert decided(policy, busy, 1, since_s=10)


# What a load takes


def test_what_a_load_takes_is_learned_while_all_of_it_runs_at_home() -> None:
    """Handlers take 0.35, the worker is busy for 0.7: a load of 2.5 is one of 5."""
    policy = sponge()
    decided(policy, cluster(busy=0.7, load=0.35), 30)

    assert added(cluster(busy=1.0, load=2.5), policy) == 10


def test_few_samples_are_not_believed() -> None:
    policy = sponge()
    decided(policy, cluster(busy=0.7, load=0.35), 9)

    assert added(cluster(busy=1.0, load=5.0), policy) == 10


def test_nothing_is_learned_from_a_worker_that_is_too_busy_or_lends() -> None:
    policy = sponge(samples=99)
    decided(policy, cluster(busy=1.0, load=0.4), 30)
    decided(policy, cluster(busy=0.7, load=3.5, helpers=3), 30)

    assert added(cluster(busy=1.0, load=5.0, waiting_ms=2_001), policy, seconds=1) >= 10


# How many


def test_a_backlog_of_two_seconds_is_acted_on_at_once() -> None:
    assert added(cluster(busy=1.0, load=1.0, waiting_ms=2_001.0), seconds=1) > 0
    assert added(cluster(busy=1.0, load=1.0, waiting_ms=2_000.0), seconds=1) == 0


def test_the_seeds_own_number_buys_the_whole_target() -> None:
    assert added(cluster(busy=1.0, load=5.0), sponge(count="seed")) == 11  # ⌈5 / 0.469⌉


def test_a_backlog_has_to_be_gone_before_the_first_message_is_late() -> None:
    """5 s of work in 2 s: 2.5 more."""
    view = cluster(busy=1.0, load=1.0, waiting_ms=5_000.0, laxity_ms=2_000.0)
    assert added(view, seconds=1) == 6  # ⌈(1 + 2.5 - 0.7) / 0.469⌉


def test_a_backlog_has_to_be_gone_before_the_next_window_ends() -> None:
    window = other("shop/window", load=0.0, slide_ms=5_000.0)
    view = cluster(busy=1.0, load=1.0, waiting_ms=5_000.0, others={"shop/window": window})
    assert added(view, seconds=1) == 3  # ⌈(1 + 1 - 0.7) / 0.469⌉


def test_a_measured_speed_counts_instead_of_the_expected_one() -> None:
    assert added(cluster(busy=1.0, load=5.0, speed=1.0)) == 7  # ⌈4.3 / 0.7⌉


def test_an_instance_of_two_cores_does_twice_as_much() -> None:
    assert added(cluster(busy=1.0, load=5.0), sponge(cores=2)) == 5


def test_what_lending_takes_of_the_worker_is_lent_on() -> None:
    """A tenth of what is lent stays at home, as work: so more is lent."""
    view = cluster(busy=1.0, load=2.8, helpers=20, cost_ms=1.0, lease_ms=0.1)
    (redirect,) = sponge().decide(view, 0.0)

    assert isinstance(redirect, Redirect)
    assert redirect.share == pytest.approx(0.75 / 0.9)
    assert (1 - redirect.share) * 2.8 + redirect.share * 2.8 * 0.1 == pytest.approx(0.7)


def test_some_go_when_all_have_too_little_to_do_and_what_is_left_is_at_the_target() -> None:
    policy = sponge(calm_samples=3)
    actions = decided(policy, cluster(load=2.0, helpers=9), 3)

    (released,) = [each for each in actions if isinstance(each, ReleaseInstances)]
    left = 9 - released.count
    assert left == 3  # ⌈1.3 / 0.469⌉; with one fewer, they would be asked for again.
    assert not [each for each in decided(policy, cluster(load=2.0, helpers=left), 30) if
                isinstance(each, AddInstances | ReleaseInstances)]  # fmt: skip


# What is lent


def other(
    name: str,
    load: float,
    *,
    cost_ms: float = 5.0,
    lease_ms: float = 0.001,
    mergeable: bool = False,
    lendable: bool = True,
    slide_ms: float | None = None,
) -> FunctionView:
    facts = FunctionFacts(
        name=name, partitions=1, mergeable=mergeable, lendable=lendable, slide_ms=slide_ms
    )
    return FunctionView(facts=facts, cost_ms=cost_ms, lease_ms=lease_ms, loads={f"{name}/0": load})


def shares(view: ClusterView) -> dict[str, float]:
    actions = sponge().decide(view, 0.0)
    return {each.function: each.share for each in actions if isinstance(each, Redirect)}


def test_mergeable_functions_are_lent_first() -> None:
    merged = {"shop/sum": other("shop/sum", 1.0, mergeable=True)}
    found = shares(cluster(busy=1.0, load=1.0, helpers=10, others=merged))

    assert found["shop/sum"] == SHARE_MAX
    assert found[FUNCTION] == pytest.approx(2.0 - 0.7 - SHARE_MAX, rel=0.01)


def test_of_others_those_first_that_cost_most_compared_with_lending_them() -> None:
    dear = {"shop/dear": other("shop/dear", 1.0, cost_ms=50.0)}
    found = shares(cluster(busy=1.0, load=0.5, helpers=10, others=dear))

    assert found == {"shop/dear": pytest.approx(0.8, rel=0.01)}


def test_no_more_is_lent_than_brings_the_worker_to_its_target() -> None:
    merged = {"shop/sum": other("shop/sum", 2.0, mergeable=True)}
    found = shares(cluster(busy=1.0, load=0.3, helpers=10, others=merged))

    assert found == {"shop/sum": pytest.approx(0.8, rel=0.01)}


def test_what_may_not_be_lent_stays_home() -> None:
    kept = {"shop/kept": other("shop/kept", 5.0, lendable=False)}
    view = cluster(busy=1.0, load=1.0, helpers=10, others=kept)

    assert shares(view) == {FUNCTION: SHARE_MAX}
    assert added(cluster(busy=1.0, load=1.0, others=kept)) == 3  # ⌈0.95 / 0.469⌉


def test_where_nothing_is_worth_lending_nobody_is_asked_for_or_kept() -> None:
    assert added(cluster(busy=1.0, load=5.0, cost_ms=0.2, lease_ms=0.1)) == 0
    actions = sponge().decide(
        cluster(busy=1.0, load=5.0, cost_ms=0.2, lease_ms=0.1, helpers=3), 0.0
    )
    assert [each.count for each in actions if isinstance(each, ReleaseInstances)] == [3]


def test_no_more_is_lent_than_the_instances_can_do_that_there_are() -> None:
    (share,) = shares(cluster(busy=1.0, load=5.0, helpers=2)).values()
    assert share == pytest.approx(0.8 * 0.67 * 2 / 5.0)


# Bursts that last

LAMBDA, WORKER = 0.106, 0.063


def burst(floor: int = 0) -> ClusterView:
    return cluster(busy=0.7, load=4.0, helpers=8, prices=(LAMBDA, WORKER), floor=floor)


def test_a_burst_that_lasts_is_handed_over_to_workers() -> None:
    policy = sponge()
    early = decided(policy, burst(), 60)
    assert not [each for each in early if isinstance(each, Provision)]
    (provision,) = [each for each in decided(policy, burst(), 1, 60) if isinstance(each, Provision)]

    assert provision.workers == 6  # ⌈4 / 0.7⌉
    assert "5 workers cost less than 8 instances: the burst has lasted 60 s" in provision.because
    assert not [e for e in decided(policy, burst(6), 30, 61) if isinstance(e, Provision)]


def test_when_the_burst_is_over_no_workers_are_kept_for_it() -> None:
    policy = sponge(persists_ms=0.0)
    decided(policy, burst(), 1)
    calm = cluster(busy=0.3, load=0.3, prices=(LAMBDA, WORKER), floor=6)
    actions = [each for each in decided(policy, calm, 11, 1) if isinstance(each, Provision)]

    assert actions[0].workers == 0


def test_without_prices_nobody_can_tell_and_instances_stay() -> None:
    policy = sponge(persists_ms=0.0)
    view = cluster(busy=0.7, load=4.0, helpers=8)
    assert not [each for each in decided(policy, view, 5) if isinstance(each, Provision)]


def test_instances_that_cost_less_than_workers_stay() -> None:
    policy = sponge(persists_ms=0.0)
    view = cluster(busy=0.7, load=4.0, helpers=8, prices=(0.001, WORKER))
    assert not [each for each in decided(policy, view, 5) if isinstance(each, Provision)]


def test_a_successor_knows_what_is_kept() -> None:
    policy = sponge(persists_ms=0.0)
    decided(policy, burst(), 1)
    heir = sponge()
    heir.recall(policy.memory())

    assert not [each for each in decided(heir, burst(6), 5) if isinstance(each, Provision)]
