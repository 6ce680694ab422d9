"""Runs tests on a host of a `tests.network`, because the test runner itself is on none.

A test is a coroutine function of one argument, the `Hosts` among which it runs, under `@on_host`.
pytest sees an ordinary test that needs the fixture `host_process`: this starts Python on the host
`client` once, which then runs test after test with the same Redis, workers, client and load. After
one that has failed, all of these are made anew. Tests that need others name them: `@on(Others)`.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import structlog

from sublet import Client
from sublet.runtime.links.link import LinkLimits
from sublet.statestore.contract import View
from sublet.statestore.redis.directory import RedisDirectory
from tests.integration.cluster import PROJECT, Cluster, WorkerProcess, until
from tests.integration.worker_load import Load, rounds_more
from tests.network import Network
from tests.redis_process import RedisProcess

APP = "tests.integration.count_app:app"
WORKERS = ["w1", "w2", "w3"]
HOSTS = [*WORKERS, "redis", "client"]
SILENCE_S = 0.6
TEST_WAIT_S = 200.0
END_WAIT_S = 20.0


class Surroundings(Protocol):
    """What tests find on the hosts; made with the network and a folder."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    @property
    def log(self) -> str:
        """What workers wrote."""
        ...


class HostCluster(Cluster):
    """Workers on the hosts of a network, one each."""

    def __init__(self, net: Network, folder: Path, redis: RedisProcess) -> None:
        settings = {
            "store": "redis",
            "redis_url": redis.url,
            "full_sync": 1,
            "allow_remote": 1,
            # Unix sockets would pass between hosts, whatever is cut.
            "lane": 0,
            "link_silence_ms": int(SILENCE_S * 1000),
        }
        super().__init__(APP, folder, settings)
        self._net = net

    def add_worker(self, target: str = "", expected: int = 1) -> WorkerProcess:
        host = WORKERS[len(self.workers)]
        self.data_dir.mkdir(parents=True, exist_ok=True)
        environment = {
            **self._environment,
            "SUBLET_WORKERS_EXPECTED": str(expected),
            **self._listening(host),
        }
        log = self.data_dir / "workers.log"
        worker = WorkerProcess(APP, environment, log, self._net.command(host, []))
        self.workers.append(worker)
        return worker

    def _listening(self, host: str) -> dict[str, str]:
        """Return how a worker is told where to listen: each of them in another way."""
        address = self._net.address(host)
        return {
            "w1": {"SUBLET_HOST": address},
            "w2": {"SUBLET_HOST": "0.0.0.0"},
            "w3": {"SUBLET_HOST": "0.0.0.0", "SUBLET_ADVERTISE": address},
        }[host]


class Hosts:
    """What tests have: the network, three workers, Redis, a client under load, all on hosts."""

    def __init__(self, net: Network, folder: Path) -> None:
        self.net = net
        folder.mkdir()
        self.redis = RedisProcess(
            folder,
            host=net.address("redis"),
            prefix=net.command("redis", []),
            protected_mode="no",
        )
        self.cluster = HostCluster(net, folder / "workers", self.redis)
        self.load: Load
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        async with AsyncExitStack() as stack:
            stack.callback(self.redis.kill)
            await asyncio.to_thread(self.redis.start)
            stack.callback(self.cluster.close)
            await self.cluster.start(len(WORKERS))
            self._directory = RedisDirectory(self.redis.url)
            stack.push_async_callback(self._directory.close)
            # No caller is to fail, however long a test cuts it off.
            client = await stack.enter_async_context(self.client(connect_timeout="40s"))
            self.load = Load(self.cluster, client, seed=1)
            self._stack = stack.pop_all()

    async def close(self) -> None:
        self.net.heal()
        await self._stack.aclose()

    @property
    def log(self) -> str:
        return self.cluster.log

    def client(self, *workers: str, connect_timeout: str = "20s") -> Client:
        """Return a client that was told the addresses of these workers, or of all."""
        limits = LinkLimits(silence_s=SILENCE_S)
        addresses = [self.worker(each).address for each in workers] or self.cluster.addresses
        return Client(addresses, connect_timeout=connect_timeout, limits=limits, lane="never")

    def worker(self, host: str) -> WorkerProcess:
        return self.cluster.workers[WORKERS.index(host)]

    async def view(self) -> View:
        return await self._directory.view()

    async def member(self, host: str) -> str:
        """Return the id of the worker on a host; nothing if it is not a member."""
        pid = self.worker(host).pid
        members = (await self.view()).members.values()
        return next((each.id for each in members if each.pid == pid), "")

    async def taken_for_dead(self, host: str) -> None:
        """Wait until the others have removed a worker."""

        async def is_gone() -> bool:
            return not await self.member(host)

        await until(is_gone)

    async def silence(self) -> None:
        """Let so much time pass that links which are cut are given up. This leaves no trace that
        could be waited for."""
        await asyncio.sleep(2 * SILENCE_S)

    async def under_load(self, disturb: Callable[[Load], Awaitable[None]]) -> None:
        """Disturb the network under load; then heal it, and expect service and exact counts."""
        load = self.load
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run())
            await rounds_more(load, 5)
            await disturb(load)
            self.net.heal()
            await rounds_more(load)
            load.stop()
        await self.cluster.ready()
        await load.check()


Scenario = Callable[[Any], Awaitable[None]]


def on(
    surroundings: Callable[[Network, Path], Surroundings],
) -> Callable[[Scenario], Callable[[HostProcess], None]]:
    """Make a test of a coroutine function, which runs on the host `client` and is given these."""

    def made(scenario: Scenario) -> Callable[[HostProcess], None]:
        def test(host_process: HostProcess) -> None:
            host_process.run(scenario)

        test.__name__ = test.__qualname__ = scenario.__name__
        test.__doc__ = scenario.__doc__
        test.__module__ = scenario.__module__
        # For the process on the host.
        test.scenario = scenario  # type: ignore[attr-defined]
        test.surroundings = surroundings  # type: ignore[attr-defined]
        return test

    return made


def on_host(scenario: Callable[[Hosts], Awaitable[None]]) -> Callable[[HostProcess], None]:
    return on(Hosts)(scenario)


class HostProcess:
    """Python on the host `client` of a network; ended with the block."""

    def __init__(self, net: Network, folder: Path) -> None:
        self._process = subprocess.Popen(
            net.command("client", [sys.executable, "-m", __name__, net.text, str(folder)]),
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> HostProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._process.communicate(timeout=END_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def run(self, scenario: Scenario) -> None:
        """Run a scenario there; it fails here as it fails there."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([scenario.__module__, scenario.__name__]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        failure = json.loads(answer) if answer else "the process on the host has ended"
        assert not failure, f"on the host:\n{failure}"


async def _serve(net: Network, folder: Path) -> None:
    """Run what is asked for, one scenario after the other, until the input ends."""
    hosts: Surroundings | None = None
    number = 0
    while line := await asyncio.to_thread(sys.stdin.readline):
        module, name = json.loads(line)
        test = getattr(importlib.import_module(module), name)
        failure = ""
        try:
            async with asyncio.timeout(TEST_WAIT_S):
                if hosts is None:
                    number += 1
                    hosts = test.surroundings(net, folder / str(number))
                    await hosts.start()
                await test.scenario(hosts)
        except Exception:
            failure = traceback.format_exc()
            if hosts is not None:
                failure += f"the workers wrote:\n{hosts.log[-6_000:]}"
                await hosts.close()
                hosts = None
        sys.stdout.write(json.dumps(failure) + "\n")
        sys.stdout.flush()
    if hosts is not None:
        await hosts.close()


if __name__ == "__main__":
    # Standard output is for answers.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(_serve(Network.from_text(sys.argv[1]), Path(sys.argv[2])))
