"""`sublet run` and `sublet worker`: processes that serve until they are told to stop."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from sublet.functions.errors import SubletError
from sublet.runtime.cli.commands.config import settings_of
from sublet.runtime.cli.exit_codes import ExitCode, UsageError, exit_with
from sublet.runtime.cli.supervisor import (
    GaveUpError,
    Launch,
    ReadyNote,
    Supervisor,
    line_for_log,
    supervisor_socket,
)
from sublet.runtime.config.settings import ConfigError, WorkerConfig

if TYPE_CHECKING:
    from sublet.functions.app import Function
    from sublet.runtime.worker import Worker

_LOADER = re.compile(
    r"^<frozen importlib|/runtime/(cli/commands/run|config/app_loading)\.py$"
    r"|/importlib/__init__\.py$"
)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SWITCH_INTERVAL_S = 0.001
_START_FAILURES = (SubletError, ValueError, OSError)
"""What a worker raises while it starts when its surroundings are wrong, not its code."""


class _ToldError(Exception):
    """The worker could not start or go on, for a reason that needs no traceback."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


def run_workers(target: str | None, workers: int, flags: Mapping[str, object]) -> None:
    """Run until a signal; the exit status tells whether the workers could be kept alive."""
    try:
        config = settings_of(flags)
        launch = Launch(
            target=target_of(target, config),
            config=config,
            workers=workers,
            environment=os.environ,
        )
    except (ConfigError, UsageError) as error:
        exit_with(error)
    try:
        asyncio.run(_supervise(launch))
    except GaveUpError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(ExitCode.NO_CLUSTER) from None


async def _supervise(launch: Launch) -> None:
    as_json = launch.config.log_format == "json"
    log = ProcessLog(as_json)
    supervisor = Supervisor(launch, log.line, log.event)
    on_signals(supervisor.stop, supervisor.kill)
    gave_up: GaveUpError | None = None
    async with asyncio.TaskGroup() as tasks:
        greeting = tasks.create_task(_greet(supervisor, launch))
        try:
            await supervisor.run()
        except GaveUpError as error:
            # Raised inside the group, it would come out wrapped.
            gave_up = error
        finally:
            greeting.cancel()
    if gave_up is not None:
        raise gave_up


async def _greet(supervisor: Supervisor, launch: Launch) -> None:
    """Once all workers are ready, say where they are and what to type next."""
    await supervisor.ready.wait()
    notes = [note for _, note in sorted(supervisor.notes.items())]
    if launch.config.log_format == "json" or not notes:
        return
    default = launch.config.data_dir == WorkerConfig().data_dir
    where = "" if default else f"--data-dir {launch.config.data_dir} "
    ready = "1 worker is ready" if len(notes) == 1 else f"{len(notes)} workers are ready"
    typer.echo(f"\n{ready}: {', '.join(note.address for note in notes)}")
    if serving := [note.http for note in notes if note.http]:
        typer.echo(f"HTTP: {', '.join(f'http://{each}' for each in serving)}")
    typer.echo(f"functions: {', '.join(notes[0].functions)}")
    typer.echo("from another terminal:")
    typer.echo(f"  sublet call {where}{notes[0].functions[0]} KEY JSON")
    typer.echo(f"  sublet status {where}".rstrip())
    typer.echo("Ctrl-C stops them.\n")


class ProcessLog:
    """Writes what the workers write and what happens to them on standard error."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def line(self, index: int, line: str) -> None:
        typer.echo(line_for_log(index, line, self._as_json), err=True)

    def event(self, index: int, text: str) -> None:
        self.line(index, text)


def run_worker(target: str | None, flags: Mapping[str, object], supervisor_fd: int | None) -> None:
    """Run one worker in this process until a signal or the end of its supervisor."""
    try:
        config = settings_of(flags)
        functions = _functions(target_of(target, config))
        _make_data_dir(config.data_dir)
    except (ConfigError, UsageError) as error:
        exit_with(error)
    import uvloop

    from sublet.runtime.observability.logging_setup import set_up_logging

    set_up_logging(config.log_level, config.log_format, colors=sys.stderr.isatty(), pid=os.getpid())
    # A handler that computes in a thread lets the loop go on after this time, not after 5 ms: the
    # loop answers callers and peers meanwhile.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        uvloop.run(_serve(functions, config, supervisor_fd))
    except _ToldError as error:
        exit_with(error.cause)


def _told_failure(
    errors: BaseExceptionGroup[BaseException],
    known: type[Exception] | tuple[type[Exception], ...],
) -> Exception | None:
    """Return what a person can do something about, if that is all that went wrong."""
    leaves = _leaves(errors)
    told = [each for each in leaves if isinstance(each, known)]
    return told[0] if len(told) == len(leaves) else None


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for each in error.exceptions for leaf in _leaves(each)]


def _functions(target: str) -> dict[str, Function]:
    from sublet.runtime.config.app_loading import LoadError, load_functions

    try:
        return load_functions(target, Path.cwd())
    except LoadError as error:
        raise UsageError(str(error)) from None
    except Exception as error:
        # User code: its traceback is what helps, without the frames that led to it.
        told = traceback.TracebackException.from_exception(error)
        told.stack = traceback.StackSummary.from_list(
            frame for frame in told.stack if not _LOADER.search(frame.filename)
        )
        trace = "".join(told.format(chain=False)).rstrip()
        raise UsageError(f"{target} failed while it was imported:\n{trace}") from None


def _make_data_dir(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"data_dir is {path}, which cannot be created: {error.strerror}; allowed: a "
            "folder that this user may write"
        ) from None


async def _serve(
    functions: Mapping[str, Function], config: WorkerConfig, supervisor_fd: int | None
) -> None:
    from sublet.runtime.worker import Worker

    worker = Worker(functions, config)
    try:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(worker.run())
            on_signals(worker.stop, lambda: running.cancel())
            watching = tasks.create_task(_watch(worker, sorted(functions), supervisor_fd))
            running.add_done_callback(lambda _: watching.cancel())
            settling = tasks.create_task(_settle(worker))
            running.add_done_callback(lambda _: settling.cancel())
    except BaseExceptionGroup as errors:
        known = SubletError if worker.ready.is_set() else _START_FAILURES
        failure = _told_failure(errors, known)
        if failure is None:
            raise
        raise _ToldError(failure) from None


async def _settle(worker: Worker) -> None:
    """Spare the garbage collector what was loaded until the worker was ready: it stays.

    A full collection that goes through all modules stops the loop for 30 ms and more, at moments
    in which much is new, such as when a partition has just come.
    """
    await worker.ready.wait()
    gc.collect()
    gc.freeze()


async def _watch(worker: Worker, functions: list[str], supervisor_fd: int | None) -> None:
    """Tell when the worker is ready, and stop it when its supervisor is gone."""
    if supervisor_fd is None:
        return
    reader, writer = await asyncio.open_connection(sock=supervisor_socket(supervisor_fd))
    try:
        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(_tell(worker, functions, writer))
            # Nothing comes from the supervisor but its end.
            await reader.read()
            telling.cancel()
            _log().warning("the supervisor is gone")
            worker.stop()
    finally:
        writer.close()


async def _tell(worker: Worker, functions: list[str], writer: asyncio.StreamWriter) -> None:
    await worker.ready.wait()
    note = ReadyNote(
        address=worker.address, pid=os.getpid(), functions=functions, http=worker.http_address
    )
    writer.write(msgspec.json.encode(note) + b"\n")
    await writer.drain()
    await worker.stopping.wait()
    if worker.is_drained:
        writer.write(msgspec.json.encode(msgspec.structs.replace(note, drained=True)) + b"\n")
        await writer.drain()


def target_of(target: str | None, config: WorkerConfig) -> str:
    """Return the app that is meant; raises `UsageError` if nobody said."""
    if target or config.app:
        return target or config.app
    raise UsageError(
        "no app given; name it after the command (module:app or path/to/file.py:app), or "
        'set app = "module:app" in sublet.toml'
    )


def on_signals(first: Callable[[], object], again: Callable[[], object]) -> None:
    """Answer the first signal to stop with `first`, every later one with `again`."""
    loop = asyncio.get_running_loop()
    seen: list[signal.Signals] = []

    def answer(number: signal.Signals) -> None:
        seen.append(number)
        (first if len(seen) == 1 else again)()

    for number in _SIGNALS:
        loop.add_signal_handler(number, answer, number)


def _log() -> Any:
    import structlog

    return structlog.get_logger("sublet")
