"""A store that fails when it is told to, and otherwise is the one that it stands before."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sublet.statestore.contract import (
    Commit,
    EgressEntry,
    Outcome,
    Record,
    Recovered,
    StateRow,
    StatesPage,
)
from sublet.statestore.memory import MemoryStore


class CommitFault(NamedTuple):
    """What befalls one commit."""

    applied: bool
    """Whether the store still does what it was asked, before nobody hears of it."""
    crash: bool = False
    """The worker is gone; otherwise only the answer is."""


class FallibleStore:
    """A memory store in front of which commits can fail, each in its own way."""

    shared = False

    def __init__(self, on_commit: Callable[[Commit, Outcome], None]) -> None:
        self.crashed = False
        """A worker has crashed over a commit and must be replaced."""
        self.faults: deque[CommitFault | None] = deque()
        """For the next commits, in order; None lets one pass."""
        self._inner = MemoryStore()
        self._on_commit = on_commit

    async def commit(self, commits: Sequence[Commit]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for commit in commits:
            fault = self.faults.popleft() if self.faults else None
            if fault is None or fault.applied:
                outcome = await self.apply(commit)
            if fault is not None:
                if fault.crash:
                    self.crashed = True
                    # The worker never gets an answer: its successor cancels this.
                    await asyncio.get_running_loop().create_future()
                outcome = Outcome.UNKNOWN
                self._on_commit(commit, outcome)
            outcomes.append(outcome)
        return outcomes

    async def apply(self, commit: Commit) -> Outcome:
        """Commit without a fault."""
        (outcome,) = await self._inner.commit([commit])
        self._on_commit(commit, outcome)
        return outcome

    async def acquire(self, partition: str, worker: str) -> Recovered:
        return await self._inner.acquire(partition, worker)

    async def load(self, partition: str, keys: Sequence[str]) -> list[StateRow]:
        return await self._inner.load(partition, keys)

    async def records(self, partition: str, kind: str, ids: Sequence[str]) -> list[Record]:
        return await self._inner.records(partition, kind, ids)

    async def records_due(
        self, partition: str, kind: str, until_ms: int, limit: int
    ) -> list[Record]:
        return await self._inner.records_due(partition, kind, until_ms, limit)

    async def record_ids(
        self, partition: str, kind: str, limit: int, after: str = ""
    ) -> list[Record]:
        return await self._inner.record_ids(partition, kind, limit, after)

    async def scan(
        self, function: str, after: tuple[str, str] | None, limit: int
    ) -> list[tuple[str, list[StateRow]]]:
        return await self._inner.scan(function, after, limit)

    async def states(
        self,
        partition: str,
        epoch: int,
        *,
        keys: Sequence[str] | None = None,
        after: str | None = None,
        limit: int = 0,
    ) -> StatesPage | None:
        return await self._inner.states(partition, epoch, keys=keys, after=after, limit=limit)

    async def read_egress(
        self, egress: str, partition: str, position: int, limit: int
    ) -> list[EgressEntry]:
        return await self._inner.read_egress(egress, partition, position, limit)

    async def egress_partitions(self, egress: str) -> dict[str, tuple[int, int]]:
        return await self._inner.egress_partitions(egress)

    async def close(self) -> None:
        await self._inner.close()
