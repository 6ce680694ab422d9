"""A client in another language, as a worker sees it: frames by hand, right or wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from sublet.functions.address import partition_index_of, partition_name
from sublet.runtime.links.grpc_link import connect
from sublet.runtime.links.link import Link
from sublet.runtime.protocol.frames import (
    Ack,
    Batch,
    Data,
    ErrorInfo,
    Frame,
    Hello,
    Kind,
    Refused,
    Welcome,
)
from tests.integration.cluster import PATIENCE_S


class RawClient:
    """Keeps what the worker says. Acknowledges nothing by itself."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.link: Link
        self.welcome: Welcome
        self.refusals: list[Refused] = []
        self.replies: dict[tuple[str, int], object] = {}
        self.errors: dict[tuple[str, int], ErrorInfo] = {}
        self.acknowledged: dict[str, int] = {}
        self.ending: tuple[str, bool] | None = None
        self._changed = asyncio.Event()

    def frame_received(self, link: Link, frame: Frame) -> None:
        if isinstance(frame, Welcome):
            self.welcome = frame
        elif isinstance(frame, Refused):
            self.refusals.append(frame)
        elif isinstance(frame, Data):
            for ack in frame.acks:
                self.acknowledged[ack.target] = ack.upto
            for batch in frame.batches:
                self._take_replies(batch)
        self._changed.set()

    def _take_replies(self, batch: Batch) -> None:
        values = msgspec.msgpack.decode(batch.payloads)
        refs = batch.refs or range(batch.refs_first, batch.refs_first + batch.count)
        for place, (ref, value) in enumerate(zip(refs, values, strict=True)):
            self.replies[batch.source, ref] = value
            if batch.errors and place in batch.errors:
                self.errors[batch.source, ref] = batch.errors[place]

    def link_drained(self, link: Link) -> None:
        pass

    def link_ended(self, link: Link, reason: str, clean: bool) -> None:
        self.ending = (reason, clean)
        self._changed.set()

    def send(
        self,
        partition: str,
        first: int,
        messages: list[tuple[str, object]],
        *,
        kind: Kind = Kind.CALL,
        source: str = "",
    ) -> None:
        payloads = msgspec.Raw(msgspec.msgpack.encode([message for _, message in messages]))
        keys = [key for key, _ in messages]
        source = source or self.endpoint
        batch = Batch(partition, source, first, kind, keys, payloads, len(keys))
        self.link.send(Data([batch]))

    def acknowledge(self, partition: str, upto: int, target: str = "") -> None:
        self.link.send(Data(acks=[Ack(target or self.endpoint, partition, upto)]))

    def partition_of(self, function: str, key: str) -> str:
        (info,) = (each for each in self.welcome.topology.functions if each.name == function)
        return partition_name(function, partition_index_of(key, info.partition_count))

    async def answered(self, partition: str, number: int) -> None:
        """Wait until a message is acknowledged, or anything was refused."""
        await self.until(
            lambda: bool(self.refusals) or self.acknowledged.get(partition, 0) >= number
        )

    async def until(self, happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not happened():
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def raw_client(address: str, endpoint: str = "~raw") -> AsyncIterator[RawClient]:
    client = RawClient(endpoint)
    async with asyncio.TaskGroup() as tasks:
        client.link = await connect(address, Hello(endpoint), client, tasks, lane="never")
        try:
            yield client
        finally:
            client.link.close("the test is over")
            await client.until(lambda: client.ending is not None)
