"""A store whose bytes have changed: what is damaged is named, and everything else is served."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from sublet import Client, SubletError, UnknownOutcomeError
from sublet.functions.address import partition_index_of
from tests.integration.cluster import running_cluster, until
from tests.integration.count_app import app
from tests.ports import free_ports


async def test_a_damaged_record_closes_its_partition_and_no_other(tmp_path: Path) -> None:
    function = next(iter(app.functions.values()))
    keys = [f"k{number}" for number in range(40)]
    damaged = f"{function.name}/{partition_index_of(keys[0], function.partition_count)}"
    others = [
        key
        for key in keys
        if partition_index_of(key, function.partition_count) != int(damaged.rpartition("/")[2])
    ]
    address = f"127.0.0.1:{free_ports(1)[0]}"
    settings = {"store": "sqlite", "port": address.rpartition(":")[2]}
    async with running_cluster(
        tmp_path, 1, app="tests.integration.count_app:app", **settings
    ) as cluster:
        async with cluster.client() as client:
            for key in keys:
                await client.call(function, key, 1)
        cluster.workers[0].terminate()
        assert await cluster.workers[0].ended() == 0
        with closing(sqlite3.connect(tmp_path / "sublet.db")) as file, file:
            (partition,) = file.execute(
                "SELECT id FROM partition WHERE name = ?", (damaged,)
            ).fetchone()
            file.execute(
                "INSERT INTO record VALUES (?, 'parked', '~c:3', ?, NULL)", (partition, b"\xc1")
            )

        worker = cluster.add_worker()

        async def others_are_served() -> bool:
            try:
                async with Client(address, connect_timeout="1s") as client:
                    for key in others:
                        await client.call(function, key, 1)
            except SubletError:
                return False
            return True

        await until(others_are_served)
        await until(lambda: f"parked record '~c:3' of {damaged} is corrupt" in cluster.log)
        assert worker.is_running

        # After some tries it is quarantined, until somebody has repaired it and says so.
        worker.address = address

        async def quarantined() -> bool:
            return damaged in (await cluster.status(worker)).quarantined

        await until(quarantined)
        async with Client(address, connect_timeout="500ms") as client:
            with pytest.raises(UnknownOutcomeError, match=f"{damaged} is quarantined"):
                await client.call(function, keys[0], 1)
        with closing(sqlite3.connect(tmp_path / "sublet.db")) as file, file:
            file.execute("DELETE FROM record WHERE kind = 'parked' AND id = '~c:3'")
        command = [sys.executable, "-m", "sublet", "recover", damaged, "--connect", address]
        told = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=20)
        assert told.returncode == 0, told.stderr
        async with Client(address) as client:
            assert await client.call(function, keys[0], 0) == 1
        assert not await quarantined()
