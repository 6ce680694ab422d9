"""A worker in memory that echoes: the other side of the client, with every fault at hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import msgspec

from sublet.functions.codec import join_column, split_column
from sublet.runtime.links.link import Link, LinkLimits, LinkReceiver
from sublet.runtime.links.server import LinkServer
from sublet.runtime.partition.records.channels import Inbox
from sublet.runtime.protocol.frames import (
    Ack,
    Batch,
    Data,
    ErrorInfo,
    Frame,
    FunctionInfo,
    Hello,
    Kind,
    Refused,
    Topology,
    Welcome,
)
from sublet.runtime.protocol.rpc import Service

FUNCTIONS = [
    FunctionInfo("shop/echo", 8, "keyed"),
    FunctionInfo("shop/spread", 4, "stateless"),
    FunctionInfo("shop/counter", 4, "stateful"),
]
PARTITIONS = [f"{each.name}/{index}" for each in FUNCTIONS for index in range(each.partition_count)]


class Partition:
    """What all owners of a partition share: how far it got, what it took, whom it owes replies."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inbox = Inbox({})
        self.taken: list[tuple[str, object]] = []
        self.batches: list[Batch] = []
        self.replied: dict[str, int] = {}
        self.owed: dict[str, list[Batch]] = {}

    def take(self, batch: Batch) -> Batch | Refused | None:
        """Take what is new; return the replies, if any are wanted."""
        skip = self.inbox.accept(batch.source, batch.first, batch.count)
        if skip < 0:
            expected = self.inbox.received.get(batch.source, 0) + 1
            return Refused(self.name, batch.source, expected, ErrorInfo("gap", "expected another"))
        if skip >= batch.count:
            return None
        items = split_column(batch.payloads)[skip:]
        values = [msgspec.msgpack.decode(each) for each in items]
        self.taken.extend(zip(batch.keys[skip:], values, strict=True))
        self.batches.append(batch)
        if batch.kind is Kind.SEND:
            return None
        errors = {
            place: ErrorInfo("handler_failed", str(value))
            for place, value in enumerate(values)
            if isinstance(value, str) and value.startswith("fail")
        }
        first = self.replied.get(batch.source, 0) + 1
        self.replied[batch.source] = first + len(items) - 1
        reply = Batch(
            batch.source,
            self.name,
            first,
            Kind.REPLY,
            [],
            msgspec.Raw(join_column([bytes(each) for each in items])),
            len(items),
            refs_first=batch.first + skip,
            errors=errors or None,
        )
        self.owed.setdefault(batch.source, []).append(reply)
        return reply

    def acknowledged(self, client: str, upto: int) -> None:
        owed = self.owed.get(client, [])
        self.owed[client] = [each for each in owed if each.first + each.count - 1 > upto]

    def forget(self, client: str) -> None:
        self.inbox.forget(client)
        self.replied.pop(client, None)
        self.owed.pop(client, None)


Judge = Callable[[Batch], ErrorInfo | None]


class EchoWorker:
    """Echoes whatever the partitions that it owns are asked."""

    def __init__(self, cluster: EchoCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.credit = 4_096
        self.frames: list[Data] = []
        self.endings: list[tuple[str, bool]] = []
        self.links: dict[str, Link] = {}
        self.judge: Judge = lambda batch: None
        """Says whether a batch is refused, and why."""
        self.silent = False
        """Takes messages, and answers nothing."""

    def accept(self, link: Link, hello: Hello) -> LinkReceiver:
        self.links[hello.endpoint] = link
        link.send(Welcome(self.name, self.cluster.topology, self.credit, 64 * 1024, 64))
        for partition in self.cluster.owned_by(self.name):
            for batch in partition.owed.get(hello.endpoint, ()):
                link.send(Data([batch]))
        return self

    def frame_received(self, link: Link, frame: Frame) -> None:
        if isinstance(frame, Refused):
            partition = self.cluster.partitions[frame.source]
            link.send(Data(list(partition.owed[frame.target])))
            return
        assert isinstance(frame, Data)
        self.frames.append(frame)
        for ack in frame.acks:
            self.cluster.partitions[ack.source].acknowledged(ack.target, ack.upto)
        replies: list[Batch] = []
        acks: list[Ack] = []
        for batch in frame.batches:
            answer = self._take(batch)
            if isinstance(answer, Refused):
                link.send(answer)
                continue
            if answer is not None:
                replies.append(answer)
            taken = self.cluster.partitions[batch.target].inbox.received[batch.source]
            acks.append(Ack(batch.target, batch.source, taken))
        if not self.silent and (replies or acks):
            link.send(Data(replies, acks))

    def _take(self, batch: Batch) -> Batch | Refused | None:
        error = self.judge(batch)
        if error is None and self.cluster.placement[batch.target] != self.name:
            error = ErrorInfo("not_owner", "it is elsewhere")
        if error is not None:
            return Refused(batch.target, batch.source, batch.first, error)
        return self.cluster.partitions[batch.target].take(batch)

    def link_drained(self, link: Link) -> None:
        pass

    def link_ended(self, link: Link, reason: str, clean: bool) -> None:
        self.endings.append((reason, clean))
        for client, known in list(self.links.items()):
            if known is link:
                del self.links[client]
                # Its answer to a goodbye of ours is clean, too, and means nothing of the kind.
                if clean and reason == "client closed":
                    for partition in self.cluster.partitions.values():
                        partition.forget(client)


class EchoCluster:
    """Two workers that share their partitions' memory, as if it were durable."""

    def __init__(self) -> None:
        self.partitions = {name: Partition(name) for name in PARTITIONS}
        self.placement = {
            name: "w1" if int(name.rpartition("/")[2]) % 2 == 0 else "w2" for name in PARTITIONS
        }
        self.addresses: dict[str, str] = {}
        self.functions = list(FUNCTIONS)
        self.version = 1
        self.workers = {name: EchoWorker(self, name) for name in ("w1", "w2")}

    @property
    def topology(self) -> Topology:
        return Topology(self.version, self.functions, dict(self.placement), dict(self.addresses))

    def owned_by(self, worker: str) -> list[Partition]:
        return [self.partitions[name] for name in PARTITIONS if self.placement[name] == worker]

    def taken(self, function: str) -> list[tuple[str, object]]:
        return [
            each
            for name, partition in self.partitions.items()
            if name.startswith(function)
            for each in partition.taken
        ]

    def move_all(self, worker: str, *, tell: bool) -> None:
        """Give all partitions to one worker; clients are told now, or find out."""
        self.placement = dict.fromkeys(PARTITIONS, worker)
        self.version += 1
        if tell:
            for each in self.workers.values():
                for link in each.links.values():
                    link.send(self.topology)


@asynccontextmanager
async def serving(
    worker: EchoWorker, port: int = 0, lane_path: str = ""
) -> AsyncIterator[LinkServer]:
    limits = LinkLimits(close_timeout_s=1.0)
    no_service = cast("Service", None)  # Nobody makes unary calls here.
    server = LinkServer(worker.accept, no_service, port=port, lane_path=lane_path, limits=limits)
    async with server:
        worker.cluster.addresses[worker.name] = server.address
        yield server


@asynccontextmanager
async def running_cluster() -> AsyncIterator[EchoCluster]:
    cluster = EchoCluster()
    async with serving(cluster.workers["w1"]), serving(cluster.workers["w2"]):
        yield cluster
