"""A Redis that is away or full: told once when that begins and once when it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from sublet.functions.errors import UnavailableError
from sublet.statestore.contract import Commit, Member, Outcome, StateRow, StoreServerError
from sublet.statestore.redis.directory import RedisDirectory
from sublet.statestore.redis.store import RedisStore
from tests.redis_process import RedisProcess

P = "shop/cart/0"
PATIENCE_S = 60.0
FAILING, WORKS = "the store is failing", "the store has recovered"


class Setting:
    """A store and the directory beside it, as a worker has them."""

    def __init__(self, server: RedisProcess) -> None:
        self.server = server
        self.store = RedisStore(server.url, timeout_s=1.0)
        self.directory = RedisDirectory(server.url, timeout_s=1.0, outages=self.store.outages)
        self.epoch = self.index = 0

    async def start(self) -> None:
        self.epoch = (await self.store.acquire(P, "worker")).epoch
        await self.directory.join(Member(id="a", address="127.0.0.1:1"), {})

    async def commit(self) -> Outcome:
        index = self.index + 1
        row = StateRow("k", b"", b"x")
        commit = Commit(
            partition=P, epoch=self.epoch, index=index, id=b"%d" % index, clock_ms=1, state=[row]
        )
        (outcome,) = await self.store.commit([commit])
        if outcome is not Outcome.UNKNOWN:
            self.index = index
        return outcome

    async def all_work(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await self.commit() is Outcome.UNKNOWN:
                pass
            while True:
                try:
                    assert await self.directory.beat("a") is not None
                    return
                except UnavailableError:
                    continue


@pytest.fixture
async def setting(tmp_path: Path) -> AsyncIterator[Setting]:
    server = RedisProcess(tmp_path)
    server.start()
    made = Setting(server)
    await made.start()
    yield made
    await made.store.close()
    await made.directory.close()
    server.kill()


def told(logged: list[structlog.typing.EventDict]) -> list[str]:
    return [each["event"] for each in logged if each["event"] in (FAILING, WORKS)]


async def test_every_outage_is_told_once_at_its_beginning_and_once_at_its_end(
    setting: Setting,
) -> None:
    for _ in range(2):
        with structlog.testing.capture_logs() as logged:
            killed_s = time.monotonic()
            setting.server.kill()
            for _ in range(3):
                assert await setting.commit() is Outcome.UNKNOWN
                with pytest.raises(UnavailableError):
                    await setting.directory.beat("a")
            assert told(logged) == [FAILING]
            trouble = setting.store.trouble()
            assert trouble is not None
            assert trouble.reason.startswith("the Redis at 127.0.0.1:")
            assert 0.0 < trouble.for_s <= time.monotonic() - killed_s
            await asyncio.to_thread(setting.server.start)
            await setting.all_work()
            assert setting.store.trouble() is None
            works_s = time.monotonic()
            await setting.all_work()
        assert told(logged) == [FAILING, WORKS]
        (away_s,) = (each["away_s"] for each in logged if each["event"] == WORKS)
        # It fails from the first call on, which may begin any time after the kill.
        assert 0.0 < away_s <= round(works_s - killed_s, 3)


async def test_calls_of_before_the_end_of_an_outage_do_not_begin_another(setting: Setting) -> None:
    with structlog.testing.capture_logs() as logged:
        setting.server.freeze()
        asked = [asyncio.create_task(setting.directory.view()) for _ in range(3)]
        assert await setting.commit() is Outcome.UNKNOWN
        setting.server.thaw()
        await asyncio.gather(*asked, return_exceptions=True)
        await setting.all_work()
    assert told(logged) == [FAILING, WORKS]


async def test_a_full_redis_that_can_be_read_is_one_outage(setting: Setting) -> None:
    with structlog.testing.capture_logs() as logged:
        setting.server.ask("CONFIG", "SET", "maxmemory", "1")
        for _ in range(3):
            assert await setting.commit() is Outcome.UNKNOWN
            assert await setting.store.load(P, ["k"]) == []
            await setting.directory.view()
        assert told(logged) == [FAILING]
        setting.server.ask("CONFIG", "SET", "maxmemory", "0")
        await setting.all_work()
    assert told(logged) == [FAILING, WORKS]


async def test_wrong_settings_are_no_outage(tmp_path: Path) -> None:
    server = RedisProcess(tmp_path, appendonly="no")
    server.start()
    store = RedisStore(server.url)
    with structlog.testing.capture_logs() as logged, pytest.raises(StoreServerError):
        await store.acquire(P, "worker")
    assert told(logged) == []
    await store.close()
    server.kill()
