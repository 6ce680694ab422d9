"""Makes every kind of store and directory, so that one suite holds for all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from sublet.statestore.contract import Directory, Store
from sublet.statestore.memory import MemoryBackend, MemoryDirectory, MemoryStore
from sublet.statestore.sqlite import SqliteStore
from sublet.statestore.sqlite_directory import SqliteDirectory
from sublet.statestore.sqlite_fold import FoldPolicy

# The changelog is folded at once, after three commits in small steps, or only when asked.
FOLD_AT_ONCE = FoldPolicy(rows_max=1)
FOLD_OFTEN = FoldPolicy(rows_max=3, chunk_rows_max=1)
FOLD_NEVER = FoldPolicy(age_max_s=3600.0)

STORE_KINDS = ("memory", "sqlite", "sqlite-folded", "sqlite-chunked", "sqlite-full")


def open_store(kind: str, backend: MemoryBackend, path: Path) -> Store:
    """Return a store of a kind on what was kept at the backend or the path."""
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
    raise ValueError(f"{kind} is no store; allowed: {STORE_KINDS}")


@pytest.fixture(params=STORE_KINDS)
async def make_store(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Callable[[], Store]]:
    """Return a function that opens one more store on the same data."""
    backend = MemoryBackend()
    opened: list[Store] = []

    def make() -> Store:
        opened.append(open_store(request.param, backend, tmp_path / "store.db"))
        return opened[-1]

    yield make
    for store in opened:
        await store.close()


@pytest.fixture
def store(make_store: Callable[[], Store]) -> Store:
    return make_store()


@pytest.fixture(params=["memory", "sqlite"])
async def make_directory(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Callable[[], Directory]]:
    """Return a function that opens one more directory on the same data."""
    backend = MemoryBackend()
    opened: list[Directory] = []

    def make() -> Directory:
        if request.param == "memory":
            opened.append(MemoryDirectory(backend))
        else:
            opened.append(SqliteDirectory(tmp_path / "store.db"))
        return opened[-1]

    yield make
    for directory in opened:
        await directory.close()
