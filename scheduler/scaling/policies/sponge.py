"""`sponge`: instances for bursts, after Sponge. When a worker is busier than it should be, so many
instances are asked for that they, and the worker at its target, would work off what comes and what
waits; a share of its functions' messages is redirected to them. When it is idle, they are released.

Sponge buys cores for the whole load although the worker keeps its own; here only what is lent is
bought (`count=seed` is Sponge's own number). Its backlog is an integral of rates; here it is
measured. How soon a backlog should be gone is `recovery_ms`, the shortest slide of windows, or the
smallest laxity of what waits. What a load takes of a worker is learned while nothing is lent: costs
of handlers leave out what the runtime takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor
from typing import Any

from sublet.scheduler.binding.standing import LENDING_MS, STATE_LENDING_MS, is_worth_lending
from sublet.scheduler.scaling.actions import (
    Action,
    AddInstances,
    Outcome,
    Provision,
    Redirect,
    ReleaseInstances,
    Slot,
)
from sublet.scheduler.scaling.handover import Handover
from sublet.scheduler.scaling.plan import OWN_INSTANCES
from sublet.scheduler.scaling.policy import scaling_policy
from sublet.scheduler.scaling.view import ClusterView, FunctionView, WorkerView

SHARE_MAX = 0.95
SHARE_MIN = 0.1
"""Less is not worth lending."""
SHARE_STEP = 0.05
"""A share is raised only by so much, and lowered by twice that."""
RECOVERY_MS_MIN = 1_000.0
STABLE_SAMPLES = 10
"""So many have to tell what a load takes before they are believed."""
STABLE_KEPT = 0.9
STABLE_LOAD = 0.05
"""A worker with less to do tells nothing of what a load takes."""
FACTOR_MIN, FACTOR_MAX = 0.5, 5.0
COUNTS = ("spare", "seed")


@dataclass(slots=True)
class _Seen:
    """A worker, as it was followed."""

    samples: int = 0
    above: int = 0
    """Samples in a row in which it was too busy."""
    below: int = 0
    """Samples in a row in which it and its instances had too little to do."""
    stable: int = 0
    factor: float = 1.0
    """Of a core, for a load of 1 by the costs of handlers."""


@dataclass(slots=True)
class _Lending:
    """What a worker should lend."""

    load: float
    """Of the worker, in cores, with what it takes to work off its backlog in time."""
    shares: dict[str, float] = field(default_factory=dict)
    """Function to the share of its messages."""
    away: float = 0.0
    """What is lent, in cores of a worker."""
    is_possible: bool = False
    """There is a function whose messages are worth lending."""


@scaling_policy("sponge")
class Sponge:
    slot = Slot.INSTANCES
    actions = frozenset({AddInstances, ReleaseInstances, Redirect, Provision})
    period_ms = 1_000.0

    def __init__(  # noqa: PLR0913  # Each is a parameter that users can set.
        self,
        *,
        target: float = 0.7,
        low: float = 0.6,
        high: float = 0.8,
        samples: int = 2,
        backlog_ms: float = 2_000.0,
        recovery_ms: float = 10_000.0,
        speed: float = 0.67,
        cores: int = 1,
        calm_samples: int = 10,
        ignore_samples: int = 10,
        ignore_ms: float = 30_000.0,
        persists_ms: float = 60_000.0,
        count: str = "spare",
    ) -> None:
        """Utilisation should be `target`; outside of `low`..`high` for so many `samples`, or with
        more than `backlog_ms` waiting, something is done, but not in a worker's first
        `ignore_samples` and `ignore_ms`. `speed` of an instance's core, compared with a worker's,
        until it is measured, and its `cores`; after `calm_samples` below `low`, instances are
        released. A burst that has lasted `persists_ms` is handed over to workers, if they cost
        less."""
        if not 0 < low < target < high <= 1:
            raise ValueError(
                f"sponge: low, target, high are {low}, {target}, {high}; allowed: 0..1, in order"
            )
        if speed <= 0 or cores < 1 or samples < 1 or calm_samples < 1:
            raise ValueError("sponge: speed, cores and samples have to be more than 0")
        if ignore_samples < 0 or ignore_ms < 0 or persists_ms < 0:
            raise ValueError("sponge: ignore_samples, ignore and persists have to be 0 or more")
        if count not in COUNTS:
            raise ValueError(f"sponge: count is {count!r}; allowed: {', '.join(COUNTS)}")
        self.figures: Mapping[str, float] = {}
        self._target, self._low, self._high = target, low, high
        self._samples, self._calm = samples, calm_samples
        self._backlog_ms, self._recovery_ms = backlog_ms, recovery_ms
        self._speed, self._cores = speed, cores
        self._ignore_samples, self._ignore_ms = ignore_samples, ignore_ms
        self._is_seed = count == "seed"
        self._handover = Handover(persists_ms, calm_samples)
        self._seen: dict[str, _Seen] = {}
        self._lower: dict[str, list[float]] = {}
        """Function to the shares that it should have had since one below its own was enough."""

    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        actions: list[Action] = []
        loads, slide_ms = _loads(cluster), _slide_ms(cluster)
        wanted_all, load_all = 0, 0.0
        room = cluster.bounds.instances_max - len(cluster.plan.instances)
        lendings: list[_Lending] = []
        for worker in cluster.serving:
            mine = loads.get(worker.id, {})
            serving = len(cluster.instances.get(worker.id, ()))
            have = serving + cluster.instances_starting.get(worker.id, 0)
            seen = self._follow(worker, sum(mine.values()), have)
            load = seen.factor * sum(mine.values())
            load_all += load
            lending = self._lending(cluster, worker, mine, seen.factor, slide_ms)
            wanted = have
            if self._knows(worker, seen, now_ms):
                wanted = self._wanted(worker, lending, load, have)
            wanted_all += wanted
            because = (
                f"{worker.id} is {worker.utilisation:.0%} busy with {worker.waiting_ms:.0f} ms "
                f"waiting, and its load is {load:.2f}"
            )
            if wanted > have:
                count = min(wanted - have, room)
                if count > 0 and cluster.may_spend:
                    room -= count
                    actions.append(AddInstances(worker=worker.id, count=count, because=because))
            elif wanted < have:
                count = have - wanted
                actions.append(ReleaseInstances(worker=worker.id, count=count, because=because))
            if serving and wanted:
                lendings.append(self._limited(worker, lending, serving))
        for gone in [each for each in self._seen if each not in cluster.workers]:
            del self._seen[gone]
        actions += self._redirects(cluster, lendings)
        actions += self._provisions(cluster, load_all, now_ms)
        self.figures = {
            "instances": float(sum(map(len, cluster.instances.values()))),
            "starting": float(sum(cluster.instances_starting.values())),
            "wanted": float(wanted_all),
            "burst_share_of_day": self._handover.share_of_day,
            "workers_kept": float(self._handover.floor),
        }
        if self._handover.break_even < 1e6:
            self.figures = {**self.figures, "break_even": self._handover.break_even}
        return actions

    # What is known of a worker

    def _follow(self, worker: WorkerView, load: float, have: int) -> _Seen:
        """Take in a sample, and learn what a load takes while all of it runs at home."""
        seen = self._seen.setdefault(worker.id, _Seen())
        seen.samples += 1
        is_above = worker.utilisation > self._high or worker.waiting_ms > self._backlog_ms
        seen.above = seen.above + 1 if is_above else 0
        if have or is_above or worker.silent or load < STABLE_LOAD:
            return seen
        cores = worker.facts.cores
        factor = min(max(worker.utilisation * cores / load, FACTOR_MIN), FACTOR_MAX)
        seen.stable += 1
        if seen.stable == STABLE_SAMPLES:
            seen.factor = factor
        elif seen.stable > STABLE_SAMPLES:
            seen.factor += (1 - STABLE_KEPT) * (factor - seen.factor)
        return seen

    def _knows(self, worker: WorkerView, seen: _Seen, now_ms: float) -> bool:
        return seen.samples > self._ignore_samples and now_ms - worker.joined_ms >= self._ignore_ms

    def _speed_of(self, worker: WorkerView) -> float:
        """Return what one instance does of a worker's core."""
        return (worker.instance_speed or self._speed) * self._cores

    def _needs(self, worker: WorkerView, lending: _Lending) -> float:
        """Return how many instances do what is lent, each at its target."""
        each = self._target * self._speed_of(worker)
        if self._is_seed:
            return lending.load / each if lending.away else 0.0
        return lending.away / each

    def _wanted(self, worker: WorkerView, lending: _Lending, load: float, have: int) -> int:
        """Return how many instances a worker should have."""
        seen, cores = self._seen[worker.id], worker.facts.cores
        together = cores + self._speed_of(worker) * have
        is_below = load < self._low * together and worker.waiting_ms < self._backlog_ms
        seen.below = seen.below + 1 if have and is_below else 0
        needs = self._needs(worker, lending)
        if not lending.is_possible:
            return 0 if load > 0 else have  # Nobody could help, whoever came.
        if seen.above >= self._samples or worker.waiting_ms > self._backlog_ms:
            return max(have, ceil(needs - 1e-9))
        if seen.below < self._calm:
            return have
        # One fewer, if that leaves all within what is stable: else it would be asked for again.
        fewer = floor(needs)
        fits = load <= (self._target + self._high) / 2 * (cores + self._speed_of(worker) * fewer)
        return min(have, fewer if fits else ceil(needs - 1e-9))

    # What is lent

    def _lending(
        self,
        cluster: ClusterView,
        worker: WorkerView,
        loads: Mapping[str, float],
        factor: float,
        slide_ms: float,
    ) -> _Lending:
        """Choose functions until the worker is projected to be at its target."""
        load = factor * sum(loads.values())
        within_ms = min(self._recovery_ms, slide_ms, worker.laxity_ms)
        within_ms = max(RECOVERY_MS_MIN, within_ms)
        needed = load + worker.waiting_ms / within_ms
        lending = _Lending(needed)
        # What waits is of the functions in the same parts as what comes.
        scale = factor * (needed / load if load > 0 else 0.0)
        excess = needed - self._target * worker.facts.cores
        worth = _by_worth(cluster, loads)
        lending.is_possible = bool(worth)
        for name in worth:
            if excess <= 0:
                break
            function, mine = cluster.functions[name], scale * loads[name]
            kept = 1 - _lending_ms(function) / function.cost_ms
            """Of what a lent message would have cost, so much is saved at home."""
            share = min(SHARE_MAX, excess / (mine * kept))
            lending.shares[name] = share
            lending.away += share * mine
            excess -= share * mine * kept
        return lending

    def _limited(self, worker: WorkerView, lending: _Lending, have: int) -> _Lending:
        """Lend no more than those instances can do that there are."""
        can = self._high * self._speed_of(worker) * have
        part = min(1.0, can / lending.away) if lending.away else 1.0
        shares = {name: share * part for name, share in lending.shares.items()}
        return _Lending(lending.load, shares, lending.away * part, lending.is_possible)

    def _redirects(self, cluster: ClusterView, lendings: Sequence[_Lending]) -> Sequence[Action]:
        """Return the shares of functions that run at instances. Of workers with instances, the one
        that has to lend most counts."""
        shares: dict[str, float] = {}
        for lending in lendings:
            for name, share in lending.shares.items():
                shares[name] = max(share, shares.get(name, 0.0))
        busiest = max((each.load for each in lendings), default=0.0)
        actions: list[Action] = []
        for name in sorted({*shares, *cluster.plan.redirects} & cluster.functions.keys()):
            known = cluster.plan.redirects.get(name)
            wanted = shares.get(name, 0.0)
            if wanted < SHARE_MIN:
                wanted = 0.0
            if lendings:
                wanted = self._steady(name, 0.0 if known is None else known.share, wanted)
            if wanted == (0.0 if known is None else known.share):
                continue
            because = f"{len(lendings)} workers have instances; the busiest has {busiest:.2f} to do"
            lessees = (OWN_INSTANCES,) if wanted else ()
            actions.append(Redirect(function=name, share=wanted, lessees=lessees, because=because))
        return actions

    def _steady(self, name: str, share: float, wanted: float) -> float:
        """Return which share a function gets: a higher one at once, a lower one when it would have
        been enough for a while. What comes by chance changes nothing."""
        if wanted > share - 2 * SHARE_STEP and (wanted or not share):
            self._lower.pop(name, None)
            return wanted if wanted >= share + SHARE_STEP else share
        lower = self._lower.setdefault(name, [])
        lower.append(wanted)
        if len(lower) < self._calm:
            return share
        del self._lower[name]
        return max(lower)

    # Bursts that last

    def _provisions(self, cluster: ClusterView, load: float, now_ms: float) -> Sequence[Action]:
        """Return how many workers are kept for bursts, if that has changed."""
        serving = cluster.serving
        cores = sum(each.facts.cores for each in serving) / len(serving) if serving else 0.0
        self._handover.observe(
            now_ms,
            workers=len(serving) + cluster.starting,
            load=load,
            capacity=self._target * cores,
            instances=len(cluster.plan.instances),
            instance_hour=cluster.actuation.instance_hour,
            worker_hour=cluster.actuation.price_worker_hour,
        )
        if self._handover.floor == cluster.plan.floor:
            return ()
        return [Provision(workers=self._handover.floor, because=self._handover.because)]

    def memory(self) -> Mapping[str, Any]:
        return self._handover.memory()

    def recall(self, memory: Mapping[str, Any]) -> None:
        self._handover.recall(memory)

    def ended(self, action: Action, outcome: Outcome, now_ms: float) -> None:
        pass


def _lending_ms(function: FunctionView) -> float:
    expected_ms = LENDING_MS if function.facts.mergeable else STATE_LENDING_MS
    return function.lease_ms or expected_ms


def _by_worth(cluster: ClusterView, loads: Mapping[str, float]) -> list[str]:
    """Return the functions that may be lent: mergeable ones first, then by what a message costs
    compared with lending it."""
    worth = [
        function
        for name, load in loads.items()
        if load > 0
        and (function := cluster.functions.get(name)) is not None
        and function.facts.lendable
        and is_worth_lending(function.cost_ms, _lending_ms(function))
    ]
    worth.sort(
        key=lambda each: (
            not each.facts.mergeable,
            -each.cost_ms / _lending_ms(each),
            each.name,
        )
    )
    return [each.name for each in worth]


def _slide_ms(cluster: ClusterView) -> float:
    """Return how often windows end, at the most often."""
    slides = [each.facts.slide_ms for each in cluster.functions.values()]
    return min((each for each in slides if each is not None), default=float("inf"))


def _loads(cluster: ClusterView) -> dict[str, dict[str, float]]:
    """Return worker to function to what arrives for its partitions, in workers."""
    loads: dict[str, dict[str, float]] = {}
    for partition, worker in cluster.placement.items():
        mine = loads.setdefault(worker, {})
        function = partition.rpartition("/")[0]
        mine[function] = mine.get(function, 0.0) + cluster.load_of(partition)
    return loads
