"""A cluster that scales while everything around it is unsafe.

As `ClusterWorld`, with the real controller in every worker, the real plan in the simulated
directory, and machines that start workers late or never. Workers join and drain by the controller's
decisions, while others crash, freeze, leave and are cut off, and the store is away. Half of the
seeds have policies that want anything; the others have those that ship, under a load that changes
until all heals and stays the same from then on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, ClassVar

from sublet.runtime.cluster.membership import Membership
from sublet.runtime.config.settings import WorkerConfig
from sublet.runtime.scaling.actuators import Actuator
from sublet.scheduler.scaling.actions import Action, AddWorkers, DrainWorker, Migrate, Outcome, Slot
from sublet.scheduler.scaling.policy import scaling_policy
from sublet.scheduler.scaling.view import ClusterView
from sublet.statestore.contract import View
from sublet.statestore.memory import MemoryBackend, MemoryDirectory
from tests.simulation.oracles.elastic import ElasticOracle, Watch
from tests.simulation.worlds.cluster.loss import Losses
from tests.simulation.worlds.cluster.machines import Machines, Pressure, StorySampler
from tests.simulation.worlds.cluster.sides import SideStory
from tests.simulation.worlds.cluster.store import SimulatedDirectory
from tests.simulation.worlds.cluster.world import ClusterMutant, ClusterWorld

WORKER_POLICIES = (
    "reactive:cooldown=2s,calm=3s,latency=100ms",
    "predictive:cooldown=2s,calm=3s",
    "laxity",
    "fixed:workers={wanted}",
)
PLACEMENT_POLICIES = ("", "", "even", "balance", "colocate", "stela")
PRICE_WORKER_HOUR = 3_600.0
"""One for each second of a worker."""
SETTLING_MS, WATCHED_MS = 60_000, 40_000
"""Under a constant load: until nothing changes any more, and how long that is looked at."""
WHIMS_AFTER_MS = 25_000
"""Where money is short, policies go on to want anything for so long."""


class Whim:
    """A policy that wants anything."""

    world: ClassVar[ElasticWorld]
    slot = Slot.WORKERS
    period_ms = 1_000.0

    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        chance = self.world.whim_chance
        if not self.world.has_whims or chance.random() < 0.5:
            return ()
        serving = [each.id for each in cluster.serving]
        wanted: list[Action] = [
            DrainWorker(worker=worker, because="a whim")
            for worker in serving
            if chance.random() < self.world.drains
        ]
        if chance.random() < 0.4:
            wanted.append(AddWorkers(count=chance.randint(1, 3), because="a whim"))
        return wanted

    def ended(self, action: Action, outcome: Outcome, now_ms: float) -> None:
        """It does not care."""


class WhimOfPlaces(Whim):
    slot = Slot.PLACEMENT

    def decide(self, cluster: ClusterView, now_ms: float) -> Sequence[Action]:
        chance = self.world.whim_chance
        workers = [each.id for each in cluster.serving]
        if not self.world.has_whims or not workers or not cluster.placement:
            return ()
        partitions = sorted(cluster.placement)
        return [
            Migrate(partition=each, worker=chance.choice(workers), because="a whim")
            for each in chance.sample(partitions, min(2, len(partitions)))
            if chance.random() < 0.3
        ]


class WatchedDirectory(MemoryDirectory):
    """What is done to the directory, by whom."""

    def __init__(self, backend: MemoryBackend, worker: str, watch: Watch) -> None:
        super().__init__(backend)
        self._worker, self._watch, self._of = worker, watch, backend

    async def lead(self, worker: str, expected_token: int, *, above: int = 0) -> View | None:
        led = await super().lead(worker, expected_token, above=above)
        if led is not None:
            self._watch.leads(worker, led.lead.token)
        return led

    async def replan(self, token: int, number: int, plan: bytes) -> int | None:
        version = await super().replan(token, number, plan)
        if version is not None:
            self._watch.planned(self._worker, self._of.plan)
        return version

    async def drain(
        self, worker: str, *, token: int | None = None, expected_version: int | None = None
    ) -> View | None:
        drained = await super().drain(worker, token=token, expected_version=expected_version)
        if drained is not None and worker != self._worker:
            self._watch.drained(self._worker, worker)
        return drained


class ElasticMutant(ClusterMutant):
    """A deliberate defect of what scales."""

    directory_inside: type[WatchedDirectory] = WatchedDirectory


class ElasticWorld(ClusterWorld):
    # The controller looks once a second.
    pauses_ms = (100, 400, 900)
    mutant: ElasticMutant

    def __init__(
        self, seed: int, mutant: ElasticMutant | None = None, *, tracing: bool = False
    ) -> None:
        chance = self._scaling_chance = Random(f"elastic {seed}")
        self.whim_chance = Random(f"whims {seed}")
        self.is_whimsical = chance.random() < 0.5
        self.drains = chance.choice([0.1, 0.3, 0.7])
        self.is_capped = self.is_whimsical and chance.random() < 0.3
        super().__init__(seed, mutant or ElasticMutant(), tracing=tracing)
        self._whims_until_ms = 0
        if self.is_capped:
            # What is spent is counted by clocks that are right.
            self.skewed = 0.0
        self.watch = Watch(self)
        self.machines = Machines(self, seed)
        self.pressure = Pressure(self, seed)
        self._loads_left = chance.choice([0, 2, 6])
        self._interrupted = Random(f"interrupted {seed}")
        self._interruptions = self._interrupted.choice([0.0, 0.2, 0.6])
        """How often a leader is stopped in the middle of an act."""

    # What it is made of

    def _new_losses(self, seed: int) -> Losses:
        return Losses(seed, share=0.0)

    def _new_sides(self, seed: int) -> list[SideStory]:
        return []

    def _new_oracle(self) -> ElasticOracle:
        return ElasticOracle(self)

    def new_directory(self, worker: str) -> SimulatedDirectory:
        directory = super().new_directory(worker)
        directory.inner = self.mutant.directory_inside(self.backend, worker, self.watch)
        return directory

    def new_actuator(self, worker: str) -> Actuator:
        return self.machines.for_worker(worker)

    def _random_config(self) -> WorkerConfig:
        chance, config = self._scaling_chance, super()._random_config()
        workers_min = chance.choice([1, 1, 2, 3])
        workers_max = workers_min + chance.choice([1, 2, 3])
        wanted = chance.randint(workers_min, workers_max)
        scaling, placement = "whim", chance.choice(["", "whim-places"])
        if not self.is_whimsical:
            scaling = chance.choice(WORKER_POLICIES).format(wanted=wanted)
            placement = chance.choice(PLACEMENT_POLICIES)
        cap = chance.choice([20, 60, 120])
        return replace(
            config,
            # Only a store that workers share lets them scale; what it really is, is given.
            store="sqlite",
            scaling=scaling,
            placement=placement,
            workers_min=workers_min,
            workers_max=workers_max,
            start_timeout_s=chance.choice([1.0, 3.0]),
            drain_timeout_s=chance.choice([2.0, 10.0]),
            price_worker_hour=PRICE_WORKER_HOUR if self.is_capped else 0.0,
            spend_cap=f"{cap}/hour" if self.is_capped else "",
        )

    def replaced(self) -> Mapping[str, object]:
        """Return what stands in workers instead of what they have."""
        watch = self.watch

        class WatchedMembership(Membership):
            async def drain_worker(
                self, worker: str, *, token: int | None = None, even_last: bool = False
            ) -> None:
                watch.drains(self, worker, token)
                await super().drain_worker(worker, token=token, even_last=even_last)

        return {
            "sublet.runtime.scaling.sampler:ProcessSampler": type(
                "StorySampler", (StorySampler,), {"world": self}
            ),
            "sublet.runtime.worker:Membership": WatchedMembership,
        }

    # The story

    @property
    def has_whims(self) -> bool:
        return self.faulty or self.loop.now_ms < self._whims_until_ms

    def acts(self, name: str) -> None:
        """A leader is about to do something: now and then it dies or freezes in the middle."""
        chance = self._interrupted
        if not self.faulty or chance.random() >= self._interruptions:
            return
        worker = next(each for each in self.workers if each.process.name == name)
        if chance.random() < 0.3:
            self.fault("leader killed in an act", name)
            self.loop.call_soon(worker.crash, context=self.loop.world.home)
            self._later(300, self._restart, worker.functions, "", worker.launch)
        elif not worker.process.frozen:
            self.fault("leader frozen in an act", name)
            worker.process.freeze()
            term_ms = self.config.member_term_ms
            self._later(chance.choice([term_ms // 2, 2 * term_ms, 4 * term_ms]), self._thaw, worker)

    def later(self, delay_ms: float, what: Any, *arguments: Any) -> None:
        """Let something happen in the world, unless the story is over."""
        self._later(delay_ms, what, *arguments)

    def run(self) -> None:
        # Policies are known by name; these have to know their world.
        scaling_policy("whim")(type("StoryWhim", (Whim,), {"world": self}))
        scaling_policy("whim-places")(type("StoryWhim", (WhimOfPlaces,), {"world": self}))
        super().run()

    def _plan_faults(self, story_ms: int) -> None:
        super()._plan_faults(story_ms)
        for _ in range(self._loads_left):
            self._later(self._scaling_chance.random() * story_ms, self._change_load)

    def _change_load(self) -> None:
        if self.faulty:
            self.pressure.change()
            self.fault("load", f"{self.pressure.load} workers")

    def _set_clock(self) -> None:
        if not self.is_capped:
            super()._set_clock()

    def _heal(self) -> None:
        if self.is_capped:
            self._whims_until_ms = self.loop.now_ms + WHIMS_AFTER_MS
        super()._heal()

    def _go_on(self) -> None:
        if self.is_capped:
            self.loop.run_until(max(self.loop.now_ms, self._whims_until_ms))
        elif not self.is_whimsical and self._scaling_chance.random() < 0.5:
            self.loop.run_until(self.loop.now_ms + SETTLING_MS)
            self.watch.begin_constant()
            self.loop.run_until(self.loop.now_ms + WATCHED_MS)
            self.watch.end_constant()
        self._come_to_rest()


def run_seed(seed: int, mutant: ElasticMutant | None = None) -> ElasticWorld:
    """Tell one story; raise `ViolationError` if anything in it is not as it must be."""
    world = ElasticWorld(seed, mutant)
    try:
        world.run()
    except Exception as error:
        command = f"python -m tests.simulation.campaign --world elastic --replay {seed} --trace"
        error.add_note(f"replay: {command}")
        raise
    return world
