"""The same unreliable world, with windowed functions whose handlers really run.

Two sources tell events out of order, and watermarks that keep their promise, to a function that
passes them on to windows. They stay, or go once they have told all; or there is one source
without a name, which says goodbye. In some seeds a rolling upgrade has added windows downstream,
of which some owners do not know until it is over. In the end every window must have been told
once, with what a batch computation over all events gives.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import msgspec

from sublet.functions.address import partition_name
from sublet.functions.app import App, Function, functions_of
from sublet.functions.codec import split_column
from sublet.functions.context import Context
from sublet.functions.errors import RetryLaterError
from sublet.functions.retry import Retry
from sublet.functions.state import StateClock, Sum
from sublet.functions.windows import SessionWindow, SlidingWindow, TumblingWindow, WindowSpec
from sublet.runtime.execution.state_cache import StateCache
from sublet.runtime.execution.sync_runner import ExecutionEnv, SyncRunner
from sublet.runtime.partition.model.effects import NoCells
from sublet.runtime.partition.model.environment import (
    Acquisition,
    StateAccess,
    StreamTopology,
)
from sublet.runtime.partition.model.work import RunResult, Work
from sublet.runtime.partition.partition import Partition
from sublet.runtime.partition.records.watermarks import downstream_partitions, expected_sources
from sublet.runtime.protocol.egress import EgressColumns
from sublet.runtime.protocol.frames import Kind
from sublet.runtime.testing.in_process_worker import NoWatchdog
from sublet.statestore.contract import PARKED, WINDOW
from tests.simulation.oracles.verdict import check, now_done
from tests.simulation.worlds.client import Client, ClientChannel, Said
from tests.simulation.worlds.handlers import PARTITIONS_PER_FUNCTION
from tests.simulation.worlds.node import WALL_MS, Node
from tests.simulation.worlds.partition import REST_MS, Mutant, World
from tests.unit.functions.windows_model import Event, batch_results

LONG_AFTER_MS = 10**12
PARSE, TOTAL, ADDED = "sim/parse", "sim/total", "sim/added"


class WindowNode(Node):
    """An owner that runs the functions themselves."""

    def __init__(self, world: WindowWorld, name: str) -> None:
        self.world = world
        self.function = world.functions[name.rpartition("/")[0]]
        self.alive = True
        self.open = {}
        self.view = dict(world.owners)
        self.sources = {}
        self._resends = {}
        self._wake = 0
        self._clock = StateClock()
        recovered = world.acquire(name)
        self._cache = None
        if self.function.state_kind is not None:
            self._cache = StateCache(
                self.function.name,
                self.function.state_kind,
                self._clock,
                complete=recovered.empty,
                bytes_max=lambda: world.chance.choice([0, 10**9]),
            )
        kind = Partition if world.mutant is None else world.mutant.partition
        counts = {each.name: each.partition_count for each in world.functions.values()}
        self.partition = kind(
            self.function,
            Acquisition(
                partition=name,
                recovered=recovered,
                now_ms=world.now_ms,
                wall_ms=int(WALL_MS + world.now_ms + world.swarm.wall_offset_ms()),
            ),
            self.environment(),
            StateAccess(cells=self._cache or NoCells(), merger=self.merger()),
            StreamTopology(
                expected_sources(self.function, counts),
                downstream_partitions(self.function.name, world.functions_of_worker()),
            ),
        )
        self._env = ExecutionEnv(
            name,
            self.function,
            cache=self._cache,
            clock=self._clock,
            routes=world,
            limits=world.limits,
            next_timer=self.partition.timers.next_id,
            monotonic_ms=lambda: world.now_ms,
            clock_ms=self.partition.clock_ms,
            progress=self.partition.progress,
        )

    def _run(self, work: Work) -> None:
        if not self.alive or self.partition.stopped:
            return
        self._clock.now_ms = self.partition.clock_ms(self.world.now_ms)
        result = SyncRunner(NoWatchdog()).run(work, self._env)
        if work.off_loop:
            self.world.soon(self._ran, work, result)
        else:
            self._ran(work, result)

    def _ran(self, work: Work, result: RunResult) -> None:
        if not self.alive or self.partition.stopped:
            return
        if self._cache is not None:
            self._cache.changed({row.key for row in result.rows})
        self.partition.finished(work, result, self.world.now_ms)
        self.carry_out()


class WindowWorld(World):
    order: Any = "key"
    upgrade_share: float = 0.25
    """In how many of the seeds there is a rolling upgrade."""
    whole_share: float = 0.0
    """In how many of the seeds windows cannot be put together from parts."""

    def __init__(self, seed: int, mutant: Mutant | None = None) -> None:
        super().__init__(seed, mutant)
        chance = self.chance
        self.spec: WindowSpec = chance.choice(
            [
                TumblingWindow(50, event_time="at"),
                SlidingWindow(60, 25, event_time="at"),
                SessionWindow(20, event_time="at"),
            ]
        )
        self.failures = chance.choice([0.0, 0.1, 0.3])
        ends = Random(f"ends of sources {seed}")
        self.sources = ends.choice([("left", "right"), ("left", "right"), ()])
        """Their names; without any, the one source is the client itself."""
        self.sources_go = ends.random() < 0.6
        # By itself, so that all other seeds tell the same stories as without.
        self._versions = Random(f"versions of workers {seed}")
        self.is_upgrading = self._versions.random() < self.upgrade_share
        self.windowed = (TOTAL, ADDED) if self.is_upgrading else (TOTAL,)
        whole = Random(f"windows that travel {seed}")
        self.is_whole = whole.random() < self.whole_share
        self.state: Any = Sum()
        if self.is_whole and not self.spec.merges and whole.random() < 0.6:
            self.state = int
        self.functions = self._declare()
        self.told: Any = {}
        self.events_told: list[Event] = []

    def _declare(self) -> dict[str, Function]:
        app = App("sim", partitions=PARTITIONS_PER_FUNCTION)
        retry = Retry(attempts=50, backoff="5ms", backoff_max="20ms")

        @app.function(kind="stateless", upstream=self.sources, retry=retry)
        def parse(ctx: Context, event: Event) -> None:
            self._fail_sometimes()
            for each in self.windowed:
                ctx.send(each, event.key, event)

        def total(ctx: Context, event: Event) -> None:
            if self.state is int:
                ctx.state.set((ctx.state.get() or 0) + event.n)
            else:
                ctx.state.add(event.n)
            self._fail_sometimes()

        def ended(ctx: Context) -> None:
            total = ctx.state.get() if self.state is int else ctx.state.value
            ctx.emit("sums", [ctx.key, *ctx.window, total])
            self._fail_sometimes()

        for each in self.windowed:
            declared = app.function(
                name=each.rpartition("/")[2],
                window=self.spec,
                state=self.state,
                upstream=[parse],
                retry=retry,
                order="key" if self.is_whole else self.order,
            )(total)
            declared.on_close(ended)
        return functions_of([app])

    def functions_of_worker(self) -> list[Function]:
        functions = super().functions_of_worker()
        if self.is_upgrading and self._versions.random() < 0.5:
            functions.remove(self.functions[ADDED])  # It is one of before the upgrade.
        return functions

    def _end_upgrade(self) -> None:
        """Let everything be on new workers from now on."""
        if self.is_upgrading:
            self.is_upgrading = False
            for index in range(PARTITIONS_PER_FUNCTION):
                self.take_over(partition_name(PARSE, index))

    def _fail_sometimes(self) -> None:
        if self.faulty and self.chance.random() < self.failures:
            raise RetryLaterError("not now")

    def new_node(self, name: str) -> Node:
        return WindowNode(self, name)

    def run(self) -> None:
        """Let two sources tell their events through all faults, then compare."""
        chance = self.chance
        for function in self.functions:
            for index in range(PARTITIONS_PER_FUNCTION):
                self.take_over(partition_name(function, index))
        self.clients = [Client(self, f"~{each}") for each in self.sources or ("alone",)]
        rounds = chance.randint(3, 12)
        for client in self.clients:
            self._plan_source(client, rounds)
        faults_ms = rounds * self.pause_ms + 20 * self.slowness + 50
        for _ in range(chance.choice([0, 3, 8, 16])):
            self.after(chance.random() * faults_ms, self._random_takeover)
        for _ in range(chance.choice([0, 2, 8])):
            self.after(chance.random() * faults_ms, self._reset_link)
        self.plan_faults(faults_ms)
        self.swarm.plan(faults_ms)
        self._run_until(self.now_ms + faults_ms)
        self.faulty = False
        self._end_upgrade()
        self._run_until(self.now_ms + REST_MS)
        self._judge()

    def _plan_source(self, client: Client, rounds: int) -> None:
        chance, source = self.chance, client.name[1:] if self.sources else ""
        for number in range(rounds):
            begin_ms, at_ms = 30 * number, number * self.pause_ms
            for _ in range(chance.randint(0, 4)):
                event = Event(
                    chance.choice(self.keys), begin_ms + chance.randrange(120), chance.randint(1, 9)
                )
                self.events_told.append(event)
                said = Said(Kind.SEND, event.key, list(event), "", self.random_deadline_ms())
                self.after(at_ms, client.say, PARSE, said)
            self.after(at_ms, self._tell, client, source, begin_ms + 30)
        end_ms = rounds * self.pause_ms
        self.after(end_ms, self._tell, client, source, LONG_AFTER_MS)
        if self.sources_go and self.sources:
            self.after(end_ms + chance.choice([0, 1, 20]), self._tell, client, source, None)
        elif self.sources_go:
            self.after(end_ms + 1, self._leave, client)

    def _leave(self, client: Client) -> None:
        """Say goodbye once all is taken, as clients do."""
        if any(each.acked < len(each.said) for each in client.channels.values()):
            self.after(1, self._leave, client)
        else:
            self.let_go(client)

    def _tell(self, client: Client, source: str, watermark_ms: int | None) -> None:
        marker: Any = watermark_ms
        for index in range(PARTITIONS_PER_FUNCTION):
            partition = partition_name(PARSE, index)
            channel = client.channels.get(partition)
            if channel is None:
                channel = client.channels[partition] = ClientChannel(client, partition)
            channel.say(Said(Kind.MARKER, source, marker, ""))

    # What has to be true

    def _judge(self) -> None:
        told: dict[str, Counter[Any]] = {each: Counter() for each in self.windowed}
        for name, tables in self.backend.partitions.items():
            check("late" not in tables.egress, "an event was late", name)
            for kind in (PARKED, WINDOW):
                check(not tables.records.get(kind), f"{kind} records are left", name)
            results = told.get(name.rpartition("/")[0])
            if results is None:
                continue
            check(not any(tables.state.values()), "a window was left open", name)
            for entry in now_done(self.store.read_egress("sums", name, 0, 10**6)):
                values = msgspec.msgpack.decode(entry.data, type=EgressColumns).values
                results.update(tuple(msgspec.msgpack.decode(each)) for each in split_column(values))
        expected = Counter(batch_results(self.spec, self.events_told))
        for name, each in told.items():
            check(
                each == expected,
                "results differ from a batch",
                name,
                each - expected,
                expected - each,
            )
