"""What is special about Redis: what it must be like, and how its faults are noticed."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from sublet.functions.errors import UnavailableError
from sublet.statestore.contract import (
    TIMER,
    Commit,
    EgressEntry,
    Member,
    OutboxEntry,
    Outcome,
    Record,
    StateRow,
    StoreServerError,
)
from sublet.statestore.redis.directory import RedisDirectory
from sublet.statestore.redis.node import problems_of
from sublet.statestore.redis.server import RedisServer
from sublet.statestore.redis.store import RedisStore
from tests.contract.conftest import RedisSpace, StartRedis, settled
from tests.redis_process import RedisProcess

P = "shop/cart/0"
PATIENCE_S = 60.0
REDIS_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "redis.md"


def numbered(epoch: int, index: int, size: int = 1, partition: str = P, token: str = "") -> Commit:
    return Commit(
        partition=partition,
        epoch=epoch,
        index=index,
        id=b"commit %d" % index,
        clock_ms=index,
        state=[StateRow("count", b"", b"%d" % index), StateRow(f"k{index}", b"", b"x" * size)],
        records=[Record(TIMER, f"t{index}", b"", index)],
        token=token,
    )


@pytest.fixture
async def opened() -> AsyncIterator[Callable[..., RedisStore]]:
    """Return a function that opens a store on a Redis; short timeouts, as faults are meant."""
    stores: list[RedisStore] = []

    def open_on(server: RedisProcess, timeout_s: float = 1.0) -> RedisStore:
        stores.append(RedisStore(server.url, full_sync=True, timeout_s=timeout_s))
        return stores[-1]

    yield open_on
    for store in stores:
        await store.close()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"appendonly": "no"}, "needed: appendonly yes"),
        (
            {"maxmemory_policy": "allkeys-lru"},
            "allkeys-lru, which would delete state; needed: noevict",
        ),
        ({"appendfsync": "everysec"}, "full_sync needs: appendfsync always"),
        ({"replicaof": "127.0.0.1 1"}, "its role is slave; needed: a primary"),
    ],
)
async def test_a_redis_that_cannot_keep_the_promise_is_refused_with_what_it_needs(
    start_redis: StartRedis,
    opened: Callable[..., RedisStore],
    options: dict[str, str],
    told: str,
) -> None:
    store = opened(start_redis(**options))
    with pytest.raises(StoreServerError, match=told):
        await store.acquire(P, "worker")
    with pytest.raises(StoreServerError, match=told):
        await store.commit([numbered(1, 1)])


def test_an_old_redis_is_refused() -> None:
    assert list(problems_of({"redis_version": "6.2.7", "role": "master", "aof_enabled": 1})) == [
        "its version is 6.2.7; needed: 7.0 or newer"
    ]


async def test_what_may_lose_a_second_is_allowed_without_full_sync_and_told(
    start_redis: StartRedis,
) -> None:
    store = RedisStore(start_redis(appendfsync="everysec").url)
    with structlog.testing.capture_logs() as logged:
        await store.acquire(P, "worker")
    assert "redis_may_lose_a_second" in [each["event"] for each in logged]
    await store.close()


@pytest.mark.parametrize(
    ("full_sync", "problem"),
    [
        (False, "so it is not verified"),
        (True, "so it is not verified to be always, as full_sync needs"),
    ],
)
async def test_a_redis_that_does_not_tell_its_settings_is_used_with_a_warning(
    start_redis: StartRedis, full_sync: bool, problem: str
) -> None:
    server = start_redis()
    server.ask("ACL", "SETUSER", "default", "-config")
    store = RedisStore(server.url, full_sync=full_sync)
    with structlog.testing.capture_logs() as logged:
        assert (await store.acquire(P, "worker")).epoch == 1
    await store.close()

    (line,) = [each for each in logged if each["event"] == "redis_sync_unknown"]
    assert line["problem"] == f"appendfsync cannot be read, {problem}"
    assert line["remedy"] == "allow CONFIG GET (ACL: +config|get)"


async def test_a_wrong_password_is_told_and_the_right_one_is_never_shown(
    start_redis: StartRedis,
) -> None:
    server = start_redis(requirepass="secret")
    for url in (server.url, server.url.replace("//", "//:wrong@")):
        store = RedisStore(url)
        with pytest.raises(StoreServerError, match="denied access") as told:
            await store.acquire(P, "worker")
        assert "wrong@" not in str(told.value)
        await store.close()
    store = RedisStore(server.url.replace("//", "//:secret@"))
    assert (await store.acquire(P, "worker")).epoch == 1
    await store.close()


async def test_a_database_that_this_redis_has_not_is_told_with_those_that_it_has(
    start_redis: StartRedis,
) -> None:
    url = start_redis(databases="4").url.replace("/0", "/4")
    for each in (RedisStore(url), RedisDirectory(url)):
        asked = each.acquire(P, "worker") if isinstance(each, RedisStore) else each.view()
        with pytest.raises(StoreServerError, match=r"database 4, which .*; allowed: 0 up to"):
            await asked
        await each.close()


@pytest.mark.parametrize("cluster_enabled", ["no", "yes"])
async def test_a_user_with_the_rights_that_the_docs_name_can_do_everything_and_no_more(
    start_redis: StartRedis, cluster_enabled: str
) -> None:
    server = start_redis(cluster_enabled=cluster_enabled)
    if cluster_enabled == "yes":
        server.ask("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        server.wait_for("CLUSTER INFO", b"cluster_state:ok")
    (rights,) = re.findall(r"^ACL SETUSER sublet (.*)$", REDIS_PAGE.read_text(), re.MULTILINE)
    assert server.ask("ACL", "SETUSER", "sublet", *rights.split()).startswith(b"+OK")
    allowed = "FCALL x 0,SET sublet:a b,HSET sublet:a b c,INFO,CLUSTER SLOTS"
    refused = "EVAL x 0,SCRIPT FLUSH,CONFIG GET *,KEYS *,FLUSHALL,FLUSHDB,SHUTDOWN,DEBUG SLEEP 1"
    refused += ",SET other b,GET other,ACL LIST,REPLICAOF NO ONE,CLUSTER RESET,FUNCTION FLUSH"
    for words, is_allowed in ((allowed, True), (refused, False)):
        for command in words.split(","):
            answer = server.ask("ACL", "DRYRUN", "sublet", *command.split())
            assert answer.startswith(b"+OK") is is_allowed, (command, answer)
    url = server.url.replace("//", "//sublet:PASSWORD@")
    store, directory = RedisStore(url), RedisDirectory(url)
    epoch = (await store.acquire(P, "worker")).epoch
    assert await store.commit([numbered(epoch, 1)]) == [Outcome.DONE]
    assert (await store.load(P, ["count"]))[0].value == b"1"
    assert len(await store.records_due(P, TIMER, 10, 10)) == 1
    assert len(await store.scan("shop/cart", None, 10)) == 2
    view = await directory.join(Member(id="a", address="127.0.0.1:1"), {"shop/cart": 1})
    waiting = asyncio.create_task(directory.wait_changed(view.version, 3600.0))
    assert await directory.place(view.version, {P: "a"})
    async with asyncio.timeout(PATIENCE_S):
        await waiting
    await store.close()
    await directory.close()


async def test_where_nobody_listens_commits_are_unknown_and_all_else_is_unavailable(
    start_redis: StartRedis, opened: Callable[..., RedisStore]
) -> None:
    server = start_redis()
    store = opened(server)
    server.stop()
    with structlog.testing.capture_logs() as logged:
        assert await store.commit([numbered(1, 1)]) == [Outcome.UNKNOWN]
        assert await store.commit([numbered(1, 1)]) == [Outcome.UNKNOWN]
        with pytest.raises(UnavailableError, match="is unavailable"):
            await store.acquire(P, "worker")
        with pytest.raises(UnavailableError):
            await store.load(P, ["a"])
    assert [each["event"] for each in logged] == ["the store is failing"]


async def test_a_redis_that_was_killed_and_restarted_has_every_commit(
    start_redis: StartRedis, opened: Callable[..., RedisStore]
) -> None:
    server = start_redis()
    store = opened(server)
    epoch = (await store.acquire(P, "worker")).epoch
    for index in range(1, 21):
        assert await store.commit([numbered(epoch, index)]) == [Outcome.DONE]
    server.kill()
    assert await store.commit([numbered(epoch, 21)]) == [Outcome.UNKNOWN]
    server.start()

    assert await settled(store, numbered(epoch, 20)) is Outcome.DUPLICATE
    assert await settled(store, numbered(epoch, 21)) is Outcome.DONE
    assert (await store.load(P, ["count"]))[0].value == b"21"
    recovered = await store.acquire(P, "other")
    assert (recovered.epoch, recovered.index) == (epoch + 1, 21)


async def test_a_restarted_redis_that_still_reads_its_data_is_waited_for(
    start_redis: StartRedis, opened: Callable[..., RedisStore]
) -> None:
    # It reads a command in half a millisecond, and answers others after each thousand.
    server = start_redis(key_load_delay="500")
    store = opened(server)
    epoch = (await store.acquire(P, "worker")).epoch
    assert await store.commit([numbered(epoch, 1)]) == [Outcome.DONE]
    for piece in range(4):
        server.ask("EVAL", f"for i = 1, 1000 do redis.call('SET', 'k{piece}-' .. i, i) end", "0")
    server.kill()

    outcomes = set()
    async with asyncio.timeout(PATIENCE_S):
        starting = asyncio.create_task(asyncio.to_thread(server.start))
        while not starting.done():
            outcomes.update(await store.commit([numbered(epoch, 2)]))
        await starting
    assert outcomes <= {Outcome.UNKNOWN, Outcome.DONE, Outcome.DUPLICATE}
    assert await settled(store, numbered(epoch, 2)) is not Outcome.FENCED


async def test_a_commit_whose_reply_was_lost_is_a_duplicate_when_sent_again(
    start_redis: StartRedis, opened: Callable[..., RedisStore]
) -> None:
    server = start_redis()
    store = opened(server, timeout_s=0.2)
    epoch = (await store.acquire(P, "worker")).epoch
    server.freeze()
    # It waits in the server's socket, and is applied after all.
    assert await store.commit([numbered(epoch, 1)]) == [Outcome.UNKNOWN]
    with pytest.raises(UnavailableError):
        await store.load(P, ["count"])
    server.thaw()

    assert await settled(store, numbered(epoch, 1)) is Outcome.DUPLICATE
    assert await settled(store, numbered(epoch, 2)) is Outcome.DONE


async def test_a_full_redis_makes_outcomes_unknown_writes_nothing_and_still_reads(
    start_redis: StartRedis, opened: Callable[..., RedisStore]
) -> None:
    server = start_redis(maxmemory="6mb")
    store = opened(server)
    epoch = (await store.acquire(P, "worker")).epoch
    done = 0
    for index in range(1, 500):
        (outcome,) = await store.commit([numbered(epoch, index, 100_000)])
        if outcome is not Outcome.DONE:
            break
        done = index
    assert 0 < done < 499
    assert outcome is Outcome.UNKNOWN
    assert (await store.load(P, ["count"]))[0].value == b"%d" % done
    assert await store.load(P, [f"k{done + 1}"]) == []
    assert await store.records(P, TIMER, [f"t{done + 1}"]) == []
    # What the refused commit took while it was read may be just enough for something smaller.
    server.ask("CONFIG", "SET", "maxmemory", "1mb")
    with pytest.raises(UnavailableError, match="maxmemory"):
        await store.acquire("shop/cart/1", "worker")

    server.ask("CONFIG", "SET", "maxmemory", "0")
    assert await settled(store, numbered(epoch, done + 1)) is Outcome.DONE


@pytest.mark.parametrize("by", ["a lost disk", "FLUSHALL"])
async def test_owners_of_data_that_was_lost_are_stopped_even_under_their_own_epoch(
    start_redis: StartRedis, opened: Callable[..., RedisStore], by: str
) -> None:
    server = start_redis()
    former, other = opened(server), opened(server)
    first = await former.acquire(P, "former")
    epoch = first.epoch
    assert await former.commit([numbered(epoch, 1, token=first.token)]) == [Outcome.DONE]
    if by == "FLUSHALL":
        server.ask("FLUSHALL")
    else:
        server.kill()
        server.lose_data()
        server.start()

    # Others begin again, and come to the same epoch and index.
    recovered = await other.acquire(P, "other")
    assert (recovered.epoch, recovered.index) == (epoch, 0)
    assert await other.commit([numbered(epoch, 1, token=recovered.token)]) == [Outcome.DONE]
    with structlog.testing.capture_logs() as logged:
        assert await settled(former, numbered(epoch, 2, token=first.token)) is Outcome.GAP
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    again = await former.acquire(P, "former")
                    break
                except UnavailableError:
                    continue
    assert again.epoch > epoch
    assert again.index == 1
    assert await former.commit([numbered(again.epoch, 2, token=again.token)]) == [Outcome.DONE]
    assert "redis_lost_its_data" in [each["event"] for each in logged]


async def test_a_late_commit_of_an_acquisition_that_was_lost_is_not_taken_for_one_of_the_next(
    start_redis: StartRedis, opened: Callable[..., RedisStore]
) -> None:
    server = start_redis()
    store = opened(server)
    lost = await store.acquire(P, "worker")
    server.ask("FLUSHALL")
    again = await store.acquire(P, "worker")
    assert (again.epoch, again.index) == (lost.epoch, lost.index)

    late = await store.commit([numbered(lost.epoch, 1, token=lost.token)])
    done = await store.commit([numbered(again.epoch, 1, size=2, token=again.token)])
    assert (late, done) == ([Outcome.GAP], [Outcome.DONE])
    (stored,) = await store.load(P, ["k1"])
    assert stored.value == b"xx"


async def test_an_egress_is_found_again_after_the_data_was_lost(
    start_redis: StartRedis, opened: Callable[..., RedisStore]
) -> None:
    server = start_redis()
    store = opened(server)
    for _ in range(2):
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    epoch = (await store.acquire(P, "worker")).epoch
                    break
                except UnavailableError:
                    continue
        commit = numbered(epoch, 1)
        commit.egress = [EgressEntry("totals", 0, 3, b"values")]
        assert await store.commit([commit]) == [Outcome.DONE]
        assert await store.egress_partitions("totals") == {P: (0, 3)}
        assert await store.read_egress("totals", P, 2, 10) == commit.egress
        server.ask("FLUSHALL")


async def test_a_number_that_redis_cannot_keep_is_refused_and_hurts_no_other(
    redis_space: RedisSpace,
) -> None:
    store = RedisStore(redis_space.url, prefix=redis_space.prefix)
    epoch = (await store.acquire(P, "worker")).epoch
    assert await store.commit([numbered(epoch, 2**53 + 1)]) == [Outcome.REFUSED]
    assert await store.commit([numbered(epoch, 1)]) == [Outcome.DONE]
    await store.close()


async def test_large_commits_and_long_recoveries_come_in_pieces(redis_space: RedisSpace) -> None:
    store = RedisStore(redis_space.url, prefix=redis_space.prefix)
    epoch = (await store.acquire(P, "worker")).epoch
    keys = [f"k{number:05}" for number in range(9_001)]
    commit = Commit(
        partition=P,
        epoch=epoch,
        index=1,
        id=b"1",
        clock_ms=1,
        state=[StateRow(key, b"", b"x") for key in keys]
        + [StateRow("map", b"%d" % number, b"y") for number in range(9_001)],
        records=[Record("parked", f"{number:05}", b"z") for number in range(9_001)],
    )
    assert await store.commit([commit]) == [Outcome.DONE]
    assert len(await store.load(P, [*keys, "map"])) == 18_002
    recovered = await store.acquire(P, "other")
    assert [each.id for each in recovered.parked] == [f"{number:05}" for number in range(9_001)]
    assert len(await store.scan("shop/cart", None, 5_000)) == 5_000
    await store.close()


@pytest.mark.parametrize("suffix", [":due:timer", ":keys", ":cell:map", ":outbox:~client"])
async def test_a_key_that_somebody_else_wrote_stops_one_commit_whole_and_no_other(
    start_redis: StartRedis, opened: Callable[..., RedisStore], suffix: str
) -> None:
    server = start_redis()
    store = opened(server)
    names = [f"shop/cart/{number}" for number in range(3)]
    epochs = [(await store.acquire(name, "worker")).epoch for name in names]
    group = [numbered(epoch, 1, partition=name) for name, epoch in zip(names, epochs, strict=True)]
    for commit in group:
        commit.state.append(StateRow("map", b"1", b"x"))
        commit.outbox = [OutboxEntry("~client", 1, 1, b"x")]
    foreign = f"sublet:{{shop/cart/1}}{suffix}"
    server.ask("SET", foreign, "foreign")

    with structlog.testing.capture_logs() as logged:
        for _ in range(2):
            outcomes = await store.commit(group)
            assert outcomes[1] is Outcome.UNKNOWN
    assert [each["event"] for each in logged] == ["commit_failing"]
    # Nothing of it was written: whoever takes over finds no half of a commit.
    keys = {each for each in server.ask("KEYS", "*").split(b"\r\n") if b"{shop/cart/1}" in each}
    assert keys == {b"sublet:{shop/cart/1}", foreign.encode()}
    server.ask("DEL", foreign)
    outcomes = [Outcome.DUPLICATE, Outcome.DONE, Outcome.DUPLICATE]
    assert await store.commit(group) == outcomes
    for name in names:
        assert (await store.load(name, ["count"]))[0].value == b"1"
        assert len(await store.records_due(name, TIMER, 2, 10)) == 1


async def test_all_keys_of_a_partition_have_one_hash_tag(
    start_redis: StartRedis, opened: Callable[..., RedisStore]
) -> None:
    server = start_redis()
    store = opened(server)
    epoch = (await store.acquire(P, "worker")).epoch
    await store.commit([numbered(epoch, 1)])
    keys = [each for each in server.ask("KEYS", "*").split(b"\r\n") if each.startswith(b"sublet")]
    of_partition = [each for each in keys if each.startswith(b"sublet:{shop/cart/0}")]
    assert set(keys) - set(of_partition) == {b"sublet:partitions"}
    assert len(of_partition) == 6


async def test_who_watches_hears_of_a_change_long_before_the_timeout(
    redis_space: RedisSpace,
) -> None:
    watcher, other = (RedisDirectory(redis_space.url, prefix=redis_space.prefix) for _ in range(2))
    first = await watcher.join(Member(id="a", address="127.0.0.1:1"), {"f/g": 2})
    waiting = asyncio.create_task(watcher.wait_changed(first.version, 3600.0))
    await asyncio.sleep(0)
    second = await other.join(Member(id="b", address="127.0.0.1:2"), {})
    async with asyncio.timeout(PATIENCE_S):
        await waiting
        placing = asyncio.create_task(watcher.wait_changed(second.version, 3600.0))
        await asyncio.sleep(0)
        placed = await other.place(second.version, {"f/g/0": "a", "f/g/1": "b"})
        await placing
    assert await watcher.view() == placed
    await watcher.wait_changed(placed.version if placed else 0, 0.001)
    await watcher.close()
    await other.close()


async def test_who_watches_is_not_woken_by_a_cluster_in_another_database(
    start_redis: StartRedis,
) -> None:
    server = start_redis()
    watcher = RedisDirectory(server.url)
    other = RedisDirectory(server.url.removesuffix("0") + "1")
    first = await watcher.join(Member(id="a", address="127.0.0.1:1"), {})
    await watcher.wait_changed(first.version - 1, 3600.0)
    await other.join(Member(id="b", address="127.0.0.1:2"), {})

    began_s = asyncio.get_running_loop().time()
    await watcher.wait_changed(first.version, 0.3)
    assert asyncio.get_running_loop().time() - began_s >= 0.3
    await watcher.close()
    await other.close()


class HalfDeafServer(RedisServer):
    """Its first subscription is confirmed, and then nothing comes."""

    subscriptions = 0

    async def subscription(self, key: str) -> Any:
        channel = await super().subscription(key)
        self.subscriptions += 1
        if self.subscriptions == 1:
            hear = channel.get_message

            async def hear_nothing(**options: Any) -> Any:
                message = await hear(**options)
                return message if message and message["type"] == "subscribe" else None

            channel.get_message = hear_nothing
        return channel


async def test_who_watches_notices_that_nothing_is_heard_any_more(
    redis_space: RedisSpace,
) -> None:
    watcher, other = (RedisDirectory(redis_space.url, prefix=redis_space.prefix) for _ in range(2))
    watcher._server = server = HalfDeafServer(redis_space.url, prefix=redis_space.prefix)
    first = await watcher.join(Member(id="a", address="127.0.0.1:1"), {})
    await watcher.wait_changed(first.version - 1, 3600.0)
    waiting = asyncio.create_task(watcher.wait_changed(first.version, 3600.0))
    await asyncio.sleep(0)
    second = await other.join(Member(id="b", address="127.0.0.1:2"), {})
    # As heartbeats do.
    assert (await watcher.view()).version == second.version
    async with asyncio.timeout(PATIENCE_S):
        await waiting
    assert server.subscriptions == 2
    await watcher.close()
    await other.close()


async def test_versions_go_on_growing_after_redis_went_back_to_older_data(
    start_redis: StartRedis, tmp_path: Path
) -> None:
    server = start_redis()
    directory = RedisDirectory(server.url)
    known = await directory.join(Member(id="a", address="127.0.0.1:1"), {"f/g": 1})
    shutil.copytree(server.folder / "appendonlydir", tmp_path / "backup")
    for _ in range(20):
        placed = await directory.place(known.version, {"f/g/0": "a"})
        assert placed is not None
        assert placed.version > known.version
        known = placed
    server.kill()
    server.lose_data()
    shutil.copytree(tmp_path / "backup", server.folder / "appendonlydir")
    server.start()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                older = await directory.view()
                break
            except UnavailableError:
                continue
    assert older.version < known.version
    again = await directory.place(older.version, {"f/g/0": "a"})
    assert again is not None
    assert again.version > known.version
    await directory.close()


async def test_who_watches_hears_again_after_redis_was_restarted(start_redis: StartRedis) -> None:
    server = start_redis()
    watcher, other = RedisDirectory(server.url), RedisDirectory(server.url)
    version = (await watcher.join(Member(id="a", address="127.0.0.1:1"), {})).version
    waiting = asyncio.create_task(watcher.wait_changed(version, 3600.0))
    await asyncio.sleep(0)
    server.kill()
    server.start()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await other.join(Member(id="b", address="127.0.0.1:2"), {})
                break
            except UnavailableError:
                continue
        await waiting
    assert set((await watcher.view()).members) == {"a", "b"}
    await watcher.close()
    await other.close()


async def test_a_closed_store_says_so(redis_space: RedisSpace) -> None:
    store = RedisStore(redis_space.url, prefix=redis_space.prefix)
    await store.acquire(P, "worker")
    await store.close()
    with pytest.raises(RuntimeError, match="closed"):
        await store.acquire(P, "worker")
