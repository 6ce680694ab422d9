"""A Redis that changes while it runs: settings, role, data, functions; and every bound of it."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog
from redis.asyncio.connection import Connection, ConnectionPool

from sublet.functions.errors import UnavailableError
from sublet.statestore.contract import (
    TIMER,
    Commit,
    Member,
    OutboxEntry,
    Outcome,
    Record,
    Recovered,
    StateRow,
    StoreServerError,
)
from sublet.statestore.redis.directory import RedisDirectory
from sublet.statestore.redis.node import RedisNode
from sublet.statestore.redis.server import RedisServer
from sublet.statestore.redis.store import (
    ARGUMENTS_MAX,
    ARGUMENTS_PER_CALL_MAX,
    BYTES_PER_CALL_MAX,
    COMMIT_BYTES_MAX,
    RedisStore,
    _Packed,
)
from tests.contract.conftest import RedisSpace, StartRedis, settled
from tests.redis_process import RedisProcess

P = "shop/cart/0"
PATIENCE_S = 20.0
OpenStore = Callable[..., RedisStore]


@pytest.fixture
async def opened() -> AsyncIterator[OpenStore]:
    """Return a function that opens a store on a Redis that is looked at again each time."""
    stores: list[RedisStore] = []

    def open_on(server: RedisProcess) -> RedisStore:
        stores.append(RedisStore(server.url, timeout_s=1.0, look_every_s=0.0))
        return stores[-1]

    yield open_on
    for store in stores:
        await store.close()


def numbered(epoch: int, index: int, partition: str = P, rows: int = 1, token: str = "") -> Commit:
    return Commit(
        partition=partition,
        epoch=epoch,
        index=index,
        id=b"commit %d" % index,
        clock_ms=index,
        state=[StateRow(f"k{number}", b"", b"%d" % index) for number in range(rows)],
        token=token,
    )


async def acquired(store: RedisStore, worker: str = "worker") -> Recovered:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await store.acquire(P, worker)
            except UnavailableError:
                continue


async def index_of(store: RedisStore, worker: str = "worker") -> tuple[int, int]:
    recovered = await acquired(store, worker)
    return recovered.epoch, recovered.index


def told_losses(logged: list[structlog.typing.EventDict]) -> list[tuple[str, str, str]]:
    return [
        (each["partition"], each["committed"], each["found"])
        for each in logged
        if each["event"] == "redis_lost_its_data"
    ]


def events(logged: list[structlog.typing.EventDict]) -> list[str]:
    return [each["event"] for each in logged]


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("maxmemory-policy", "allkeys-lru", "needed: noeviction"),
        ("appendonly", "no", "needed: appendonly yes"),
        ("appendfsync", "no", "allowed: always, everysec"),
    ],
)
async def test_a_setting_that_becomes_wrong_is_noticed_without_any_failure(
    start_redis: StartRedis, opened: OpenStore, setting: str, value: str, told: str
) -> None:
    server = start_redis()
    store = opened(server)
    epoch, _ = await index_of(store)
    assert await store.commit([numbered(epoch, 1)]) == [Outcome.DONE]
    assert server.ask("CONFIG", "SET", setting, value).startswith(b"+OK")
    with pytest.raises(StoreServerError, match=told):
        await store.commit([numbered(epoch, 2)])


async def test_how_often_redis_is_looked_at_is_bounded(start_redis: StartRedis) -> None:
    server = start_redis()
    store = RedisStore(server.url)
    epoch = (await store.acquire(P, "worker")).epoch
    server.ask("CONFIG", "RESETSTAT")
    for index in range(1, 21):
        assert await store.commit([numbered(epoch, index)]) == [Outcome.DONE]
    assert b"cmdstat_info" not in server.ask("INFO", "commandstats")
    await store.close()


async def test_older_data_is_noticed_by_every_owner_and_none_goes_on_as_if_nothing_were_lost(
    start_redis: StartRedis, opened: OpenStore, tmp_path: Path
) -> None:
    server = start_redis()
    former, later = opened(server), opened(server)
    first = await acquired(former)
    epoch = first.epoch
    for index in (1, 2, 3):
        assert await former.commit([numbered(epoch, index, token=first.token)]) == [Outcome.DONE]
    shutil.copytree(server.folder / "appendonlydir", tmp_path / "backup")
    assert await former.commit([numbered(epoch, 4, token=first.token)]) == [Outcome.DONE]
    second = await acquired(later)
    assert (second.epoch, second.index) == (epoch + 1, 4)
    assert await later.commit([numbered(epoch + 1, 5, token=second.token)]) == [Outcome.DONE]

    server.kill()
    server.lose_data()
    shutil.copytree(tmp_path / "backup", server.folder / "appendonlydir")
    server.start()

    with structlog.testing.capture_logs() as logged:
        # Whose taking over was lost, and who has never heard of it.
        assert await settled(later, numbered(epoch + 1, 6, token=second.token)) is Outcome.GAP
        assert await settled(former, numbered(epoch, 5, token=first.token)) is Outcome.GAP
    assert events(logged).count("redis_lost_its_data") == 2
    again = await acquired(former)
    assert (again.epoch, again.index) == (epoch + 1, 3)
    for index in (4, 5):
        commit = numbered(epoch + 1, index, token=again.token)
        assert await former.commit([commit]) == [Outcome.DONE]
    # The same epoch and the next index: what was given twice is told apart.
    with structlog.testing.capture_logs() as logged:
        late = numbered(epoch + 1, 6, token=second.token)
        assert await later.commit([late]) == [Outcome.GAP]
    assert events(logged) == ["redis_lost_its_data"]
    assert logged[0]["problem"].startswith("acknowledged commits were lost")


async def test_lost_data_is_told_by_who_takes_a_partition_again_before_any_commit(
    start_redis: StartRedis, opened: OpenStore, tmp_path: Path
) -> None:
    server = start_redis()
    store = opened(server)
    epoch, _ = await index_of(store)
    assert await store.commit([numbered(epoch, 1)]) == [Outcome.DONE]
    shutil.copytree(server.folder / "appendonlydir", tmp_path / "backup")
    assert await store.commit([numbered(epoch, 2)]) == [Outcome.DONE]

    server.kill()
    server.lose_data()
    shutil.copytree(tmp_path / "backup", server.folder / "appendonlydir")
    server.start()
    with structlog.testing.capture_logs() as logged:
        older = await acquired(store)
    assert (older.epoch, older.index, older.lost) == (epoch + 1, 1, True)
    assert told_losses(logged) == [(P, "epoch 1 index 2", "epoch 1 index 1")]

    server.ask("FLUSHALL")
    with structlog.testing.capture_logs() as logged:
        emptied, again = await acquired(store), await acquired(store)
    assert (emptied.epoch, emptied.index, emptied.lost) == (1, 0, True)
    assert told_losses(logged) == [(P, "epoch 2 index 1", "epoch 0 index 0")]
    # Once: what is there now is what is known now.
    assert (again.epoch, again.lost) == (2, False)


async def test_a_loss_that_a_commit_has_told_is_not_told_again_nor_is_a_partition_that_was_away(
    start_redis: StartRedis, opened: OpenStore
) -> None:
    server = start_redis()
    store, other = opened(server), opened(server)
    epoch, _ = await index_of(store)
    assert await store.commit([numbered(epoch, 1)]) == [Outcome.DONE]
    with structlog.testing.capture_logs() as logged:
        assert await index_of(other) == (epoch + 1, 1)
        assert await other.commit([numbered(epoch + 1, 2)]) == [Outcome.DONE]
        assert await store.commit([numbered(epoch, 2)]) == [Outcome.FENCED]
        third = await acquired(store)
        assert not third.lost
    assert told_losses(logged) == []

    server.ask("FLUSHALL")
    with structlog.testing.capture_logs() as logged:
        late = numbered(epoch + 2, 3, token=third.token)
        assert await settled(store, late) is Outcome.GAP
        assert not (await acquired(store)).lost
    assert len(told_losses(logged)) == 1


async def test_a_primary_that_becomes_a_replica_is_waited_for(
    start_redis: StartRedis, opened: OpenStore
) -> None:
    server = start_redis()
    store = opened(server)
    epoch, _ = await index_of(store)
    assert await store.commit([numbered(epoch, 1)]) == [Outcome.DONE]
    server.ask("REPLICAOF", "127.0.0.1", "1")
    assert await store.commit([numbered(epoch, 2)]) == [Outcome.UNKNOWN]
    with pytest.raises(UnavailableError, match="its role has become slave"):
        await store.load(P, ["k0"])
    server.ask("REPLICAOF", "NO", "ONE")
    assert await settled(store, numbered(epoch, 2)) is Outcome.DONE


async def test_a_redis_that_is_busy_with_a_script_of_others_is_waited_for(
    start_redis: StartRedis, opened: OpenStore
) -> None:
    server = start_redis(busy_reply_threshold="50")
    store = opened(server)
    epoch, _ = await index_of(store)
    running = asyncio.create_task(
        asyncio.to_thread(server.ask, "EVAL", "while true do end", "0", patience_s=PATIENCE_S)
    )
    index = 1
    async with asyncio.timeout(PATIENCE_S):
        while await store.commit([numbered(epoch, index)]) == [Outcome.DONE]:
            index += 1
    server.wait_for("PING", b"-BUSY")
    assert server.ask("SCRIPT", "KILL").startswith(b"+OK")
    await running
    assert await settled(store, numbered(epoch, index)) in (Outcome.DONE, Outcome.DUPLICATE)


async def test_functions_that_somebody_has_deleted_are_loaded_again(
    start_redis: StartRedis,
) -> None:
    server = start_redis()
    store = RedisStore(server.url)
    epoch = (await store.acquire(P, "worker")).epoch
    server.ask("FUNCTION", "FLUSH")
    assert await store.commit([numbered(epoch, 1)]) == [Outcome.UNKNOWN]
    assert await store.commit([numbered(epoch, 1)]) == [Outcome.DONE]
    await store.close()


async def test_workers_of_two_versions_work_on_one_redis(redis_space: RedisSpace) -> None:
    """Functions of another version are there beside ours, under other names."""
    store = RedisStore(redis_space.url, prefix=redis_space.prefix)
    await store.acquire(P, "worker")
    client = store._server._first.client
    other = "#!lua name=sublet_0\nredis.register_function('sublet_commit_0', function() end)"
    await client.function_load(other, replace=True)
    assert (await store.acquire(P, "worker")).epoch == 2
    await client.function_delete("sublet_0")
    await store.close()


class LosingServer(RedisServer):
    """Loses everything before it is asked for the second time."""

    def __init__(self, process: RedisProcess) -> None:
        super().__init__(process.url)
        self._process = process
        self._asked = 0

    async def ask(self, commands: Iterable[Sequence[Any]]) -> list[Any]:
        self._asked += 1
        if self._asked == 2:
            self._process.ask("FLUSHALL")
        return await super().ask(commands)


async def test_an_acquisition_that_loses_its_data_halfway_is_no_acquisition(
    start_redis: StartRedis,
) -> None:
    server = start_redis()
    store = RedisStore(server.url)
    store._server = LosingServer(server)
    with pytest.raises(UnavailableError, match=f"lost {P} during the takeover"):
        await store.acquire(P, "worker")
    await store.close()


class OvertakingServer(RedisServer):
    """Lets another worker take the partition, and commit, between two questions."""

    def __init__(self, space: RedisSpace) -> None:
        super().__init__(space.url, prefix=space.prefix)
        self.other = RedisStore(space.url, prefix=space.prefix)
        self._asked = 0

    async def ask(self, commands: Iterable[Sequence[Any]]) -> list[Any]:
        self._asked += 1
        if self._asked == 3:
            epoch = (await self.other.acquire(P, "other")).epoch
            assert await self.other.commit([numbered(epoch, 1)]) == [Outcome.DONE]
        return await super().ask(commands)


async def test_an_acquisition_that_another_overtakes_is_no_acquisition(
    redis_space: RedisSpace,
) -> None:
    store = RedisStore(redis_space.url, prefix=redis_space.prefix)
    store._server = server = OvertakingServer(redis_space)
    with pytest.raises(UnavailableError, match=f"taken over {P}"):
        await store.acquire(P, "worker")
    assert await server.other.commit([numbered(2, 2)]) == [Outcome.DONE]
    await server.other.close()
    await store.close()


async def test_as_many_due_records_are_returned_as_were_asked_for(redis_space: RedisSpace) -> None:
    store = RedisStore(redis_space.url, prefix=redis_space.prefix)
    epoch = (await store.acquire(P, "worker")).epoch
    commit = numbered(epoch, 1)
    commit.records = [Record(TIMER, f"{number:05}", b"x", number) for number in range(3_000)]
    assert await store.commit([commit]) == [Outcome.DONE]
    for limit in (1, 999, 1_000, 1_001, 2_500, 5_000):
        found = await store.records_due(P, TIMER, 10_000, limit)
        assert [each.due_ms for each in found] == list(range(min(limit, 3_000)))
    assert len(await store.records_due(P, TIMER, 1_500, 5_000)) == 1_500
    assert len(await store.record_ids(P, TIMER, 2_500)) == 2_500
    await store.close()


async def test_a_group_is_split_at_the_bound_of_a_call_and_each_part_counts(
    redis_space: RedisSpace,
) -> None:
    store = RedisStore(redis_space.url, prefix=redis_space.prefix)
    names = [f"shop/cart/{number}" for number in range(5)]
    epochs = [(await store.acquire(name, "worker")).epoch for name in names]
    # Two fit into a call, a third does not.
    rows = ARGUMENTS_PER_CALL_MAX // 5
    group = [numbered(epoch, 1, name, rows=rows) for name, epoch in zip(names, epochs, strict=True)]
    packed = [_Packed([0] * (2 * rows + 8), 0)] * len(group)
    calls = await store._calls(group, packed)
    assert [each.positions for each in calls] == [[0, 1], [2, 3], [4]]
    assert await store.commit(group) == [Outcome.DONE] * 5
    assert await store.commit(group) == [Outcome.DUPLICATE] * 5
    for name in names:
        assert len(await store.load(name, [f"k{number}" for number in range(rows)])) == rows
    await store.close()


async def test_large_commits_are_sent_a_bounded_piece_at_a_time_and_each_counts(
    redis_space: RedisSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RedisStore(redis_space.url, prefix=redis_space.prefix)
    names = [f"shop/cart/{number}" for number in range(6)]
    epochs = [(await store.acquire(name, "worker")).epoch for name in names]
    group = [numbered(epoch, 1, name) for name, epoch in zip(names, epochs, strict=True)]
    for each in group:
        each.outbox = [OutboxEntry("~client", 1, 1, bytes(BYTES_PER_CALL_MAX // 2 - 100))]
    sent: list[int] = []

    async def sending(connection: Connection, command: list[bytes], *_: object) -> None:
        sent.append(sum(map(len, command)))
        await send(connection, command)

    send = Connection.send_packed_command
    monkeypatch.setattr(Connection, "send_packed_command", sending)
    assert await store.commit(group) == [Outcome.DONE] * 6
    assert len([each for each in sent if each > BYTES_PER_CALL_MAX // 2]) == 3
    assert max(sent) < 1.1 * BYTES_PER_CALL_MAX
    monkeypatch.undo()
    assert await store.commit(group) == [Outcome.DUPLICATE] * 6
    await store.close()


@pytest.mark.parametrize(
    ("entry_bytes", "entries", "bound"),
    [(0, ARGUMENTS_MAX // 2, ARGUMENTS_MAX), (COMMIT_BYTES_MAX // 8, 8, COMMIT_BYTES_MAX)],
    ids=["more than Redis reads", "more than can be sent in time"],
)
async def test_a_commit_that_redis_could_never_take_is_refused_alone_and_the_log_says_the_bound(
    entry_bytes: int, entries: int, bound: int, redis_space: RedisSpace
) -> None:
    store = RedisStore(redis_space.url, prefix=redis_space.prefix)
    epoch = (await store.acquire(P, "worker")).epoch
    other = numbered((await store.acquire("app/f/1", "worker")).epoch, 1, "app/f/1")
    large = numbered(epoch, 1)
    large.outbox = [OutboxEntry("~client", 1, 1, bytes(entry_bytes))] * entries
    with structlog.testing.capture_logs() as logs:
        assert await store.commit([large, other]) == [Outcome.REFUSED, Outcome.DONE]
    (told,) = [each for each in logs if each["event"] == "commit_refused"]
    assert told["partition"] == P
    assert f"allowed: up to {bound}" in told["error"]
    assert await store.commit([numbered(epoch, 1)]) == [Outcome.DONE]
    await store.close()


@pytest.fixture
def self_signed(tmp_path: Path) -> tuple[Path, Path]:
    """Return a key and its certificate for this machine."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1"
    names = ["-subj", "/CN=redis", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [*words.split(), *names, "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    return key, certificate


async def test_an_encrypted_connection_works_and_a_stranger_is_refused(
    start_redis: StartRedis, self_signed: tuple[Path, Path]
) -> None:
    key, certificate = self_signed
    server = start_redis(
        tls_port="0",
        tls_cert_file=str(certificate),
        tls_key_file=str(key),
        tls_auth_clients="no",
    )
    port = server.open_tls_port()
    url = f"rediss://127.0.0.1:{port}/0"
    store = RedisStore(f"{url}?ssl_ca_certs={certificate}")
    directory = RedisDirectory(f"{url}?ssl_ca_certs={certificate}")
    epoch = (await store.acquire(P, "worker")).epoch
    assert await store.commit([numbered(epoch, 1)]) == [Outcome.DONE]
    assert (await directory.join(Member(id="a", address="127.0.0.1:1"), {})).members.keys() == {"a"}
    stranger = RedisStore(url)
    with pytest.raises(UnavailableError, match=r"(?i)certificate"):
        await stranger.acquire(P, "worker")
    for each in (store, directory, stranger):
        await each.close()


async def test_the_password_is_in_no_log_and_no_error(start_redis: StartRedis) -> None:
    server = start_redis(requirepass="open-sesame")
    url = server.url.replace("//", "//:open-sesame@")
    store = RedisStore(url, timeout_s=0.5, look_every_s=0.0)
    texts: list[str] = [repr(store), repr(store._server)]
    with structlog.testing.capture_logs() as logged:
        epoch = (await store.acquire(P, "worker")).epoch
        server.ask("AUTH", "open-sesame")
        for step in (server.freeze, server.thaw, server.kill):
            step()
            await store.commit([numbered(epoch, 1)])
            try:
                await store.load(P, ["k0"])
            except UnavailableError as error:
                texts.append(str(error))
    texts += [str(each) for each in logged]
    assert logged
    assert "open-sesame" not in " ".join(texts)
    await store.close()


class _LostConnections(ConnectionPool):
    """Its connections are lost between their making and their first use, as uvloop tells it."""

    async def get_connection(self, *arguments: Any, **options: Any) -> Any:
        raise RuntimeError("unable to perform operation on <TCPTransport>; the handler is closed")


async def test_a_connection_that_is_lost_as_soon_as_it_is_made_is_a_failure_of_redis() -> None:
    pool = _LostConnections(host="127.0.0.1", port=1)
    node = RedisNode(pool, full_sync=False, look_every_s=10.0)

    (answer,) = await node.send([("PING",)])

    assert isinstance(answer, UnavailableError)
