"""A simulation's report as tables in a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from sublet.runtime.simulation.reports.report import Report

WIDTH = 110
"""Where there is no terminal that says how wide it is."""


def print_report(report: Report, console: Console | None = None) -> None:
    console = console or Console(width=None if sys.stdout.isatty() else WIDTH)
    simulation = report.simulation
    order = simulation.order if isinstance(simulation.order, str) else "an order of its own"
    console.print(
        f"[bold]{simulation.workers} workers, {order}, binding {simulation.binding}, "
        f"seed {simulation.seed}[/bold]: "
        f"{report.duration_ms / 1000:g} s of virtual time in {report.wall_s:.1f} s, "
        f"{report.hops:,} messages executed ({report.hops_per_wall_s:,.0f}/s)"
    )
    console.print(_latencies(report))
    console.print(_functions(report))
    console.print(_cluster(report))
    console.print(f"trace hash {report.trace_hash}")


def _table(title: str, first: str, *numbers: str) -> Table:
    table = Table(title=title, title_justify="left", pad_edge=False, box=None)
    table.add_column(first, no_wrap=True)
    for each in numbers:
        table.add_column(each, justify="right", no_wrap=True)
    return table


def _latencies(report: Report) -> Table:
    table = _table(
        "Latency in ms, from arrival to commit", "function",
        "load", "messages", "p50", "p90", "p99", "p99.9", "max", "late",
    )  # fmt: skip
    for name, load in report.ends():
        each = report.latency(name, load)
        times = (each.p50, each.p90, each.p99, each.p999, each.max)
        table.add_row(
            name,
            load,
            f"{each.count:,}",
            *[f"{time:,.0f}" if time >= 1_000 else f"{time:.1f}" for time in times],
            f"{each.late_share:.1%}",
        )
    return table


def _functions(report: Report) -> Table:
    table = _table(
        "Work and state", "function",
        "runs", "batch", "busy s", "hits", "misses", "fetches", "keys read", "evicted", "failed",
    )  # fmt: skip
    for each in report.functions.values():
        counts = (each.hits, each.misses, each.loads, each.fetched, each.evicted, each.failures)
        table.add_row(
            each.name,
            f"{each.runs:,}",
            f"{each.batch_mean:.1f}",
            f"{each.busy_ms / 1000:,.1f}",
            *[f"{count:,}" for count in counts],
        )
    return table


def _cluster(report: Report) -> Table:
    table = _table("Cluster", "what", "how much")
    traffic = report.traffic
    busy = [each / report.simulation.cores for each in report.busy]
    rows = [
        ("cores busy, mean and most", f"{sum(busy) / len(busy):.0%}, {max(busy):.0%}"),
        ("frames between machines", f"{traffic.frames:,}"),
        ("batches in them", f"{traffic.batches:,}"),
        ("messages in them", f"{traffic.messages:,}"),
        ("megabytes in them", f"{traffic.bytes / 1e6:,.1f}"),
        ("commits, in groups", f"{report.commits:,}, {report.commit_groups:,}"),
        ("states written", f"{report.rows:,}"),
        ("batches refused", f"{report.refusals:,}"),
        ("still open at the end", f"{report.open:,}"),
    ]
    if report.takeovers:
        rows.append(("partitions taken over", f"{report.takeovers:,}"))
    troubles = (traffic.lost, traffic.doubled, traffic.reordered, traffic.stopped)
    if any(troubles):
        shown = ", ".join(f"{each:,}" for each in troubles)
        rows.append(("frames lost, doubled, late, stopped", shown))
    rows += _lease_rows(report)
    for row in rows:
        table.add_row(*row)
    return table


def _lease_rows(report: Report) -> list[tuple[str, str]]:
    each = report.leases
    if not each.offered and not each.probes:
        return []
    ends = (each.accepted, each.declined, each.returned, each.expired, each.revoked)
    shown = ", ".join(f"{count:,}" for count in ends)
    return [
        ("leases offered", f"{each.offered:,}"),
        ("accepted, declined, returned, expired, revoked", shown),
        ("messages run at peers", f"{each.messages:,}"),
        ("peers asked for room", f"{each.probes:,}"),
        ("lease messages, megabytes", f"{each.said:,}, {each.bytes / 1e6:,.1f}"),
        ("states sent with leases, not sent again", f"{each.states_sent:,}, {each.states_held:,}"),
    ]
