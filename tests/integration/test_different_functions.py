"""Workers on one store that do not have the same functions: two apps, or two versions of one."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from sublet import Client
from sublet.functions.errors import UnavailableError
from tests.integration.cluster import Cluster, WorkerProcess, running_cluster, until
from tests.redis_process import RedisProcess

APPS = "tests.integration.two_apps"
KEYS = [f"key{number}" for number in range(24)]


@contextmanager
def settings_for(store: str, folder: Path) -> Iterator[dict[str, object]]:
    common = {"http_port": 0, "log_level": "info"}
    if store == "sqlite":
        yield common
        return
    folder.mkdir()
    redis = RedisProcess(folder)
    redis.start()
    try:
        yield {"store": "redis", "redis_url": redis.url, **common}
    finally:
        redis.kill()


def logged(cluster: Cluster, event: str) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in cluster.log.splitlines() if line.startswith("{")]
    return [each for each in entries if event in each["event"]]


async def ready_answer(cluster: Cluster, worker: WorkerProcess) -> httpx.Response:
    (serving,) = [each for each in logged(cluster, "serving HTTP") if each["pid"] == worker.pid]
    async with httpx.AsyncClient(base_url=f"http://{serving['http']}") as http:
        return await http.get("/ready")


async def all_ready(cluster: Cluster) -> None:
    async def happened() -> bool:
        serving = {each["pid"] for each in logged(cluster, "serving HTTP")}
        if not serving.issuperset(each.pid for each in cluster.living):
            return False
        answers = [await ready_answer(cluster, each) for each in cluster.living]
        return all(each.status_code == 200 for each in answers)

    await until(happened)


async def all_answer(client: Client, *functions: str) -> None:
    for function in functions:
        await asyncio.wait_for(client.call_many(function, KEYS, [1] * len(KEYS)), 5)


async def status(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Return what `sublet status` says of each function."""
    address = cluster.living[0].address
    command = [sys.executable, "-m", "sublet", "status", "--connect", address, "--interval", "0s"]
    told = await asyncio.to_thread(
        subprocess.run, [*command, "--json"], capture_output=True, timeout=20
    )
    assert told.returncode == 0, told.stderr
    return {each["name"]: each for each in json.loads(told.stdout)["functions"]}


@pytest.mark.parametrize("store", ["sqlite", "redis"])
async def test_each_partition_is_at_a_worker_that_has_its_function(
    tmp_path: Path, store: str
) -> None:
    with settings_for(store, tmp_path / "redis") as settings:
        async with running_cluster(
            tmp_path / "workers", 1, app=f"{APPS}:visits", **settings
        ) as cluster:
            cluster.add_worker(f"{APPS}:orders")
            await cluster.ready()
            await all_ready(cluster)
            async with cluster.client() as client:
                await all_answer(client, "visits/visit", "orders/order")
                before = await client.call("visits/visit", "anna", 0)
                await client.call("orders/welcome", "anna", 5)

                async def is_welcome() -> bool:
                    return await client.call("visits/visit", "anna", 0) == before + 5

                await until(is_welcome)

                # A rolling upgrade: the new function is only at the new worker.
                cluster.add_worker(f"{APPS}:visits_next")
                await cluster.ready()
                await all_ready(cluster)
                await all_answer(client, "visits/visit", "visits/rate", "orders/order")
                placed = await status(cluster)
                assert {each["partitions_placed"] for each in placed.values()} == {4}

                # A roll-back: nobody has it any more.
                cluster.workers[2].terminate()
                assert await cluster.workers[2].ended() == 0
                with pytest.raises(
                    UnavailableError, match="no worker has the function visits/rate"
                ):
                    await asyncio.wait_for(client.call("visits/rate", "key1", 1), 5)
                with pytest.raises(
                    UnavailableError, match="no worker has the function visits/rate"
                ):
                    await client.call("visits/rate", "key1", 1, deadline="5s")
                await all_ready(cluster)
                await all_answer(client, "visits/visit", "orders/order")
                rate = (await status(cluster))["visits/rate"]
                assert (rate["partitions_placed"], rate["absent"]) == (0, True)
                (told,) = logged(cluster, "a stored function is no longer declared")
                assert (told["function"], told["partitions"]) == ("visits/rate", 4)

                # It comes back, with its state.
                cluster.add_worker(f"{APPS}:visits_next")
                await cluster.ready()
                await all_answer(client, "visits/visit", "visits/rate", "orders/order")
