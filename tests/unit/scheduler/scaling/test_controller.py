"""The controller: intents before acts, bounds that hold, policies that fail alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sublet.scheduler.scaling.actions import (
    REASON_MAX,
    Action,
    AddInstances,
    AddWorkers,
    DrainWorker,
    Ending,
    Migrate,
    Redirect,
    Share,
    Slot,
    Weigh,
)
from sublet.scheduler.scaling.controller import LAUNCHES_MAX, Controller
from sublet.scheduler.scaling.effects import StartWorkers, StopWorker, WritePlan
from sublet.scheduler.scaling.journal import DECISIONS_MAX
from sublet.scheduler.scaling.plan import (
    LOADS_MAX,
    MEMORY_BYTES_MAX,
    PINS_MAX,
    REDIRECTS_MAX,
    SHARES_MAX,
    Redirection,
)
from sublet.scheduler.scaling.seats import ACTIONS_MAX
from sublet.scheduler.scaling.settings import ScalingSettings
from sublet.scheduler.scaling.view import FunctionFacts, WorkerFacts
from tests.unit.scheduler.scaling.harness import (
    Cluster,
    Scripted,
    ScriptedPlacement,
    ScriptedShares,
)


@pytest.fixture
def policy() -> Scripted:
    return Scripted()


@pytest.fixture
def cluster(policy: Scripted) -> Cluster:
    cluster = Cluster({Slot.WORKERS: policy})
    cluster.tick()
    return cluster


# Intents before acts


def test_workers_are_started_after_the_plan_that_wants_them_is_stored(
    cluster: Cluster, policy: Scripted
) -> None:
    policy.next = [AddWorkers(count=2, because="much to do")]
    cluster.store_is_away = True
    cluster.tick()
    assert cluster.started == []

    cluster.store_is_away = False
    effects = cluster.tick()

    kinds = [type(each) for each in effects]
    assert kinds.index(WritePlan) < kinds.index(StartWorkers)
    assert cluster.stored is not None
    assert [each.id for each in cluster.stored.launches] == cluster.started == ["1-1", "1-2"]
    assert cluster.stored.workers == 4
    assert [each.total for each in effects if isinstance(each, StartWorkers)] == [4]


def test_a_worker_is_drained_after_the_plan_that_wants_it_is_stored(
    cluster: Cluster, policy: Scripted
) -> None:
    policy.next = [DrainWorker(worker="w1")]
    cluster.store_is_away = True
    cluster.tick(3)
    assert cluster.stopped == []

    cluster.store_is_away = False
    effects = cluster.tick()

    assert cluster.stopped == ["w1"]
    assert cluster.stored is not None
    assert [each.worker for each in cluster.stored.leaving] == ["w1"]
    assert [each.total for each in effects if isinstance(each, StopWorker)] == [1]


def test_one_plan_at_a_time_is_on_its_way(cluster: Cluster, policy: Scripted) -> None:
    policy.next = [AddWorkers(count=1)]
    cluster.now_ms += 1_000
    cluster.controller.tick(cluster.now_ms, cluster.wall_ms)
    (first,) = cluster.controller.take_effects()
    cluster.controller.pause(Slot.SHARES)
    assert cluster.controller.take_effects() == []

    assert isinstance(first, WritePlan)
    cluster.controller.written(first.plan.number, cluster.now_ms)
    start, second = cluster.controller.take_effects()

    assert isinstance(start, StartWorkers)
    assert isinstance(second, WritePlan)
    assert (first.plan.paused, second.plan.paused) == ((), ("shares",))


def test_an_answer_about_an_older_plan_starts_nothing(cluster: Cluster, policy: Scripted) -> None:
    policy.next = [AddWorkers(count=1)]
    cluster.now_ms += 1_000
    cluster.controller.tick(cluster.now_ms, cluster.wall_ms)
    (write,) = cluster.controller.take_effects()
    assert isinstance(write, WritePlan)

    cluster.controller.written(write.plan.number - 1, cluster.now_ms)
    cluster.controller.not_written(write.plan.number - 1)

    assert cluster.controller.take_effects() == []


def test_a_leader_that_is_not_sure_to_be_it_wants_nothing(
    cluster: Cluster, policy: Scripted
) -> None:
    policy.next = [AddWorkers(count=1)]
    assert cluster.tick(may_act=False) == []
    assert cluster.tick() != []


def test_who_does_not_lead_watches_only() -> None:
    policy = Scripted()
    controller = Controller(ScalingSettings(workers_max=3), {Slot.WORKERS: policy})
    controller.topology({"w0": WorkerFacts(id="w0")}, {}, {}, 0.0)
    controller.tick(1_000.0, 1e12)
    assert controller.take_effects() == []
    assert policy.asked == 0


def test_who_was_deposed_does_nothing_more(cluster: Cluster, policy: Scripted) -> None:
    policy.next = [AddWorkers(count=1), DrainWorker(worker="w0")]
    cluster.now_ms += 1_000
    cluster.controller.tick(cluster.now_ms, cluster.wall_ms)
    cluster.controller.deposed()
    assert cluster.controller.take_effects() == []
    cluster.controller.written(2, cluster.now_ms)
    policy.next = [AddWorkers(count=1)]
    assert cluster.tick(3) == []
    assert not cluster.controller.leads


# How actions end


def test_a_start_has_ended_when_all_its_workers_have_joined(
    cluster: Cluster, policy: Scripted
) -> None:
    policy.next = [AddWorkers(count=2)]
    cluster.tick()
    one, other = cluster.started
    cluster.join("w8", one)
    assert policy.outcomes == []
    assert policy.seen[0].starting == 0

    cluster.join("w9", other)

    ((action, outcome),) = policy.outcomes
    assert isinstance(action, AddWorkers)
    assert (outcome.ending, outcome.count) == (Ending.DONE, 2)
    assert cluster.stored is not None
    assert cluster.stored.launches == []
    assert cluster.stored.workers == 4


def test_where_processes_have_no_ids_whoever_comes_was_asked_for(
    cluster: Cluster, policy: Scripted
) -> None:
    policy.next = [AddWorkers(count=2)]
    cluster.tick()
    cluster.join("pod-a")
    cluster.join("pod-b")
    assert [outcome.ending for _, outcome in policy.outcomes] == [Ending.DONE]


def test_how_long_a_start_takes_is_measured(cluster: Cluster, policy: Scripted) -> None:
    for number in range(4):
        policy.next = [AddWorkers(count=1)]
        cluster.tick()
        launch = cluster.started[-1]
        cluster.tick(10)
        cluster.join(f"n{number}", launch)
    cluster.tick()
    assert 5_000 < policy.seen[0].actuation.start_ms < 11_000


def test_a_drain_has_ended_when_the_worker_is_gone(cluster: Cluster, policy: Scripted) -> None:
    policy.next = [DrainWorker(worker="w1")]
    cluster.tick()
    cluster.drain("w1")
    assert policy.outcomes == []
    cluster.leave("w1")
    assert [outcome.ending for _, outcome in policy.outcomes] == [Ending.DONE]
    assert cluster.stored is not None
    assert (cluster.stored.leaving, cluster.stored.workers) == ([], 1)


def test_a_move_has_ended_when_the_partition_is_there() -> None:
    policy = ScriptedPlacement()
    cluster = Cluster({Slot.PLACEMENT: policy})
    cluster.tick()
    policy.next = [Migrate(partition="shop/cart/0", worker="w1")]
    cluster.tick()
    assert cluster.stored is not None
    assert cluster.stored.pins == {"shop/cart/0": "w1"}
    assert not cluster.stored.evens_out
    cluster.move("shop/cart/0", "w1")
    assert [outcome.ending for _, outcome in policy.outcomes] == [Ending.DONE]
    cluster.tick(6)
    assert cluster.stored.pins == {}


@pytest.mark.parametrize(
    ("happens", "ending", "detail"),
    [
        (lambda c: c.leave("w1"), Ending.FAILED, "w1 has left"),
        (lambda c: c.drain("w1"), Ending.FAILED, "w1 has left"),
        (lambda c: c.placement.pop("shop/cart/0"), Ending.FAILED, "the partition is gone"),
        (lambda c: c.tick(60), Ending.TIMED_OUT, "the partition has not moved"),
    ],
)
def test_a_move_that_cannot_be_is_given_up(happens: Any, ending: Ending, detail: str) -> None:
    policy = ScriptedPlacement()
    cluster = Cluster({Slot.PLACEMENT: policy})
    cluster.tick()
    policy.next = [Migrate(partition="shop/cart/0", worker="w1")]
    cluster.tick()
    happens(cluster)
    cluster.tell_topology()
    ((_, outcome),) = policy.outcomes
    assert (outcome.ending, outcome.detail) == (ending, detail)
    assert cluster.stored is not None
    assert cluster.stored.pins == {}


def test_shares_weights_and_redirects_have_ended_when_they_are_written() -> None:
    placement, shares = ScriptedPlacement(), ScriptedShares()
    placement.actions = frozenset({Weigh, Redirect})  # type: ignore[attr-defined]
    cluster = Cluster({Slot.PLACEMENT: placement, Slot.SHARES: shares})
    cluster.tick()
    shares.next = [Share(tenant="gold", weight=4.0)]
    placement.next = [
        Weigh(worker="w0", weight=2.0),
        Redirect(function="shop/cart", share=0.5, lessees=("w1",)),
    ]
    cluster.store_is_away = True
    cluster.tick()
    assert (placement.outcomes, shares.outcomes) == ([], [])

    cluster.store_is_away = False
    cluster.tick()

    assert len(placement.outcomes) == 2
    assert len(shares.outcomes) == 1
    assert cluster.stored is not None
    assert cluster.stored.shares == {"gold": 4.0}
    assert cluster.stored.weights == {"w0": 2.0}
    assert cluster.stored.redirects == {"shop/cart": Redirection(0.5, ("w1",))}
    placement.next = [Weigh(worker="w0", weight=1.0), Redirect(function="shop/cart", share=0.0)]
    cluster.tick()
    assert (cluster.stored.weights, cluster.stored.redirects) == ({}, {})


def test_weights_of_workers_that_are_gone_are_forgotten() -> None:
    policy = ScriptedPlacement()
    cluster = Cluster({Slot.PLACEMENT: policy})
    cluster.tick()
    policy.next = [Weigh(worker="w1", weight=3.0)]
    cluster.tick()
    cluster.leave("w1")
    assert cluster.stored is not None
    assert cluster.stored.weights == {}


# Bounds


def test_there_are_never_more_workers_than_the_maximum(cluster: Cluster, policy: Scripted) -> None:
    policy.next = [AddWorkers(count=100)]
    cluster.tick()
    assert len(cluster.started) == 6
    policy.next = [AddWorkers(count=1)]
    cluster.tick()
    assert len(cluster.started) == 6
    assert cluster.last.outcome is not None
    assert cluster.last.outcome.detail == "there are 8 workers, the maximum"
    assert [outcome.ending for _, outcome in policy.outcomes] == [Ending.REFUSED]


def test_so_many_workers_start_at_once_and_no_more() -> None:
    policy = Scripted()
    cluster = Cluster({Slot.WORKERS: policy}, workers_max=1_000)
    cluster.tick()
    policy.next = [AddWorkers(count=600)]
    cluster.tick()
    assert len(cluster.started) == LAUNCHES_MAX
    policy.next = [AddWorkers(count=1)]
    cluster.tick()
    assert len(cluster.started) == LAUNCHES_MAX


def test_nobody_is_drained_below_the_minimum() -> None:
    policy = Scripted()
    cluster = Cluster({Slot.WORKERS: policy}, workers=4, workers_min=2)
    cluster.tick()
    policy.next = [DrainWorker(worker=f"w{number}") for number in range(4)]
    cluster.tick()
    assert cluster.stopped == ["w0", "w1"]
    refused = [outcome.detail for _, outcome in policy.outcomes]
    assert refused == ["1 workers would be left, and the minimum is 2"] * 2


def test_a_drain_that_was_not_written_is_withdrawn_when_others_have_gone() -> None:
    policy = Scripted()
    cluster = Cluster({Slot.WORKERS: policy}, workers=3, workers_min=2)
    cluster.tick()
    policy.next = [DrainWorker(worker="w0")]
    cluster.store_is_away = True
    cluster.tick()
    cluster.leave("w2")
    cluster.store_is_away = False
    cluster.tick()
    assert cluster.stopped == []
    assert policy.outcomes[0][1].detail == "1 workers would be left, and the minimum is 2"
    assert cluster.stored is not None
    assert cluster.stored.leaving == []


def test_a_drain_that_failed_is_looked_at_again_before_it_is_asked_for_again() -> None:
    """Others had died meanwhile, and the second attempt left fewer than the minimum."""
    policy = Scripted()
    cluster = Cluster({Slot.WORKERS: policy}, workers=3, workers_min=2)
    cluster.tick()
    policy.next = [DrainWorker(worker="w0")]
    cluster.tick()
    assert cluster.stopped == ["w0"]
    cluster.leave("w2")
    cluster.controller.failed("w0", "the directory is away", cluster.now_ms)
    cluster.carry_out()
    cluster.tick(3)
    assert cluster.stopped == ["w0"]
    assert policy.outcomes[0][1].detail == "1 workers would be left, and the minimum is 2"


def of_two_apps() -> dict[str, WorkerFacts]:
    """Only w0 has the first app's function, only w2 can read the newest states of the other's."""
    return {
        "w0": WorkerFacts(id="w0", functions={"shop/cart": 1, "web/page": 1}),
        "w1": WorkerFacts(id="w1", functions={"web/page": 1}),
        "w2": WorkerFacts(id="w2", functions={"web/page": 2}),
    }


@pytest.mark.parametrize(("worker", "function"), [("w0", "shop/cart"), ("w2", "web/page")])
def test_nobody_leaves_whose_functions_no_other_can_serve(worker: str, function: str) -> None:
    policy = Scripted()
    cluster = Cluster({Slot.WORKERS: policy}, workers=3)
    cluster.functions["web/page"] = FunctionFacts(name="web/page", partitions=2)
    cluster.members = of_two_apps()
    cluster.tell_topology()
    cluster.tick()
    policy.next = [DrainWorker(worker=worker), DrainWorker(worker="w1")]
    cluster.tick()
    assert cluster.stopped == ["w1"]
    assert policy.outcomes[0][1].detail == f"nobody else can serve {function}"


def test_who_is_the_last_with_a_function_by_the_time_of_its_drain_stays() -> None:
    policy = Scripted()
    cluster = Cluster({Slot.WORKERS: policy}, workers=3)
    cluster.members |= {"w2": WorkerFacts(id="w2", functions={})}
    cluster.tell_topology()
    cluster.tick()
    policy.next = [DrainWorker(worker="w0")]
    cluster.store_is_away = True
    cluster.tick()
    cluster.leave("w1")
    cluster.store_is_away = False
    cluster.tick()
    assert cluster.stopped == []
    assert policy.outcomes[0][1].detail == "nobody else can serve shop/cart"


@pytest.mark.parametrize("policy", ["fixed:workers=1", "reactive:cooldown=0,calm=0"])
def test_policies_choose_those_who_can_leave(policy: str) -> None:
    cluster = Cluster({Slot.WORKERS: policy}, workers=3)
    cluster.functions["web/page"] = FunctionFacts(name="web/page", partitions=2)
    cluster.members = of_two_apps()
    cluster.utilisation, cluster.rate = 0.02, 10
    cluster.tell_topology()
    cluster.tick(20)
    assert cluster.stopped == ["w1"]
    assert all(each.outcome is None for each in cluster.controller.decisions)


@pytest.mark.parametrize("policy", ["fixed:workers=1", "reactive:cooldown=0,calm=0"])
def test_in_a_rolling_upgrade_those_with_the_former_code_leave_first(policy: str) -> None:
    """The youngest were drained before: those that had just come with the next code."""
    cluster = Cluster({Slot.WORKERS: policy}, workers=2)
    cluster.members["w2"] = WorkerFacts(id="w2", upgrades=True)
    cluster.utilisation, cluster.rate = 0.02, 10
    cluster.tell_topology()
    cluster.tick(20)
    assert sorted(cluster.stopped) == ["w0", "w1"]


def test_who_starts_does_not_count_as_serving() -> None:
    policy = Scripted()
    cluster = Cluster({Slot.WORKERS: policy}, workers=2, workers_min=2)
    cluster.tick()
    policy.next = [AddWorkers(count=3), DrainWorker(worker="w0")]
    cluster.tick()
    assert len(cluster.started) == 3
    assert cluster.stopped == []


@pytest.fixture
def idle() -> Cluster:
    """A cluster of one worker that had nothing to do for 59 s, and may go after 60."""
    cluster = Cluster({Slot.WORKERS: Scripted()}, workers=1, workers_min=0)
    cluster.idle_ms = 59_000.0
    cluster.tick(2)
    return cluster


def test_the_last_worker_goes_when_there_was_nothing_to_do_for_long_enough(idle: Cluster) -> None:
    assert idle.stopped == []
    idle.idle_ms = 60_000.0
    idle.tick()
    assert idle.stopped == ["w0"]
    assert idle.stored is not None
    assert idle.stored.workers == 0
    assert (idle.last.policy, idle.last.action.because) == ("idle", "nothing to do for 60 s")


def test_the_last_worker_stays_for_a_timer_that_is_due_soon(idle: Cluster) -> None:
    idle.idle_ms, idle.timer_ms = 100_000.0, 59_999.0
    idle.tick(3)
    assert idle.stopped == []
    idle.timer_ms = 60_000.0
    idle.tick()
    assert idle.stopped == ["w0"]


def test_the_last_worker_stays_where_there_has_to_be_one() -> None:
    cluster = Cluster({Slot.WORKERS: Scripted()}, workers=1, workers_min=1)
    cluster.idle_ms = 1e9
    cluster.tick(3)
    assert cluster.stopped == []


def test_the_last_worker_stays_while_the_number_of_workers_is_paused(idle: Cluster) -> None:
    idle.controller.pause(Slot.WORKERS)
    idle.idle_ms = 1e9
    idle.tick(3)
    assert idle.stopped == []
    idle.controller.resume(Slot.WORKERS)
    idle.tick()
    assert idle.stopped == ["w0"]


def test_the_last_worker_stays_while_another_is_leaving_or_starting(idle: Cluster) -> None:
    idle.idle_ms = 1e9
    idle.members["w1"] = WorkerFacts(id="w1", draining=True)
    idle.tell_topology()
    idle.tick(2)
    assert idle.stopped == []


def test_several_workers_without_work_are_for_the_policy_to_judge() -> None:
    cluster = Cluster({Slot.WORKERS: Scripted()}, workers=2, workers_min=0)
    cluster.idle_ms = 1e9
    cluster.tick(3)
    assert cluster.stopped == []


def test_no_policy_may_drain_the_last_worker_while_it_has_work() -> None:
    policy = Scripted()
    cluster = Cluster({Slot.WORKERS: policy}, workers=1, workers_min=0)
    cluster.tick()
    policy.next = [DrainWorker(worker="w0")]
    cluster.tick()
    assert cluster.stopped == []
    ((_, outcome),) = policy.outcomes
    assert outcome.detail == "the last worker had something to do within 60 s"


def test_work_that_comes_before_the_last_worker_was_asked_to_leave_keeps_it(idle: Cluster) -> None:
    idle.store_is_away, idle.idle_ms = True, 60_000.0
    idle.tick()
    idle.store_is_away, idle.idle_ms = False, 0.0
    idle.tick(2)
    assert idle.stopped == []
    assert idle.stored is not None
    assert idle.stored.workers == 1


def test_a_last_worker_that_stays_after_all_may_go_the_next_time(idle: Cluster) -> None:
    idle.idle_ms = 60_000.0
    idle.tick()
    idle.controller.withdrawn("w0", "somebody has come meanwhile")
    idle.idle_ms = 0.0
    idle.tick()
    assert idle.stored is not None
    assert (idle.stored.workers, idle.stored.leaving) == (1, [])
    assert idle.last.outcome is not None
    assert idle.last.outcome.detail == "somebody has come meanwhile"
    idle.idle_ms = 60_000.0
    idle.tick()
    assert idle.stopped == ["w0", "w0"]


def test_time_without_workers_costs_nothing() -> None:
    cluster = Cluster({}, workers=1, workers_min=0, price_worker_hour=3_600.0)
    cluster.idle_ms = 1e9
    cluster.tick(3)
    assert cluster.stored is not None
    assert cluster.stored.workers == 0
    spent = cluster.controller.spending.spent.total
    cluster.now_ms += 20_000.0
    cluster.controller.lead(2, cluster.stored, cluster.now_ms, cluster.wall_ms)
    cluster.idle_ms = 0.0
    cluster.tick()
    assert cluster.controller.spending.spent.total <= spent + 2.0


def test_a_worker_that_is_not_heard_blocks_scale_in(cluster: Cluster, policy: Scripted) -> None:
    cluster.silent = {"w0"}
    cluster.tick(3)
    policy.next = [DrainWorker(worker="w1")]
    cluster.tick()
    assert cluster.stopped == []
    assert cluster.last.outcome is not None
    assert cluster.last.outcome.detail == "w0 has not been heard for 3 s"
    assert policy.seen[0].silent
    assert policy.seen[0].workers["w0"].utilisation == 1.0

    cluster.silent = set()
    cluster.tick()
    policy.next = [DrainWorker(worker="w1")]
    cluster.tick()
    assert cluster.stopped == ["w1"]


def test_a_worker_that_has_just_joined_has_its_time_to_be_heard(
    cluster: Cluster, policy: Scripted
) -> None:
    cluster.silent = {"w9"}
    cluster.join("w9")
    cluster.tick(2)
    policy.next = [DrainWorker(worker="w1")]
    cluster.tick(1)
    assert cluster.stopped == []
    cluster.silent = set()
    policy.next = [DrainWorker(worker="w1")]
    cluster.tick(1)
    assert cluster.stopped == ["w1"]


def test_nobody_is_asked_while_nobody_is_heard(cluster: Cluster, policy: Scripted) -> None:
    cluster.silent = set(cluster.members)
    cluster.tick(2)
    asked = policy.asked
    cluster.tick(10)
    assert policy.asked == asked


def test_of_one_worker_one_drain_is_under_way(cluster: Cluster, policy: Scripted) -> None:
    cluster.join("w5")
    cluster.tick()
    policy.next = [DrainWorker(worker="w1"), DrainWorker(worker="w1")]
    cluster.tick()
    assert cluster.stopped == ["w1"]
    assert policy.outcomes[-1][1].detail == "w1 is leaving already"
    cluster.tick()
    assert "worker w1" in policy.seen[0].under_way


def test_of_one_partition_one_move_is_under_way() -> None:
    policy = ScriptedPlacement()
    cluster = Cluster({Slot.PLACEMENT: policy}, workers=3)
    cluster.tick()
    policy.next = [
        Migrate(partition="shop/cart/0", worker="w1"),
        Migrate(partition="shop/cart/0", worker="w2"),
    ]
    cluster.tick()
    assert cluster.stored is not None
    assert cluster.stored.pins == {"shop/cart/0": "w1"}
    assert policy.outcomes[0][1].detail == "shop/cart/0 is moving already"


def test_nothing_moves_to_who_is_leaving() -> None:
    workers, placement = Scripted(), ScriptedPlacement()
    cluster = Cluster({Slot.WORKERS: workers, Slot.PLACEMENT: placement}, workers=3)
    cluster.tick()
    workers.next = [DrainWorker(worker="w1")]
    placement.next = [Migrate(partition="shop/cart/0", worker="w1")]
    cluster.tick()
    assert placement.outcomes[0][1].detail == "w1 is leaving"


def test_so_many_partitions_move_at_once_and_no_more() -> None:
    policy = ScriptedPlacement()
    cluster = Cluster({Slot.PLACEMENT: policy})
    count = PINS_MAX + 10
    cluster.functions = {"a/f": FunctionFacts(name="a/f", partitions=count)}
    cluster.placement = {f"a/f/{index}": "w0" for index in range(count)}
    cluster.tell_topology()
    cluster.tick()
    policy.next = [Migrate(partition=f"a/f/{index}", worker="w1") for index in range(count)]
    cluster.tick()
    assert cluster.stored is not None
    assert len(cluster.stored.pins) == PINS_MAX
    assert len(policy.outcomes) == 10


def test_what_nobody_would_carry_out_is_refused_and_not_in_the_plan() -> None:
    placement = ScriptedPlacement()
    placement.actions = frozenset({Redirect})  # type: ignore[attr-defined]
    cluster = Cluster({Slot.PLACEMENT: placement}, unsupported=[Redirect])
    cluster.tick()
    placement.next = [Redirect(function="shop/cart", share=0.5, lessees=("w1",))]
    cluster.tick()
    (_, outcome) = placement.outcomes[-1]
    assert (outcome.ending, outcome.detail) == (Ending.REFUSED, "workers cannot do this yet")
    assert cluster.stored is not None
    assert not cluster.stored.redirects


def test_so_many_tenants_have_shares_and_functions_redirects_and_no_more() -> None:
    shares, placement = ScriptedShares(), ScriptedPlacement()
    placement.actions = frozenset({Redirect})  # type: ignore[attr-defined]
    cluster = Cluster({Slot.SHARES: shares, Slot.PLACEMENT: placement})
    cluster.functions = {
        f"a/f{number}": FunctionFacts(name=f"a/f{number}", partitions=1)
        for number in range(REDIRECTS_MAX + 1)
    }
    cluster.costly = list(cluster.functions)
    cluster.tell_topology()
    cluster.tick()
    shares.next = [Share(tenant=f"t{number}", weight=1.0) for number in range(SHARES_MAX + 1)]
    placement.next = [
        Redirect(function=name, share=0.1, lessees=("w0",)) for name in cluster.functions
    ]
    cluster.tick()
    assert cluster.stored is not None
    assert len(cluster.stored.shares) == SHARES_MAX
    assert len(cluster.stored.redirects) == REDIRECTS_MAX
    assert [outcome.ending for _, outcome in shares.outcomes].count(Ending.REFUSED) == 1
    shares.next = [Share(tenant="t0", weight=9.0)]
    cluster.tick()
    assert cluster.stored.shares["t0"] == 9.0


def redirecting(message_ms: float = 1.0) -> tuple[ScriptedPlacement, Cluster]:
    placement = ScriptedPlacement()
    placement.actions = frozenset({Redirect})  # type: ignore[attr-defined]
    cluster = Cluster({Slot.PLACEMENT: placement}, workers=4)
    cluster.message_ms = cluster.fixed_ms = message_ms
    cluster.tick()
    return placement, cluster


def test_a_redirection_is_in_the_plan_until_its_share_is_nothing() -> None:
    placement, cluster = redirecting()
    placement.next = [Redirect(function="shop/cart", share=0.5, lessees=("w2", "w3"))]
    cluster.tick()
    assert cluster.stored is not None
    assert cluster.stored.redirects == {"shop/cart": Redirection(0.5, ("w2", "w3"))}
    placement.next = [Redirect(function="shop/cart", share=0.0)]
    cluster.tick()
    assert cluster.stored.redirects == {}


@pytest.mark.parametrize(
    ("facts", "message_ms", "lessee", "reason"),
    [
        (FunctionFacts(name="shop/cart", partitions=4), 0.001, "w3", "a message takes"),
        (FunctionFacts(name="shop/cart", partitions=4, lendable=False), 9.0, "w3", "cannot be"),
        (FunctionFacts(name="shop/cart", partitions=4), 9.0, "w0", "w0 is leaving"),
    ],
)
def test_what_is_not_worth_redirecting_is_refused(
    facts: FunctionFacts, message_ms: float, lessee: str, reason: str
) -> None:
    placement, cluster = redirecting(message_ms)
    cluster.functions = {facts.name: facts}
    cluster.members["w0"] = replace(cluster.members["w0"], draining=True)
    cluster.tell_topology()
    placement.next = [Redirect(function="shop/cart", share=0.5, lessees=(lessee,))]
    cluster.tick()
    (_, outcome) = placement.outcomes[-1]
    assert outcome.ending is Ending.REFUSED
    assert reason in outcome.detail
    assert cluster.stored is not None
    assert not cluster.stored.redirects


def test_a_lessee_that_has_gone_is_taken_out_of_the_plan_with_its_part() -> None:
    placement, cluster = redirecting()
    placement.next = [Redirect(function="shop/cart", share=0.6, lessees=("w2", "w3"))]
    cluster.tick()
    del cluster.members["w3"]
    cluster.tell_topology()
    cluster.tick()
    assert cluster.stored is not None
    assert cluster.stored.redirects == {"shop/cart": Redirection(0.3, ("w2",))}
    cluster.members["w2"] = replace(cluster.members["w2"], draining=True)
    cluster.tell_topology()
    cluster.tick()
    assert cluster.stored.redirects == {}


def test_a_successor_goes_on_with_what_is_redirected() -> None:
    placement, cluster = redirecting()
    placement.next = [Redirect(function="shop/cart", share=0.5, lessees=("w3",))]
    cluster.tick()
    before = cluster.stored
    assert before is not None
    cluster.controller.deposed()
    cluster.controller.lead(2, before, cluster.now_ms, cluster.wall_ms)
    cluster.carry_out()
    cluster.tick()
    assert cluster.stored is not None
    assert (cluster.stored.token, cluster.stored.redirects) == (2, before.redirects)


def test_a_plan_that_would_be_too_large_leaves_out_what_can_be_done_without() -> None:
    policy = ScriptedPlacement()
    cluster = Cluster({Slot.PLACEMENT: policy})
    names = [f"{'application' * 10}/{'function' * 6}{number}" for number in range(LOADS_MAX)]
    cluster.controller.note_loads(dict.fromkeys(names, 0.5))
    cluster.tick(6)
    assert cluster.stored is not None
    assert cluster.stored.loads == {}
    assert "the plan is too large; a part of it is left out" in cluster.said


def test_only_the_heaviest_loads_are_in_the_plan() -> None:
    cluster = Cluster({})
    cluster.controller.note_loads({f"a/f/{n}": n / 1000 for n in range(LOADS_MAX + 5)})
    cluster.tick(6)
    assert cluster.stored is not None
    assert len(cluster.stored.loads) == LOADS_MAX
    assert "a/f/4" not in cluster.stored.loads


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"workers_min": 3, "workers_max": 2}, r"workers are 3\.\.2; allowed: 0\.\.10000"),
        ({"workers_min": 0, "workers_max": 0}, "and that at least 1"),
        ({"workers_max": 10_001}, "allowed: 0..10000"),
        ({"start_timeout_ms": 0.0}, "start_timeout_ms is 0.0; allowed: more than 0"),
        ({"price_worker_hour": -1.0}, "price_worker_hour is -1.0; allowed: 0 or more"),
        ({"moves_max": 0}, "moves_max is 0; allowed: 1 or more"),
        ({"spend_cap": "5/day"}, "spend_cap needs a price"),
        ({"spend_cap": "much", "price_worker_hour": 1.0}, "spend_cap is 'much'"),
    ],
)
def test_settings_that_cannot_be_say_so(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ScalingSettings(**fields)


# Workers that do not start, or do not leave


def test_a_worker_that_never_joins_is_tried_once_more_then_given_up(
    cluster: Cluster, policy: Scripted
) -> None:
    policy.next = [AddWorkers(count=1)]
    cluster.tick()
    cluster.tick(60)
    assert cluster.started == ["1-1", "1-2"]
    assert policy.outcomes == []

    cluster.tick(60)

    assert cluster.started == ["1-1", "1-2"]
    ((_, outcome),) = policy.outcomes
    assert outcome.ending is Ending.FAILED
    assert outcome.detail == "1 not started: did not join within 60 s"
    assert cluster.stored is not None
    assert (cluster.stored.workers, cluster.stored.launches) == (2, [])
    assert cluster.said[-2:] == [
        "a worker did not start; trying once more",
        "a worker did not start; given up",
    ]


def test_after_a_failed_start_none_is_tried_for_longer_and_longer(
    cluster: Cluster, policy: Scripted
) -> None:
    policy.wanted = lambda view: [] if view.starting else [AddWorkers(count=1)]
    starts = []
    for second in range(1_500):
        before = len(cluster.started)
        cluster.tick()
        starts += [second] * (len(cluster.started) - before)
    # A start and its second attempt a minute later, then a pause of 1, 2, 4 and 8 minutes.
    pauses = [later - sooner for sooner, later in zip(starts[1::2], starts[2::2], strict=False)]
    assert pauses[:3] == pytest.approx([120, 180, 300], abs=2)
    assert not policy.seen[0].growth or policy.seen[0].starting
    details = [each.outcome.detail for each in cluster.controller.decisions if each.outcome]
    assert any(text.startswith("workers do not start; next attempt in") for text in details)


def test_a_start_that_works_ends_the_back_off(cluster: Cluster, policy: Scripted) -> None:
    policy.next = [AddWorkers(count=1)]
    cluster.tick()
    cluster.tick(121)
    cluster.join("late", "1-2")
    assert cluster.controller.view(cluster.now_ms).growth is False
    cluster.tick(60)
    policy.next = [AddWorkers(count=1)]
    cluster.tick()
    cluster.join("new", cluster.started[-1])
    policy.next = [AddWorkers(count=1)]
    cluster.tick()
    assert len(cluster.started) == 4


def test_what_an_actuator_cannot_start_fails_at_once(cluster: Cluster, policy: Scripted) -> None:
    policy.next = [AddWorkers(count=1)]
    cluster.tick()
    cluster.controller.failed("1-1", "no quota", cluster.now_ms)
    cluster.carry_out()
    cluster.controller.failed("1-2", "no quota", cluster.now_ms)
    cluster.carry_out()
    assert cluster.started == ["1-1", "1-2"]
    assert policy.outcomes[0][1].detail == "1 not started: no quota"
    cluster.controller.failed("unknown", "whatever", cluster.now_ms)
    assert cluster.carry_out() == []


def test_of_several_workers_those_count_that_came(cluster: Cluster, policy: Scripted) -> None:
    policy.next = [AddWorkers(count=2)]
    cluster.tick()
    cluster.join("w9", "1-1")
    cluster.tick(120)
    ((_, outcome),) = policy.outcomes
    assert (outcome.ending, outcome.count) == (Ending.FAILED, 1)


def test_a_drain_that_never_ends_is_asked_for_once_more_then_told(
    cluster: Cluster, policy: Scripted
) -> None:
    policy.next = [DrainWorker(worker="w1")]
    cluster.tick()
    cluster.drain("w1")
    cluster.tick(120)
    assert cluster.stopped == ["w1", "w1"]
    cluster.tick(120)
    assert cluster.stopped == ["w1", "w1"]
    ((_, outcome),) = policy.outcomes
    assert outcome.ending is Ending.TIMED_OUT
    assert outcome.detail == "did not leave within 120 s"
    # It drains: so it serves nothing, and still is to leave.
    assert cluster.stored is not None
    assert [each.worker for each in cluster.stored.leaving] == ["w1"]
    cluster.tick(600)
    assert cluster.said.count("a worker does not leave") == 1
    cluster.leave("w1")
    assert cluster.stored.leaving == []


def test_a_worker_that_does_not_even_begin_to_leave_serves_on(
    cluster: Cluster, policy: Scripted
) -> None:
    policy.next = [DrainWorker(worker="w1")]
    cluster.tick()
    for _ in range(2):
        cluster.controller.failed("w1", "forbidden", cluster.now_ms)
        cluster.carry_out()
    assert policy.outcomes[0][1].detail == "forbidden"
    assert cluster.stored is not None
    assert (cluster.stored.leaving, cluster.stored.workers) == ([], 2)


# Workers that come and go by themselves


def test_fewer_workers_than_the_minimum_are_made_up_for() -> None:
    cluster = Cluster({}, workers=2, workers_min=2)
    cluster.tick()
    cluster.leave("w1")
    cluster.tick(59)
    assert cluster.started == []  # Whoever keeps the processes may start it again.
    cluster.tick(2)
    assert cluster.started == ["1-1"]
    assert cluster.last.policy == "minimum"
    assert cluster.last.action.because == "1 workers, and the minimum is 2"


def test_a_worker_that_comes_back_in_time_is_not_missed() -> None:
    cluster = Cluster({}, workers=2, workers_min=2)
    cluster.tick()
    cluster.leave("w1")
    cluster.tick(30)
    cluster.join("w1")
    cluster.tick(100)
    assert cluster.started == []
    assert "workers are missing" not in cluster.said


def test_workers_that_were_started_by_hand_are_wanted() -> None:
    cluster = Cluster({}, workers=2)
    cluster.tick()
    cluster.join("by-hand")
    cluster.tick()
    assert cluster.stored is not None
    assert cluster.stored.workers == 3


# Money


def test_at_the_spend_cap_nobody_is_added() -> None:
    policy = Scripted()
    cluster = Cluster(
        {Slot.WORKERS: policy}, workers=2, price_worker_hour=1.8, spend_cap="0.1/hour"
    )
    cluster.tick(81)
    assert cluster.said == ["the spend cap is near"]
    cluster.tick(20)
    assert cluster.said == ["the spend cap is near", "the spend cap is reached: nothing is added"]
    policy.next = [AddWorkers(count=1)]
    cluster.tick()
    assert cluster.started == []
    assert cluster.last.outcome is not None
    assert cluster.last.outcome.detail == "the spend cap of 0.1/hour is reached"
    assert policy.seen[0].growth is False
    policy.next = [DrainWorker(worker="w1")]
    cluster.tick()
    assert cluster.stopped == ["w1"]


def test_a_new_period_begins_with_all_the_money() -> None:
    policy = Scripted()
    cluster = Cluster({Slot.WORKERS: policy}, price_worker_hour=1.8, spend_cap="0.1/hour")
    cluster.tick(110)
    cluster.now_ms += 3_500_000
    cluster.tick(2)
    policy.next = [AddWorkers(count=1)]
    cluster.tick()
    assert len(cluster.started) == 1


def test_workers_that_start_cost_money_and_each_what_it_says() -> None:
    policy = Scripted()
    cluster = Cluster({Slot.WORKERS: policy}, price_worker_hour=1.0)
    cluster.join("dear", price_hour=5.0)
    assert cluster.controller.price_hour == 7.0
    cluster.tick()
    policy.next = [AddWorkers(count=1)]
    cluster.tick()
    assert cluster.controller.price_hour == 8.0


def test_money_is_written_every_five_seconds_and_counted_on_after_a_failover() -> None:
    cluster = Cluster({}, price_worker_hour=1.8)
    cluster.tick(2)
    before = cluster.writes
    cluster.tick(50)
    assert cluster.writes - before == 10
    assert cluster.stored is not None
    cluster.now_ms += 10_000
    cluster.fail_over({})
    cluster.tick()
    total = cluster.controller.spending.spent.total
    assert total == pytest.approx(2 * 1.8 * 62 / 3600, rel=0.02)


def test_without_a_price_nothing_is_written_for_nothing(cluster: Cluster) -> None:
    before = cluster.writes
    cluster.tick(100)
    assert cluster.writes == before


# Failover


def test_a_successor_carries_out_what_was_written_and_not_done(
    cluster: Cluster, policy: Scripted
) -> None:
    cluster.join("w2")
    cluster.tick()
    policy.next = [AddWorkers(count=2), DrainWorker(worker="w1")]
    cluster.tick()
    cluster.join("w7", "1-1")

    cluster.fail_over({Slot.WORKERS: Scripted()})

    assert cluster.started == ["1-2"]
    assert cluster.stopped == ["w1"]
    assert cluster.stored is not None
    assert (cluster.stored.token, cluster.stored.workers) == (2, 4)


def test_a_successor_acts_only_after_it_has_written_the_plan_itself(
    cluster: Cluster, policy: Scripted
) -> None:
    policy.next = [AddWorkers(count=1)]
    cluster.tick()
    cluster.store_is_away = True
    cluster.fail_over({Slot.WORKERS: Scripted()})
    cluster.tick(5)
    assert cluster.started == []


def test_a_successor_tries_once_more_and_gives_up_as_well(
    cluster: Cluster, policy: Scripted
) -> None:
    policy.next = [AddWorkers(count=1)]
    cluster.tick()
    cluster.tick(61)
    cluster.fail_over({})
    assert cluster.started == ["1-2"]
    cluster.tick(61)
    assert cluster.started == ["1-2"]
    assert cluster.stored is not None
    assert cluster.stored.launches == []


def test_ids_of_two_controllers_never_meet(cluster: Cluster, policy: Scripted) -> None:
    policy.next = [AddWorkers(count=1)]
    cluster.tick()
    successor = Scripted()
    cluster.fail_over({Slot.WORKERS: successor})
    cluster.tick()
    successor.next = [AddWorkers(count=1)]
    cluster.tick()
    assert cluster.started == ["1-1", "2-1"]


def test_a_successor_keeps_pins_shares_pauses_and_what_it_does_not_know() -> None:
    placement, shares = ScriptedPlacement(), ScriptedShares()
    cluster = Cluster({Slot.PLACEMENT: placement, Slot.SHARES: shares}, workers=3)
    cluster.tick()
    placement.next = [Migrate(partition="shop/cart/0", worker="w2")]
    shares.next = [Share(tenant="gold", weight=3.0)]
    cluster.tick()
    cluster.controller.pause(Slot.SHARES)
    cluster.carry_out()

    asked = ScriptedShares()
    cluster.fail_over({Slot.SHARES: asked})
    cluster.tick(3)

    assert cluster.stored is not None
    assert cluster.stored.pins == {"shop/cart/0": "w2"}
    assert cluster.stored.shares == {"gold": 3.0}
    assert cluster.stored.paused == ("shares",)
    assert asked.asked == 0


class Remembering(Scripted):
    def __init__(self) -> None:
        super().__init__()
        self.told: Mapping[str, Any] | None = None
        self.mind: dict[str, Any] = {"best": 1}

    def memory(self) -> Mapping[str, Any]:
        return dict(self.mind)

    def recall(self, memory: Mapping[str, Any]) -> None:
        self.told = memory


def test_what_a_policy_remembers_survives_its_controller() -> None:
    policy = Remembering()
    cluster = Cluster({Slot.WORKERS: policy})
    policy.mind = {"best": [1, 2.5, "three"]}
    cluster.tick(7)
    successor = Remembering()
    cluster.fail_over({Slot.WORKERS: successor})
    assert successor.told == {"best": [1, 2.5, "three"]}


def test_a_policy_that_remembers_too_much_is_disabled() -> None:
    policy = Remembering()
    policy.mind = {"much": "x" * MEMORY_BYTES_MAX}
    cluster = Cluster({Slot.WORKERS: policy})
    cluster.tick()
    (status,) = cluster.controller.slots()
    assert "allowed: 4096" in status.failure


# Policies that fail


class Raising(Scripted):
    def decide(self, cluster: Any, now_ms: float) -> Sequence[Action]:
        self.asked += 1
        raise RuntimeError("x" * 1_000)


class RaisingAtTheEnd(Scripted):
    def ended(self, action: Action, outcome: Any, now_ms: float) -> None:
        raise KeyError("end")


def test_a_policy_that_raises_is_told_disabled_and_harms_no_other() -> None:
    bad, good = Raising(), ScriptedShares()
    cluster = Cluster({Slot.WORKERS: bad, Slot.SHARES: good})
    cluster.tick()
    good.next = [Share(tenant="gold", weight=2.0)]
    cluster.tick(5)

    assert bad.asked == 1
    assert good.asked == 6
    assert cluster.said == ["a scaling policy failed and is disabled; its slot stays as it is"]
    workers, shares = cluster.controller.slots()
    assert workers.failure.startswith("it failed and is disabled: RuntimeError: xxx")
    assert len(workers.failure) <= REASON_MAX
    assert shares.failure == ""
    assert cluster.stored is not None
    assert cluster.stored.shares == {"gold": 2.0}


def test_a_policy_that_raises_when_it_hears_of_an_end_is_disabled_too() -> None:
    policy = RaisingAtTheEnd()
    cluster = Cluster({Slot.WORKERS: policy}, workers=1)
    cluster.tick()
    policy.next = [DrainWorker(worker="w0")]
    cluster.tick(3)
    assert "KeyError" in cluster.controller.slots()[0].failure
    assert policy.asked == 2


@pytest.mark.parametrize(
    "nonsense",
    [
        "add some workers",
        AddWorkers(count=0),
        AddWorkers(count=-3),
        AddWorkers(count=1.5),  # type: ignore[arg-type]
        AddWorkers(count=1_000_000),
        DrainWorker(worker="nobody"),
        Migrate(partition="shop/cart/0", worker="w1"),
        Share(tenant="gold", weight=1.0),
        AddInstances(worker="w0", count=1),
    ],
    ids=str,
)
def test_a_policy_that_wants_nonsense_is_disabled(
    nonsense: Any, cluster: Cluster, policy: Scripted
) -> None:
    policy.next = [AddWorkers(count=1), nonsense]
    cluster.tick()
    assert cluster.started == []
    assert cluster.controller.slots()[0].failure
    assert not cluster.controller.decisions


@pytest.mark.parametrize(
    "nonsense",
    [
        Migrate(partition="shop/cart/9", worker="w1"),
        Migrate(partition="shop/cart/0", worker="nobody"),
        Weigh(worker="nobody", weight=1.0),
        Weigh(worker="w0", weight=0.0),
        Weigh(worker="w0", weight=float("nan")),
        Redirect(function="nobody/f", share=0.5, lessees=("w0",)),
        Redirect(function="shop/cart", share=1.5, lessees=("w0",)),
        Redirect(function="shop/cart", share=0.5, lessees=("nobody",)),
        Redirect(function="shop/cart", share=0.5),
        AddWorkers(count=1),
    ],
    ids=str,
)
def test_a_placement_that_makes_no_sense_disables_its_policy(nonsense: Any) -> None:
    policy = ScriptedPlacement()
    policy.actions = frozenset({Migrate, Weigh, Redirect})  # type: ignore[attr-defined]
    cluster = Cluster({Slot.PLACEMENT: policy})
    cluster.tick()
    policy.next = [nonsense]
    cluster.tick()
    assert cluster.controller.slots()[0].failure
    # Placement is what it was without a policy.
    assert cluster.stored is not None
    assert cluster.stored.evens_out
    assert cluster.stored.pins == {}


@pytest.mark.parametrize("weight", [-1.0, float("inf"), 1e7, True, "many"])
def test_a_share_that_makes_no_sense_disables_its_policy(weight: Any) -> None:
    policy = ScriptedShares()
    cluster = Cluster({Slot.SHARES: policy})
    cluster.tick()
    policy.next = [Share(tenant="gold", weight=weight)]
    cluster.tick()
    assert cluster.controller.slots()[0].failure


def test_a_policy_that_wants_too_much_at_once_is_disabled(
    cluster: Cluster, policy: Scripted
) -> None:
    policy.next = [AddWorkers(count=1)] * (ACTIONS_MAX + 1)
    cluster.tick()
    assert f"allowed: {ACTIONS_MAX}" in cluster.controller.slots()[0].failure


def test_a_policy_that_answers_with_nothing_at_all_is_disabled(
    cluster: Cluster, policy: Scripted
) -> None:
    policy.wanted = lambda view: None  # type: ignore[assignment, return-value]
    cluster.tick()
    assert "TypeError" in cluster.controller.slots()[0].failure


def test_two_policies_cannot_turn_one_knob() -> None:
    placement, shares = ScriptedPlacement(), ScriptedShares()
    placement.actions = frozenset({Migrate, Redirect})  # type: ignore[attr-defined]
    shares.actions = frozenset({Share, Redirect})  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="both decide about Redirect"):
        Cluster({Slot.PLACEMENT: placement, Slot.SHARES: shares})


def test_a_policy_has_its_slot_and_claims_only_what_is_in_it() -> None:
    with pytest.raises(ValueError, match="Scripted is for workers, not for shares"):
        Cluster({Slot.SHARES: Scripted()})
    policy = Scripted()
    policy.actions = frozenset({Share})  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="claims Share; workers has no such"):
        Cluster({Slot.WORKERS: policy})


# People


def test_a_paused_slot_is_not_asked_and_what_is_under_way_goes_on(
    cluster: Cluster, policy: Scripted
) -> None:
    policy.next = [AddWorkers(count=1)]
    cluster.tick()
    cluster.controller.pause(Slot.WORKERS)
    cluster.carry_out()
    asked = policy.asked
    cluster.tick(5)
    assert policy.asked == asked
    assert cluster.stored is not None
    assert cluster.stored.paused == ("workers",)
    assert cluster.controller.slots()[0].paused
    cluster.join("w9", "1-1")
    assert len(policy.outcomes) == 1
    cluster.controller.resume(Slot.WORKERS)
    cluster.tick()
    assert policy.asked == asked + 1


def test_a_dry_run_says_what_it_would_do_and_does_nothing() -> None:
    policy = Scripted(lambda view: [AddWorkers(count=1, because="much to do")])
    cluster = Cluster({Slot.WORKERS: policy}, dry_run=True)
    cluster.tick(20)
    assert cluster.started == []
    (decision,) = cluster.controller.decisions
    assert decision.outcome is not None
    assert decision.outcome.ending is Ending.DRY_RUN
    assert decision.repeated == 19
    assert cluster.stored is not None
    assert (cluster.stored.workers, cluster.stored.launches) == (None, ())


def test_a_dry_run_leaves_a_predecessors_plan_alone(cluster: Cluster, policy: Scripted) -> None:
    policy.next = [AddWorkers(count=1)]
    cluster.tick()
    before = cluster.stored
    cluster.fail_over({}, workers_max=8, dry_run=True)
    cluster.tick(200)
    assert cluster.started == []
    assert before is not None
    assert cluster.stored is not None
    assert cluster.stored.launches == before.launches


def test_decisions_are_kept_with_reasons_and_figures(cluster: Cluster, policy: Scripted) -> None:
    policy.next = [AddWorkers(count=1, because="y" * 1_000, figures={"load": 2.5})]
    cluster.tick()
    decision = cluster.last
    assert decision.policy == "Scripted"
    assert len(decision.action.because) == REASON_MAX
    assert decision.action.figures == {"load": 2.5}
    assert decision.outcome is None
    cluster.join("w9", "1-1")
    assert decision.outcome is not None
    assert decision.ended_wall_ms is not None


def test_the_last_thousand_decisions_are_kept(cluster: Cluster, policy: Scripted) -> None:
    for number in range(DECISIONS_MAX // 2 + 10):
        # Two different refusals in turn: the same ones would be kept once.
        policy.next = [DrainWorker(worker="w0"), AddWorkers(count=1 + number % 7)]
        cluster.silent = {"w1"}
        cluster.tick()
    assert len(cluster.controller.decisions) == DECISIONS_MAX


def test_policies_are_asked_as_often_as_they_want() -> None:
    policy, slow = Scripted(), ScriptedPlacement()
    slow.period_ms = 10_000.0
    cluster = Cluster({Slot.WORKERS: policy, Slot.PLACEMENT: slow})
    cluster.tick(30)
    assert (policy.asked, slow.asked) == (30, 3)


def test_a_policy_sees_what_the_one_before_it_wants_in_the_same_second() -> None:
    workers, shares = Scripted(), ScriptedShares()
    cluster = Cluster({Slot.WORKERS: workers, Slot.SHARES: shares}, workers=3)
    cluster.tick()
    workers.next = [DrainWorker(worker="w1"), AddWorkers(count=2)]
    cluster.tick()
    (seen,) = shares.seen
    assert [each.id for each in seen.serving] == ["w0", "w2"]
    assert seen.starting == 2


def test_figures_of_a_policy_are_shown(cluster: Cluster, policy: Scripted) -> None:
    policy.figures = {"forecast": 12.5}  # type: ignore[attr-defined]
    assert cluster.controller.slots()[0].figures == {"forecast": 12.5}


# The baselines


def test_fixed_keeps_the_number_it_was_given() -> None:
    cluster = Cluster({Slot.WORKERS: "fixed:workers=4"}, workers=2)
    cluster.tick()
    assert len(cluster.started) == 2
    for launch in cluster.started:
        cluster.join(f"n{launch}", launch)
    cluster.tick(3)
    assert len(cluster.started) == 2
    cluster.join("by-hand")
    cluster.tick(3)
    assert cluster.stopped == ["w1"]


def test_fixed_without_a_number_and_even_want_nothing() -> None:
    cluster = Cluster({Slot.WORKERS: "fixed", Slot.PLACEMENT: "even"})
    cluster.tick(30)
    assert not cluster.controller.decisions
    assert cluster.stored is not None
    assert cluster.stored.evens_out


@pytest.mark.parametrize("figures", [{"load": "much"}, None, [1]])
def test_figures_that_make_no_sense_disable_their_policy(figures: Any) -> None:
    policy = Scripted()
    policy.figures = figures  # type: ignore[attr-defined]
    cluster = Cluster({Slot.WORKERS: policy})

    (status,) = cluster.controller.slots()
    assert status.figures == {}
    assert "it failed and is disabled" in status.failure


def test_of_several_workers_each_is_no_launch_any_more_when_it_has_joined() -> None:
    """Otherwise it counts twice, as one that serves and one that starts."""
    policy = Scripted()
    cluster = Cluster({Slot.WORKERS: policy})
    policy.next = [AddWorkers(count=2)]
    cluster.tick()
    first, second = (each.id for each in cluster.controller.plan.launches)
    cluster.join("w8", first)
    cluster.tick()

    (view,) = policy.seen
    assert (len(view.serving), view.starting) == (3, 1)
    assert [each.id for each in cluster.controller.plan.launches] == [second]
