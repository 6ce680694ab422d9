"""What a person sees of a run, while it lasts and at its end, and what is kept of it."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tests.chaos.recovery import Recovery, percentile
from tests.chaos.run import Result, State

MOVED = "during an outage"
ALL = "all"
GOAL_S = 10.0
MEBIBYTE = 1024 * 1024


class Row(NamedTuple):
    kind: str
    times: int
    p50_s: float
    p99_s: float
    max_s: float


def recovery_rows(recoveries: Sequence[Recovery]) -> list[Row]:
    """Return recovery times by kind of fault, and of all."""
    by_kind: dict[str, list[float]] = {}
    for each in recoveries:
        by_kind.setdefault(MOVED if each.is_moved else each.kind, []).append(each.seconds)
    everything = [each.seconds for each in recoveries if not each.is_moved]
    return [_row(kind, by_kind[kind]) for kind in sorted(by_kind)] + [_row(ALL, everything)]


def _row(kind: str, seconds: Sequence[float]) -> Row:
    return Row(kind, len(seconds), *(percentile(seconds, share) for share in (0.5, 0.99, 1.0)))


def status_line(state: State) -> str:
    """Return what is worth knowing while it runs."""
    faults = state.faults
    seconds = [each.seconds for each in state.recoveries if not each.is_moved]
    cuts = sum(count for kind, count in faults.items() if kind.startswith(("cut", "isolate")))
    restarts = faults["redis-kill"] + faults["drain"] + faults["join"]
    memory = max(state.memory_bytes, default=0) / MEBIBYTE
    return (
        f"{state.phase} · kills {faults['kill']} · freezes "
        f"{faults['freeze'] + faults['redis-freeze']} · cuts {cuts} · restarts {restarts} · scaled "
        f"{faults['scale-out']} · "
        f"answers {state.answered:,} · problems {state.problem_count} · recovery p50 "
        f"{percentile(seconds, 0.5):.1f} s, p99 {percentile(seconds, 0.99):.1f} s, max "
        f"{max(seconds, default=0.0):.1f} s · memory {memory:.0f} MiB"
    )


def show(console: Console, result: Result) -> None:
    """Print the end of a run."""
    table = Table("after", "times", "p50 s", "p99 s", "max s", title="Recovery of all partitions")
    for row in recovery_rows(result.recoveries):
        table.add_row(row.kind, str(row.times), *(f"{value:.2f}" for value in row[2:]))
    console.print(table)
    for line in _facts(result):
        console.print(f"- {line}", markup=False, highlight=False, soft_wrap=True)
    for each in result.violations:
        console.print(f"VIOLATION: {each}", style="bold red", markup=False, soft_wrap=True)
    if not result.violations:
        console.print("Everything happened exactly once.", style="bold green")


def _facts(result: Result) -> Iterator[str]:
    plan = result.plan
    faults = ", ".join(f"{count} {kind}" for kind, count in sorted(result.faults.items()))
    answers = ", ".join(f"{kind} {count:,}" for kind, count in sorted(result.answered.items()))
    p50_s, p99_s, max_s = result.probes
    yield (
        f"seed {plan.seed}, {result.elapsed_s / 60:.1f} minutes, {result.episodes} episodes, "
        f"{plan.workers} workers, {plan.loads} processes of load, "
        + ("a network of namespaces" if result.network else "no network of its own")
        + f", heartbeats every {plan.heartbeat_ms} ms, member term {plan.member_term_ms} ms"
    )
    yield f"{sum(result.faults.values())} faults: {faults}"
    yield f"{sum(result.answered.values()):,} answers: {answers}"
    yield (
        f"{result.asked_again:,} HTTP requests asked again with their idempotency key; "
        f"{result.egress_values:,} values read from egresses"
    )
    yield (
        f"{result.probe_count:,} probes, answered within {1000 * p50_s:.0f} ms (p50), "
        f"{p99_s:.2f} s (p99), {max_s:.2f} s (the longest, outages included)"
    )
    yield (
        f"memory of a worker: {_mebibytes(result.memory_start_bytes)} at the start, "
        f"{_mebibytes(result.memory_end_bytes)} at the end, at most "
        f"{_mebibytes([result.memory_max_bytes])}"
    )
    if result.leases:
        leases = ", ".join(f"{name} {count:g}" for name, count in result.leases.items())
        yield f"leases of those who were there at the end: {leases}"


def _mebibytes(sizes: Sequence[int]) -> str:
    low, high = min(sizes, default=0) / MEBIBYTE, max(sizes, default=0) / MEBIBYTE
    return f"{low:.0f} MiB" if len(sizes) == 1 else f"{low:.0f} to {high:.0f} MiB"


def markdown(result: Result) -> str:
    """Return the page that is kept beside the figures."""
    lines = [
        "# Chaos",
        "",
        "Real workers, a real Redis (AOF, synced on every commit), load on everything that happens",
        "exactly once, and seeded faults. Made by `make chaos`; see `tests/chaos`.",
        "",
        *(f"- {line}" for line in _facts(result)),
        f"- Python {platform.python_version()}, {platform.machine()}",
        "",
        "## Recovery",
        "",
        "Until every partition has answered a question that was asked after the fault. Outages",
        "(redis-kill, redis-freeze, cut-client) count from their end, all others from their",
        f"beginning; faults that met an outage count from its end, apart (`{MOVED}`). `wake` is a",
        "frozen worker that goes on, `heal` the end of a cut; `scale-in` is when workers that the",
        f"controller has added at `scale-out` are to leave. The goal: p99 below {GOAL_S:g} s.",
        "",
        "| after | times | p50 s | p99 s | max s |",
        "|---|---|---|---|---|",
        *(
            f"| {row.kind} | {row.times} | {row.p50_s:.2f} | {row.p99_s:.2f} | {row.max_s:.2f} |"
            for row in recovery_rows(result.recoveries)
        ),
        "",
        "## Violations",
        "",
        *([f"- {each}" for each in result.violations] or ["None: everything happened once."]),
        "",
    ]
    return "\n".join(lines)
