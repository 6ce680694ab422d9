"""A controller with a cluster around it that does what it is told, or what a test says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from sublet.scheduler.scaling.actions import Action, Decision, Outcome, Slot
from sublet.scheduler.scaling.controller import Controller
from sublet.scheduler.scaling.effects import Effect, Report, StartWorkers, StopWorker, WritePlan
from sublet.scheduler.scaling.plan import Plan, decode_plan, encode_plan
from sublet.scheduler.scaling.policy import ScalingPolicy
from sublet.scheduler.scaling.settings import ScalingSettings
from sublet.scheduler.scaling.signals import OUTSIDE, FunctionSignals, WorkerSample
from sublet.scheduler.scaling.view import ClusterView, FunctionFacts, Slo, WorkerFacts

WALL_MS = 1_700_000_000_000.0
FUNCTION = FunctionFacts(name="shop/cart", partitions=4, tenant="shop")

Wanted = Callable[[ClusterView], Sequence[Action]]


class Scripted:
    """A policy that wants what a test says, and notes how it ended."""

    slot = Slot.WORKERS
    period_ms = 1_000.0

    def __init__(self, wanted: Wanted | None = None) -> None:
        self.next: list[Action] = []
        self.wanted = wanted
        self.asked = 0
        self.seen: list[ClusterView] = []
        self.outcomes: list[tuple[Action, Outcome]] = []

    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        self.asked += 1
        self.seen = [cluster]
        if self.wanted is not None:
            return self.wanted(cluster)
        actions, self.next = self.next, []
        return actions

    def ended(self, action: Action, outcome: Outcome, now_ms: float) -> None:
        self.outcomes.append((action, outcome))


class ScriptedPlacement(Scripted):
    slot = Slot.PLACEMENT


class ScriptedShares(Scripted):
    slot = Slot.SHARES


class Cluster:
    """Runs a controller second by second."""

    def __init__(
        self,
        policies: Mapping[Slot, str | ScalingPolicy],
        workers: int = 2,
        slos: Mapping[str, Slo] | None = None,
        unsupported: Collection[type[Action]] = (),
        **settings: object,
    ) -> None:
        settings.setdefault("workers_max", 8)
        self.settings = ScalingSettings(**settings)  # type: ignore[arg-type]
        self.controller = Controller(self.settings, policies, slos=slos, unsupported=unsupported)
        self.now_ms = 0.0
        self.members = {f"w{n}": WorkerFacts(id=f"w{n}") for n in range(workers)}
        self.functions = {FUNCTION.name: FUNCTION}
        self.placement = {f"shop/cart/{index}": f"w{index % workers}" for index in range(4)}
        self.stored: Plan | None = None
        self.store_is_away = False
        self.effects: list[Effect] = []
        self.reports: list[Report] = []
        self.silent: set[str] = set()
        self.utilisation = 0.5
        self.rate = 100
        self.message_ms = self.fixed_ms = 1.0
        self.costly: list[str] = []
        """Other functions of which there is something to tell."""
        self.waiting_ms = 0.0
        self.idle_ms = 0.0
        self.timer_ms: float | None = None
        self._numbers: dict[str, int] = {}
        self.token = 1
        self.tell_topology()
        self.controller.lead(1, None, self.now_ms, self.wall_ms)
        self.carry_out()

    @property
    def wall_ms(self) -> float:
        return WALL_MS + self.now_ms

    def tell_topology(self) -> None:
        self.controller.topology(
            dict(self.members), dict(self.placement), dict(self.functions), self.now_ms
        )
        self.carry_out()

    def sample(self, worker: str) -> WorkerSample:
        number = self._numbers[worker] = self._numbers.get(worker, 0) + 1
        signals = FunctionSignals(
            function="shop/cart",
            tenant="shop",
            arrived={OUTSIDE: self.rate},
            done={OUTSIDE: self.rate},
            sent={OUTSIDE: self.rate},
            runs=self.rate // 10,
            message_ms=self.message_ms,
            fixed_ms=self.fixed_ms,
            waiting_ms=self.waiting_ms,
        )
        others = [
            FunctionSignals(function=name, done={OUTSIDE: 1}, runs=1, message_ms=1.0)
            for name in self.costly
        ]
        return WorkerSample(
            worker=worker,
            number=number,
            interval_ms=1_000.0,
            utilisation=self.utilisation,
            functions=[signals, *others],
            idle_ms=self.idle_ms,
            timer_ms=self.timer_ms,
        )

    def tick(self, seconds: int = 1, *, may_act: bool = True) -> list[Effect]:
        """Let time pass; return what was to be done in the last second."""
        done: list[Effect] = []
        for _ in range(seconds):
            self.now_ms += 1_000.0
            for worker in self.members:
                if worker not in self.silent:
                    self.controller.heard(self.sample(worker), self.now_ms)
            self.controller.tick(self.now_ms, self.wall_ms, may_act=may_act)
            done = self.carry_out()
        return done

    def carry_out(self) -> list[Effect]:
        """Store plans, and note all else."""
        done: list[Effect] = []
        while effects := self.controller.take_effects():
            for effect in effects:
                done.append(effect)
                if isinstance(effect, Report):
                    self.reports.append(effect)
                if not isinstance(effect, WritePlan):
                    continue
                if self.store_is_away:
                    self.controller.not_written(effect.plan.number)
                else:
                    self.stored = decode_plan(encode_plan(effect.plan))
                    self.controller.written(effect.plan.number, self.now_ms)
        self.effects += done
        return done

    # What happens in the cluster

    def join(self, name: str, launch: str = "", **facts: object) -> None:
        self.members[name] = WorkerFacts(id=name, launch=launch, **facts)  # type: ignore[arg-type]
        self.tell_topology()

    def leave(self, name: str) -> None:
        del self.members[name]
        self.tell_topology()

    def drain(self, name: str) -> None:
        self.members[name] = replace(self.members[name], draining=True)
        self.tell_topology()

    def move(self, partition: str, worker: str) -> None:
        self.placement[partition] = worker
        self.tell_topology()

    def fail_over(
        self, policies: Mapping[Slot, str | ScalingPolicy], **settings: object
    ) -> Controller:
        """Let another controller take the lead, with the plan that is stored."""
        former = self.controller
        self.token += 1
        if settings:
            self.settings = ScalingSettings(**settings)  # type: ignore[arg-type]
        self.controller = Controller(self.settings, policies)
        self.effects.clear()
        self.tell_topology()
        self.controller.lead(self.token, self.stored, self.now_ms, self.wall_ms)
        self.carry_out()
        return former

    # What came of it

    @property
    def started(self) -> list[str]:
        return [
            launch
            for effect in self.effects
            if isinstance(effect, StartWorkers)
            for launch in effect.launches
        ]

    @property
    def stopped(self) -> list[str]:
        return [each.worker for each in self.effects if isinstance(each, StopWorker)]

    @property
    def writes(self) -> int:
        return sum(isinstance(each, WritePlan) for each in self.effects)

    @property
    def last(self) -> Decision:
        return self.controller.decisions[-1]

    @property
    def said(self) -> list[str]:
        return [each.event for each in self.reports]
