"""Links between simulated processes: the real `FrameLink` over wires that are slow, cut and reset.

A wire keeps order and loses nothing until it is reset, as TCP does. A cut holds back what is sent,
in one direction or both: what is under way goes on when the cut has healed, or the wire is given up
after `SILENCE_S`, as a keepalive does. A reset loses what is under way from some point on, and
both ends hear of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from random import Random
from types import TracebackType
from typing import Any

import msgspec

from sublet.functions.errors import UnavailableError
from sublet.runtime.links.grpc_link import Greeter
from sublet.runtime.links.identity import PeerKeys
from sublet.runtime.links.lifecycle import FrameLink
from sublet.runtime.links.link import LinkLimits, LinkReceiver
from sublet.runtime.links.server import LinkServer, _Doorkeeper
from sublet.runtime.protocol.frames import Hello
from tests.simulation.worlds.cluster.loop import ClusterLoop, Process

SILENCE_S = 30.0
"""As long as gRPC's keepalive takes to give a silent peer up."""


class Wire:
    """What connects two processes; it has two ends."""

    def __init__(self, network: Network, near: Process, far: Process) -> None:
        self.network = network
        self.near = WireEnd(self, near)
        self.far = WireEnd(self, far)
        self.near.other, self.far.other = self.far, self.near
        self.over = False

    def reset(self) -> None:
        """Lose what is under way from some point on; each end hears of it when it does."""
        if not self.over:
            self.over = True
            self.network.wires.pop(self, None)
            for end in (self.near, self.far):
                end.lose_some()
                end.tell_lost("lost: connection reset")


class WireEnd:
    """The `Carrier` of one end: what is written here arrives at the other end."""

    link: FrameLink

    def __init__(self, wire: Wire, process: Process) -> None:
        self.wire = wire
        self.process = process
        self.other: WireEnd
        self.context: Context = process.home
        self.limits: LinkLimits
        self.pending_bytes = 0
        self._above_high = False
        self._in_flight: deque[tuple[int, bytes]] = deque()
        """With when each frame arrives, unless the wire is cut by then."""
        self._arrives_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        self._finishing = False
        self._told = False
        self.on_lost: Callable[[], None] = lambda: None

    def write(self, encoded: bytes) -> None:
        network, now_ms = self.wire.network, self.wire.network.loop.now_ms
        if self.wire.over:
            return
        self.pending_bytes += len(encoded)
        if self.pending_bytes > self.limits.pending_bytes_high:
            self._above_high = True
        at_ms = now_ms + network.delay_ms(len(encoded))
        self._arrives_ms = max(self._arrives_ms, at_ms)
        self._in_flight.append((self._arrives_ms, encoded))
        self._plan()

    def finish(self) -> None:
        self._finishing = True
        self._plan()

    def abort(self) -> None:
        self.wire.reset()

    def lose_some(self) -> None:
        chance = self.wire.network.chance
        kept = chance.randrange(len(self._in_flight) + 1)
        while len(self._in_flight) > kept:
            self._in_flight.pop()

    def tell_lost(self, reason: str) -> None:
        """Let the process at this end hear that the wire is gone, soon."""
        network = self.wire.network
        delay_ms = network.delay_ms(0)
        network.loop.call_later(delay_ms / 1000, self._lost, reason, context=self.context)

    def _lost(self, reason: str) -> None:
        if not self._told:
            # What had arrived before is read before the end is seen.
            for _, encoded in self.other.take_all():
                self.link.bytes_received(encoded)
            self._told = True
            self.pending_bytes = 0
            self.link.carrier_lost(reason)
            self.on_lost()

    def take_all(self) -> list[tuple[int, bytes]]:
        found = list(self._in_flight)
        self._in_flight.clear()
        return found

    def _plan(self) -> None:
        if self._timer is None and (self._in_flight or self._finishing):
            network = self.wire.network
            at_ms = self._in_flight[0][0] if self._in_flight else network.loop.now_ms
            delay_s = max(0, at_ms - network.loop.now_ms) / 1000
            self._timer = network.loop.call_later(
                delay_s, self._carry, context=network.loop.world.home
            )

    def _carry(self) -> None:
        """Something has come to the other end, if nothing is in its way."""
        self._timer = None
        network = self.wire.network
        if self.wire.over:
            return
        if network.is_cut(self.process, self.other.process):
            self._timer = network.loop.call_later(
                0.02, self._carry, context=network.loop.world.home
            )
            return
        arrived = []
        while self._in_flight and self._in_flight[0][0] <= network.loop.now_ms:
            arrived.append(self._in_flight.popleft()[1])
        if arrived:
            network.loop.call_soon(self.other.arrive, arrived, context=self.other.context)
            network.loop.call_soon(self._sent, sum(map(len, arrived)), context=self.context)
        if self._finishing and not self._in_flight:
            self.wire.over = True
            network.wires.pop(self.wire, None)
            for end in (self, self.other):
                end.tell_lost("the wire was closed")
            return
        self._plan()

    def arrive(self, frames: list[bytes]) -> None:
        if not self._told:
            for encoded in frames:
                self.link.bytes_received(encoded)

    def _sent(self, size: int) -> None:
        self.pending_bytes = max(0, self.pending_bytes - size)
        if self._above_high and self.pending_bytes <= self.limits.pending_bytes_low:
            self._above_high = False
            if not self._told:
                self.link.carrier_drained()


class Network:
    """All wires of the cluster, and what is wrong with them."""

    def __init__(self, loop: ClusterLoop, chance: Random) -> None:
        self.loop = loop
        self.chance = chance
        self.servers: dict[str, SimulatedLinkServer] = {}
        self.wires: dict[Wire, None] = {}
        self.latency_ms = chance.choice([0, 1, 5, 20])
        self.jitter_ms = chance.choice([0, 1, 10, 60])
        self.bytes_per_ms = chance.choice([0, 0, 0, 50, 1_000])
        """How much a slow wire carries; 0: as much as there is."""
        self.refusals = 0.0
        """How often no worker responds at an address although somebody is there."""
        self.cuts: dict[tuple[Process, Process], int] = {}
        """From whom to whom nothing gets through, with until when."""

    def hurried(self, limits: LinkLimits) -> LinkLimits:
        """Return limits with less patience: stories are short."""
        return msgspec.structs.replace(limits, hello_timeout_s=0.8, close_timeout_s=0.4)

    def heal(self) -> None:
        self.refusals = 0.0
        self.bytes_per_ms = 0
        self.cuts.clear()

    def delay_ms(self, size: int) -> int:
        delay_ms = self.latency_ms
        if self.jitter_ms:
            delay_ms += self.chance.randrange(self.jitter_ms + 1)
        if self.bytes_per_ms:
            delay_ms += size // self.bytes_per_ms
        return delay_ms

    def cut(self, one: Process, other: Process, duration_ms: int, *, both: bool) -> None:
        until_ms = self.loop.now_ms + duration_ms
        self.cuts[one, other] = until_ms
        if both:
            self.cuts[other, one] = until_ms
        if duration_ms >= SILENCE_S * 1000:
            for wire in [each for each in self.wires if self._joins(each, one, other)]:
                self.loop.call_later(SILENCE_S, wire.reset, context=self.loop.world.home)

    def lose_all(self, one: Process, other: Process) -> None:
        """Lose what is under way from one to the other, and what connects them."""
        self.cuts.pop((one, other), None)
        for wire in [each for each in self.wires if self._joins(each, one, other)]:
            for end in (wire.near, wire.far):
                if end.process is one:
                    end.take_all()
            wire.reset()

    def _joins(self, wire: Wire, one: Process, other: Process) -> bool:
        return {wire.near.process, wire.far.process} == {one, other}

    def is_cut(self, one: Process, other: Process) -> bool:
        return self.cuts.get((one, other), 0) > self.loop.now_ms

    def reset_some(self) -> None:
        if self.wires:
            self.chance.choice(list(self.wires)).reset()

    def process_gone(self, process: Process, *, silently: bool = False) -> None:
        """A process has ended: its machine says so for it, or is gone, too."""
        for address in [name for name, each in self.servers.items() if each.process is process]:
            del self.servers[address]
        for wire in [
            each for each in self.wires if process in (each.near.process, each.far.process)
        ]:
            if silently:
                self.loop.call_later(SILENCE_S, wire.reset, context=self.loop.world.home)
            else:
                wire.reset()

    async def connect(
        self,
        address: str,
        hello: Hello,
        receiver: LinkReceiver,
        tasks: asyncio.TaskGroup,
        *,
        limits: LinkLimits,
        peers: PeerKeys | None = None,
        **_: Any,
    ) -> FrameLink:
        """Stands for `grpc_link.connect`."""
        here, limits = Process.current(), self.hurried(limits)
        await asyncio.sleep(self.delay_ms(0) / 1000)
        server = self.servers.get(address)
        if server is None or self.chance.random() < self.refusals:
            raise UnavailableError(f"no worker responds at {address}")
        wire = Wire(self, here, server.process)
        wire.near.limits = limits
        self.wires[wire] = None
        greeter = Greeter(receiver, hello, peers)
        link = wire.near.link = FrameLink(wire.near, greeter, limits, f"{address} (wire)")
        self.loop.call_soon(server.accept_wire, wire.far, context=server.context)
        link.send(greeter.hello())
        await greeter.welcomed(address, limits.hello_timeout_s, wire.reset)
        return link


class SimulatedLinkServer(LinkServer):
    """The door of a worker without a socket; who comes in is checked as everywhere."""

    network: Network

    def __init__(
        self,
        receiver_factory: Any,
        service: Any,
        limits: LinkLimits,
        peers: PeerKeys | None = None,
        **_: Any,
    ) -> None:
        super().__init__(
            receiver_factory, service, limits=self.network.hurried(limits), peers=peers
        )
        self.service = service
        self._in_order: dict[FrameLink, None] = {}
        self.process = Process.current()
        self.context = self.process.home

    @property
    def address(self) -> str:
        return self.process.address

    @property
    def port(self) -> int:
        return int(self.process.address.partition(":")[2])

    async def __aenter__(self) -> LinkServer:
        self.network.servers[self.address] = self
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping = True
        self.network.servers.pop(self.address, None)
        for link in tuple(self._in_order):
            link.close("the worker is stopping")
        try:
            async with asyncio.timeout(self._limits.close_timeout_s * 1.5):
                await self.link_count_fallen(0)
        except TimeoutError:
            pass
        self.network.process_gone(self.process)

    def accept_wire(self, end: WireEnd) -> None:
        end.limits = self._limits
        link = end.link = FrameLink(
            end, _Doorkeeper(self._accept, self._peers), self._limits, "wire"
        )
        refusal = self._refusal()
        if refusal is not None:
            link.fail(refusal)
            return
        self._links.add(link)
        self._in_order[link] = None
        link.expect_first_frame()
        end.on_lost = lambda: self._forget(link)
