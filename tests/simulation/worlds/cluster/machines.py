"""What starts workers in a simulated cluster that scales, and the load that they are under.

`Machines` is the actuator of all workers: it starts processes late, never, or says that it cannot.
`Pressure` is a load that is spread over all partitions. Handlers of a story cost nothing; what
workers tell the controller of how busy they are comes from here, in the samples of the real
sampler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from sublet.functions.app import Function
from sublet.runtime.scaling.actuators import ActuatorError
from sublet.runtime.scaling.sampler import Sampler
from sublet.scheduler.scaling.signals import (
    OUTSIDE,
    TURN_BOUNDS_MS,
    FunctionSignals,
    WorkerSample,
    observe,
)

if TYPE_CHECKING:
    from tests.simulation.worlds.cluster.elastic import ElasticWorld

MESSAGE_MS = 1.0
"""What each message of the load takes of a worker."""
PARTITION_LOAD_MAX = 0.5
"""Of a worker: one partition never is more than that, so that more workers always help."""


class Machines:
    """One for the cluster, as a supervisor or an API server is."""

    def __init__(self, world: ElasticWorld, seed: int) -> None:
        self._world = world
        chance = self._chance = Random(f"machines {seed}")
        self._delays_ms = chance.choice([(50,), (50, 300), (300, 2_500)])
        self._refusing = chance.choice([0.0, 0.0, 0.2])
        """How often it says at once that it cannot."""
        self._failing = chance.choice([0.0, 0.0, 0.2])
        """How often it finds out later, and tells all workers."""
        self._forgetting = chance.choice([0.0, 0.0, 0.3])
        """How often nothing comes of a launch, and nobody says so."""
        self._token = 0
        self._known: set[str] = set()

    def for_worker(self, worker: str) -> Asking:
        return Asking(self, worker)

    def lead(self, token: int) -> None:
        self._token = max(self._token, token)

    def start(self, worker: str, launches: Sequence[str], token: int) -> None:
        world, chance = self._world, self._chance
        if token < self._token:
            world.note(f"machines: {worker} with token {token} is not obeyed")
            return
        self.lead(token)
        world.watch.started(worker, launches, token)
        for launch in launches:
            if launch in self._known:
                continue
            if world.faulty and chance.random() < self._refusing:
                world.fault("launch refused", launch)
                raise ActuatorError("there is no machine for it")
            self._known.add(launch)
            delay_ms = chance.choice(self._delays_ms)
            if world.faulty and chance.random() < self._forgetting:
                world.fault("launch forgotten", launch)
            elif world.faulty and chance.random() < self._failing:
                world.later(delay_ms, self._fail, launch)
            else:
                world.later(delay_ms, self._begin, launch)

    def _begin(self, launch: str) -> None:
        self._world.fault("scaled out", launch)
        self._world.add_worker(self._world.releases.later(), "", launch)

    def _fail(self, launch: str) -> None:
        world = self._world
        world.fault("launch failed", launch)
        for each in world.workers:
            if each.process.alive:
                world.loop.call_soon(
                    each.worker.launch_failed,
                    launch,
                    "the process has ended",
                    context=each.process.home,
                )


class Asking:
    """The machines, as one worker asks for them."""

    def __init__(self, machines: Machines, worker: str) -> None:
        self._machines = machines
        self._worker = worker

    async def lead(self, token: int) -> None:
        self._machines.lead(token)

    async def start(self, launches: Sequence[str], total: int, token: int) -> None:
        self._machines.start(self._worker, launches, token)

    async def release(self, node: str, total: int, token: int) -> None:
        """A worker that was drained ends by itself."""


class Pressure:
    """How much there is to do, in workers; the same for each partition."""

    def __init__(self, world: ElasticWorld, seed: int) -> None:
        self._world = world
        self._chance = Random(f"pressure {seed}")
        self._backlog_s: dict[str, float] = {}
        """Partition to what waits there, in seconds of a worker."""
        self._partitions = sum(each.partition_count for each in world.functions.values())
        self.load = 0.0
        self.change()

    def change(self) -> None:
        most = min(0.7 * self._world.config.workers_max, PARTITION_LOAD_MAX * self._partitions)
        self.load = round(self._chance.choice([0.1, self._chance.random()]) * most, 3)

    @property
    def of_partition(self) -> float:
        return self.load / self._partitions

    def pass_time(
        self, partitions: Sequence[str], seconds: float
    ) -> dict[str, tuple[float, float]]:
        """Let a worker do what it can; return what came to each partition and what was done."""
        came = self.of_partition * seconds
        waiting = {name: self._backlog_s.get(name, 0.0) + came for name in partitions}
        total = sum(waiting.values())
        share = min(1.0, seconds / total) if total else 0.0
        done = {name: share * each for name, each in waiting.items()}
        self._backlog_s.update({name: waiting[name] - done[name] for name in partitions})
        return {name: (came, each) for name, each in done.items()}

    def waiting_ms(self, partition: str) -> float:
        return 1_000 * self._backlog_s.get(partition, 0.0)


class StorySampler:
    """The real sampler, with the load of the story in what it says."""

    world: ElasticWorld

    def __init__(
        self,
        worker: str,
        functions: Mapping[str, Function],
        host: Any,
        refusals: Mapping[tuple[str, str], int],
        now_ms: float,
        is_asked: Callable[[], bool],
    ) -> None:
        self._sampler = Sampler(worker, functions, host, refusals, now_ms=now_ms, cpu_s=0.0)
        self._host = host
        self._sampled_ms = self.world.loop.now_ms

    def sample(self, now_ms: float) -> WorkerSample:
        world, pressure = self.world, self.world.pressure
        seconds = max(0.001, (world.loop.now_ms - self._sampled_ms) / 1000)
        self._sampled_ms = world.loop.now_ms
        told = pressure.pass_time(sorted(self._host.partitions), seconds)
        sample = self._sampler.sample(now_ms, 0.0)
        used_s = sum(done for _, done in told.values())
        return msgspec.structs.replace(
            sample,
            utilisation=min(1.0, used_s / seconds),
            functions=[self._signals(each, told, seconds) for each in sample.functions],
        )

    def _signals(
        self, signals: FunctionSignals, told: Mapping[str, tuple[float, float]], seconds: float
    ) -> FunctionSignals:
        mine = {name: each for name, each in told.items() if _function(name) == signals.function}
        came = round(sum(each for each, _ in mine.values()) * 1000 / MESSAGE_MS)
        done = round(sum(each for _, each in mine.values()) * 1000 / MESSAGE_MS)
        waiting_ms = sum(map(self.world.pressure.waiting_ms, mine))
        turn = [0] * (len(TURN_BOUNDS_MS) + 1)
        observe(turn, TURN_BOUNDS_MS, MESSAGE_MS + waiting_ms, done)
        return msgspec.structs.replace(
            signals,
            arrived={OUTSIDE: came},
            done={OUTSIDE: done},
            waiting=round(waiting_ms / MESSAGE_MS),
            waiting_ms=waiting_ms,
            turn=turn if done else (),
            runs=done,
            fixed_ms=0.0,
            message_ms=MESSAGE_MS,
            loads={
                int(name.rpartition("/")[2]): came_s / seconds for name, (came_s, _) in mine.items()
            },
        )


def _function(partition: str) -> str:
    return partition.rpartition("/")[0]
