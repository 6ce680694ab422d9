"""Stela's metric: how much of an application's throughput a function can change.

The effective throughput percentage (ETP) of a function is the share of all sinks' throughput that
it reaches through functions that are not congested. Each sink counts once: Stela's own listing
counts it once a path, which exceeds 100 % where paths meet again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sublet.scheduler.scaling.signals import OUTSIDE, REST
from sublet.scheduler.scaling.view import ClusterView

CONGESTED = 1.2
"""More input than so many times what is processed is congestion."""


@dataclass(slots=True)
class Operator:
    """A function in the graph of all."""

    name: str
    arrived: float
    """Messages a second that come."""
    done: float
    """Messages a second that are processed."""
    sent: dict[str, float] = field(default_factory=dict)
    """Child to messages a second."""
    out: float = 0.0
    """Messages a second that leave the application here."""
    instances: int = 1
    is_source: bool = False

    @property
    def throughput(self) -> float:
        """As a sink; 0 for what is none."""
        return self.out if self.out > 0 else 0.0 if self.sent else self.done


def operators_of(cluster: ClusterView) -> dict[str, Operator]:
    """Return the graph that messages have drawn."""
    owners: dict[str, set[str]] = {}
    for partition, worker in cluster.placement.items():
        owners.setdefault(partition.rpartition("/")[0], set()).add(worker)
    return {
        name: Operator(
            name,
            function.arrived_all,
            function.done_all,
            {
                child: rate
                for child, rate in function.sent.items()
                if child in cluster.functions and child not in (OUTSIDE, REST, name)
            },
            function.sent.get(OUTSIDE, 0.0),
            max(1, len(owners.get(name, ()))),
            function.arrived.get(OUTSIDE, 0.0) > 0,
        )
        for name, function in cluster.functions.items()
    }


def congested(operators: Mapping[str, Operator], rate: float = CONGESTED) -> set[str]:
    return {name for name, each in operators.items() if each.arrived > rate * each.done}


def etps(operators: Mapping[str, Operator], among: set[str]) -> dict[str, float]:
    """Return each function's ETP, from 0 to 1; `among`: those that are congested."""
    total = sum(each.throughput for each in operators.values())
    found = {}
    for name in operators:
        reached, pending = {name}, [name]
        while pending:
            for child in operators[pending.pop()].sent:
                if child not in reached and child not in among and child in operators:
                    reached.add(child)
                    pending.append(child)
        through = sum(operators[each].throughput for each in reached)
        found[name] = through / total if total else 0.0
    return found


@dataclass(frozen=True, slots=True)
class Choice:
    """One instance that is given, and why."""

    function: str
    etp: float
    was_congested: bool


def scale_out(
    operators: Mapping[str, Operator],
    slots: int,
    *,
    rate: float = CONGESTED,
    allowed: Mapping[str, int] | None = None,
) -> list[Choice]:
    """Return to whom so many new instances go, one after the other, each projected before the next.

    `allowed`: how many more a function can take; any, if it is not named.
    """
    graph = {name: replace(each, sent=dict(each.sent)) for name, each in operators.items()}
    left = dict(allowed or {})
    choices = []
    for _ in range(slots):
        slow = congested(graph, rate)
        values = etps(graph, slow)
        able = [name for name in graph if left.get(name, 1) > 0]
        targets = [name for name in able if name in slow] or [
            name for name in able if graph[name].is_source
        ]
        if not targets:
            break
        chosen = min(targets, key=lambda name: (-values[name], -graph[name].arrived, name))
        choices.append(Choice(chosen, values[chosen], chosen in slow))
        if chosen in left:
            left[chosen] -= 1
        _project(graph, chosen)
    return choices


def _project(graph: Mapping[str, Operator], name: str) -> None:
    """Give a function one instance more: it processes, and sends, so much more."""
    operator = graph[name]
    factor = (operator.instances + 1) / operator.instances
    operator.instances += 1
    if operator.is_source and operator.arrived <= CONGESTED * operator.done:
        # Nobody is congested: more can come in.
        operator.arrived *= factor
    # No more is processed than comes.
    factor = min(factor, operator.arrived / operator.done) if operator.done else 1.0
    factor = max(1.0, factor)
    operator.done *= factor
    operator.out *= factor
    for child, sent in operator.sent.items():
        operator.sent[child] = sent * factor
        if child in graph:
            graph[child].arrived += sent * (factor - 1)


def worker_etps(cluster: ClusterView, workers: Sequence[str]) -> dict[str, float]:
    """Return, by worker, the sum of the ETPs of the functions that it has."""
    operators = operators_of(cluster)
    values = etps(operators, congested(operators))
    sums = dict.fromkeys(workers, 0.0)
    seen: set[tuple[str, str]] = set()
    for partition, worker in cluster.placement.items():
        function = partition.rpartition("/")[0]
        if worker in sums and (worker, function) not in seen:
            seen.add((worker, function))
            sums[worker] += values.get(function, 0.0)
    return sums
