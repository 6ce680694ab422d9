"""What decisions cost: CPU of one second of the controller, at 128 and 1,000 simulated workers.

    .venv/bin/python -m benchmarks.elasticity.decisions [--keep]

Samples of all workers are taken in beforehand; measured is `tick`, in which the controller closes a
second, and asks each policy. Process CPU, so that a busy machine matters little; p50 and the worst
of 75 seconds, garbage collection off while measuring, as a share of what is allowed.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from benchmarks.elasticity.keep import verdict, write
from benchmarks.harness import machine
from benchmarks.harness.tables import Grid
from sublet.scheduler.scaling.actions import Slot
from sublet.scheduler.scaling.controller import Controller
from sublet.scheduler.scaling.effects import WritePlan
from sublet.scheduler.scaling.settings import ScalingSettings
from sublet.scheduler.scaling.signals import FunctionSignals, WorkerSample
from sublet.scheduler.scaling.view import FunctionFacts, Slo, WorkerFacts

WORKERS = (128, 1_000)
FUNCTIONS = 16
PARTITIONS_EACH = 4
"""Of a function, for each worker; at most 4,096."""
SECONDS = 75
ALLOWED_MS = 50.0
POLICIES: Mapping[Slot, tuple[str, ...]] = {
    Slot.WORKERS: ("reactive", "predictive:season=60s", "laxity"),
    Slot.PLACEMENT: ("balance", "colocate", "stela"),
    Slot.SHARES: ("henge:observe=2s,warmup=4s,settle=4s",),
}


def names() -> list[str]:
    return [f"tenant{number % 4}/f{number:02}" for number in range(FUNCTIONS)]


class Cluster:
    """Workers that tell what a busy cluster would, without running it."""

    def __init__(self, workers: int, policies: Mapping[Slot, str]) -> None:
        self.count = workers
        partitions = min(4_096, PARTITIONS_EACH * workers) // FUNCTIONS
        settings = ScalingSettings(workers_min=1, workers_max=2 * workers)
        slos = {f"tenant{number}": Slo(latency_ms=50) for number in range(4)}
        self.controller = Controller(settings, policies, slos=slos)
        # The last tenth is new, and has nothing.
        old = workers - workers // 10
        self.placement = {
            f"{name}/{index}": f"w{(index * FUNCTIONS + place) % old:04}"
            for place, name in enumerate(names())
            for index in range(partitions)
        }
        self.members = {f"w{n:04}": WorkerFacts(id=f"w{n:04}") for n in range(workers)}
        self.facts = {
            name: FunctionFacts(
                name=name, partitions=partitions, tenant=name.partition("/")[0], slo_ms=100
            )
            for name in names()
        }
        self.owned: dict[str, dict[str, list[int]]] = {}
        for partition, worker in self.placement.items():
            name, _, index = partition.rpartition("/")
            self.owned.setdefault(worker, {}).setdefault(name, []).append(int(index))
        self.controller.topology(self.members, self.placement, self.facts, 0.0)
        self.controller.lead(1, None, 0.0, 1e12)
        self.carry_out(0.0)

    def sample(self, worker: str, second: int) -> WorkerSample:
        functions = []
        wave = 1 + 0.3 * ((second % 60) / 60)
        for name, indexes in self.owned.get(worker, {}).items():
            place = int(name[-2:])
            arrived = int(40 * wave * len(indexes))
            functions.append(
                FunctionSignals(
                    function=name,
                    tenant=name.partition("/")[0],
                    arrived={"" if place < 4 else names()[place - 4]: arrived},
                    done={"" if place < 4 else names()[place - 4]: arrived},
                    sent={names()[place + 4] if place < 12 else "": arrived},
                    waiting=5,
                    waiting_ms=10.0,
                    laxity_ms=30.0,
                    turn=[arrived, *([0] * 15)],
                    runs=arrived // 4,
                    fixed_ms=0.5,
                    message_ms=1.0,
                    loads={i: 0.05 * wave * (1 + (i * 7) % 5) for i in indexes},
                )
            )
        pairs = [
            (f"{one.function}/{index}", f"{other.function}/{number}", 20)
            for one, other in pairwise(functions)
            for index in list(one.loads)[:1]
            for number in list(other.loads)[:1]
        ]
        return WorkerSample(
            worker=worker,
            number=second + 1,
            interval_ms=1_000.0,
            utilisation=min(1.0, 0.6 * wave),
            functions=functions,
            laxity_ms=30.0,
            traffic=pairs,
        )

    def carry_out(self, now_ms: float) -> None:
        while effects := self.controller.take_effects():
            for effect in effects:
                if isinstance(effect, WritePlan):
                    self.controller.written(effect.plan.number, now_ms)

    def second(self, second: int) -> float:
        """Return the CPU of a second's decisions, in ms."""
        now_ms = 1_000.0 * (second + 1)
        for worker in self.members:
            self.controller.heard(self.sample(worker, second), now_ms)
        gc.disable()
        began = time.process_time()
        self.controller.tick(now_ms, 1e12 + now_ms)
        cpu_ms = 1_000 * (time.process_time() - began)
        gc.enable()
        self.carry_out(now_ms)
        return cpu_ms


def run(workers: int, slot: Slot, policy: str) -> dict[str, Any]:
    cluster = Cluster(workers, {slot: policy})
    costs = sorted(cluster.second(second) for second in range(SECONDS))
    status = cluster.controller.slots()[0]
    if status.failure:
        raise RuntimeError(f"{policy}: {status.failure}")
    found = {
        "workers": workers,
        "partitions": len(cluster.placement),
        "slot": slot.value,
        "policy": policy.partition(":")[0],
        "decisions": len(cluster.controller.decisions),
        "p50_ms": round(costs[len(costs) // 2], 2),
        "p95_ms": round(costs[int(0.95 * len(costs))], 2),
        "max_ms": round(costs[-1], 2),
    }
    print(f"{workers} workers, {policy}: p50 {found['p50_ms']} ms, max {found['max_ms']} ms")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--keep", action="store_true", help="replace the kept results")
    arguments = parser.parse_args()
    records = [
        run(workers, slot, policy)
        for workers in WORKERS
        for slot, policies in POLICIES.items()
        for policy in policies
    ]
    rows = [
        [
            f"{each['workers']:,}",
            each["policy"],
            f"{each['partitions']:,}",
            f"{each['p50_ms']:.1f}",
            f"{each['p95_ms']:.1f}",
            f"{each['max_ms']:.1f}",
            verdict(each["max_ms"] < ALLOWED_MS),
        ]
        for each in records
    ]
    headings = ["workers", "policy", "partitions", "p50 ms", "p95 ms", "max ms", "< 50 ms"]
    note = (
        f"CPU of the controller's `tick`, one policy at a time, {SECONDS} seconds of samples; "
        f"{FUNCTIONS} functions, a tenth of the workers new and empty. Machine: "
        f"{machine.describe().get('cpu_count')} cores, shared."
    )
    write(
        "elasticity_decisions",
        "What decisions cost",
        note,
        [Grid("CPU of one decision", headings, rows, word_columns=2)],
        records,
        arguments.keep,
    )


if __name__ == "__main__":
    main()
