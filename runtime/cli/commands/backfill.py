"""`sublet backfill`: feed history to a function, behind all live traffic."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from sublet.functions.errors import SubletError
from sublet.runtime.cli.cluster_lookup import Reached, Where, ask
from sublet.runtime.cli.exit_codes import ExitCode, UsageError, exit_with, tell_waiting
from sublet.runtime.cli.table import print_table

if TYPE_CHECKING:
    from sublet.spark_bridge.history.backfill import (
        Backfill,
        BackfillPlan,
        BackfillProgress,
        BackfillResult,
    )


LINE_EVERY_S = 10.0
"""How often people are told how far it is where there is no terminal, such as in a log."""


class BackfillArguments(NamedTuple):
    """What to feed, as typed."""

    files: list[str]
    target: str
    key: str
    name: str
    payload: str
    format_name: str | None
    batch_rows: int
    time: str
    until: str
    rate: float | None
    dry_run: bool


def backfill(arguments: BackfillArguments, where: Where, as_json: bool) -> None:
    try:
        # Here, as both take long to import; the command line is where all parts meet.
        from sublet.spark_bridge.history import backfill as bridge
        from sublet.spark_bridge.history.files import files_in
    except ModuleNotFoundError as error:
        text = f"{error.name} is not installed; run `pip install 'sublet[spark]'`"
        exit_with(UsageError(text), as_json=as_json)

    async def question(reached: Reached) -> None:
        from sublet.runtime.client.client import Client

        wanted = bridge.Backfill(
            target=reached.full_name(arguments.target),
            name=arguments.name,
            files=tuple(files_in(arguments.files, arguments.format_name)),
            key=tuple(each.strip() for each in arguments.key.split(",")),
            payload=arguments.payload,
            format_name=arguments.format_name,
            batch_rows=arguments.batch_rows,
            time=arguments.time,
            until=arguments.until,
            rate=arguments.rate,
        )
        addresses = list(reached.report.topology.workers.values())
        async with Client(addresses, tell=tell_waiting) as client:
            with _Bar(wanted, quiet=as_json) as bar:
                planned = await bridge.plan(client, wanted, bar.looked)
                bar.go_on(planned)
                if arguments.dry_run:
                    rows = await bridge.rehearse(client, wanted, planned, bar.looked)
                else:
                    result = await bridge.run(client, wanted, planned, bar.tell)
            if arguments.dry_run:
                _tell_plan(wanted, planned, rows, as_json)
            else:
                _tell_result(wanted, result, as_json)

    try:
        ask(where, question, as_json)
    except BaseExceptionGroup as group:
        # Whatever went wrong in the task that reads ahead.
        first = _first(group)
        if isinstance(first, SubletError):
            exit_with(first, as_json=as_json)
        raise
    except KeyboardInterrupt:
        typer.echo("\ninterrupted; run the same command to resume", err=True)
        raise typer.Exit(ExitCode.FAILED) from None


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


class ProgressLines:
    """Lines that say how far it is, not too often."""

    def __init__(self, clock: Callable[[], float], say: Callable[[str], None]) -> None:
        self._clock = clock
        self._say = say
        self._told_s = clock()

    def tell(self, text: str) -> None:
        """Say it, unless something was said a moment ago."""
        if self._clock() - self._told_s >= LINE_EVERY_S:
            self._told_s = self._clock()
            self._say(text)


def progress_text(told: BackfillProgress, elapsed_s: float) -> str:
    """Return what people want to know of what this run has done."""
    speed = f"{told.rows / elapsed_s:,.0f}" if elapsed_s > 0 else "0"
    dead = f", {told.rows_dead:,} dead letters" if told.rows_dead else ""
    return f"{told.rows:,} rows, {speed} rows/s, {told.rows_waiting:,} waiting{dead}"


class _Bar:
    """A bar on standard error; lines, if it is no terminal. What is printed can go into a file."""

    def __init__(self, backfill: Backfill, *, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        console = Console(stderr=True)
        is_shown = not quiet and console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[told]}", markup=False),
            console=console,
            disable=not is_shown,
            transient=True,
        )
        self._lines: ProgressLines | None = None
        if not quiet and not is_shown:
            self._lines = ProgressLines(time.monotonic, lambda text: typer.echo(text, err=True))
        self._name = backfill.name
        self._files = [each.name for each in backfill.files]
        # At first, nobody knows how many rows there are.
        self._before = list(accumulate((each.size_bytes for each in backfill.files), initial=0))
        self._are_rows = False
        self._began_s = time.monotonic()
        self._task = self._bar.add_task("looking", total=None, told="")

    def __enter__(self) -> _Bar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def looked(self, file: int, rows: int) -> None:
        """So many rows of a file were read, and nothing was done about them."""
        told = f"{rows:,} rows of {self._files[file]}"
        if self._are_rows:
            self._show("checking", self._before[file] + rows, told)
        else:
            self._show("looking", self._before[file], told)

    def go_on(self, planned: BackfillPlan) -> None:
        """Files were looked at; what follows is measured in rows."""
        self._before = planned.history.rows_before
        self._are_rows = True
        self._began_s = time.monotonic()
        self._bar.reset(self._task)

    def tell(self, told: BackfillProgress) -> None:
        """Rows were committed."""
        text = progress_text(told, time.monotonic() - self._began_s)
        self._show(self._name, told.rows_read, f"{text} ({self._files[told.file]})")

    def _show(self, what: str, done: int, told: str) -> None:
        total = self._before[-1]
        self._bar.update(self._task, description=what, completed=done, total=total, told=told)
        if self._lines is not None:
            percent = 100 * done // total if total else 100
            self._lines.tell(f"{what}: {percent} %, {told}")


def _tell_plan(backfill: Backfill, planned: BackfillPlan, rows: int, as_json: bool) -> None:
    from sublet.spark_bridge.history.files import FILE_STEP

    size_bytes = sum(each.size_bytes for each in backfill.files)
    schema = planned.history.schema
    types = zip(schema.names, map(str, schema.types), strict=True)
    found = {
        "name": backfill.name,
        "target": backfill.target,
        "files": len(backfill.files),
        "bytes": size_bytes,
        "rows": rows,
        "columns": dict(types),
        "key": list(backfill.key),
        "fields": list(planned.layout.fields),
        "begins_with": _begins(backfill, planned),
        "complete": planned.completed_ms is not None,
    }
    if as_json:
        typer.echo(json.dumps({"ok": True, "dry_run": True, **found}))
        return
    print_table(("", ""), [(name, _plain(value)) for name, value in found.items()])
    if planned.after >= 0 and planned.completed_ms is None:
        file = planned.after // FILE_STEP
        typer.echo(f"it would resume in {backfill.files[file].name}", err=True)
    typer.echo("nothing was changed", err=True)


def _begins(backfill: Backfill, planned: BackfillPlan) -> str | None:
    from sublet.spark_bridge.history.files import FILE_STEP

    if planned.completed_ms is not None:
        return None
    return backfill.files[max(0, planned.after) // FILE_STEP].name


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {kind}" for name, kind in value.items())
    if isinstance(value, list):
        return ", ".join(value)
    return "not known" if value is None else str(value)


def _tell_result(backfill: Backfill, result: BackfillResult, as_json: bool) -> None:
    at = datetime.fromtimestamp(result.completed_ms / 1000, UTC).isoformat(timespec="seconds")
    if as_json:
        found = {
            "name": backfill.name,
            "target": backfill.target,
            "files": len(backfill.files),
            "rows": result.rows,
            "dead": result.rows_dead,
            "completed_at": at,
            "mark": result.mark,
        }
        typer.echo(json.dumps({"ok": True, **found}))
        return
    until = f", until {result.mark}" if result.mark else ""
    if result.was_complete:
        typer.echo(f"{backfill.name} was complete at {at}{until}; nothing was left to do")
    else:
        typer.echo(f"{backfill.name} is complete: {result.rows} rows in this run{until}")
    if result.rows_dead:
        function = backfill.target
        typer.echo(
            f"{result.rows_dead} rows failed permanently; see `sublet dead list {function}`",
            err=True,
        )
