"""`sublet run --workers 0..N`: without work there is no worker, and nobody is refused for it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import Literal

import httpx
import pytest

from sublet import Client
from sublet.functions.errors import SubletError
from sublet.statestore.contract import Directory, View
from sublet.statestore.open import open_directory
from tests.integration.fork_server import PROJECT
from tests.integration.ways_in import WAYS, Asked, ByCommandLine, ByHttp, error_of, ways_to
from tests.redis_process import RedisProcess

PATIENCE_S = 90.0
LOOK_S = 0.05
EDGES = int(os.environ.get("TEST_EDGES", "4"))
"""How often callers come just when the last worker leaves."""
CONNECT = "60s"
"""A busy machine may take long to start a process."""
DECIDED = '"action": "drain-worker"'


class Run:
    """One `sublet run` that may have no worker."""

    def __init__(self, process: Process, folder: Path, redis_url: str) -> None:
        self.process = process
        self.folder = folder
        self._redis_url = redis_url
        self.lines: list[str] = []
        self.address = self.http = ""

    @cached_property
    def directory(self) -> Directory:
        store: Literal["redis", "sqlite"] = "redis" if self._redis_url else "sqlite"
        return open_directory(store, self.folder / "sublet.db", self._redis_url)

    async def close(self) -> None:
        if "directory" in vars(self):
            await self.directory.close()

    async def read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            text = line.decode().rstrip()
            self.lines.append(text)
            if found := re.search(r"callers wait at (\S+) and http://([\d.:]+)", text):
                self.address, self.http = found.groups()

    async def until(self, happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not happened():
                assert self.process.returncode is None, "\n".join(self.lines)
                await asyncio.sleep(LOOK_S)

    async def view(self, happened: Callable[[View], bool]) -> View:
        """Wait for something to be seen in the directory."""
        async with asyncio.timeout(PATIENCE_S):
            while not happened(view := await self.directory.view()):
                assert self.process.returncode is None, "\n".join(self.lines)
                await asyncio.sleep(LOOK_S)
        return view

    def times(self, text: str) -> int:
        return sum(1 for line in self.lines if text in line)

    async def at_zero(self) -> None:
        """Wait until there is no worker."""
        started = self.times("starting: ")
        await self.until(lambda: self.times("no worker is left") > started)


def command(folder: Path, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "sublet", "run", "tests.integration.zero_app:app"),
        *("--data-dir", str(folder), "--workers", "0..2", "--scaling", "reactive"),
        *("--port", "0", "--http-port", "0", "--log-format", "json"),
        *("--set", "idle_after_s=1", "--set", "member_term_ms=3000", *more),
    ]


@asynccontextmanager
async def running(folder: Path, *more: str, redis_url: str = "") -> AsyncIterator[Run]:
    store = ("--set", f"redis_url={redis_url}", "--store", "redis") if redis_url else ()
    process = await asyncio.create_subprocess_exec(
        *command(folder, *store, *more), cwd=PROJECT, stdout=PIPE, stderr=STDOUT
    )
    run = Run(process, folder, redis_url)
    try:
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(run.read())
            await run.until(lambda: bool(run.address))
            yield run
            if process.returncode is None:
                process.terminate()
            async with asyncio.timeout(PATIENCE_S):
                assert await process.wait() in (0, -signal.SIGKILL), "\n".join(run.lines)
                await reading
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await run.close()


@pytest.mark.timeout(300)
async def test_every_way_in_starts_a_worker_and_clients_that_stay_connected_come_back(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as run, ways_to(run.address, run.http, CONNECT) as ways:
        total = 0
        for way in WAYS:
            await run.at_zero()
            assert not (await run.directory.view()).members
            total += 1
            assert await ways[way].call(Asked("zero/count", "a", 1)) == total
        # Found by the folder alone, and by a client that opens no lane.
        await run.at_zero()
        found = ByCommandLine("", {"SUBLET_DATA_DIR": str(tmp_path)})
        assert await found.call(Asked("zero/count", "a", 1)) == total + 1
        await run.at_zero()
        async with Client(run.address, lane="never", connect_timeout=CONNECT) as client:
            assert await client.call("zero/count", "a", 1) == total + 2
        assert await ways["client"].state("zero/count", "a") == total + 2
    assert run.times("was killed") == run.times("ended with status") == 0


@pytest.mark.timeout(240)
async def test_what_is_due_wakes_a_worker_and_what_waits_keeps_it(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        async with Client(run.address, connect_timeout=CONNECT) as client:
            await client.call("zero/later", "timer", 6_000)
        await run.at_zero()
        await run.until(lambda: run.times("starting: something is due") == 1)
        await run.at_zero()
        async with Client(run.address, connect_timeout=CONNECT) as client:
            assert await client.call("zero/count", "timer", 0) == 1

            # Its next try comes in three seconds, long after there was anything to do.
            before = run.times("no worker is left")
            await client.send("zero/again", "retry", 1)
        await run.at_zero()
        assert run.times("no worker is left") == before + 1
        async with Client(run.address, connect_timeout=CONNECT) as client:
            assert await client.call("zero/count", "retry", 0) == 1


@pytest.mark.timeout(120 + 30 * EDGES)
async def test_nobody_is_refused_who_comes_just_when_the_last_worker_leaves(tmp_path: Path) -> None:
    chance = random.Random(7)
    async with (
        running(tmp_path) as run,
        # HTTP cannot tell a request that met the end of an idle connection from one that was taken.
        ways_to(run.address, run.http, CONNECT, keep_alive=False) as ways,
    ):
        asked = 0

        async def ask(way: str) -> None:
            nonlocal asked
            await asyncio.sleep(chance.random() * 0.5)
            asked += 1
            await ways[way].call(Asked("zero/count", way, 1))

        for edge in range(EDGES):
            if edge % 2:
                # Around the moment at which it is decided, and looked at once more.
                await asyncio.sleep(1.0 + chance.random() * 2.5)
            else:
                decided = run.times(DECIDED)
                await run.until(lambda: run.times(DECIDED) > decided)  # noqa: B023
            async with asyncio.TaskGroup() as callers:
                for way in ("client", "http", "grpc", "blocking"):
                    callers.create_task(ask(way))
        for way in ("client", "http", "grpc", "blocking"):
            assert await ways["client"].call(Asked("zero/count", way, 0)) == EDGES
    assert asked == 4 * EDGES


@pytest.mark.timeout(240)
async def test_who_waits_is_answered_after_deaths_and_told_when_the_code_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_ZERO", str(tmp_path))
    async with running(tmp_path / "data") as run, ways_to(run.address, run.http, CONNECT) as ways:
        await run.at_zero()
        (tmp_path / "dies").write_text("2")
        assert await ways["http"].call(Asked("zero/count", "a", 1)) == 1
        assert run.times("ended with status 3; restarting") == 2

        await run.at_zero()
        (tmp_path / "broken").touch()
        told = await asyncio.gather(
            *(error_of(ways[way].call(Asked("zero/count", "a", 1))) for way in ("http", "grpc"))
        )
        for error in told:
            assert error.code == "unavailable", error
            assert "worker 1 cannot start; see its message above" in str(error), error
        with pytest.raises(SubletError, match="cannot start"):
            async with Client(run.address, connect_timeout="3s"):
                pass
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sublet", "call", "zero/count", "a", "1", "--json"),
            *("--data-dir", str(run.folder)),
            cwd=PROJECT,
            stdout=PIPE,
        )
        said, _ = await process.communicate()
        assert process.returncode == 3
        assert "cannot start" in json.loads(said)["error"]["message"]

        (tmp_path / "broken").unlink()
        # It is tried again by itself, as nobody knows what was left.
        await run.view(lambda view: bool(view.members))
        assert await ways["http"].call(Asked("zero/count", "a", 1)) == 2


@pytest.mark.timeout(180)
async def test_nobody_waits_for_ever_for_a_worker_that_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_ZERO", str(tmp_path))
    async with running(tmp_path / "data", "--set", "start_timeout_s=10") as run:
        await run.at_zero()
        (tmp_path / "hangs").touch()
        async with httpx.AsyncClient(base_url=f"http://{run.http}", timeout=PATIENCE_S) as http:
            way = ByHttp(http)
            error = await error_of(way.call(Asked("zero/count", "a", 1)))
            assert error.code == "unavailable"
            assert "10 s" in str(error)
            # It hangs on: its supervisor ends it, and starts another.
            await run.until(lambda: run.times("did not join within 10 s and was ended") > 0)
            (tmp_path / "hangs").unlink()
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        assert await way.call(Asked("zero/count", "a", 1)) == 1
                        break
                    except SubletError as refused:
                        assert refused.code == "unavailable", refused  # noqa: PT017
                        await asyncio.sleep(LOOK_S)


@pytest.mark.timeout(180)
async def test_a_supervisor_that_is_killed_without_workers_loses_no_timer(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        async with Client(run.address, connect_timeout=CONNECT) as client:
            await client.call("zero/later", "a", 4_000)
        await run.at_zero()
        run.process.kill()
        await run.process.wait()
    async with running(tmp_path) as run, Client(run.address, connect_timeout=CONNECT) as client:
        async with asyncio.timeout(PATIENCE_S):
            while await client.call("zero/count", "a", 0) == 0:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
        assert await client.call("zero/count", "a", 0) == 1


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


@pytest.mark.timeout(240)
async def test_on_two_machines_each_keeps_its_ports_and_starts_a_worker_of_its_own(
    tmp_path: Path, redis: RedisProcess
) -> None:
    """Two folders stand for the machines; what they share is Redis."""
    async with (
        running(tmp_path / "one", redis_url=redis.url) as one,
        running(tmp_path / "two", redis_url=redis.url) as two,
        ways_to(one.address, one.http, CONNECT) as at_one,
        ways_to(two.address, two.http, CONNECT) as at_two,
    ):
        total = 0
        for ways, run in ((at_one, one), (at_two, two)):
            await run.view(lambda view: not view.members)
            for way in ("http", "grpc", "client"):
                total += 1
                assert await ways[way].call(Asked("zero/count", "a", 1)) == total
            assert run.times("starting: somebody waits for it") >= 1
        # The machine whose worker was the last one wakes it.
        await at_two["client"].call(Asked("zero/later", "timer", 8_000))
        await one.view(lambda view: not view.members)
        await one.view(lambda view: bool(view.members))
        assert await at_one["client"].call(Asked("zero/count", "timer", 0)) == 1
        assert one.times("something is due") + two.times("something is due") == 1


@pytest.mark.timeout(60)
async def test_a_worker_by_itself_must_not_be_the_last_one(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sublet", "worker", "tests.integration.zero_app:app"),
        *("--data-dir", str(tmp_path), "--scaling", "reactive", "--set", "workers_min=0"),
        cwd=PROJECT,
        stdout=PIPE,
        stderr=STDOUT,
    )
    told, _ = await process.communicate()
    assert process.returncode == 2
    assert "leaves nobody behind who would start it again; use `sublet run`" in told.decode()


def standing_by(run: Run) -> list[int]:
    """Return the processes that a run without workers keeps."""
    pid = run.process.pid
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.timeout(180)
async def test_the_process_that_stands_by_is_the_next_worker_and_nobody_depends_on_it(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as run:
        async with httpx.AsyncClient(base_url=f"http://{run.http}", timeout=PATIENCE_S) as http:
            way = ByHttp(http)
            await run.at_zero()
            await run.until(lambda: len(standing_by(run)) == 1)
            (pid,) = standing_by(run)
            assert await way.call(Asked("zero/count", "a", 1)) == 1
            await run.until(lambda: run.times(f'"event": "ready", "pid": {pid}') == 1)

            await run.at_zero()
            await run.until(lambda: standing_by(run) not in ([], [pid]))
            (next_pid,) = standing_by(run)
            os.kill(next_pid, signal.SIGKILL)
            assert await way.call(Asked("zero/count", "a", 1)) == 2

        # It ends with its supervisor, however that ends.
        await run.at_zero()
        await run.until(lambda: len(standing_by(run)) == 1)
        (orphan,) = standing_by(run)
        run.process.kill()
        await run.process.wait()
        async with asyncio.timeout(PATIENCE_S):
            while _is_there(orphan):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)


def _is_there(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.timeout(180)
async def test_nothing_stands_by_where_that_is_not_wanted(tmp_path: Path) -> None:
    async with running(tmp_path, "--set", "standby=false") as run:
        await run.at_zero()
        assert standing_by(run) == []
        async with Client(run.address, connect_timeout=CONNECT) as client:
            assert await client.call("zero/count", "a", 1) == 1
        await run.at_zero()
        assert standing_by(run) == []
