"""`sublet scale`: how the cluster scales, what was decided and why, and what it costs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import typer

from sublet.runtime.cli.cluster_lookup import Reached, Where, ask
from sublet.runtime.cli.table import print_table, time_text
from sublet.runtime.cli.units import duration_text
from sublet.runtime.protocol.rpc import (
    AdministerRequest,
    PauseScaling,
    ResumeScaling,
    ScaledWorker,
    ScalingDecision,
    ScalingReport,
    ScalingRequest,
)
from sublet.scheduler.scaling.plan import OWN_INSTANCES


def status(where: Where, as_json: bool) -> None:
    """Say who decides, what is wanted, and what is there."""
    report = _report(where, 1, as_json)
    if as_json:
        typer.echo(json.dumps({"ok": True, **_plain(report, without=("decisions",))}))
        return
    wanted = "-" if report.workers_wanted is None else str(report.workers_wanted)
    dry = "; dry run: nothing is carried out" if report.dry_run else ""
    typer.echo(f"workers: {wanted} wanted, {report.workers_min}..{report.workers_max} allowed{dry}")
    typer.echo(f"leader: {report.leader}")
    if report.price_hour or report.spent:
        typer.echo(f"cost: {money_text(report)}")
    if report.warm:
        typer.echo(f"warm: {report.warm} environments of instances are kept")
    typer.echo("")
    bursts = any(each.slot == "instances" for each in report.slots)
    print_table(
        ("worker", "state", "busy", "waiting", "partitions", "launch")
        + (("instances",) if bursts else ()),
        [
            (
                each.id or "-",
                each.state,
                f"{each.utilisation:.0%}" if each.id else "-",
                duration_text(each.waiting_ms) if each.id else "-",
                str(each.partitions),
                each.launch or "-",
            )
            + ((_instances(each),) if bursts else ())
            for each in report.workers
        ],
    )
    typer.echo("")
    print_table(
        ("slot", "policy", "state", "sees"),
        [
            (
                each.slot,
                each.policy,
                each.failure or ("paused" if each.paused else "decides"),
                _figures(each.figures) or "-",
            )
            for each in report.slots
        ],
    )
    show_instances(report)
    if report.redirects:
        typer.echo("")
        print_table(
            ("redirected", "share", "to"),
            [
                (each.function, f"{each.share:.0%}", ", ".join(map(_lessee, each.lessees)))
                for each in report.redirects
            ],
        )


def _lessee(name: str) -> str:
    return "own instances" if name == OWN_INSTANCES else name


def explain(where: Where, limit: int, as_json: bool) -> None:
    """Print the latest decisions with their figures, newest first."""
    report = _report(where, limit, as_json)
    if as_json:
        decisions = [msgspec.to_builtins(each) for each in report.decisions]
        typer.echo(json.dumps({"ok": True, "leader": report.leader, "decisions": decisions}))
        return
    if not report.decisions:
        typer.echo("nothing has been decided yet")
    for each in report.decisions:
        typer.echo("\n".join(_told(each)))


def change(kind: Literal["pause", "resume"], slot: str, where: Where, as_json: bool) -> None:
    """Let the policy of a slot be asked no more, or again."""
    action = PauseScaling(slot=slot) if kind == "pause" else ResumeScaling(slot=slot)

    async def question(reached: Reached) -> None:
        await reached.client.administer(AdministerRequest(action=action))

    ask(where, question, as_json)
    if as_json:
        typer.echo(json.dumps({"ok": True, "slot": slot, "paused": kind == "pause"}))
    else:
        typer.echo(f"{slot} is {'paused' if kind == 'pause' else 'active again'}")


def _report(where: Where, decisions: int, as_json: bool) -> ScalingReport:
    async def question(reached: Reached) -> ScalingReport:
        return await reached.client.scaling(ScalingRequest(decisions=decisions))

    return ask(where, question, as_json)


def _plain(report: ScalingReport, without: tuple[str, ...]) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(report)
    return {name: value for name, value in plain.items() if name not in without}


def money_text(report: ScalingReport) -> str:
    text = f"{report.price_hour:g} an hour now, {report.spent:.4g} so far"
    if report.spend_cap:
        text += (
            f"; {report.spent_period:.4g} of the cap of {report.spend_cap}, "
            f"{report.spend_forecast:.4g} expected by the end of its period"
        )
    else:
        text += f"; {report.spend_forecast:.4g} a day if all stays as it is"
    return text


def show_instances(report: ScalingReport) -> None:
    """Print the instances and what each does, if there are any."""
    if not report.instances:
        return
    typer.echo("")
    print_table(
        ("instance", "serves", "state", "came after", "until", "runs"),
        [
            (
                each.id,
                each.worker,
                "trial" if each.trial else each.state,
                duration_text(each.took_ms) if each.took_ms else "-",
                time_text(each.until_ms),
                ", ".join(each.functions) or "-",
            )
            for each in report.instances
        ],
    )


def _told(decision: ScalingDecision) -> list[str]:
    """Return a decision in two or three lines."""
    outcome = decision.outcome or "under way"
    if decision.problem:
        outcome += f": {decision.problem}"
    if decision.repeated:
        outcome += f" ({decision.repeated + 1} times)"
    what = " ".join([decision.action, *(f"{k}={v}" for k, v in decision.details.items())])
    lines = [
        f"{decision.number}  {time_text(decision.wall_ms)}  {decision.slot} ({decision.policy}): "
        f"{what}; {outcome}"
    ]
    if decision.because:
        lines.append(f"    because {decision.because}")
    if figures := _figures(decision.figures):
        lines.append(f"    {figures}")
    return lines


def _instances(worker: ScaledWorker) -> str:
    starting = f" (+{worker.instances_starting} starting)" if worker.instances_starting else ""
    return f"{worker.instances}{starting}"


def _figures(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in figures.items())
