"""Where it all runs: Redis, workers in slots, and the network between them if there is one.

A slot keeps its address, whichever worker is in it, as a machine does. The last one is spare; after
it come those of workers that only the controller starts and drains (`controlled`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.chaos.app import PLACED, WANTED, app
from tests.chaos.controlled import Controlled
from tests.integration.cluster import PATIENCE_S, WorkerProcess
from tests.network import Network
from tests.ports import free_ports
from tests.redis_process import RedisProcess

TARGET = "tests.chaos.app:app"
REDIS_HOST = "redis"
CLIENT_HOST = "client"
GRPC_PORT = 7337
HTTP_PORT = 8080
LOOK_EVERY_S = 0.05
CONTROLLED = 2
"""Workers that the controller may want at once."""


def host_of(slot: int) -> str:
    """Return the name of a worker's host in the network."""
    return f"w{slot}"


def hosts_of(slots: int) -> list[str]:
    """Return the hosts that a site of so many slots needs; it runs itself on the client's."""
    return [*map(host_of, range(slots + CONTROLLED)), REDIS_HOST, CLIENT_HOST]


class Site:
    def __init__(
        self,
        folder: Path,
        slots: int,
        settings: Mapping[str, object],
        network: Network | None = None,
    ) -> None:
        self.folder = folder
        self.network = network
        self.workers: list[WorkerProcess | None] = [None] * (slots + CONTROLLED)
        self.problems: list[str] = []
        self.memory_max_bytes = 0
        self.redis = self._redis()
        places = self._places(slots + CONTROLLED)
        # Callers find those that the controller wants by themselves.
        self.addresses = [f"{host}:{port}" for host, port, _ in places[:slots]]
        self.http_urls = [f"http://{host}:{port}" for host, _, port in places[:slots]]
        wanted = folder / "wanted"
        self.controlled = Controlled(
            range(slots, slots + CONTROLLED), wanted, lambda slot, _: self.start_worker(slot)
        )
        self._environments = [
            {
                "SUBLET_LOG_LEVEL": "info",
                "SUBLET_LOG_FORMAT": "json",
                "SUBLET_DATA_DIR": str(folder / "data"),
                "SUBLET_STORE": "redis",
                "SUBLET_REDIS_URL": self.redis.url,
                "SUBLET_FULL_SYNC": "1",
                "SUBLET_HOST": host,
                "SUBLET_PORT": str(grpc_port),
                "SUBLET_HTTP_PORT": str(http_port),
                "SUBLET_ALLOW_REMOTE": "1",
                # Unix sockets would pass between hosts, whatever is cut.
                "SUBLET_LANE": "0" if network else "1",
                "SUBLET_SCALING": "told",
                "SUBLET_WORKERS_MAX": str(slots + CONTROLLED),
                WANTED: str(wanted),
                **{f"SUBLET_{name.upper()}": str(value) for name, value in settings.items()},
            }
            for host, grpc_port, http_port in places
        ]

    def _redis(self) -> RedisProcess:
        folder = self.folder / "redis"
        folder.mkdir(parents=True)
        if self.network is None:
            return RedisProcess(folder)
        prefix = self.network.command(REDIS_HOST, [])
        host = self.network.address(REDIS_HOST)
        return RedisProcess(folder, host=host, prefix=prefix, protected_mode="no")

    def _places(self, slots: int) -> Sequence[tuple[str, int, int]]:
        """Return host, gRPC port and HTTP port of each slot."""
        if self.network is not None:
            hosts = [self.network.address(host_of(slot)) for slot in range(slots)]
            return [(host, GRPC_PORT, HTTP_PORT) for host in hosts]
        ports = free_ports(2 * slots)
        return [("127.0.0.1", ports[2 * slot], ports[2 * slot + 1]) for slot in range(slots)]

    @property
    def partitions(self) -> list[str]:
        return [
            f"{name}/{index}"
            for name, function in app.functions.items()
            for index in range(function.partition_count)
        ]

    async def start(self, workers: int) -> None:
        """Start Redis and the workers of the first slots."""
        await asyncio.to_thread(self.redis.start)
        for slot in range(workers):
            self.start_worker(slot, expected=workers)

    def start_worker(self, slot: int, expected: int = 1) -> None:
        prefix = self.network.command(host_of(slot), []) if self.network else ()
        environment = {**self._environments[slot], "SUBLET_WORKERS_EXPECTED": str(expected)}
        log = self.folder / f"worker-{slot}.log"
        launch = self.controlled.launched.get(slot, f"{PLACED}{slot}")
        with self.controlled.connect(slot) as line:
            options = ("--supervisor-fd", str(line.fileno()), "--launch", launch)
            self.workers[slot] = WorkerProcess(
                TARGET, environment, log, prefix, options, [line.fileno()]
            )

    def running(self, slot: int) -> WorkerProcess | None:
        """Return the worker in a slot, if it runs."""
        worker = self.workers[slot]
        return worker if worker is not None and worker.is_running else None

    def kill_worker(self, slot: int) -> None:
        if (worker := self.workers[slot]) is not None:
            worker.is_wanted = False
            worker.end()

    async def drain_worker(self, slot: int) -> None:
        """Ask a worker to stop, and wait for it; it is a problem if it does not, or fails."""
        worker = self.running(slot)
        if worker is None:
            return
        worker.terminate()
        try:
            code = await worker.ended()
        except TimeoutError:
            self.problems.append(
                f"worker {slot} (pid {worker.pid}) goes on {PATIENCE_S:g} s after SIGTERM"
            )
        else:
            if code and self._was_ready(slot, worker.pid):
                self.problems.append(
                    f"worker {slot} (pid {worker.pid}) was asked to stop and ended with {code}"
                )
        worker.end()

    def _was_ready(self, slot: int, pid: int) -> bool:
        """Tell whether a worker had begun: before, a signal just ends it."""
        lines = (self.folder / f"worker-{slot}.log").read_text().splitlines()
        return any('"ready"' in line and f'"pid": {pid},' in line for line in lines)

    def look_after(self) -> None:
        """Note how much memory workers have; start again those that ended by themselves."""
        for slot, worker in enumerate(self.workers):
            if worker is None or not worker.is_wanted:
                continue
            if slot in self.controlled.drained:
                self._look_after_drained(slot, worker)
            elif worker.is_running:
                self.memory_max_bytes = max(self.memory_max_bytes, worker.memory_bytes())
            else:
                self.problems.append(f"worker {slot} (pid {worker.pid}) ended by itself")
                worker.end()
                self.start_worker(slot)

    def _look_after_drained(self, slot: int, worker: WorkerProcess) -> None:
        if worker.is_running:
            return
        if worker.exit_code:
            text = f"worker {slot} (pid {worker.pid}) was drained and ended with"
            self.problems.append(f"{text} {worker.exit_code}")
        self.workers[slot] = None
        self.controlled.left(slot)

    @property
    def memory_bytes(self) -> list[int]:
        """What each running worker has in memory now."""
        running = [each for each in self.workers if each is not None and each.is_running]
        return [worker.memory_bytes() for worker in running]

    def close(self) -> None:
        for worker in self.workers:
            if worker is not None:
                worker.end()
        self.controlled.close()
        self.redis.kill()


async def until(happened: Callable[[], bool], wait_s: float) -> bool:
    """Wait for something, but not for ever; return whether it has happened."""
    for _ in range(int(wait_s / LOOK_EVERY_S)):
        if happened():
            return True
        await asyncio.sleep(LOOK_EVERY_S)
    return happened()
