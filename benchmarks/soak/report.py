"""What a soak has to hold, and how it is told."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness.machine import ROOT

if TYPE_CHECKING:
    from benchmarks.soak.experiment import Soaked

RESULTS = ROOT / "benchmarks" / "results"
SLOPE_MB_PER_MIN_MAX = 2.0
REDIS_SLOPE_MB_PER_MIN_MAX = 5.0
JUDGED_S_MIN = 120
"""Of overload after its first quarter; what is shorter says nothing of memory."""
GOODPUT_SHARE_MIN = 0.8
RECOVERY_S_MAX = 60.0


@dataclass
class Check:
    what: str
    seen: str
    holds: bool | None
    """None: too short a run to say."""


@dataclass
class Verdict:
    checks: list[Check] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return all(each.holds is not False for each in self.checks)

    def add(self, what: str, seen: str, holds: bool | None) -> None:
        self.checks.append(Check(what, seen, holds))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return a percentile of sorted numbers; 0 of none."""
    if not ordered:
        return 0
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def slope_per_minute(points: Sequence[tuple[float, float]]) -> float:
    """Return by how much the second number grows while the first grows by 60, by least squares."""
    count = len(points)
    mean_at = sum(at for at, _ in points) / count
    mean = sum(value for _, value in points) / count
    spread = sum((at - mean_at) ** 2 for at, _ in points)
    if not spread:
        return 0.0
    return 60 * sum((at - mean_at) * (value - mean) for at, value in points) / spread


def judge(soaked: Soaked) -> Verdict:
    verdict = Verdict()
    overload = [each for each in soaked.seconds if each["phase"] == "overload"]
    _judge_memory(verdict, soaked, overload)
    _judge_bounds(verdict, soaked)
    seen, counted = soaked.refused_by_clients, soaked.refused_by_workers
    verdict.add(
        "refusals: workers counted what clients saw",
        f"{counted:,} counted, {seen:,} seen, others {soaked.other_errors or 'none'}",
        seen == counted and seen > 0 and not soaked.other_errors,
    )
    settled = overload[min(10, len(overload) // 4) :]
    goodput = sum(each["answered"] for each in settled) / max(1, len(settled))
    share = goodput / soaked.capacity_per_s if soaked.capacity_per_s else 0.0
    verdict.add(
        f"goodput under overload at least {GOODPUT_SHARE_MIN:.0%} of capacity",
        f"{goodput:.0f}/s of {soaked.capacity_per_s:.0f}/s: {share:.0%}",
        share >= GOODPUT_SHARE_MIN,
    )
    took = soaked.recovered_s
    verdict.add(
        f"latency back to the baseline's within {RECOVERY_S_MAX:.0f} s",
        "never" if took is None else f"after {took:.0f} s",
        took is not None and took <= RECOVERY_S_MAX,
    )
    verdict.add(
        "every answered message had its effect once",
        f"{soaked.answered:,} answered, {soaked.unknown} unknown, "
        f"{len(soaked.wrong_keys)} keys wrong",
        not soaked.wrong_keys and soaked.answered > 0,
    )
    return verdict


def _judge_memory(verdict: Verdict, soaked: Soaked, overload: Sequence[Mapping[str, Any]]) -> None:
    later = overload[len(overload) // 4 :]
    is_long = len(later) >= JUDGED_S_MIN
    if len(later) < 2:
        return
    for number in range(soaked.plan.workers):
        points = [
            (each["at_s"], each["workers"][number]["rss_mb"] - each["workers"][number]["cache_mb"])
            for each in later
        ]
        slope = slope_per_minute(points)
        verdict.add(
            f"memory of worker {number} without its cached states is flat",
            f"{slope:+.2f} MB/min, {points[0][1]:.0f} to {points[-1][1]:.0f} MB",
            slope <= SLOPE_MB_PER_MIN_MAX if is_long else None,
        )
    if later[0]["redis_mb"] is not None:
        points = [(each["at_s"], each["redis_mb"]) for each in later]
        slope = slope_per_minute(points)
        verdict.add(
            "memory of Redis is flat",
            f"{slope:+.2f} MB/min, {points[0][1]:.0f} to {points[-1][1]:.0f} MB",
            slope <= REDIS_SLOPE_MB_PER_MIN_MAX if is_long else None,
        )


def _judge_bounds(verdict: Verdict, soaked: Soaked) -> None:
    workers = [worker for each in soaked.seconds for worker in each["workers"]]
    for what, name, bound in (
        ("the longest queue of a partition", "queue_longest", soaked.plan.queue_max),
        ("messages in flight in a worker", "in_flight", soaked.plan.in_flight_max),
    ):
        most = max((each[name] for each in workers), default=0)
        verdict.add(f"{what} within its bound", f"{most:,} of {bound:,}", most <= bound)


def write(soaked: Soaked, verdict: Verdict, *, keep: bool) -> Path:
    """Write what was seen as JSON and for people; return the JSON's path."""
    folder = RESULTS if keep else RESULTS / "local"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "soak.json"
    content = {**asdict(soaked), "verdict": [asdict(each) for each in verdict.checks]}
    path.write_text(json.dumps(content) + "\n")
    path.with_suffix(".md").write_text(page(soaked, verdict))
    return path


def page(soaked: Soaked, verdict: Verdict) -> str:
    plan = soaked.plan
    lines = [
        "# Soak with overload",
        "",
        f"Store {plan.store}, {plan.workers} workers, {plan.clients} clients and a slow one, "
        f"{plan.keys:,} keys (Zipf 1.2), {plan.overload_s / 60:g} minutes at three times capacity. "
        f"`python -m benchmarks.soak --store {plan.store} --minutes {plan.overload_s / 60:g}`",
        "",
        f"Verdict: {'holds' if verdict.is_good else 'FAILS'}.",
        "",
        "| what | seen | |",
        "|---|---|---|",
    ]
    words = {True: "holds", False: "**fails**", None: "too short to say"}
    lines += [f"| {each.what} | {each.seen} | {words[each.holds]} |" for each in verdict.checks]
    lines += ["", "| phase | s | offered/s | answered/s | refused/s | p50 ms | p99 ms |"]
    lines.append("|---|---|---|---|---|---|---|")
    for phase in ("capacity", "baseline", "overload", "after"):
        seconds = [each for each in soaked.seconds if each["phase"] == phase]
        if seconds:
            lines.append(_phase(phase, seconds))
    lines += ["", f"The slow reader of the egress got {soaked.egress_read:,} values.", ""]
    lines += [f"Machine: {json.dumps(soaked.machine)}", ""]
    return "\n".join(lines)


def _phase(phase: str, seconds: Sequence[Mapping[str, Any]]) -> str:
    count = len(seconds)
    medians = sorted(each["p50_ms"] for each in seconds if each["answered"])
    tails = sorted(each["p99_ms"] for each in seconds if each["answered"])
    offered = sum(each["offered"] for each in seconds) / count
    answered = sum(each["answered"] for each in seconds) / count
    refused = sum(sum(each["refused"].values()) for each in seconds) / count
    return (
        f"| {phase} | {count} | {offered:.0f} | {answered:.0f} | {refused:.0f} | "
        f"{percentile(medians, 0.5):.0f} | {percentile(tails, 0.5):.0f} |"
    )
