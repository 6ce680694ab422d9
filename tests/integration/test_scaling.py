"""`sublet run --workers MIN..MAX --scaling …`: real workers come and go with the load."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sublet import Client
from sublet.scheduler.scaling.plan import Plan, decode_plan
from sublet.statestore.contract import View
from sublet.statestore.sqlite.directory import SqliteDirectory
from tests.integration.fork_server import PROJECT

PATIENCE_S = 90.0
LOOK_S = 0.1
CALLERS = 48
KEYS = 96


class Run:
    """One `sublet run`."""

    def __init__(self, process: Process, directory: SqliteDirectory) -> None:
        self.process = process
        self.directory = directory
        self.lines: list[str] = []

    async def read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line.decode().rstrip())

    def events(self, event: str) -> list[dict[str, Any]]:
        told = [json.loads(each) for each in self.lines if each.startswith("{")]
        return [each for each in told if each.get("event") == event]

    async def until(self, happened: Callable[[View], bool]) -> View:
        """Wait for something to be seen in the directory."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                assert self.process.returncode is None, "\n".join(self.lines)
                view = await self.directory.view()
                if happened(view):
                    return view
                await asyncio.sleep(LOOK_S)

    async def settled(self, workers: int) -> None:
        """Wait for a plan that wants so many workers, and nothing else."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                plan = await self.plan()
                if plan.workers == workers and not plan.launches and not plan.leaving:
                    return
                await asyncio.sleep(LOOK_S)

    async def plan(self) -> Plan:
        stored = await self.directory.plan()
        return decode_plan(stored.data) if stored.version else Plan()


@asynccontextmanager
async def running(folder: Path, workers: str, scaling: str, *more: str) -> AsyncIterator[Run]:
    command = [
        *(sys.executable, "-m", "sublet", "run", "tests.integration.scaling_app:app"),
        *("--data-dir", str(folder), "--workers", workers, "--scaling", scaling),
        *("--port", "0", "--no-http", "--log-format", "json", "--set", "drain_notice_s=0.5"),
        *("--set", "heartbeat_ms=100", "--set", "member_term_ms=1000", *more),
    ]
    directory = SqliteDirectory(folder / "sublet.db")
    process = await asyncio.create_subprocess_exec(
        *command, cwd=PROJECT, stdout=PIPE, stderr=STDOUT
    )
    run = Run(process, directory)
    try:
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(run.read())
            yield run
            process.terminate()
            async with asyncio.timeout(PATIENCE_S):
                assert await process.wait() == 0, "\n".join(run.lines)
                await reading
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await directory.close()


def serving(view: View) -> list[str]:
    return [id_ for id_, member in view.members.items() if not member.draining]


async def call_until(client: Client, done: asyncio.Event, calls: Counter[str], caller: int) -> None:
    """Call one key after the other; no call may fail."""
    number = caller
    while not done.is_set():
        key = f"k{number % KEYS}"
        number += CALLERS
        await client.call("waits/count", key, 1, deadline="60s")
        calls[key] += 1


@asynccontextmanager
async def load(address: str) -> AsyncIterator[Counter[str]]:
    """Callers that need more than one worker; in the end, every state is what was answered."""
    done, calls = asyncio.Event(), Counter[str]()
    async with Client(address) as client:
        async with asyncio.TaskGroup() as callers:
            for caller in range(CALLERS):
                callers.create_task(call_until(client, done, calls, caller))
            yield calls
            done.set()
        for key, count in calls.items():
            assert await client.call("waits/count", key, 0) == count


@pytest.mark.timeout(240)
async def test_workers_come_with_the_load_and_go_without_it_and_no_call_fails(
    tmp_path: Path,
) -> None:
    policy = "reactive:latency=100ms,cooldown=1s,calm=2s"
    async with running(tmp_path, "1..3", policy) as run:
        first = await run.until(lambda view: bool(view.placement) and bool(view.lead.holder))
        (member,) = first.members.values()
        async with load(member.address) as calls:
            grown = await run.until(
                lambda view: len(serving(view)) == 3 and len(set(view.placement.values())) == 3
            )
            assert {each.launch for each in grown.members.values()} >= {"first-1"}

            # The controller is killed: another goes on, and its supervisor replaces the worker.
            before = sum(calls.values())
            os.kill(grown.members[grown.lead.holder].pid, signal.SIGKILL)
            led = await run.until(
                lambda view: view.lead.token > grown.lead.token and len(serving(view)) == 3
            )
            assert led.lead.holder != grown.lead.holder
            await run.until(lambda _: sum(calls.values()) > before + CALLERS)
        await run.until(lambda view: len(view.members) == 1)
        await run.settled(1)
    decisions = run.events("scaling decision")
    assert {each["action"] for each in decisions} == {"add-workers", "drain-worker"}
    assert all(each["because"] for each in decisions)
    assert any("was drained" in line for line in run.lines)


@pytest.mark.timeout(120)
async def test_a_dry_run_says_what_it_would_do_and_does_not(tmp_path: Path) -> None:
    async with running(tmp_path, "1..3", "fixed:workers=3", "--scaling-dry-run") as run:
        async with asyncio.timeout(PATIENCE_S):
            while not run.events("scaling decision"):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
        view = await run.until(lambda view: True)
        assert len(view.members) == 1
        assert (await run.plan()).launches == ()
    decision, *_ = run.events("scaling decision")
    assert (decision["count"], decision["outcome"]) == (2, "dry run")
