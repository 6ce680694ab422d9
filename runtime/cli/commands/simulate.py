"""`sublet simulate`: run a scenario on a virtual clock, show and keep what came of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import typer

from sublet.runtime.cli.exit_codes import UsageError, exit_with
from sublet.runtime.cli.table import print_table

if TYPE_CHECKING:
    from sublet.runtime.simulation.elastic.report import ElasticReport
    from sublet.runtime.simulation.elastic.simulation import ElasticSimulation
    from sublet.runtime.simulation.reports.report import Report
    from sublet.runtime.simulation.simulation import Simulation


@dataclass(frozen=True, slots=True)
class SimulateArguments:
    """What to simulate, as typed."""

    scenario: str | None
    orders: Sequence[str]
    scalings: Sequence[str]
    workers: int | None
    seed: int | None
    plot: Path | None
    keep: Path | None
    as_json: bool


def simulate(arguments: SimulateArguments) -> None:
    """Run the scenario once for each order, or each scaling policy, that was asked for."""
    from sublet.runtime.simulation.elastic.simulation import ElasticSimulation

    try:
        scenario = _scenario(arguments)
        if isinstance(scenario, ElasticSimulation):
            _simulate_elastic(scenario, arguments)
            return
        simulations = _simulations(scenario, arguments)
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


def _scenario(arguments: SimulateArguments) -> Simulation | ElasticSimulation:
    from sublet.runtime.simulation.elastic.simulation import elastic_scenario
    from sublet.runtime.simulation.scenarios.default_scenario import WORKERS, default_scenario
    from sublet.runtime.simulation.scenarios.files import load_scenario

    if arguments.scenario is not None:
        return load_scenario(arguments.scenario)
    if arguments.scalings:
        return elastic_scenario()
    return default_scenario(arguments.workers or WORKERS)


def _simulations(simulation: Simulation, arguments: SimulateArguments) -> dict[str, Simulation]:
    if arguments.scalings:
        raise ValueError(
            f"{arguments.scenario} does not scale; add a table [scaling] with workers_min and "
            f"workers_max, or leave out --scaling"
        )
    if arguments.scenario is not None and arguments.workers is not None:
        simulation = simulation.but(workers=arguments.workers)
    if arguments.seed is not None:
        simulation = simulation.but(seed=arguments.seed)
    if not arguments.orders:
        return {"as it is": simulation}
    return {order: simulation.but(order=order) for order in arguments.orders}


# Clusters that grow and shrink


def _simulate_elastic(simulation: ElasticSimulation, arguments: SimulateArguments) -> None:
    from sublet.runtime.simulation.elastic.report import plot_elastic, summary

    if len(arguments.orders) > 1:
        raise ValueError("of a simulation that scales, policies are compared; give one --order")
    changes: dict[str, Any] = {"workers": arguments.workers, "seed": arguments.seed}
    changes["order"] = arguments.orders[0] if arguments.orders else None
    simulation = simulation.but(**{k: each for k, each in changes.items() if each is not None})
    policies = list(dict.fromkeys(arguments.scalings)) or [simulation.scaling.workers]
    chosen = {policy: simulation.but(scaling=policy) for policy in policies}
    reports = {name: _run(name, each, arguments.as_json) for name, each in chosen.items()}
    if arguments.plot is not None:
        plot_elastic(reports, arguments.plot)
        typer.echo(f"wrote {arguments.plot}", err=True)
    if arguments.keep is not None:
        found = [report.to_dict() for report in reports.values()]
        arguments.keep.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(found[0] if len(found) == 1 else found, indent=2)
        arguments.keep.write_text(text + "\n", encoding="utf-8")
        typer.echo(f"wrote {arguments.keep}", err=True)
    if arguments.as_json:
        found = [report.to_dict() for report in reports.values()]
        typer.echo(json.dumps(found[0] if len(found) == 1 else found))
        return
    if len(reports) == 1:
        next(iter(reports.values())).print()
        return
    names = list(summary(next(iter(reports.values()))))
    rows = [[name, *summary(report).values()] for name, report in reports.items()]
    print_table(["policy", *names], rows)


@overload
def _run(name: str, simulation: Simulation, quiet: bool) -> Report: ...
@overload
def _run(name: str, simulation: ElasticSimulation, quiet: bool) -> ElasticReport: ...
def _run(
    name: str, simulation: Simulation | ElasticSimulation, quiet: bool
) -> Report | ElasticReport:
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
