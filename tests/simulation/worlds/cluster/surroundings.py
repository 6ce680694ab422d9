"""What whole workers and clients find around them in a simulation, instead of the machine.

Workers and clients are the real ones, put together by their own code. What they would get from the
machine (sockets, threads, clocks, chance) is replaced where they look it up, for the time of one
story.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from random import Random
from types import SimpleNamespace
from typing import Any

import structlog

from sublet.functions.app import Function
from sublet.runtime.testing.in_process_worker import NoWatchdog
from sublet.scheduler.pace import LearnedPace
from tests.simulation.worlds.cluster.links import Network, SimulatedLinkServer
from tests.simulation.worlds.cluster.loop import ClusterLoop


class StoryClock:
    """The `Clock` of one worker: it may run too fast or too slow, and be set."""

    def __init__(self, loop: ClusterLoop, start_ms: int, rate: float) -> None:
        self._loop = loop
        self._begun_ms = loop.now_ms
        self._rate = rate
        self.wall_offset_ms = start_ms

    def monotonic_ms(self) -> float:
        return 1_000.0 + (self._loop.now_ms - self._begun_ms) * self._rate

    def wall_ms(self) -> int:
        return self.wall_offset_ms + int(self._loop.now_ms * self._rate)


class StoryTime:
    """Stands for the module `time` where runs are measured: runs take what the lot says."""

    def __init__(self, loop: ClusterLoop, chance: Random) -> None:
        self._loop = loop
        self._chance = chance
        self._spent_s = 0.0
        self._costs_s = chance.choice([(0.0,), (0.0001, 0.0004), (0.0001, 0.003, 0.02)])

    def monotonic(self) -> float:
        return self.perf_counter()

    def perf_counter(self) -> float:
        self._spent_s += self._chance.choice(self._costs_s)
        return self._loop.time() + self._spent_s

    def time_ns(self) -> int:
        return self._loop.now_ms * 1_000_000


class StoryPace(LearnedPace):
    """As learned, but nothing that waits runs in another loop: that one would be a real thread."""

    def off_loop(self, function: Function) -> bool:
        return not function.is_async and super().off_loop(function)


class StoryThreads:
    """Threads whose runs happen on the loop, all at once, some time after they were begun."""

    abandoned_count = 0
    chance: Random

    def __init__(self, loop: ClusterLoop) -> None:
        self._loop = loop

    def run(self, job: Callable[[], None], started: Callable[[Any], None]) -> None:
        self._loop.call_later(self.chance.choice([0, 1, 5, 40]) / 1000, job)
        started(SimpleNamespace(interrupted=False))

    def ended(self, thread: object) -> None:
        """It needs no rest."""


class StoryTaskGroup(asyncio.TaskGroup):
    """Closes the coroutines that it does not take, as those of later Pythons do.

    Otherwise nobody ever awaits them, and the collector says so, in whichever test it runs.
    """

    def create_task(self, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        try:
            return super().create_task(coro, **options)
        except RuntimeError:
            coro.close()
            raise


@contextmanager
def surrounded(network: Network, chance: Random, mutated: Mapping[str, object]) -> Iterator[None]:
    """Replace what lies around workers and clients; `mutated` comes last: `module:name` to what
    stands there instead."""
    time = StoryTime(network.loop, Random(chance.random()))
    drawn = Random(chance.random())
    runtime = "sublet.runtime"
    replaced: dict[str, object] = {
        "asyncio:TaskGroup": StoryTaskGroup,
        f"{runtime}.worker:connect": network.connect,
        f"{runtime}.worker:LinkServer": type(
            "StoryLinkServer", (SimulatedLinkServer,), {"network": network}
        ),
        f"{runtime}.worker:LearnedPace": StoryPace,
        f"{runtime}.hosting.partition_host:LoopWatchdog": NoWatchdog,
        f"{runtime}.hosting.thread_runs:RunnerThreads": type(
            "StoryThreads", (StoryThreads,), {"chance": Random(chance.random())}
        ),
        f"{runtime}.client.connections:connect": network.connect,
        f"{runtime}.client.client:secrets": SimpleNamespace(
            token_hex=lambda size: f"{drawn.getrandbits(size * 8):0{size * 2}x}"
        ),
        f"{runtime}.client.client:random": drawn,
        f"{runtime}.execution.sync_runner:time": time,
        f"{runtime}.leases.borrowed_runs:time": time,
        f"{runtime}.execution.async_runner:time": time,
        f"{runtime}.hosting.hosted:time": time,
        f"{runtime}.hosting.thread_runs:time": time,
        **mutated,
    }
    before: list[tuple[object, str, object]] = []
    chance_before = random.getstate()
    # What is drawn from the module itself, as by defaults of arguments, is the same each time, too.
    random.seed(drawn.random())
    logging_before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        for place, instead in replaced.items():
            module_name, _, name = place.partition(":")
            module = import_module(module_name)
            before.append((module, name, getattr(module, name)))
            setattr(module, name, instead)
        yield
    finally:
        for changed, name, value in reversed(before):
            setattr(changed, name, value)
        structlog.configure(**logging_before)
        random.setstate(chance_before)
