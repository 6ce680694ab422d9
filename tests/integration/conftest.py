"""A cluster that tests share when they do nothing to its workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sublet import Client
from tests.integration.cluster import APP, Cluster


@contextmanager
def _cluster(data_dir: Path, workers: int) -> Iterator[Cluster]:
    cluster = Cluster(APP, data_dir, {})
    try:
        asyncio.run(cluster.start(workers))
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers on SQLite."""
    with _cluster(tmp_path_factory.mktemp("cluster"), 2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def one_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with _cluster(tmp_path_factory.mktemp("worker"), 1) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with asyncio.timeout(200), cluster.client() as client:
        yield client
