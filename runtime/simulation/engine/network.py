"""Frames on their way: late, lost, doubled, out of order, or stopped by a cut."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from sublet.functions.duration import milliseconds
from sublet.runtime.partition.model.channel_names import endpoint_of
from sublet.runtime.protocol.frames import Ack, Batch, Refused
from sublet.runtime.protocol.lease_messages import LeaseMessage
from sublet.runtime.simulation.engine.events import Events
from sublet.runtime.simulation.scenarios.distributions import distribution, stream
from sublet.runtime.simulation.scenarios.scenario import Network

FRAME_BYTES = 32
ACK_BYTES = 24


class Frame:
    """All that one end has for another in one moment."""

    __slots__ = ("acks", "batches", "bytes", "leases", "refusals", "sender")

    def __init__(self, sender: Node) -> None:
        self.sender = sender
        self.batches: list[Batch] = []
        self.acks: dict[tuple[str, str], Ack] = {}
        self.refusals: list[Refused] = []
        self.leases: list[tuple[LeaseMessage, int]] = []
        """With what they weigh; workers only."""
        self.bytes = FRAME_BYTES


class Node(Protocol):
    """A machine: a worker, or where a client is."""

    name: str
    number: int
    """Of a worker; clients have -1 and are never cut off."""

    def receive(self, frame: Frame) -> None: ...

    def reachable(self, endpoints: Collection[str]) -> None:
        """Send again what these partitions or clients have not acknowledged."""
        ...

    def peer_lost(self, worker: str) -> None:
        """The link to another worker was broken: what was said of leases may be lost."""
        ...


class SimulatedNetwork:
    def __init__(self, events: Events, model: Network, seed: int) -> None:
        rng = stream(seed, "network")
        self._events = events
        self._latency = distribution(model.latency).sampler(rng)
        self._draw = rng.random
        self._model = model
        self._unreliable = bool(model.loss or model.duplication or model.reordering)
        self._resend_ms = milliseconds(model.resend)
        self._ms_per_byte = 0.0
        if model.megabits_per_s is not None:
            self._ms_per_byte = 8 / 1_000 / model.megabits_per_s
        self._sent_ms: dict[str, float] = {}
        """When the line of a machine is free again."""
        self._last_ms: dict[tuple[str, str], float] = {}
        self._cuts: list[tuple[frozenset[int], frozenset[int]]] = []
        self._held: list[tuple[Frame, Node]] = []
        self.frames = self.batches = self.messages = self.bytes = 0
        self.lost = self.doubled = self.reordered = self.stopped = 0

    def send(self, frame: Frame, to: Node) -> None:
        self.frames += 1
        self.batches += len(frame.batches)
        self.messages += sum([batch.count for batch in frame.batches])
        self.bytes += frame.bytes + ACK_BYTES * len(frame.acks)
        if self._cuts and self._is_cut(frame.sender.number, to.number):
            self.stopped += 1
            self._held.append((frame, to))
            return
        events = self._events
        at_ms = events.now_ms + self._latency()
        if self._ms_per_byte:
            at_ms += self._line_ms(frame)
        if self._unreliable and not self._lucky(frame, to, at_ms):
            return
        link = (frame.sender.name, to.name)
        last_ms = self._last_ms.get(link, 0.0)
        if last_ms > at_ms:
            at_ms = last_ms
        self._last_ms[link] = at_ms
        events.at(at_ms, to.receive, frame)

    def _line_ms(self, frame: Frame) -> float:
        """Return how long it takes until a frame has left its machine."""
        now_ms, name = self._events.now_ms, frame.sender.name
        left_ms = max(now_ms, self._sent_ms.get(name, 0.0)) + frame.bytes * self._ms_per_byte
        self._sent_ms[name] = left_ms
        return left_ms - now_ms

    def _lucky(self, frame: Frame, to: Node, at_ms: float) -> bool:
        """Return whether the frame goes the usual way."""
        model, draw = self._model, self._draw
        if draw() < model.loss:
            self.lost += 1
            self._events.after(self._resend_ms, self._notice_loss, (frame, to))
            return False
        if draw() < model.duplication:
            self.doubled += 1
            self._events.at(at_ms + self._latency(), to.receive, frame)
        if draw() < model.reordering:
            self.reordered += 1
            self._events.at(at_ms + self._latency(), to.receive, frame)
            return False
        return True

    def _notice_loss(self, *lost: tuple[Frame, Node]) -> None:
        """Both ends of a link go on from what they know of each other.

        Who misses batches cannot know; who misses acknowledgements gets them by sending again.
        """
        again: dict[str, tuple[Node, set[str]]] = {}
        for frame, to in lost:
            if frame.batches:
                sender = frame.sender
                targets = again.setdefault(sender.name, (sender, set()))[1]
                targets.update(endpoint_of(batch.target) for batch in frame.batches)
            if frame.acks or frame.refusals:
                targets = again.setdefault(to.name, (to, set()))[1]
                targets.update(endpoint_of(ack.target) for ack in frame.acks.values())
                targets.update(endpoint_of(refused.target) for refused in frame.refusals)
        for frame, to in lost:
            if frame.leases:
                frame.sender.peer_lost(to.name)
                to.peer_lost(frame.sender.name)
        for node, endpoints in again.values():
            node.reachable(endpoints)

    # Cuts

    def _is_cut(self, one: int, other: int) -> bool:
        for left, right in self._cuts:
            if (one in left and other in right) or (one in right and other in left):
                return True
        return False

    def cut(self, left: frozenset[int], right: frozenset[int]) -> None:
        self._cuts.append((left, right))

    def heal(self, left: frozenset[int], right: frozenset[int]) -> None:
        """Let the two talk again: what was stopped is sent anew by those who still want it."""
        self._cuts.remove((left, right))
        held, self._held = self._held, []
        free: list[tuple[Frame, Node]] = []
        for frame, to in held:
            still = self._is_cut(frame.sender.number, to.number)
            (self._held if still else free).append((frame, to))
        self._notice_loss(*free)
