"""A cluster of real partitions on a virtual clock, with everything around them made unreliable.

One seed decides everything: when what happens, what is lost, who dies. `World.run` lets clients
send their scripts while partitions are taken over, links reset and commits go astray; then it
heals, waits until nothing moves, and lets the oracle compare what is stored with what had to
happen.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import Any

import msgspec

from sublet.functions.address import is_client, partition_index_of, partition_name
from sublet.functions.app import Function
from sublet.runtime.client.pipeline_protocol import PipelineDriver
from sublet.runtime.config.limits import Limits
from sublet.runtime.partition.model.worker_backlog import WorkerBacklog
from sublet.runtime.partition.partition import Partition
from sublet.runtime.protocol.frames import Ack, Batch, Kind, Refused
from sublet.scheduler.laxity_queue import LaxityQueue
from sublet.scheduler.live_traffic import LiveTraffic
from sublet.scheduler.orders import LeastLaxity
from sublet.scheduler.urgency import Urgency
from sublet.statestore.contract import AHEAD, SILENT, Commit, Outcome, Recovered
from sublet.statestore.memory import MemoryBackend, MemoryStore
from tests.simulation.oracles.partition import Oracle
from tests.simulation.oracles.verdict import check, now_done
from tests.simulation.worlds.client import Client, Said
from tests.simulation.worlds.handlers import (
    PARTITIONS_PER_FUNCTION,
    RandomPace,
    Stories,
    TenMs,
    make_functions,
)
from tests.simulation.worlds.node import Node
from tests.simulation.worlds.repeats import Asking, draw_askings
from tests.simulation.worlds.swarm import Swarm

KEYS = ("k0", "k1", "k2", "k3")
REST_MS = 250_000.0
HOUSEKEEPING_LOOKS = 10
HOUSEKEEPING_LOOK_MS = 100
EVENTS_MAX = 60_000


class Mutant:
    """A deliberate defect. The oracle has to notice it."""

    partition: type[Partition] = Partition
    driver: type[PipelineDriver] = PipelineDriver
    """Of pipelines, where there are any."""

    def recovered(self, recovered: Recovered) -> None:
        """Change what a new owner is told."""

    def commit(self, commit: Commit) -> Commit:
        """Change what reaches the store."""
        return commit

    def apply(self, world: World, commit: Commit) -> Outcome:
        """Be the store."""
        return now_done(world.store.commit([commit]))[0]

    fences = True
    checks_early = False
    """Whether the epoch is compared when a commit leaves, not where it is written."""
    reads_early = False
    """Whether a new owner reads before the former one is fenced."""


class World:
    repeats_share = 0.25
    """How many of the seeds have requests that conflict with others under one idempotency key."""

    def __init__(self, seed: int, mutant: Mutant | None = None) -> None:
        chance = self.chance = random.Random(seed)
        # By itself, so that the other choices of a seed stay what they were.
        self.cut_chance = random.Random(seed)
        self.cuts = self.cut_chance.choice([0.0, 0.0, 0.3])
        """How often a run ends between two messages."""
        self.prefetch_keys_max = self.cut_chance.choice([0, 1, 3, 1_000])
        self.mutant = mutant
        self.now_ms = 1_000.0
        self.events = 0
        self.faulty = True
        self.commit_loss = chance.choice([0.0, 0.1, 0.4])
        self.slowness = chance.choice([0.5, 2.0, 20.0])
        self.hangs = chance.choice([0.0, 0.0, 0.3])
        self.timers_loaded_max = chance.choice([2, 1_000])
        self.functions = make_functions(chance)
        self.keys = KEYS[: chance.choice([1, 2, 4])]
        self.pause_ms = chance.choice([0.0, 1.0, 8.0])
        self.pace = RandomPace(chance)
        # Those whose messages have deadlines: what is urgent overtakes, what is late may expire.
        self.retry_now = chance.choice([0.0, 0.3, 0.8])
        self.impatience = chance.choice([0.0, 0.0, 0.3])
        """How many requests their callers take back."""
        self.urgency = Urgency(LeastLaxity() if chance.random() < 0.7 else None, TenMs())
        self.live = LiveTraffic()
        self.backlog: WorkerBacklog = LaxityQueue()
        self.limits = Limits(
            queue_max=chance.choice([3, 10_000]),
            commit_messages_max=chance.choice([2, 5_000]),
            open_calls_max=chance.choice([1, 2, 1_000]),
            outbox_max=chance.choice([4, 50_000]),
        )
        self.swarm = self.new_swarm(seed)
        self.faults: Counter[str] = Counter()
        """How often what went wrong."""
        self.messages = 0
        """How many were sent, each time that they were."""
        self.trace: Callable[[float, Callable[..., None], tuple[Any, ...]], None] | None = None
        """Who wants to be told of each event."""
        self.early: dict[str, Recovered] = {}
        self.backend = MemoryBackend()
        self.store = MemoryStore(self.backend)
        self.commits: dict[tuple[str, int, int], bytes] = {}
        self.oracle = Oracle(self)
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._links: dict[tuple[str, str], float] = {}
        self._in_flight: dict[tuple[str, str], list[list[Any]]] = {}
        self.owners: dict[str, Node] = {}
        self.nodes: list[Node] = []
        self.clients: list[Client] = []
        self.deserter: Client | None = None
        self.told: dict[str, Node] = {}
        """Who owned the partitions when the deserter left."""
        self.script: list[tuple[Client, str, Said]] = []
        # A name that leaves the seeds of all `FINDINGS` as they were.
        self.repeats_chance = random.Random(f"one-key {seed}")
        self.repeats: list[Asking] = []

    def new_swarm(self, seed: int) -> Swarm:
        return Swarm(self, seed)

    # Time

    def after(self, delay_ms: float, what: Callable[..., None], *arguments: Any) -> None:
        self._number += 1
        heappush(self._heap, (self.now_ms + delay_ms, self._number, what, arguments))

    def soon(self, what: Callable[..., None], *arguments: Any) -> None:
        self.after(self.chance.random() * self.slowness, what, *arguments)

    def _run_until(self, until_ms: float) -> None:
        while self._heap and self._heap[0][0] <= until_ms:
            self.events += 1
            check(self.events < EVENTS_MAX, "the world does not come to rest")
            at_ms, _, what, arguments = heappop(self._heap)
            self.now_ms = max(self.now_ms, at_ms)
            if self.trace is not None:
                self.trace(self.now_ms, what, arguments)
            self.happens(what, arguments)
        self.now_ms = until_ms

    def happens(self, what: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if not self.swarm.holds(what, arguments):
            what(*arguments)

    def fault(self, kind: str) -> None:
        self.faults[kind] += 1

    # Places

    def partition_of(self, function: str, key: str) -> str:
        return partition_name(function, partition_index_of(key, PARTITIONS_PER_FUNCTION))

    # Network: links lose nothing and keep order, until they are reset

    def send(
        self,
        sender: Node | Client,
        endpoint: str,
        frame: Batch | Ack | Refused,
        to: Node | Client | None = None,
    ) -> None:
        source = sender.name if isinstance(sender, Client) else sender.partition.name
        if isinstance(sender, Client) and sender.gone:
            return
        link = (source, endpoint)
        if isinstance(frame, Batch):
            self.messages += frame.count
        at_ms = self.now_ms + self.chance.random() * self.slowness
        at_ms = self._links[link] = max(self._links.get(link, 0.0), at_ms)
        receiver = to or sender.view.get(endpoint)
        if receiver is None:
            receiver = next((each for each in self.clients if each.name == endpoint), None)
        carried = [receiver, frame, sender]
        in_flight = self._in_flight.setdefault(link, [])
        if self.swarm.loses(link, frame):
            return
        in_flight.append(carried)
        self.after(at_ms - self.now_ms, self._arrive, link, carried)
        copy_delay_ms = self.swarm.copy_delay_ms()
        if copy_delay_ms is not None:
            self.after(at_ms - self.now_ms + copy_delay_ms, self._arrive, link, list(carried))

    def _arrive(self, link: tuple[str, str], carried: list[Any]) -> None:
        if self.swarm.clogs_up(link, carried):
            return
        in_flight = self._in_flight[link]
        in_flight[:] = [each for each in in_flight if each is not carried]
        receiver, frame, sender = carried
        if any(isinstance(end, Client) and end.gone for end in (receiver, sender)):
            return  # Its goodbye came after everything that it has sent.
        if frame is not None and receiver is not None:
            if isinstance(receiver, Node) and not receiver.alive:
                return
            receiver.receive(frame, sender)

    def _reset_link(self) -> None:
        """Lose some of what is under way on a link, delay the rest; then both ends notice."""
        one, other = self.chance.choice(self.links() or [("", "")])
        self.fault("reset link")
        for link in ((one, other), (other, one)):
            for carried in self._in_flight.pop(link, []):
                if self.chance.random() < 0.4:
                    self.fault("late frame")
                    self.after(self.chance.random() * 60, self._arrive, link, list(carried))
                else:
                    self.fault("lost frame")
                carried[1] = None
            self._in_flight[link] = []
        self.link_noticed((one, other))

    def links(self) -> list[tuple[str, str]]:
        return sorted(self._in_flight)

    def link_noticed(self, link: tuple[str, str]) -> None:
        """Tell both ends that something on a link may be lost."""
        one, other = link
        for end, peer in ((one, other), (other, one)):
            for each in self._ends(end):
                self.soon(each.reachable, peer)

    def _ends(self, endpoint: str) -> list[Node | Client]:
        return [
            *(each for each in self.clients if each.name == endpoint),
            *(each for each in self.nodes if each.alive and each.partition.name == endpoint),
        ]

    # Owners

    def take_over(self, name: str, *, crash: bool = True) -> None:
        former = self.owners.get(name)
        if former is not None:
            self.fault("crash" if crash else "takeover from the living")
            if crash:
                former.alive = False
        node = self.owners[name] = self.new_node(name)
        node.view[name] = node
        self.nodes.append(node)
        everybody: list[Node | Client] = [*self.clients, *self.nodes]
        for each in everybody:
            if each.view.get(name) is not node:
                self.after(self.chance.random() * 50, self._learn, each, name)
        node.start()

    def new_node(self, name: str) -> Node:
        """Return the next owner of a partition."""
        return Node(self, name)

    def functions_of_worker(self) -> list[Function]:
        """Return those that the worker of the next owner has."""
        return list(self.functions.values())

    def take_over_from(self, node: Node) -> None:
        """Let an owner die and another one come, unless that has happened."""
        if self.owners[node.partition.name] is node:
            self.take_over(node.partition.name)

    def crash_owner(self, node: Node) -> None:
        """Let the process die that has this owner; others go on with what it owned."""
        self.take_over_from(node)

    def stop_node(self, node: Node) -> None:
        """Let an owner give its partition up."""
        node.partition.stop(Outcome.FENCED)
        node.carry_out()

    def _learn(self, who: Node | Client, name: str) -> None:
        who.view[name] = self.owners[name]
        who.reachable(name)

    def _random_takeover(self) -> None:
        name = self.chance.choice(sorted(self.owners))
        crash = self.chance.random() < 0.5
        if self.mutant is not None and self.mutant.reads_early:
            self.early[name] = self.backend.partitions[name].recovered()
            self.after(self.chance.random() * 5, partial(self.take_over, name, crash=crash))
        else:
            self.take_over(name, crash=crash)

    # The store

    def acquire(self, name: str) -> Recovered:
        recovered = now_done(self.store.acquire(name, "worker"))
        early = self.early.pop(name, None)
        if early is not None:
            early.epoch, early.index = recovered.epoch, recovered.index
            recovered = early
        if self.mutant is not None:
            self.mutant.recovered(recovered)
        return recovered

    def store_soon(self, what: Callable[..., None], *arguments: Any) -> None:
        """Let the store do something, as slow as it is."""
        self.after(self.chance.random() * self.slowness + self.swarm.delay_ms(), what, *arguments)

    def epoch_of(self, partition: str) -> int:
        return self.backend.partitions[partition].epoch

    def apply(self, commit: Commit) -> Outcome:
        mutant = self.mutant or Mutant()
        commit = mutant.commit(commit)
        if not mutant.fences:
            commit = msgspec.structs.replace(commit, epoch=self.epoch_of(commit.partition))
        outcome = mutant.apply(self, commit)
        if outcome is Outcome.DONE:
            self.oracle.committed(commit)
        return outcome

    # The story

    def run(self) -> None:
        """Let everything happen, then compare."""
        chance = self.chance
        for function in self.functions:
            for index in range(PARTITIONS_PER_FUNCTION):
                self.take_over(partition_name(function, index))
        self.clients = [Client(self, f"~c{number}") for number in range(chance.randint(1, 3))]
        count = chance.randint(10, 60)
        for number in range(count):
            self._plan_message(number)
        faults_ms = count * self.pause_ms + 20 * self.slowness + 50
        if self.repeats_chance.random() < self.repeats_share:
            self._plan_repeats(faults_ms)
        if chance.random() < 0.3:
            self._plan_deserter(faults_ms)
        for _ in range(chance.choice([0, 3, 8, 16])):
            self.after(chance.random() * faults_ms, self._random_takeover)
        for _ in range(chance.choice([0, 2, 8])):
            self.after(chance.random() * faults_ms, self._reset_link)
        self.plan_faults(faults_ms)
        self.swarm.plan(faults_ms)
        self._run_until(self.now_ms + faults_ms)
        self.faulty = False
        self._run_until(self.now_ms + REST_MS)
        # Even then somebody may just be noting who has been silent.
        for _ in range(HOUSEKEEPING_LOOKS):
            if all(node.partition.idle for node in self.owners.values()):
                break
            self._run_until(self.now_ms + HOUSEKEEPING_LOOK_MS)
        self.oracle.judge()
        self._say_goodbye()

    def plan_faults(self, faults_ms: float) -> None:
        """Let more go wrong until then."""

    def pause(self) -> None:
        """Let somebody stop for long, and then go on."""
        self.swarm.pause_node()

    def interprets(self, function: str) -> bool:
        """Tell whether a function's messages are interpreted by nodes."""
        return True

    def stamp(self) -> float:
        """Return what no run of a handler has a second time."""
        return 0.0

    def random_deadline_ms(self) -> float | None:
        chance = self.chance
        if chance.random() >= self.retry_now:
            return None
        return self.now_ms + chance.choice([1, 10, 40, 200, 1_000, 5_000]) * (1 + chance.random())

    def targets(self) -> list[str]:
        """Return the functions that clients send to."""
        return sorted(self.functions)

    def _plan_message(self, number: int) -> None:
        chance = self.chance
        client = chance.choice(self.clients)
        function = chance.choice(self.targets())
        key = chance.choice(self.keys)
        uid = f"{client.name}.{number}"
        payload = self._random_payload(uid, function, key)
        kind = chance.choice([Kind.CALL, Kind.SEND])
        repeated = payload[0] != "cancel" and chance.random() < 0.25
        if self.swarm.chance.random() < self.swarm.looks and self.interprets(function):
            kind, payload, repeated = Kind.CALL, ["look", uid], False
        said = Said(kind, key, payload, uid if repeated else "", self.random_deadline_ms())
        at_ms = number * self.pause_ms
        self._plan(client, function, said, at_ms)
        if repeated:
            again = Said(kind, key, payload, uid, self.random_deadline_ms())
            other = chance.choice(self.clients)
            self._plan(other, function, again, at_ms + chance.random() * 100)

    def _plan(self, client: Client, function: str, said: Said, at_ms: float) -> None:
        self.script.append((client, function, said))
        self.after(at_ms, client.say, function, said)
        if self.chance.random() < self.impatience:
            for _ in range(self.chance.choice([1, 1, 2])):
                after_ms = at_ms + self.chance.random() * self.chance.choice([1, 10, 100])
                self.after(after_ms, client.withdraw, function, said)

    def _plan_repeats(self, faults_ms: float) -> None:
        """Let some ask for different things under one idempotency key."""
        chance = self.repeats_chance
        functions = [each for each in self.targets() if self.interprets(each)]
        used: set[tuple[str, str, str]] = set()
        for number in range(chance.randint(2, 8)):
            function, key = chance.choice(functions), chance.choice(self.keys)
            askings = draw_askings(chance, number, function, key, self._repeated)
            idempotency_key = askings[0].said.idempotency_key
            if (function, key, idempotency_key) in used or not idempotency_key:
                continue
            used.add((function, key, idempotency_key))
            at_ms = chance.random() * faults_ms
            for asking in askings:
                self.repeats.append(asking)
                client = chance.choice(self.clients)
                self.after(at_ms + asking.after_ms, client.say, function, asking.said)

    def _repeated(self, uid: str) -> list[Any]:
        # Amounts are the business of others.
        return self.repeats_chance.choice([["add", uid, 0], ["add", uid, 0], ["reject", uid]])

    def _plan_deserter(self, faults_ms: float) -> None:
        """Let a client say goodbye while its messages are on their way."""
        self.deserter = Client(self, "~gone")
        self.clients.append(self.deserter)
        for number in range(self.chance.randint(1, 8)):
            function, key = (
                self.chance.choice(sorted(self.functions)),
                self.chance.choice(self.keys),
            )
            due_ms = self.random_deadline_ms()
            said = Said(Kind.CALL, key, ["add", f"~gone.{number}", 1], "", due_ms)
            self.after(number * self.pause_ms, self._say_unless_gone, function, said)
        self.after(self.chance.random() * faults_ms, self._desert)

    def _say_unless_gone(self, function: str, said: Said) -> None:
        if self.deserter in self.clients:
            assert self.deserter is not None
            self.deserter.say(function, said)

    def _desert(self) -> None:
        assert self.deserter is not None
        self.told = dict(self.owners)
        self.let_go(self.deserter)

    def let_go(self, client: Client) -> None:
        """Let a client say goodbye to all who are there."""
        self.clients.remove(client)
        client.gone = True
        for node in self.nodes:
            if node.alive:
                node.partition.clients.goodbye(client.name, self.now_ms)
                node.carry_out()

    def _random_payload(self, uid: str, function: str, key: str) -> list[Any]:
        kept = [
            said.uid
            for _, where, said in self.script
            if where == function and said.key == key and said.payload[-1] == "keep"
        ]
        stories = Stories(
            self.keys,
            delays_ms=[0, 5, 50, 29_990, 30_000, 30_010, 70_000, 130_000],
            timeouts_ms=[0, 0, 3, 30],
        )
        return stories.payload(self.chance, uid, function, kept)

    def _say_goodbye(self) -> None:
        for name, node in self.owners.items():
            for client in self.clients:
                node.partition.clients.goodbye(client.name, self.now_ms)
                node.carry_out()
            self._run_until(self.now_ms + 1_000)
            tables = self.backend.partitions[name]
            ahead = tables.records.get(AHEAD, {})
            silent = tables.records.get(SILENT, {})
            sources = (*tables.inbox, *tables.sent, *ahead, *silent)
            kept = {each for each in sources if is_client(each)}
            if self.told.get(name) is not node:
                kept.discard("~gone")  # Who came later knows of it only by its silence.
            check(not kept, "a client that left is remembered", name, kept)
