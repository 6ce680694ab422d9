"""`sublet simulate`: run a scenario on a virtual clock, show and keep what came of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sublet.runtime.cli.exit_codes import UsageError, exit_with
from sublet.runtime.cli.table import print_table

if TYPE_CHECKING:
    from sublet.runtime.simulation.reports.report import Report
    from sublet.runtime.simulation.simulation import Simulation


@dataclass(frozen=True, slots=True)
class SimulateArguments:
    """What to simulate, as typed."""

    scenario: str | None
    orders: Sequence[str]
    workers: int | None
    seed: int | None
    plot: Path | None
    keep: Path | None
    as_json: bool


def simulate(arguments: SimulateArguments) -> None:
    """Run the scenario once for each order that was asked for."""
    try:
        simulations = _simulations(arguments)
        reports = {name: _run(name, each, arguments.as_json) for name, each in simulations.items()}
        for name, report in reports.items():
            _keep(name, report, arguments, several=len(reports) > 1)
    except (ValueError, ImportError) as error:
        exit_with(error)
    except OSError as error:
        exit_with(UsageError(f"cannot write {error.filename}: {error.strerror}"))
    if arguments.as_json:
        found = [report.to_dict() for report in reports.values()]
        typer.echo(json.dumps(found[0] if len(found) == 1 else found))
        return
    for report in reports.values():
        report.print()
    if len(reports) > 1:
        _compare(reports)


def _simulations(arguments: SimulateArguments) -> dict[str, Simulation]:
    from sublet.runtime.simulation.scenarios.default_scenario import WORKERS, default_scenario
    from sublet.runtime.simulation.scenarios.files import load_scenario

    if arguments.scenario is None:
        simulation = default_scenario(arguments.workers or WORKERS)
    else:
        simulation = load_scenario(arguments.scenario)
        if arguments.workers is not None:
            simulation = simulation.but(workers=arguments.workers)
    if arguments.seed is not None:
        simulation = simulation.but(seed=arguments.seed)
    if not arguments.orders:
        return {"as it is": simulation}
    return {order: simulation.but(order=order) for order in arguments.orders}


def _run(name: str, simulation: Simulation, quiet: bool) -> Report:
    from rich.console import Console
    from rich.progress import Progress

    end_ms = simulation.until_ms
    # On standard error: what is printed can go into a file.
    with Progress(console=Console(stderr=True), transient=True, disable=quiet) as progress:
        task = progress.add_task(f"simulating ({name})", total=end_ms)
        return simulation.run(lambda now_ms: progress.update(task, completed=now_ms))


def _keep(name: str, report: Report, arguments: SimulateArguments, *, several: bool) -> None:
    for wanted, write in ((arguments.plot, report.plot), (arguments.keep, report.save)):
        if wanted is not None:
            path = wanted.with_stem(f"{wanted.stem}-{name}") if several else wanted
            write(path)
            typer.echo(f"wrote {path}", err=True)


def _compare(reports: dict[str, Report]) -> None:
    rows = []
    for order, report in reports.items():
        for name, load in report.ends():
            each = report.latency(name, load)
            times = [f"{time:.1f}" for time in (each.p50, each.p99, each.max)]
            rows.append([name, load, order, f"{each.count}", *times, f"{each.late_share:.1%}"])
    header = ["function", "load", "order", "messages", "p50 ms", "p99 ms", "max ms", "late"]
    print_table(header, sorted(rows, key=lambda row: (row[0], row[1])))
