"""Slots and who has them: policies are asked, looked at, and disabled when they fail.

A policy may be a user's own code in the middle of a worker. One that raises, or that wants what
makes no sense, costs its slot's decisions and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, TypeVar

import msgspec

from sublet.scheduler.scaling.actions import (
    ACTIONS,
    REASON_MAX,
    Action,
    AddInstances,
    AddWorkers,
    DrainWorker,
    Migrate,
    Outcome,
    Provision,
    Redirect,
    ReleaseInstances,
    Share,
    Slot,
    Weigh,
)
from sublet.scheduler.scaling.plan import MEMORY_BYTES_MAX, OWN_INSTANCES
from sublet.scheduler.scaling.policies.even import Even
from sublet.scheduler.scaling.policy import (
    PERIOD_MS_MIN,
    Measures,
    Remembers,
    ScalingPolicy,
    claims,
    scaling_named,
)
from sublet.scheduler.scaling.settings import WORKERS_MAX
from sublet.scheduler.scaling.view import ClusterView

ACTIONS_MAX = 1_024
"""A policy that wants more at once proposes nonsense."""
WEIGHT_MAX = 1e6
EARLY_MS = 1.0
"""A tick that comes so little before a policy's time is in time."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """For people."""

    slot: str
    policy: str
    paused: bool
    failure: str
    """Why the policy is not asked any more; empty while it is."""
    figures: Mapping[str, float]


class Seat:
    """A slot, and the policy that has it."""

    def __init__(self, slot: Slot, policy: str | ScalingPolicy) -> None:
        """`policy`: a text such as `predictive:season=300s`, or one itself."""
        if isinstance(policy, str):
            self.name = policy.partition(":")[0].strip()
            policy = scaling_named(slot, policy)
        else:
            self.name = type(policy).__name__
        if policy.slot is not slot:
            raise ValueError(f"{self.name} is for {policy.slot.value}, not for {slot.value}")
        self.slot = slot
        self.claims = claims(policy)
        if foreign := sorted(each.__name__ for each in self.claims - ACTIONS[slot]):
            raise ValueError(f"{self.name} claims {', '.join(foreign)}; {slot.value} has no such")
        self.failure = ""
        self.is_told = False
        """People know that it failed."""
        self._policy = policy
        self._asked_ms = -inf

    @property
    def evens_out(self) -> bool:
        """Nobody decides about placement here: counts are evened out."""
        return bool(self.failure) or isinstance(self._policy, Even)

    def is_due(self, now_ms: float) -> bool:
        period_ms = max(self._policy.period_ms, PERIOD_MS_MIN)
        return not self.failure and now_ms - self._asked_ms >= period_ms - EARLY_MS

    def decide(self, cluster: ClusterView, now_ms: float) -> list[Action]:
        """Return what the policy wants, if all of it makes sense."""
        self._asked_ms = now_ms
        policy = self._policy
        actions = self._guarded(lambda: list(policy.decide(cluster, now_ms)))
        if actions is None:
            return []
        if len(actions) > ACTIONS_MAX:
            self._fail(f"it wants {len(actions)} things at once; allowed: {ACTIONS_MAX}")
        for action in actions:
            if nonsense := self._nonsense(action, cluster):
                self._fail(nonsense)
        return [] if self.failure else actions

    def ended(self, action: Action, outcome: Outcome, now_ms: float) -> None:
        if not self.failure:
            policy = self._policy
            self._guarded(lambda: policy.ended(action, outcome, now_ms))

    def memory(self) -> Mapping[str, Any] | None:
        """Return what the policy wants to know after a failover; None if nothing."""
        policy = self._policy
        if self.failure or not isinstance(policy, Remembers):
            return None
        return self._guarded(lambda: _checked_memory(policy.memory()))

    def recall(self, memory: Mapping[str, Any]) -> None:
        policy = self._policy
        if isinstance(policy, Remembers):
            self._guarded(lambda: policy.recall(memory))

    def status(self, paused: bool) -> SlotStatus:
        figures = self._guarded(self._figures) if not self.failure else None
        return SlotStatus(self.slot.value, self.name, paused, self.failure, figures or {})

    def _figures(self) -> dict[str, float]:
        policy = self._policy
        if not isinstance(policy, Measures):
            return {}
        return {str(name): float(value) for name, value in policy.figures.items()}

    def _guarded(self, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")
            return None

    def _fail(self, reason: str) -> None:
        if not self.failure:
            self.failure = f"it failed and is disabled: {reason}"[:REASON_MAX]

    def _nonsense(self, action: object, cluster: ClusterView) -> str:
        """Return what is wrong with an action that no sane policy would want."""
        if not isinstance(action, Action) or type(action) not in self.claims:
            return f"{type(action).__name__} is no action that it may want"
        check = _CHECKS.get(type(action))
        if check is None:
            return f"nothing carries out {type(action).__name__} yet"
        return check(action, cluster)


def _add(action: Any, cluster: ClusterView) -> str:
    fits = type(action.count) is int and 1 <= action.count <= WORKERS_MAX
    return "" if fits else f"it adds {action.count!r} workers"


def _drain(action: Any, cluster: ClusterView) -> str:
    known = action.worker in cluster.workers
    return "" if known else f"it drains {action.worker!r}, which is no worker"


def _migrate(action: Any, cluster: ClusterView) -> str:
    known = action.partition in cluster.placement and action.worker in cluster.workers
    return "" if known else f"it moves {action.partition!r} to {action.worker!r}"


def _weigh(action: Any, cluster: ClusterView) -> str:
    fits = action.worker in cluster.workers and _is_weight(action.weight) and action.weight > 0
    return "" if fits else f"it gives {action.worker!r} the weight {action.weight!r}"


def _share(action: Any, cluster: ClusterView) -> str:
    fits = isinstance(action.tenant, str) and _is_weight(action.weight)
    return "" if fits else f"it gives {action.tenant!r} the weight {action.weight!r}"


def _add_instances(action: Any, cluster: ClusterView) -> str:
    fits = type(action.count) is int and 1 <= action.count <= WORKERS_MAX
    if fits and action.worker in cluster.workers:
        return ""
    return f"it adds {action.count!r} instances for {action.worker!r}"


def _redirect(action: Any, cluster: ClusterView) -> str:
    helpers = {name for names in cluster.instances.values() for name in names}
    lessees = cluster.workers.keys() | helpers | {OWN_INSTANCES}
    known = action.function in cluster.functions and _are_known(action.lessees, lessees)
    lends = _is_weight(action.share) and action.share <= 1
    if known and lends and (action.lessees or not action.share):
        return ""
    return f"it redirects {action.share!r} of {action.function!r} to {action.lessees!r}"


def _provision(action: Any, cluster: ClusterView) -> str:
    fits = type(action.workers) is int and 0 <= action.workers <= WORKERS_MAX
    return "" if fits else f"it keeps {action.workers!r} workers"


_CHECKS: Mapping[type[Action], Callable[[Any, ClusterView], str]] = {
    AddWorkers: _add,
    DrainWorker: _drain,
    AddInstances: _add_instances,
    ReleaseInstances: _add_instances,
    Provision: _provision,
    Migrate: _migrate,
    Weigh: _weigh,
    Share: _share,
    Redirect: _redirect,
}


def _are_known(names: object, known: Collection[str]) -> bool:
    return isinstance(names, tuple | list) and all(name in known for name in names)


def _is_weight(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and isfinite(value)
        and 0 <= value <= WEIGHT_MAX
    )


def _checked_memory(memory: Mapping[str, Any]) -> Mapping[str, Any]:
    size = len(msgspec.msgpack.encode(memory))
    if size > MEMORY_BYTES_MAX:
        raise ValueError(f"it remembers {size} bytes; allowed: {MEMORY_BYTES_MAX}")
    return memory


def seats_of(policies: Mapping[Slot, str | ScalingPolicy]) -> list[Seat]:
    """Return a seat for each slot that has a policy. Raises ValueError if two want one knob."""
    seats = [Seat(slot, policies[slot]) for slot in Slot if slot in policies]
    _check_claims(seats)
    return seats


def _check_claims(seats: Sequence[Seat]) -> None:
    claimed: dict[type[Action], Seat] = {}
    for seat in seats:
        for kind in sorted(seat.claims, key=lambda each: each.__name__):
            other = claimed.setdefault(kind, seat)
            if other is not seat:
                raise ValueError(
                    f"{other.name} ({other.slot.value}) and {seat.name} ({seat.slot.value}) both "
                    f"decide about {kind.__name__}; choose another policy for one of them"
                )
