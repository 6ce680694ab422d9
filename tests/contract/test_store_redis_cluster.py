"""What is special about a Redis Cluster: nodes of their own, and slots that move between them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import structlog
from redis.crc import key_slot

from sublet.functions.errors import UnavailableError
from sublet.statestore.contract import (
    Commit,
    Member,
    OutboxEntry,
    Outcome,
    StateRow,
    StoreServerError,
)
from sublet.statestore.redis.directory import RedisDirectory
from sublet.statestore.redis.store import RedisStore
from tests.contract.conftest import settled
from tests.redis_process import RedisClusterProcesses, RedisProcess

PATIENCE_S = 60.0
NAMES = [f"shop/cart/{number}" for number in range(12)]
OpenStore = Callable[..., RedisStore]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisClusterProcesses]:
    processes = RedisClusterProcesses(tmp_path_factory.mktemp("cluster"))
    processes.start()
    yield processes
    processes.stop()


@pytest.fixture
async def opened(
    cluster: RedisClusterProcesses, request: pytest.FixtureRequest
) -> AsyncIterator[OpenStore]:
    """Return a function that opens a store in a part of the cluster that is the test's own."""
    stores: list[RedisStore] = []
    prefix = request.node.name

    def open_on(url: str = "", **options: float) -> RedisStore:
        store = RedisStore(url or cluster.url, prefix=prefix, timeout_s=2.0, **options)
        stores.append(store)
        return store

    yield open_on
    for store in stores:
        await store.close()


def slot_of(store: RedisStore, partition: str) -> int:
    return key_slot(store._key(partition).encode())


def numbered(partition: str, epoch: int, index: int) -> Commit:
    """A commit that writes to several keys of its partition."""
    return Commit(
        partition=partition,
        epoch=epoch,
        index=index,
        id=b"commit %d" % index,
        clock_ms=index,
        state=[
            StateRow("count", b"", b"%d" % index),
            StateRow("map", b"%d" % index, b"x"),
            StateRow("soon", b"", b"x", index),
        ],
        inbox={"~client": index},
        outbox=[OutboxEntry(f"~to{index}", 1, 1, b"x")],
    )


async def acquired(store: RedisStore, partition: str) -> int:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return (await store.acquire(partition, "worker")).epoch
            except UnavailableError:
                continue


async def test_a_group_over_all_nodes_has_its_outcomes_in_order(
    cluster: RedisClusterProcesses, opened: OpenStore
) -> None:
    store, other = opened(), opened(cluster.nodes[2].url)
    epochs = {name: await acquired(store, name) for name in NAMES}
    assert {cluster.owner_of(slot_of(store, name)) for name in NAMES} == {0, 1, 2}
    for name in NAMES[::3]:
        await acquired(other, name)
    group = [numbered(name, epochs[name], 1) for name in NAMES]
    expected = [Outcome.DONE if number % 3 else Outcome.FENCED for number in range(len(NAMES))]
    assert await store.commit(group) == expected
    assert await store.commit(group) == [
        Outcome.DUPLICATE if each is Outcome.DONE else each for each in expected
    ]
    scanned = await other.scan("shop/cart", None, 100)
    assert {name for name, _ in scanned} == {
        name for name, each in zip(NAMES, expected, strict=True) if each is Outcome.DONE
    }


async def test_a_slot_that_moves_takes_its_partition_along_and_tears_no_commit(
    cluster: RedisClusterProcesses, opened: OpenStore
) -> None:
    store, reader = opened(), opened()
    name = NAMES[0]
    slot = slot_of(store, name)
    source = cluster.owner_of(slot)
    target = (source + 1) % 3
    epoch = await acquired(store, name)
    for index in range(1, 6):
        assert await settled(store, numbered(name, epoch, index)) is Outcome.DONE
    assert len(await reader.load(name, ["count", "map", "soon"])) == 7

    cluster.begin_move(slot, source, target)
    waiting = numbered(name, epoch, 6)
    with structlog.testing.capture_logs() as logged:
        for key in sorted(cluster.keys_in(slot, source)):
            # Some of the keys are here, some there: nothing may be written on either side.
            assert await store.commit([waiting]) == [Outcome.UNKNOWN]
            cluster.move_key(key, source, target)
        assert await store.commit([waiting]) == [Outcome.UNKNOWN]
    assert len([each for each in logged if each["event"] == "commit_failing"]) == 1
    with pytest.raises(UnavailableError):
        await opened().acquire(name, "other")
    assert cluster.keys_in(slot, source) == []
    cluster.end_move(slot, target)

    # Nothing of the commit that waits is there.
    assert dict(_values(await reader.load(name, ["count"]))) == {"count": b"5"}
    assert len(await reader.load(name, ["map"])) == 5
    assert await settled(store, waiting) is Outcome.DONE
    assert await settled(store, waiting) is Outcome.DUPLICATE
    recovered = await opened().acquire(name, "other")
    assert (recovered.epoch, recovered.index, len(recovered.outbox)) == (epoch + 1, 6, 6)
    assert dict(_values(await reader.load(name, ["count"]))) == {"count": b"6"}
    _move_back(cluster, slot, target, source)
    assert await settled(store, numbered(name, epoch, 7)) is Outcome.FENCED


def _values(rows: list[StateRow]) -> list[tuple[str, bytes | None]]:
    return [(row.key, row.value) for row in rows]


def _move_back(cluster: RedisClusterProcesses, slot: int, source: int, target: int) -> None:
    cluster.begin_move(slot, source, target)
    for key in cluster.keys_in(slot, source):
        cluster.move_key(key, source, target)
    cluster.end_move(slot, target)


async def test_a_directory_whose_slot_moves_is_whole_again_afterwards(
    cluster: RedisClusterProcesses, request: pytest.FixtureRequest
) -> None:
    prefix = request.node.name[:40]
    directory = RedisDirectory(cluster.url, prefix=prefix)
    joined = await directory.join(Member(id="a", address="127.0.0.1:1"), {"f/g": 2})
    slot = key_slot(f"{prefix}:{{directory}}".encode())
    source = cluster.owner_of(slot)
    target = (source + 1) % 3
    cluster.begin_move(slot, source, target)
    for key in sorted(cluster.keys_in(slot, source)):
        with pytest.raises(UnavailableError):
            await directory.beat("a")
        cluster.move_key(key, source, target)
    cluster.end_move(slot, target)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                view = await directory.beat("a")
                break
            except UnavailableError:
                continue
    assert view is not None
    assert (view.version, view.functions, view.members["a"].beat) == (joined.version, {"f/g": 2}, 1)
    await directory.close()
    _move_back(cluster, slot, target, source)


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_a_node_that_is_away_keeps_only_its_own_partitions_waiting(
    cluster: RedisClusterProcesses, opened: OpenStore, how: str
) -> None:
    store = opened(cluster.nodes[2].url)
    epochs = {name: await acquired(store, name) for name in NAMES}
    lost = {name for name in NAMES if cluster.owner_of(slot_of(store, name)) == 1}
    assert 0 < len(lost) < len(NAMES)
    group = [numbered(name, epochs[name], 1) for name in NAMES]
    assert await store.commit(group) == [Outcome.DONE] * len(NAMES)
    node = cluster.nodes[1]
    go, come = (node.kill, node.start) if how == "killed" else (node.freeze, node.thaw)
    go()
    try:
        group = [numbered(name, epochs[name], 2) for name in NAMES]
        outcomes = dict(zip(NAMES, await store.commit(group), strict=True))
        assert {name for name, each in outcomes.items() if each is Outcome.UNKNOWN} == lost
        # The others go on.
        for index in (3, 4):
            for name in sorted(set(NAMES) - lost)[:3]:
                commit = numbered(name, epochs[name], index)
                assert await settled(store, commit) is Outcome.DONE
        # The rest of the group may, too, while those that are away are tried again.
        commits = [
            numbered(name, epochs[name], 3 if name not in lost else 2) for name in NAMES[-6:]
        ]
        found = await store.commit(commits)
        assert {
            each.partition
            for each, outcome in zip(commits, found, strict=True)
            if outcome is Outcome.UNKNOWN
        } == lost & set(NAMES[-6:])
    finally:
        come()
    for name in lost:
        outcome = await settled(store, numbered(name, epochs[name], 2))
        # What was frozen may have read it before.
        assert outcome in (Outcome.DONE, Outcome.DUPLICATE)
        assert dict(_values(await store.load(name, ["count"]))) == {"count": b"2"}


async def test_functions_that_one_node_has_lost_are_loaded_again(
    cluster: RedisClusterProcesses, opened: OpenStore
) -> None:
    store = opened()
    epochs = {name: await acquired(store, name) for name in NAMES}
    cluster.nodes[0].ask("FUNCTION", "FLUSH")
    for name in NAMES:
        assert await settled(store, numbered(name, epochs[name], 1)) is Outcome.DONE


async def test_every_primary_is_looked_at_and_the_one_that_is_wrong_is_named(
    cluster: RedisClusterProcesses, opened: OpenStore
) -> None:
    wrong = cluster.nodes[2]
    wrong.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        store = opened()
        there = next(each for each in NAMES if cluster.owner_of(slot_of(store, each)) == 2)
        with pytest.raises(StoreServerError, match=rf":{wrong.port} cannot be used.*noeviction"):
            await store.acquire(there, "worker")
    finally:
        wrong.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")


async def test_another_database_than_the_first_is_refused(
    cluster: RedisClusterProcesses, opened: OpenStore
) -> None:
    store = opened(cluster.url.replace("/0", "/3"))
    with pytest.raises(StoreServerError, match="names database 3; allowed in a Redis Cluster"):
        await store.acquire(NAMES[0], "worker")


def replication_offset(server: RedisProcess, name: bytes) -> int:
    found = re.search(name + rb":(\d+)", server.ask("INFO", "replication"))
    return int(found.group(1)) if found else 0


async def test_a_replica_that_is_promoted_is_found_and_was_warned_of(tmp_path: Path) -> None:
    cluster = RedisClusterProcesses(tmp_path, count=1, repl_diskless_sync_delay="0")
    cluster.start()
    replica = cluster.add_replica(tmp_path / "replica")
    store = RedisStore(cluster.url, timeout_s=2.0)
    try:
        with structlog.testing.capture_logs() as logged:
            epoch = await acquired(store, NAMES[0])
        assert "redis_failover_may_lose_commits" in [each["event"] for each in logged]
        assert await store.commit([numbered(NAMES[0], epoch, 1)]) == [Outcome.DONE]
        written = replication_offset(cluster.nodes[0], b"master_repl_offset")
        async with asyncio.timeout(PATIENCE_S):
            # WAIT would tell only of what its own connection has written.
            while replication_offset(replica, b"slave_repl_offset") < written:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

        assert replica.ask("CLUSTER", "FAILOVER", "TAKEOVER").startswith(b"+OK")
        cluster.nodes[0].wait_for("INFO replication", b"role:slave")
        # It has everything, so it is as if nothing had happened.
        assert await settled(store, numbered(NAMES[0], epoch, 1)) is Outcome.DUPLICATE
        assert await settled(store, numbered(NAMES[0], epoch, 2)) is Outcome.DONE
        assert dict(_values(await store.load(NAMES[0], ["count"]))) == {"count": b"2"}
    finally:
        await store.close()
        cluster.stop()
