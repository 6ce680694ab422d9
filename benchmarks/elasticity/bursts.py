"""Bursts with short and long deadlines, simulated: what is late, and what does it cost?

    .venv/bin/python -m benchmarks.elasticity.bursts [--quick] [--keep] [--only predictive]

Bursts of Pareto-distributed heights, up to four times the usual load, six seconds long; results
are due after 50 ms or after 5 s. A worker starts in 0.5 s or in 5 s. A policy is dominated if
another has fewer misses and costs less.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from benchmarks.elasticity.keep import folder, verdict, write
from benchmarks.harness.tables import Grid
from sublet.runtime.simulation.reports.plot import new_figure, save_figure
from sublet.simulation import ElasticSimulation, Load, Scaling, Stage

RATE = "bursts 4000 16000 45s 6s 1.5"
DEADLINES = ("50ms", "5s")
STARTS = ("500ms", "5s")
POLICIES = ("reactive", "predictive", "laxity")
FIXED = (4, 6, 8)
SEEDS = (1, 2)
COLOURS = {"reactive": "#c0392b", "predictive": "#5a9e4b", "laxity": "#1b6ca8"}


def simulation(deadline: str, start: str, seed: int, seconds: int) -> ElasticSimulation:
    return ElasticSimulation(
        stages=[Stage("answer", "0.5ms", slo=deadline)],
        loads=[Load(target="answer", rate=RATE, until=f"{seconds}s")],
        scaling=Scaling(workers_min=2, workers_max=12, start=start, price_worker_hour=0.25),
        workers=4,
        seed=seed,
        # Fine where deadlines are: nothing shorter than a step is seen.
        step="10ms" if deadline == "50ms" else "50ms",
    )


def run(deadline: str, start: str, policy: str, seeds: Sequence[int], seconds: int) -> Any:
    late, cost = 0.0, 0.0
    for seed in seeds:
        chosen = simulation(deadline, start, seed, seconds).but(scaling=policy)
        if policy.startswith("fixed"):
            chosen = chosen.but(workers=int(policy.partition("=")[2]))
        report = chosen.run()
        late += report.late_share / len(seeds)
        cost += report.cost / len(seeds)
    found = {
        "deadline": deadline,
        "start": start,
        "policy": policy,
        "late": round(late, 6),
        "cost": round(cost, 5),
    }
    print(f"{deadline}, start {start}, {policy}: {late:.2%} late, cost {cost:.4f}", flush=True)
    return found


def dominated(each: dict[str, Any], others: Sequence[dict[str, Any]]) -> str:
    """Return who has fewer misses and costs less; empty if nobody."""
    better = [
        other["policy"]
        for other in others
        if other["late"] < each["late"] and other["cost"] < each["cost"]
    ]
    return ", ".join(better)


def grids(records: Sequence[dict[str, Any]]) -> list[Grid]:
    found = []
    for deadline, start in dict.fromkeys((each["deadline"], each["start"]) for each in records):
        some = [e for e in records if (e["deadline"], e["start"]) == (deadline, start)]
        rows = []
        for each in some:
            by = dominated(each, some)
            target = verdict(not by) if each["policy"] == "laxity" else ""
            rows.append(
                [
                    each["policy"],
                    by or "nobody",
                    target,
                    f"{each['late']:.2%}",
                    f"{each['cost']:.4f}",
                ]
            )
        title = f"Due after {deadline}, a worker starts in {start}"
        headings = ["policy", "better in both", "target", "late", "cost"]
        found.append(Grid(title, headings, rows, word_columns=3))
    return found


def plot(records: Sequence[dict[str, Any]], kept: bool) -> None:
    for suffix in (".svg", ".png"):
        path = folder(kept) / f"elasticity_bursts{suffix}"
        figure, axes = new_figure(path, len(STARTS), len(DEADLINES))
        for row, start in enumerate(STARTS):
            for column, deadline in enumerate(DEADLINES):
                axis = axes[row][column]
                for each in records:
                    if (each["deadline"], each["start"]) == (deadline, start):
                        colour = COLOURS.get(each["policy"], "#888888")
                        axis.scatter(each["cost"], 100 * each["late"], color=colour)
                        place = (each["cost"], 100 * each["late"])
                        axis.annotate(each["policy"], place, fontsize="small")
                axis.set_title(f"due after {deadline}, start {start}", fontsize="medium")
                axis.set_xlabel("cost")
                axis.set_ylabel("late, %")
                axis.grid(alpha=0.3)
        save_figure(figure, path)


NOTE = (
    "Simulated; no figure depends on the machine. 4,000 messages a second (two workers' work), "
    f"and bursts `{RATE}`; 900 s, mean of two seeds; 2 to 12 workers. `better in both`: policies "
    "with fewer misses that also cost less, fixed numbers of workers included, which would have to "
    "be known beforehand."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one seed, 200 s")
    parser.add_argument("--keep", action="store_true", help="replace the kept results")
    parser.add_argument(
        "--only", default="", help="a policy that has changed: all others as they were kept"
    )
    arguments = parser.parse_args()
    known = {}
    if arguments.only:
        for each in json.loads((folder(True) / "elasticity_bursts.json").read_text("utf-8")):
            if each["policy"] != arguments.only:
                known[each["deadline"], each["start"], each["policy"]] = each
    seeds, seconds = (SEEDS[:1], 200) if arguments.quick else (SEEDS, 900)
    policies = [*(f"fixed:workers={count}" for count in FIXED), *POLICIES]
    records = [
        known.get((deadline, start, policy)) or run(deadline, start, policy, seeds, seconds)
        for deadline in DEADLINES
        for start in STARTS
        for policy in policies
    ]
    plot(records, arguments.keep)
    title = "Bursts with short and long deadlines, simulated"
    write("elasticity_bursts", title, NOTE, grids(records), records, arguments.keep)


if __name__ == "__main__":
    main()
