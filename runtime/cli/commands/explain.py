"""`sublet why`, `slow` and `cancel`: where the time of requests goes, and an end for one."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any, NamedTuple

import typer

from sublet.functions.duration import milliseconds
from sublet.functions.errors import RejectedError, SubletError
from sublet.runtime.cli.cluster_lookup import Reached, Where, ask
from sublet.runtime.cli.exit_codes import UsageError, exit_with
from sublet.runtime.cli.table import print_table
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.observability.telemetry import parse_request_id
from sublet.runtime.protocol.rpc import (
    AdministerRequest,
    CancelRequest,
    ExplainRequest,
    RequestTimes,
)

BAR_CHARS = 30
_ANSWER_TIMEOUT_S = 5.0
_MEANING = {
    "admission": "it waited at its sender for capacity",
    "queue": "it waited in the worker's queue",
    "batch": "it waited for its batch to fill",
    "state": "its state was read from the store",
    "away": "it was lent to a peer or an instance, and waited for its turn there",
    "running": "the handler ran, including the calls it waited for",
    "committing": "the store committed",
    "wire and reply": "it was in transit, or its caller was slow to read the reply",
}


class Explained(NamedTuple):
    requests: list[RequestTimes]
    silent: list[str]
    """Workers that did not answer."""


def why(request: str, seen: str, where: Where, as_json: bool) -> None:
    try:
        parse_request_id(request)
        seen_ms = milliseconds(seen) if seen else None
    except ValueError as error:
        exit_with(UsageError(str(error)), as_json=as_json)

    async def question(reached: Reached) -> dict[str, Any]:
        explained = await _ask_all(reached, ExplainRequest(request_id=request))
        if not explained.requests:
            unknown = (
                f"; no response from {', '.join(explained.silent)}" if explained.silent else ""
            )
            raise RejectedError(
                f"no worker remembers {request}: each keeps the slowest 100 of the last minutes "
                f"and the last 1,000 that missed their deadline{unknown}; `sublet slow` lists them"
            )
        return described(explained.requests[0], seen_ms)

    found = ask(where, question, as_json)
    if as_json:
        typer.echo(json.dumps({"ok": True, **found}))
    else:
        for line in drawing(found):
            typer.echo(line)


def cancel(request: str, where: Where, as_json: bool) -> None:
    try:
        parse_request_id(request)
    except ValueError as error:
        exit_with(UsageError(str(error)), as_json=as_json)

    async def question(reached: Reached) -> None:
        action = CancelRequest(request_id=request)
        await reached.client.administer(AdministerRequest(action=action))

    ask(where, question, as_json)
    if as_json:
        typer.echo(json.dumps({"ok": True, "id": request}))
    else:
        typer.echo("cancelled")


class Which(NamedTuple):
    """Which requests are asked for; neither: the slowest."""

    missed: bool
    running: bool


def slow(function: str, which: Which, limit: int, where: Where, as_json: bool) -> None:
    if which.missed and which.running:
        exit_with(UsageError("use --missed or --running, not both"), as_json=as_json)

    async def question(reached: Reached) -> Explained:
        name = reached.full_name(function) if function else ""
        request = ExplainRequest(
            missed=which.missed, running=which.running, function=name, limit=limit
        )
        return await _ask_all(reached, request)

    explained = ask(where, question, as_json)
    order = (lambda each: -each.at_ms) if which.missed else (lambda each: -each.total_ms)
    found = [described(each) for each in sorted(explained.requests, key=order)[:limit]]
    if as_json:
        typer.echo(json.dumps({"ok": True, "requests": found, "no_answer": explained.silent}))
        return
    print_table(
        ("total ms", "most of it", "late", "at", "id"),
        [
            (
                f"{each['total_ms']:.1f}",
                f"{each['longest']} {each['stages'][each['longest']]:.1f}",
                str(each["late"]) if each["late"] else "-",
                each["at"],
                each["id"],
            )
            for each in found
        ],
    )
    if not found:
        nothing = "nothing missed its deadline" if which.missed else "nothing has run yet"
        typer.echo("nothing is open" if which.running else nothing, err=True)
    if explained.silent:
        typer.echo(f"no response from {', '.join(explained.silent)}", err=True)


async def _ask_all(reached: Reached, request: ExplainRequest) -> Explained:
    workers = reached.report.topology.workers
    answers = await asyncio.gather(*(_ask_at(each, request) for each in workers.values()))
    silent = [
        worker for worker, explained in zip(workers, answers, strict=True) if explained is None
    ]
    return Explained([each for explained in answers for each in explained or ()], silent)


async def _ask_at(address: str, request: ExplainRequest) -> list[RequestTimes] | None:
    async with UnaryClient(address) as client:
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                return await client.explain(request)
        except RejectedError:
            raise
        except (SubletError, TimeoutError):
            return None


def described(times: RequestTimes, seen_ms: float | None = None) -> dict[str, Any]:
    """Return a request's times as plain values, in a form that scripts may rely on.

    What its caller saw beyond them was on the wire, or in the reply's way back.
    """
    stages = {stage: round(ms, 3) for stage, ms in times.stages.items()}
    if seen_ms is not None:
        stages["wire and reply"] = round(max(0.0, seen_ms - times.total_ms), 3)
    longest = max(stages, key=lambda stage: stages[stage])
    total_ms = sum(stages.values())
    return {
        "id": times.id,
        "function": times.function,
        "worker": times.worker,
        "at": _time(times.at_ms),
        "at_ms": times.at_ms,
        "count": times.count,
        "late": times.late,
        "attempt": times.attempt,
        "trace_id": times.trace[3:35],
        "stages": stages,
        "total_ms": round(total_ms, 3),
        "longest": longest,
        "share": round(stages[longest] / total_ms, 3) if total_ms else 0.0,
    }


def drawing(request: dict[str, Any]) -> list[str]:
    """Return a request's stages as bars, and one sentence about the longest."""
    stages: dict[str, float] = request["stages"]
    width = max(map(len, stages))
    largest = max(stages.values()) or 1.0
    together = f", with {request['count'] - 1} others" if request["count"] > 1 else ""
    again = f", attempt {request['attempt']}" if request["attempt"] > 1 else ""
    late = ", MISSED its deadline" if request["late"] else ""
    head = f"arrived {request['at']} at {request['worker']}{together}{again}{late}"
    lines = [request["id"], f"{request['function']}, {head}", ""]
    for stage, ms in stages.items():
        bar = "█" * max(1 if ms else 0, round(BAR_CHARS * ms / largest))
        lines.append(f"  {stage.ljust(width)}  {ms:10.1f} ms  {bar}".rstrip())
    lines.append(f"  {'total'.ljust(width)}  {request['total_ms']:10.1f} ms")
    if request["trace_id"]:
        lines.append(f"  trace {request['trace_id']}")
    longest = request["longest"]
    lines += ["", f"{request['share']:.0%} of it was {longest}: {_MEANING[longest]}."]
    return lines


def _time(at_ms: int) -> str:
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % 1000:03d}Z"
