"""Scaling policies: the seam, and the registry by name.

A policy is asked now and then what should change. It sees a read-only view of the cluster and says
what it wants; the controller checks that against bounds, budget and what is under way, writes it
into the plan, and has it carried out. A policy can waste money or be slow, never break a promise.

A policy of one's own is a class, registered under a name::

    @scaling_policy("office-hours")
    class OfficeHours:
        slot = Slot.WORKERS
        period_ms = 60_000.0

        def __init__(self, *, day: int = 8, night: int = 2) -> None:
            self._day, self._night = day, night

        def decide(self, cluster, now_ms):
            ...
            return [AddWorkers(count=2, because="the day begins")]

        def ended(self, action, outcome, now_ms):
            ...

and chosen as `office-hours:day=6`. Parameters have the type of their default; where that is a
duration in ms (the name ends with `_ms`), a text such as `30s` is allowed, and the ending may be
left out: `season=300s`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any, Protocol, TypeVar, runtime_checkable

from sublet.functions.duration import milliseconds
from sublet.scheduler.scaling.actions import ACTIONS, Action, Outcome, Redirect, Slot
from sublet.scheduler.scaling.view import ClusterView

PERIOD_MS_MIN = 100.0


class ScalingPolicy(Protocol):
    """Decides for one slot. Its state is its own; it does no I/O and reads no clock."""

    slot: Slot
    period_ms: float
    """How often it wants to be asked. The controller asks once a second at most."""

    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        """Return what should change; nothing, most of the time."""
        ...

    def ended(self, action: Action, outcome: Outcome, now_ms: float) -> None:
        """An action that it wanted has ended, or was refused."""
        ...


@runtime_checkable
class Claims(Protocol):
    """A policy that says which actions it takes, of those that its slot allows."""

    actions: frozenset[type[Action]]


@runtime_checkable
class Measures(Protocol):
    """A policy that tells what it sees: `sublet scale status` and metrics show it."""

    figures: Mapping[str, float]


@runtime_checkable
class Remembers(Protocol):
    """A policy that wants to know something after a failover; at most 4 KiB of plain values."""

    def memory(self) -> Mapping[str, Any]: ...

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Told once, before it decides. The times in it are another machine's."""
        ...


def claims(policy: ScalingPolicy) -> frozenset[type[Action]]:
    """Return the actions that a policy may want."""
    if isinstance(policy, Claims):
        return frozenset(policy.actions)
    return ACTIONS[policy.slot] - {Redirect}


# By name

_POLICIES: dict[Slot, dict[str, Callable[..., ScalingPolicy]]] = {slot: {} for slot in Slot}

P = TypeVar("P", bound=Callable[..., ScalingPolicy])


def scaling_policy(name: str) -> Callable[[P], P]:
    """Register a policy's class under a name, in the slot that it has."""

    if not name or set(name) & set(":,= "):
        raise ValueError(f"the name is {name!r}; allowed: letters, digits, - and _")

    def register(policy: P) -> P:
        slot = getattr(policy, "slot", None)
        if not isinstance(slot, Slot):
            raise ValueError(f"{name}: slot is {slot!r}; allowed: a Slot")
        _POLICIES[slot][name] = policy
        return policy

    return register


def scaling_names(slot: Slot) -> list[str]:
    return sorted(_POLICIES[slot])


def scaling_named(slot: Slot, text: str) -> ScalingPolicy:
    """Return a new policy: `name`, or `name:parameter=value,parameter=value`.

    Raises ValueError for names and parameters that do not exist, saying which do.
    """
    # Here, since every policy imports this module.
    import sublet.scheduler.scaling.policies  # noqa: F401

    name, _, given = text.partition(":")
    name = name.strip()
    policy = _POLICIES[slot].get(name)
    if policy is None:
        allowed = ", ".join(scaling_names(slot))
        raise ValueError(f"the policy for {slot.value} is {text!r}; allowed: {allowed}")
    parameters = signature(policy).parameters.values()
    known = {each.name: each for each in parameters if each.kind is not Parameter.VAR_KEYWORD}
    is_open = len(known) < len(parameters)
    arguments: dict[str, object] = {}
    for part in filter(None, (each.strip() for each in given.split(","))):
        key, equals, value = (each.strip() for each in part.partition("="))
        found = next((each for each in (key.lower(), f"{key.lower()}_ms") if each in known), None)
        if equals and found is not None:
            arguments[found] = _value(name, key, value, found, known[found].default)
        elif equals and key and is_open:
            arguments[key] = _number(name, key, value, float)
        else:
            allowed = ", ".join(known) or "none"
            raise ValueError(f"{name} has no parameter {key!r}; allowed: {allowed}")
    return policy(**arguments)


def _value(policy: str, key: str, text: str, name: str, default: object) -> object:
    """Return a parameter as the type that its default has."""
    if isinstance(default, bool):
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise ValueError(f"{policy}: {key} is {text!r}; allowed: true, false")
    if name.endswith("_ms") and not isinstance(default, str):
        try:
            return milliseconds(text if not _is_number(text) else float(text))
        except ValueError as error:
            raise ValueError(f"{policy}: {key}: {error}") from None
    if isinstance(default, int | float):
        return _number(policy, key, text, type(default))
    return text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(policy: str, key: str, text: str, kind: type[int] | type[float]) -> int | float:
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"{policy}: {key} is {text!r}; allowed: {what}") from None
