"""Workers that run other code of an app: they meet by choice, not by accident."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sublet.runtime.cli.exit_codes import ExitCode
from sublet.statestore.sqlite.directory import SqliteDirectory
from tests.integration.cluster import (
    PATIENCE_S,
    PROJECT,
    Cluster,
    WorkerProcess,
    running_cluster,
    until,
)
from tests.integration.leaving import settings_for

KEYS = [f"key{number}" for number in range(20)]
SHOP = """
from sublet import App, Context
from prices import PRICE

app = App("shop", partitions=4)

@app.function(state=int)
def cart(ctx: Context, amount: int) -> int:
    ctx.state.set(ctx.state.get() + amount * PRICE)
    return ctx.state.get()
"""
VISITS = """
from sublet import App, Context

app = App("visits", partitions=4)

@app.function(state=int)
def visit(ctx: Context) -> int:
    ctx.state.set(ctx.state.get() + 1)
    return ctx.state.get()
"""


def shop(folder: Path, price: int) -> str:
    """Write an app whose code differs only in a module that it imports; return its target."""
    folder.mkdir()
    (folder / "shop.py").write_text(SHOP)
    (folder / "prices.py").write_text(f"PRICE = {price}\n")
    return f"{folder}/shop.py:app"


@pytest.fixture
def old(tmp_path: Path) -> str:
    return shop(tmp_path / "old", 1)


@pytest.fixture
def new(tmp_path: Path) -> str:
    return shop(tmp_path / "new", 2)


@contextmanager
def store_settings(store: str, tmp_path: Path) -> Iterator[dict[str, object]]:
    with settings_for(store, tmp_path / "redis") as settings:
        yield {**settings, "log_level": "info"}


@asynccontextmanager
async def shop_cluster(
    tmp_path: Path, target: str, workers: int = 1, store: str = "sqlite"
) -> AsyncIterator[Cluster]:
    with store_settings(store, tmp_path) as settings:
        async with running_cluster(tmp_path / "data", workers, app=target, **settings) as cluster:
            yield cluster


async def refused(cluster: Cluster, target: str, **settings: object) -> str:
    """Start a worker that does not get in; return what it says."""
    before = len(cluster.log)
    worker = cluster.add_worker(target, **settings)
    worker.is_wanted = False
    assert await worker.ended() == ExitCode.USAGE
    cluster.workers.remove(worker)
    errors = [line for line in cluster.log[before:].splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    return errors[0]


async def status(cluster: Cluster) -> dict[str, Any]:
    command = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sublet", "status", "--connect", cluster.living[0].address),
        *("--interval", "0s", "--json"),
        cwd=PROJECT,
        stdout=PIPE,
    )
    told, _ = await command.communicate()
    found: dict[str, Any] = json.loads(told)
    return found


def logged(cluster: Cluster, event: str) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in cluster.log.splitlines() if line.startswith("{")]
    return [each for each in entries if each["event"] == event]


async def kill(worker: WorkerProcess) -> None:
    await asyncio.to_thread(worker.kill)


@pytest.mark.parametrize("store", ["sqlite", "redis"])
async def test_other_code_of_an_app_joins_only_when_told_to(
    tmp_path: Path, old: str, new: str, store: str
) -> None:
    async with shop_cluster(tmp_path, old, 2, store) as cluster:
        told = await refused(cluster, new)
        assert f"the worker at {cluster.workers[0].address}" in told or cluster.workers[1].address
        assert "runs other code of shop" in told
        assert "--upgrade (SUBLET_UPGRADE=1)" in told

        cluster.add_worker(new, upgrade=1)
        await cluster.ready()
        versions = {
            each["address"]: each["versions"] for each in (await status(cluster))["workers"]
        }
        first, second, third = (versions[each.address]["shop"] for each in cluster.workers)
        assert first == second != third
        (joined,) = logged(cluster, "joined workers that run other code")
        assert joined["workers"] == 2
        assert joined["versions"] == {"shop": [first]}
        assert joined["own_versions"] == {"shop": third}
        assert sorted(joined["addresses"]) == sorted(each.address for each in cluster.workers[:2])

        # Both are there: neither is new to the others.
        for target in (old, new):
            cluster.add_worker(target)
            await cluster.ready()


async def test_the_same_code_in_another_folder_is_the_same(tmp_path: Path, old: str) -> None:
    async with shop_cluster(tmp_path, old) as cluster:
        cluster.add_worker(shop(tmp_path / "copied", 1))
        await cluster.ready()
        assert [each["workers"] for each in logged(cluster, "joined other workers")] == [1]


async def test_a_version_that_is_given_stands_for_the_source(
    tmp_path: Path, old: str, new: str
) -> None:
    async with shop_cluster(tmp_path, old) as cluster:
        cluster.add_worker(new, code_version="2026-01", upgrade=1)
        await cluster.ready()
        cluster.add_worker(shop(tmp_path / "newest", 3), code_version="2026-01")
        await cluster.ready()
        told = await refused(cluster, old, code_version="2026-02")
        assert "this one 2026-02" in told


async def test_another_app_is_not_other_code(tmp_path: Path, old: str) -> None:
    (tmp_path / "visits.py").write_text(VISITS)
    async with shop_cluster(tmp_path, old) as cluster:
        cluster.add_worker(f"{tmp_path}/visits.py:app")
        await cluster.ready()


@pytest.mark.parametrize("store", ["sqlite", "redis"])
async def test_workers_that_are_dead_or_about_to_leave_are_in_nobodys_way(
    tmp_path: Path, old: str, new: str, store: str
) -> None:
    async with shop_cluster(tmp_path, old, 1, store) as cluster:
        await kill(cluster.workers[0])
        replacing = cluster.add_worker(new)
        await cluster.ready()
        # It is frozen, and nobody knows yet whether it is dead.
        await cluster.freeze(replacing)
        replacing.is_wanted = False
        back = cluster.add_worker(old)
        await until(lambda: any(each["pid"] == back.pid for each in logged(cluster, "ready")))
        await kill(replacing)


async def test_a_worker_with_another_store_does_not_join_those_of_a_folder(
    tmp_path: Path, old: str
) -> None:
    async with shop_cluster(tmp_path, old) as cluster:
        told = await refused(cluster, old, store="memory")
        assert "has the store 'sqlite' and this one 'memory'" in told
        assert "another data_dir" in told


class Command:
    """A `sublet` command that runs until it is stopped."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.told: list[str] = []

    @classmethod
    @asynccontextmanager
    async def running(cls, *words: str) -> AsyncIterator[Command]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sublet", *words), cwd=PROJECT, stdout=PIPE, stderr=STDOUT
        )
        try:
            async with asyncio.timeout(PATIENCE_S):
                yield cls(process)
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
                await process.wait()

    async def says(self, text: str) -> str:
        """Return the next line with this text."""
        assert self._process.stdout is not None
        while line := (await self._process.stdout.readline()).decode():
            self.told.append(line)
            if text in line:
                return line
        raise AssertionError(f"no {text!r} in {''.join(self.told)}")


async def test_dev_refuses_to_mix_with_other_code_unless_told(
    tmp_path: Path, old: str, new: str
) -> None:
    async with shop_cluster(tmp_path, old) as cluster:
        words = ("dev", new, "--data-dir", str(cluster.data_dir), "--no-http")
        async with Command.running(*words) as dev:
            assert "--upgrade" in await dev.says("runs other code of shop")
            await dev.says("waiting for a change")
        async with Command.running(*words, "--upgrade") as dev:
            await dev.says("joined workers that run other code")
            await dev.says("ready after")


async def test_a_change_of_code_on_disk_ends_no_other_worker_when_one_dies(
    tmp_path: Path, old: str
) -> None:
    data = tmp_path / "data"
    async with Command.running("run", old, "--workers", "2", "--data-dir", str(data)) as run:
        await run.says("2 workers are ready")
        directory = SqliteDirectory(data / "sublet.db")
        first, second = (await directory.view()).members.values()
        (tmp_path / "old" / "prices.py").write_text("PRICE = 3\n")
        os.kill(first.pid, signal.SIGKILL)
        await run.says("runs other code of shop")
        await run.says("cannot start again (see above); the other workers continue")
        beat = (await directory.view()).members[second.id].beat

        async def beats_on() -> bool:
            return (await directory.view()).members[second.id].beat > beat

        await until(beats_on)
        await directory.close()
