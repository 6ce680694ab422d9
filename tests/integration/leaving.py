"""Ways in which a worker of a cluster is made to leave, and what that needs."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.rpc import AdministerRequest, DrainWorker
from tests.integration.cluster import Cluster, WorkerProcess
from tests.redis_process import RedisProcess

Leave = Callable[[Cluster, WorkerProcess], Awaitable[None]]


@contextmanager
def settings_for(store: str, folder: Path) -> Iterator[dict[str, object]]:
    """Yield the settings of workers on this store, with a Redis of their own where they need it."""
    if store == "sqlite":
        yield {}
        return
    folder.mkdir()
    redis = RedisProcess(folder)
    redis.start()
    try:
        yield {"store": "redis", "redis_url": redis.url}
    finally:
        redis.kill()


def http_address(cluster: Cluster, worker: WorkerProcess) -> str:
    """Return where a worker serves HTTP; it has to log at `info`."""
    address = find_http_address(cluster, worker)
    assert address, "it serves no HTTP"
    return address


def find_http_address(cluster: Cluster, worker: WorkerProcess) -> str:
    """Do the same; return nothing for one that does not serve yet."""
    for line in cluster.log.splitlines():
        entry = json.loads(line)
        if entry["event"] == "serving HTTP" and entry["pid"] == worker.pid:
            return str(entry["http"])
    return ""


async def by_signal(cluster: Cluster, worker: WorkerProcess) -> None:
    worker.terminate()


async def by_command(cluster: Cluster, worker: WorkerProcess) -> None:
    worker.is_wanted = False
    id_ = (await cluster.status(worker)).worker
    other = next(each for each in cluster.living if each is not worker)
    async with UnaryClient(other.address) as unary:
        await unary.administer(AdministerRequest(action=DrainWorker(worker=id_)))
