"""Scaling while something goes wrong: on real workers, as `tests.simulation` has it simulated."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from sublet import Client
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.rpc import ScalingRequest
from sublet.statestore.contract import View
from sublet.statestore.redis.directory import RedisDirectory
from tests.integration.test_scaling import LOOK_S, PATIENCE_S, Run, load, running, serving
from tests.redis_process import RedisProcess

pytestmark = pytest.mark.timeout(300)
FEW = 6
"""Callers: there is something to lose, and the machine has time for all else."""
CALLS = 20


class Wanted:
    """How many workers the policy `as-told` is told to want."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def tell(self, workers: int) -> None:
        # Whole, whoever reads it meanwhile.
        new = self._path.with_suffix(".new")
        new.write_text(str(workers))
        new.rename(self._path)


@pytest.fixture
def wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wanted:
    path = tmp_path / "wanted"
    path.touch()
    monkeypatch.setenv("TEST_WANTED", str(path))
    return Wanted(path)


def spread(count: int) -> Callable[[View], bool]:
    """So many workers serve, each with partitions."""
    return lambda view: len(serving(view)) == count == len(set(view.placement.values()))


async def first_address(run: Run) -> str:
    view = await run.until(lambda view: bool(view.placement) and bool(view.lead.holder))
    return next(iter(view.members.values())).address


def children(pid: int) -> list[str]:
    """Return the processes that a process has started and not ended."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


async def ended(run: Run, event: str = "scaling decision ended") -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not run.events(event):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)


async def test_a_worker_that_never_joins_is_started_once_more_and_given_up(
    tmp_path: Path, wanted: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = tmp_path / "hangs"
    monkeypatch.setenv("TEST_HANGS", str(hangs))
    async with running(tmp_path, "1..4", "as-told", "--set", "start_timeout_s=2") as run:
        async with load(await first_address(run), FEW) as calls:
            hangs.touch()
            wanted.tell(2)
            await ended(run)
            wanted.tell(1)
            await run.settled(1)
            before = sum(calls.values())
            await run.until(lambda _: sum(calls.values()) > before + CALLS)
        # They hang on, but for their supervisor, which has ended them.
        await run.until(lambda _: len(children(run.process.pid)) == 1)
    gave_up = [line for line in run.lines if "did not join within 2 s and was ended" in line]
    assert len(gave_up) >= 2
    failed, *_ = run.events("scaling decision ended")
    assert failed["outcome"] == "failed"
    assert "did not join within 2 s" in failed["detail"]
    assert run.events("a worker did not start; trying once more")


async def test_a_drain_whose_handlers_do_not_end_is_bounded_and_nothing_is_lost(
    tmp_path: Path, wanted: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = tmp_path / "stuck"
    monkeypatch.setenv("TEST_STUCK", str(stuck))
    async with running(tmp_path, "1..3", "as-told", "--set", "drain_timeout_s=2") as run:
        address = await first_address(run)
        wanted.tell(2)
        await run.until(spread(2))
        stuck.touch()
        async with Client(address) as client, asyncio.TaskGroup() as tasks:
            waiting = [
                tasks.create_task(client.call("waits/stuck", f"k{n}", 1, deadline="120s"))
                for n in range(8)
            ]
            # So long that each of them runs, or waits behind one that does.
            await client.call("waits/count", "k", 1)
            wanted.tell(1)
            await run.until(lambda view: len(view.members) == 1)
            stuck.unlink()
            assert await asyncio.gather(*waiting) == [1] * 8
            assert [await client.call("waits/stuck", f"k{n}", 0) for n in range(8)] == [1] * 8
        await run.settled(1)


async def test_a_leader_that_was_frozen_is_not_obeyed_and_rebalancing_goes_on(
    tmp_path: Path, wanted: Wanted
) -> None:
    """Two believe to lead, while partitions move to workers that have just come."""
    async with (
        running(tmp_path, "1..4", "as-told") as run,
        load(await first_address(run), FEW) as calls,
    ):
        wanted.tell(3)
        grown = await run.until(lambda view: len(serving(view)) == 3)
        former = grown.members[grown.lead.holder]
        os.kill(former.pid, signal.SIGSTOP)
        try:
            wanted.tell(4)
            led = await run.until(
                lambda view: (
                    view.lead.token > grown.lead.token
                    and len(set(serving(view)) - {former.id}) == 3
                )
            )
        finally:
            os.kill(former.pid, signal.SIGCONT)
        # Who was frozen joins again, and obeys.
        await run.until(spread(4))
        wanted.tell(2)
        await run.until(spread(2))
        await run.settled(2)
        view, plan = await run.directory.view(), await run.plan()
        assert plan.token == view.lead.token >= led.lead.token
        for member in view.members.values():
            async with UnaryClient(member.address) as worker:
                assert (await worker.scaling(ScalingRequest())).leader == view.lead.holder
        before = sum(calls.values())
        await run.until(lambda _: sum(calls.values()) > before + CALLS)
    assert not run.events("a worker did not start; given up")


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("raises", "ZeroDivisionError: no workers at all"),
        ("nonsense", "it drains 'nobody', which is no worker"),
    ],
)
async def test_a_policy_that_fails_costs_its_slot_and_no_call(
    tmp_path: Path, policy: str, reason: str
) -> None:
    async with running(tmp_path, "1..2", policy) as run:
        address = await first_address(run)
        await ended(run, "a scaling policy failed and is disabled; its slot stays as it is")
        async with UnaryClient(address) as worker:
            report = await worker.scaling(ScalingRequest())
        (slot,) = report.slots
        assert reason in slot.failure
        async with Client(address) as client:
            assert await client.call("waits/count", "k", 1) == 1
        assert len((await run.directory.view()).members) == 1


async def test_nothing_scales_while_redis_is_away_and_all_of_it_afterwards(
    tmp_path: Path, wanted: Wanted
) -> None:
    folder = tmp_path / "redis"
    folder.mkdir()
    redis = RedisProcess(folder)
    await asyncio.to_thread(redis.start)
    try:
        directory = RedisDirectory(redis.url)
        settings = ("--store", "redis", "--set", f"redis_url={redis.url}")
        async with (
            running(tmp_path, "1..3", "as-told", *settings, directory=directory) as run,
            load(await first_address(run), FEW) as calls,
        ):
            wanted.tell(2)
            await run.until(spread(2))
            await asyncio.to_thread(redis.kill)
            wanted.tell(3)
            # Two ticks, in which they are wanted in vain.
            await asyncio.sleep(2.5)
            started = [line for line in run.lines if "asked for it" in line]
            assert len(started) == 1
            await asyncio.to_thread(redis.start)
            await run.until(spread(3))
            before = sum(calls.values())
            await run.until(lambda _: sum(calls.values()) > before + CALLS)
            wanted.tell(1)
            await run.until(lambda view: len(view.members) == 1)
            await run.settled(1)
    finally:
        await asyncio.to_thread(redis.kill)


async def test_scaling_goes_on_through_a_rolling_upgrade(tmp_path: Path, wanted: Wanted) -> None:
    """Two supervisors on one folder: those with the former code leave, those with the next stay."""
    async with AsyncExitStack() as runs:
        former = await runs.enter_async_context(
            running(tmp_path, "1..3", "as-told", "--set", "code_version=1")
        )
        address = await first_address(former)
        wanted.tell(2)
        grown = await former.until(spread(2))
        wanted.tell(3)
        upgrade = ("--set", "code_version=2", "--upgrade")
        latter = await runs.enter_async_context(running(tmp_path, "1..3", "as-told", *upgrade))
        async with load(address, FEW) as calls:
            await latter.until(lambda view: "2" in versions(view))
            # The former code leaves first, whoever is younger.
            wanted.tell(2)
            await latter.until(lambda view: len(view.members) == 2 and "2" in versions(view))
            former.process.terminate()
            await latter.until(lambda view: not view.members.keys() & grown.members.keys())
            wanted.tell(3)
            view = await latter.until(spread(3))
            assert versions(view) == ["2", "2", "2"]
            before = sum(calls.values())
            await latter.until(lambda _: sum(calls.values()) > before + CALLS)
            wanted.tell(1)
            await latter.until(lambda view: len(view.members) == 1)
            await latter.settled(1)


def versions(view: View) -> list[str]:
    """Return the code of each worker that serves."""
    return sorted(view.members[worker].versions["waits"] for worker in serving(view))
