"""Dirigo's experiments, simulated on 128 workers: who should run what, and where its state is.

    .venv/bin/python -m benchmarks.dirigo.simulated [--quick] [--only skew spikes] [--jobs 2]

Partitions, orders, leases and binding policies are the runtime's own code, on a virtual clock:
nothing here depends on how fast this machine is. Static binding is the paper's SBS, the direct
policies are its DBS, those that lend only what would be late its OOS. What the workloads are, and
which loads they have, stands in `benchmarks/dirigo/workloads.py`.

With `--keep`, the experiments that were run replace those in `results/dirigo_simulated.*`;
otherwise they go to `results/local/`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.dirigo.experiments import EXPERIMENTS, Case, run
from benchmarks.dirigo.show import show
from benchmarks.dirigo.workloads import SEED
from benchmarks.harness import machine


def run_all(cases: Sequence[Case], jobs: int) -> list[dict[str, Any]]:
    """Run cases side by side; return their results in the order of the cases."""
    results: dict[int, dict[str, Any]] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        pending = {pool.submit(run, case): number for number, case in enumerate(cases)}
        for done in as_completed(pending):
            number = pending[done]
            result = results[number] = done.result()
            leases = result["leases"]
            print(
                f"[{len(results)}/{len(cases)}] {result['experiment']}, {result['value']}, "
                f"{result['binding']}: p50 {result['p50_ms']:,.1f} ms, p99 {result['p99_ms']:,.1f} "
                f"ms, late {result['late']:.1%}, {leases['messages']:,} lent, "
                f"{result['fetches']:,} fetches ({result['cpu_s']:.1f} s)",
                flush=True,
            )
    return [results[number] for number in range(len(cases))]


def merged(kept: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return results with those experiments replaced that were run anew, in their usual order."""
    again = {each["experiment"] for each in new}
    order = [name.replace("-", " ") for name in EXPERIMENTS]
    both = [*(each for each in kept if each["experiment"] not in again), *new]
    return sorted(both, key=lambda each: order.index(each["experiment"]))


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    cases: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cases"]
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few cases: to try it, not to cite")
    parser.add_argument("--only", nargs="*", choices=list(EXPERIMENTS), help="these experiments")
    parser.add_argument("--policy", nargs="*", help="only these policies; never kept")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--keep", action="store_true", help="in results/, not in results/local/")
    parser.add_argument("--show", action="store_true", help="show the kept results again")
    options = parser.parse_args()
    if options.show:
        show(_read(machine.RESULTS / "dirigo_simulated.json"), machine.RESULTS)
        return
    if options.keep and (options.quick or options.policy):
        parser.error("only whole experiments are kept")
    started_s = time.perf_counter()
    cases = [
        case
        for name, make in EXPERIMENTS.items()
        if not options.only or name in options.only
        for case in make(options.quick)
        if not options.policy or case.binding in options.policy
    ]
    results = run_all(cases, max(1, options.jobs))
    directory = machine.RESULTS if options.keep else machine.LOCAL_RESULTS
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "dirigo_simulated.json"
    if options.keep:
        results = merged(_read(path), results)
    record = {"benchmark": "dirigo_simulated", "seed": SEED, "cases": results}
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    show(results, directory)
    print(f"{len(cases)} simulations in {time.perf_counter() - started_s:.0f} s; kept in {path}")


if __name__ == "__main__":
    main()
