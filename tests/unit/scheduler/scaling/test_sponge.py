"""`sponge`: how many instances a worker gets, what is redirected to them, and when they go."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from sublet.scheduler.scaling.actions import AddInstances, Redirect, ReleaseInstances
from sublet.scheduler.scaling.plan import Instance, Plan, Redirection
from sublet.scheduler.scaling.policies.sponge import Sponge
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


def cluster(
    *,
    busy: float = 0.7,
    load: float = 0.7,
    waiting_ms: float = 0.0,
    helpers: int = 0,
    redirects: Mapping[str, Redirection] | None = None,
    cost_ms: float = 5.0,
    instances_max: int = 100,
) -> ClusterView:
    """One worker that has all of one function, with so many instances."""
    names = [f"+1-{number}" for number in range(helpers)]
    function = FunctionView(
        facts=FunctionFacts(name=FUNCTION, partitions=1),
        cost_ms=cost_ms,
        lease_ms=0.1,
        loads={f"{FUNCTION}/0": load},
    )
    worker = WorkerView(
        facts=WorkerFacts(id="w"), joined_ms=0.0, utilisation=busy, waiting_ms=waiting_ms
    )
    return ClusterView(
        workers={"w": worker},
        functions={FUNCTION: function},
        placement={f"{FUNCTION}/0": "w"},
        plan=Plan(
            instances=[Instance(name, "w", 0, 1_000) for name in names], redirects=redirects or {}
        ),
        bounds=Bounds(instances_max=instances_max),
        actuation=Actuation(),
        instances={"w": names} if names else {},
    )


def added(view: ClusterView, policy: Sponge | None = None, seconds: int = 2) -> int:
    """Return how many instances are asked for after so many seconds alike."""
    policy = policy or Sponge()
    actions = [each for n in range(seconds) for each in policy.decide(view, 1_000.0 * n)]
    return sum(each.count for each in actions if isinstance(each, AddInstances))


def test_so_many_come_that_the_worker_stays_at_its_target() -> None:
    """A load of 5 workers: the worker keeps 0.7, and each instance does 0.7 of 0.67."""
    assert added(cluster(busy=1.0, load=5.0)) == 10  # ⌈4.3 / 0.469⌉


def test_a_backlog_is_to_be_gone_in_time() -> None:
    """10 s of work are worked off in 10 s by one worker more."""
    assert added(cluster(busy=1.0, load=1.0, waiting_ms=10_000.0)) == 3  # ⌈1.3 / 0.469⌉


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
    actions = Sponge().decide(cluster(busy=1.0, load=2.8, helpers=2), 0.0)

    (redirect,) = [each for each in actions if isinstance(each, Redirect)]
    assert redirect.share == pytest.approx(0.75)  # 1 - 0.7 / 2.8
    assert redirect.lessees == ("+1-0", "+1-1")


def test_a_share_is_not_changed_for_nothing() -> None:
    known = {FUNCTION: Redirection(0.75, ("+1-0", "+1-1"))}
    view = cluster(busy=0.75, load=2.9, helpers=2, redirects=known)

    assert not Sponge().decide(view, 0.0)


def test_messages_that_cost_less_than_lending_them_stay_home() -> None:
    assert not Sponge().decide(cluster(busy=0.75, load=2.8, helpers=2, cost_ms=0.2), 0.0)


def test_after_a_burst_they_are_released_and_nothing_is_redirected() -> None:
    policy = Sponge(calm_samples=3)
    known = {FUNCTION: Redirection(0.75, ("+1-0", "+1-1"))}
    calm = cluster(busy=0.3, load=0.4, helpers=2, redirects=known)
    actions = [each for second in range(3) for each in policy.decide(calm, 1_000.0 * second)]

    assert [each.count for each in actions if isinstance(each, ReleaseInstances)] == [2]
    assert {each.share for each in actions if isinstance(each, Redirect)} == {0.0}


def test_a_short_pause_releases_nobody() -> None:
    policy = Sponge(calm_samples=3)
    calm, busy = cluster(load=0.4, helpers=2), cluster(load=2.0, helpers=2)
    for view in (calm, calm, busy, calm, calm):
        assert not [each for each in policy.decide(view, 0.0) if isinstance(each, ReleaseInstances)]


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [({"low": 0.8}, "low, target, high"), ({"speed": 0.0}, "speed")],
)
def test_parameters_that_make_no_sense_are_refused(
    parameters: dict[str, float], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        Sponge(**parameters)  # type: ignore[arg-type]
