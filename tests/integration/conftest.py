"""A cluster that tests share when they do nothing to its workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from sublet import Client
from tests.integration.cluster import APP, Cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers on SQLite."""
    cluster = Cluster(APP, tmp_path_factory.mktemp("cluster"), {})
    try:
        asyncio.run(cluster.start(2))
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with asyncio.timeout(50), cluster.client() as client:
        yield client
