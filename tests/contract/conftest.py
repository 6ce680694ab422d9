"""Makes every kind of store and directory, so that one suite holds for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from sublet.statestore.contract import Commit, Directory, Outcome, Store
from sublet.statestore.memory import MemoryBackend, MemoryDirectory, MemoryStore
from sublet.statestore.redis.directory import RedisDirectory
from sublet.statestore.redis.store import RedisStore
from sublet.statestore.sqlite.directory import SqliteDirectory
from sublet.statestore.sqlite.fold import FoldPolicy
from sublet.statestore.sqlite.store import SqliteStore
from tests.redis_process import RedisClusterProcesses, RedisProcess

PATIENCE_S = 60.0
# The changelog is folded at once, after three commits in small steps, or only when asked.
FOLD_AT_ONCE = FoldPolicy(rows_max=1)
FOLD_OFTEN = FoldPolicy(rows_max=3, chunk_rows_max=1)
FOLD_NEVER = FoldPolicy(age_max_s=3600.0)

STORE_KINDS = (
    "memory",
    "sqlite",
    "sqlite-folded",
    "sqlite-chunked",
    "sqlite-full",
    "redis",
    "redis-cluster",
)


StartRedis = Callable[..., RedisProcess]


class RedisSpace:
    """A part of one Redis for each test: nothing is seen of the others."""

    _numbers = count()

    def __init__(self, server: RedisProcess, cluster: Callable[[], RedisClusterProcesses]) -> None:
        self.url = server.url
        self._cluster = cluster
        self.prefix = f"test{next(self._numbers)}"

    @property
    def cluster_url(self) -> str:
        """Of a Redis Cluster, which is started when it is first wanted."""
        return self._cluster().url


@pytest.fixture(scope="session")
def redis_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    process = RedisProcess(tmp_path_factory.mktemp("redis"))
    process.start()
    yield process
    process.stop()


@pytest.fixture(scope="session")
def redis_cluster(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[], RedisClusterProcesses]]:
    """Return a function that returns a running Redis Cluster, always the same."""
    started: list[RedisClusterProcesses] = []

    def cluster() -> RedisClusterProcesses:
        if not started:
            started.append(RedisClusterProcesses(tmp_path_factory.mktemp("redis-cluster")))
            started[0].start()
        return started[0]

    yield cluster
    for each in started:
        each.stop()


@pytest.fixture
def redis_space(
    redis_process: RedisProcess, redis_cluster: Callable[[], RedisClusterProcesses]
) -> RedisSpace:
    return RedisSpace(redis_process, redis_cluster)


@pytest.fixture
def start_redis(tmp_path: Path) -> Iterator[StartRedis]:
    """Return a function that starts one more Redis, with options."""
    with ExitStack() as stack:

        def start(**options: str) -> RedisProcess:
            folder = tmp_path / f"redis{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            process = RedisProcess(folder, **options)
            stack.callback(process.kill)
            process.start()
            return process

        yield start


async def settled(store: RedisStore, commit: Commit) -> Outcome:
    """Send a commit until the store can say what became of it."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            (outcome,) = await store.commit([commit])
            if outcome is not Outcome.UNKNOWN:
                return outcome


def open_store(kind: str, backend: MemoryBackend, path: Path, redis: RedisSpace) -> Store:
    """Return a store of a kind on what was kept at the backend, the path or in Redis."""
    match kind:
        case "memory":
            return MemoryStore(backend)
        case "sqlite":
            return SqliteStore(path, fold=FOLD_NEVER)
        case "sqlite-folded":
            return SqliteStore(path, fold=FOLD_AT_ONCE)
        case "sqlite-chunked":
            return SqliteStore(path, fold=FOLD_OFTEN)
        case "sqlite-full":
            return SqliteStore(path, full_sync=True)
        case "redis":
            return RedisStore(redis.url, prefix=redis.prefix, full_sync=True)
        case "redis-cluster":
            return RedisStore(redis.cluster_url, prefix=redis.prefix, full_sync=True)
    raise ValueError(f"{kind} is no store; allowed: {STORE_KINDS}")


@pytest.fixture(params=STORE_KINDS)
async def make_store(
    request: pytest.FixtureRequest, tmp_path: Path, redis_space: RedisSpace
) -> AsyncIterator[Callable[[], Store]]:
    """Return a function that opens one more store on the same data."""
    backend = MemoryBackend()
    opened: list[Store] = []

    def make() -> Store:
        opened.append(open_store(request.param, backend, tmp_path / "store.db", redis_space))
        return opened[-1]

    yield make
    for store in opened:
        await store.close()


@pytest.fixture
def store(make_store: Callable[[], Store]) -> Store:
    return make_store()


@pytest.fixture(params=["memory", "sqlite", "redis", "redis-cluster"])
async def make_directory(
    request: pytest.FixtureRequest, tmp_path: Path, redis_space: RedisSpace
) -> AsyncIterator[Callable[[], Directory]]:
    """Return a function that opens one more directory on the same data."""
    backend = MemoryBackend()
    opened: list[Directory] = []

    def make() -> Directory:
        if request.param == "memory":
            opened.append(MemoryDirectory(backend))
        elif request.param == "redis":
            opened.append(RedisDirectory(redis_space.url, prefix=redis_space.prefix))
        elif request.param == "redis-cluster":
            opened.append(RedisDirectory(redis_space.cluster_url, prefix=redis_space.prefix))
        else:
            opened.append(SqliteDirectory(tmp_path / "store.db"))
        return opened[-1]

    yield make
    for directory in opened:
        await directory.close()
