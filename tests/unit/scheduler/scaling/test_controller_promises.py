"""Whatever happens, in whatever order: what the controller promises holds.

A world plays random events (ticks, workers that join, die or are silent, stores that are away,
controllers that die) against a policy that wants anything. Mutants show that it would notice.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.scheduler.scaling.actions import Action, AddWorkers, DrainWorker, Migrate, Slot
from sublet.scheduler.scaling.controller import Controller
from sublet.scheduler.scaling.effects import StartWorkers, StopWorker, WritePlan
from sublet.scheduler.scaling.plan import Plan, decode_plan, encode_plan
from sublet.scheduler.scaling.settings import ScalingSettings
from sublet.scheduler.scaling.signals import SILENT_MS, WorkerSample
from sublet.scheduler.scaling.view import ClusterView, FunctionFacts, WorkerFacts
from tests.unit.scheduler.scaling.harness import Scripted, ScriptedPlacement

FUNCTIONS = {"a/f": FunctionFacts(name="a/f", partitions=6)}
SETTINGS = ScalingSettings(
    workers_min=2,
    workers_max=5,
    start_timeout_ms=5_000.0,
    drain_timeout_ms=5_000.0,
    move_timeout_ms=5_000.0,
)
STEPS = 120


class BrokenPromiseError(AssertionError):
    """A promise was not kept."""


class World:
    def __init__(self, rng: Random, kind: type[Controller]) -> None:
        self.rng = rng
        self.kind = kind
        self.now_ms = 0.0
        self.members = {f"w{n}": WorkerFacts(id=f"w{n}") for n in range(3)}
        self.placement = {f"a/f/{n}": f"w{n % 3}" for n in range(6)}
        self.silent: set[str] = set()
        self.heard_ms: dict[str, float] = {}
        self.token = 0
        self.stored: Plan | None = None
        self.started: set[str] = set()
        self.sample = 0
        self.names = 0
        self.lead()

    def policies(self) -> dict[Slot, Scripted]:
        rng = self.rng

        def workers(view: ClusterView) -> list[Action]:
            if rng.random() < 0.5:
                return []
            serving = [each.id for each in view.serving]
            wanted: list[Action] = [
                DrainWorker(worker=rng.choice(serving)) for _ in serving if rng.random() < 0.7
            ]
            return [*wanted, AddWorkers(count=rng.randint(1, 4))] if rng.random() < 0.6 else wanted

        def placement(view: ClusterView) -> list[Action]:
            workers = [each.id for each in view.serving]
            if not workers or rng.random() < 0.7:
                return []
            partition = rng.choice(sorted(view.placement))
            return [Migrate(partition=partition, worker=rng.choice(workers))]

        return {Slot.WORKERS: Scripted(workers), Slot.PLACEMENT: ScriptedPlacement(placement)}

    def lead(self) -> None:
        self.token += 1
        self.controller = self.kind(SETTINGS, self.policies())
        self.heard_ms = dict.fromkeys(self.members, self.now_ms)
        self.tell()
        self.controller.lead(self.token, self.stored, self.now_ms, 1e12 + self.now_ms)
        self.carry_out()

    def tell(self) -> None:
        self.controller.topology(dict(self.members), dict(self.placement), FUNCTIONS, self.now_ms)

    def serving(self) -> list[str]:
        stored = self.stored or Plan()
        leaving = {each.worker for each in stored.leaving}
        return [w for w, f in self.members.items() if not f.draining and w not in leaving]

    def carry_out(self) -> None:
        """Do what the controller says, as an actuator would, and hold it to its promises."""
        while effects := self.controller.take_effects():
            for effect in effects:
                match effect:
                    case WritePlan():
                        self.write(effect.plan)
                    case StartWorkers():
                        self.start(effect)
                    case StopWorker():
                        self.stop(effect)

    def write(self, plan: Plan) -> None:
        if self.rng.random() < 0.15:
            self.controller.not_written(plan.number)
            return
        if self.stored is not None and plan.token < self.stored.token:
            raise BrokenPromiseError("a plan of an older token was written")
        before = {each.worker for each in self.stored.leaving} if self.stored else set()
        self.stored = decode_plan(encode_plan(plan))
        new = {each.worker for each in plan.leaving} - before
        if new and len(self.serving()) < SETTINGS.workers_min:
            raise BrokenPromiseError("fewer workers than the minimum are left")
        # Whoever leads has heard of all since it began to, at the earliest.
        serving = {*self.serving(), *new} & self.members.keys()
        heard_ms = [self.heard_ms.get(worker, self.now_ms) for worker in serving]
        if new and self.now_ms - min(heard_ms, default=self.now_ms) >= SILENT_MS:
            raise BrokenPromiseError("somebody was to leave while somebody was not heard")
        if plan.workers is not None and plan.workers > max(SETTINGS.workers_max, self.most(plan)):
            raise BrokenPromiseError("more workers than the maximum are wanted")
        if plan.pins.keys() - self.placement.keys():
            raise BrokenPromiseError("a partition that is not there is to move")
        self.controller.written(plan.number, self.now_ms)

    def most(self, plan: Plan) -> int:
        """Those may be more that do not leave when they should, or come when nobody waits."""
        return len(self.members) + len(plan.launches)

    def start(self, effect: StartWorkers) -> None:
        intended = {each.id for each in self.stored.launches} if self.stored else set()
        if not set(effect.launches) <= intended:
            raise BrokenPromiseError("workers were started that no stored plan has")
        for launch in effect.launches:
            if self.rng.random() < 0.7 and launch not in self.started:
                self.started.add(launch)
                self.names += 1
                name = f"n{self.names}"
                self.members[name] = WorkerFacts(id=name, launch=launch)

    def stop(self, effect: StopWorker) -> None:
        intended = {each.worker for each in self.stored.leaving} if self.stored else set()
        if effect.worker not in intended:
            raise BrokenPromiseError("a worker was stopped that no stored plan lets go")
        if effect.worker in self.members and self.rng.random() < 0.8:
            self.members[effect.worker] = replace(self.members[effect.worker], draining=True)

    def gone(self, worker: str) -> None:
        self.members.pop(worker, None)
        self.heard_ms.pop(worker, None)
        self.silent.discard(worker)
        alive = sorted(w for w, f in self.members.items() if not f.draining) or ["w0"]
        for partition, owner in self.placement.items():
            if owner == worker:
                self.placement[partition] = self.rng.choice(alive)

    def step(self) -> None:
        rng, chance = self.rng, self.rng.random()
        if chance < 0.08 and len(self.members) > 1:
            self.gone(rng.choice(sorted(self.members)))
        elif chance < 0.25:
            for worker, facts in list(self.members.items()):
                if facts.draining:
                    self.gone(worker)
        elif chance < 0.32:
            # Somebody is not heard, and after 3 s everybody has to know.
            worker = rng.choice(sorted(self.members))
            self.silent.add(worker)
            self.pass_time(3)
        elif chance < 0.42:
            self.silent.clear()
            self.pass_time(1)
        elif chance < 0.5 and self.stored is not None and self.stored.pins:
            partition, worker = rng.choice(sorted(self.stored.pins.items()))
            if worker in self.members:
                self.placement[partition] = worker
        elif chance < 0.55:
            self.lead()
        self.tell()
        self.carry_out()
        self.pass_time(rng.randint(1, 3))

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_ms += 1_000.0
            for worker in self.members:
                if worker not in self.silent:
                    self.sample += 1
                    sample = WorkerSample(
                        worker=worker, number=self.sample, interval_ms=1_000.0, utilisation=0.5
                    )
                    self.controller.heard(sample, self.now_ms)
                    self.heard_ms[worker] = self.now_ms
            self.controller.tick(self.now_ms, 1e12 + self.now_ms)
            self.carry_out()
            self.tell()
            self.carry_out()

    def settle(self) -> None:
        """With nothing more to want, everything that is under way ends."""
        self.silent.clear()
        for slot in (Slot.WORKERS, Slot.PLACEMENT):
            self.controller.pause(slot)
        self.carry_out()
        for _ in range(200):
            self.pass_time(1)
            for worker, facts in list(self.members.items()):
                if facts.draining:
                    self.gone(worker)
        stored = self.stored or Plan()
        if stored.launches or stored.pins:
            raise BrokenPromiseError("something is under way for ever")
        if stored.workers is not None and stored.workers < SETTINGS.workers_min:
            raise BrokenPromiseError("fewer workers than the minimum are wanted")


def play(seed: int, kind: type[Controller] = Controller) -> None:
    world = World(Random(seed), kind)
    for _ in range(STEPS):
        world.step()
    world.settle()
    assert all(not each.failure for each in world.controller.slots())


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_whatever_happens_promises_are_kept(seed: int) -> None:
    play(seed)


# Mutants


class ActsBeforeItsIntentIsStored(Controller):
    """What is wanted is carried out with the plan, not after it."""

    def _write(self) -> None:
        super()._write()
        self._act(self._number, self._now_ms)


class GoesOnWhenThePlanWasNotStored(Controller):
    """A store that is away does not stop it."""

    def not_written(self, number: int) -> None:
        self.written(number, self._now_ms)


class DrainsBelowTheMinimum(Controller):
    """Workers that start count as serving."""

    def _drain_refusal(self, worker: str, now_ms: float) -> str:
        refusal = super()._drain_refusal(worker, now_ms)
        return "" if "minimum" in refusal and len(self._starts) else refusal


class DrainsWhileSomebodyIsNotHeard(Controller):
    """Who is silent is taken for idle."""

    def _drain_refusal(self, worker: str, now_ms: float) -> str:
        refusal = super()._drain_refusal(worker, now_ms)
        return "" if "not been heard" in refusal else refusal


class AddsBeyondTheMaximum(Controller):
    """The maximum is checked, but not for how many come at once."""

    def _intend(self, decision, action, now_ms):  # type: ignore[no-untyped-def]
        if isinstance(action, AddWorkers):
            self._workers = self._total + action.count
            self._starts.add(action.count, decision, self._number + 1, self._wall_ms)
            return
        super()._intend(decision, action, now_ms)


class ForgetsToTryAgain(Controller):
    """A launch that never joins is waited for for ever."""

    def _settle(self, now_ms: float) -> None:
        super()._settle(min(now_ms, 4_000.0))


@pytest.mark.parametrize(
    "mutant",
    [
        ActsBeforeItsIntentIsStored,
        GoesOnWhenThePlanWasNotStored,
        DrainsBelowTheMinimum,
        DrainsWhileSomebodyIsNotHeard,
        AddsBeyondTheMaximum,
        ForgetsToTryAgain,
    ],
)
def test_a_broken_promise_is_noticed(mutant: type[Controller]) -> None:
    for seed in range(100):
        try:
            play(seed, mutant)
        except BrokenPromiseError:
            return
    pytest.fail(f"nobody noticed: {mutant.__doc__}")
