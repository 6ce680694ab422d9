"""How many message hops a second of one core's time the simulator makes, at 128 workers.

A hop is a message executed at a partition, with its commit. As in the real thing, messages travel
and run in batches, and most of what a simulation costs is for each batch: so the figure is given
for several sizes, and with the mean size that runs really had. In `keyed` cases a batch stays
together through three stages; in `shuffled` ones every message of it goes to another key, so that
it falls apart into as many batches as there are workers that it goes to.

`hops_per_s` counts the process's own CPU time, which does not depend on who else is busy;
`hops_per_wall_s` is what somebody waits for. Keeps results/simulator_speed.jsonl.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from benchmarks.harness import machine
from sublet.simulation import EvenKeys, Load, OneKey, Simulation, Stage, To

SEED = 7
WORKERS = 128
SOURCES = 64
ROUNDS = 3
SIZES = {"keyed": (1, 5, 15, 25, 50, 100), "shuffled": (100,)}


def scenario(kind: str, batch: int, virtual_ms: float) -> Simulation:
    """Return a cluster that is busy, and not overloaded."""
    keys = EvenKeys(10_000) if kind == "shuffled" else None
    return Simulation(
        stages=[
            Stage("parse", "0.1ms + 10us", sends=[To("enrich", keys=keys)]),
            Stage("enrich", "0.1ms + 10us", sends=[To("count", keys=keys)]),
            Stage("count", "50us + 10us", state_bytes=512),
        ],
        loads=[
            Load(
                target="parse",
                name=f"load {number}",
                rate=batch * 500,
                batch=batch,
                keys=OneKey(f"k{number}"),
                deadline="200ms",
                until=virtual_ms,
            )
            for number in range(SOURCES)
        ],
        workers=WORKERS,
        seed=SEED,
    )


def measure(kind: str, batch: int, virtual_ms: float) -> dict[str, float | str]:
    simulation = scenario(kind, batch, virtual_ms)
    rates, wall_rates, hashes = [], [], set()
    for _ in range(ROUNDS):
        began_s = time.process_time()
        report = simulation.run()
        rates.append(report.hops / (time.process_time() - began_s))
        wall_rates.append(report.hops_per_wall_s)
        hashes.add(report.trace_hash)
        assert report.open == 0
    assert len(hashes) == 1, "the same seed told two stories"
    runs = sum(each.runs for each in report.functions.values())
    return {
        "benchmark": "simulator_speed",
        "case": kind,
        "batch_sent": batch,
        "batch_run_mean": round(report.hops / runs, 1),
        "workers": WORKERS,
        "hops": report.hops,
        "hops_per_s": round(statistics.median(rates)),
        "hops_per_wall_s": round(statistics.median(wall_rates)),
        "runs_per_s": round(statistics.median(rates) * runs / report.hops),
        "trace_hash": report.trace_hash,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--virtual-ms", type=float, default=200.0, help="simulated in each round")
    parser.add_argument("--keep", action="store_true", help="in results/simulator_speed.jsonl")
    asked = parser.parse_args()
    scenario("keyed", 5, 20).run()  # warm-up
    lines = []
    for kind, sizes in SIZES.items():
        for batch in sizes:
            virtual_ms = asked.virtual_ms / (10 if kind == "shuffled" else 1)
            line = {**measure(kind, batch, virtual_ms), **machine.describe()}
            lines.append(json.dumps(line))
            print(lines[-1], flush=True)
    if asked.keep:
        path = machine.RESULTS / "simulator_speed.jsonl"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
