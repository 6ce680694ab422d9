"""Scaling while the network is cut: two machines with a `sublet run` each, and a Redis on a third.

Whoever leads is cut off while workers are wanted. There is one plan all the time, in the end as
many workers as it says, and every call counts once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.rpc import ScalingRequest
from sublet.scheduler.scaling.plan import Plan
from sublet.statestore.contract import View
from sublet.statestore.redis.directory import RedisDirectory
from tests.integration.on_host import HostProcess, on
from tests.integration.test_scaling import LOOK_S, Run, load, running, serving
from tests.integration.test_scaling_faults import CALLS, FEW, Wanted, spread
from tests.network import Network, missing, network
from tests.redis_process import RedisProcess

MACHINES = ["w1", "w2"]
TICKS_S = 3.5
"""So long nobody may do something: three ticks of a controller."""


class Machines:
    """Two machines with workers of one cluster, which one policy scales, as tests tell it."""

    def __init__(self, net: Network, folder: Path) -> None:
        self.net = net
        self.runs: dict[str, Run] = {}
        folder.mkdir()
        self._folder = folder
        self._redis = RedisProcess(
            folder,
            host=net.address("redis"),
            prefix=net.command("redis", []),
            protected_mode="no",
        )
        self.wanted = Wanted(folder / "wanted")
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        (self._folder / "wanted").touch()
        os.environ["TEST_WANTED"] = str(self._folder / "wanted")
        async with AsyncExitStack() as stack:
            stack.callback(self._redis.kill)
            await asyncio.to_thread(self._redis.start)
            for machine in MACHINES:
                self.runs[machine] = await stack.enter_async_context(self._running(machine))
            await self.until(spread(2))
            self.wanted.tell(2)
            self._stack = stack.pop_all()

    @asynccontextmanager
    async def _running(self, machine: str) -> AsyncIterator[Run]:
        settings = {
            "redis_url": self._redis.url,
            "host": self.net.address(machine),
            "allow_remote": 1,
            # Unix sockets would pass between hosts, whatever is cut.
            "lane": 0,
            "link_silence_ms": 1_000,
        }
        told = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        async with running(
            self._folder / machine,
            "1..4",
            "as-told",
            *("--store", "redis", *told),
            directory=RedisDirectory(self._redis.url),
            prefix=self.net.command(machine, []),
        ) as run:
            yield run

    async def close(self) -> None:
        self.net.heal()
        await self._stack.aclose()

    @property
    def log(self) -> str:
        return "\n".join(line for run in self.runs.values() for line in run.lines[-60:])

    @property
    def _any(self) -> Run:
        return next(iter(self.runs.values()))

    async def until(self, happened: Callable[[View], bool]) -> View:
        return await self._any.until(happened)

    async def plan(self) -> Plan:
        return await self._any.plan()

    async def leading(self) -> tuple[str, View]:
        """Return the machine whose worker leads."""
        view = await self.until(lambda view: view.lead.holder in view.members)
        host = view.members[view.lead.holder].address.rpartition(":")[0]
        return next(each for each in MACHINES if self.net.address(each) == host), view

    async def addresses(self) -> list[str]:
        view = await self.until(lambda view: len(serving(view)) >= 2)
        return [each.address for each in view.members.values()]

    async def agreed(self, workers: int) -> None:
        """Wait for so many workers; all of them know the one leader, whose plan it is."""
        await self.until(spread(workers))
        await self._any.settled(workers)
        view = await self.until(lambda view: len(view.members) == workers)
        plan = await self.plan()
        assert plan.token == view.lead.token
        for member in view.members.values():
            async with UnaryClient(member.address) as worker:
                assert (await worker.scaling(ScalingRequest())).leader == view.lead.holder


@pytest.fixture(scope="module")
def host_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    if reason := missing():
        pytest.skip(reason)
    hosts = [*MACHINES, "redis", "client"]
    with network(hosts) as net, HostProcess(net, tmp_path_factory.mktemp("hosts")) as process:
        yield process


@on(Machines)
async def test_a_leader_that_is_cut_off_from_redis_starts_nobody_and_another_does(
    machines: Machines,
) -> None:
    async with load(await machines.addresses(), FEW) as calls:
        leader, before = await machines.leading()
        started = machines.runs[leader].told("asked for it")
        machines.net.cut(leader, "redis")
        machines.wanted.tell(3)
        # Two, as the one that is cut off is taken for dead.
        await machines.until(
            lambda view: (
                view.lead.token > before.lead.token
                and len(serving(view)) == 3
                and before.lead.holder not in view.members
            )
        )
        assert machines.runs[leader].told("asked for it") == started
        machines.net.heal()
        # It comes back, which makes four; the one plan says three.
        await machines.agreed(3)
        answered = sum(calls.values())
        await machines.until(lambda _: sum(calls.values()) > answered + CALLS)
        machines.wanted.tell(2)
        await machines.agreed(2)


@on(Machines)
async def test_a_launch_that_a_leader_took_along_behind_a_cut_is_there_once_in_the_end(
    machines: Machines,
) -> None:
    """The intent is stored, and its leader is gone from the network before the worker has joined:
    both machines start it."""
    async with load(await machines.addresses(), FEW):
        leader, before = await machines.leading()
        machines.wanted.tell(3)
        while not (await machines.plan()).launches:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S / 10)
        machines.net.isolate(leader)
        machines.net.heal(leader, "client")
        (launch,) = (await machines.plan()).launches
        await machines.until(lambda view: view.lead.token > before.lead.token)
        await machines.until(
            lambda view: any(each.launch == launch.id for each in view.members.values())
        )
        machines.net.heal()
        await machines.agreed(3)
        machines.wanted.tell(2)
        await machines.agreed(2)


@on(Machines)
async def test_nobody_is_drained_by_a_leader_who_does_not_hear_the_others(
    machines: Machines,
) -> None:
    async with load(await machines.addresses(), FEW) as calls:
        machines.wanted.tell(3)
        await machines.agreed(3)
        leader, before = await machines.leading()
        (other,) = set(MACHINES) - {leader}
        machines.net.cut(leader, other)
        # A sample is old after three seconds.
        await asyncio.sleep(TICKS_S)
        machines.wanted.tell(2)
        await asyncio.sleep(TICKS_S)
        view, plan = await machines.until(lambda _: True), await machines.plan()
        assert sorted(serving(view)) == sorted(before.members)
        assert (view.lead, plan.leaving) == (before.lead, [])
        machines.net.heal()
        await machines.agreed(2)
        answered = sum(calls.values())
        await machines.until(lambda _: sum(calls.values()) > answered + CALLS)
