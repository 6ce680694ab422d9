"""`ElasticSimulation`: how many workers would there be, what would they cost, and what be late?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from sublet.functions.duration import Duration, milliseconds
from sublet.runtime.simulation.elastic.cluster import HOUR_S, Flow, FlowCluster, Machines
from sublet.runtime.simulation.elastic.flow import FlowFunction
from sublet.runtime.simulation.elastic.instances import InstanceModel
from sublet.runtime.simulation.elastic.report import ElasticReport
from sublet.runtime.simulation.scenarios.distributions import Cost, distribution, stream
from sublet.runtime.simulation.scenarios.rates import RateOf
from sublet.runtime.simulation.scenarios.scenario import (
    WORKERS_MAX,
    Load,
    Progress,
    Stage,
    check_stages,
)
from sublet.scheduler.scaling.actions import Slot
from sublet.scheduler.scaling.controller import Controller
from sublet.scheduler.scaling.policy import scaling_named
from sublet.scheduler.scaling.settings import ScalingSettings
from sublet.scheduler.scaling.view import Slo
from sublet.scheduler.scaling.warm import warm_pool

APP = "app"
ORDERS = ("least-laxity", "arrival", "shared-laxity")
PARTITIONS_EACH = 8
"""Partitions of a function for each worker that there may be, where it does not say."""
STEP_S_MIN, STEP_S_MAX = 0.001, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Who decides, within which bounds, and how workers come and go."""

    workers: str = "fixed"
    """The policy for the number of workers, with its parameters."""
    placement: str = "even"
    shares: str = ""
    """The policy for tenants' shares; empty: nobody changes them."""
    workers_min: int = 1
    workers_max: int = 10
    start: Duration = "500ms"
    """From asking for a worker until it serves."""
    start_failures: float = 0.0
    """The share of starts that fail."""
    move: Duration = "30ms"
    """For one partition; `moves_max` move at once."""
    moves_max: int = 4
    price_worker_hour: float = 0.0
    spend_cap: str = ""
    burst: str = ""
    """The policy for instances; empty: there are none."""
    instances_max: int = 0
    warm: str = "none"
    """How many environments of instances are kept warm: `multiple:5`, `laxity` or `none`."""
    instance_life: Duration = "900s"
    """So long an instance may stay."""
    instance_gb: float = 1.769
    price_gb_second: float = 0.0
    price_request: float = 0.0

    def __post_init__(self) -> None:
        self.settings()
        self.policies()
        warm_pool(self.warm)
        if not 0 <= self.start_failures < 1:
            raise ValueError(f"start_failures is {self.start_failures}; allowed: 0 up to 1")

    def settings(self) -> ScalingSettings:
        return ScalingSettings(
            workers_min=self.workers_min,
            workers_max=self.workers_max,
            start_ms=milliseconds(self.start),
            move_ms=milliseconds(self.move),
            moves_max=self.moves_max,
            price_worker_hour=self.price_worker_hour,
            spend_cap=self.spend_cap,
            instances_max=self.instances_max,
            instance_life_ms=milliseconds(self.instance_life),
            instance_gb=self.instance_gb,
            price_gb_second=self.price_gb_second,
            price_request=self.price_request,
        )

    def policies(self) -> dict[Slot, str]:
        texts = {
            Slot.WORKERS: self.workers,
            Slot.PLACEMENT: self.placement,
            Slot.SHARES: self.shares,
            Slot.INSTANCES: self.burst,
        }
        named = {slot: text for slot, text in texts.items() if text}
        for slot, text in named.items():
            scaling_named(slot, text)
        return named


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """What instances are made of, and how they come."""

    cold: Duration = "750ms"
    """From asking for one until it serves, where no environment is warm."""
    warm: Duration = "100ms"
    warm_for: Duration = "300s"
    """How long an environment stays warm that nobody uses."""
    warm_at_start: int = 0
    """Environments that are warm when the simulation begins."""
    speed: float = 0.67
    """Of a core, compared with a worker's."""
    cores: int = 1
    megabits_per_s: float = 100.0
    """Of each instance's link."""
    worker_megabits_per_s: float = 10_000.0
    """Of a worker's, for all its instances."""
    round_trip: Duration = "5ms"
    """That lending adds to a message."""
    start_failures: float = 0.0
    """The share of starts that fail."""
    deaths_hour: float = 0.0
    """How often an instance dies, in each hour that it is there."""
    states: str = "by-key"
    """How states that cannot be merged come: `by-key`, or all of them `first`."""
    lease: Duration = "20us"
    """Of the owner's core, for each message that is lent."""

    def __post_init__(self) -> None:
        self.model()
        if self.warm_at_start < 0:
            raise ValueError(f"warm_at_start is {self.warm_at_start}; allowed: 0 or more")

    def model(self) -> InstanceModel:
        return InstanceModel(
            cold_s=milliseconds(self.cold) / 1000,
            warm_s=milliseconds(self.warm) / 1000,
            warm_for_s=milliseconds(self.warm_for) / 1000,
            speed=self.speed,
            cores=self.cores,
            megabits_per_s=self.megabits_per_s,
            worker_megabits_per_s=self.worker_megabits_per_s,
            round_trip_s=milliseconds(self.round_trip) / 1000,
            start_failures=self.start_failures,
            deaths_hour=self.deaths_hour,
            states=self.states,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticSimulation:
    """A cluster that grows and shrinks under a load that changes. `run` says how it goes."""

    stages: Sequence[Stage]
    loads: Sequence[Load]
    scaling: Scaling = field(default_factory=Scaling)
    instances: Instances = field(default_factory=Instances)
    """What they are made of, where `scaling.burst` wants any."""
    workers: int = 0
    """To begin with; 0: the smallest number."""
    cores: int = 1
    order: str = "least-laxity"
    seed: int = 0
    step: Duration = "50ms"
    """How finely time is divided: nothing shorter is seen."""
    queue_max: int = 0
    """Messages of a function that wait at one worker at most, others being refused; 0: any."""
    slos: dict[str, Slo] = field(default_factory=dict)
    """Tenant to what it wants, for policies of shares."""

    def __post_init__(self) -> None:
        if not self.stages or not self.loads:
            raise ValueError("a simulation that scales needs stages and loads")
        check_stages(self.stages)
        for stage in self.stages:
            if stage.window is not None or stage.binding is not None:
                raise ValueError(
                    f"{stage.name}: windows and bindings are not simulated together with scaling"
                )
        names = {stage.name for stage in self.stages}
        for load in self.loads:
            if load.recorded is not None:
                raise ValueError(
                    f"{load.label}: recorded messages are not simulated together with scaling; "
                    f'allowed: rate = "file FILE", a CSV of time_s and rate'
                )
            if load.target.rpartition("/")[2] not in names:
                known = ", ".join(sorted(names))
                raise ValueError(f"there is no stage {load.target!r}; known: {known}")
        if not 0 <= self.workers <= WORKERS_MAX:
            raise ValueError(f"workers is {self.workers}; allowed: 0..{WORKERS_MAX}")
        if self.order not in ORDERS:
            raise ValueError(f"order is {self.order!r}; allowed with scaling: {', '.join(ORDERS)}")
        if not STEP_S_MIN <= milliseconds(self.step) / 1000 <= STEP_S_MAX:
            raise ValueError(f"step is {self.step}; allowed: 1ms to 1s")

    def but(self, **changes: Any) -> ElasticSimulation:
        """Return the same simulation with something changed; `scaling` may be the text of a policy
        for the number of workers."""
        scaling = changes.get("scaling")
        if isinstance(scaling, str):
            changes["scaling"] = replace(self.scaling, workers=scaling)
        return replace(self, **changes)

    @property
    def until_ms(self) -> float:
        return max(milliseconds(load.until) for load in self.loads)

    def run(self, progress: Progress | None = None) -> ElasticReport:
        """Run to the end; `progress` hears the virtual time in ms now and then."""
        began = time.perf_counter()
        scaling = self.scaling
        controller = Controller(scaling.settings(), scaling.policies(), slos=self.slos)
        machines = Machines(
            workers=self.workers or max(1, scaling.workers_min),
            cores=self.cores,
            start_s=milliseconds(scaling.start) / 1000,
            start_failures=scaling.start_failures,
            move_s=milliseconds(scaling.move) / 1000,
            moves_max=scaling.moves_max,
            price_hour=scaling.price_worker_hour,
        )
        cluster = FlowCluster(
            self._functions(),
            [self._flow(load) for load in self.loads],
            machines,
            controller,
            order=self.order,
            step_s=milliseconds(self.step) / 1000,
            queue_max=self.queue_max or inf,
            rng=stream(self.seed, "elastic"),
            instances=self.instances.model() if scaling.burst else None,
            warm=warm_pool(scaling.warm) if scaling.burst and scaling.warm != "none" else None,
        )
        cluster.helpers.environments.kept = self.instances.warm_at_start
        moments = []
        for second in range(round(self.until_ms / 1000)):
            moments.append(cluster.second())
            if progress is not None:
                progress(1000.0 * (second + 1))
        return ElasticReport(
            policy=scaling.workers,
            moments=moments,
            price_hour=scaling.price_worker_hour,
            instance_hour=scaling.instance_gb * scaling.price_gb_second * HOUR_S,
            requests_price=cluster.helpers.requests * scaling.price_request,
            warm_price=cluster.helpers.pings * scaling.price_request
            + cluster.helpers.ping_s * scaling.instance_gb * scaling.price_gb_second,
            cold_starts=cluster.helpers.cold_starts,
            decisions=controller.decisions,
            slots=controller.slots(),
            wall_s=time.perf_counter() - began,
        )

    def _functions(self) -> list[FlowFunction]:
        deadlines = {load.target.rpartition("/")[2]: load.deadline for load in self.loads}
        batch = max(1.0, *(distribution(load.batch).mean for load in self.loads), 1.0)
        functions = []
        for stage in self.stages:
            cost = Cost.of(stage.cost)
            due = deadlines.get(stage.name) or stage.slo
            functions.append(
                FlowFunction(
                    name=f"{APP}/{stage.name}",
                    cost_s=(milliseconds(cost.fixed) / batch + milliseconds(cost.each)) / 1000,
                    partitions=stage.partitions or PARTITIONS_EACH * self.scaling.workers_max,
                    sends=[(f"{APP}/{to.stage}", to.fan_out) for to in stage.sends],
                    tenant=stage.tenant,
                    slo_s=inf if due is None else milliseconds(due) / 1000,
                    lendable=bool(self.scaling.burst),
                    mergeable=stage.mergeable or stage.kind == "stateless",
                    lease_s=milliseconds(self.instances.lease) / 1000,
                    lent_bytes=2.0 * stage.message_bytes,
                    state_bytes=float(stage.state_bytes * stage.state_keys),
                )
            )
        return functions

    def _flow(self, load: Load) -> Flow:
        rate, start_s = load.rate_of(self.seed), milliseconds(load.start) / 1000
        until_s = milliseconds(load.until) / 1000
        name = load.target.rpartition("/")[2]
        return Flow(function=f"{APP}/{name}", rate=_between(rate, start_s, until_s))


def _between(rate: RateOf, start_s: float, until_s: float) -> RateOf:
    return lambda now_s: rate(now_s) if start_s <= now_s < until_s else 0.0


def elastic_scenario() -> ElasticSimulation:
    """Return the one that comes along: the load of Styx's experiment, for one of its cycles and
    the next."""
    return ElasticSimulation(
        stages=[Stage("transfer", "0.54ms", slo="1s")],
        loads=[Load(target="transfer", rate="cosine 0 14000 300s", until="600s")],
        scaling=Scaling(workers_min=4, workers_max=10, start="10s", price_worker_hour=0.25),
        step="100ms",
    )
