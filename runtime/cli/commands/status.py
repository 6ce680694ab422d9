"""`sublet status` and `sublet functions`: what the workers of a cluster say of themselves."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import Any

import msgspec
import typer

from sublet.functions.duration import milliseconds
from sublet.functions.errors import (
    RejectedError,
    RetryLaterError,
    SubletError,
    UnavailableError,
)
from sublet.runtime.cli.cluster_lookup import Reached, Where, ask
from sublet.runtime.cli.exit_codes import UsageError, exit_with
from sublet.runtime.cli.table import print_table
from sublet.runtime.cli.units import count_text, duration_text, quantity
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.frames import FunctionInfo
from sublet.runtime.protocol.rpc import (
    FunctionCost,
    FunctionDescription,
    FunctionLeases,
    ScalingRequest,
    StatusReport,
)

INTERVAL_S_MAX = 60
RATES = ("consumed", "late", "failures", "retries", "refused")
"""Counters whose growth is shown; `late` are the missed deadlines."""
NOT_JOINED_RETRY_MS = 1_000
LEASE_COUNTS = ("lent", "returned", "declined", "expired", "states_sent")
"""What the table of leases shows of all that is counted."""
_ANSWER_TIMEOUT_S = 5.0

Reports = Mapping[str, StatusReport | None]


def status(where: Where, interval: str, as_json: bool) -> None:
    try:
        interval_s = milliseconds(interval) / 1000
        if not 0 <= interval_s <= INTERVAL_S_MAX:
            raise ValueError(f"it is {interval}; allowed: 0s to {INTERVAL_S_MAX}s")
    except ValueError as error:
        exit_with(UsageError(f"--interval: {error}"), as_json=as_json)

    async def question(reached: Reached) -> dict[str, Any]:
        if not reached.report.topology.workers:
            # Asked by its address, before it is a member: it knows of nothing but itself.
            reason = reached.report.not_ready or "the worker has not joined its cluster yet"
            raise UnavailableError(reason, NOT_JOINED_RETRY_MS)
        first = await cluster_reports(reached)
        started_s = time.perf_counter()
        if not interval_s:
            return describe(reached.report, first, {}, 0) | await _bursts(reached)
        await asyncio.sleep(interval_s)
        second = await cluster_reports(reached)
        elapsed_s = time.perf_counter() - started_s
        return describe(reached.report, second, first, elapsed_s) | await _bursts(reached)

    described = ask(where, question, as_json)
    if as_json:
        typer.echo(json.dumps({"ok": True, **described}))
    else:
        _show(described)


async def _bursts(reached: Reached) -> dict[str, Any]:
    """Return what is known of instances and money; nothing where the cluster has neither."""
    try:
        report = await reached.client.scaling(ScalingRequest(decisions=1))
    except (RejectedError, RetryLaterError):
        return {}  # It does not scale, or nobody leads just now.
    if not any(each.slot == "instances" for each in report.slots) and not report.price_hour:
        return {}
    states = Counter(each.state for each in report.instances)
    return {
        "bursts": {
            "serving": states["serving"],
            "starting": states["starting"],
            "warm": report.warm,
            "redirected": {each.function: each.share for each in report.redirects},
            "price_hour": report.price_hour,
            "spent": report.spent,
            "spend_forecast": report.spend_forecast,
        }
    }


def _show_bursts(bursts: Mapping[str, Any]) -> None:
    shares = ", ".join(f"{share:.0%} of {name}" for name, share in bursts["redirected"].items())
    typer.echo(
        f"\ninstances: {bursts['serving']} serving, {bursts['starting']} starting, "
        f"{bursts['warm']} kept warm; redirected: {shares or 'nothing'}"
    )
    if bursts["price_hour"] or bursts["spent"]:
        typer.echo(
            f"cost: {bursts['price_hour']:g} an hour now, {bursts['spent']:.4g} so far, "
            f"{bursts['spend_forecast']:.4g} expected; `sublet scale status` has more"
        )


def functions(where: Where, as_json: bool) -> None:
    async def question(
        reached: Reached,
    ) -> tuple[list[FunctionDescription], Sequence[FunctionInfo]]:
        return await reached.client.describe_functions(), reached.report.topology.functions

    found, known = ask(where, question, as_json)
    undeclared = _undeclared(known)
    aliases = {each.name: each.aliases for each in known}
    if as_json:
        shown = [{**_as_json(each), "aliases": aliases.get(each.name, [])} for each in found]
        typer.echo(json.dumps({"ok": True, "functions": shown, "undeclared": undeclared}))
        return
    print_table(
        ("function", "kind", "message", "reply", "state", "partitions", "slo"),
        [
            (
                _names(each.name, aliases.get(each.name, [])),
                each.kind,
                each.message_type or "-",
                each.reply_type,
                each.state or "-",
                str(each.partition_count),
                "-" if each.slo_ms is None else duration_text(each.slo_ms),
            )
            for each in found
        ],
    )
    _show_undeclared(undeclared)


def _names(name: str, aliases: Sequence[str]) -> str:
    """Return the name under which a function is stored, and those that it has beside it."""
    return f"{name} (also {', '.join(aliases)})" if aliases else name


def _undeclared(functions: Sequence[FunctionInfo]) -> list[str]:
    """Return the functions that are stored, while their apps no longer have them."""
    apps = {each.name.partition("/")[0] for each in functions if not each.absent}
    return [each.name for each in functions if each.absent and each.name.partition("/")[0] in apps]


def _show_undeclared(names: list[str]) -> None:
    if names:
        typer.echo("")
    for name in names:
        typer.echo(f"{name} is {undeclared_text(name)}")


def undeclared_text(name: str) -> str:
    """Say what it means that a function is stored and not declared."""
    short = name.rpartition("/")[2]
    return (
        "stored, but no longer declared: its state is kept and not served; if it was renamed, "
        f'declare aliases=["{short}"] on the new function; if it is not needed any more, '
        f"`sublet state forget {name}`"
    )


def _as_json(function: FunctionDescription) -> dict[str, Any]:
    schemas = {
        name: json.loads(text) if text else None
        for name, text in (
            ("message_schema", function.message_schema),
            ("state_schema", function.state_schema),
        )
    }
    return {**msgspec.structs.asdict(function), **schemas}


async def cluster_reports(reached: Reached) -> dict[str, StatusReport | None]:
    """Return what each worker of the cluster says; None: no answer."""
    workers = reached.report.topology.workers
    reports = await asyncio.gather(*(_report_at(each) for each in workers.values()))
    return dict(zip(workers, reports, strict=True))


async def _report_at(address: str) -> StatusReport | None:
    async with UnaryClient(address) as client:
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                return await client.status()
        except (SubletError, TimeoutError):
            return None


def describe(
    report: StatusReport,
    workers: Reports,
    before: Reports,
    elapsed_s: float,
) -> dict[str, Any]:
    """Return the cluster as plain values, in a form that scripts may rely on.

    Rates come from two looks at the counters; without the first, there are none.
    """
    topology = report.topology
    placed = Counter(each.rpartition("/")[0] for each in topology.placement)
    totals: Counter[str] = Counter()
    queued: Counter[str] = Counter()
    costs: dict[str, FunctionCost] = {}
    for each in workers.values():
        if each is not None:
            totals.update(each.counters)
            for function, cost in each.costs.items():
                known = costs.get(function)
                if known is None or cost.message_ms + cost.fixed_ms > _one_ms(known):
                    costs[function] = cost
            for partition, count in each.queued.items():
                queued[partition.rpartition("/")[0]] += count
    shown: list[dict[str, Any]] = [
        {
            "id": worker,
            "address": topology.workers[worker],
            "reachable": told is not None,
            "draining": told is not None and told.draining,
            "partitions": sorted(told.partitions, key=_in_order) if told else [],
            "queued": dict(sorted(told.queued.items())) if told else {},
            "rates": _rates(told, before.get(worker), elapsed_s),
            "counters": dict(sorted(told.counters.items())) if told else {},
            "order": told.order if told else "",
            "store": _store(told),
            "not_ready": told.not_ready if told else "",
            "versions": dict(sorted(told.versions.items())) if told else {},
        }
        for worker, told in workers.items()
    ]
    return {
        "placement_version": topology.version,
        "workers": shown,
        "functions": [
            {
                "name": each.name,
                "kind": each.kind,
                "partition_count": each.partition_count,
                "partitions_placed": placed[each.name],
                "absent": each.absent,
                "aliases": each.aliases,
                "queued": queued[each.name],
                "cost": _cost(costs.get(each.name)),
            }
            for each in topology.functions
        ],
        "undeclared": _undeclared(topology.functions),
        "rates": {
            name: round(sum(each["rates"].get(name, 0.0) for each in shown), 3)
            for name in (RATES if before else ())
        },
        "counters": dict(sorted(totals.items())),
        "leases": _leases(workers),
        "quarantined": {
            partition: reason
            for each in workers.values()
            for partition, reason in sorted(each.quarantined.items() if each is not None else ())
        },
    }


def _store(told: StatusReport | None) -> dict[str, Any] | None:
    """Return what is wrong with a worker's store; None if nothing is known to be."""
    if told is None or not told.store_problem:
        return None
    return {"failing_s": round(told.store_failing_s, 3), "problem": told.store_problem}


def _leases(workers: Reports) -> list[dict[str, Any]]:
    """Return what became of leases, for each function and policy that workers follow for it."""
    found: dict[tuple[str, str, str], list[tuple[str, FunctionLeases]]] = {}
    for worker, report in workers.items():
        for function, told in report.leases.items() if report is not None else ():
            key = (function, told.binding, told.choice)
            found.setdefault(key, []).append((worker, told))
    leases = []
    for (function, binding, choice), telling in sorted(found.items()):
        counts: Counter[str] = Counter()
        for _, told in telling:
            counts.update(told.counts)
        # Whoever has lent the most knows best what it is good for.
        _, best = max(telling, key=lambda each: (each[1].counts.get("lent", 0), each[1].reason))
        leases.append(
            {
                "function": function,
                "binding": binding,
                "choice": choice,
                "reason": best.reason,
                "workers": [worker for worker, _ in telling],
                "counts": {name: round(count, 3) for name, count in sorted(counts.items())},
            }
        )
    return leases


def _rates(
    now: StatusReport | None, before: StatusReport | None, elapsed_s: float
) -> dict[str, float]:
    if now is None or before is None or elapsed_s <= 0:
        return {}
    return {
        # A partition that moved away takes its counters with it.
        name: round(
            max(0.0, now.counters.get(name, 0) - before.counters.get(name, 0)) / elapsed_s, 3
        )
        for name in RATES
    }


def _one_ms(cost: FunctionCost) -> float:
    return cost.fixed_ms + cost.message_ms


def _cost(cost: FunctionCost | None) -> dict[str, Any] | None:
    """What the worker to which a function costs most has learned of it; None: it never ran."""
    if cost is None:
        return None
    return {
        "fixed_ms": round(cost.fixed_ms, 6),
        "message_ms": round(cost.message_ms, 6),
        "path_ms": round(sum(ms for _, ms in cost.path), 6),
        "path": [function for function, _ in cost.path],
    }


def _in_order(partition: str) -> tuple[str, int]:
    function, _, index = partition.rpartition("/")
    return function, int(index)


def _store_line(workers: list[dict[str, Any]]) -> str:
    """Return what is wrong with the store, as the worker says that has waited longest for it."""
    failing = [each for each in workers if each["store"] is not None]
    if not failing:
        return ""
    worst = max(failing, key=lambda each: float(each["store"]["failing_s"]))["store"]
    reachable = sum(each["reachable"] for each in workers)
    at = "" if len(failing) == reachable else f" at {', '.join(each['id'] for each in failing)}"
    for_text = duration_text(round(worst["failing_s"]) * 1000)
    return f"store: failing for {for_text}{at} ({worst['problem']})\n"


def _show(described: dict[str, Any]) -> None:
    if line := _store_line(described["workers"]):
        typer.echo(line)
    waiting = [each for each in described["workers"] if each["not_ready"]]
    for each in waiting:
        typer.echo(f"{each['id']} is not ready: {each['not_ready']}")
    if waiting:
        typer.echo("")
    typer.echo("workers")
    print_table(
        (
            *("  worker", "address", "code", "partitions"),
            *("queued", "in flight", "messages/s", "missed/s"),
        ),
        [_worker_row(each) for each in described["workers"]],
    )
    if "bursts" in described:
        _show_bursts(described["bursts"])
    typer.echo("\nfunctions")
    print_table(
        ("  function", "kind", "partitions", "placed", "queued", "cost of a run", "then"),
        [
            (
                f"  {_names(each['name'], each['aliases'])}",
                each["kind"],
                str(each["partition_count"]),
                str(each["partitions_placed"]) + (" (no worker has it)" if each["absent"] else ""),
                count_text(each["queued"]),
                *_cost_cells(each["cost"]),
            )
            for each in described["functions"]
        ],
    )
    _show_undeclared(described["undeclared"])
    if described["quarantined"]:
        typer.echo("\nquarantined: not served because recovery failed (`sublet recover`)")
        rows = [(f"  {each}", reason) for each, reason in described["quarantined"].items()]
        print_table(("  partition", "reason"), rows)
    if described["leases"]:
        typer.echo("\nleases")
        heads = ("lent", "returned", "declined", "expired", "states sent")
        print_table(
            ("  function", "binding", "choice", "workers", *heads, "why"),
            [_lease_row(each) for each in described["leases"]],
        )
    typer.echo("\ncounters of all workers")
    print_table(
        ("  counter", "value"),
        [
            (f"  {shown}", text)
            for shown, text in starmap(quantity, described["counters"].items())
            if text not in ("0", "0 s", "0 B")
        ],
    )


def _lease_row(lease: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"  {lease['function']}",
        lease["binding"],
        lease["choice"],
        str(len(lease["workers"])),
        *(count_text(round(lease["counts"].get(name, 0))) for name in LEASE_COUNTS),
        lease["reason"].removeprefix(f"{lease['choice']}: ") or "-",
    )


def _cost_cells(cost: dict[str, Any] | None) -> tuple[str, str]:
    if cost is None:
        return "-", "-"
    own = f"{duration_text(cost['message_ms'])} a message"
    if cost["fixed_ms"]:
        own = f"{duration_text(cost['fixed_ms'])} + {own}"
    if not cost["path"]:
        return own, "-"
    way = " → ".join(name.partition("/")[2] for name in cost["path"])
    return own, f"{duration_text(cost['path_ms'])}: {way}"


def code_text(versions: Mapping[str, str]) -> str:
    """Return which code a worker has, in few words."""
    found = sorted(set(versions.values()))
    if len(found) <= 1:
        return found[0] if found else "-"
    return ", ".join(f"{app} {version}" for app, version in versions.items())


def _worker_row(worker: dict[str, Any]) -> tuple[str, ...]:
    name = f"  {worker['id']}"
    if not worker["reachable"]:
        return (name, worker["address"], "", "no answer", "", "", "", "")
    rates = worker["rates"]
    return (
        name,
        worker["address"],
        code_text(worker["versions"]),
        str(len(worker["partitions"])) + (" (draining)" if worker["draining"] else ""),
        count_text(sum(worker["queued"].values())),
        count_text(round(worker["counters"].get("in_flight", 0))),
        count_text(round(rates["consumed"], 1)) if rates else "-",
        count_text(round(rates["late"], 1)) if rates else "-",
    )
