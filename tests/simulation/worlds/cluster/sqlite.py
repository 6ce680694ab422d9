"""Stores on one file of SQLite inside of a simulated cluster: the real ones, threads and all.

Whoever asks waits in real time, during which the story stands still. What is committed is also
applied to tables in memory, from which oracles read; both have to say the same of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from inspect import iscoroutinefunction
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from sublet.statestore.contract import Commit, Outcome, Recovered
from sublet.statestore.memory import MemoryBackend, MemoryStore
from sublet.statestore.sqlite.fold import FoldPolicy
from sublet.statestore.sqlite.store import SqliteStore
from tests.simulation.oracles.verdict import check

T = TypeVar("T")

NEVER_S = 3_600.0


class MirroredBackend(MemoryBackend):
    """A file of SQLite, and what must be in it."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self.chance = chance
        self.folds = chance.choice([0.0, 0.0, 0.1, 1.0])
        """How often what a store has committed is folded right after."""
        self._stores: list[SqliteStore] = []
        # Made with the first store: some worlds are never played.
        self._loop: asyncio.AbstractEventLoop
        self._folder: TemporaryDirectory[str]

    def open_store(self) -> SqliteStore:
        """Return that of one more worker. It folds when it is told to, or takes something over, so
        that nothing depends on how fast the machine is."""

        async def opened() -> SqliteStore:
            policy = FoldPolicy(rows_max=10**6, age_max_s=NEVER_S)
            return SqliteStore(Path(self._folder.name) / "story.db", fold=policy)

        if not self._stores:
            self._loop = asyncio.new_event_loop()
            self._folder = TemporaryDirectory()
        store = self.blocking(opened())
        self._stores.append(store)
        return store

    def blocking(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return what a coroutine of a store returns, while the loop of the story waits."""
        story = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            return self._loop.run_until_complete(coroutine)
        finally:
            asyncio._set_running_loop(story)

    def close(self) -> None:
        for store in self._stores:
            self.blocking(store.close())
        if self._stores:
            self._loop.close()
            self._folder.cleanup()


class MirroredStore:
    """A `Store` of one worker on such a backend."""

    def __init__(self, backend: MirroredBackend) -> None:
        self._backend = backend
        self._sqlite = backend.open_store()
        self._mirror = MemoryStore(backend)

    async def acquire(self, partition: str, worker: str) -> Recovered:
        recovered = self._backend.blocking(self._sqlite.acquire(partition, worker))
        mirrored = await self._mirror.acquire(partition, worker)
        check(recovered.epoch == mirrored.epoch, "epochs", partition, recovered, mirrored)
        return recovered

    async def commit(self, commits: Sequence[Commit]) -> list[Outcome]:
        outcomes = self._backend.blocking(self._sqlite.commit(commits))
        mirrored = await self._mirror.commit(commits)
        check(outcomes == mirrored, "outcomes of commits", outcomes, mirrored)
        if self._backend.chance.random() < self._backend.folds:
            self._backend.blocking(self._sqlite.fold())
        return outcomes

    def __getattr__(self, name: str) -> Any:
        """All others only read."""
        method = getattr(self._sqlite, name)
        if not iscoroutinefunction(method):
            raise AttributeError(name)

        async def ask(*args: Any, **kwargs: Any) -> Any:
            return self._backend.blocking(method(*args, **kwargs))

        return ask
