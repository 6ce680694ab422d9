"""A cluster of whole workers and real clients in virtual time, with everything around them unsafe.

One seed decides everything: the functions' options, the limits, which kinds of faults there are
and when they strike. Clients tell their scripts while workers crash, freeze, leave and come, links
are cut and reset, the store is slow, away, or loses its answers, and clocks are set. Then all
heals, the cluster has to come to rest, and the oracle compares what is stored and what clients were
told with what had to happen.

`run_seed(17)` tells one story; `python -m tests.simulation.worlds.cluster.world 17` tells what
happened in it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from random import Random
from typing import Any, ClassVar

from sublet.functions.address import partition_index_of, partition_name
from sublet.functions.errors import (
    SubletError,
    UnavailableError,
    UnknownFunctionError,
    UnknownOutcomeError,
)
from sublet.runtime.client.client import Client
from sublet.runtime.config.limits import Limits
from sublet.runtime.config.settings import WorkerConfig
from sublet.runtime.leases.partial_runs import in_parts
from sublet.runtime.links.link import LinkLimits
from sublet.runtime.observability.tracing import Tracing
from sublet.runtime.protocol.frames import ErrorInfo, Kind
from sublet.runtime.scaling.actuators import Actuator
from sublet.runtime.worker import Worker
from sublet.scheduler.binding.policy import binding_names
from sublet.statestore.contract import Commit, Outcome
from sublet.statestore.memory import MemoryBackend, MemoryStore
from tests.simulation.oracles.cluster import ClusterOracle
from tests.simulation.oracles.cluster_loss import LossOracle
from tests.simulation.oracles.verdict import check
from tests.simulation.worlds.client import Said
from tests.simulation.worlds.cluster.app import (
    PARSE,
    POT,
    STORY_FUNCTIONS,
    NotYetError,
    declare,
    functions,
    random_windows,
)
from tests.simulation.worlds.cluster.links import Network
from tests.simulation.worlds.cluster.loop import ClusterLoop, Process
from tests.simulation.worlds.cluster.loss import (
    BETWEEN_MS_MAX,
    CONNECT_TIMEOUT_MS,
    Between,
    Loss,
    Losses,
    LossyBackend,
)
from tests.simulation.worlds.cluster.releases import Release, Releases
from tests.simulation.worlds.cluster.sides import SideStory, side_stories
from tests.simulation.worlds.cluster.store import (
    News,
    SimulatedDirectory,
    SimulatedStore,
    StoreFaults,
)
from tests.simulation.worlds.cluster.surroundings import StoryClock, surrounded
from tests.simulation.worlds.handlers import Stories
from tests.unit.functions.windows_model import Event

KEYS = ("k0", "k1", "k2", "k3")
HOUR_MS = 3_600_000
WALL_MS = 1_700_000_000_000
REST_MS_MAX = 120_000
LOOK_MS = 250
LONG_AFTER_MS = 10**12
MARKER_RETRY_S = 0.2
ROUNDS_AFTER_LOSS = 2
PARTITIONS_ASKED_MAX = 2 * len(STORY_FUNCTIONS)


class ClusterMutant:
    """A deliberate defect. The oracle has to notice it."""

    replaced: ClassVar[Mapping[str, object]] = {}
    """`module:name` to what stands there instead."""
    is_about_loss: ClassVar[bool] = False
    """Whether only seeds in which data is lost can notice it."""
    store: type[SimulatedStore] = SimulatedStore
    directory: type[SimulatedDirectory] = SimulatedDirectory


class StoryWorker:
    """One worker process."""

    def __init__(
        self, world: ClusterWorld, name: str, release: Release, address: str = "", launch: str = ""
    ) -> None:
        self.world = world
        self.launch = launch
        self.functions = release
        world.oracle.functions_of[name] = release.keys()
        self.process = Process(world.loop, name)
        if address:
            self.process.address = address
        chance = world.fault_chance
        self.clock = StoryClock(world.loop, WALL_MS + world.random_skew_ms(), world.random_rate())
        mutant = world.mutant
        host = self.process.address.partition(":")[0]
        self.worker = Worker(
            release,
            replace(world.config, host=host, allow_remote=True),
            store=mutant.store(
                world.backend,
                world.store_faults,
                partial(world.committed, name),
                partial(world.oracle.acquired, name),
            ),
            directory=world.new_directory(name),
            clock=self.clock,
            tracing=Tracing(),
            launch=launch,
            actuator=world.new_actuator(name),
        )
        self.worker.id = name
        self.stopping = False
        self.ends_silently = chance.random() < 0.3
        self._task = self.process.start(self.worker.run())
        self._task.add_done_callback(self._ended, context=world.loop.world.home)

    @property
    def stays(self) -> bool:
        """Whether it lives, and nobody has told it to leave."""
        return self.process.alive and not self.stopping and not self.worker.is_draining

    def stop(self) -> None:
        """Leave the cluster as one should."""
        self.stopping = True
        self.world.loop.call_soon(self.worker.stop, context=self.process.home)

    def crash(self) -> None:
        self.process.kill()
        self.world.network.process_gone(self.process, silently=self.ends_silently)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self.world.over:
            return
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.world.loop.fail(error)
        is_asked = self.stopping or self.worker.is_drained
        check(is_asked, "a worker has ended by itself", self.process.name)
        self.world.note(f"{self.process.name} has left")
        self.process.kill()
        self.world.network.process_gone(self.process)


class Line:
    """What one client has said to one partition, in order."""

    def __init__(self) -> None:
        self.said: list[Said] = []


class Caller:
    """One client process, with the script that it follows."""

    def __init__(self, world: ClusterWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.process = Process(world.loop, name)
        self.channels: dict[str, Line] = {}
        self.script: list[tuple[int, Callable[[Client], Any], int | None]] = []
        self.done = False
        self.untold = 0
        """Watermarks that are to be told, or told again; but for the last."""
        self.all_told = asyncio.Event()
        self.client: Client | None = None
        self._leave = asyncio.Event()

    def start(self) -> None:
        self.process.start(self._run()).add_done_callback(
            self._ended, context=self.world.loop.world.home
        )

    def leave(self) -> None:
        self.world.loop.call_soon(self._leave.set, context=self.process.home)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not self.world.over and not task.cancelled() and task.exception() is not None:
            error = task.exception()
            assert error is not None
            self.world.loop.fail(error)

    async def _run(self) -> None:
        world, loop = self.world, self.world.loop
        while True:
            client = Client(
                world.addresses,
                connect_timeout=world.connect_timeout_ms,
                overload_retries=1_000_000,
                in_flight_max=world.client_in_flight_max,
                limits=world.link_limits,
            )
            try:
                await client.__aenter__()
                break
            except UnavailableError:
                continue
        self.client = client
        try:
            async with asyncio.TaskGroup() as tasks:
                for at_ms, say, cancel_ms in sorted(self.script, key=lambda each: each[0]):
                    if at_ms > loop.now_ms:
                        await asyncio.sleep((at_ms - loop.now_ms) / 1000)
                    task = tasks.create_task(say(client))
                    if cancel_ms is not None:
                        loop.call_later(cancel_ms / 1000, task.cancel)
            self.done = True
            await self._leave.wait()
        finally:
            await client.__aexit__(None, None, None)

    def is_told_that_nobody_has(
        self,
        client: Client,
        function: str,
        failure: SubletError,
        *,
        deadline_ms: float | None = None,
        since: int | None = None,
    ) -> bool:
        """Tell whether a message was not taken because nobody has its function, which is checked.

        Then nothing may have happened, nor happen later. What has gone to several partitions was
        asked when version `since` was known: it is told when all of them have said something.
        """
        oracle, version = self.world.oracle, client.topology.version
        known = (version if since is None else since, version)
        if isinstance(failure, UnknownFunctionError):
            oracle.told_unknown(function, version)
        elif isinstance(failure, UnavailableError) and "no worker has the function" in str(failure):
            oracle.told_absent(function, known, deadline_ms)
        else:
            return False
        self.world.fault("nobody has it", f"{self.name} is told of {function}")
        return True

    def gave_up(self, failure: SubletError) -> bool:
        """Tell whether a failure is what clients say who cannot wait for ever for what a store
        has lost."""
        told = isinstance(failure, (UnavailableError, UnknownOutcomeError))
        return told and self.world.losses.are_there

    def told(self) -> None:
        """A watermark was told."""
        self.untold -= 1
        if not self.untold:
            self.all_told.set()

    def plan(self, at_ms: int, function: str, said: Said, cancel_ms: int | None) -> None:
        def say(client: Client) -> Any:
            return self.ask(client, function, said)

        self.script.append((at_ms, say, cancel_ms))

    async def say_after_all(self, function: str, said: Said) -> None:
        """Say something when all that was planned is over."""
        while self.client is None:  # noqa: ASYNC110  # The loop is virtual.
            await asyncio.sleep(0.05)
        await self.ask(self.client, function, said)

    async def ask(self, client: Client, function: str, said: Said) -> None:
        """Say something now, and keep what comes of it."""
        world = self.world
        said.said_ms = world.loop.now_ms
        partition = world.partition_of(function, said.key)
        self.channels.setdefault(partition, Line()).said.append(said)
        left_ms = None
        if said.deadline_ms is not None:
            left_ms = said.deadline_ms
            said.deadline_ms += world.loop.now_ms
        value, error = None, None
        ask = client.call if said.kind is Kind.CALL else client.send
        try:
            value = await ask(
                function,
                said.key,
                said.payload,
                deadline=left_ms,
                idempotency_key=said.idempotency_key,
            )
        except SubletError as failure:
            error = ErrorInfo(failure.code, str(failure))
            if self.is_told_that_nobody_has(
                client, function, failure, deadline_ms=said.deadline_ms
            ) or (self.gave_up(failure) and isinstance(failure, UnavailableError)):
                said.untaken = error
        except asyncio.CancelledError:
            said.withdrawn = True
            error = ErrorInfo("cancelled", "")
        world.note(f"{self.name} {function} {said.uid}: {value if error is None else error}")
        said.done_ms = world.loop.now_ms
        if said.kind is Kind.CALL:
            said.answered_ms = world.loop.now_ms
            said.replies.append((value, error))
        else:
            said.taken_error = error  # type: ignore[attr-defined]


@dataclass(slots=True)
class PotSaid:
    """An amount that goes into the pot."""

    key: str
    amount: int
    said_ms: float
    taken_ms: float = inf
    is_unknown: bool = False
    """Its sender was told that nobody knows what has become of it."""


class ClusterWorld:
    pauses_ms: ClassVar[Sequence[int]] = (1, 10, 60)
    """Between two messages, one of these."""

    def __init__(
        self, seed: int, mutant: ClusterMutant | None = None, *, tracing: bool = False
    ) -> None:
        chance = self.chance = Random(f"cluster {seed}")
        self.fault_chance = Random(f"faults {seed}")
        self.mutant = mutant or ClusterMutant()
        self.loop = ClusterLoop(Random(f"turns {seed}"))
        self.story: list[str] | None = [] if tracing else None
        self.over = False
        self.faulty = True
        self.faults: dict[str, int] = {}
        """What went wrong, and how often."""
        self.link_limits = LinkLimits(
            pending_bytes_high=chance.choice([600, 2**20]), pending_bytes_low=200
        )
        self.network = Network(self.loop, Random(f"network {seed}"))
        self.store_faults = StoreFaults(self.loop, Random(f"store {seed}"))
        self.losses = self._new_losses(seed)
        self._between: list[Between] = []
        if self.losses.are_there:
            self.store_faults.late = max(self.store_faults.late, self.losses.late)
        self.connect_timeout_ms = CONNECT_TIMEOUT_MS if self.losses.are_there else HOUR_MS
        self.redis_clock_ms = WALL_MS
        self.failures = chance.choice([0.0, 0.1, 0.3])
        self.spec = random_windows(chance)
        self.functions = functions(declare(chance, self.spec, self._fail_sometimes))
        self.releases = Releases(seed, self.functions)
        self.sides = self._new_sides(seed)
        for side in self.sides:
            self.functions.update(functions(side.declare()))
        self.backend = self._new_backend()
        self.backend.functions.update(self.releases.known_before())
        self.store = MemoryStore(self.backend)
        self.news = News(self.backend, self.loop, Random(f"news {seed}"))
        self.keys = KEYS[: chance.choice([1, 2, 4])]
        self.sources_go = Random(f"ends of sources {seed}").random() < 0.5
        """They say so once they have told all."""
        self.retry_now = chance.choice([0.0, 0.0, 0.3])
        self.impatience = chance.choice([0.0, 0.0, 0.2])
        self.client_in_flight_max = chance.choice([3, 65_536])
        self.skewed = chance.choice([0.0, 0.0, 0.5])
        self.worker_count = chance.randint(2, 5)
        self.config = self._random_config()
        for side in self.sides:
            self.config = side.configure(self.config)
        self.workers: list[StoryWorker] = []
        self.callers: list[Caller] = []
        self.script: list[tuple[Any, str, Said]] = []
        self.pot: dict[str, int] = {}
        self.pot_said: list[PotSaid] = []
        self.events_told: list[Event] = []
        self.oracle = self._new_oracle()
        self.news.on_change = self.oracle.directory_changed
        self._born = 0

    def _new_losses(self, seed: int) -> Losses:
        return Losses(seed)

    def _new_sides(self, seed: int) -> list[SideStory]:
        return side_stories(self, seed)

    def _new_oracle(self) -> ClusterOracle:
        return LossOracle(self) if self.losses.are_there else ClusterOracle(self)

    def replaced(self) -> Mapping[str, object]:
        """Return what stands in workers instead of what they have: `module:name` to that."""
        return {}

    def new_directory(self, worker: str) -> SimulatedDirectory:
        """Return the directory as a new worker reaches it."""
        return self.mutant.directory(self.backend, self.store_faults, self.news)

    def new_actuator(self, worker: str) -> Actuator | None:
        """Return what starts others for a worker; None: nobody does."""
        return None

    def _new_backend(self) -> MemoryBackend:
        if self.losses.are_there:
            return LossyBackend(lambda: self.redis_clock_ms + self.loop.now_ms)
        wanted = [backend for side in self.sides if (backend := side.new_backend()) is not None]
        return wanted[0] if wanted else MemoryBackend()

    def _random_config(self) -> WorkerConfig:
        chance = self.chance
        heartbeat_ms = chance.choice([60, 100, 200])
        return WorkerConfig(
            store="memory",
            lane=False,
            workers_expected=chance.choice([1, self.worker_count]),
            placement_wait_s=0.5,
            heartbeat_ms=heartbeat_ms,
            member_term_ms=heartbeat_ms * chance.choice([5, 10]),
            order=chance.choice(["least-laxity", "least-laxity", "arrival"]),
            patience_ms=chance.choice([20, 10_000]),
            binding=chance.choice(["static", "static", "auto", *binding_names()]),
            lease_term_ms=chance.choice([50, 1_000]),
            # It needs a real thread beside a real loop.
            loop_blocked_ms=0,
            limits=Limits(
                in_flight_max=chance.choice([5, 15_000]),
                queue_max=chance.choice([3, 10_000]),
                batch_size_max=chance.choice([2, 1_000]),
                commit_messages_max=chance.choice([2, 5_000]),
                open_calls_max=chance.choice([1, 2, 1_000]),
                outbox_max=chance.choice([4, 50_000]),
                cache_bytes_max=chance.choice([1_000, 256 * 2**20]),
                client_credit=chance.choice([2, 8_192]),
                link_bytes_max=chance.choice([1_000, 16 * 2**20]),
            ),
        )

    def _fail_sometimes(self) -> None:
        if self.faulty and self.fault_chance.random() < self.failures:
            raise NotYetError

    # What others ask

    def note(self, what: str) -> None:
        if self.story is not None:
            self.story.append(f"{self.loop.now_ms:>7} {what}")

    def fault(self, kind: str, what: str = "") -> None:
        self.faults[kind] = self.faults.get(kind, 0) + 1
        self.note(f"*** {kind} {what}")

    def addresses(self) -> list[str]:
        return [each.process.address for each in self.workers if each.process.alive]

    def partition_of(self, function: str, key: str) -> str:
        count = self.functions[function].partition_count
        return partition_name(function, partition_index_of(key, count))

    def committed(self, worker: str, commit: Commit, outcome: Outcome) -> None:
        self.note(f"commit {commit.partition} {commit.epoch}.{commit.index}: {outcome.value}")
        self.oracle.committed_by(worker, commit)
        if outcome is Outcome.DONE:
            self.oracle.written(worker, commit)
            for between in self._between:
                between.committed(worker, commit)
        if outcome is Outcome.DONE and commit.partition.rpartition("/")[0] in STORY_FUNCTIONS:
            self.oracle.committed(commit)

    def random_skew_ms(self) -> int:
        chance = self.fault_chance
        if chance.random() >= self.skewed:
            return 0
        return chance.choice([-HOUR_MS, -500, 500, HOUR_MS])

    def random_rate(self) -> float:
        chance = self.fault_chance
        return chance.choice([0.5, 1.0, 1.5]) if chance.random() < self.skewed else 1.0

    # The story

    def run(self) -> None:
        """Let everything happen, then compare."""
        replaced = {**self.oracle.observers(), **self.replaced()}
        for side in self.sides:
            replaced.update(side.replaced())
        replaced.update(self.mutant.replaced)
        with surrounded(self.network, Random(self.chance.random()), replaced):
            try:
                self._play()
            finally:
                self._end()

    def _play(self) -> None:
        chance, loop = self.chance, self.loop
        if self.releases.are_different:
            self.fault("different functions", self._told_releases())
        for _ in range(self.worker_count):
            delay_s = chance.choice([0, 5, 300]) / 1000
            release = self.releases.at_first()
            loop.call_later(delay_s, self.add_worker, release, context=loop.world.home)
        story_ms = self._plan_script()
        for side in self.sides:
            self.note(f"beside it: {side.name}")
            side.plan(story_ms)
        for caller in self.callers:
            caller.start()
        self._plan_faults(story_ms)
        for loss in self.losses.plan(story_ms, may_forget=not self.releases.are_different):
            self._plan_loss(loss)
        loop.run_until(loop.now_ms + story_ms)
        self._heal()
        loop.run_until(loop.now_ms + 1_000)
        self._come_to_rest()
        self._go_on()
        self.oracle.judge()
        for side in self.sides:
            side.judge()
        for caller in self.callers:
            caller.leave()
        loop.run_until(loop.now_ms + 3_000)

    def _come_to_rest(self) -> None:
        until_ms = self.loop.now_ms + REST_MS_MAX
        while self.loop.now_ms < until_ms and self.oracle.unrest():
            self.loop.run_until(self.loop.now_ms + LOOK_MS)

    def _go_on(self) -> None:
        """Let happen what is to happen when all is well again."""
        if self.losses.are_there:
            self._ask_everybody_again()

    def _end(self) -> None:
        self.over = True
        self.network.heal()
        self.store_faults.heal()
        others = [process for side in self.sides for process in side.processes()]
        self.loop.end([*self._processes(self.workers), *others])
        # It knows functions whose handlers know this world, with all its tasks.
        in_parts.cache_clear()
        for side in self.sides:
            side.end()

    def _told_releases(self) -> str:
        former, other = self.releases.former, self.releases.next
        return f"{', '.join(sorted(former))} | {', '.join(sorted(other))}"

    def add_worker(self, release: Release, address: str = "", launch: str = "") -> StoryWorker:
        self._born += 1
        worker = StoryWorker(self, f"w{self._born}", release, address, launch)
        has = f" with {', '.join(sorted(release))}" if self.releases.are_different else ""
        self.note(f"{worker.process.name} starts{has}")
        self.workers.append(worker)
        return worker

    # What clients say

    def _plan_script(self) -> int:
        chance = self.chance
        self.callers = [Caller(self, f"c{number}") for number in range(chance.randint(1, 3))]
        count = chance.randint(10, 50)
        pause_ms = chance.choice(self.pauses_ms)
        begin_ms = chance.choice([0, 700])
        for number in range(count):
            self._plan_message(number, begin_ms + number * pause_ms)
        story_ms = begin_ms + count * pause_ms
        for number in range(chance.choice([0, 10, 30])):
            self._plan_pot(number, begin_ms + int(chance.random() * story_ms))
        if chance.random() < 0.4:
            rounds = chance.randint(3, 8)
            for source in ("left", "right"):
                self._plan_source(source, rounds, begin_ms, story_ms // rounds + 1)
        return story_ms + chance.choice([100, 1_500])

    def _plan_message(self, number: int, at_ms: int) -> None:
        chance = self.chance
        caller = chance.choice(self.callers)
        function = chance.choice(STORY_FUNCTIONS)
        key = chance.choice(self.keys)
        uid = f"{caller.name}.{number}"
        payload = self._random_payload(uid, function, key)
        kind = chance.choice([Kind.CALL, Kind.CALL, Kind.SEND])
        if payload[0] == "look":
            kind = Kind.CALL
        repeatable = payload[0] not in ("cancel", "look") and (
            self.functions[function].kind != "stateless"
        )
        repeated = repeatable and chance.random() < 0.2
        self._plan(caller, function, Said(kind, key, payload, uid if repeated else ""), at_ms)
        if repeated:
            again = Said(kind, key, payload, uid)
            other = chance.choice(self.callers)
            self._plan(other, function, again, at_ms + chance.randrange(300))

    def _plan(self, caller: Caller, function: str, said: Said, at_ms: int) -> None:
        chance = self.chance
        cancel_ms = None
        if said.kind is Kind.CALL:
            if chance.random() < self.retry_now:
                said.deadline_ms = chance.choice([5, 40, 200, 1_000])
            if chance.random() < self.impatience:
                cancel_ms = chance.choice([0, 5, 50, 500])
        self.script.append((caller, function, said))
        caller.plan(at_ms, function, said, cancel_ms)

    def _random_payload(self, uid: str, function: str, key: str) -> list[Any]:
        kept = [
            said.uid
            for _, where, said in self.script
            if where == function and said.key == key and said.payload[-1] == "keep"
        ]
        stories = Stories(
            self.keys,
            delays_ms=[0, 5, 50, 900, 3_000, 31_000],
            timeouts_ms=[0, 0, 0, 30, 500],
            looks=True,
        )
        return stories.payload(self.chance, uid, function, kept)

    def _plan_pot(self, number: int, at_ms: int) -> None:
        chance = self.chance
        key, amount = chance.choice(self.keys), chance.randint(1, 1_000)
        self.pot[key] = self.pot.get(key, 0) + amount
        caller = chance.choice(self.callers)

        async def say(client: Client) -> None:
            ask = client.call if number % 2 else client.send
            said = PotSaid(key, amount, self.loop.now_ms)
            self.pot_said.append(said)
            try:
                await ask(POT, key, amount)
                said.taken_ms = self.loop.now_ms
            except SubletError as failure:
                if not caller.is_told_that_nobody_has(client, POT, failure):
                    if not caller.gave_up(failure):
                        raise
                    said.is_unknown = isinstance(failure, UnknownOutcomeError)
                self.pot[key] -= amount
            self.note(f"{caller.name} pot {key} +{amount}")

        caller.script.append((at_ms, say, None))

    def _plan_source(self, source: str, rounds: int, begin_ms: int, pause_ms: int) -> None:
        chance = self.chance
        caller = Caller(self, source)
        self.callers.append(caller)
        for number in range(rounds):
            at_ms, event_ms = begin_ms + number * pause_ms, 30 * number
            for _ in range(chance.randint(0, 3)):
                event = Event(
                    chance.choice(self.keys), event_ms + chance.randrange(120), chance.randint(1, 9)
                )
                self.events_told.append(event)
                caller.script.append((at_ms, self._event_sender(caller, event), None))
            caller.script.append((at_ms, self._marker(caller, event_ms + 30), None))
        end_ms = begin_ms + rounds * pause_ms
        caller.script.append((end_ms, self._last_marker(caller), None))

    def _event_sender(self, caller: Caller, event: Event) -> Callable[[Client], Any]:
        async def say(client: Client) -> None:
            try:
                await client.send(PARSE, event.key, event)
            except SubletError as failure:
                is_told = caller.is_told_that_nobody_has(client, PARSE, failure)
                if not is_told and not caller.gave_up(failure):
                    raise
                # Sent again, it could come behind a watermark that does without it.
                self.events_told.remove(event)

        return say

    def _marker(self, caller: Caller, watermark_ms: int) -> Callable[[Client], Any]:
        caller.untold += 1

        async def say(client: Client) -> None:
            await self._tell(caller, client, watermark_ms)
            caller.told()

        return say

    def _last_marker(self, caller: Caller) -> Callable[[Client], Any]:
        async def say(client: Client) -> None:
            await self._tell(caller, client, LONG_AFTER_MS)
            if self.sources_go:
                # What is told again must not come behind the word that there is no more.
                await caller.all_told.wait()
                await self._tell(caller, client, None)

        return say

    async def _tell(self, caller: Caller, client: Client, watermark_ms: int | None) -> None:
        while True:
            since = client.topology.version
            try:
                await client.watermark(self.functions[PARSE], watermark_ms, source=caller.name)
                return
            except SubletError as failure:
                is_told = caller.is_told_that_nobody_has(client, PARSE, failure, since=since)
                if not is_told and not caller.gave_up(failure):
                    raise
            await asyncio.sleep(MARKER_RETRY_S)

    def _ask_everybody_again(self) -> None:
        """When all is well again, everybody is served: those who were there and those who come."""
        newcomer = Caller(self, "newcomer")
        self.callers.append(newcomer)
        newcomer.start()
        for round_ in range(ROUNDS_AFTER_LOSS):
            # One after another, if few may be under way.
            until_ms = self.loop.now_ms + PARTITIONS_ASKED_MAX * CONNECT_TIMEOUT_MS
            asked: list[Said] = []
            for caller in self.callers:
                for function in STORY_FUNCTIONS:
                    for key in self.keys:
                        uid = f"{caller.name}.after.{round_}.{function}.{key}"
                        said = Said(Kind.CALL, key, ["add", uid, 1], "")
                        asked.append(said)
                        self.script.append((caller, function, said))
                        caller.process.start(caller.say_after_all(function, said))
            while self.loop.now_ms < until_ms and not all(each.replies for each in asked):
                self.loop.run_until(self.loop.now_ms + LOOK_MS)
            assert isinstance(self.oracle, LossOracle)
            self.oracle.answered_after_all(asked, may_be_unknown=not round_)
        self._come_to_rest()

    # What goes wrong

    def _plan_faults(self, story_ms: int) -> None:
        chance = self.fault_chance
        calm = chance.random() < 0.1

        def some(*counts: int) -> int:
            count = chance.choice([0, 0, *counts])
            return 0 if calm else count

        kinds: list[tuple[Callable[[], None], int]] = [
            (self._crash, some(1, 3, 6)),
            (self._freeze, some(1, 3, 6)),
            (self._leave, some(1, 2)),
            (self.join, some(1, 2)),
            (self.reset_link, some(3, 10)),
            (self._cut_link, some(1, 4)),
            (self._store_away, some(1, 3)),
            (self._cut_from_store, some(1, 3)),
            (self._set_clock, some(1, 4)),
            (self._refuse_links, some(1, 2)),
        ]
        if any(side.is_quiet for side in self.sides):
            self.store_faults.heal()
            kinds = [(self._leave, chance.randint(1, 3)), (self.join, chance.randint(1, 3))]
        if calm:
            self.store_faults.heal()
        for what, count in kinds:
            for _ in range(count):
                at_s = chance.random() * story_ms / 1000
                self.loop.call_later(at_s, what, context=self.loop.world.home)

    def _plan_loss(self, loss: Loss) -> None:
        restore: list[Callable[[], None]] = []
        kept_ms = [loss.kept_ms]

        def keep() -> None:
            assert isinstance(self.backend, LossyBackend)
            assert isinstance(self.oracle, LossOracle)
            restore[:] = [self.backend.copy(), self.oracle.copy()]
            if self.losses.are_between:
                kept_ms[0] = self.loop.now_ms

        def lose() -> None:
            if not self.faulty:
                return
            self.fault("loss", f"of all since {loss.kept_ms}, clock by {loss.clock_ms}")
            for each in restore:
                each()
            self.redis_clock_ms += loss.clock_ms
            self.news.went_back()
            self.losses.happened.append((kept_ms[0], self.loop.now_ms))
            if loss.beside == "crash":
                self._crash()
            elif loss.beside == "freeze":
                self._freeze()

        def stop() -> None:
            until_ms = self.loop.now_ms + loss.away_ms
            self.store_faults.away_until_ms = max(self.store_faults.away_until_ms, until_ms)

        if loss.kept_ms:
            self._later(loss.kept_ms, keep)
        else:
            keep()
        if self.losses.are_between:
            self._later(loss.at_ms, self._lose_between, keep, lose)
            return
        if loss.away_ms:
            self._later(loss.at_ms - loss.away_ms, stop)
        self._later(loss.at_ms, lose)

    def _lose_between(self, keep: Callable[[], None], lose: Callable[[], None]) -> None:
        """Go back to when the next message was sent, once it is taken and nobody knows that."""

        def process_of(worker: str) -> Process | None:
            return next(
                (each.process for each in self.living() if each.process.name == worker), None
            )

        def sent(sender: str, receiver: str) -> None:
            keep()
            ends = process_of(receiver), process_of(sender)
            if ends[0] is not None and ends[1] is not None:
                self.network.cut(ends[0], ends[1], BETWEEN_MS_MAX, both=False)

        def taken(sender: str, receiver: str) -> None:
            self._later(1, lose)
            ends = process_of(receiver), process_of(sender)
            if ends[0] is not None and ends[1] is not None:
                self._later(2, self.network.lose_all, *ends)

        between = Between(self.oracle.writer_of, sent, taken)
        self._between.append(between)
        # Not every story gets there: then it loses what any other would.
        self._later(BETWEEN_MS_MAX, lambda: None if between.ends() else lose())

    def _later(self, delay_ms: float, what: Callable[..., None], *arguments: Any) -> None:
        self.loop.call_later(delay_ms / 1000, what, *arguments, context=self.loop.world.home)

    def living(self) -> list[StoryWorker]:
        return [each for each in self.workers if each.stays]

    def _processes(self, workers: Sequence[StoryWorker]) -> list[Process]:
        """Return those of some workers, and of all clients."""
        return [*(each.process for each in workers), *(each.process for each in self.callers)]

    def _some_worker(self) -> StoryWorker | None:
        living = self.living()
        return self.fault_chance.choice(living) if living and self.faulty else None

    def _crash(self) -> None:
        worker, chance = self._some_worker(), self.fault_chance
        if worker is not None:
            self.fault("crash", worker.process.name)
            worker.crash()
            if chance.random() < 0.8:
                again = chance.random() < 0.5
                address = worker.process.address if again else ""
                release = self.releases.after(worker.functions)
                after_ms = chance.choice([10, 300, 2_000])
                self._later(after_ms, self._restart, release, address, worker.launch)

    def _restart(self, release: Release, address: str, launch: str) -> None:
        if self.faulty:
            self.add_worker(release, address, launch)

    def _freeze(self) -> None:
        worker, chance = self._some_worker(), self.fault_chance
        if worker is not None and not worker.process.frozen:
            term_ms = self.config.member_term_ms
            pause_ms = chance.choice([50, term_ms // 2, term_ms + 100, 3 * term_ms])
            self.fault("freeze", f"{worker.process.name} for {pause_ms}")
            worker.process.freeze()
            self._later(pause_ms, self._thaw, worker)

    def _thaw(self, worker: StoryWorker) -> None:
        if worker.process.frozen:
            self.note(f"{worker.process.name} goes on")
            worker.process.thaw()

    def _leave(self) -> None:
        worker = self._some_worker()
        if worker is not None and len(self.living()) > 1:
            self.fault("leave", worker.process.name)
            worker.stop()

    def join(self) -> None:
        if self.faulty:
            self.fault("join")
            self.add_worker(self.releases.later())

    def reset_link(self) -> None:
        if self.faulty:
            self.fault("reset")
            self.network.reset_some()

    def _cut_link(self) -> None:
        chance = self.fault_chance
        processes = self._processes(self.living())
        if self.faulty and len(processes) > 1:
            one, other = chance.sample(processes, 2)
            duration_ms, both = chance.choice([100, 1_000, 7_000]), chance.random() < 0.5
            self.fault("cut", f"{one.name} to {other.name} for {duration_ms} both={both}")
            self.network.cut(one, other, duration_ms, both=both)

    def _store_away(self) -> None:
        if self.faulty:
            duration_ms = self.fault_chance.choice([20, 300, 2_500])
            self.fault("store away", f"for {duration_ms}")
            self.store_faults.away_until_ms = self.loop.now_ms + duration_ms

    def _cut_from_store(self) -> None:
        worker = self._some_worker()
        if worker is not None:
            duration_ms = self.fault_chance.choice([100, 1_000, 4_000])
            self.fault("cut from store", f"{worker.process.name} for {duration_ms}")
            self.store_faults.cut_off[worker.process] = self.loop.now_ms + duration_ms

    def _set_clock(self) -> None:
        worker = self._some_worker()
        if worker is not None:
            jump_ms = self.fault_chance.choice([-HOUR_MS, -700, 700, HOUR_MS])
            self.fault("clock", f"{worker.process.name} by {jump_ms}")
            worker.clock.wall_offset_ms += jump_ms

    def _refuse_links(self) -> None:
        if self.faulty:
            self.fault("refusals")
            self.network.refusals = self.fault_chance.choice([0.3, 1.0])
            self._later(self.fault_chance.choice([100, 1_000]), self._accept_links)

    def _accept_links(self) -> None:
        self.network.refusals = 0.0

    def _heal(self) -> None:
        self.note("*** all heals")
        self.faulty = False
        self.network.heal()
        self.store_faults.heal()
        for worker in self.workers:
            if worker.process.frozen and worker.process.alive:
                self._thaw(worker)
        if self.releases.back_after_ms and self.living():
            self._later(self.releases.back_after_ms, self._complete)
        else:
            self._complete()

    def _complete(self) -> None:
        """Let each function be somewhere from now on."""
        while release := self.releases.missing(each.functions for each in self.living()):
            self.add_worker(release)


def run_seed(seed: int, mutant: ClusterMutant | None = None) -> ClusterWorld:
    """Tell one story; raise `ViolationError` if anything in it is not as it must be."""
    world = ClusterWorld(seed, mutant)
    try:
        world.run()
    except Exception as error:
        error.add_note(f"replay: python -m tests.simulation.worlds.cluster.world {seed}")
        raise
    return world


def main(arguments: list[str]) -> None:
    """Tell one story, step by step."""
    world = ClusterWorld(int(arguments[0]), tracing=True)
    assert world.story is not None
    try:
        world.run()
    finally:
        sys.stdout.write("\n".join(world.story) + "\n")
    sys.stdout.write(f"{world.loop.turn_count} turns, trace {world.loop.trace:08x}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
