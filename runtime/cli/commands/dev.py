"""`sublet dev`: one worker that is started again when its source changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import cache_from_source
from pathlib import Path

import typer

from sublet.runtime.cli import debugger
from sublet.runtime.cli.commands.run import ProcessLog, launch_of, on_signals
from sublet.runtime.cli.development_note import State, telling
from sublet.runtime.cli.source_watch import FILES_MAX, SourceWatch
from sublet.runtime.cli.supervisor import GaveUpError, Launch, RestartBudget, Supervisor

LOOK_S = 0.25


def dev(target: str | None, http: bool, flags: Mapping[str, object]) -> None:
    """Run until a signal."""
    with ExitStack() as stack:
        launch = launch_of(target, "1", http, flags, stack, keep=True)
        debugging = debugger.variables(launch.environment)
        launch = replace(launch, environment={**launch.environment, **debugging})
        tell_state = stack.enter_context(telling(launch.config.data_dir))
        asyncio.run(_Development(launch, _roots(launch.target), tell_state).run())


def _roots(target: str) -> list[Path]:
    """Return the folders in which the app's source may be."""
    file = target.rpartition(":")[0] if ":" in target else target
    beside = [Path(file).parent] if file.endswith(".py") else []
    return [Path.cwd(), *beside]


class _Development:
    def __init__(
        self, launch: Launch, roots: list[Path], tell_state: Callable[[State], None]
    ) -> None:
        self._launch = launch
        self._tell_state = tell_state
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
            self._tell_state("starting")
            supervisor.stop()
            await running
            greeting.cancel()
        if changed:
            for path in changed:
                _forget_compiled(path)
            self._say(f"{', '.join(map(_shown, changed[:3]))} changed; restarting")

    async def _run(self, supervisor: Supervisor) -> None:
        try:
            await supervisor.run()
        except GaveUpError:
            self._tell_state("failed")
            self._say("the worker ended (see above); waiting for a change")

    async def _changed(self) -> list[Path]:
        """Return the changed files; none if it is time to stop."""
        while not self._stopping.is_set():
            if changed := self._watch.changed():
                return changed
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._stopping.wait()
            except TimeoutError:
                continue
        return []

    async def _greet(self, supervisor: Supervisor, started_s: float) -> None:
        await supervisor.ready.wait()
        self._tell_state("running")
        for note in supervisor.notes.values():
            took_s = time.monotonic() - started_s
            http = f", http://{note.http}" if note.http else ""
            self._say(f"ready after {took_s:.1f} s: {note.address}{http}")
            self._say(f"functions: {', '.join(note.functions)}")

    def _say(self, text: str) -> None:
        if self._launch.config.log_format != "json":
            typer.echo(f"dev | {text}")


def _forget_compiled(path: Path) -> None:
    """Python takes compiled code for that of a source of the same second and size."""
    Path(cache_from_source(path)).unlink(missing_ok=True)


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
