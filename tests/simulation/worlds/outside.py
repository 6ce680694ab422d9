"""Handlers that do something outside, and requests that are cancelled by hand, among all else.

Side effects may fail, take their time, and be lost with their worker. Somebody asks the owner of a
partition to end a request, and is told what became of that, if the owner lives.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

from sublet.runtime.partition.model.effects import Perform, Resume
from sublet.runtime.partition.model.work import QueuedMessage, Recorded
from sublet.runtime.protocol.frames import ErrorInfo, Kind
from sublet.statestore.contract import JOURNAL, Commit
from tests.simulation.oracles.partition import Oracle
from tests.simulation.oracles.verdict import check
from tests.simulation.worlds.client import Client, Said
from tests.simulation.worlds.handlers import OUTSIDE_MARK, Handling
from tests.simulation.worlds.node import Node
from tests.simulation.worlds.partition import Mutant, World

FUNCTION = "sim/account"
"""The one whose handlers can wait."""
LOOK_MS = 5.0
FAILED = ErrorInfo("side_effect_failed", "no route")

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode
_decode_recorded = msgspec.msgpack.Decoder(Recorded).decode


class OutsideRequest:
    """One request with side effects, and what people were told of it."""

    def __init__(self, client: Client, said: Said) -> None:
        self.client = client
        self.said = said
        self.cancels = 0
        """How often somebody has asked to cancel it."""
        self.cancelled = False
        """Somebody was told that it has no effect."""
        self.done = False
        """Somebody was told that it was done."""

    def place(self, world: World) -> tuple[str, str, int]:
        """Return its partition, source and number."""
        partition = world.partition_of(FUNCTION, self.said.key)
        channel = self.client.channels[partition]
        return partition, self.client.name, channel.said.index(self.said) + 1


class Cancelling:
    """Somebody waits for what becomes of a cancellation; see `services.administration`."""

    def __init__(self, node: OutsideNode, request: OutsideRequest, waiting: QueuedMessage) -> None:
        self._node = node
        self._request = request
        self._waiting = waiting

    def look(self) -> None:
        node = self._node
        if not node.alive or node.partition.stopped:
            return
        if self._waiting.ended:
            node.partition.requests.flush(self, node.world.now_ms)
            node.carry_out()
        else:
            node.world.after(LOOK_MS, self.look)

    def settled(self) -> None:
        """What has become of it is stored."""
        if self._waiting.cancelled:
            self._request.cancelled = True
        else:
            self._request.done = True


class OutsideOracle(Oracle):
    _world: OutsideWorld

    def __init__(self, world: OutsideWorld) -> None:
        super().__init__(world)
        self._recorded: dict[tuple[str, str, str], Any] = {}
        """Partition, message and name to the result of what has succeeded and was stored."""

    def committed(self, commit: Commit) -> None:
        super().committed(commit)
        for record in commit.records:
            if record.kind == JOURNAL and record.value is not None:
                recorded = _decode_recorded(record.value)
                if recorded.name and recorded.error is None:
                    place = (commit.partition, recorded.message_id, recorded.name)
                    self._recorded[place] = _decode(recorded.result)

    def performs(self, node: OutsideNode, handling: Handling, name: str) -> None:
        """A handler does something outside. Whoever is owner no more may not know better."""
        if self._world.owners[node.partition.name] is not node:
            return
        place = (node.partition.name, handling.message_id, name)
        check(place not in self._recorded, "a recorded side effect is done again", place)
        request = self._world.requests[handling.uid]
        check(not request.cancelled, "what was cancelled acts", handling.uid)

    def told(self, node: OutsideNode, handling: Handling, name: str, result: Any) -> None:
        """A handler goes on with the result of a side effect that has succeeded."""
        if self._world.owners[node.partition.name] is node:
            place = (node.partition.name, handling.message_id, name)
            check(place in self._recorded, "a handler goes on before the record", place)
            check(self._recorded[place] == result, "another result", place, result)

    def judge(self) -> None:
        super().judge()
        effects = [
            uid
            for history in self._histories().values()
            for uid in history
            if uid.startswith(OUTSIDE_MARK)
        ]
        for request in self._world.requests.values():
            self._judge(request, effects.count(request.said.uid))

    def _judge(self, request: OutsideRequest, effects: int) -> None:
        said, uid = request.said, request.said.uid
        check(effects <= 1, "effects happened twice", uid, effects)
        check(not (request.cancelled and request.done), "it was cancelled and done", uid)
        may_be_cancelled = bool(request.cancels) or said.withdrawn
        if request.cancelled:
            check(effects == 0, "what was cancelled has its effect", uid)
        if request.done or not may_be_cancelled:
            check(effects == 1, "effects are missing", uid)
        if said.kind is Kind.SEND:
            check(not said.replies, "a reply that nobody waits for", uid)
            # Nobody takes a send back but by hand.
            if not request.cancels:
                check(effects == 1, "effects are missing", uid)
            return
        check(len(said.replies) == 1, "replies", uid, len(said.replies))
        value, error = said.replies[0]
        if error is None:
            check(effects == 1, "an answer without its effect", uid)
            partition, source, number = request.place(self._world)
            for name, result in enumerate(value[1], 1):
                place = (partition, f"{source}:{number}", str(name))
                check(self._recorded.get(place) == result, "another result", place, result)
        else:
            check(error.code == "cancelled" and may_be_cancelled, "it failed", uid, error)
            check(effects == 0, "what was cancelled has its effect", uid)


class OutsideNode(Node):
    world: OutsideWorld

    def _go_on(self, handling: Handling) -> None:
        if handling.op != "outside":
            super()._go_on(handling)
            return
        self.open[handling.message_id] = handling
        self.partition.calls.begin(handling.message_id, str(len(handling.results) + 1))

    def perform(self, perform: Perform) -> None:
        self.world.outside_soon(self._perform, perform)

    def _perform(self, perform: Perform) -> None:
        handling = self.open.get(perform.message_id)
        if handling is None or not self.alive:
            return
        self.world.oracle.performs(self, handling, perform.name)
        outcome = self.world.act(handling, perform.name)
        self.world.outside_soon(self._performed, perform, outcome)

    def _performed(self, perform: Perform, outcome: str | None) -> None:
        if self.alive:
            error = FAILED if outcome is None else None
            raw = msgspec.Raw(_encode(outcome))
            now_ms = self.world.now_ms
            self.partition.calls.performed(perform.message_id, perform.name, raw, error, now_ms)
            self.carry_out()

    def _resume(self, resume: Resume) -> None:
        if isinstance(resume.call, int):
            super()._resume(resume)
            return
        handling = self.open.get(resume.message_id)
        if handling is None or not self.alive or resume.call != str(len(handling.results) + 1):
            return
        if resume.error is None:
            result = _decode(resume.result)
            self.world.oracle.told(self, handling, resume.call, result)
            handling.results.append(result)
        else:
            handling.results.append("failed")
        self._end(handling)
        self.carry_out()


class OutsideWorld(World):
    oracle: OutsideOracle
    repeats_share = 0.0

    def __init__(self, seed: int, mutant: Mutant | None = None) -> None:
        super().__init__(seed, mutant)
        self.outside_chance = random.Random(f"outside {seed}")
        self.requests: dict[str, OutsideRequest] = {}
        self.acts = 0
        """How often something was done outside."""
        self.oracle = OutsideOracle(self)

    def new_node(self, name: str) -> Node:
        return OutsideNode(self, name)

    def outside_soon(self, what: Any, *arguments: Any) -> None:
        self.after(self.outside_chance.choice([0.0, 1.0, 30.0]), what, *arguments)

    def act(self, handling: Handling, name: str) -> str | None:
        """Do something outside; None if that fails, which it does in first attempts alone."""
        self.acts += 1
        if handling.attempt == 1 and self.outside_chance.random() < 0.15:
            return None
        return f"{handling.uid} {name} {self.acts}"

    def plan_faults(self, faults_ms: float) -> None:
        chance = self.outside_chance
        for number in range(chance.randint(4, 20)):
            uid = f"{OUTSIDE_MARK}{number}"
            payload = ["outside", uid, chance.randint(1, 3), chance.choice([0, 0, 1])]
            kind = chance.choice([Kind.CALL, Kind.SEND])
            said = Said(kind, chance.choice(self.keys), payload, "")
            client = chance.choice(self.clients)
            if client is self.deserter:
                continue
            request = self.requests[uid] = OutsideRequest(client, said)
            at_ms = chance.random() * faults_ms
            self.after(at_ms, client.say, FUNCTION, said)
            for _ in range(chance.choice([0, 0, 1, 2])):
                self.after(at_ms + self._pause_ms(), self._cancel, request)
            if kind is Kind.CALL and chance.random() < 0.2:
                self.after(at_ms + self._pause_ms(), client.withdraw, FUNCTION, said)

    def _pause_ms(self) -> float:
        return self.outside_chance.random() * self.outside_chance.choice([2.0, 20.0, 100.0, 400.0])

    def _cancel(self, request: OutsideRequest) -> None:
        """Let somebody ask the owner to end a request."""
        partition, source, number = request.place(self)
        node = self.owners[partition]
        assert isinstance(node, OutsideNode)
        request.cancels += 1
        waiting = node.partition.requests.cancel(source, number, self.now_ms)
        node.carry_out()
        if waiting is not None:
            Cancelling(node, request, waiting).look()
