"""Workers that listen on all addresses of their machine tell others one that leads to them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import httpx

from sublet import Client
from tests.cable import Cable
from tests.integration import count_app
from tests.integration.cluster import PROJECT, Cluster
from tests.ports import free_ports

APP = "tests.integration.count_app:app"
KEYS = [f"key{number}" for number in range(32)]
PATIENCE_S = 30.0


async def test_workers_are_reached_by_what_they_advertise_also_through_a_mapped_port(
    tmp_path: Path,
) -> None:
    port, *http_ports = free_ports(3)
    mapped = Cable(port)
    # Lanes would lead past the addresses.
    cluster = Cluster(APP, tmp_path, {"host": "0.0.0.0", "allow_remote": 1, "lane": 0})
    async with asyncio.timeout(PATIENCE_S), mapped.plugged() as mapped_port:
        try:
            for settings in (
                {"advertise": "127.0.0.2", "http_port": http_ports[0]},
                {"advertise": f"127.0.0.1:{mapped_port}", "port": port, "http_port": http_ports[1]},
            ):
                cluster.add_worker(expected=2, **settings)
            await cluster.ready()

            first, second = cluster.addresses()
            assert first.startswith("127.0.0.2:")
            assert second == f"127.0.0.1:{mapped_port}"
            assert set((await cluster.status(cluster.workers[0])).topology.workers.values()) == {
                first,
                second,
            }
            async with Client(first) as client:
                await client.call_many(count_app.count, KEYS, [1] * len(KEYS))
            for http_port in http_ports:
                async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{http_port}") as http:
                    for key in KEYS:
                        reply = await http.post(f"/functions/count/count/{key}", json=1)
                        assert reply.status_code == 200
            async with Client(second) as client:
                totals = await client.call_many(count_app.count, KEYS, [0] * len(KEYS))
            assert totals == [3] * len(KEYS)
            assert mapped.connections
        finally:
            cluster.close()


def test_a_run_shows_what_it_advertises_and_answers_where_it_listens(tmp_path: Path) -> None:
    """Nobody reaches it by what it advertises, not even itself."""
    port, http_port = free_ports(2)
    command = [sys.executable, "-m", "sublet", "run", APP, "--data-dir", str(tmp_path)]
    options = ["--host", "0.0.0.0", "--allow-remote", "--advertise", "192.0.2.1"]
    ports = ["--port", str(port), "--http-port", str(http_port)]
    with subprocess.Popen(
        [*command, *options, *ports], cwd=PROJECT, stdout=subprocess.PIPE, text=True
    ) as run:
        try:
            assert run.stdout is not None
            greeting = [run.stdout.readline() for _ in range(3)]
            assert greeting == [
                "\n",
                f"1 worker is ready: 192.0.2.1:{port}\n",
                f"HTTP: http://192.0.2.1:{http_port}\n",
            ]
            reply = httpx.post(f"http://127.0.0.1:{http_port}/functions/count/count/a", json=2)
            assert reply.json() == 2
        finally:
            run.terminate()
            run.wait(PATIENCE_S)
