"""`sublet run --workers MIN..MAX --scaling …`: real workers come and go with the load."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from sublet import Client
from sublet.functions.errors import SubletError
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.rpc import AdministerRequest, PauseScaling, ScalingRequest
from sublet.scheduler.scaling.plan import Plan, decode_plan
from sublet.statestore.contract import Directory, View
from sublet.statestore.sqlite.directory import SqliteDirectory
from tests.integration.fork_server import PROJECT

PATIENCE_S = 90.0
LOOK_S = 0.1
CALLERS = 48
KEYS = 96


class Run:
    """One `sublet run`."""

    def __init__(self, process: Process, directory: Directory) -> None:
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

    def told(self, text: str) -> int:
        """How often it has said something."""
        return sum(text in line for line in self.lines)

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
async def running(
    folder: Path,
    workers: str,
    scaling: str,
    *more: str,
    directory: Directory | None = None,
    prefix: Sequence[str] = (),
) -> AsyncIterator[Run]:
    """`prefix` is a command that becomes the one behind it, such as `ip netns exec`."""
    command = [
        *prefix,
        *(sys.executable, "-m", "sublet", "run", "tests.integration.scaling_app:app"),
        *("--data-dir", str(folder), "--workers", workers, "--scaling", scaling),
        *("--port", "0", "--no-http", "--log-format", "json", "--set", "drain_notice_s=0.5"),
        *("--set", "heartbeat_ms=100", "--set", "member_term_ms=3000", *more),
    ]
    directory = directory or SqliteDirectory(folder / "sublet.db")
    process = await asyncio.create_subprocess_exec(
        *command, cwd=PROJECT, stdout=PIPE, stderr=STDOUT
    )
    run = Run(process, directory)
    try:
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(run.read())
            yield run
            if process.returncode is None:
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


async def call_until(
    client: Client, done: asyncio.Event, calls: Counter[str], caller: int, callers: int
) -> None:
    """Call one key after the other; no call may fail."""
    number = caller
    while not done.is_set():
        key = f"k{number % KEYS}"
        number += callers
        await client.call("waits/count", key, 1, deadline="60s")
        calls[key] += 1


@asynccontextmanager
async def load(address: str | Sequence[str], count: int = CALLERS) -> AsyncIterator[Counter[str]]:
    """Callers that need more than one worker; in the end, every state is what was answered."""
    done, calls = asyncio.Event(), Counter[str]()
    async with Client(address) as client:
        # What others have counted before stays.
        before = {f"k{n}": await client.call("waits/count", f"k{n}", 0) for n in range(KEYS)}
        async with asyncio.TaskGroup() as callers:
            for caller in range(count):
                callers.create_task(call_until(client, done, calls, caller, count))
            yield calls
            done.set()
        for key, count in calls.items():
            assert await client.call("waits/count", key, 0) == before[key] + count


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
                lambda view: (
                    len(serving(view)) == 3
                    and len(set(view.placement.values())) == 3
                    and view.lead.holder in view.members
                )
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
        # They leave the directory first; that they have ended is seen later, on a busy machine much
        # later, and not at all once the run itself ends.
        await run.until(lambda _: run.told("was drained; not restarting it") >= 2)
    decisions = run.events("scaling decision")
    assert {each["action"] for each in decisions} == {"add-workers", "drain-worker"}
    assert all(each["because"] for each in decisions)


async def redirected(view: View) -> float:
    """Return how many messages living workers have lent because the plan says so."""
    total = 0.0
    for member in view.members.values():
        with suppress(SubletError):  # One of them may just have been killed.
            async with UnaryClient(member.address) as worker:
                leases = (await worker.status()).leases.get("waits/count")
            total += leases.counts.get("redirected", 0.0) if leases is not None else 0.0
    return total


@pytest.mark.timeout(240)
async def test_a_share_is_redirected_while_a_lessee_is_killed_and_every_sum_is_exact(
    tmp_path: Path,
) -> None:
    placement = ("--set", "placement=half-away")
    async with running(tmp_path, "1..3", "fixed:workers=3", *placement) as run:
        view = await run.until(lambda view: len(serving(view)) == 3 and bool(view.lead.holder))
        leader = view.lead.holder
        async with load(view.members[leader].address) as calls:
            async with asyncio.timeout(PATIENCE_S):
                while not await redirected(view):  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
            plan = await run.plan()
            (redirection,) = plan.redirects.values()
            assert (redirection.share, len(redirection.lessees)) == (0.5, 2)
            _, told = await sublet(tmp_path, "scale", "status")
            assert told["redirects"] == [
                {
                    "function": "waits/count",
                    "share": 0.5,
                    "lessees": list(redirection.lessees),
                }
            ]
            _, told = await sublet(tmp_path, "scale", "explain")
            assert any(each["action"] == "redirect" for each in told["decisions"])

            lessee = next(each for each in redirection.lessees if each != leader)
            os.kill(view.members[lessee].pid, signal.SIGKILL)
            async with asyncio.timeout(PATIENCE_S):
                while lessee in str((await run.plan()).redirects):  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
            before = sum(calls.values())
            healed = await run.until(
                lambda view: len(serving(view)) == 3 and sum(calls.values()) > before + CALLERS
            )
            async with asyncio.timeout(PATIENCE_S):
                while not await redirected(healed):  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)


async def sublet(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run a command of the command line; return its exit code and what it says."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sublet", *arguments, "--data-dir", str(folder), "--json"),
        cwd=PROJECT,
        stdout=PIPE,
    )
    told, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, json.loads(told)


@pytest.mark.timeout(180)
async def test_people_see_why_and_can_pause_it_at_any_worker(tmp_path: Path) -> None:
    prices = ("--set", "price_worker_hour=36", "--set", "spend_cap=100/day")
    async with running(tmp_path, "1..3", "fixed:workers=2", *prices) as run:
        view = await run.until(lambda view: len(serving(view)) == 2 and bool(view.lead.holder))
        await run.settled(2)
        _, told = await sublet(tmp_path, "scale", "explain")
        (decision,) = told["decisions"]
        assert (decision["action"], decision["outcome"]) == ("add-workers", "done")
        assert decision["because"] == "1 workers, 2 wanted"

        _, told = await sublet(tmp_path, "scale", "status")
        assert (told["leader"], told["workers_wanted"]) == (view.lead.holder, 2)
        assert [each["state"] for each in told["workers"]] == ["serving", "serving"]
        assert (told["price_hour"], told["spend_cap"]) == (72, "100/day")
        assert told["spent"] > 0

        # Whoever is asked, the leader answers.
        for member in view.members.values():
            async with UnaryClient(member.address) as worker:
                report = await worker.scaling(ScalingRequest())
            assert report.leader == view.lead.holder
        (other,) = [each for id_, each in view.members.items() if id_ != view.lead.holder]
        async with UnaryClient(other.address) as worker:
            await worker.administer(AdministerRequest(action=PauseScaling(slot="workers")))
        assert (await run.plan()).paused == ("workers",)
        code, told = await sublet(tmp_path, "scale", "resume", "workers")
        assert (code, told) == (0, {"ok": True, "slot": "workers", "paused": False})
        assert (await run.plan()).paused == ()
        code, told = await sublet(tmp_path, "scale", "pause", "instances")
        assert code == 2
        assert "there is no policy for 'instances'; allowed: workers" in told["error"]["message"]


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


@pytest.mark.timeout(120)
async def test_a_launch_that_cannot_start_is_given_up_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a policy of the app's own, whose code is broken once the first worker runs."""
    broken = tmp_path / "broken"
    monkeypatch.setenv("TEST_BROKEN", str(broken))
    async with running(tmp_path, "1..2", "one-more") as run:
        first = await run.until(lambda view: bool(view.placement))
        broken.touch()
        async with asyncio.timeout(PATIENCE_S):
            while not run.events("scaling decision ended"):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
        await run.settled(1)
        assert set((await run.directory.view()).members) == set(first.members)
    (decision,) = run.events("scaling decision")
    assert (decision["policy"], decision["because"]) == ("one-more", "a test wants it")
    (ended,) = run.events("scaling decision ended")
    assert ended["outcome"] == "failed"
    assert "cannot start" in ended["detail"]


@pytest.mark.timeout(60)
async def test_a_policy_that_nobody_has_ends_the_run_at_once(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sublet", "run", "tests.integration.scaling_app:app"),
        *("--data-dir", str(tmp_path), "--workers", "1..2", "--scaling", "nobody"),
        *("--port", "0", "--no-http"),
        cwd=PROJECT,
        stdout=PIPE,
        stderr=STDOUT,
    )
    told, _ = await process.communicate()
    assert process.returncode == 2
    assert "the policy for workers is 'nobody'; allowed: " in told.decode()
