"""`sublet status`: what every worker of a cluster says of itself."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import typer

from sublet.functions.errors import SubletError
from sublet.runtime.cli_cluster import reach
from sublet.runtime.cli_exit import NoClusterError, UsageError, exit_with
from sublet.runtime.config import ConfigError, read_config
from sublet.runtime.link_grpc import UnaryClient
from sublet.runtime.unary import StatusReport

_ANSWER_TIMEOUT_S = 5.0


def status(connect: str | None, data_dir: Path | None, as_json: bool) -> None:
    try:
        config = read_config(os.environ, {"data_dir": data_dir})
        report, workers = asyncio.run(cluster_reports(connect, config.data_dir))
    except (SubletError, UsageError, NoClusterError, ConfigError) as error:
        exit_with(error, as_json=as_json)
    described = describe(report, workers)
    if as_json:
        typer.echo(json.dumps({"ok": True, **described}))
    else:
        _show(described)


async def cluster_reports(
    connect: str | None, data_dir: Path
) -> tuple[StatusReport, dict[str, StatusReport | None]]:
    """Return what one worker says, and what each that it knows says; None: no answer."""
    async with reach(connect, data_dir) as reached:
        workers = reached.report.topology.workers
        reports = await asyncio.gather(*(_report_at(each) for each in workers.values()))
        return reached.report, dict(zip(workers, reports, strict=True))


async def _report_at(address: str) -> StatusReport | None:
    async with UnaryClient(address) as client:
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                return await client.status()
        except (SubletError, TimeoutError):
            return None


def describe(report: StatusReport, workers: dict[str, StatusReport | None]) -> dict[str, Any]:
    """Return the cluster as plain values, in a form that scripts may rely on."""
    topology = report.topology
    placed = Counter(each.rpartition("/")[0] for each in topology.placement)
    totals: Counter[str] = Counter()
    for each in workers.values():
        if each is not None:
            totals.update(each.counters)
    return {
        "placement_version": topology.version,
        "workers": [
            {
                "id": worker,
                "address": topology.workers[worker],
                "reachable": told is not None,
                "partitions": sorted(told.partitions, key=_in_order) if told else [],
                "counters": dict(sorted(told.counters.items())) if told else {},
            }
            for worker, told in workers.items()
        ],
        "functions": [
            {
                "name": each.name,
                "kind": each.kind,
                "partition_count": each.partition_count,
                "partitions_placed": placed[each.name],
            }
            for each in topology.functions
        ],
        "counters": dict(sorted(totals.items())),
    }


def _in_order(partition: str) -> tuple[str, int]:
    function, _, index = partition.rpartition("/")
    return function, int(index)


def _show(described: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    workers = Table("worker", "address", "partitions", title="workers", title_justify="left")
    for each in described["workers"]:
        count = str(len(each["partitions"])) if each["reachable"] else "[red]no answer[/red]"
        workers.add_row(each["id"], each["address"], count)
    functions = Table(
        "function", "kind", "partitions", "placed", title="functions", title_justify="left"
    )
    for each in described["functions"]:
        counts = (str(each["partition_count"]), str(each["partitions_placed"]))
        functions.add_row(each["name"], each["kind"], *counts)
    counters = Table("counter", "all workers", title="counters", title_justify="left")
    counters.columns[1].justify = "right"
    for name, value in described["counters"].items():
        if not value:
            continue
        counters.add_row(name, f"{value:,.0f}" if value == int(value) else f"{value:,.3f}")
    for table in (workers, functions, counters):
        if table.row_count:
            console.print(table)
