"""Stela's experiments: which function gets the instances of a new machine?

    .venv/bin/python -m benchmarks.elasticity.stela [--keep]

First on a model of Storm with the authors' topologies and numbers (`storm.py`): one machine more,
whose instances go to operators in turn (`even`), by Stela's projection as printed, or by ours
(`scheduler.scaling.etp`, the code of the policy); the default adds no instances, it only moves
those that are there. `best` is the best of all allocations. Then PageLoad from eight machines to
four, and a chain on Sublet's own workers, as flows.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import inf
from statistics import mean
from typing import Any

from benchmarks.elasticity.keep import verdict, write
from benchmarks.elasticity.storm import (
    TOPOLOGIES,
    Topology,
    allocations,
    operators,
    placed,
    rates,
    scaled_in,
    throughput,
)
from benchmarks.harness.tables import Grid
from sublet.runtime.simulation.elastic.cluster import Flow, FlowCluster, Machines
from sublet.runtime.simulation.elastic.flow import FlowFunction
from sublet.scheduler.scaling.actions import Slot
from sublet.scheduler.scaling.controller import Controller
from sublet.scheduler.scaling.etp import Operator, congested, etps, scale_out
from sublet.scheduler.scaling.settings import ScalingSettings

BURNING = {
    "": "spouts and bolts sleep, as the authors' do",
    "bolts": "bolts work for as long",
    "all": "spouts and bolts work for as long",
}


def given(topology: Topology, seen: Mapping[str, Operator]) -> list[str]:
    """Return who gets the instances of one new machine."""
    allowed = {each.name: each.tasks - each.executors for each in topology.components}
    return [each.function for each in scale_out(seen, topology.slots, allowed=allowed)]


def run(topology: Topology, cores: float = inf) -> dict[str, Any]:
    machines = topology.machines
    executors = placed(topology, machines)
    done = rates(topology, executors, cores)
    seen = operators(topology, done)
    before = throughput(topology, done)
    names = [each.name for each in topology.components]

    def gain(chosen: Sequence[str]) -> float:
        more = [*executors, *((name, machines) for name in chosen)]
        return throughput(topology, rates(topology, more, cores)) / before - 1

    anew = rates(topology, placed(topology, machines + 1), cores)
    printed = {name: replace(each, capacity=0.0) for name, each in seen.items()}
    if cores < inf:
        # What an executor could do alone is not what its machine lets it do.
        seen = printed
    choices = {
        "even": [names[place % len(names)] for place in range(topology.slots)],
        "printed": given(topology, printed),
        "stela": given(topology, seen),
    }
    if cores == inf:
        choices["best"] = list(
            max(allocations(topology, topology.slots), key=lambda chosen: gain(list(chosen)))
        )
    found: dict[str, Any] = {
        "topology": topology.name,
        "machines": machines,
        "slots": topology.slots,
        "congested": sorted(congested(seen)),
        "given": choices,
        "before": round(before, 1),
        "default": round(throughput(topology, anew) / before - 1, 4),
        **{name: round(gain(chosen), 4) for name, chosen in choices.items()},
        "paper": topology.paper,
        "paper_over": topology.over,
    }
    found["over_default"] = round((1 + found["stela"]) / (1 + found["default"]) - 1, 4)
    print(f"{topology.name}, {cores:g} cores: {found['stela']:+.0%}", flush=True)
    return found


def scale_in(burning: str) -> dict[str, Any]:
    """PageLoad on eight machines of one core, an operator after the other; four have to go."""
    topology, cores = scaled_in(burning), 1.0
    names = [each.name for each in topology.components for _ in range(each.executors)]
    executors = [(name, place * 8 // len(names)) for place, name in enumerate(names)]
    done = rates(topology, executors, cores)
    before, seen = throughput(topology, done), operators(topology, done)
    slow = congested(seen)
    values = etps(seen, slow)

    def kept(left: Sequence[tuple[str, int]]) -> float:
        return throughput(topology, rates(topology, left, cores)) / before

    left, machines = list(executors), set(range(8))
    for _ in range(4):
        sums = {
            each: sum(values[name] for name, machine in left if machine == each)
            for each in machines
        }
        first, *others = sorted(machines, key=lambda each: (sums[each], each))
        machines.remove(first)
        homeless = [name for name, machine in left if machine == first]
        left = [each for each in left if each[1] != first]
        left += [(name, others[place % len(others)]) for place, name in enumerate(homeless)]
    chance = []
    for gone in combinations(range(8), 4):
        others = [each for each in range(8) if each not in gone]
        homeless = [name for name, machine in executors if machine in gone]
        stay = [each for each in executors if each[1] not in gone]
        chance.append(kept([*stay, *((name, others[at % 4]) for at, name in enumerate(homeless))]))
    found = {
        "burning": burning,
        "before": round(before, 1),
        "congested": sorted(slow),
        "stela": round(kept(left), 3),
        "random_mean": round(mean(chance), 3),
        "random_worst": round(min(chance), 3),
        "random_best": round(max(chance), 3),
    }
    print(f"scale-in: {found}", flush=True)
    return found


def sublet_chain(policy: str, workers: int, order: str) -> float:
    """Return results a second of an overloaded chain after one worker was added."""
    costs = {"parse": 0.2, "enrich": 0.6, "store": 0.4}
    names = list(costs)
    functions = [
        FlowFunction(
            name=f"a/{name}",
            cost_s=cost / 1000,
            partitions=16 * workers,
            sends=[(f"a/{names[place + 1]}", 1.0)] if place + 1 < len(names) else [],
            slo_s=1.0,
        )
        for place, (name, cost) in enumerate(costs.items())
    ]
    controller = Controller(
        ScalingSettings(workers_min=1, workers_max=workers + 1),
        {Slot.WORKERS: f"fixed:workers={workers + 1}", Slot.PLACEMENT: policy},
    )
    cluster = FlowCluster(
        functions,
        [Flow(function="a/parse", rate=lambda _: 1_300.0 * workers)],
        Machines(workers=workers, start_s=20.0),
        controller,
        order=order,
        step_s=0.1,
        queue_max=20_000,
    )
    moments = [cluster.second() for _ in range(120)]
    return mean(each.done for each in moments[-30:])


NOTE = (
    "Storm as a model: the authors' topologies, with executors, tasks and machines of the paper's "
    "table 2.1. An executor is a thread with a pace of its own, known from the authors' code where "
    "bolts sleep (PageLoad, Processing, network); in the others receiving and emitting a tuple "
    "take half a unit each, which is ours. The default adds no executors. `as printed`: "
    "Stela's projection, by which whoever is not congested is at its limit; `stela`: ours, which "
    "knows how busy executors are (Storm's `capacity`). `best`: of all allocations; no policy can "
    "exceed it. The second table lets executors also share the one core of a machine; "
    "spouts that never pause then take much of it, and adding a machine relieves all others. In "
    "the last table each worker is one core that runs whatever waits, as in Sublet."
)


def text(chosen: Sequence[str]) -> str:
    return ", ".join(f"{name} +{count}" for name, count in Counter(chosen).items())


def out_grids(records: Sequence[dict[str, Any]], cpu: Sequence[dict[str, Any]]) -> list[Grid]:
    rows = [
        [
            each["topology"],
            text(each["given"]["stela"]),
            f"{each['machines']} + 1",
            *(f"{each[name]:+.0%}" for name in ("even", "printed", "stela", "best")),
            f"{each['paper']:+.0%} over {each['paper_over']}",
            verdict(each["stela"] >= each["paper"]),
        ]
        for each in records
    ]
    headings = [
        "topology", "new instances by stela", "machines", "even", "as printed", "stela",
        "best", "paper", "target",
    ]  # fmt: skip
    cpu_rows = [
        [
            each["topology"],
            text(each["given"]["stela"]),
            *(f"{each[name]:+.0%}" for name in ("default", "even", "stela", "over_default")),
        ]
        for each in cpu
    ]
    cpu_headings = [
        "topology", "new instances", "default", "even", "stela", "stela over default",
    ]  # fmt: skip
    return [
        Grid("Scale-out by one machine: throughput over before", headings, rows, 2),
        Grid("The same, if a machine's cores are a limit, too", cpu_headings, cpu_rows, 2),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--keep", action="store_true", help="replace the kept results")
    arguments = parser.parse_args()
    records = [run(topology) for topology in TOPOLOGIES]
    # The others sleep, and leave their cores alone.
    cpu = [run(each, 1.0) for each in TOPOLOGIES[:3]]
    shrunk = [scale_in(burning) for burning in BURNING]
    flows = [
        {
            "workers": workers,
            "order": order,
            **{
                policy: round(sublet_chain(policy, workers, order), 1)
                for policy in ("even", "balance", "stela")
            },
        }
        for workers in (3, 6)
        for order in ("least-laxity", "arrival")
    ]
    shrunk_rows = [
        [
            BURNING[each["burning"]],
            f"{each['stela']:.0%} {verdict(each['stela'] >= 0.95)}",
            f"{each['random_mean']:.0%}",
            f"{each['random_worst']:.0%}",
            f"{each['random_best']:.0%}",
        ]
        for each in shrunk
    ]
    flow_rows = [
        [
            f"{each['workers']} + 1",
            str(each["order"]),
            *(f"{each[policy]:,.0f}" for policy in ("even", "balance", "stela")),
            f"{float(each['stela']) / float(each['even']) - 1:+.1%}",
        ]
        for each in flows
    ]
    write(
        "elasticity_stela",
        "Stela's experiments",
        NOTE,
        [
            *out_grids(records, cpu),
            Grid(
                "PageLoad, from eight machines to four: throughput of before",
                ["on one core a machine", "by the sum of ETPs", "any four: mean", "worst", "best"],
                shrunk_rows,
                word_columns=1,
            ),
            Grid(
                "Sublet's workers: an overloaded chain, results a second after one was added",
                ["workers", "order", "even", "balance", "stela", "stela over even"],
                flow_rows,
                word_columns=2,
            ),
        ],
        {"scale_out": records, "on_cores": cpu, "scale_in": shrunk, "flows": flows},
        arguments.keep,
    )


if __name__ == "__main__":
    main()
