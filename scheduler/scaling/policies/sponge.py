"""`sponge`: instances for bursts, after Sponge. When a worker is busier than it should be, so many
instances are asked for that they, and the worker at its target, would work off what comes and what
waits; a share of its functions' messages is redirected to them. When it is idle, they are released.

Sponge buys cores for the whole load although the worker keeps its own; here what the worker does is
subtracted. Its backlog is an integral of rates; here it is measured. How soon a backlog should be
gone is `recovery_ms`, or the smallest laxity of what waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from sublet.scheduler.scaling.actions import (
    Action,
    AddInstances,
    Outcome,
    Redirect,
    ReleaseInstances,
    Slot,
)
from sublet.scheduler.scaling.policy import scaling_policy
from sublet.scheduler.scaling.view import ClusterView, FunctionView, WorkerView

SHARE_MAX = 0.95
SHARE_MIN = 0.1
"""Less is not worth lending."""
SHARE_STEP = 0.05
"""A share is changed only by so much."""
WORTH = 3.0
"""A message is lent only if it costs so many times what lending it does."""


@dataclass(slots=True)
class _Seen:
    above: int = 0
    """Samples in a row in which the worker was too busy."""
    below: int = 0


@scaling_policy("sponge")
class Sponge:
    slot = Slot.INSTANCES
    actions = frozenset({AddInstances, ReleaseInstances, Redirect})
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
        calm_samples: int = 10,
    ) -> None:
        """Utilisation should be `target`; outside of `low`..`high` for so many `samples`, or with
        more than `backlog_ms` waiting, something is done. `speed` of an instance, compared with a
        worker; after `calm_samples` below `low`, instances are released."""
        if not 0 < low < target < high <= 1:
            raise ValueError(
                f"sponge: low, target, high are {low}, {target}, {high}; allowed: 0..1, in order"
            )
        if speed <= 0 or samples < 1 or calm_samples < 1:
            raise ValueError("sponge: speed and samples have to be more than 0")
        self.figures: Mapping[str, float] = {}
        self._target, self._low, self._high = target, low, high
        self._samples, self._calm = samples, calm_samples
        self._backlog_ms, self._recovery_ms = backlog_ms, recovery_ms
        self._speed = speed
        self._seen: dict[str, _Seen] = {}

    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        actions: list[Action] = []
        loads = _loads(cluster)
        wanted_all = 0
        room = cluster.bounds.instances_max - len(cluster.plan.instances)
        for worker in cluster.serving:
            have = len(cluster.instances.get(worker.id, ())) + cluster.instances_starting.get(
                worker.id, 0
            )
            wanted = self._wanted(worker, loads.get(worker.id, 0.0), have)
            wanted_all += wanted
            because = (
                f"{worker.id} is {worker.utilisation:.0%} busy with {worker.waiting_ms:.0f} ms "
                f"waiting, and its load is {loads.get(worker.id, 0.0):.2f}"
            )
            if wanted > have:
                count = min(wanted - have, room)
                room -= max(0, count)
                if count <= 0 or not cluster.may_spend:
                    continue
                actions.append(AddInstances(worker=worker.id, count=count, because=because))
            elif wanted < have:
                count = have - wanted
                actions.append(ReleaseInstances(worker=worker.id, count=count, because=because))
        for gone in [each for each in self._seen if each not in cluster.workers]:
            del self._seen[gone]
        self.figures = {
            "instances": float(sum(map(len, cluster.instances.values()))),
            "starting": float(sum(cluster.instances_starting.values())),
            "wanted": float(wanted_all),
        }
        return [*actions, *self._redirects(cluster, loads)]

    def _wanted(self, worker: WorkerView, load: float, have: int) -> int:
        """Return how many instances a worker should have."""
        seen = self._seen.setdefault(worker.id, _Seen())
        is_above = worker.utilisation > self._high or worker.waiting_ms > self._backlog_ms
        seen.above = seen.above + 1 if is_above else 0
        # With instances, the worker itself is kept at its target: its load tells when it is over.
        is_below = load < self._low and worker.waiting_ms < self._backlog_ms
        seen.below = seen.below + 1 if is_below else 0
        if seen.below >= self._calm:
            return 0
        if seen.above < self._samples:
            return have
        recovery_ms = max(1_000.0, min(self._recovery_ms, worker.laxity_ms))
        needed = load + worker.waiting_ms / recovery_ms
        missing = needed - self._target * worker.facts.cores
        return max(have, ceil(missing / (self._target * self._speed)))

    def _redirects(self, cluster: ClusterView, loads: Mapping[str, float]) -> Sequence[Action]:
        """Return the shares of functions that run at instances."""
        helpers = tuple(name for names in cluster.instances.values() for name in names)
        busiest = max((loads.get(each, 0.0) for each in cluster.instances), default=0.0)
        busiest = max(busiest, max((w.utilisation for w in cluster.serving), default=0.0))
        share = 0.0
        if helpers and busiest > self._target:
            share = min(SHARE_MAX, 1 - self._target / busiest)
        actions: list[Action] = []
        for name, function in sorted(cluster.functions.items()):
            known = cluster.plan.redirects.get(name)
            wanted = share if _is_worth(function) and share >= SHARE_MIN else 0.0
            if known is None and not wanted:
                continue
            is_same = (
                known is not None
                and abs(known.share - wanted) < SHARE_STEP
                and known.lessees == helpers
            )
            if not is_same:
                because = f"{len(helpers)} instances help, and the busiest worker has {busiest:.2f}"
                actions.append(
                    Redirect(function=name, share=wanted, lessees=helpers, because=because)
                )
        return actions

    def ended(self, action: Action, outcome: Outcome, now_ms: float) -> None:
        pass


def _is_worth(function: FunctionView) -> bool:
    return function.facts.lendable and function.cost_ms > WORTH * function.lease_ms


def _loads(cluster: ClusterView) -> dict[str, float]:
    """Return worker to what arrives for its partitions, in workers."""
    loads: dict[str, float] = {}
    for partition, worker in cluster.placement.items():
        loads[worker] = loads.get(worker, 0.0) + cluster.load_of(partition)
    return loads
