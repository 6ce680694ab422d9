"""What only a file can suffer: killed processes, full disks, damage, other writers.

Run as a program, this module is one of those processes: see `write_until_killed`.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from sublet.functions.errors import UnavailableError
from sublet.statestore.contract import (
    DEAD,
    TIMER,
    Commit,
    EgressEntry,
    Member,
    OutboxEntry,
    Outcome,
    Record,
    StateRow,
    settled,
)
from sublet.statestore.delta import Delta, PackedCommit
from sublet.statestore.sqlite import tables
from sublet.statestore.sqlite.directory import SqliteDirectory
from sublet.statestore.sqlite.file import SCHEMA_VERSION, StoreFileError, WriteLock, open_database
from sublet.statestore.sqlite.fold import Folder, FoldPolicy, Owned
from sublet.statestore.sqlite.store import SqliteStore
from sublet.statestore.sqlite.writer import Writer

P = "shop/cart/0"
FOLD_NEVER = FoldPolicy(age_max_s=3600.0)
# Checkpoints too, all the time.
FOLD_ROW_BY_ROW = FoldPolicy(rows_max=5, chunk_rows_max=1, wal_bytes_max=64 * 1024)
KEY_COUNT = 20


def numbered(partition: str, epoch: int, index: int) -> Commit:
    """Return the commit that everybody here makes at an index, so that anybody can check it."""
    trimmed = max(0, index - 30)
    return Commit(
        partition=partition,
        epoch=epoch,
        index=index,
        id=b"%d" % index,
        clock_ms=index,
        state=[
            StateRow(f"k{index % KEY_COUNT}", b"", b"%d" % index),
            StateRow("count", b"", b"%d" % index),
            StateRow(f"k{(index * 7) % KEY_COUNT}", b"odd", b"x" if index % 2 else None),
        ],
        inbox={"~client": index},
        outbox=[OutboxEntry("x/y/0", index, 1, b"%d" % index)],
        outbox_acknowledged={"x/y/0": index - 3},
        egress=[EgressEntry("log", index - 1, 1, b"%d" % index)],
        egress_trimmed={"log": trimmed},
        records=[
            Record(TIMER, f"t{index % 10}", b"%d" % index, index + 1000),
            Record(DEAD, f"d{index % 4}", b"dead" if index % 3 else None),
        ],
    )


async def check_everything(store: SqliteStore, partition: str, epoch: int, index: int) -> None:
    """Compare a partition with what its first `index` commits make of it."""
    state: dict[tuple[str, bytes], StateRow] = {}
    records: dict[tuple[str, str], Record] = {}
    for commit in (numbered(partition, epoch, each) for each in range(1, index + 1)):
        state.update({(row.key, row.subkey): row for row in commit.state})
        records.update({(record.kind, record.id): record for record in commit.records})
    keys = [f"k{number}" for number in range(KEY_COUNT)] + ["count"]
    kept = sorted(row for row in state.values() if row.value is not None)
    assert sorted(await store.load(partition, keys)) == kept
    for kind in (TIMER, DEAD):
        found = await store.record_ids(partition, kind, 100)
        expected = [row for row in records.values() if row.kind == kind and row.value is not None]
        assert found == sorted(expected)
    entries = await store.read_egress("log", partition, 0, 1000)
    assert [each.first for each in entries] == list(range(max(0, index - 30), index))


async def take_over(store: SqliteStore, partition: str) -> int:
    """Acquire a partition of numbered commits, check all of it, return its index."""
    recovered = await store.acquire(partition, "survivor")
    index = recovered.index
    assert recovered.clock_ms == index
    if index:
        assert recovered.inbox == {"~client": index}
        assert recovered.sent == {"x/y/0": index}
        assert [each.first for each in recovered.outbox] == [
            number for number in range(index - 2, index + 1) if number >= 1
        ]
        assert recovered.egress == {"log": (max(0, index - 30), index)}
    await check_everything(store, partition, recovered.epoch, index)
    return index


async def write_until_killed(path: str, first_partition: int, commit_limit: int) -> None:
    """Commit to two partitions and say of each commit that it was acknowledged."""
    store = SqliteStore(path, fold=FOLD_ROW_BY_ROW)
    names = [f"shop/cart/{first_partition + number}" for number in range(2)]
    epochs = [(await store.acquire(name, "writer")).epoch for name in names]
    for index in range(1, commit_limit + 1):
        group = [numbered(name, epoch, index) for name, epoch in zip(names, epochs, strict=True)]
        assert await store.commit(group) == [Outcome.DONE] * len(group)
        sys.stdout.write(f"{index}\n")
        sys.stdout.flush()
    await store.close()


@contextmanager
def writer(path: Path, first_partition: int, commit_limit: int) -> Iterator[subprocess.Popen[str]]:
    """Start a process that commits; it is killed at the end, if it still runs."""
    with subprocess.Popen(
        [sys.executable, __file__, str(path), str(first_partition), str(commit_limit)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("seed", range(6))
async def test_every_acknowledged_commit_survives_kill_9(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = tmp_path / "store.db"
    with writer(path, 0, 100_000) as process:
        assert process.stdout is not None
        for _ in range(chance.randrange(1, 300)):
            acknowledged = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        for line in process.stdout:
            if line.endswith("\n"):
                acknowledged = int(line)

    store = SqliteStore(path, fold=FOLD_NEVER)
    for name in ("shop/cart/0", "shop/cart/1"):
        assert await take_over(store, name) in (acknowledged, acknowledged + 1), f"seed {seed}"
    await store.close()


async def test_two_processes_commit_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    limit = 150
    with writer(path, 0, limit) as first, writer(path, 2, limit) as second:
        for process in (first, second):
            output, _ = process.communicate(timeout=50)
            assert output.splitlines()[-1] == str(limit)
            assert process.returncode == 0

    store = SqliteStore(path)
    for number in range(4):
        assert await take_over(store, f"shop/cart/{number}") == limit
    await store.close()


async def committed(path: Path, count: int) -> SqliteStore:
    """Return a store that has committed so many times and folded nothing."""
    store = SqliteStore(path, fold=FOLD_NEVER)
    epoch = (await store.acquire(P, "worker")).epoch
    for index in range(1, count + 1):
        assert await store.commit([numbered(P, epoch, index)]) == [Outcome.DONE]
    return store


def fold_steps(path: Path, count: int, step_limit: int) -> int:
    """Do steps of the fold that the owner of `count` commits would do; return how many."""
    steps = 0
    lock = WriteLock(path)
    with closing(open_database(path)) as connection:
        owned = Owned(P, 1, 1, count)
        owned.pending.extend(
            msgspec.msgpack.encode(numbered(P, 1, index)) for index in range(1, count + 1)
        )
        folder = Folder(connection, {P: owned}, FOLD_ROW_BY_ROW, lambda _rows, _bytes: None)
        folder.add(count, count)
        while folder.has_work() and steps < step_limit:
            folder.step(lock)
            steps += 1
    lock.close()
    return steps


async def test_a_fold_that_was_interrupted_anywhere_is_done_again(tmp_path: Path) -> None:
    count = 25
    original = tmp_path / "original"
    original.mkdir()
    store = await committed(original / "store.db", count)
    steps = fold_copy_steps = 0
    while fold_copy_steps == steps:
        copy = tmp_path / f"copy{steps}"
        shutil.copytree(original, copy)
        steps += 1
        fold_copy_steps = fold_steps(copy / "store.db", count, steps)
        reader = SqliteStore(copy / "store.db", fold=FOLD_NEVER)
        await check_everything(reader, P, 1, count)
        assert await take_over(reader, P) == count
        await reader.close()
    assert steps > 15
    await store.close()


def test_a_packed_commit_has_the_fields_of_a_commit_in_their_order() -> None:
    assert PackedCommit.__struct_fields__ == Commit.__struct_fields__
    commit = numbered(P, 1, 40)
    packed = msgspec.msgpack.encode(commit)
    assert msgspec.msgpack.encode(msgspec.msgpack.decode(packed, type=PackedCommit)) == packed


async def test_the_late_fold_of_a_former_owner_brings_nothing_old_back(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    former = await committed(path, 12)
    store = SqliteStore(path, fold=FOLD_NEVER)
    recovered = await store.acquire(P, "other")
    for index in (13, 14):
        await store.commit([numbered(P, recovered.epoch, index)])
    await store.fold()
    await former.fold()
    await former.close()
    assert await take_over(store, P) == 14
    await store.close()


def told(epoch: int, index: int) -> Commit:
    """Return a commit of one row and one timer, both with the index as value."""
    return Commit(
        partition=P,
        epoch=epoch,
        index=index,
        id=b"%d" % index,
        clock_ms=index,
        state=[StateRow("a", b"", b"%d" % index)],
        records=[Record(TIMER, "t", b"%d" % index, 5)],
    )


async def test_an_owner_reads_without_the_changelog_and_a_former_owner_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions_read: list[int] = []
    unfolded = tables.unfolded

    def noted(connection: sqlite3.Connection, partition: int) -> Delta | None:
        partitions_read.append(partition)
        return unfolded(connection, partition)

    async def changelog_reads(store: SqliteStore) -> int:
        """Read in all ways; return how often that took the changelog."""
        partitions_read.clear()
        # More keys than fit one statement.
        found = await store.load(P, ["a", *(f"absent{number}" for number in range(600))])
        assert [each.value for each in found] == [b"2"]
        timer = Record(TIMER, "t", b"2", 5)
        assert await store.records(P, TIMER, ["t"]) == [timer]
        assert await store.records_due(P, TIMER, 6, 1) == [timer]
        assert await store.record_ids(P, TIMER, 1) == [timer]
        return len(partitions_read)

    former, latter = [SqliteStore(tmp_path / "store.db", fold=FOLD_NEVER) for _ in range(2)]
    for index, store in ((1, former), (2, latter)):
        epoch = (await store.acquire(P, "worker")).epoch
        assert await store.commit([told(epoch, index)]) == [Outcome.DONE]
    monkeypatch.setattr(tables, "unfolded", noted)

    assert await changelog_reads(latter) == 0
    assert await changelog_reads(former) == 4
    # Whoever does not own it any more leaves no trace of what it had, also when it folds.
    await former.fold()
    assert await changelog_reads(former) == 4
    await former.close()
    assert await changelog_reads(latter) == 0
    await latter.close()


@pytest.mark.parametrize("way", ["load", "records", "records_due", "record_ids"])
async def test_each_way_to_read_finds_out_by_itself_that_there_is_another_owner(
    tmp_path: Path, way: str
) -> None:
    former, latter = [SqliteStore(tmp_path / "store.db", fold=FOLD_NEVER) for _ in range(2)]
    for index, store in ((1, former), (2, latter)):
        epoch = (await store.acquire(P, "worker")).epoch
        assert await store.commit([told(epoch, index)]) == [Outcome.DONE]
    found: list[Any]
    match way:
        case "load":
            # The row is in the first of several statements, the check in the last.
            found = await former.load(P, ["a", *(f"absent{number}" for number in range(600))])
        case "records":
            found = await former.records(P, TIMER, ["t"])
        case "records_due":
            found = await former.records_due(P, TIMER, 6, 1)
        case _:
            found = await former.record_ids(P, TIMER, 1)
    assert [each.value for each in found] == [b"2"]
    await former.close()
    await latter.close()


async def test_who_waits_until_the_owner_has_settled_reads_there_what_was_read_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, other = [SqliteStore(tmp_path / "store.db", fold=FOLD_NEVER) for _ in range(2)]
    epoch = (await owner.acquire(P, "worker")).epoch
    assert await owner.commit([told(epoch, 1)]) == [Outcome.DONE]
    await owner.settled(P)
    has_committed, may_remember = threading.Event(), threading.Event()
    remember = Writer._remember

    def later(self: Writer, *committed: Any) -> None:
        has_committed.set()
        may_remember.wait()
        remember(self, *committed)

    async def values(store: SqliteStore) -> list[bytes | None]:
        return [each.value for each in await store.load(P, ["a"])]

    async def settled_values() -> list[bytes | None]:
        await settled(owner, P)
        return await values(owner)

    monkeypatch.setattr(Writer, "_remember", later)
    committing = asyncio.create_task(owner.commit([told(epoch, 2)]))
    try:
        assert await asyncio.to_thread(has_committed.wait, 20)
        assert await values(other) == [b"2"]
        reading = asyncio.create_task(settled_values())
        await asyncio.sleep(0)
        # Behind what has just begun to read: the owner's own messages need not wait.
        assert await values(owner) == [b"1"]
    finally:
        may_remember.set()
    assert await reading == [b"2"]
    assert await committing == [Outcome.DONE]
    await owner.close()
    await other.close()


def changelog_rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM changelog").fetchone()
    return int(count)


@pytest.mark.parametrize(
    "policy",
    [
        FoldPolicy(rows_max=20, age_max_s=3600.0),
        FoldPolicy(bytes_max=2000, age_max_s=3600.0),
        FoldPolicy(age_max_s=0.01),
    ],
    ids=["rows", "bytes", "age"],
)
async def test_the_changelog_is_folded_when_a_bound_is_reached(
    tmp_path: Path, policy: FoldPolicy
) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path, fold=policy)
    epoch = (await store.acquire(P, "worker")).epoch
    for index in range(1, 21):
        await store.commit([numbered(P, epoch, index)])
    async with asyncio.timeout(20):
        while changelog_rows(path) > 12:
            await store.load(P, ["count"])
    await check_everything(store, P, epoch, 20)
    await store.close()
    assert changelog_rows(path) == 0


async def test_commits_wait_for_the_fold_when_far_too_much_is_unfolded(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path, fold=FoldPolicy(rows_max=2, chunk_rows_max=1))
    names = [f"shop/cart/{number}" for number in range(40)]
    epochs = {name: (await store.acquire(name, "worker")).epoch for name in names}
    for index in range(1, 6):
        group = [numbered(name, epochs[name], index) for name in names]
        assert await store.commit(group) == [Outcome.DONE] * len(names)
        # At the bound of 8 * 2 rows, everything before this group was folded first.
        assert changelog_rows(path) <= len(names) + 16
    await store.close()


async def test_the_write_ahead_log_does_not_grow_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    limit = 4 * 1024 * 1024
    store = SqliteStore(path, fold=FoldPolicy(wal_bytes_max=limit))
    epoch = (await store.acquire(P, "worker")).epoch
    largest = 0
    for index in range(1, 161):
        state = [StateRow(f"k{index % 4}", b"", bytes(256 * 1024))]
        commit = Commit(
            partition=P, epoch=epoch, index=index, id=b"%d" % index, clock_ms=0, state=state
        )
        assert await store.commit([commit]) == [Outcome.DONE]
        largest = max(largest, (tmp_path / "store.db-wal").stat().st_size)
    await store.close()
    # 40 MiB were committed and folded. Checkpoints run beside the commits, which wait for one
    # when three times its size was written meanwhile.
    assert limit <= largest < 5 * limit


async def test_a_full_disk_makes_outcomes_unknown_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path, fold=FOLD_NEVER, pages_max=60)
    epoch = (await store.acquire(P, "worker")).epoch
    other = (await store.acquire("shop/cart/1", "worker")).epoch
    done = 0
    with structlog.testing.capture_logs() as logged:
        for index in range(1, 2000):
            group = [numbered(P, epoch, index), numbered("shop/cart/1", other, index)]
            outcomes = await store.commit(group)
            if outcomes != [Outcome.DONE, Outcome.DONE]:
                break
            done = index
        assert outcomes == [Outcome.UNKNOWN, Outcome.UNKNOWN]
        assert await store.commit(group) == [Outcome.UNKNOWN, Outcome.UNKNOWN]
        acquisitions = (store.acquire(f"shop/cart/{n}", "worker") for n in range(2, 2000))
        with pytest.raises(UnavailableError, match="full"):
            await asyncio.gather(*acquisitions)
    assert [each["event"] for each in logged].count("the store is failing") <= 2
    await check_everything(store, P, epoch, done)
    await store.close()

    store = SqliteStore(path)
    assert await take_over(store, P) == done
    assert await take_over(store, "shop/cart/1") == done
    await store.close()


async def test_a_commit_whose_outcome_was_unknown_is_done_when_sent_again(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(path, busy_timeout_ms=20)
    epoch = (await store.acquire(P, "worker")).epoch
    commit = numbered(P, epoch, 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as intruder:
        intruder.execute("BEGIN IMMEDIATE")
        assert await store.commit([commit]) == [Outcome.UNKNOWN]
        trouble = store.trouble()
        assert trouble is not None
        assert "locked" in trouble.reason
        with pytest.raises(UnavailableError, match="locked"):
            await store.acquire(P, "worker")
        intruder.execute("ROLLBACK")
    assert await store.commit([commit]) == [Outcome.DONE]
    assert store.trouble() is None
    assert await store.commit([commit]) == [Outcome.DUPLICATE]
    await store.close()


async def test_a_commit_that_no_table_can_hold_is_refused_and_hurts_no_other(
    tmp_path: Path,
) -> None:
    store = SqliteStore(tmp_path / "store.db")
    epoch = (await store.acquire(P, "worker")).epoch
    impossible = Commit(partition=P, epoch=epoch, index=2**63, id=b"", clock_ms=0)
    results = await asyncio.gather(
        store.commit([impossible]),
        store.commit([numbered(P, epoch, 1)]),
    )
    assert list(results) == [[Outcome.REFUSED], [Outcome.DONE]]
    await store.close()


@pytest.mark.parametrize(
    "impossible",
    [{"index": 2**63}, {"records": [Record(TIMER, "t", b"", 2**70)]}],
    ids=["no table can hold", "cannot even be written"],
)
async def test_a_commit_with_a_number_that_is_too_large_is_refused_alone_in_its_group(
    tmp_path: Path, impossible: dict[str, Any]
) -> None:
    store = SqliteStore(tmp_path / "store.db")
    names = [P, "app/f/1", "app/f/2"]
    epochs = [(await store.acquire(each, "worker")).epoch for each in names]
    group = [numbered(name, epoch, 1) for name, epoch in zip(names, epochs, strict=True)]
    group[1] = msgspec.structs.replace(group[1], **impossible)
    assert await store.commit(group) == [Outcome.DONE, Outcome.REFUSED, Outcome.DONE]
    assert await store.commit([numbered("app/f/1", epochs[1], 1)]) == [Outcome.DONE]
    await store.close()


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    await store.close()
    with pytest.raises(RuntimeError, match="closed"):
        await store.commit([numbered(P, 1, 1)])
    with pytest.raises(RuntimeError, match="closed"):
        await store.acquire(P, "worker")


async def test_a_caller_that_gives_up_does_not_disturb_the_store(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    epoch = (await store.acquire(P, "worker")).epoch
    given_up = asyncio.ensure_future(store.commit([numbered(P, epoch, 1)]))
    await asyncio.sleep(0)
    given_up.cancel()
    assert await store.commit([numbered(P, epoch, 1)]) == [Outcome.DUPLICATE]
    await store.close()


@pytest.mark.parametrize("opened", [SqliteStore, SqliteDirectory])
def test_a_file_that_is_not_a_database_is_refused(
    tmp_path: Path, opened: type[SqliteStore] | type[SqliteDirectory]
) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"not a database, but long enough to look" * 100)
    with pytest.raises(StoreFileError, match="move it away to start empty"):
        opened(path)


def test_the_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    with pytest.raises(StoreFileError, match="another program; choose another path"):
        SqliteStore(path)


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    open_database(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(StoreFileError, match=r"newer Sublet .* upgrade Sublet"):
        SqliteStore(path)


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6, 7])
async def test_a_file_of_an_earlier_schema_is_brought_up_to_date(
    tmp_path: Path, version: int
) -> None:
    path = tmp_path / "store.db"
    open_database(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("ALTER TABLE meta DROP COLUMN cluster_key")
        if version < 7:
            connection.execute("DROP TABLE plan")
        for column in ("holder", "token", "plan_version") if version < 7 else ():
            connection.execute(f"ALTER TABLE meta DROP COLUMN {column}")
        if version < 6:
            connection.execute("ALTER TABLE member DROP COLUMN details")
        for column in ("store", "generation", "base") if version < 5 else ():
            connection.execute(f"ALTER TABLE meta DROP COLUMN {column}")
        if version < 4:
            connection.execute("DROP TABLE leaving")
        if version < 3:
            connection.execute("ALTER TABLE member DROP COLUMN functions")
        if version < 2:
            connection.execute("ALTER TABLE member DROP COLUMN draining")
        values = ["'old', '127.0.0.1:1', '', 7, 3", "0", "NULL"][:version]
        values += ["NULL"] if version >= 6 else []
        connection.execute(f"INSERT INTO member VALUES ({', '.join(values)})")
        connection.execute(f"PRAGMA user_version = {version}")

    directory = SqliteDirectory(path)
    view = await directory.join(Member(id="new", address="127.0.0.1:2"), {"shop/cart": 1})
    led = await directory.lead("new", 0)
    assert led is not None
    assert await directory.replan(led.lead.token, 1, b"plan") == 1
    assert await directory.cluster_key(b"key") == b"key"
    await directory.close()

    assert view.members["old"].functions is None
    assert view.members["new"].functions == {"shop/cart"}


async def test_of_an_older_worker_the_functions_are_known_and_not_their_kinds(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store.db"
    open_database(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        row = ("old", "127.0.0.1:1", "", 7, 3, 0, '["shop/cart"]')
        connection.execute("INSERT INTO member VALUES (?, ?, ?, ?, ?, ?, ?, NULL)", row)

    directory = SqliteDirectory(path)
    old = (await directory.view()).members["old"]
    await directory.close()

    assert (old.functions, old.kinds) == ({"shop/cart"}, {})


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreFileError, match="its folder must exist"):
        SqliteStore(tmp_path / "missing" / "store.db")


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.db").mkdir()
    with pytest.raises(StoreFileError, match="cannot open the store"):
        SqliteStore(tmp_path / "store.db")


async def test_damage_in_the_middle_of_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = await committed(path, 50)
    await store.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)

    store = SqliteStore(path)
    with pytest.raises(StoreFileError, match="restore it from a backup"):
        await store.acquire(P, "worker")
    with pytest.raises(StoreFileError, match="restore it from a backup"):
        await store.load(P, ["count"])
    await store.close()


async def test_a_damaged_changelog_is_named_and_other_partitions_go_on(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = await committed(path, 3)
    with closing(sqlite3.connect(path, isolation_level=None)) as intruder:
        intruder.execute("UPDATE changelog SET blob = x'93' WHERE idx = 2")
    other = SqliteStore(path, fold=FOLD_NEVER)
    with pytest.raises(StoreFileError, match="store's changelog is corrupt"):
        await other.load(P, ["count"])
    with pytest.raises(StoreFileError, match="store's changelog is corrupt"):
        await other.acquire(P, "worker")
    assert (await other.acquire("shop/cart/1", "worker")).epoch == 1
    await other.close()
    await store.close()


@pytest.mark.parametrize("bound", ["rows_max", "bytes_max", "chunk_rows_max", "chunk_bytes_max"])
def test_a_fold_policy_without_a_bound_is_refused(bound: str) -> None:
    with pytest.raises(ValueError, match=f"{bound} is 0; allowed: 1 or more"):
        FoldPolicy(**{bound: 0})


async def test_heartbeats_and_commits_share_one_file(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    directory, store = SqliteDirectory(path), SqliteStore(path, fold=FOLD_ROW_BY_ROW)
    await directory.join(Member(id="a", address="127.0.0.1:1"), {"shop/cart": 16})
    epoch = (await store.acquire(P, "a")).epoch
    for index in range(1, 101):
        outcome, view = await asyncio.gather(
            store.commit([numbered(P, epoch, index)]), directory.beat("a")
        )
        assert outcome == [Outcome.DONE]
        assert view is not None
        assert view.members["a"].beat == index
    await directory.close()
    await store.close()


if __name__ == "__main__":
    asyncio.run(write_until_killed(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
