"""A cluster of flows under a real controller: workers start late, drain, fail, and cost money."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf, sqrt
from random import Random
from typing import Any

from sublet.functions.address import split_partition_name
from sublet.runtime.simulation.elastic.flow import (
    SMALL,
    FlowFunction,
    FlowWorker,
    Parcel,
    Served,
)
from sublet.runtime.simulation.elastic.instances import Helpers, InstanceModel
from sublet.runtime.simulation.scenarios.rates import RateOf
from sublet.scheduler.placement import PlacementHints, place
from sublet.scheduler.scaling.controller import Controller
from sublet.scheduler.scaling.effects import StartInstances, StartWorkers, StopWorker, WritePlan
from sublet.scheduler.scaling.plan import Plan
from sublet.scheduler.scaling.signals import OUTSIDE
from sublet.scheduler.scaling.view import FunctionFacts, WorkerFacts
from sublet.scheduler.scaling.warm import WARM_EVERY_MS, WarmPool

WALL_MS = 1_700_000_000_000.0
HOUR_S = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Messages from outside for one function."""

    function: str
    rate: RateOf


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """What workers are made of, and how they come."""

    workers: int = 1
    """At the start."""
    cores: int = 1
    speed: float = 1.0
    start_s: float = 0.5
    """From asking for a worker until it has joined."""
    start_failures: float = 0.0
    """The share of starts that come to nothing."""
    move_s: float = 0.03
    """For one partition."""
    moves_max: int = 4
    price_hour: float = 0.0


@dataclass(slots=True)
class Moment:
    """One second of a simulated cluster."""

    second: int
    workers: int = 0
    """That serve."""
    paid: float = 0.0
    """Workers that cost money, those that start or drain too, on average."""
    arrived: float = 0.0
    done: float = 0.0
    """Results."""
    instances: int = 0
    """That serve."""
    instances_paid: float = 0.0
    """Instances that cost money, on average."""
    warm: int = 0
    """Environments that are kept warm."""
    late: float = 0.0
    refused: float = 0.0
    backlog: float = 0.0
    """Messages that wait at its end."""
    backlog_s: float = 0.0
    """What running them takes, in workers' seconds."""
    latency: Sequence[float] = ()
    """Histogram over `LATENCY_BOUNDS_MS`, of results."""
    results: Mapping[str, float] = field(default_factory=dict)
    late_results: Mapping[str, float] = field(default_factory=dict)
    """By function."""
    latency_ms: Mapping[str, float] = field(default_factory=dict)
    """The mean of results, by function."""


class FlowCluster:
    """Runs flows step by step; once a second the controller hears of it."""

    def __init__(  # noqa: PLR0913  # Its parts are all named, and given once.
        self,
        functions: Sequence[FlowFunction],
        flows: Sequence[Flow],
        machines: Machines,
        controller: Controller,
        *,
        order: str = "least-laxity",
        step_s: float = 0.05,
        queue_max: float = inf,
        rng: Random | None = None,
        placement: Mapping[str, str] | None = None,
        instances: InstanceModel | None = None,
        warm: WarmPool | None = None,
    ) -> None:
        """`rng`: for the chance in arrivals and starts; None: there is none. `placement`: to begin
        with, if it is not to be even. `instances`: what they are made of, if there may be any;
        `warm`: how many of their environments are kept warm."""
        self.controller = controller
        self.functions = {each.name: each for each in functions}
        self.workers: dict[str, FlowWorker] = {}
        self.placement: dict[str, str] = {}
        self.paid_s = 0.0
        """Seconds of workers that were paid for."""
        self.now_s = 0.0
        self.moves = 0
        self._flows = flows
        self._machines = machines
        self._order = order
        self._steps = max(1, round(1 / step_s))
        self._step_s = 1.0 / self._steps
        self._queue_max = queue_max
        self._rng = rng
        self._counts = {each.name: each.partitions for each in functions}
        self._facts = {
            each.name: FunctionFacts(
                name=each.name,
                partitions=each.partitions,
                tenant=each.tenant,
                slo_ms=None if each.slo_s == inf else 1000 * each.slo_s,
                # Without instances, flows are not lent: no policy should think that they were.
                lendable=each.lendable and instances is not None,
                mergeable=each.mergeable,
                slide_ms=None if each.slide_s is None else 1000 * each.slide_s,
            )
            for each in functions
        }
        self.helpers = Helpers(instances or InstanceModel(), rng)
        self._settled: tuple[object, ...] | None = None
        """What was seen when nothing had to move."""
        self._warm = warm
        self._pinged_s = 0.0
        self._token = 1
        self._plan = Plan()
        self._shares: dict[str, float] = {}
        self._names = count()
        self._starting: dict[str, float] = {}
        self._events: list[tuple[float, int, str, Any]] = []
        self._numbers = count()
        self._moving: dict[str, str] = {}
        self._sent: dict[tuple[str, str], list[float]] = {}
        for _ in range(machines.workers):
            self._add_worker("")
        self._begin(placement)

    def _begin(self, placement: Mapping[str, str] | None) -> None:
        wanted = place(self._counts, list(self.workers), placement or {}, rebalance=False)
        for name, worker in wanted.items():
            self._assign(name, worker)
        self._tell()
        self.controller.lead(self._token, None, 0.0, WALL_MS)
        self._carry_out()

    def fail_over(self, controller: Controller) -> None:
        """Let another controller take the lead, with the plan that is stored."""
        self.controller = controller
        self._tell()
        self._token += 1
        now_ms = 1000 * self.now_s
        self.controller.lead(self._token, self._plan, now_ms, WALL_MS + now_ms)
        self._carry_out()

    # Workers

    def _add_worker(self, launch: str) -> None:
        name = f"w{next(self._names):04}"
        machines = self._machines
        self.workers[name] = FlowWorker(
            name, launch=launch, cores=machines.cores, speed=machines.speed
        )

    def _at(self, time_s: float, what: str, value: Any) -> None:
        heappush(self._events, (time_s, next(self._numbers), what, value))

    def _tell(self) -> None:
        members = {
            each.name: WorkerFacts(
                id=each.name,
                launch=each.launch,
                cores=each.cores,
                speed=each.speed,
                draining=each.draining,
            )
            for each in self.workers.values()
        }
        self.controller.topology(members, self.placement, self._facts, 1000 * self.now_s)

    def _carry_out(self) -> None:
        while effects := self.controller.take_effects():
            for effect in effects:
                match effect:
                    case WritePlan():
                        self._plan = effect.plan
                        self.helpers.follow(effect.plan, self.workers, self.now_s)
                        self.controller.written(effect.plan.number, 1000 * self.now_s)
                    case StartWorkers():
                        for launch in effect.launches:
                            self._start(launch)
                    case StartInstances():
                        for instance in effect.instances:
                            at_s, comes = self.helpers.start(instance, self.now_s)
                            self._at(at_s, "dial" if comes else "no-show", instance.id)
                    case StopWorker():
                        self.workers[effect.worker].draining = True
                        self._tell()

    def _start(self, launch: str) -> None:
        if launch in self._starting:
            return
        fails = self._rng is not None and self._rng.random() < self._machines.start_failures
        self._starting[launch] = self.now_s
        self._at(self.now_s + self._machines.start_s, "failed" if fails else "join", launch)

    def _happen(self) -> None:
        changed = False
        while self._events and self._events[0][0] <= self.now_s + SMALL:
            _, _, what, value = heappop(self._events)
            if what == "moved":
                self._moved(value)
                continue
            if what == "dial":
                self.helpers.came(value, self.workers)
                continue
            if what == "no-show":
                if self.helpers.failed(value):
                    self.controller.failed(value, "the start failed", 1000 * self.now_s)
                continue
            del self._starting[value]
            if what == "join":
                self._add_worker(value)
                changed = True
            else:
                self.controller.failed(value, "the start failed", 1000 * self.now_s)
        for worker in [each for each in self.workers.values() if each.draining]:
            is_lending = any(lane.away for lane in worker.lanes.values())
            if not worker.partitions and not is_lending and len(self.workers) > 1:
                del self.workers[worker.name]
                changed = True
                self.helpers.follow(self._plan, self.workers, self.now_s)
        if changed:
            self._tell()

    # Placement

    def _assign(self, name: str, worker: str) -> None:
        function, index = split_partition_name(name)
        flow = self.functions[function]
        former = self.workers.get(self.placement.get(name, ""))
        parcels = former.remove(flow, index) if former is not None else []
        self.workers[worker].add(flow, index, parcels)
        self.placement[name] = worker

    def _move(self) -> None:
        """Move a few partitions at a time, as the proposer of placements does."""
        if self._moving:
            return
        alive = [each.name for each in self.workers.values() if not each.draining]
        if not alive:
            return
        plan = self._plan
        # Where nothing has changed, nothing moves: placing takes much longer than a step does.
        seen = (plan.token, plan.number, self.moves, tuple(alive))
        if seen == self._settled:
            return
        hints = PlacementHints(
            pins={name: each for name, each in plan.pins.items() if each in alive},
            weights=plan.weights,
            loads={} if plan.evens_out else plan.loads,
        )
        wanted = place(self._counts, alive, self.placement, rebalance=plan.evens_out, hints=hints)
        moving = [name for name, worker in wanted.items() if self.placement[name] != worker]
        self._settled = None if moving else seen
        for name in moving[: self._machines.moves_max]:
            self._moving[name] = wanted[name]
            self._at(self.now_s + self._machines.move_s, "moved", name)

    def _moved(self, name: str) -> None:
        worker = self._moving.pop(name)
        if worker in self.workers and not self.workers[worker].draining:
            self._assign(name, worker)
            self.moves += 1

    # Flows

    def _arrive(self, moment: Moment) -> None:
        step_s = self._step_s
        # What is served in the step in which it comes has not waited.
        end_s = self.now_s + step_s
        for flow in self._flows:
            amount = flow.rate(self.now_s + step_s / 2) * step_s
            if self._rng is not None and amount > 0:
                amount = max(0.0, self._rng.gauss(amount, sqrt(amount)))
            function = self.functions[flow.function]
            moment.arrived += amount
            due_s = end_s + function.slo_s
            self._spread(function, Parcel(OUTSIDE, end_s, end_s, due_s, amount))
        for (source, target), (amount, roots, dues) in self._sent.items():
            if amount > SMALL:
                function = self.functions[target]
                parcel = Parcel(source, roots / amount, end_s, dues / amount, amount)
                self._spread(function, parcel)
        self._sent = {}

    def _spread(self, function: FlowFunction, parcel: Parcel) -> None:
        """Give each worker what its partitions get."""
        if parcel.amount <= SMALL:
            return
        lanes = [
            lane
            for worker in self.workers.values()
            if (lane := worker.lanes.get(function.name)) is not None and lane.indexes
        ]
        whole = sum(lane.weight for lane in lanes)
        for lane in lanes:
            part = Parcel(
                parcel.source,
                parcel.root_s,
                parcel.arrived_s,
                parcel.due_s,
                parcel.amount * lane.weight / whole,
            )
            lane.put(part, self._queue_max)

    def give_shares(self, weights: Mapping[str, float]) -> None:
        """Let tenants have these weights, as somebody would by hand."""
        self._shares = dict(weights)

    def second(self) -> Moment:
        """Let a second pass."""
        moment, served = Moment(round(self.now_s)), Served()
        shares = {**self._shares, **self._plan.shares}
        for _ in range(self._steps):
            self._happen()
            self._move()
            self._arrive(moment)
            for helped in self.helpers.helped.values():
                helped.lend_arrived()
            stopped = self.helpers.stopped()
            for worker in self.workers.values():
                worker.serve(
                    self.now_s,
                    self._step_s,
                    served,
                    order=self._order,
                    shares=shares,
                    stopped=stopped.get(worker.name, ()),
                )
            for helped in self.helpers.helped.values():
                helped.serve(self.now_s, self._step_s, served)
            self.helpers.pass_time(self._step_s)
            moment.instances_paid += self.helpers.count / self._steps
            self._sent, served.sent = served.sent, {}
            self.paid_s += (len(self.workers) + len(self._starting)) * self._step_s
            moment.paid += (len(self.workers) + len(self._starting)) / self._steps
            self.now_s += self._step_s
        self.now_s = float(moment.second + 1)
        self._sum_up(moment, served)
        self._hear()
        return moment

    def _sum_up(self, moment: Moment, served: Served) -> None:
        moment.workers = sum(1 for each in self.workers.values() if not each.draining)
        moment.instances = self.helpers.serving
        moment.warm = self.helpers.environments.kept
        moment.done = sum(served.done.values())
        moment.late = sum(served.late.values())
        moment.latency = served.latency.take()
        moment.results, moment.late_results = dict(served.done), dict(served.late)
        moment.latency_ms = {
            name: 1000 * took_s / served.done[name]
            for name, took_s in served.took_s.items()
            if served.done[name] > SMALL
        }
        for worker in self.workers.values():
            for lane in worker.lanes.values():
                lent = lane.lent_waiting
                moment.backlog += lane.waiting + lent
                moment.backlog_s += lent * lane.function.cost_s / worker.speed
                moment.backlog_s += lane.waiting_s / worker.speed
                moment.refused += lane.refused

    def _hear(self) -> None:
        now_ms = 1000 * self.now_s
        self._tell()
        for worker in list(self.workers.values()):
            self.controller.heard(worker.sample(self.now_s, 1.0), now_ms)
        self.controller.tick(now_ms, WALL_MS + now_ms)
        self._carry_out()
        if self._warm is not None:
            self._warm.observe(self.controller.view(now_ms), now_ms)
            if self.now_s - self._pinged_s >= WARM_EVERY_MS / 1000:
                self._pinged_s = self.now_s
                self.helpers.ping(self._warm.wanted, self.now_s)

    @property
    def price(self) -> float:
        """What it has cost."""
        return self.paid_s * self._machines.price_hour / HOUR_S
