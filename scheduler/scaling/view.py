"""What a scaling policy may know of the cluster: facts, rates of the last seconds, and the plan.

Everything here is read-only, and told in the controller's own time. Rates are messages a second
over the last `RATE_SECONDS`; loads are in workers: 1.0 keeps one worker busy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from sublet.scheduler.scaling.plan import Plan
from sublet.scheduler.scaling.signals import OUTSIDE, TURN_BOUNDS_MS, quantile

RATE_SECONDS = 5
HISTORY_MAX = 120
"""Seconds of the whole cluster that are kept."""
PATIENCE_MS = 10_000.0
"""When a message without deadline is due, as if it had one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What a tenant wants: a latency in ms that most messages keep, or a share of its input that is
    processed (`juice`). `priority` is what meeting it is worth."""

    latency_ms: float | None = None
    juice: float | None = None
    priority: float = 1.0

    def __post_init__(self) -> None:
        if (self.latency_ms is None) == (self.juice is None):
            raise ValueError("an SLO is either a latency or a juice")
        if self.latency_ms is not None and not 0 < self.latency_ms < inf:
            raise ValueError(f"latency is {self.latency_ms} ms; allowed: more than 0")
        if self.juice is not None and not 0 < self.juice <= 1:
            raise ValueError(f"juice is {self.juice}; allowed: more than 0, at most 1")
        if not 0 < self.priority < inf:
            raise ValueError(f"priority is {self.priority}; allowed: more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """A member of the cluster, as the directory has it."""

    id: str
    launch: str = ""
    """The id under which it was started; empty: nobody asked for it by id."""
    cores: int = 1
    speed: float = 1.0
    """Of a core, compared with others."""
    price_hour: float | None = None
    """None: as configured."""
    draining: bool = False
    functions: Mapping[str, int] | None = None
    """Those that it can serve, each with the latest version of its states that it can read; None:
    all of them."""
    upgrades: bool = False
    """It has joined workers with other code, as in a rolling upgrade."""

    def can_follow(self, other: WorkerFacts, function: str) -> bool:
        """Tell whether it can take over a function's partitions from another worker."""
        if self.functions is None:
            return True
        reads = self.functions.get(function, 0)
        return reads >= (1 if other.functions is None else other.functions.get(function, 0))


def irreplaceable(
    worker: WorkerFacts, others: Iterable[WorkerFacts], functions: Collection[str]
) -> str:
    """Return a function that none of the others could take over from a worker; empty: all can be.
    Where nobody else is, the last one is asked about by its number alone."""
    served = functions if worker.functions is None else worker.functions.keys() & functions
    # Mostly the first of them can take over all.
    missing, has_others = set(served), False
    for each in others:
        has_others = True
        missing = {name for name in missing if not each.can_follow(worker, name)}
        if not missing:
            break
    return min(missing) if missing and has_others else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionFacts:
    """A function as it was declared."""

    name: str
    partitions: int
    tenant: str = ""
    slo_ms: float | None = None
    lendable: bool = True
    """Its messages can run at other workers under a lease."""
    mergeable: bool = False
    """It has no state, or lessees begin with an empty one, and what they added is merged."""
    slide_ms: float | None = None
    """How often its windows end; None: it has none."""


@dataclass(slots=True, kw_only=True)
class WorkerView:
    facts: WorkerFacts
    joined_ms: float
    heard_ms: float = -inf
    """When its last sample came."""
    utilisation: float = 1.0
    """0..1 over the last sample; 1 for who was not heard yet, or not for long."""
    waiting_ms: float = 0.0
    laxity_ms: float = inf
    timer_ms: float | None = None
    instance_speed: float = 0.0
    """Of its instances' cores, compared with its own; 0: not measured."""
    silent: bool = False
    """Not heard for 3 s: it blocks scale-in."""

    @property
    def id(self) -> str:
        return self.facts.id

    @property
    def draining(self) -> bool:
        return self.facts.draining


@dataclass(slots=True, kw_only=True)
class FunctionView:
    """A function over all workers."""

    facts: FunctionFacts
    arrived: Mapping[str, float] = field(default_factory=dict)
    """Messages a second by source."""
    done: Mapping[str, float] = field(default_factory=dict)
    sent: Mapping[str, float] = field(default_factory=dict)
    """By target; of all that are sent, each once."""
    refused: float = 0.0
    late: float = 0.0
    """Messages a second that were late."""
    waiting: int = 0
    waiting_ms: float = 0.0
    laxity_ms: float = inf
    violators_ms: float = 0.0
    turn: Sequence[int] = ()
    """Histogram over `TURN_BOUNDS_MS` of the last `RATE_SECONDS`."""
    cost_ms: float = 0.0
    """What one message takes of a worker, at the batch sizes that it had; 0 if not known."""
    path_ms: float = 0.0
    lease_ms: float = 0.0
    loads: Mapping[str, float] = field(default_factory=dict)
    """Partition to its load, as far as known."""
    state_bytes: int = 0
    lag_ms: float = 0.0

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def arrived_all(self) -> float:
        return sum(self.arrived.values())

    @property
    def done_all(self) -> float:
        return sum(self.done.values())

    @property
    def turn_ms(self) -> float:
        """The 95th percentile of its turns; 0 if there were none."""
        return quantile(self.turn, TURN_BOUNDS_MS, 0.95)


@dataclass(frozen=True, slots=True)
class Second:
    """The whole cluster in one second."""

    at_ms: float
    workers: int
    """That served, and were heard."""
    arrived: float
    """Messages that came from clients."""
    refused: float
    done: float
    """Messages of clients that were committed."""
    load: float
    """What all that arrived takes to run, in workers: by costs as learned."""
    work: float
    """What all that was committed took to run, in the same unit."""
    entry_load: float
    """Of the load, what came from clients."""
    entry_work: float
    """Of the work, what was done for clients' own messages."""
    busy: float
    """Workers that were busy: the sum of their utilisation."""
    waiting: int
    waiting_ms: float
    laxity_ms: float
    turn_ms: float
    """95th percentile of the slowest function's turns."""
    late: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Actuation:
    """How workers come and go, as configured, and as measured since."""

    start_ms: float = 500.0
    """From wanting a worker until it serves."""
    move_ms: float = 30.0
    """For one partition."""
    moves_max: int = 4
    """Partitions that move at once."""
    price_worker_hour: float = 0.0
    instance_start_ms: float = 1_000.0
    """From wanting an instance until it serves."""
    instance_hour: float = 0.0
    """What an instance costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    workers_min: int = 1
    workers_max: int = 1
    instances_max: int = 0


@dataclass(slots=True, kw_only=True)
class ClusterView:
    workers: Mapping[str, WorkerView]
    """All members, those that drain too."""
    functions: Mapping[str, FunctionView]
    placement: Mapping[str, str]
    """Partition to its owner."""
    plan: Plan
    bounds: Bounds
    actuation: Actuation
    history: Sequence[Second] = ()
    """The last seconds, newest last."""
    slos: Mapping[str, Slo] = field(default_factory=dict)
    """Tenant to what it wants."""
    instances: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Worker to the instances that serve it."""
    instances_starting: Mapping[str, int] = field(default_factory=dict)
    """Worker to how many were asked for and have not come."""
    traffic_of: Callable[[], Mapping[tuple[str, str], float]] = dict
    """Summed up only for who asks."""
    under_way: Collection[str] = ()
    """Targets of actions that have not ended."""
    growth: bool = True
    """More workers may be asked for: no cap is reached, and none fails to start."""
    may_spend: bool = True
    """Whether the spend cap leaves room. Instances come even where workers do not start."""

    @property
    def serving(self) -> list[WorkerView]:
        """Workers that serve and are to stay, by id."""
        return [
            each
            for _, each in sorted(self.workers.items())
            if not each.draining and not self._leaves(each.id)
        ]

    def dispensable(self, by_preference: Sequence[WorkerView], count: int) -> list[WorkerView]:
        """Return the first so many that can leave together: others can serve all their
        functions. In a rolling upgrade, those with the former code go first."""
        staying = {each.id: each.facts for each in self.serving}
        chosen: list[WorkerView] = []
        for each in sorted(by_preference, key=lambda each: each.facts.upgrades):
            if len(chosen) >= count:
                break
            others = (facts for id_, facts in staying.items() if id_ != each.id)
            if not irreplaceable(each.facts, others, self.functions):
                chosen.append(each)
                del staying[each.id]
        return chosen

    def _leaves(self, worker: str) -> bool:
        return any(each.worker == worker for each in self.plan.leaving)

    @property
    def starting(self) -> int:
        """Workers that were asked for and have not joined."""
        return len(self.plan.launches)

    @property
    def traffic(self) -> Mapping[tuple[str, str], float]:
        """The busiest pairs of partitions, sender and receiver, to messages a second."""
        return self.traffic_of()

    @property
    def silent(self) -> bool:
        """Somebody has not been heard: nobody may be drained."""
        return any(each.silent for each in self.workers.values() if not each.draining)

    @property
    def now(self) -> Second | None:
        """The last second; None if nothing was heard yet."""
        return self.history[-1] if self.history else None

    def owned(self) -> dict[str, list[str]]:
        """Return worker to the partitions that it has, for all members."""
        owned: dict[str, list[str]] = {worker: [] for worker in self.workers}
        for partition, worker in self.placement.items():
            if worker in owned:
                owned[worker].append(partition)
        return owned

    def load_of(self, partition: str) -> float:
        """Return a partition's load; the mean of its function's if it was not named."""
        function = self.functions.get(partition.rpartition("/")[0])
        if function is None:
            return 0.0
        load = function.loads.get(partition)
        if load is not None:
            return load
        unnamed = function.facts.partitions - len(function.loads)
        rest = function.arrived_all * function.cost_ms / 1000 - sum(function.loads.values())
        return max(0.0, rest) / unnamed if unnamed > 0 else 0.0


def entry_rate(function: FunctionView) -> float:
    """Return the messages a second that clients send to a function."""
    return function.arrived.get(OUTSIDE, 0.0)
