"""A cluster of `sublet run`, its load, and what is seen of both, second by second."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.harness.machine import ROOT, data_directory
from sublet import Client
from sublet.functions.errors import SubletError
from sublet.scheduler.scaling.plan import decode_plan
from sublet.statestore.contract import View
from sublet.statestore.sqlite.directory import SqliteDirectory

APPS = "benchmarks.elasticity.real.apps"
PATIENCE_S = 180.0
LOOK_S = 0.1
TICK_S = 0.05
SETTINGS = ("drain_notice_s=0.5", "member_term_ms=10000")


@dataclass(slots=True)
class Seen:
    """One second."""

    second: int
    workers: int = 0
    """That serve."""
    paid: int = 0
    """Those that start or drain, too."""
    sent: int = 0
    answered: int = 0
    """Or, of flows, results."""
    backlog: int = 0
    latencies_ms: list[float] = field(default_factory=list)


class Cluster:
    def __init__(self, process: Process, directory: SqliteDirectory, address: str) -> None:
        self.process = process
        self.directory = directory
        self.address = address
        self.lines: list[str] = []
        self.client: Client

    async def read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line.decode().rstrip())

    def events(self, event: str) -> list[dict[str, Any]]:
        told = [json.loads(each) for each in self.lines if each.startswith("{")]
        return [each for each in told if each.get("event") == event]

    async def until(self, happened: Callable[[View], bool]) -> View:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if self.process.returncode is not None:
                    raise RuntimeError("sublet run has ended:\n" + "\n".join(self.lines[-20:]))
                view = await self.directory.view()
                if happened(view):
                    return view
                await asyncio.sleep(LOOK_S)

    async def counted(self, seen: Seen) -> None:
        """Note how many workers there are, and how many are paid for."""
        view, stored = await self.directory.view(), await self.directory.plan()
        joined = {each.launch for each in view.members.values()}
        launches = decode_plan(stored.data).launches if stored.version else ()
        starting = sum(1 for each in launches if each.id not in joined)
        seen.workers = sum(1 for each in view.members.values() if not each.draining)
        seen.paid = len(view.members) + starting


@asynccontextmanager
async def cluster(app: str, workers: str, first: int, *more: str) -> AsyncIterator[Cluster]:
    """Run an app; `first`: workers that have partitions before anything else happens."""
    with data_directory() as folder:
        command = [
            *(sys.executable, "-m", "sublet", "run", f"{APPS}:{app}", "--data-dir", folder),
            *("--workers", workers, "--port", "0", "--no-http", "--log-format", "json", *more),
            *(part for each in SETTINGS for part in ("--set", each)),
        ]
        path = Path(folder) / "sublet.db"
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=ROOT,
            stdout=PIPE,
            stderr=STDOUT,
            limit=2**20,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        directory = SqliteDirectory(path)
        run = Cluster(process, directory, "")
        try:
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(run.read())
                view = await run.until(
                    lambda view: (
                        len(set(view.placement.values())) >= first and len(view.members) >= first
                    )
                )
                run.address = next(iter(view.members.values())).address
                async with Client(run.address) as run.client:
                    yield run
                process.terminate()
                async with asyncio.timeout(PATIENCE_S):
                    await process.wait()
                    await reading
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            await directory.close()


class Load:
    """Calls at a rate that changes, whether or not they are answered in time (open loop)."""

    def __init__(
        self, run: Cluster, function: str, rate: Callable[[float], float], keys: int, seed: int
    ) -> None:
        self.calls: Counter[str] = Counter()
        self.failed = 0
        self.seen: list[Seen] = []
        self._run, self._function, self._rate = run, function, rate
        self._keys, self._rng = keys, Random(seed)
        self._now = Seen(0)
        self._open = 0

    async def run(self, seconds: int, on_second: Callable[[Seen], None]) -> None:
        began_s, owed = time.monotonic(), 0.0
        last_s = 0.0
        async with asyncio.TaskGroup() as callers:
            for second in range(seconds):
                now = self._now = Seen(second)
                while (now_s := time.monotonic() - began_s) < second + 1:
                    owed += self._rate((now_s + last_s) / 2) * (now_s - last_s)
                    last_s = now_s
                    while owed >= 1:
                        owed -= 1
                        callers.create_task(self._call(time.monotonic()))
                    await asyncio.sleep(TICK_S)
                now.backlog = self._open
                await self._run.counted(now)
                self.seen.append(now)
                on_second(now)

    async def _call(self, began_s: float) -> None:
        key = f"k{self._rng.randrange(self._keys)}"
        self._now.sent += 1
        self._open += 1
        try:
            await self._run.client.call(self._function, key, 1, deadline="10m")
        except SubletError:
            self.failed += 1
        else:
            self.calls[key] += 1
            self._now.answered += 1
            self._now.latencies_ms.append(1000 * (time.monotonic() - began_s))
        self._open -= 1

    async def is_exact(self) -> bool:
        """Tell whether every state is what was answered, and nothing failed."""
        states = await asyncio.gather(
            *(
                self._run.client.call(self._function, f"k{number}", 0)
                for number in range(self._keys)
            )
        )
        wanted = [self.calls[f"k{number}"] for number in range(self._keys)]
        return not self.failed and list(states) == wanted
