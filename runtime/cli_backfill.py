"""`sublet backfill`: feed history to a function, behind all live traffic."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from sublet.functions.errors import SubletError
from sublet.runtime.cli_cluster import Reached, Where, ask
from sublet.runtime.cli_exit import ExitCode, UsageError, exit_with
from sublet.runtime.cli_table import print_table

if TYPE_CHECKING:
    from sublet.spark_bridge.backfill import Backfill, BackfillPlan, BackfillResult


class Asked(NamedTuple):
    """What is to be fed, as it was typed."""

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


def backfill(asked: Asked, where: Where, as_json: bool) -> None:
    try:
        # Here, as both take long to import; the command line is where all parts meet.
        from sublet.spark_bridge import backfill as bridge
        from sublet.spark_bridge.history import files_in
    except ModuleNotFoundError as error:
        text = f"there is no {error.name}; install it with `pip install 'sublet[spark]'`"
        exit_with(UsageError(text), as_json=as_json)

    async def question(reached: Reached) -> None:
        from sublet.runtime.client import Client

        wanted = bridge.Backfill(
            target=reached.full_name(asked.target),
            name=asked.name,
            files=tuple(files_in(asked.files, asked.format_name)),
            key=tuple(each.strip() for each in asked.key.split(",")),
            payload=asked.payload,
            format_name=asked.format_name,
            batch_rows=asked.batch_rows,
            time=asked.time,
            until=asked.until,
            rate=asked.rate,
        )
        async with Client(list(reached.report.topology.workers.values())) as client:
            planned = await bridge.plan(client, wanted)
            if asked.dry_run:
                _tell_plan(wanted, planned, as_json)
                return
            with _Bar(wanted, planned, quiet=as_json) as bar:
                result = await bridge.run(client, wanted, planned, bar.tell)
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
        typer.echo("\ninterrupted; the same command goes on from here", err=True)
        raise typer.Exit(ExitCode.FAILED) from None


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


class _Bar:
    """A bar on standard error; what is printed can go into a file."""

    def __init__(self, backfill: Backfill, planned: BackfillPlan, *, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[told]}"),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self._files = backfill.files
        self._by_rows = planned.row_count is not None and planned.after < 0 and not backfill.until
        total = planned.row_count if self._by_rows else len(backfill.files)
        unit = "rows" if self._by_rows else "files"
        self._task = self._progress.add_task(backfill.name, total=total, unit=unit, told="")

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def tell(self, told: Any) -> None:
        dead = f", {told.rows_dead} dead letters" if told.rows_dead else ""
        text = f"{told.rows} rows, {told.rows_waiting} wait{dead} ({self._files[told.file].name})"
        done = told.rows if self._by_rows else told.file
        self._progress.update(self._task, completed=done, told=text)


def _tell_plan(backfill: Backfill, planned: BackfillPlan, as_json: bool) -> None:
    from sublet.spark_bridge.history import FILE_STEP

    size_bytes = sum(each.size_bytes for each in backfill.files)
    found = {
        "name": backfill.name,
        "target": backfill.target,
        "files": len(backfill.files),
        "bytes": size_bytes,
        "rows": planned.row_count,
        "key": list(backfill.key),
        "fields": list(planned.layout.fields),
        "begins_with": _begins(backfill, planned),
        "complete": planned.completed_ms is not None,
    }
    if as_json:
        typer.echo(json.dumps({"ok": True, "dry_run": True, **found}))
        return
    rows = [(name, _plain(value)) for name, value in found.items()]
    print_table(("", ""), rows)
    if planned.after >= 0 and planned.completed_ms is None:
        file = planned.after // FILE_STEP
        typer.echo(f"it would go on in {backfill.files[file].name}", err=True)
    typer.echo("nothing was changed", err=True)


def _begins(backfill: Backfill, planned: BackfillPlan) -> str | None:
    from sublet.spark_bridge.history import FILE_STEP

    if planned.completed_ms is not None:
        return None
    return backfill.files[max(0, planned.after) // FILE_STEP].name


def _plain(value: Any) -> str:
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
            f"{result.rows_dead} rows failed for good: `sublet dead list {function}` shows them",
            err=True,
        )
