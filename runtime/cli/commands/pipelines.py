"""`sublet pipelines`: what has brought rows in batches, until it is forgotten.

Spark queries, named writes and backfills are pipelines of one function each. Where they are decided
(the function's first partition) all of them are known; how many rows wait, each partition knows.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from sublet.functions.errors import OverloadedError, RejectedError, SubletError
from sublet.runtime.cli.cluster_lookup import Reached, Where, ask
from sublet.runtime.cli.exit_codes import ExitCode, UsageError, confirm, exit_with, tell_waiting
from sublet.runtime.cli.table import one_line, print_table, time_text
from sublet.runtime.client.pipeline_protocol import PipelineProgress
from sublet.runtime.client.pipelines import Pipeline
from sublet.runtime.protocol.pipeline_messages import MARK_MAX, KnownPipeline

if TYPE_CHECKING:
    from sublet.runtime.client.client import Client

_TIMEOUT = "10s"
"""For who only looks: a partition that moves is back by then."""
_NEAR_MAX = 3
_NOTHING = PipelineProgress(-1, 0, 0, 0)


class Named(NamedTuple):
    """Which pipeline is meant, as it was typed."""

    function: str
    name: str


class Found(NamedTuple):
    """One that the cluster knows."""

    function: str
    known: KnownPipeline
    progress: PipelineProgress


class _Completed(NamedTuple):
    found: Found
    was_complete: bool


def list_all(function: str, where: Where, as_json: bool) -> None:
    async def question(reached: Reached) -> list[tuple[str, KnownPipeline]]:
        functions = (
            [reached.full_name(function)]
            if function
            else sorted(each.name for each in reached.report.topology.functions)
        )
        async with _client(reached) as client:
            return [
                (each, known)
                for each in functions
                for known in await client.pipelines(each, timeout=_TIMEOUT)
            ]

    found = ask(where, question, as_json)
    if as_json:
        pipelines = [_described(each, known) for each, known in found]
        typer.echo(json.dumps({"ok": True, "pipelines": pipelines}))
        return
    print_table(
        ("function", "name", "last batch", "complete", "mark"),
        [
            (each, known.name, _batch(known.decided), _completed(known), known.mark)
            for each, known in found
        ],
    )
    if not found:
        typer.echo("no pipelines", err=True)


def show(named: Named, where: Where, as_json: bool) -> None:
    async def question(reached: Reached) -> Found:
        function = reached.full_name(named.function)
        async with _client(reached) as client:
            return (await _all_found(client, function, [named.name]))[0]

    found = ask(where, question, as_json)
    if as_json:
        typer.echo(json.dumps({"ok": True, **_all_described(found)}))
        return
    function, known, progress = found
    for name, value in (
        ("function", function),
        ("name", known.name),
        ("last batch", _batch(known.decided)),
        ("sealed batch", _batch(progress.sealed)),
        ("rows waiting", str(progress.rows_waiting)),
        ("rows staged", str(progress.rows_staged)),
        ("rows dead", str(progress.rows_dead)),
        ("complete", _completed(known)),
        ("mark", known.mark or "-"),
    ):
        typer.echo(f"{name}: {one_line(value)}")
    if progress.rows_dead:
        typer.echo(f"see `sublet dead list {function}` for rows that failed permanently", err=True)


def complete(named: Named, mark: str, is_new: bool, where: Where, as_json: bool) -> None:
    if len(mark) > MARK_MAX:
        error = UsageError(f"--mark has {len(mark)} characters; allowed: {MARK_MAX}")
        exit_with(error, as_json=as_json)

    async def question(reached: Reached) -> _Completed:
        function = reached.full_name(named.function)
        async with _client(reached) as client:
            found = await _to_complete(client, function, named.name, is_new)
            if found.known.completed_ms is not None:
                return _Completed(found, was_complete=True)
            _tell_left(found, quiet=as_json)
            # In an outage it goes on for minutes: who waits for rows has time.
            pipeline = client.pipeline(function, named.name)
            said = await pipeline.complete(mark)
            now = KnownPipeline(named.name, found.known.decided, said.completed_ms, said.mark)
            return _Completed(Found(function, now, await pipeline.progress()), was_complete=False)

    try:
        found, was_complete = ask(where, question, as_json)
    except KeyboardInterrupt:
        typer.echo("\ninterrupted; run the same command to resume", err=True)
        raise typer.Exit(ExitCode.FAILED) from None
    if as_json:
        told = {"was_complete": was_complete, **_all_described(found)}
        typer.echo(json.dumps({"ok": True, **told}))
        return
    known = found.known
    marked = f", mark {one_line(known.mark)}" if known.mark else ""
    if was_complete:
        typer.echo(f"{known.name} was complete at {_completed(known)}{marked}; that stays")
    else:
        typer.echo(f"{known.name} is complete{marked}")


def forget(function: str, names: Sequence[str], yes: bool, where: Where, as_json: bool) -> None:
    async def question(reached: Reached) -> list[Found]:
        full_name = reached.full_name(function)
        async with _client(reached) as client:
            # All of them first, so that a refusal means that nothing has happened.
            found = await _all_found(client, full_name, list(dict.fromkeys(names)))
        _check_idle(found)
        # Nobody waits for an answer while a link is open: whoever thinks for long would lose it.
        confirm(question_of(found), yes=yes)
        async with _client(reached) as client:
            for index, each in enumerate(found):
                try:
                    await _pipeline(client, full_name, each.known.name).forget()
                except SubletError as error:
                    text = f"{error} ({index} of {len(found)} are forgotten)"
                    raise RejectedError(text) from None
        return found

    found = ask(where, question, as_json)
    if as_json:
        forgotten = [each.known.name for each in found]
        told = {"function": found[0].function, "forgotten": forgotten}
        typer.echo(json.dumps({"ok": True, **told}))
    else:
        typer.echo(f"{len(found)} forgotten")


# What is said


def unknown(function: str, name: str, known: Collection[str]) -> str:
    """Return what is to be said of a name that nobody knows: which are similar."""
    if not known:
        return f"there is no pipeline {name!r} of {function}; it has none"
    begun = sorted(each for each in known if name and each.startswith(name))
    near = dict.fromkeys([*begun, *difflib.get_close_matches(name, known, _NEAR_MAX)])
    guess = f"did you mean {' or '.join(list(near)[:_NEAR_MAX])}? " if near else ""
    return (
        f"there is no pipeline {name!r} of {function}; {guess}"
        f"`sublet pipelines list {function}` shows all"
    )


def question_of(found: Sequence[Found]) -> str:
    """Return what is asked before pipelines are forgotten, with what that may lead to."""
    function = found[0].function
    names = [each.known.name for each in found]
    what = f"pipeline {names[0]}" if len(names) == 1 else f"{len(names)} pipelines"
    staged = sum(each.progress.rows_staged for each in found)
    told = [
        f"Forget {what} of {function}? If a Spark query with that checkpoint comes back, its last "
        "batch is delivered again, as new rows; a write or backfill of that name, all of it."
    ]
    if staged:
        told.append(f"{staged} staged rows that are not committed are dropped.")
    if any(each.known.completed_ms is not None for each in found):
        told.append("Streams with the option `after` would wait for it again.")
    return " ".join(told)


def _described(function: str, known: KnownPipeline) -> dict[str, Any]:
    at_ms = known.completed_ms
    return {
        "function": function,
        "name": known.name,
        "decided": _number(known.decided),
        "complete": at_ms is not None,
        "completed_at": None if at_ms is None else time_text(at_ms),
        "completed_at_ms": at_ms,
        "mark": known.mark,
    }


def _all_described(found: Found) -> dict[str, Any]:
    progress = found.progress
    return {
        **_described(found.function, found.known),
        "sealed": _number(progress.sealed),
        "rows_waiting": progress.rows_waiting,
        "rows_staged": progress.rows_staged,
        "rows_dead": progress.rows_dead,
    }


def _number(batch: int) -> int | None:
    return None if batch < 0 else batch


def _batch(batch: int) -> str:
    return "-" if batch < 0 else str(batch)


def _completed(known: KnownPipeline) -> str:
    return "no" if known.completed_ms is None else time_text(known.completed_ms)


def _tell_left(found: Found, *, quiet: bool) -> None:
    """Say for what a completion waits, and for what it does not."""
    waiting, staged = found.progress.rows_waiting, found.progress.rows_staged
    if waiting and not quiet:
        typer.echo(f"{waiting} rows are waiting; it is complete once they are consumed", err=True)
    if staged and not quiet:
        typer.echo(f"{staged} rows are staged but not committed; they do not count", err=True)


# What is asked


@asynccontextmanager
async def _client(reached: Reached) -> AsyncIterator[Client]:
    from sublet.runtime.client.client import Client

    addresses = list(reached.report.topology.workers.values())
    async with Client(addresses, tell=tell_waiting) as client:
        yield client


def _pipeline(client: Client, function: str, name: str) -> Pipeline:
    try:
        return client.pipeline(function, name, timeout=_TIMEOUT)
    except RejectedError as error:
        raise UsageError(str(error)) from None


async def _survey(client: Client, function: str) -> dict[str, KnownPipeline]:
    return {each.name: each for each in await client.pipelines(function, timeout=_TIMEOUT)}


async def _find(
    client: Client, function: str, name: str, known: Mapping[str, KnownPipeline]
) -> Found | None:
    progress = await _pipeline(client, function, name).progress()
    if name in known:
        return Found(function, known[name], progress)
    if progress == _NOTHING:
        return None
    # Rows are staged, or were left behind, where it is not decided.
    return Found(function, KnownPipeline(name, -1, None, ""), progress)


async def _all_found(client: Client, function: str, names: Sequence[str]) -> list[Found]:
    known = await _survey(client, function)
    found: list[Found] = []
    for name in names:
        each = await _find(client, function, name, known)
        if each is None:
            raise UsageError(unknown(function, name, known))
        found.append(each)
    return found


async def _to_complete(client: Client, function: str, name: str, is_new: bool) -> Found:
    known = await _survey(client, function)
    found = await _find(client, function, name, known)
    if found is not None:
        return found
    if not is_new:
        raise UsageError(
            f"{unknown(function, name, known)}; add --new if the name is right and has no "
            "rows: completion is permanent, and streams that wait for it continue at once"
        )
    return Found(function, KnownPipeline(name, -1, None, ""), _NOTHING)


def _check_idle(found: Sequence[Found]) -> None:
    for each in found:
        # The workers would say so, but only some of them: others would have forgotten it by then.
        if rows := each.progress.rows_waiting:
            raise OverloadedError(
                f"{rows} rows of {each.known.name} are waiting in {each.function}; forget it later",
                1_000,
            )
