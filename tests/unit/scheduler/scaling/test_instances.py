"""Instances, as the controller wants them: intents before acts, bounds, money, failovers."""

from __future__ import annotations

import msgspec
import pytest

from sublet.scheduler.scaling.actions import (
    Action,
    AddInstances,
    Ending,
    ReleaseInstances,
    Slot,
)
from sublet.scheduler.scaling.effects import StartInstances, WritePlan
from sublet.scheduler.scaling.plan import Instance
from sublet.scheduler.scaling.signals import WorkerSample
from tests.unit.scheduler.scaling.harness import Cluster, Scripted

GB_SECOND = 0.0000166667


class ScriptedInstances(Scripted):
    slot = Slot.INSTANCES
    actions = frozenset({AddInstances, ReleaseInstances})


class Bursting(Cluster):
    """A cluster whose workers tell who serves them."""

    def __init__(self, policy: ScriptedInstances, **settings: object) -> None:
        self.policy = policy
        self.serving: dict[str, set[str]] = {}
        settings.setdefault("instances_max", 4)
        super().__init__({Slot.INSTANCES: policy}, **settings)  # type: ignore[arg-type]
        self.tick()

    def sample(self, worker: str) -> WorkerSample:
        names = sorted(self.serving.get(worker, ()))
        return msgspec.structs.replace(super().sample(worker), instances=names)

    def want(self, *actions: Action) -> None:
        self.policy.next = list(actions)
        self.tick()

    def dial_in(self) -> None:
        """Let all come that were started."""
        for each in self.asked:
            self.serving.setdefault(each.worker, set()).add(each.id)
        self.tick()

    @property
    def asked(self) -> list[Instance]:
        return [
            instance
            for effect in self.effects
            if isinstance(effect, StartInstances)
            for instance in effect.instances
        ]

    @property
    def planned(self) -> list[str]:
        assert self.stored is not None
        return [each.id for each in self.stored.instances]


@pytest.fixture
def policy() -> ScriptedInstances:
    return ScriptedInstances()


@pytest.fixture
def cluster(policy: ScriptedInstances) -> Bursting:
    return Bursting(policy)


def test_instances_are_started_after_the_plan_that_wants_them_is_stored(cluster: Bursting) -> None:
    cluster.store_is_away = True
    cluster.want(AddInstances(worker="w0", count=2))
    assert not cluster.asked
    cluster.store_is_away = False
    cluster.tick()

    assert [each.worker for each in cluster.asked] == ["w0", "w0"]
    assert cluster.planned == [each.id for each in cluster.asked]
    kinds = [type(each) for each in cluster.effects]
    assert kinds.index(WritePlan) < kinds.index(StartInstances)


def test_a_decision_has_ended_when_all_of_them_serve(cluster: Bursting) -> None:
    cluster.want(AddInstances(worker="w0", count=2))
    first, second = (each.id for each in cluster.asked)
    cluster.serving["w0"] = {first}
    cluster.tick()
    assert not cluster.policy.outcomes
    cluster.serving["w0"].add(second)
    cluster.tick()

    assert [outcome.ending for _, outcome in cluster.policy.outcomes] == [Ending.DONE]
    (view,) = cluster.policy.seen
    assert view.instances == {"w0": [first, second]}


def test_one_that_does_not_dial_in_is_given_up(cluster: Bursting) -> None:
    cluster.want(AddInstances(worker="w0", count=1))
    cluster.tick(31)

    assert [outcome.ending for _, outcome in cluster.policy.outcomes] == [Ending.TIMED_OUT]
    assert cluster.planned == []


def test_one_that_cannot_be_started_is_given_up_with_the_reason(cluster: Bursting) -> None:
    cluster.want(AddInstances(worker="w0", count=1))
    cluster.controller.failed(cluster.asked[0].id, "throttled", cluster.now_ms)
    cluster.carry_out()

    ((_, outcome),) = cluster.policy.outcomes
    assert (outcome.ending, outcome.detail) == (Ending.FAILED, "throttled")
    assert cluster.planned == []


def test_one_that_is_not_heard_of_any_more_is_forgotten(cluster: Bursting) -> None:
    cluster.want(AddInstances(worker="w0", count=1))
    cluster.dial_in()
    cluster.serving.clear()
    cluster.tick(4)

    assert cluster.planned == []


def test_those_of_a_worker_that_leaves_go_with_it(cluster: Bursting) -> None:
    cluster.want(AddInstances(worker="w1", count=2))
    cluster.dial_in()
    cluster.leave("w1")
    cluster.tick()

    assert cluster.planned == []


def test_released_are_first_those_that_have_not_come(cluster: Bursting) -> None:
    cluster.want(AddInstances(worker="w0", count=1))
    cluster.dial_in()
    (serving,) = cluster.planned
    cluster.want(AddInstances(worker="w0", count=1))
    cluster.want(ReleaseInstances(worker="w0", count=1))

    assert cluster.planned == [serving]


def test_there_are_never_more_than_the_maximum(cluster: Bursting) -> None:
    cluster.want(AddInstances(worker="w0", count=3))
    cluster.want(AddInstances(worker="w1", count=3))
    assert len(cluster.planned) == 4
    cluster.want(AddInstances(worker="w0", count=1))

    assert len(cluster.planned) == 4
    assert cluster.last.outcome is not None
    assert cluster.last.outcome.detail == "there are 4 instances, the maximum"


def test_time_ends_them(policy: ScriptedInstances) -> None:
    cluster = Bursting(policy, instance_life_ms=20_000.0)
    cluster.want(AddInstances(worker="w0", count=1))
    cluster.dial_in()
    assert cluster.planned
    cluster.tick(20)

    assert not cluster.planned


def test_a_successor_goes_on_with_them_and_pays_for_none_twice(cluster: Bursting) -> None:
    cluster.want(AddInstances(worker="w0", count=2))
    cluster.dial_in()
    before = cluster.planned
    policy = cluster.policy
    cluster.fail_over({Slot.INSTANCES: policy})
    cluster.tick()

    assert cluster.planned == before
    assert not cluster.asked
    cluster.want(AddInstances(worker="w0", count=1))
    assert len(set(cluster.planned)) == 3


def test_a_successor_drops_those_that_never_come(cluster: Bursting) -> None:
    cluster.want(AddInstances(worker="w0", count=1))
    cluster.fail_over({Slot.INSTANCES: cluster.policy})
    cluster.tick(31)

    assert cluster.planned == []


@pytest.mark.parametrize(
    "action",
    [
        AddInstances(worker="stranger", count=1),
        AddInstances(worker="w0", count=0),
        AddInstances(worker="w0", count=-1),
        ReleaseInstances(worker="stranger", count=1),
    ],
    ids=str,
)
def test_a_policy_that_wants_nonsense_is_disabled(cluster: Bursting, action: Action) -> None:
    cluster.want(action)

    (status,) = cluster.controller.slots()
    assert "it adds" in status.failure


# Money


def test_instances_are_paid_by_the_second_and_for_their_start(policy: ScriptedInstances) -> None:
    cluster = Bursting(policy, price_gb_second=GB_SECOND, price_request=0.01, instance_gb=2.0)
    cluster.want(AddInstances(worker="w0", count=3))
    started = cluster.controller.spending.spent.total
    assert started == pytest.approx(0.03)
    cluster.dial_in()
    cluster.tick(9)

    assert cluster.controller.spending.spent.total - started == pytest.approx(
        3 * 2.0 * GB_SECOND * 10
    )


def test_at_the_spend_cap_all_of_them_go_and_none_comes(policy: ScriptedInstances) -> None:
    cap = 20 * GB_SECOND
    cluster = Bursting(policy, price_gb_second=GB_SECOND, instance_gb=1.0, spend_cap=f"{cap}/day")
    cluster.want(AddInstances(worker="w0", count=4))
    cluster.dial_in()
    cluster.tick(10)
    assert cluster.planned == []
    cluster.serving.clear()
    cluster.want(AddInstances(worker="w0", count=1))

    assert cluster.last.outcome is not None
    assert "spend cap" in cluster.last.outcome.detail
    # One interval of counting, for four of them.
    assert cluster.controller.spending.spent.period <= cap + 4 * GB_SECOND


def test_what_a_successor_finds_is_paid_from_where_it_was_counted_last(
    policy: ScriptedInstances,
) -> None:
    cluster = Bursting(policy, price_gb_second=GB_SECOND, instance_gb=1.0)
    cluster.want(AddInstances(worker="w0", count=2))
    cluster.dial_in()
    cluster.tick(10)
    spent = cluster.stored.spent.total if cluster.stored is not None else 0.0
    assert spent > 0
    cluster.now_ms += 30_000  # Nobody leads for half a minute.
    cluster.fail_over({Slot.INSTANCES: policy})
    cluster.tick(1)

    gained = cluster.controller.spending.spent.total - spent
    assert gained == pytest.approx(2 * GB_SECOND * 31, rel=0.2)


# To see whether one comes


def test_a_trial_is_started_known_to_no_policy_and_leaves_by_itself(cluster: Bursting) -> None:
    cluster.controller.try_instance("w0", cluster.now_ms)
    cluster.carry_out()
    (asked,) = cluster.asked
    cluster.dial_in()
    assert cluster.policy.seen[0].instances == {}
    (described,) = cluster.controller.instances
    assert described.is_trial
    assert described.serves
    assert described.took_ms is not None
    cluster.want(ReleaseInstances(worker="w0", count=1))
    assert cluster.planned == [asked.id]
    cluster.tick(3)

    assert cluster.planned == []
    (decision,) = (each for each in cluster.controller.decisions if each.policy == "trial")
    assert decision.outcome is not None
    assert decision.outcome.ending is Ending.DONE


def test_a_trial_that_cannot_be_started_says_why(cluster: Bursting) -> None:
    cluster.controller.try_instance("w0", cluster.now_ms)
    cluster.carry_out()
    cluster.controller.failed(cluster.asked[0].id, "throttled", cluster.now_ms)
    (decision,) = (each for each in cluster.controller.decisions if each.policy == "trial")

    assert decision.outcome is not None
    assert decision.outcome.detail == "throttled"
