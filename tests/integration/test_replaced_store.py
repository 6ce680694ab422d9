"""A data folder that is deleted, replaced or restored under workers: they end and say so."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from sublet import SubletError
from sublet.runtime.cli.exit_codes import ExitCode
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.rpc import CallRequest
from tests.integration import count_app
from tests.integration.cluster import (
    PATIENCE_S,
    PROJECT,
    Cluster,
    WorkerProcess,
    running_cluster,
    until,
)

APP = "tests.integration.count_app:app"
KEYS = [f"key{number}" for number in range(30)]


@asynccontextmanager
async def counting(tmp_path: Path, workers: int = 2) -> AsyncIterator[Cluster]:
    """Run workers whose folder is theirs alone, with 1 counted for each key."""
    async with running_cluster(
        tmp_path / "data", workers, app=APP, log=tmp_path / "workers.log"
    ) as cluster:
        async with cluster.client() as client:
            assert await client.call_many(count_app.count, KEYS, [1] * len(KEYS)) == [1] * len(KEYS)
        yield cluster


def back_up(cluster: Cluster, copy: Path) -> None:
    path = cluster.data_dir / "sublet.db"
    with closing(sqlite3.connect(path)) as live, closing(sqlite3.connect(copy)) as into:
        live.backup(into)


async def is_acknowledged(worker: WorkerProcess, key: str) -> bool:
    """Ask this worker to count, whether it answers or not."""
    request = CallRequest(function="count/count", key=key, payload=b"\x01")
    try:
        async with asyncio.timeout(5), UnaryClient(worker.address) as unary:
            await unary.call(request)
    except (SubletError, TimeoutError):
        return False
    return True


async def all_end(cluster: Cluster, told: str) -> None:
    for worker in cluster.workers:
        worker.is_wanted = False
    for worker in cluster.workers:
        assert await worker.ended() == ExitCode.STORE_REPLACED
    errors = [line for line in cluster.log.splitlines() if line.startswith("error: ")]
    assert len(errors) == len(cluster.workers)
    assert all(told in line and "Stop all workers of this folder" in line for line in errors)


async def totals(cluster: Cluster) -> list[int]:
    """Return what the next workers on the folder know of each key."""
    cluster.workers.clear()
    cluster.add_worker()
    await cluster.ready()
    async with cluster.client() as client:
        counted: list[int] = await client.call_many(count_app.count, KEYS, [0] * len(KEYS))
    return counted


def delete_folder(folder: Path) -> None:
    shutil.rmtree(folder)


def move_folder(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def delete_database(folder: Path) -> None:
    (folder / "sublet.db").unlink()


def move_another_over_it(folder: Path) -> None:
    shutil.copy(folder / "sublet.db", folder / "another.db")
    (folder / "another.db").rename(folder / "sublet.db")


@pytest.mark.parametrize(
    ("happens", "told"),
    [
        (delete_folder, "sublet.db was deleted or moved away"),
        (move_folder, "sublet.db was deleted or moved away"),
        (delete_database, "sublet.db was deleted or moved away"),
        (move_another_over_it, "sublet.db was replaced by another file"),
    ],
)
async def test_nothing_is_acknowledged_that_the_next_worker_does_not_find(
    tmp_path: Path, happens: Callable[[Path], None], told: str
) -> None:
    async with counting(tmp_path) as cluster:
        happens(cluster.data_dir)
        # Also before anybody's next heartbeat.
        answers = [is_acknowledged(cluster.workers[0], key) for key in KEYS]
        assert not any(await asyncio.gather(*answers))
        await all_end(cluster, told)


async def test_workers_on_a_deleted_folder_do_not_serve_beside_those_on_a_new_one(
    tmp_path: Path,
) -> None:
    async with counting(tmp_path) as cluster:
        former = list(cluster.workers)
        shutil.rmtree(cluster.data_dir)
        assert await totals(cluster) == [0] * len(KEYS)
        await until(lambda: not any(each.is_running for each in former))


async def test_a_backup_that_is_copied_over_the_file_is_noticed_and_can_be_gone_on_with(
    tmp_path: Path,
) -> None:
    async with counting(tmp_path) as cluster:
        back_up(cluster, tmp_path / "copy.db")
        async with cluster.client() as client:
            await client.call_many(count_app.count, KEYS, [1] * len(KEYS))

        shutil.copyfile(tmp_path / "copy.db", cluster.data_dir / "sublet.db")

        await all_end(cluster, "sublet.db was overwritten")
        # Nobody has written into it. As the error says:
        assert (cluster.data_dir / "sublet.db").read_bytes() == (tmp_path / "copy.db").read_bytes()
        for suffix in ("-wal", "-shm"):
            (cluster.data_dir / f"sublet.db{suffix}").unlink()
        assert await totals(cluster) == [1] * len(KEYS)


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-lock"])
async def test_what_was_acknowledged_is_there_after_a_file_beside_the_database_was_deleted(
    tmp_path: Path, suffix: str
) -> None:
    async with counting(tmp_path) as cluster:
        (cluster.data_dir / f"sublet.db{suffix}").unlink()
        await all_end(cluster, f"sublet.db{suffix} was deleted")
        assert await totals(cluster) == [1] * len(KEYS)


async def test_a_supervisor_does_not_begin_a_new_store_by_itself(tmp_path: Path) -> None:
    data = tmp_path / "data"
    command = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sublet", "run", APP, "--data-dir", str(data)),
        cwd=PROJECT,
        stdout=PIPE,
        stderr=STDOUT,
    )
    assert command.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            while b"1 worker is ready" not in await command.stdout.readline():
                pass
            shutil.rmtree(data)
            told, _ = await command.communicate()
    finally:
        if command.returncode is None:
            command.kill()
    assert command.returncode == ExitCode.NO_CLUSTER
    assert b"worker 1 has lost its store" in told
    assert not data.exists()
