"""Carries the faults of an episode out."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import assert_never

import msgspec

from tests.chaos.recovery import Recoveries
from tests.chaos.schedule import OUTAGES, Episode, Fault
from tests.chaos.site import CLIENT_HOST, REDIS_HOST, Site, host_of, until

SLOW_KILOBITS_PER_S = 512
FAST_KILOBITS_PER_S = 10_000_000
SCALED_WAIT_S = 90.0
"""So long the controller has to get what it wants, whatever else happens."""


class Happened(msgspec.Struct, frozen=True):
    """A fault as it was carried out."""

    episode: int
    fault: Fault
    at_s: float
    """From the beginning of the run."""


class Faults:
    def __init__(self, site: Site, recoveries: Recoveries) -> None:
        self.counts: Counter[str] = Counter()
        self.happened: list[Happened] = []
        self._site = site
        self._recoveries = recoveries
        self._begin_s = time.monotonic()
        # The schedule cannot know how long it takes to read its data again.
        self._redis_turn = asyncio.Lock()
        # Nor when workers that are wanted have joined, and left.
        self._scaling_turn = asyncio.Lock()
        # Nor how long a worker takes to end; meanwhile nobody else may put one in its place.
        self._slot_turns: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def play(self, episode: Episode) -> None:
        """Return when all faults of the episode are undone."""
        begin_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for fault in episode.faults:
                await asyncio.sleep(begin_s + fault.at_s - time.monotonic())
                at_s = time.monotonic() - self._begin_s
                self.happened.append(Happened(episode.number, fault, round(at_s, 3)))
                self.counts[fault.kind] += 1
                tasks.create_task(self._carry_out(fault))

    async def _carry_out(self, fault: Fault) -> None:
        match fault.kind:
            case "kill" | "freeze" | "drain" | "join":
                async with self._slot_turns[fault.slot]:
                    await self._do_to_worker(fault)
            case "scale-out":
                async with self._scaling_turn:
                    await self._scale(fault)
            case "redis-kill":
                async with self._redis_turn:
                    await self._around(fault, self._site.redis.kill, self._site.redis.start)
            case "redis-freeze":
                async with self._redis_turn:
                    await self._around(fault, self._site.redis.freeze, self._site.redis.thaw)
            case (
                "cut-peer"
                | "cut-peer-one-way"
                | "cut-redis"
                | "cut-to-redis"
                | "cut-from-redis"
                | "cut-client"
                | "isolate"
                | "slow"
                | "lossy"
            ):
                await self._around(fault, lambda: self._cut(fault), lambda: self._heal(fault))
            case _:
                assert_never(fault.kind)

    async def _do_to_worker(self, fault: Fault) -> None:
        match fault.kind:
            case "kill":
                await self._kill(fault)
            case "freeze":
                await self._freeze(fault)
            case "drain":
                await self._drain(fault)
            case _:
                await self._join(fault)

    async def _drain(self, fault: Fault) -> None:
        self._recoveries.fault("drain", time.monotonic())
        await self._site.drain_worker(fault.slot)
        await asyncio.sleep(fault.duration_s)
        self._site.start_worker(fault.slot)

    async def _kill(self, fault: Fault) -> None:
        self._site.kill_worker(fault.slot)
        self._recoveries.fault("kill", time.monotonic())
        await asyncio.sleep(fault.duration_s)
        self._site.start_worker(fault.slot)

    async def _freeze(self, fault: Fault) -> None:
        worker = self._site.running(fault.slot)
        if worker is None:
            return
        worker.freeze()
        self._recoveries.fault("freeze", time.monotonic())
        await asyncio.sleep(fault.duration_s)
        worker.thaw()
        self._recoveries.fault("wake", time.monotonic())

    async def _join(self, fault: Fault) -> None:
        self._recoveries.fault("join", time.monotonic())
        self._site.start_worker(fault.slot)
        await asyncio.sleep(fault.duration_s)
        self._recoveries.fault("drain", time.monotonic())
        await self._site.drain_worker(fault.slot)

    async def _scale(self, fault: Fault) -> None:
        """Have the controller add workers and, after a while, drain them."""
        controlled, site = self._site.controlled, self._site
        self._recoveries.fault("scale-out", time.monotonic())
        controlled.want(fault.count)
        if not await until(lambda: controlled.joined >= fault.count, SCALED_WAIT_S):
            site.problems.append(f"{fault.count} workers were wanted, and have not joined")
        await asyncio.sleep(fault.duration_s)
        self._recoveries.fault("scale-in", time.monotonic())
        controlled.want(0)
        if not await until(lambda: not controlled.launched, SCALED_WAIT_S):
            left = sorted(controlled.launched)
            site.problems.append(f"workers were to be drained, and are there: {left}")

    async def _around(
        self, fault: Fault, begin: Callable[[], None], end: Callable[[], None]
    ) -> None:
        """Do something that lasts; where it keeps all from answering, its end counts."""
        self._recoveries.fault(fault.kind, time.monotonic())
        try:
            await asyncio.to_thread(begin)
            await asyncio.sleep(fault.duration_s)
        finally:
            await asyncio.to_thread(end)
            if fault.kind in OUTAGES:
                self._recoveries.outage_ended(fault.kind, time.monotonic())
            else:
                self._recoveries.fault("heal", time.monotonic())

    def _cut(self, fault: Fault) -> None:
        network, host = self._site.network, host_of(fault.slot)
        assert network is not None
        match fault.kind:
            case "cut-peer":
                network.cut(host, host_of(fault.other))
            case "cut-peer-one-way":
                network.cut(host, host_of(fault.other), one_way=True)
            case "cut-redis":
                network.cut(host, REDIS_HOST)
            case "cut-to-redis":
                network.cut(host, REDIS_HOST, one_way=True)
            case "cut-from-redis":
                network.cut(REDIS_HOST, host, one_way=True)
            case "cut-client":
                network.cut(host, CLIENT_HOST)
            case "isolate":
                network.isolate(host)
            case "slow":
                network.slow(host, kilobits_per_s=SLOW_KILOBITS_PER_S)
            case "lossy":
                network.disturb([host], delay_ms=10.0, jitter_ms=200.0, loss=0.05)

    def _heal(self, fault: Fault) -> None:
        network, host = self._site.network, host_of(fault.slot)
        assert network is not None
        if fault.kind == "slow":
            network.slow(host, kilobits_per_s=FAST_KILOBITS_PER_S)
        elif fault.kind == "lossy":
            network.disturb([])
        elif fault.kind == "isolate":
            for other in network.hosts:
                if other != host:
                    network.heal(host, other)
        elif fault.kind.startswith("cut-peer"):
            network.heal(host, host_of(fault.other))
        else:
            network.heal(host, CLIENT_HOST if fault.kind == "cut-client" else REDIS_HOST)
