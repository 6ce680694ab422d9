"""Styx's autoscaling experiment, simulated: how many workers, what do they cost, what waits?

    .venv/bin/python -m benchmarks.elasticity.styx [--quick] [--keep] [--only predictive]

A cosine of 0 to 14,000 messages a second, three cycles of 300 s, 4 to 10 workers; then steps, an
irregular load, a file; then all of it at 12.8 times the size with 40 to 128 workers. One worker
does 1,852 messages a second, so that nine carry the peak at 85 % utilisation. Controller and
policies are the runtime's own; messages are amounts (`sublet.simulation.ElasticSimulation`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.elasticity.ideal import by_formula, cheapest
from benchmarks.elasticity.keep import folder, verdict, write
from benchmarks.elasticity.loads import CYCLE_S, SECONDS, loads
from benchmarks.harness.tables import Grid
from sublet.simulation import ElasticReport, ElasticSimulation, Load, Scaling, Stage, plot_elastic

COST_MS = 0.54
UTILISATION = 0.85
PRICE_HOUR = 0.25
BACKLOG_END_MAX = 30_000
SEED = 1
POLICIES = ("reactive", "predictive:season=300s", "predictive", "laxity:season=300s", "laxity")
STARTS_S = (0.5, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class Size:
    name: str
    factor: float
    least: int
    most: int
    static: int
    """Workers that carry the peak at 85 %."""
    step: str


SMALL = Size("4 to 10 workers", 1.0, 4, 10, 9, "50ms")
LARGE = Size("40 to 128 workers", 12.8, 40, 128, 115, "200ms")


def simulation(size: Size, load: str, start_s: float, seconds: int) -> ElasticSimulation:
    rate = loads()[load]
    steps = [(1000.0 * t, size.factor * rate(t + 0.5)) for t in range(seconds)]
    return ElasticSimulation(
        stages=[Stage("transfer", f"{COST_MS}ms", slo="1s", partitions=16 * size.most)],
        loads=[Load(target="transfer", rate=steps, until=f"{seconds}s")],
        scaling=Scaling(
            workers_min=size.least,
            workers_max=size.most,
            start=f"{start_s}s",
            moves_max=max(4, size.most // 8),
            price_worker_hour=PRICE_HOUR,
        ),
        seed=SEED,
        step=size.step,
    )


def in_workers(size: Size, load: str, seconds: int) -> list[float]:
    rate = loads()[load]
    return [size.factor * rate(t + 0.5) * COST_MS / 1000 for t in range(seconds)]


def record(
    report: ElasticReport, size: Size, load: str, start_s: float, ideals: dict[str, float]
) -> dict[str, Any]:
    peaks = [
        max(each.backlog for each in report.moments[at : at + CYCLE_S])
        for at in range(0, len(report.moments), CYCLE_S)
    ]
    return {
        "size": size.name,
        "load": load,
        "start_s": start_s,
        "policy": report.policy,
        "worker_seconds": round(report.worker_seconds, 1),
        "cost": round(report.cost, 4),
        "of_ideal": round(report.worker_seconds / ideals["formula"], 4),
        "of_ideal_with_starts": round(report.worker_seconds / ideals["starts"], 4),
        "of_static": round(report.worker_seconds / ideals["static"], 4),
        "backlog_peaks": [round(each) for each in peaks],
        "backlog_end": round(report.backlog_end),
        "late": round(report.late_share, 6),
        "p99_ms": round(report.latency_ms(0.99), 1),
        "above_s": above(report, ideals["schedule"]),  # type: ignore[arg-type]
        "steps": report.steps,
    }


def above(report: ElasticReport, ideal: Sequence[int]) -> int:
    """Return for how many seconds together there were more than one worker above the ideal, from
    the second cycle on."""
    longest = now = 0
    for moment, count in list(zip(report.moments, ideal, strict=True))[CYCLE_S:]:
        now = now + 1 if moment.workers > max(count + 1, count * 1.1) else 0
        longest = max(longest, now)
    return longest


def run_load(
    size: Size,
    load: str,
    start_s: float,
    policies: Sequence[str],
    seconds: int,
    kept: bool,
    known: Mapping[tuple[str, str, float, str], dict[str, Any]],
) -> list[dict[str, Any]]:
    """`known`: records that need not be found again."""
    in_all = in_workers(size, load, seconds)
    schedule = by_formula(in_all, size.least, size.most, UTILISATION)
    starts, _ = cheapest(in_all, size.least, size.most, utilisation=UTILISATION, start_s=start_s)
    waiting_s = BACKLOG_END_MAX * size.factor * COST_MS / 1000 if size is SMALL else 0.0
    barest, _ = cheapest(in_all, size.least, size.most, start_s=start_s, backlog_max=waiting_s)
    ideals: dict[str, Any] = {
        "formula": float(sum(schedule)),
        "schedule": schedule,
        "starts": starts,
        "barest": barest,
        "static": float(size.static * seconds),
    }
    records, reports = [], {}
    base = simulation(size, load, start_s, seconds)
    is_plotted = start_s == 10.0 and size is SMALL
    for policy in policies:
        before = known.get((size.name, load, start_s, policy))
        if before is not None and not (is_plotted and policy in SHOWN):
            records.append(before)
            continue
        chosen = base.but(scaling=policy)
        if policy.startswith("fixed"):
            chosen = chosen.but(workers=int(policy.partition("=")[2]))
        report = reports[policy] = chosen.run()
        found = record(report, size, load, start_s, ideals) | {
            "ideal": ideals["formula"],
            "ideal_with_starts": starts,
            "ideal_barest": barest,
        }
        records.append(found)
        print(
            f"{size.name}, {load}, start {start_s:g} s, {policy}: {found['of_ideal']:.1%} of the "
            f"ideal, backlog {found['backlog_peaks']}, late {report.late_share:.2%} "
            f"({report.wall_s:.1f} s)",
            flush=True,
        )
    if is_plotted:
        shown = {name: each for name, each in reports.items() if name in SHOWN}
        for suffix in (".svg", ".png") if load == "cosine" else (".png",):
            path = folder(kept) / f"elasticity_styx_{load}{suffix}"
            plot_elastic(shown, path, schedule)
    return records


SHOWN = ("reactive", "predictive:season=300s", "laxity")


# Tables


def grids(records: Sequence[dict[str, Any]]) -> list[Grid]:
    found = [targets(records)]
    for size, load, start_s in dict.fromkeys(
        (each["size"], each["load"], each["start_s"]) for each in records
    ):
        some = [
            each
            for each in records
            if (each["size"], each["load"], each["start_s"]) == (size, load, start_s)
        ]
        rows = [
            [
                each["policy"],
                f"{each['worker_seconds']:,.0f}",
                f"{each['cost']:.3f}",
                f"{each['of_ideal'] - 1:+.1%}",
                f"{each['of_ideal_with_starts'] - 1:+.1%}",
                f"{each['of_static'] - 1:+.1%}",
                ", ".join(f"{peak:,}" for peak in each["backlog_peaks"]),
                f"{each['backlog_end']:,}",
                f"{each['late']:.2%}",
                f"{each['p99_ms']:,.0f}",
                f"{each['above_s']}",
            ]
            for each in some
        ]
        first = some[0]
        title = (
            f"{load}, {size}, a worker starts in {start_s:g} s (ideal {first['ideal']:,.0f} "
            f"worker-seconds, {first['ideal_with_starts']:,.0f} with starts, at least "
            f"{first['ideal_barest']:,.0f} at 100 %)"
        )
        headings = [
            "policy", "worker-seconds", "cost", "over ideal", "over ideal with starts",
            "over static", "peak backlog by cycle", "at the end", "late", "p99 ms",
            "s above ideal + 1",
        ]  # fmt: skip
        found.append(Grid(title, headings, rows, word_columns=1))
    return found


def targets(records: Sequence[dict[str, Any]]) -> Grid:
    def of(policy: str, start_s: float, size: Size = SMALL) -> dict[str, Any] | None:
        keys = (size.name, "cosine", start_s, policy)
        return next(
            (
                each
                for each in records
                if (each["size"], each["load"], each["start_s"], each["policy"]) == keys
            ),
            None,
        )

    rows = []
    for size in (SMALL, LARGE):
        for start_s in STARTS_S:
            reactive = of("reactive", start_s, size)
            for policy in ("reactive", "predictive:season=300s", "laxity:season=300s"):
                each = of(policy, start_s, size)
                if each is None or reactive is None:
                    continue
                most = max(each["backlog_peaks"][1:] or [0])
                less = max(reactive["backlog_peaks"][1:] or [0]) / max(1, most)
                rows.append(
                    [
                        size.name,
                        f"{start_s:g} s",
                        policy,
                        f"{each['of_ideal'] - 1:+.1%} {verdict(each['of_ideal'] <= 1.03)}",
                        f"{each['of_ideal_with_starts'] - 1:+.1%} "
                        f"{verdict(each['of_ideal_with_starts'] <= 1.03)}",
                        f"{each['of_static'] - 1:+.1%} {verdict(each['of_static'] <= 0.74)}",
                        f"{each['backlog_end']:,} "
                        f"{verdict(each['backlog_end'] <= BACKLOG_END_MAX)}",
                        "-"
                        if policy == "reactive"
                        else f"{f'{less:,.0f} times less' if most else 'none'} "
                        f"{verdict(less >= 10)}",
                    ]
                )
    headings = [
        "size", "start", "policy", "over ideal (≤ 3 %)", "over ideal with starts (≤ 3 %)",
        "over static (≤ -26 %)", "backlog at the end (≤ 30,000)",
        "peak backlog after the first cycle, against reactive (≥ 10)",
    ]  # fmt: skip
    return Grid("Targets, on the cosine", headings, rows, word_columns=3)


NOTE = (
    "Simulated; no figure depends on the machine. The ideal knows the load: n(t) = max(least, "
    "load / (0.85 x rate of a worker)), rounded up; `with starts` also pays for the time in which "
    "workers start, found by dynamic programming; `at least` uses workers to 100 % and lets up to "
    "30,000 messages wait (4 to 10 workers). Worker-seconds count from the request for a worker "
    "until it has left. `late`: results after more than 1 s. `recorded` is a file made by "
    "`loads.write_recorded`, not a real trace."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one start time, the small cluster")
    parser.add_argument("--keep", action="store_true", help="replace the kept results")
    parser.add_argument(
        "--only", default="", help="a policy that has changed: all others as they were kept"
    )
    arguments = parser.parse_args()
    records: list[dict[str, Any]] = []
    known = {}
    if arguments.only:
        for each in json.loads((folder(True) / "elasticity_styx.json").read_text("utf-8")):
            if each["policy"].partition(":")[0] != arguments.only:
                known[each["size"], each["load"], each["start_s"], each["policy"]] = each
    static = [f"fixed:workers={SMALL.least}", f"fixed:workers={SMALL.static}"]
    for load in loads():
        starts = (10.0,) if arguments.quick or load != "cosine" else STARTS_S
        for start_s in starts:
            policies = (*(static if start_s == 10.0 else []), *POLICIES)
            records += run_load(SMALL, load, start_s, policies, SECONDS, arguments.keep, known)
        if not arguments.quick:
            policies = (f"fixed:workers={LARGE.static}", *POLICIES[:2], *POLICIES[3:4])
            for start_s in STARTS_S[:2] if load == "cosine" else (10.0,):
                records += run_load(LARGE, load, start_s, policies, SECONDS, arguments.keep, known)
    title = "Styx's autoscaling experiment, simulated"
    write("elasticity_styx", title, NOTE, grids(records), records, arguments.keep)


if __name__ == "__main__":
    main()
