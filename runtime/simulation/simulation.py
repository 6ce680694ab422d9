"""`Simulation`: how would this app, or these stages, behave under this load with this policy?"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sublet.functions.app import App, Function, functions_of
from sublet.functions.duration import Duration, milliseconds
from sublet.runtime.cluster.partition_routes import PartitionRoutes
from sublet.runtime.config.limits import Limits
from sublet.runtime.simulation.engine.app_functions import AppHandlers
from sublet.runtime.simulation.engine.cluster import QUIET_CHECK_MS, Cluster
from sublet.runtime.simulation.engine.events import Events
from sublet.runtime.simulation.engine.hosted import Handlers
from sublet.runtime.simulation.engine.ledger import Ledger
from sublet.runtime.simulation.engine.network import SimulatedNetwork
from sublet.runtime.simulation.engine.pace import CorePace, MistakenPace
from sublet.runtime.simulation.engine.stages import APP, StageHandlers, functions_of_stages
from sublet.runtime.simulation.engine.store import SimulatedStore
from sublet.runtime.simulation.engine.trace import Trace
from sublet.runtime.simulation.engine.worker import SimulatedWorker, Surroundings
from sublet.runtime.simulation.reports.report import Report
from sublet.runtime.simulation.scenarios.distributions import Cost, stream
from sublet.runtime.simulation.scenarios.load import Source, synthetic_arrivals
from sublet.runtime.simulation.scenarios.recorded import read_recorded
from sublet.runtime.simulation.scenarios.scenario import (
    WORKERS_MAX,
    Fault,
    Load,
    Network,
    Progress,
    Stage,
    StoreModel,
    check_fault,
    check_stages,
)
from sublet.scheduler.api import QueueOrder
from sublet.scheduler.binding.policy import BindingPolicy, Trigger, binding_named
from sublet.scheduler.orders import DEFAULT_ORDER, TokenShares, order_named
from sublet.scheduler.pace import QUANTUM_MS
from sublet.scheduler.urgency import PATIENCE_MS, Urgency

STEP_MS = 250.0
"""Progress is told so often, in virtual time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """A cluster, what it runs, and what happens to it. `run` says how it goes.

    Give either `stages` (functions without code) or `app` (real ones, which are really run; what
    a run costs then comes from `costs`, by function, or is measured where they say nothing).
    """

    loads: Sequence[Load]
    stages: Sequence[Stage] = ()
    app: App | Sequence[App] | Mapping[str, Function] | None = None
    costs: Mapping[str, Cost | Duration] = field(default_factory=dict)
    workers: int = 4
    cores: int = 1
    """Of each worker; they share its queue. A real worker has one."""
    order: str | Callable[[], QueueOrder] = DEFAULT_ORDER
    """A name as in the settings, or what makes an order for each worker."""
    tokens: TokenShares | None = None
    """For the order `token-fair`."""
    seed: int = 0
    network: Network = field(default_factory=Network)
    store: StoreModel = field(default_factory=StoreModel)
    faults: Sequence[Fault] = ()
    overhead: Cost | Duration = 0
    """What the runtime itself takes of a core for a run."""
    quantum: Duration = QUANTUM_MS
    """How long a run may take if it can be cut at a message's end."""
    patience: Duration = PATIENCE_MS
    """When a message without deadline is due."""
    binding: str = "static"
    """Where messages run, as in the settings; stages can say otherwise for theirs."""
    beside: bool = False
    """Runs that are too long for a worker's loop go on beside it, in larger pieces, and leave their
    partition free meanwhile; always so where work is lent."""
    lease_overhead: Cost | Duration = 0
    """What a message between lessor and lessee takes of a core, at either end: for itself, and
    for each kilobyte of state in it."""
    estimation_noise: Duration = 0
    """Deviation of a normal error in every expected cost."""
    member_term: Duration = "2s"
    """How long a worker must be silent until others take over."""
    warmup: Duration = 0
    """What ends before is not in the latencies of the report."""
    drain: Duration = "60s"
    """How long to wait, after the last arrival, for what is still on its way."""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if bool(self.stages) == (self.app is not None):
            raise ValueError("give either stages or app")
        if not self.loads:
            raise ValueError("there are no loads; give at least one")
        if not 1 <= self.workers <= WORKERS_MAX:
            raise ValueError(f"workers is {self.workers}; allowed: 1..{WORKERS_MAX}")
        if not 1 <= self.cores <= 1_024:
            raise ValueError(f"cores is {self.cores}; allowed: 1..1024")
        check_stages(self.stages)
        for fault in self.faults:
            check_fault(fault, self.workers)
        self.make_order()
        if not self.lends_nothing and self.app is not None:
            raise ValueError(f"binding is {self.binding!r}; allowed for a real app: static")
        Cost.of(self.lease_overhead)
        functions = self.functions()
        for load in self.loads:
            if load.recorded is None:
                full_name(load.target, functions)
        for name in self.costs:
            full_name(name, functions)

    def make_order(self) -> QueueOrder:
        return order_named(self.order, self.tokens) if isinstance(self.order, str) else self.order()

    def functions(self) -> dict[str, Function]:
        if self.app is not None:
            if isinstance(self.app, Mapping):
                return dict(self.app)
            return functions_of([self.app] if isinstance(self.app, App) else self.app)
        return functions_of_stages(self.stages, self.workers)

    @property
    def lends_nothing(self) -> bool:
        """Every message runs at the owner of its partition."""
        texts = {self.binding, *(stage.binding or self.binding for stage in self.stages)}
        return all(binding_named(text).trigger is Trigger.NEVER for text in texts)

    @property
    def until_ms(self) -> float:
        """When the last load ends, in virtual time. Recorded ones end when they end."""
        return max(milliseconds(load.until) for load in self.loads)

    def but(self, **changes: Any) -> Simulation:
        """Return the same simulation with something changed, to compare the two."""
        return replace(self, **changes)

    def run(self, progress: Progress | None = None) -> Report:
        """Run to the end; `progress` hears the virtual time in ms now and then."""
        return _Run(self).run(progress)


def full_name(name: str, functions: Mapping[str, Function]) -> str:
    """Return the one function that is called so, with or without its app's name."""
    found = [each for each in functions if each == name or each.rpartition("/")[2] == name]
    if len(found) == 1:
        return found[0]
    known = ", ".join(sorted(functions))
    if found:
        raise ValueError(f"{name!r} is more than one function; known: {known}")
    raise ValueError(f"there is no function {name!r}; known: {known}")


class _Run:
    """One run of a simulation, with its parts."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        seed = simulation.seed
        events = self._events = Events()
        self._functions = simulation.functions()
        self._routes = PartitionRoutes(
            {name: (each.partition_count, each.kind) for name, each in self._functions.items()},
            {alias: name for name, each in self._functions.items() for alias in each.aliases},
        )
        self._ledger = Ledger()
        self._network = SimulatedNetwork(events, simulation.network, seed)
        self._store = SimulatedStore(events, simulation.store, seed)
        self._trace = Trace(seed)
        self._handlers = self._make_handlers()
        self._around = Surroundings(
            events=events,
            network=self._network,
            store=self._store,
            ledger=self._ledger,
            handlers=self._handlers,
            trace=self._trace,
            limits=simulation.limits,
            overhead_ms=Cost.of(simulation.overhead).sampler(stream(seed, "overhead")),
            lease_overhead_ms=_each_kilobyte(Cost.of(simulation.lease_overhead)),
            policy_of=None if simulation.lends_nothing else self._make_policy,
            seed=seed,
        )
        self._until_ms = simulation.until_ms
        self._sources = [
            source
            for number, load in enumerate(simulation.loads)
            for source in self._make_sources(number, load)
        ]
        self._cluster = Cluster(
            self._around,
            self._functions,
            self._make_worker,
            self._sources,
            workers=simulation.workers,
            term_ms=milliseconds(simulation.member_term),
            seed=seed,
        )
        for fault in simulation.faults:
            self._cluster.plan(fault)

    def _make_handlers(self) -> dict[str, Handlers]:
        simulation = self._simulation
        if simulation.app is not None:
            costs = {
                full_name(name, self._functions): Cost.of(cost)
                for name, cost in simulation.costs.items()
            }
            return {
                name: AppHandlers(
                    function,
                    costs.get(name),
                    routes=self._routes,
                    ledger=self._ledger,
                    events=self._events,
                    store=self._store,
                    limits=simulation.limits,
                    seed=simulation.seed,
                )
                for name, function in self._functions.items()
            }
        by_name = {stage.name: stage for stage in simulation.stages}
        return {
            f"{APP}/{name}": StageHandlers(
                stage,
                by_name,
                self._functions[f"{APP}/{name}"],
                self._routes,
                self._ledger,
                simulation.seed,
            )
            for name, stage in by_name.items()
        }

    def _make_policy(self, function: Function) -> BindingPolicy:
        return binding_named(function.binding or self._simulation.binding)

    def _make_worker(self, number: int) -> SimulatedWorker:
        simulation = self._simulation
        quantum_ms = milliseconds(simulation.quantum)
        sigma_ms = milliseconds(simulation.estimation_noise)
        beside = simulation.beside or not simulation.lends_nothing
        if sigma_ms:
            gauss = stream(simulation.seed, "noise", number).gauss
            pace: CorePace = MistakenPace(
                quantum_ms,
                lambda: gauss(0.0, sigma_ms),
                cores=simulation.cores,
                beside=beside,
            )
        else:
            pace = CorePace(quantum_ms, cores=simulation.cores, beside=beside)
        urgency = Urgency(
            simulation.make_order(), pace, patience_ms=milliseconds(simulation.patience)
        )
        return SimulatedWorker(
            f"w{number:04}", number, self._around, urgency, pace, simulation.cores
        )

    def _make_sources(self, number: int, load: Load) -> list[Source]:
        windows_ms = {
            f"{APP}/{stage.name}": milliseconds(stage.window)
            for stage in self._simulation.stages
            if stage.window is not None and stage.frontier
        }

        def source(name: str, arrivals: Any) -> Source:
            return Source(name, number, arrivals, self._around, self._routes, windows_ms)

        if load.recorded is not None:
            arrivals = read_recorded(load, self._functions, self._left_ms)
            self._until_ms = max(self._until_ms, arrivals[-1].at_ms if arrivals else 0.0)
            return [source(f"~{number}", iter(arrivals))]
        function = full_name(load.target, self._functions)
        codec = self._functions[function].message_codec
        encode = codec.encode if self._simulation.app is not None else None
        return [
            source(
                f"~{number}.{each}",
                synthetic_arrivals(
                    load,
                    each,
                    function,
                    self._left_ms(load, function),
                    encode,
                    self._simulation.seed,
                ),
            )
            for each in range(load.sources)
        ]

    def _left_ms(self, load: Load, function: str) -> float:
        if load.deadline is not None:
            return milliseconds(load.deadline)
        slo_ms = self._functions[function].slo_ms
        return math.inf if slo_ms is None else slo_ms

    def run(self, progress: Progress | None) -> Report:
        began = time.perf_counter()
        events, cluster = self._events, self._cluster
        cluster.start()
        while events.now_ms < self._until_ms:
            events.run_until(min(events.now_ms + STEP_MS, self._until_ms))
            if progress is not None:
                progress(events.now_ms)
        last_ms = self._until_ms + milliseconds(self._simulation.drain)
        while events.now_ms < last_ms and not cluster.is_quiet:
            events.run_until(min(events.now_ms + QUIET_CHECK_MS, last_ms))
        for worker in cluster.workers:
            if worker.lending is not None:
                worker.lending.count()
        return Report(
            simulation=self._simulation,
            around=self._around,
            cluster=cluster,
            until_ms=self._until_ms,
            wall_s=time.perf_counter() - began,
        )


def _each_kilobyte(cost: Cost) -> Callable[[float], float]:
    fixed_ms, each_ms = milliseconds(cost.fixed), milliseconds(cost.each)
    return lambda kilobytes: fixed_ms + each_ms * kilobytes
