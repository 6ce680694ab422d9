"""A model of Storm as Stela found it: executors are threads, each runs one operator, on machines.

An executor takes a time for each tuple and is never faster; what comes beyond that waits, and
nobody slows down because of it (no acknowledgements). Tuples are split evenly over an operator's
tasks, which executors share; every child gets a copy of all that its parent emits. Where machines'
cores are a limit, too, threads share them fairly.

The topologies are those of the authors' public code (storm-elasticity-topologies), in the numbers
of the paper's table 2.1. Bolts of the Yahoo and network topologies sleep a millisecond for each
character of a log line, and their lines are known, so what an instance can do is known. The
operators of the micro-benchmarks only pass tuples on: a tuple takes half a unit to receive and half
a unit to emit, the one constant that is ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement
from math import inf

from sublet.scheduler.scaling.etp import Operator

HOP_S = 20e-6
"""To receive a tuple, and to emit one, in topologies whose bolts sleep."""
PACE_S = 0.05
"""A spout of log lines sleeps so long after each."""
LINES = (28, 73, 121, 30, 6, 31, 10, 23)
"""Characters of the log lines that spouts choose from."""
CUT = tuple(int(0.8 * each) for each in LINES)
"""The same, after a bolt has cut them."""
SENTENCES = (28, 36, 30, 31, 23, 18, 5, 25, 16, 15, 10, 5, 37, 8, 12, 15, 20, 16, 13)
"""Of the network topology."""
LINE_S, CUT_S, SENTENCE_S = (
    sum(each) / len(each) / 1000 for each in (LINES, CUT, SENTENCES)
)  # fmt: skip
PARSED_S, FUNCTOR_S = 0.021, 0.016
""""small message failure" and what is left of it."""
ROUNDS = 300


@dataclass(frozen=True, slots=True)
class Component:
    name: str
    children: Sequence[str] = ()
    tuple_s: float = 0.0
    """What one tuple takes an executor."""
    executors: int = 4
    tasks: int = 8
    emits: float = 1.0
    """Tuples for each one."""
    is_spout: bool = False
    busy: float = 1.0
    """The part of its time in which it needs a core; the rest it sleeps."""


@dataclass(frozen=True, slots=True)
class Topology:
    name: str
    machines: int
    components: Sequence[Component]
    paper: float
    """What Stela gained in the paper, over the default."""
    over: str = "the default"
    by_name: Mapping[str, Component] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {each.name: each for each in self.components})

    @property
    def slots(self) -> int:
        return sum(each.executors for each in self.components) // self.machines

    @property
    def sinks(self) -> list[str]:
        return [each.name for each in self.components if not each.children]

    def parents(self, name: str) -> list[Component]:
        return [each for each in self.components if name in each.children]


def _passes(name: str, *children: str, spout: bool = False, executors: int) -> Component:
    unit_s = 0.001
    time_s = unit_s / 2 * ((not spout) + bool(children))
    return Component(name, children, time_s, executors, 2 * executors, is_spout=spout)


def _sleeps(name: str, sleep_s: float, *children: str, emits: float = 1.0) -> Component:
    hops_s = HOP_S * (1 + bool(children))
    whole_s = sleep_s + hops_s
    return Component(name, children, whole_s, emits=emits, busy=hops_s / whole_s)


def _lines(*children: str) -> Component:
    whole_s = PACE_S + HOP_S
    return Component("spout", children, whole_s, is_spout=True, busy=HOP_S / whole_s)


TOPOLOGIES = (
    Topology(
        "star", 4,
        (
            _passes("spout 1", "centre", spout=True, executors=2),
            _passes("spout 2", "centre", spout=True, executors=2),
            _passes("centre", "sink 1", "sink 2", executors=2),
            _passes("sink 1", executors=2),
            _passes("sink 2", executors=2),
        ),
        0.65,
    ),
    Topology(
        "linear", 6,
        (
            _passes("spout", "bolt 1", spout=True, executors=6),
            _passes("bolt 1", "bolt 2", executors=6),
            _passes("bolt 2", "sink", executors=6),
            _passes("sink", executors=6),
        ),
        0.45,
    ),
    Topology(
        "diamond", 6,
        (
            _passes("spout", "bolt 1", "bolt 2", "bolt 3", "bolt 4", spout=True, executors=4),
            *(_passes(f"bolt {number}", "sink", executors=4) for number in (1, 2, 3, 4)),
            _passes("sink", executors=4),
        ),
        1.20,
    ),
    Topology(
        "PageLoad", 7,
        (
            _lines("transform"),
            _sleeps("transform", LINE_S, "filter"),
            _sleeps("filter", CUT_S, "join", emits=0.8),
            _sleeps("join", 0.0, "filter 2"),
            _sleeps("filter 2", CUT_S, "aggregate", emits=0.8),
            _sleeps("aggregate", CUT_S, "sink"),
            _sleeps("sink", 0.0),
        ),
        0.80, "before",
    ),
    Topology(
        "Processing", 8,
        (
            _lines("transform"),
            _sleeps("transform", LINE_S, "filter", "join 2"),
            _sleeps("filter", CUT_S, "join 1", emits=0.8),
            _sleeps("join 1", 0.0, "sink 1"),
            _sleeps("sink 1", 0.0),
            _sleeps("join 2", CUT_S, "normalize"),
            _sleeps("normalize", 0.0, "sink 2"),
            _sleeps("sink 2", 0.0),
        ),
        0.80, "before",
    ),
    Topology(
        "network", 8,
        (
            Component("spout", ("parse",), HOP_S, is_spout=True),
            _sleeps("parse", 0.0, "failed", "succeeded"),
            # They sleep only for what they let pass: one of two.
            _sleeps("failed", SENTENCE_S / 2, "failure", emits=0.5),
            _sleeps("failure", SENTENCE_S, "aggregate"),
            _sleeps("aggregate", PARSED_S, "filter"),
            _sleeps("filter", PARSED_S, "functor"),
            _sleeps("functor", FUNCTOR_S, "join"),
            _sleeps("succeeded", SENTENCE_S / 2, "success", emits=0.5),
            _sleeps("success", SENTENCE_S, "join"),
            _sleeps("join", FUNCTOR_S, ),
        ),
        0.21,
    ),
)  # fmt: skip


def placed(topology: Topology, machines: int) -> list[tuple[str, int]]:
    """Return executors and their machines as Storm's scheduler places them: in turn."""
    named = sorted(topology.components, key=lambda each: each.name)
    executors = [each.name for each in named for _ in range(each.executors)]
    return [(name, place % machines) for place, name in enumerate(executors)]


def rates(
    topology: Topology, executors: Sequence[tuple[str, int]], cores: float = inf
) -> dict[str, float]:
    """Return what each operator does in a second, once all has settled; `cores`: of a machine."""
    names = [name for name, _ in executors]
    parts = _parts(topology, names)
    machines = {machine for _, machine in executors}
    limits = [1 / topology.by_name[name].tuple_s for name in names]
    core_s = [topology.by_name[name].busy * topology.by_name[name].tuple_s for name in names]
    parents = {each.name: topology.parents(each.name) for each in topology.components}
    rate, done = [0.0] * len(names), dict.fromkeys(topology.by_name, 0.0)
    rounds = len(topology.components) if cores == inf else ROUNDS
    for _ in range(rounds):
        wanted = [
            min(limit, inf if topology.by_name[name].is_spout else part * sum(
                each.emits * done[each.name] for each in parents[name]
            ))
            for name, part, limit in zip(names, parts, limits, strict=True)
        ]  # fmt: skip
        if cores < inf:
            for machine in machines:
                here = [place for place, (_, its) in enumerate(executors) if its == machine]
                _share(wanted, core_s, here, cores)
            wanted = [(one + other) / 2 for one, other in zip(rate, wanted, strict=True)]
        rate = wanted
        done = dict.fromkeys(topology.by_name, 0.0)
        for name, each in zip(names, rate, strict=True):
            done[name] += each
    return done


def _parts(topology: Topology, names: Sequence[str]) -> list[float]:
    """Return the part of its operator's tuples that each executor gets, by its tasks."""
    counts = {name: names.count(name) for name in topology.by_name}
    seen = dict.fromkeys(topology.by_name, 0)
    parts = []
    for name in names:
        tasks = max(topology.by_name[name].tasks, counts[name])
        base, more = divmod(tasks, counts[name])
        parts.append((base + (seen[name] < more)) / tasks)
        seen[name] += 1
    return parts


def _share(wanted: list[float], core_s: Sequence[float], here: list[int], cores: float) -> None:
    """Cut down what executors of one machine do to what its cores can do; those who want least get
    it first."""
    left = cores
    here.sort(key=lambda place: wanted[place] * core_s[place])
    for count, place in zip(range(len(here), 0, -1), here, strict=True):
        use = min(wanted[place] * core_s[place], left / count)
        wanted[place] = use / core_s[place]
        left -= use


def operators(topology: Topology, done: Mapping[str, float]) -> dict[str, Operator]:
    """Return what Stela sees, and what Storm's own `capacity` says: how busy executors are."""
    found = {}
    for each in topology.components:
        arrived = sum(parent.emits * done[parent.name] for parent in topology.parents(each.name))
        found[each.name] = Operator(
            each.name,
            done[each.name] if each.is_spout else arrived,
            done[each.name],
            dict.fromkeys(each.children, each.emits * done[each.name]),
            0.0,
            each.executors,
            each.is_spout,
            each.executors / each.tuple_s,
        )
    return found


def throughput(topology: Topology, done: Mapping[str, float]) -> float:
    return sum(done[name] for name in topology.sinks)


def allocations(topology: Topology, slots: int) -> Iterator[tuple[str, ...]]:
    """Yield all ways to give new instances to operators, none more than it has tasks."""
    names = [each.name for each in topology.components]
    room = {each.name: each.tasks - each.executors for each in topology.components}
    for chosen in combinations_with_replacement(names, slots):
        if all(chosen.count(name) <= room[name] for name in set(chosen)):
            yield chosen


def scaled_in(burning: str = "") -> Topology:
    """PageLoad as in the paper's scale-in: 15 executors and tasks an operator. `burning`: "bolts",
    or "all", work where the authors' code sleeps."""
    (pageload,) = (each for each in TOPOLOGIES if each.name == "PageLoad")
    components = [
        replace(
            each,
            executors=15,
            tasks=15,
            busy=1.0 if burning == "all" or (burning and not each.is_spout) else each.busy,
        )
        for each in pageload.components
    ]
    return replace(pageload, machines=8, components=components)
