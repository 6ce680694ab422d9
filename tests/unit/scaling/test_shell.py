"""The controller's shell: one leads, intents are stored before they are carried out, a successor
goes on, and who was replaced can do nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sublet.runtime.scaling.shell import Scaling
from sublet.scheduler.scaling.actions import (
    Action,
    AddWorkers,
    DrainWorker,
    Ending,
    Migrate,
    Outcome,
    Slot,
)
from sublet.scheduler.scaling.effects import StartWorkers
from sublet.scheduler.scaling.plan import Launch, Plan, encode_plan
from sublet.scheduler.scaling.policy import ScalingPolicy
from sublet.scheduler.scaling.view import ClusterView
from tests.unit.scaling.harness import Node, World


def fixed(workers: int = 0) -> Any:
    return lambda: {Slot.WORKERS: f"fixed:workers={workers}"}


async def cluster(workers: int, policies: Any = None, **settings: Any) -> World:
    world = World(policies or fixed(), **settings)
    for number in range(workers):
        await world.join(f"w{number}")
    return world


def leading(world: World) -> Node:
    assert world.leader is not None
    return world.leader


async def test_the_smallest_id_leads_and_hears_how_all_fare() -> None:
    world = await cluster(3)
    await world.seconds(3)

    leader = leading(world)
    assert leader.name == "w0"
    assert [each.leads for each in world.nodes.values()] == [True, False, False]
    assert world.nodes["w2"].scaling.holder == "w0"
    heard = leader.scaling.controller.view(world.now_ms).workers
    assert {name: each.silent for name, each in heard.items()} == dict.fromkeys(
        ("w0", "w1", "w2"), False
    )


async def test_workers_that_are_wanted_are_started_once_and_join() -> None:
    world = await cluster(1, fixed(3))
    await world.seconds(5)

    assert len(world.processes.started) == 2
    assert set(world.backend.members) == {"w0", *(f"x{each}" for each in world.processes.started)}
    assert world.plan.launches == []
    assert world.plan.workers == 3
    (decision,) = leading(world).scaling.controller.decisions
    assert decision.outcome == Outcome(Ending.DONE, "", 2)
    assert leading(world).scaling.ended == {("workers", "add-workers", "done"): 1}


async def test_workers_that_are_too_many_are_drained_and_leave() -> None:
    world = await cluster(3, fixed(1))
    await world.seconds(6)

    assert set(world.backend.members) == {"w0"}
    assert world.plan.leaving == []


async def idle_worker() -> World:
    """One worker that had nothing to do for long, and may go."""
    world = await cluster(1, {}, workers_min=0)
    await world.seconds(3)
    world.nodes["w0"].idle_ms = 60_000.0
    return world


async def test_callers_are_held_before_the_last_worker_is_drained() -> None:
    world = await idle_worker()
    calls = world.nodes["w0"].calls
    await world.seconds(3)

    assert not world.backend.members
    assert world.plan.workers == 0
    replan, hold, drain = (calls.names.index(each) for each in ("replan", "hold", "drain"))
    assert replan < hold < drain
    assert world.processes.is_held


async def test_the_last_worker_stays_if_somebody_came_just_before_callers_were_held() -> None:
    world = await idle_worker()
    node = world.nodes["w0"]
    world.processes.while_held = lambda: setattr(node, "idle_ms", 0.0)
    await world.seconds(3)

    assert set(world.backend.members) == {"w0"}
    assert not world.backend.members["w0"].draining
    assert not world.processes.is_held
    assert (world.plan.workers, world.plan.leaving) == (1, [])
    (decision,) = node.scaling.controller.decisions
    assert decision.outcome == Outcome(Ending.REFUSED, "somebody has come meanwhile")


async def test_the_last_worker_stays_where_nobody_would_start_another() -> None:
    world = await idle_worker()
    world.processes.keeps_ports = False
    await world.seconds(2)

    assert set(world.backend.members) == {"w0"}
    assert "drain" not in world.nodes["w0"].calls.names
    decision, *_ = world.nodes["w0"].scaling.controller.decisions
    assert decision.outcome is not None
    assert decision.outcome.detail == "nobody here would start a worker for a request"


async def test_when_the_leader_dies_another_goes_on() -> None:
    world = await cluster(2)
    await world.seconds(2)
    token = world.backend.lead.token
    await world.kill("w0")
    await world.second()

    assert leading(world).name == "w1"
    assert world.backend.lead.token > token


async def test_a_leader_that_is_drained_leaves_the_lead_to_others() -> None:
    world = await cluster(2)
    await world.seconds(2)
    await world.others.drain("w0")
    await world.seconds(2)

    assert set(world.nodes) == {"w1"}
    assert leading(world).name == "w1"


async def test_who_asked_for_the_lead_and_heard_nothing_leads_when_it_sees_it() -> None:
    world = await cluster(1)
    world.nodes["w0"].calls.lost.add(0)
    await world.second()
    assert world.backend.lead.holder == "w0"
    assert not world.nodes["w0"].leads
    token = world.backend.lead.token

    await world.second()
    assert world.nodes["w0"].leads
    assert world.backend.lead.token == token


async def test_while_the_directory_is_away_nothing_is_done() -> None:
    world = await cluster(1, fixed(3))
    node = world.nodes["w0"]
    node.calls.refused = set(range(100))
    await world.seconds(5)
    assert world.processes.asked == []
    assert not node.leads

    node.calls.refused.clear()
    await world.seconds(4)
    assert len(world.processes.started) == 2


async def test_who_has_not_beaten_for_half_a_term_starts_nothing_until_it_has() -> None:
    world = await cluster(1, fixed(3))
    node = world.nodes["w0"]
    for _ in range(3):
        await world.alone(node, beat_age_ms=1_001.0)
    assert node.leads
    assert world.processes.asked == []
    assert world.plan.launches == []

    await world.seconds(2)
    assert len(world.processes.started) == 2


async def test_an_intent_that_is_stored_waits_while_its_leader_is_not_sure() -> None:
    """The heartbeat gets old between the plan and the act."""
    world = await cluster(1, fixed(2))
    node = world.nodes["w0"]

    def gets_old() -> None:
        node.beat_age_ms = 5_000.0

    node.calls.before["replan"] = gets_old
    await world.alone(node)
    assert len(world.plan.launches) == 1
    assert world.processes.asked == []
    node.calls.before.clear()

    await world.alone(node)
    assert len(world.processes.started) == 1


class Once:
    """Wants something once."""

    slot = Slot.WORKERS
    period_ms = 1_000.0

    def __init__(self, *actions: Action) -> None:
        self._actions = list(actions)

    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        actions, self._actions = self._actions, []
        return actions

    def ended(self, action: Action, outcome: Outcome, now_ms: float) -> None:
        pass


async def test_who_was_replaced_without_knowing_it_can_do_nothing() -> None:
    """Two believe to lead; the one with the old token writes, starts and drains in vain."""
    world = await cluster(2)
    await world.seconds(2)
    former = world.nodes["w0"]
    former.is_frozen = True
    await world.second()
    assert leading(world).name == "w1"
    plan = world.backend.plan

    # It wakes up with what it knew, and believes that its heartbeat was just answered.
    former.beat_age_ms = 0.0
    controller = former.scaling.controller
    assert controller.leads
    await world.others.join(_member("w9"), {})
    await former.drain_worker("w9", token=controller.plan.token)
    assert not world.backend.members["w9"].draining
    asked = len(world.processes.asked)
    await former.scaling._start(StartWorkers(["1-7"], 3), controller.plan.token)
    assert (len(world.processes.asked), world.processes.started) == (asked + 1, [])
    assert not await former.scaling.pause(Slot.WORKERS)
    assert world.backend.plan == plan
    assert not former.leads


def _member(name: str) -> Any:
    from sublet.statestore.contract import Member

    return Member(id=name, address="127.0.0.1:2")


async def test_who_was_to_leave_stays_if_others_died_while_the_plan_was_stored() -> None:
    def policies() -> dict[Slot, str | ScalingPolicy]:
        return {Slot.WORKERS: Once(DrainWorker(worker="w2"))}

    world = await cluster(3, policies, workers_min=2)
    leader = world.nodes["w0"]
    inner = leader.directory.replan

    async def replan(*arguments: Any) -> Any:
        version = await inner(*arguments)
        if world.plan.leaving and "w1" in world.nodes:
            await world.kill("w1")
            leader.seen = await world.others.view()
        return version

    leader.directory.replan = replan
    await world.seconds(4)

    assert "w1" not in world.backend.members
    assert not world.backend.members["w2"].draining
    assert world.plan.leaving == []


async def test_the_supervisor_knows_the_token_of_the_new_leader_first() -> None:
    world = await cluster(2, fixed(3))
    await world.seconds(4)
    assert world.processes.token == world.backend.lead.token
    await world.processes.start(["old"], 9, world.processes.token - 1)
    assert "old" not in world.processes.started


async def test_a_successor_finds_what_was_begun() -> None:
    """The plan wants a worker that nobody has started."""
    world = await cluster(2, lambda: {Slot.WORKERS: "fixed"})
    world.backend.members["w0"]
    led = await world.others.lead("w0", 0)
    assert led is not None
    plan = Plan(token=led.lead.token, number=1, workers=3, launches=[Launch("1-1", 0)])
    await world.others.replan(led.lead.token, 1, encode_plan(plan))
    await world.kill("w0")
    await world.seconds(3)

    assert world.processes.started == ["1-1"]
    assert set(world.backend.members) == {"w1", "x1-1"}


async def test_a_plan_that_cannot_be_read_is_begun_anew() -> None:
    world = await cluster(1, fixed(2))
    led = await world.others.lead("w0", 0)
    assert led is not None
    await world.others.replan(led.lead.token, 1, b"\xff\xff")
    await world.others.lead("w0", led.lead.token)
    await world.seconds(4)

    assert len(world.processes.started) == 1
    assert world.plan.token == world.backend.lead.token


async def test_what_cannot_be_started_is_told_and_given_up() -> None:
    world = await cluster(1, fixed(2))
    world.processes.problem = "no more machines"
    await world.seconds(4)

    (decision,) = leading(world).scaling.controller.decisions
    assert decision.outcome is not None
    assert "no more machines" in decision.outcome.detail
    assert world.plan.workers == 1


async def test_a_launch_that_the_supervisor_gives_up_fails_at_once() -> None:
    world = await cluster(1, fixed(2))
    await world.seconds(1)
    world.refuses_to_start = {f"{world.backend.lead.token}-{n}" for n in range(9)}
    await world.seconds(2)
    (first,) = world.processes.started
    leading(world).scaling.failed(first, "it crashed")
    await world.second()
    first, second = world.processes.started
    leading(world).scaling.failed(second, "it crashed again")
    await world.second()

    (decision, *_) = leading(world).scaling.controller.decisions
    assert decision.outcome is not None
    assert "it crashed again" in decision.outcome.detail


async def test_a_dry_run_decides_and_does_nothing() -> None:
    world = await cluster(1, fixed(3), dry_run=True)
    await world.seconds(5)

    assert world.processes.asked == []
    assert world.plan.launches == ()
    (decision,) = leading(world).scaling.controller.decisions
    assert decision.outcome == Outcome(Ending.DRY_RUN)
    assert decision.repeated == 4


async def test_a_slot_can_be_paused_and_resumed_and_that_survives_the_leader() -> None:
    world = await cluster(2, fixed(3))
    await world.alone(world.nodes["w0"], beat_age_ms=1_001.0)
    world.nodes["w0"].beat_age_ms = 0.0
    assert not await world.nodes["w1"].scaling.pause(Slot.WORKERS)
    assert await world.nodes["w0"].scaling.pause(Slot.WORKERS)
    assert world.plan.paused == ("workers",)
    await world.kill("w0")
    await world.seconds(4)
    assert world.processes.asked == []

    assert await leading(world).scaling.resume(Slot.WORKERS)
    await world.seconds(3)
    assert world.plan.paused == ()
    assert len(world.processes.started) == 2


async def test_pausing_says_when_it_could_not_be_stored() -> None:
    world = await cluster(1)
    await world.seconds(2)
    node = world.nodes["w0"]
    node.calls.refused = {node.calls.count}
    assert not await node.scaling.pause(Slot.WORKERS)


async def test_a_policy_that_raises_costs_its_slot_and_nothing_else() -> None:
    class Raises(Once):
        def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
            raise RuntimeError("oops")

    world = await cluster(1, lambda: {Slot.WORKERS: Raises()})
    await world.seconds(5)

    (status,) = leading(world).scaling.controller.slots()
    assert "oops" in status.failure


async def test_a_move_is_a_pin_in_the_plan() -> None:
    class Moves(Once):
        slot = Slot.PLACEMENT

    def policies() -> dict[Slot, str | ScalingPolicy]:
        return {Slot.PLACEMENT: Moves(Migrate(partition="f/g/0", worker="w1"))}

    world = await cluster(2, policies)
    await world.others.place(world.backend.version, {"f/g/0": "w0", "f/g/1": "w1"})
    await world.seconds(2)

    assert world.plan.pins == {"f/g/0": "w1"}
    assert not world.plan.evens_out


# Faults at every call


def wanting() -> dict[Slot, str | ScalingPolicy]:
    """One more worker, and one of those that are there has to go."""
    actions = [AddWorkers(count=2), DrainWorker(worker="w2")]
    return {Slot.WORKERS: Once(*actions)}


async def story(world: World) -> None:
    await world.seconds(12)


async def swept(kind: str, number: int) -> World:
    world = await cluster(3, wanting)
    calls = world.nodes["w0"].calls
    match kind:
        case "dies before":
            calls.dies_at = (number, False)
        case "dies after":
            calls.dies_at = (number, True)
        case "answer lost":
            calls.lost = {number}
        case "refused":
            calls.refused = {number}
    await story(world)
    return world


async def calls_made() -> list[str]:
    world = await cluster(3, wanting)
    await story(world)
    return world.nodes["w0"].calls.names


@pytest.mark.parametrize("kind", ["dies before", "dies after", "answer lost", "refused"])
async def test_a_fault_at_any_call_leaves_one_leader_one_plan_and_what_was_wanted(
    kind: str,
) -> None:
    names = await calls_made()
    assert names[:2] == ["lead", "plan"]
    assert {"replan", "start", "drain"} <= set(names)
    for number, name in enumerate(names):
        if kind in ("answer lost", "refused") and name in ("start", "lead processes"):
            continue  # A supervisor is there, or it is gone with its workers.
        if kind == "refused" and name == "drain":
            continue  # It has failed, and is asked for once more; then the worker stays.
        world = await swept(kind, number)
        where = f"{kind} at {number} ({name})"
        leader = leading(world)
        assert world.plan.token == world.backend.lead.token, where
        assert [each.leads for each in world.nodes.values()].count(True) == 1, where
        assert world.plan.launches == [], where
        assert world.plan.leaving == [], where
        # A worker is in the plan before it is started.
        assert len(world.processes.started) == len(set(world.processes.started)), where
        controller = leader.scaling.controller
        assert controller.plan.workers == len(world.nodes), where
        assert set(world.backend.members) == set(world.nodes), where
        if kind in ("answer lost", "refused"):
            assert len(world.processes.started) == 2, where
            assert "w2" not in world.nodes, where


async def test_nothing_is_started_that_is_not_in_the_stored_plan() -> None:
    """At the moment when a process is asked for, the directory has the intent."""
    world = await cluster(1, fixed(4))
    seen: list[set[str]] = []
    inner = world.processes.start

    async def start(launches: Sequence[str], total: int, token: int) -> None:
        seen.append(set(launches) - {each.id for each in world.plan.launches})
        assert world.plan.token == token
        await inner(launches, total, token)

    world.processes.start = start  # type: ignore[method-assign]
    await world.seconds(4)

    assert seen == [set()]


# Mutants: a shell that breaks a rule is noticed


async def test_a_shell_that_acts_before_its_intent_is_stored_is_noticed() -> None:
    class ActsFirst(Scaling):
        async def _write(self, plan: Plan, token: int) -> None:
            launches = [each.id for each in plan.launches]
            if launches:
                await self._actuator.start(launches, 0, token)
            await super()._write(plan, token)

    world = await cluster(1, fixed(2))
    node = world.nodes["w0"]
    node.scaling.__class__ = ActsFirst
    early: list[str] = []
    inner = world.processes.start

    async def start(launches: Sequence[str], total: int, token: int) -> None:
        early.extend(set(launches) - {each.id for each in world.plan.launches})
        await inner(launches, total, token)

    world.processes.start = start  # type: ignore[method-assign]
    await world.seconds(3)

    assert early


async def test_a_shell_that_acts_without_its_token_is_noticed() -> None:
    class NoToken(Scaling):
        async def _stop(self, worker: str, token: int) -> None:
            await self._cluster.drain_worker(worker)

    world = await cluster(2)
    await world.seconds(2)
    former = world.nodes["w0"]
    former.is_frozen = True
    await world.second()
    former.beat_age_ms = 0.0
    former.scaling.__class__ = NoToken
    await former.scaling._stop("w1", former.scaling.controller.plan.token)

    assert world.backend.members["w1"].draining
