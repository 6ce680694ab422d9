"""A store of which exactly one call goes wrong: the k-th, in a chosen way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum
from typing import NoReturn

from sublet.functions.errors import RetryLaterError
from sublet.runtime.testing.faulty_store import FallibleStore
from sublet.statestore.contract import Commit, Outcome, Record, StateRow

SLOW_S = 0.7


class Way(Enum):
    """What becomes of the call."""

    FAILS = "it fails before anything is done"
    NO_ANSWER = "it is done, and the answer is lost"
    TORN = "half of the group is done, and the answer is lost"
    CRASH_BEFORE = "the worker dies before it is done"
    CRASH_AFTER = "the worker dies when it is done, before it hears of it"
    SLOW = "it takes long"

    @property
    def is_for_reads(self) -> bool:
        return self in (Way.FAILS, Way.CRASH_BEFORE, Way.SLOW)


class SweptStore(FallibleStore):
    """The store of a harness. What the test itself looks at is neither counted nor failed."""

    way = Way.FAILS
    failing = 0
    """The number of the call that goes wrong."""
    calls = 0

    def _is_next(self, *, is_read: bool) -> bool:
        if asyncio._get_running_loop() is None or (is_read and not self.way.is_for_reads):
            return False
        self.calls += 1
        return self.calls == self.failing

    async def _crash(self) -> NoReturn:
        self.crashed = True
        loop = asyncio.get_running_loop()
        loop.stop()
        await loop.create_future()
        raise AssertionError("nobody answers a worker that is gone")

    async def commit(self, commits: Sequence[Commit]) -> list[Outcome]:
        if not self._is_next(is_read=False):
            return await super().commit(commits)
        unknown = [Outcome.UNKNOWN] * len(commits)
        match self.way:
            case Way.FAILS:
                return unknown
            case Way.NO_ANSWER:
                await super().commit(commits)
                return unknown
            case Way.TORN:
                await super().commit(commits[: (len(commits) + 1) // 2])
                return unknown
            case Way.SLOW:
                await asyncio.sleep(SLOW_S)
                return await super().commit(commits)
            case Way.CRASH_AFTER:
                await super().commit(commits)
        return await self._crash()

    async def _read_is_swept(self) -> None:
        if self._is_next(is_read=True):
            if self.way is Way.CRASH_BEFORE:
                await self._crash()
            if self.way is Way.FAILS:
                raise RetryLaterError("the store is away")
            await asyncio.sleep(SLOW_S)

    async def load(self, partition: str, keys: Sequence[str]) -> list[StateRow]:
        await self._read_is_swept()
        return await super().load(partition, keys)

    async def records(self, partition: str, kind: str, ids: Sequence[str]) -> list[Record]:
        await self._read_is_swept()
        return await super().records(partition, kind, ids)

    async def records_due(
        self, partition: str, kind: str, until_ms: int, limit: int
    ) -> list[Record]:
        await self._read_is_swept()
        return await super().records_due(partition, kind, until_ms, limit)
