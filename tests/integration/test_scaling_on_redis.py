"""`sublet run --workers MIN..MAX --scaling … --store redis`: real workers come and go under load,
also while Redis is away for a moment and when the controller dies in the middle of it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from sublet import Client
from sublet.functions.errors import SubletError
from sublet.scheduler.scaling.plan import Plan, decode_plan
from sublet.statestore.contract import Directory, View
from sublet.statestore.open import open_directory
from tests.integration.fork_server import PROJECT
from tests.redis_process import RedisProcess

PATIENCE_S = 120.0
LOOK_S = 0.05
CALLERS = 48
KEYS = 96


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisProcess]:
    folder = tmp_path / "redis"
    folder.mkdir()
    process = RedisProcess(folder)
    process.start()
    try:
        yield process
    finally:
        process.stop()


class Run:
    def __init__(self, process: Process, directory: Directory) -> None:
        self.process = process
        self.directory = directory
        self.lines: list[str] = []

    async def read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line.decode().rstrip())

    async def until(self, happened: Callable[[View, Plan], bool]) -> View:
        """Wait for something to be seen in the directory, which may be away."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                assert self.process.returncode is None, "\n".join(self.lines[-50:])
                try:
                    view, stored = await self.directory.view(), await self.directory.plan()
                except SubletError:
                    await asyncio.sleep(LOOK_S)
                    continue
                plan = decode_plan(stored.data) if stored.version else Plan()
                if happened(view, plan):
                    return view
                await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def running(folder: Path, redis: RedisProcess) -> AsyncIterator[Run]:
    policy = "reactive:latency=100ms,cooldown=1s,calm=2s"
    command = [
        *(sys.executable, "-m", "sublet", "run", "tests.integration.scaling_app:app"),
        *("--data-dir", str(folder), "--workers", "1..3", "--scaling", policy),
        *("--store", "redis", "--set", f"redis_url={redis.url}"),
        *("--port", "0", "--no-http", "--log-format", "json", "--set", "drain_notice_s=0.5"),
        *("--set", "heartbeat_ms=100", "--set", "member_term_ms=3000"),
    ]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=PROJECT, stdout=PIPE, stderr=STDOUT
    )
    run = Run(process, open_directory("redis", folder / "sublet.db", redis.url))
    try:
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(run.read())
            yield run
            process.terminate()
            async with asyncio.timeout(PATIENCE_S):
                assert await process.wait() == 0, "\n".join(run.lines[-50:])
                await reading
    except BaseException as error:
        error.add_note("\n".join(run.lines[-400:]))
        raise
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await run.directory.close()


async def call_until(client: Client, done: asyncio.Event, calls: Counter[str], caller: int) -> None:
    """Call one key after the other, each until it is answered."""
    number = caller
    while not done.is_set():
        key, once = f"k{number % KEYS}", uuid4().hex
        number += CALLERS
        while True:
            try:
                await client.call("waits/count", key, 1, deadline="60s", idempotency_key=once)
                break
            except SubletError:
                # Redis may be away for longer than a caller waits: nobody knows whether it counts.
                await asyncio.sleep(LOOK_S)
        calls[key] += 1


def serving(view: View) -> list[str]:
    return [id_ for id_, member in view.members.items() if not member.draining]


@pytest.mark.timeout(360)
async def test_every_call_counts_once_while_redis_is_away_and_the_controller_dies(
    tmp_path: Path, redis: RedisProcess
) -> None:
    async with running(tmp_path, redis) as run:
        first = await run.until(lambda view, _: bool(view.placement) and bool(view.lead.holder))
        (member,) = first.members.values()
        done, calls = asyncio.Event(), Counter[str]()
        async with Client(member.address, connect_timeout="60s") as client:
            async with asyncio.TaskGroup() as callers:
                for caller in range(CALLERS):
                    callers.create_task(call_until(client, done, calls, caller))

                # Workers are wanted, and Redis goes away before they have joined.
                await run.until(lambda view, plan: bool(plan.launches) or len(view.members) > 1)
                redis.kill()
                redis.start()
                grown = await run.until(lambda view, plan: len(serving(view)) >= 2)

                # The controller is killed: another goes on with the plan.
                os.kill(grown.members[grown.lead.holder].pid, signal.SIGKILL)
                await run.until(
                    lambda view, _: view.lead.token > grown.lead.token and len(serving(view)) >= 2
                )
                before = sum(calls.values())
                await run.until(lambda *_: sum(calls.values()) > before + CALLERS)
                done.set()

            # Without load, all but one leave; Redis is away for a moment in the middle of it.
            await run.until(lambda view, plan: bool(plan.leaving) or len(serving(view)) < 3)
            redis.kill()
            redis.start()
            await run.until(
                lambda view, plan: len(view.members) == 1 and plan.workers == 1 and not plan.leaving
            )
            for key, count in calls.items():
                assert await client.call("waits/count", key, 0) == count
    assert sum(calls.values()) > CALLERS
