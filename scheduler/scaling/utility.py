"""Henge's measures: what a tenant's latency and processed share are worth to it.

Juice is the share of a tenant's input that reaches its sinks. A function's juice is that of its
parents, times what it executed of theirs over all that they sent, to all their children; clients
are the source, with a juice of 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sublet.scheduler.scaling.signals import OUTSIDE
from sublet.scheduler.scaling.view import ClusterView, FunctionView, Slo

CATCH_UP_S = 30.0
"""Within which what waits should be done."""
ROUNDS_MAX = 64
"""Of summing up juice where functions call each other in a circle."""


@dataclass(frozen=True, slots=True)
class TenantState:
    """How a tenant fares."""

    tenant: str
    latency_ms: float
    juice: float
    utility: float
    """From 0 to the priority of its SLO."""
    best: float
    """What its utility would be if it met its SLO."""
    congestion: float
    """By how much it misses: 1 and less is none."""
    load: float
    """Workers that it would need to keep up."""
    need: float
    """The same, and to do in a while what waits."""


def tenants_of(cluster: ClusterView) -> dict[str, TenantState]:
    """Return how each tenant with an SLO fares, by the last seconds."""
    functions: dict[str, dict[str, FunctionView]] = {}
    for name, function in cluster.functions.items():
        functions.setdefault(function.facts.tenant, {})[name] = function
    return {
        tenant: state_of(tenant, functions.get(tenant, {}), slo)
        for tenant, slo in cluster.slos.items()
    }


def state_of(tenant: str, functions: Mapping[str, FunctionView], slo: Slo) -> TenantState:
    latency_ms, juice = latency_of(functions), juice_of(functions)
    if slo.latency_ms is not None:
        congestion = latency_ms / slo.latency_ms
    else:
        assert slo.juice is not None
        congestion = slo.juice / juice if juice > 0 else 10.0
    utility = slo.priority * min(1.0, 1.0 / congestion) if congestion > 0 else slo.priority
    load_ms = sum((each.arrived_all + each.refused) * each.cost_ms for each in functions.values())
    waiting_ms = sum(each.waiting_ms for each in functions.values())
    load = load_ms / 1000
    need = load + waiting_ms / 1000 / CATCH_UP_S
    return TenantState(tenant, latency_ms, juice, utility, slo.priority, congestion, load, need)


def latency_of(functions: Mapping[str, FunctionView]) -> float:
    """Return how long the longest way through a tenant's functions takes, by the 95th percentiles
    of their turns."""

    def way(name: str, visited: frozenset[str]) -> float:
        function = functions[name]
        further = [
            way(child, visited | {name})
            for child, sent in function.sent.items()
            if sent > 0 and child in functions and child not in visited and child != name
        ]
        return function.turn_ms + max(further, default=0.0)

    return max((way(name, frozenset()) for name in functions), default=0.0)


def juice_of(functions: Mapping[str, FunctionView]) -> float:
    """Return the share of a tenant's input that is processed; 1 if nothing comes."""
    given = sum(each.arrived.get(OUTSIDE, 0.0) + each.refused for each in functions.values())
    if given <= 0:
        return 1.0
    sent = {
        name: sum(rate for child, rate in each.sent.items() if child in functions)
        for name, each in functions.items()
    }
    juice = dict.fromkeys(functions, 0.0)
    for _ in range(min(len(functions) + 1, ROUNDS_MAX)):
        juice = {
            name: each.done.get(OUTSIDE, 0.0) / given
            + sum(
                juice[parent] * done / sent[parent]
                for parent, done in each.done.items()
                if parent in functions and sent[parent] > 0
            )
            for name, each in functions.items()
        }
    sinks = [name for name in functions if sent[name] <= 0]
    return min(1.0, sum(juice[name] for name in sinks)) if sinks else 1.0
