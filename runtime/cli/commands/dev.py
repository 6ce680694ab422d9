"""`sublet dev`: one worker that is started again when its source changes."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import typer

from sublet.runtime.cli.commands.config import settings_of
from sublet.runtime.cli.commands.run import ProcessLog, on_signals, target_of
from sublet.runtime.cli.exit_codes import UsageError, exit_with
from sublet.runtime.cli.source_watch import FILES_MAX, SourceWatch
from sublet.runtime.cli.supervisor import GaveUpError, Launch, RestartBudget, Supervisor
from sublet.runtime.config.settings import ConfigError, WorkerConfig

HTTP_PORT = 8_000
LOOK_S = 0.25


def dev(target: str | None, http: bool, flags: Mapping[str, object]) -> None:
    """Run until a signal."""
    try:
        config = settings_of(flags)
        config = replace(config, http_port=_http_port(config) if http else None)
        named = target_of(target, config)
        launch = Launch(target=named, config=config, workers=1, environment=os.environ)
    except (ConfigError, UsageError) as error:
        exit_with(error)
    asyncio.run(_Development(launch, _roots(named)).run())


def _http_port(config: WorkerConfig) -> int:
    """Return the port that was asked for, else the usual one, else any."""
    if config.http_port is not None:
        return config.http_port
    try:
        with socket.create_server((config.host, HTTP_PORT)):
            return HTTP_PORT
    except OSError:
        return 0


def _roots(target: str) -> list[Path]:
    """Return the folders in which the app's source may be."""
    file = target.rpartition(":")[0] if ":" in target else target
    beside = [Path(file).parent] if file.endswith(".py") else []
    return [Path.cwd(), *beside]


class _Development:
    def __init__(self, launch: Launch, roots: list[Path]) -> None:
        self._launch = launch
        self._log = ProcessLog(launch.config.log_format == "json")
        self._watch = SourceWatch(roots)
        self._stopping = asyncio.Event()
        self._running: Supervisor | None = None

    async def run(self) -> None:
        """Start a worker after every change, until a signal."""
        on_signals(self._stop, self._kill)
        if self._watch.is_full:
            self._say(f"only the first {FILES_MAX} .py files are watched")
        while not self._stopping.is_set():
            await self._run_until_change()

    def _stop(self) -> None:
        self._stopping.set()
        if self._running is not None:
            self._running.stop()

    def _kill(self) -> None:
        if self._running is not None:
            self._running.kill()

    async def _run_until_change(self) -> None:
        # Of one that ends by itself, the reason is in the code: only a change can help.
        budget = RestartBudget(restarts_max=0)
        supervisor = self._running = Supervisor(
            self._launch, self._log.line, self._log.event, lambda: budget
        )
        started_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            greeting = tasks.create_task(self._greet(supervisor, started_s))
            running = tasks.create_task(self._run(supervisor))
            changed = await self._changed()
            supervisor.stop()
            await running
            greeting.cancel()
        if changed:
            self._say(f"{', '.join(changed[:3])} changed; restarting")

    async def _run(self, supervisor: Supervisor) -> None:
        try:
            await supervisor.run()
        except GaveUpError:
            self._say("the worker ended (see above); waiting for a change")

    async def _changed(self) -> list[str]:
        """Return the names of changed files; none if it is time to stop."""
        while not self._stopping.is_set():
            if changed := self._watch.changed():
                return [_shown(path) for path in changed]
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._stopping.wait()
            except TimeoutError:
                continue
        return []

    async def _greet(self, supervisor: Supervisor, started_s: float) -> None:
        await supervisor.ready.wait()
        for note in supervisor.notes.values():
            took_s = time.monotonic() - started_s
            http = f", http://{note.http}" if note.http else ""
            self._say(f"ready after {took_s:.1f} s: {note.address}{http}")
            self._say(f"functions: {', '.join(note.functions)}")

    def _say(self, text: str) -> None:
        if self._launch.config.log_format != "json":
            typer.echo(f"dev | {text}")


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
