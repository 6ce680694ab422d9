"""The store and the directory as workers see them: far away, and sometimes not there.

Both are the real ones in memory; what lies between is slow, fails before anything was done, or
loses the answer after it was done. What a worker has sent is carried out also when it is frozen or
dead by then. A store that loses data is in `loss`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

from sublet.functions.errors import UnavailableError
from sublet.runtime.testing.virtual_loop import immediately
from sublet.statestore.contract import Commit, Outcome, Recovered
from sublet.statestore.memory import MemoryBackend, MemoryDirectory, MemoryStore
from tests.simulation.worlds.cluster.loop import ClusterLoop, Process
from tests.simulation.worlds.cluster.loss import LossyBackend, LossyStore
from tests.simulation.worlds.cluster.sqlite import MirroredBackend, MirroredStore

T = TypeVar("T")

ANSWER_TIMEOUT_MS = 400
"""After so long a worker gives up to wait for the store's answer."""


class StoreFaults:
    """What can go wrong on the way, and how often; one for the whole cluster."""

    def __init__(self, loop: ClusterLoop, chance: Random) -> None:
        self.loop = loop
        self.chance = chance
        self.delay_ms = chance.choice([0, 0, 1, 5, 30])
        self.failing = chance.choice([0.0, 0.0, 0.05, 0.3])
        """How often a request fails before it has done anything."""
        self.lost = chance.choice([0.0, 0.0, 0.05, 0.3])
        """How often it is done and the answer is lost."""
        self.torn = chance.choice([0.0, 0.0, 0.2])
        """How often only some of a group of commits are applied, and nobody hears which."""
        self.late = chance.choice([0.0, 0.0, 0.1])
        """How often it is done only after its sender has given it up."""
        self.away_until_ms = 0
        """Until then nobody reaches the store."""
        self.cut_off: dict[Process, int] = {}
        """Who does not reach the store until when."""

    def heal(self) -> None:
        self.failing = self.lost = self.torn = self.late = 0.0
        self.away_until_ms = 0
        self.cut_off.clear()

    def reaches(self, process: Process) -> bool:
        now_ms = self.loop.now_ms
        return self.away_until_ms <= now_ms and self.cut_off.get(process, 0) <= now_ms

    def random_delay_ms(self) -> int:
        return self.chance.randrange(self.delay_ms + 1) if self.delay_ms else 0


class _NoAnswerError(Exception):
    """Nobody can say whether it was done."""


async def _ask(faults: StoreFaults, do: Callable[[], T]) -> T:
    """Have something done by the store; `UnavailableError` if it certainly was not."""
    loop, chance, here = faults.loop, faults.chance, Process.current()
    if not faults.reaches(here) or chance.random() < faults.failing:
        await asyncio.sleep((faults.random_delay_ms() + chance.choice([0, 20])) / 1000)
        raise UnavailableError("the store is away", 20)
    answer: asyncio.Future[T] = loop.create_future()

    def done() -> None:
        try:
            result = do()
        except Exception as error:
            if not answer.done():
                answer.set_exception(error)
            return
        if chance.random() >= faults.lost:
            delay_s = faults.random_delay_ms() / 1000
            loop.call_later(delay_s, tell, result, context=loop.world.home)

    def tell(result: T) -> None:
        if not answer.done():
            answer.set_result(result)

    delay_ms = faults.random_delay_ms()
    if chance.random() < faults.late:
        delay_ms += ANSWER_TIMEOUT_MS + chance.randrange(1_500)
    loop.call_later(delay_ms / 1000, done, context=loop.world.home)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_MS / 1000):
            return await answer
    except TimeoutError:
        raise _NoAnswerError from None


class SimulatedStore:
    """A `Store` for one worker."""

    shared = True

    def __init__(
        self,
        backend: MemoryBackend,
        faults: StoreFaults,
        on_commit: Callable[[Commit, Outcome], None],
        on_acquire: Callable[[str], None],
    ) -> None:
        self.backend = backend
        self.inner = _opened(backend)
        self.faults = faults
        self.on_commit = on_commit
        self.on_acquire = on_acquire

    async def commit(self, commits: Sequence[Commit]) -> list[Outcome]:
        faults = self.faults
        if faults.chance.random() < faults.torn:
            done = [each for each in commits if faults.chance.random() < 0.5]
            if done:
                await self._commit(done)
            return [Outcome.UNKNOWN] * len(commits)
        return await self._commit(commits)

    async def _commit(self, commits: Sequence[Commit]) -> list[Outcome]:
        try:
            return await _ask(self.faults, lambda: self.apply(commits))
        except (UnavailableError, _NoAnswerError):
            return [Outcome.UNKNOWN] * len(commits)

    def apply(self, commits: Sequence[Commit]) -> list[Outcome]:
        """What the store itself does with a group."""
        outcomes = immediately(self.inner.commit(commits))
        for commit, outcome in zip(commits, outcomes, strict=True):
            self.on_commit(commit, outcome)
        return outcomes

    async def acquire(self, partition: str, worker: str) -> Recovered:
        taken = await _answered(self.faults, lambda: self._acquired(partition, worker))
        inner = self.inner
        if isinstance(inner, LossyStore):
            # As with Redis, what is there is read after it was taken, by other questions.
            return await _answered(self.faults, lambda: inner.read(partition, taken))
        return taken

    def _acquired(self, partition: str, worker: str) -> Recovered:
        self.on_acquire(partition)
        return immediately(self.inner.acquire(partition, worker))

    async def close(self) -> None:
        """Do nothing: what is in the backend stays."""

    def __getattr__(self, name: str) -> Any:
        """All other requests are alike: they are answered, or are to be repeated."""
        method = getattr(self.inner, name)

        async def ask(*args: Any, **kwargs: Any) -> Any:
            return await _answered(self.faults, lambda: immediately(method(*args, **kwargs)))

        return ask


def _opened(backend: MemoryBackend) -> MemoryStore | MirroredStore:
    if isinstance(backend, LossyBackend):
        return LossyStore(backend)
    if isinstance(backend, MirroredBackend):
        return MirroredStore(backend)
    return MemoryStore(backend)


async def _answered(faults: StoreFaults, do: Callable[[], T]) -> T:
    try:
        return await _ask(faults, do)
    except _NoAnswerError:
        raise UnavailableError("the store has not answered", 20) from None


class SimulatedDirectory:
    """A `Directory` for one worker; it may be told of changes, and may miss that."""

    def __init__(self, backend: MemoryBackend, faults: StoreFaults, news: News) -> None:
        self.backend = backend
        self.inner = MemoryDirectory(backend)
        self._faults = faults
        self._news = news
        self.watched = news.is_told

    async def wait_changed(self, version: int, timeout_s: float) -> None:
        await self._news.wait(version, timeout_s)

    async def close(self) -> None:
        """Do nothing: what is in the backend stays."""

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)

        def do(args: Any, kwargs: Any) -> Any:
            result = immediately(method(*args, **kwargs))
            self._news.look()
            return result

        async def ask(*args: Any, **kwargs: Any) -> Any:
            return await _answered(self._faults, lambda: do(args, kwargs))

        return ask


class News:
    """Wakes those who wait for a new version of the cluster, mostly."""

    def __init__(self, backend: MemoryBackend, loop: ClusterLoop, chance: Random) -> None:
        self._backend = backend
        self._loop = loop
        self._chance = chance
        self._missed = chance.choice([0.0, 0.5, 1.0])
        self.is_told = self._missed < 1.0
        """Whether somebody tells of changes at all."""
        self.on_change: Callable[[], None] = lambda: None
        """Told at once of each new version."""
        self._version = backend.version
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def wait(self, version: int, timeout_s: float) -> None:
        if self._backend.version > version and self._chance.random() >= self._missed:
            await asyncio.sleep(0.001)
            return
        told: asyncio.Future[None] = self._loop.create_future()
        self._waiting[told] = None
        try:
            async with asyncio.timeout(timeout_s):
                await told
        except TimeoutError:
            return
        finally:
            self._waiting.pop(told, None)

    def look(self) -> None:
        """Somebody may have changed something."""
        if self._backend.version != self._version:
            self._version = self._backend.version
            self.on_change()
            for told in tuple(self._waiting):
                if not told.done() and self._chance.random() >= self._missed:
                    delay_s = self._chance.randrange(10) / 1000
                    self._loop.call_later(delay_s, _tell, told, context=self._loop.world.home)

    def went_back(self) -> None:
        """The directory has gone back to older data, of which nobody is told."""
        self._version = self._backend.version


def _tell(told: asyncio.Future[None]) -> None:
    if not told.done():
        told.set_result(None)
