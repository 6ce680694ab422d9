"""Brings batches to where they belong: a local partition, a peer, a client.

Knows who is connected and who owns what; knows nothing of what the messages mean. Whatever cannot
be delivered now stays in its sender's outbox and is offered again when something changes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence, Set
from typing import Protocol

import msgspec
import structlog

from sublet.functions.address import CLIENT_MARK, is_client, is_instance
from sublet.functions.codec import split_column
from sublet.functions.errors import UnavailableError
from sublet.runtime.config.limits import Limits
from sublet.runtime.hosting.hosted import Hosted
from sublet.runtime.hosting.instance_gate import InstanceGate
from sublet.runtime.hosting.partition_host import Host
from sublet.runtime.hosting.peer_outbound import PeerOutbound
from sublet.runtime.links.link import Link, LinkReceiver
from sublet.runtime.partition.model.channel_names import REPLY_MARK, endpoint_of
from sublet.runtime.partition.records.watermarks import refusal_of_markers
from sublet.runtime.protocol.frames import (
    Ack,
    Batch,
    Data,
    ErrorInfo,
    Frame,
    Hello,
    Kind,
    Refused,
    Topology,
    Welcome,
)
from sublet.runtime.protocol.handover_messages import HandoverMessage, handover_message
from sublet.statestore.contract import OutboxEntry, Outcome

_log = structlog.get_logger(__name__)

_decode_batch = msgspec.msgpack.Decoder(Batch).decode

RETRY_S = 0.05
STOPPED_RETRY_MS = 500
CONNECT_WAIT_S = 0.05
CONNECT_WAIT_S_MAX = 1.0
PEERS_ASKED_MAX = 3
PEER_ANSWERS_S = 1.0
NOWHERE = Topology(0, [], {}, {})

Connect = Callable[[str, Hello, LinkReceiver], Awaitable[Link]]


class Placed(Protocol):
    """Whoever decides which partitions are here: is told what the router hears of them."""

    @property
    def quarantined(self) -> Mapping[str, str]:
        """Partitions that are placed here and cannot be recovered, with the reason."""
        ...

    def handover_message(self, worker: str, message: HandoverMessage) -> None:
        """A peer says something of a partition that moves."""
        ...

    def partition_lost(self) -> None:
        """A partition was taken away by somebody else."""
        ...


class PlacedForGood:
    """Partitions that never move."""

    quarantined: Mapping[str, str] = {}

    def handover_message(self, worker: str, message: HandoverMessage) -> None:
        pass

    def partition_lost(self) -> None:
        pass


class Router:
    """The `Transport` of a worker's partitions, and the receiver of all its links."""

    def __init__(
        self,
        worker: str,
        limits: Limits,
        connect: Connect,
        uniform: Callable[[], float] = random.random,
        placed: Placed | None = None,
    ) -> None:
        """`uniform` returns numbers between 0 and 1: retries of many workers must not meet. Without
        `placed`, partitions stay where they are."""
        self._host: Host
        self._placed: Placed = placed or PlacedForGood()
        self._worker = worker
        self._limits = limits
        self._connect = connect
        self._uniform = uniform
        self._topology = NOWHERE
        self._clients: dict[str, PeerOutbound] = {}
        self._peers: dict[str, PeerOutbound] = {}
        self._connecting: set[str] = set()
        self._peer_gone = asyncio.Event()
        self._callers: dict[str, PeerOutbound] = {}
        """Peers that have connected to us; what we tell them of leases goes the same way."""
        self._instances: dict[str, PeerOutbound] = {}
        """Of these, instances. They own nothing and are in no topology."""
        self._gate = InstanceGate()
        self.code = ""
        """What instances must have, too."""
        self._sources: dict[str, PeerOutbound] = {}
        """Source to the link on which it was heard last."""
        self._also_heard: dict[str, dict[PeerOutbound, None]] = {}
        """Partition to further links on which it was heard: a former owner may speak after the
        present one, and only that one still has to be answered."""
        self._heard: dict[str, set[str]] = {}
        """Partition to the sources whose batches have come here for it."""
        self._open_at_most = 0
        self._stopping = False
        self._intake_closed = False
        self._is_cut_off = False
        self._tasks: asyncio.TaskGroup
        self.frames_in = 0
        self.links_lost = 0
        """Ended without a goodbye, before we said ours."""
        self.refused = 0
        self.refusals: dict[tuple[str, str], int] = {}
        """Function and reason to messages that no partition here has seen."""

    def attach(self, host: Host) -> None:
        """Deliver to this host, which sends through this router: first of all."""
        self._host = host

    def start(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks

    def stop(self) -> None:
        """From now on links end because of us: that is no goodbye of a client."""
        self._stopping = True

    def say_goodbye(self) -> None:
        """End the links that this worker has opened; those that others have, the server ends."""
        for port in tuple(self._peers.values()):
            port.link.close("the worker is stopping")

    async def said_goodbye(self) -> None:
        """Wait until none of them is left, nor on its way."""
        while self._peers or self._connecting:
            self._peer_gone.clear()
            await self._peer_gone.wait()

    def close_intake(self) -> None:
        """Take nothing new from clients: the last worker that has our functions ends."""
        self._intake_closed = True

    async def is_replaced(self) -> bool:
        """Ask some peers; tell whether one knows a newer placement, which does without us."""
        mine = self._topology
        others = sorted(name for name in mine.workers if name != self._worker)
        some = sorted(others, key=lambda _: self._uniform())[:PEERS_ASKED_MAX]
        for name in some:
            theirs = await self._topology_of(mine.workers[name])
            if theirs.version > mine.version and self._worker not in theirs.workers:
                return True
        return False

    async def _topology_of(self, address: str) -> Topology:
        """Return what a peer says to clients that connect; nothing if it does not answer."""
        receiver = _Receiver(self, None)
        # As a client, so that nothing which peers have under way with us is disturbed.
        hello = Hello(f"{CLIENT_MARK}{self._worker}")
        try:
            async with asyncio.timeout(PEER_ANSWERS_S):
                link = await self._connect(address, hello, receiver)
        except (UnavailableError, TimeoutError):
            return NOWHERE
        link.close("done")
        return receiver.topology

    def cut_off(self, is_cut_off: bool) -> None:
        """While nobody here knows who owns what, clients have to ask others."""
        self._is_cut_off = is_cut_off
        if is_cut_off:
            ports, self._clients = self._clients, {}
            for port in ports.values():
                port.link.abandon("the worker is cut off from its directory")

    @property
    def client_count(self) -> int:
        return len(self._clients)

    # The cluster changes

    @property
    def topology(self) -> Topology:
        return self._topology

    def topology_changed(self, topology: Topology) -> None:
        """Learn who owns what; tell clients; send again what has a new owner."""
        before: Mapping[str, str] = self._topology.placement
        self._topology = topology
        moved = {
            partition
            for partition, worker in topology.placement.items()
            if before.get(partition) != worker
        }
        for port in (*self._clients.values(), *self._peers.values()):
            if port.name in self._clients:
                port.link.send(topology)
            for partition in moved:
                port.forget(partition)
        for source in [each for each in self._also_heard if endpoint_of(each) in moved]:
            owner = topology.placement[endpoint_of(source)]
            for port in tuple(self._also_heard[source]):
                if port.name != owner:
                    self._forget_link(source, port)
        for worker in [name for name in self._peers if name not in topology.workers]:
            self._peers.pop(worker).link.close("the worker has left")
            self._peer_gone.set()
        self._peers_changed()
        if moved:
            self._host.deliver_again(moved.__contains__)
            for port in (*self._clients.values(), *self._peers.values()):
                port.look_for_room()

    def _peers_changed(self) -> None:
        self._host.workers_changed([*self._topology.workers, *self._instances])

    def release(self, instance: str) -> None:
        """Let an instance go: it returns what it has finished, and ends."""
        port = self._instances.get(instance)
        if port is not None:
            port.link.close("released")

    @property
    def instances(self) -> Set[str]:
        """Those that serve this worker now."""
        return self._instances.keys()

    def partition_comes(self, partition: str) -> None:
        """A partition is about to be here, perhaps once more: what it sent then, and who took it,
        was another owner's business since."""
        for port in (*self._clients.values(), *self._peers.values()):
            port.forget_sender(partition)
        for source in (partition, partition + REPLY_MARK):
            self._forget_source(source)

    def partition_added(self, partition: str, epoch: int, taken: Mapping[str, int]) -> None:
        """A partition is now here: local senders need not wait for anything.

        If it was here before (another owner was too slow to be missed, or a commit was fenced),
        whoever sent to it has to send again what is not on record (`taken`), and cannot know.
        """
        for source in sorted(self._heard.pop(partition, ())):
            port = self._sources.get(source)
            if port is not None:
                target, last = _as_heard(partition, source), taken.get(source, 0)
                error = ErrorInfo("gap", f"expected message {last + 1}")
                if last:
                    # Nobody else may say so: it was taken by who is not the owner any more.
                    port.acknowledge(Ack(target, source, last, None, epoch))
                port.link.send(Refused(target, source, last + 1, error, epoch))
        # What it had taken from clients before is open here from now on: count anew.
        self._open_at_most = self._limits.in_flight_max
        self._host.deliver_again(partition.__eq__)
        for port in (*self._clients.values(), *self._peers.values()):
            port.look_for_room()

    def lost(self, partition: str, outcome: Outcome) -> None:
        _log.warning("lost a partition", partition=partition, outcome=outcome.value)
        # What the store refuses would be brought again at once, and again: it waits for the next
        # heartbeat instead.
        if outcome is not Outcome.REFUSED:
            self._placed.partition_lost()

    def left(self, partitions: Collection[str]) -> None:
        """Partitions are not here any more: of what they have sent nobody owes us a word, and it
        must not take the room of others."""
        for port in (*self._clients.values(), *self._peers.values()):
            for partition in partitions:
                port.forget_sender(partition)
            port.look_for_room()

    # From partitions to others

    def deliver(self, partition: str, entry: OutboxEntry) -> None:
        if entry.destination[:1] == CLIENT_MARK:
            port = self._clients.get(entry.destination)
            if port is not None:
                port.offer(partition, entry)
            return
        endpoint = endpoint_of(entry.destination)
        hosted = self._host.partitions.get(endpoint)
        if hosted is not None and not hosted.partition.leaving:
            self._host.batch_arrived(_decode_batch(entry.data), hosted)
            return
        owner = self._topology.placement.get(endpoint)
        if owner is None or owner == self._worker:
            return
        port = self._peers.get(owner)
        if port is not None:
            port.offer(partition, entry)
        else:
            self._connect_later(owner)

    def deliver_anew(self, partition: str, entry: OutboxEntry) -> None:
        endpoint = endpoint_of(entry.destination)
        port = self._peers.get(self._topology.placement.get(endpoint, ""))
        if port is None or endpoint in self._host.partitions:
            self.deliver(partition, entry)
        else:
            port.offer_anew(partition, entry)
            port.look_for_room()

    def _connect_later(self, worker: str) -> None:
        # A worker that ends begins nothing: its tasks take no others any more.
        if worker not in self._connecting and not self._stopping:
            self._connecting.add(worker)
            self._tasks.create_task(self._connect_peer(worker))

    def acknowledge(self, ack: Ack) -> None:
        if ack.source[:1] != CLIENT_MARK and endpoint_of(ack.source) in self._host.partitions:
            self._host.acknowledged(ack)
        # If it is here and was heard from elsewhere, we may be the last to know that it has moved.
        port = self._sources.get(ack.source)
        if port is not None:
            port.acknowledge(ack)
            if self._also_heard:
                for other in self._also_heard.get(ack.source, ()):
                    other.acknowledge(ack)

    def send_to_peer(self, worker: str, message: bytes) -> bool:
        """Say something of leases to a peer; False if it cannot be reached now."""
        port = self._peers.get(worker) or self._callers.get(worker)
        if port is None:
            self._connect_later(worker)
            return False
        port.lease(message)
        return True

    def ensure_connected(self, worker: str) -> None:
        if worker not in self._peers and worker not in self._callers:
            self._connect_later(worker)

    def refuse(self, refused: Refused) -> None:
        self.refused += 1
        source = endpoint_of(refused.source)
        if source in self._host.partitions:
            self._resend(refused)
        port = self._sources.get(refused.source)
        if port is not None:
            for each in (port, *self._also_heard.get(refused.source, ())):
                each.link.send(refused)

    # Links

    def accepted(self, link: Link, hello: Hello) -> LinkReceiver:
        """Somebody has connected: a client, or a peer who wants to send.

        Before the worker has joined its cluster nobody is welcome: a client would take what the
        worker does not know yet for what there is not, and its callers would be told so.
        """
        if not self._topology.version:
            raise UnavailableError(f"{self._worker} has not joined its cluster yet")
        if self._is_cut_off and is_client(hello.endpoint):
            raise UnavailableError(
                f"{self._worker} is cut off from its directory; ask another worker"
            )
        port = PeerOutbound(hello.endpoint, link, self._room, self._limits.link_bytes_max)
        if is_instance(hello.endpoint):
            return self._accept_instance(port, hello)
        from_client = is_client(hello.endpoint)
        credit = self._limits.client_credit if from_client else self._limits.outbox_max
        link.send(
            Welcome(
                self._worker,
                self._topology,
                credit,
                self._limits.message_bytes_max,
                self._limits.key_bytes_max,
            )
        )
        if from_client:
            superseded = self._clients.get(hello.endpoint)
            self._clients[hello.endpoint] = port
            if superseded is not None:
                superseded.link.close("the client opened a newer link")
            # After the link is adopted: what it has missed while it was away.
            self._tasks.create_task(self._offer_missed(port))
        else:
            self._callers[hello.endpoint] = port
        return _Receiver(self, port)

    def _accept_instance(self, port: PeerOutbound, hello: Hello) -> LinkReceiver:
        """An instance is told nothing of the cluster: it gets leases, and can do nothing else."""
        name = port.name
        if refusal := self._gate.refusal(name, hello.code, self.code):
            raise UnavailableError(refusal)
        limits = self._limits
        port.link.send(
            Welcome(self._worker, NOWHERE, 0, limits.message_bytes_max, limits.key_bytes_max)
        )
        self._callers[name] = self._instances[name] = port
        self._peers_changed()
        return _Receiver(self, port)

    async def _offer_missed(self, port: PeerOutbound) -> None:
        if self._clients.get(port.name) is port:
            self._host.deliver_again(port.name.__eq__)

    async def _connect_peer(self, worker: str) -> None:
        wait_s = CONNECT_WAIT_S
        receiver = _Receiver(self, None)
        try:
            while True:
                address = self._topology.workers.get(worker)
                if address is None:
                    return
                try:
                    hello = Hello(self._worker, called=worker)
                    link = await self._connect(address, hello, receiver)
                except UnavailableError:
                    await asyncio.sleep(self._about(wait_s))
                    if self._stopping:
                        return
                    wait_s = min(wait_s * 2, CONNECT_WAIT_S_MAX)
                    continue
                if worker not in self._topology.workers:
                    link.close("the worker has left")
                    return
                if receiver.ended:
                    # Between its welcome and this line.
                    receiver = _Receiver(self, None)
                    continue
                port = PeerOutbound(worker, link, self._room, self._limits.link_bytes_max)
                receiver.port = port
                port.credit = receiver.credit
                self._peers[worker] = port
                if self._stopping:
                    link.close("the worker is stopping")
                break
        finally:
            self._connecting.discard(worker)
            self._peer_gone.set()
        self._room(port)

    def _room(self, port: PeerOutbound) -> None:
        """A port can take more: offer it everything that goes its way."""
        if port.name in self._clients:
            self._host.deliver_again(port.name.__eq__)
        else:
            placement = self._topology.placement
            self._host.deliver_again(lambda endpoint: placement.get(endpoint) == port.name)

    def link_ended(self, port: PeerOutbound, reason: str, clean: bool) -> None:
        # Clients that hear that we leave go without a goodbye, which would tell us to forget them.
        if not clean and not self._stopping:
            self.links_lost += 1
            # Clients come and go as they like.
            level = "info" if is_client(port.name) else "warning"
            getattr(_log, level)("lost a link", end=port.name, reason=reason)
        for source in [each for each, via in self._also_heard.items() if port in via]:
            self._forget_link(source, port)
        gone = {source for source, via in self._sources.items() if via is port}
        for source in tuple(gone):
            others = self._also_heard.get(source)
            if others:
                self._sources[source] = other = next(iter(others))
                self._forget_link(source, other)
                gone.discard(source)
            else:
                del self._sources[source]
        for sources in self._heard.values():
            sources -= gone
        if not is_client(port.name):
            self._peer_left(port)
        if self._clients.get(port.name) is port:
            del self._clients[port.name]
            if clean and not self._stopping:
                self._host.client_gone(port.name)
        elif self._peers.get(port.name) is port:
            del self._peers[port.name]
            self._peer_gone.set()
            # Whoever owns those partitions now, or this peer when it is back, gets it again.
            self._loop_later(self._about(RETRY_S), lambda: self._room(port))

    def _about(self, wait_s: float) -> float:
        return wait_s * (0.75 + self._uniform() / 2)

    def _heard_elsewhere(self, source: str, port: PeerOutbound) -> None:
        """A source speaks on another link than before, or for the first time."""
        before = self._sources.get(source)
        self._sources[source] = port
        if before is not None and not is_client(source):
            self._also_heard.setdefault(source, {})[before] = None
            self._forget_link(source, port)

    def _forget_source(self, source: str) -> None:
        """Answer nobody any more who has spoken as this source.

        One of them may be an owner after us, though, if it took us long to hear that we are one:
        who still has something in its outbox sends it again, and is known again.
        """
        port = self._sources.pop(source, None)
        others = self._also_heard.pop(source, {})
        if port is None:
            return
        for target in [each for each, sources in self._heard.items() if source in sources]:
            error = ErrorInfo("gap", "expected message 1")
            refused = Refused(_as_heard(target, source), source, 1, error)
            for each in (port, *others):
                each.link.send(refused)

    def _forget_link(self, source: str, port: PeerOutbound) -> None:
        others = self._also_heard.get(source)
        if others is not None:
            others.pop(port, None)
            if not others:
                del self._also_heard[source]

    def _peer_left(self, port: PeerOutbound) -> None:
        if self._callers.get(port.name) is port:
            del self._callers[port.name]
        if self._instances.get(port.name) is port:
            del self._instances[port.name]
            self._peers_changed()
        # What was said on this link may be lost, although there may be another one.
        self._host.peer_lost(port.name)

    def _loop_later(self, delay_s: float, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(delay_s, call)

    def frame_received(self, port: PeerOutbound, frame: Frame) -> None:
        if port.is_client and self._clients.get(port.name) is not port:
            return  # From before the client has reconnected; it sends all of it again.
        if type(frame) is Data:
            self._data_received(port, frame)
        elif type(frame) is Refused and not is_instance(port.name):
            self._refused(port, frame)

    def _data_received(self, port: PeerOutbound, data: Data) -> None:
        self.frames_in += 1
        from_client = port.is_client
        if is_instance(port.name) and (data.batches or data.acks):
            port.link.abandon("an instance may only serve leases")
            return
        if data.acks:
            self._acknowledged(port, data.acks)
        if data.credit:
            port.credit = data.credit
        if data.leases:
            self._leases_received(port, data.leases)
        if not data.batches:
            return
        partitions, heard, sources = self._host.partitions, self._heard, self._sources
        for batch in data.batches:
            source, target = batch.source, endpoint_of(batch.target)
            if from_client and source != port.name:
                port.link.close(f"{port.name} sent a batch as {source}")
                return
            if sources.get(source) is not port:
                self._heard_elsewhere(source, port)
            hosted = partitions.get(target)
            if hosted is None:
                self._not_here(port, batch)
            elif from_client and (error := self._bad_batch(batch)) is not None:
                self._refuse_unseen(port, batch, error, error.code)
            else:
                # Also if it is refused: it may be a copy of what was taken before.
                if target not in heard:
                    heard[target] = set()
                heard[target].add(source)
                self._bring(batch, hosted, from_client=from_client)
        self._host.pump()

    def _bring(self, batch: Batch, hosted: Hosted, *, from_client: bool) -> None:
        if not from_client or batch.kind is Kind.CANCEL_CALL:  # It makes room.
            self._host.batch_arrived(batch, hosted)
        elif self._intake_closed:
            text = "the last worker that has the function is stopping"
            error = ErrorInfo("unavailable", text, STOPPED_RETRY_MS)
            self._host.refuse(batch, hosted, "stopping", error)
        elif not self._has_room(batch.count, hosted):
            text = f"the worker has {self._open_at_most} messages in flight"
            self._host.refuse(batch, hosted, "in_flight", ErrorInfo("overloaded", text, 50))
        else:
            self._host.batch_arrived(batch, hosted)

    def _acknowledged(self, port: PeerOutbound, acks: Sequence[Ack]) -> None:
        from_client = port.is_client
        for ack in acks:
            if from_client and ack.target != port.name:
                continue  # A client speaks for itself alone.
            port.acknowledged(endpoint_of(ack.source), ack.target, ack.upto)
            self._host.acknowledged(ack)

    def _leases_received(self, port: PeerOutbound, messages: list[msgspec.Raw]) -> None:
        if is_client(port.name):
            return
        for message in messages:
            try:
                told = handover_message(message)
            except msgspec.MsgspecError as error:
                _log.error("rejected a malformed peer message", peer=port.name, error=str(error))
                continue
            if told is None:
                self._host.lease_message(port.name, message)
            elif not is_instance(port.name):
                self._placed.handover_message(port.name, told)

    def _has_room(self, count: int, hosted: Hosted) -> bool:
        """Return whether the worker may take so many more from clients.

        Asking every partition costs more the more there are. So what comes is added up, what
        ends is not, and only when that reaches the bound are they asked. Then functions that hold
        less than an equal share still have room: who floods the worker is refused, not those who
        share it.
        """
        room = self._limits.in_flight_max
        if self._open_at_most + count > room:
            by_function = self._host.unanswered_by_function()
            self._open_at_most = total = sum(by_function.values())
            if total and total + count > room:
                own = by_function.setdefault(hosted.env.function.name, 0)
                if own + count > room // len(by_function) or total + count > 2 * room:
                    return False
        self._open_at_most += count
        return True

    def _bad_batch(self, batch: Batch) -> ErrorInfo | None:
        """Our own clients never send one; others may."""
        if batch.kind is Kind.MARKER:
            refusal = refusal_of_markers(batch)
            if refusal is not None:
                return ErrorInfo("rejected", refusal)
        elif batch.kind not in (Kind.SEND, Kind.CALL, Kind.CANCEL_CALL, Kind.STAGE):
            text = "clients may only send, call, cancel calls, report watermarks and stage rows"
            return ErrorInfo("rejected", text)
        longest = max(map(len, batch.keys), default=0)
        limit = self._limits.key_bytes_max
        if longest * 4 > limit and any(len(key.encode()) > limit for key in batch.keys):
            return ErrorInfo("bad_key", f"a key has more than {limit} bytes")
        limit = self._limits.message_bytes_max
        if len(memoryview(batch.payloads)) > limit:
            largest = max(len(memoryview(each)) for each in split_column(batch.payloads))
            if largest > limit:
                return ErrorInfo("too_large", f"a message has {largest} bytes; allowed: {limit}")
        return None

    def _not_here(self, port: PeerOutbound, batch: Batch) -> None:
        partition = endpoint_of(batch.target)
        if self._topology.placement.get(partition) != self._worker:
            error = ErrorInfo("not_owner", f"{partition} is not owned by this worker", 0)
        elif partition in self._placed.quarantined:
            text = f"{partition} is quarantined; `sublet status` says why it cannot be recovered"
            error = ErrorInfo("unavailable", text, STOPPED_RETRY_MS)
        else:
            error = ErrorInfo("unavailable", f"{partition} is being taken over", 50)
        if partition in self._topology.placement:
            # The sender may know of a placement that we do not know yet. It is told when the
            # partition is here, and need not wait so long.
            self._heard.setdefault(partition, set()).add(batch.source)
        self._refuse_unseen(port, batch, error, error.code)

    def _refuse_unseen(
        self, port: PeerOutbound, batch: Batch, error: ErrorInfo, reason: str
    ) -> None:
        function = endpoint_of(batch.target).rpartition("/")[0]
        if not any(each.name == function for each in self._topology.functions):
            # Anybody may ask for anything: names that mean nothing must not fill our memory.
            function = ""
        place = (function, reason)
        self.refusals[place] = self.refusals.get(place, 0) + batch.count
        port.link.send(Refused(batch.target, batch.source, batch.first, error))

    def _refused(self, port: PeerOutbound, refused: Refused) -> None:
        """A peer has not taken our batch: it lacks some before, or the partition moves."""
        if is_client(port.name) and refused.target != port.name:
            return  # A client speaks for itself alone.
        partition = endpoint_of(refused.source)
        port.rewind(partition, refused.target, refused.first)
        if refused.error.code == "gap":
            self._send_again(port, refused)
        else:
            port.hold(partition, refused.target)
            self._loop_later(RETRY_S, lambda: self._send_again(port, refused))

    def _send_again(self, port: PeerOutbound, refused: Refused) -> None:
        port.resume(endpoint_of(refused.source), refused.target)
        self._resend(refused)
        port.look_for_room()

    def _resend(self, refused: Refused) -> None:
        partition = endpoint_of(refused.source)
        if refused.error.code == "gap" and refused.epoch:
            self._host.missed(partition, refused.target, refused.first)
        else:
            # Who is no owner does not know what is missing.
            self._host.resend_from(partition, refused.target, refused.first)


def _as_heard(partition: str, source: str) -> str:
    """Return the end of the channel from `source`: replies have one of their own."""
    return partition + REPLY_MARK if source.endswith(REPLY_MARK) else partition


class _Receiver:
    """One link's frames, with the port they belong to."""

    def __init__(self, router: Router, port: PeerOutbound | None) -> None:
        self._router = router
        self.port = port
        self.credit = 0
        self.topology = NOWHERE
        self.ended = False

    def frame_received(self, link: Link, frame: Frame) -> None:
        if type(frame) is Welcome:
            self.credit, self.topology = frame.credit, frame.topology
        elif self.port is not None:
            self._router.frame_received(self.port, frame)

    def link_drained(self, link: Link) -> None:
        if self.port is not None:
            self.port.room()

    def link_ended(self, link: Link, reason: str, clean: bool) -> None:
        self.ended = True
        if self.port is not None:
            self._router.link_ended(self.port, reason, clean)
