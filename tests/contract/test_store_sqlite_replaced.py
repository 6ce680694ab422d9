"""A database file that is deleted, replaced or restored under a store that has it open."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from sublet.statestore.contract import Commit, Member, Outcome, StateRow, StoreReplacedError
from sublet.statestore.sqlite.directory import SqliteDirectory
from sublet.statestore.sqlite.file import StoreFileError
from sublet.statestore.sqlite.fold import FoldPolicy
from sublet.statestore.sqlite.store import SqliteStore

P = "shop/cart/0"
WORKER = Member(id="w", address="127.0.0.1:1")
# Each commit is folded, and checkpointed soon.
CHECKPOINTS = FoldPolicy(rows_max=1, wal_bytes_max=32 * 1024)


def numbered(epoch: int, index: int) -> Commit:
    return Commit(
        partition=P,
        epoch=epoch,
        index=index,
        id=b"%d" % index,
        clock_ms=index,
        state=[StateRow(f"k{index % 7}", b"", b"%d" % index)],
    )


class Writing:
    """A store and a directory on one file, as a worker has them, with some commits."""

    def __init__(self, folder: Path, fold: FoldPolicy = CHECKPOINTS) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / "sublet.db"
        self.store = SqliteStore(self.path, fold=fold)
        self.directory = SqliteDirectory(self.path)
        self.epoch = self.index = 0

    async def begin(self, commits: int) -> None:
        await self.directory.join(WORKER, {"shop/cart": 1})
        recovered = await self.store.acquire(P, "w")
        self.epoch, self.index = recovered.epoch, recovered.index
        for _ in range(commits):
            assert await self.commit() == [Outcome.DONE]

    async def commit(self) -> list[Outcome]:
        outcomes = await self.store.commit([numbered(self.epoch, self.index + 1)])
        self.index += 1
        return outcomes

    def backup(self) -> Path:
        copy = self.path.with_name("copy.db")
        with closing(sqlite3.connect(self.path)) as live, closing(sqlite3.connect(copy)) as into:
            live.backup(into)
        return copy

    async def close(self) -> None:
        await self.directory.close()
        await self.store.close()


def delete_file(path: Path) -> None:
    path.unlink()


def delete_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def move_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


def put_another_in_its_place(path: Path) -> None:
    shutil.copy(path, path.with_name("another.db"))
    path.with_name("another.db").rename(path)


def delete_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def delete_index(path: Path) -> None:
    Path(f"{path}-shm").unlink()


def delete_lock(path: Path) -> None:
    Path(f"{path}-lock").unlink()


@pytest.mark.parametrize(
    ("happens", "told"),
    [
        (delete_file, "sublet.db was deleted or moved away"),
        (delete_folder, "sublet.db was deleted or moved away"),
        (move_folder, "sublet.db was deleted or moved away"),
        (put_another_in_its_place, "sublet.db was replaced by another file"),
        (delete_log, "sublet.db-wal was deleted"),
        (delete_index, "sublet.db-shm was deleted"),
        (delete_lock, "sublet.db-lock was deleted"),
    ],
)
async def test_nothing_is_committed_to_a_file_that_others_do_not_open(
    tmp_path: Path, happens: Callable[[Path], None], told: str
) -> None:
    writing = Writing(tmp_path / "data")
    await writing.begin(5)

    happens(writing.path)

    for _ in range(2):
        with pytest.raises(StoreReplacedError, match=rf"{told}.*Stop all workers of this folder"):
            await writing.commit()
    with pytest.raises(StoreReplacedError, match=told):
        await writing.store.acquire("shop/cart/1", "w")
    with pytest.raises(StoreReplacedError, match=told):
        await writing.directory.beat("w")
    await writing.close()
    # Nobody has begun a new database on the way.
    assert writing.path.exists() == (happens not in (delete_file, delete_folder, move_folder))


@pytest.mark.parametrize("happens", [delete_log, delete_index, delete_lock])
async def test_what_was_committed_is_found_after_the_log_of_the_file_was_deleted(
    tmp_path: Path, happens: Callable[[Path], None]
) -> None:
    writing = Writing(tmp_path / "data", FoldPolicy(age_max_s=3600.0))
    await writing.begin(50)
    happens(writing.path)
    with pytest.raises(StoreReplacedError):
        await writing.commit()
    await writing.close()

    if happens is delete_log:
        assert in_the_file_itself(writing.path, "SELECT idx FROM partition") == 50
    else:
        # In the file and its log, as whoever opens it next finds it.
        copied = tmp_path / "copied"
        shutil.copytree(writing.path.parent, copied)
        store = SqliteStore(copied / "sublet.db")
        assert (await store.acquire(P, "next")).index == 50
        await store.close()


def in_the_file_itself(path: Path, question: str) -> int:
    """Ask the database without its log."""
    with closing(sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)) as connection:
        return int(connection.execute(question).fetchone()[0])


async def until_checkpointed(writing: Writing) -> None:
    """Commit until a checkpoint has raised the generation in the file twice."""

    def generation() -> int:
        return in_the_file_itself(writing.path, "SELECT generation FROM meta")

    before = generation()
    async with asyncio.timeout(20):
        while generation() < before + 2:
            assert await writing.commit() == [Outcome.DONE]
    await until_quiet(writing)


async def until_quiet(writing: Writing) -> None:
    """Wait for the end of checkpoints: what one writes into a file while somebody copies another
    over it is no matter here."""
    async with asyncio.timeout(20):
        while True:
            # A checkpoint begins behind a fold, if at all: before the next one.
            await writing.store.fold()
            await writing.store.fold()
            if all(each.name != "store-checkpointer" for each in threading.enumerate()):
                return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("is_older", [True, False], ids=["older", "of before"])
async def test_a_backup_that_is_copied_over_the_file_is_noticed_by_the_next_heartbeat(
    tmp_path: Path, is_older: bool
) -> None:
    writing = Writing(tmp_path / "data")
    await writing.begin(5)
    await until_quiet(writing)
    backup = writing.backup()
    if is_older:
        await until_checkpointed(writing)
    assert await writing.directory.beat("w") is not None

    shutil.copyfile(backup, writing.path)

    with pytest.raises(StoreReplacedError, match=r"sublet.db was overwritten"):
        await writing.directory.beat("w")
    # The end of the worker leaves the restored file as it is.
    await writing.close()
    assert writing.path.read_bytes() == backup.read_bytes()


async def test_a_checkpoint_alone_is_no_other_file(tmp_path: Path) -> None:
    writing, other = Writing(tmp_path / "data"), Writing(tmp_path / "data")
    await writing.begin(5)
    await until_checkpointed(writing)
    await other.directory.join(Member(id="v", address="127.0.0.1:2"), {})
    assert await other.directory.beat("v") is not None
    assert await writing.directory.beat("w") is not None
    await writing.close()
    assert await other.directory.beat("v") is not None
    await other.close()


async def test_a_large_checkpoint_under_way_is_no_other_file(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "data", FoldPolicy(age_max_s=3600.0, wal_bytes_max=1 << 40))
    await writing.begin(1)
    for index in range(2, 62):
        large = numbered(writing.epoch, index)
        large.state = [StateRow(f"large{index}", b"", bytes(1024 * 1024))]
        assert await writing.store.commit([large]) == [Outcome.DONE]
    moving = asyncio.create_task(asyncio.to_thread(writing.store._writer._checkpointer._checkpoint))
    beats = 0
    while not moving.done():
        assert await writing.directory.beat("w") is not None
        beats += 1
    await moving
    assert beats > 1
    assert await writing.directory.beat("w") is not None
    await writing.close()


async def test_another_database_that_is_copied_over_the_file_is_noticed(tmp_path: Path) -> None:
    writing, other = Writing(tmp_path / "data"), Writing(tmp_path / "other")
    await other.begin(5)
    await until_checkpointed(other)
    await other.close()
    await writing.begin(5)
    await until_quiet(writing)
    assert await writing.directory.beat("w") is not None

    shutil.copyfile(other.path, writing.path)

    with pytest.raises(StoreReplacedError, match=r"sublet.db was overwritten"):
        await writing.directory.beat("w")
    await writing.close()


@pytest.mark.parametrize("way", ["copied over", "moved"])
async def test_a_log_is_not_played_into_a_backup_that_was_restored_beside_it(
    tmp_path: Path, way: str
) -> None:
    writing = Writing(tmp_path / "data")
    await writing.begin(5)
    backup = writing.backup()
    await until_checkpointed(writing)
    # As after `kill -9`: the log is left behind.
    killed = tmp_path / "killed"
    shutil.copytree(writing.path.parent, killed)
    await writing.close()
    path = killed / "sublet.db"
    content = backup.read_bytes()
    if way == "copied over":
        shutil.copyfile(backup, path)
    else:
        (killed / "copy.db").rename(path)

    for opened in (SqliteStore, SqliteDirectory):
        with pytest.raises(StoreFileError, match=r"delete sublet.db-wal and sublet.db-shm"):
            opened(path)
    assert path.read_bytes() == content

    (killed / "sublet.db-wal").unlink()
    (killed / "sublet.db-shm").unlink()
    store = SqliteStore(path)
    assert (await store.acquire(P, "next")).index == 5
    await store.close()


async def test_a_folder_that_was_copied_with_its_log_goes_on_where_it_was(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "data")
    await writing.begin(5)
    await until_checkpointed(writing)
    shutil.copytree(writing.path.parent, tmp_path / "copied")
    store = SqliteStore(tmp_path / "copied" / "sublet.db")
    assert (await store.acquire(P, "next")).index == writing.index
    await store.close()
    await writing.close()
