"""Stela's metric: how much of an application's throughput a function can change.

The effective throughput percentage (ETP) of a function is the share of all sinks' throughput that
it reaches through functions that are not congested. Each sink counts once: Stela's own listing
counts it once a path, which exceeds 100 % where paths meet again.

Stela projects as if whoever is not congested had nothing to spare: the first instance that an
operator gets makes the next one look congested, and most of a new machine goes to operators that
could have done more all the time. Where it is known what a function could do, that is projected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sublet.scheduler.scaling.signals import OUTSIDE, REST
from sublet.scheduler.scaling.view import ClusterView

CONGESTED = 1.2
"""More input than so many times what is processed is congestion."""
IDLE_MIN = 0.1
"""Nobody is projected to do more than ten times what it does."""
PROJECTED_MAX = 4
"""Of a projection, how often each function has its turn: functions may call each other in a circle,
and many paths may lead to one."""


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
    capacity: float = 0.0
    """Messages a second that it could process as it is; 0: not known, no more than it does."""

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
            _capacity(cluster, function.done_all, owners.get(name, ())),
        )
        for name, function in cluster.functions.items()
    }


def _capacity(cluster: ClusterView, done: float, owners: Collection[str]) -> float:
    """Return what a function could process if its workers were busy all the time."""
    busy = [cluster.workers[each].utilisation for each in owners if each in cluster.workers]
    return done / max(IDLE_MIN, sum(busy) / len(busy)) if busy else done


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
    projected: set[str] = set()
    left = dict(allowed or {})
    choices = []
    for _ in range(slots):
        slow = {name for name, each in graph.items() if _is_slow(each, rate, name in projected)}
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
        _project(graph, chosen, projected)
    return choices


def _is_slow(operator: Operator, rate: float, is_projected: bool) -> bool:
    # What was measured has noise in it, what was projected has none.
    if is_projected and operator.capacity:
        return operator.arrived > operator.capacity * (1 + 1e-9)
    return operator.arrived > rate * operator.done


def _project(graph: Mapping[str, Operator], name: str, projected: set[str]) -> None:
    """Give a function one instance more: it processes, and sends, so much more."""
    operator = graph[name]
    factor = (operator.instances + 1) / operator.instances
    operator.instances += 1
    if operator.is_source and operator.arrived <= CONGESTED * operator.done:
        # Nobody is congested: more can come in.
        operator.arrived *= factor
    could = max(operator.capacity, operator.done) * factor
    if operator.capacity:
        operator.capacity = could
        projected.add(name)
    pending = deque(_process(graph, name, could))
    for _ in range(PROJECTED_MAX * len(graph)):
        if not pending:
            break
        child = pending.popleft()
        projected.add(child)
        more = _process(graph, child, graph[child].capacity)
        pending.extend(each for each in more if each not in pending)


def _process(graph: Mapping[str, Operator], name: str, could: float) -> list[str]:
    """Let a function process what comes, as far as it could, and its children get it; return those
    whose capacity is known. The others stay as they are."""
    operator = graph[name]
    factor = min(operator.arrived, could) / operator.done if operator.done else 1.0
    if factor <= 1:
        return []
    operator.done *= factor
    operator.out *= factor
    children = []
    for child, sent in operator.sent.items():
        operator.sent[child] = sent * factor
        if child in graph:
            graph[child].arrived += sent * (factor - 1)
            if graph[child].capacity:
                children.append(child)
    return children


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
