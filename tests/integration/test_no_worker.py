"""What people are told while no worker is there: once, with what to do, and ever more rarely."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from sublet import Client, UnavailableError, UnknownOutcomeError
from sublet.runtime.cli.exit_codes import ExitCode
from tests.integration.cluster import PROJECT, running_cluster, until

WAITING = "waiting: the egress has been unreadable"


async def test_a_client_without_a_worker_says_so_once_and_sends_callers_away_for_longer(
    tmp_path: Path,
) -> None:
    told: list[str] = []
    async with (
        asyncio.timeout(200),
        running_cluster(tmp_path) as cluster,
        cluster.client(connect_timeout="300ms", tell=told.append) as client,
    ):

        async def answers() -> bool:
            try:
                return bool(await client.call("test/double", "a", 4))
            except UnavailableError:
                return False  # It has not found the new worker yet.

        assert await answers()
        cluster.workers[0].kill()
        # What was sent before the link was lost may have happened.
        with pytest.raises((UnavailableError, UnknownOutcomeError)):
            await client.call("test/double", "a", 2)
        pauses_ms: list[int] = []
        while not pauses_ms or pauses_ms[-1] < 1_500:
            with pytest.raises(UnavailableError, match="start one with `sublet run`") as raised:
                await client.call("test/double", "a", 3)
            pauses_ms.append(raised.value.retry_after_ms)

        assert pauses_ms[0] == 1_000
        assert pauses_ms == sorted(pauses_ms)
        assert [text.partition(" for ")[0] for text in told] == ["no worker has been reachable"]

        cluster.add_worker()
        await cluster.ready()
        await until(answers)
        cluster.workers[1].kill()
        with pytest.raises((UnavailableError, UnknownOutcomeError)):
            await client.call("test/double", "a", 5)
        with pytest.raises(UnavailableError) as raised:
            await client.call("test/double", "a", 6)

        assert raised.value.retry_after_ms == 1_000
        assert len(told) == 2


async def test_a_client_that_finds_no_worker_at_first_says_what_to_do() -> None:
    with pytest.raises(UnavailableError, match="start one with `sublet run`") as raised:
        async with Client("127.0.0.1:9", connect_timeout="100ms"):
            raise AssertionError
    assert raised.value.retry_after_ms == 1_000


async def test_a_tail_whose_worker_is_killed_says_once_what_it_waits_for_and_ends(
    tmp_path: Path,
) -> None:
    written = tmp_path / "written"
    async with asyncio.timeout(200), running_cluster(tmp_path / "data") as cluster:
        command = [*("tail", "news", "--from", "now"), "--connect", cluster.workers[0].address]
        with written.open("wb") as output:
            tail = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "sublet", *command), stderr=output, cwd=PROJECT
            )
        try:
            await until(lambda: "waiting for news" in written.read_text())
            cluster.workers[0].kill()
            await tail.wait()
        finally:
            if tail.returncode is None:
                tail.kill()
                await tail.wait()

    assert tail.returncode == ExitCode.RETRY_LATER
    unknown, began, waits, error, _ = written.read_text().splitlines()
    assert unknown.startswith("nothing was emitted to 'news' yet")
    assert began.startswith("waiting for news")
    assert waits.startswith(WAITING)
    assert error.startswith("error: the egress has been unreadable for 1")
    assert "start one with `sublet run`" in error
