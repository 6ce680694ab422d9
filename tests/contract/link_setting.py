"""A server, its peers and what they heard: the stage on which links are tested."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, Protocol

import msgspec
from grpc import aio

from sublet.runtime.links.grpc_link import channel_options, connect
from sublet.runtime.links.identity import PeerKeys
from sublet.runtime.links.link import Link, LinkLimits
from sublet.runtime.links.server import LinkServer
from sublet.runtime.protocol.frames import (
    Batch,
    Data,
    Frame,
    FunctionInfo,
    Hello,
    Kind,
    Topology,
    Welcome,
)
from sublet.runtime.protocol.rpc import (
    CallRequest,
    EgressPage,
    EgressRequest,
    LaneOffer,
    StateReport,
    StateRequest,
    StatusReport,
)
from sublet.runtime.protocol.wire.frames import decode_frame, encode_frame
from sublet.runtime.protocol.wire.methods import OPEN_LANE, SERVICE

PATIENCE_S = 60.0
TOPOLOGY = Topology(
    version=3,
    functions=[FunctionInfo("shop/cart", 4, "keyed")],
    placement={"shop/cart/0": "w1"},
    workers={"w1": "127.0.0.1:7171"},
)
WELCOME = Welcome("w1", TOPOLOGY, credit=100, message_bytes_max=4_000_000, key_bytes_max=512)

Lane = Literal["auto", "never"]


def batch_frame(first: int, payload: object = 1, count: int = 1) -> Data:
    payloads = msgspec.Raw(msgspec.msgpack.encode([payload] * count))
    return Data([Batch("shop/cart/0", "~c", first, Kind.SEND, ["key"] * count, payloads, count)])


class Keeper:
    """Keeps what its link told it, and fails at once if the link breaks its promises."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.drained_count = 0
        self.ending: tuple[str, bool] | None = None
        self._changed = asyncio.Event()

    def frame_received(self, link: Link, frame: Frame) -> None:
        assert self.ending is None, "a frame after the end"
        self.frames.append(frame)
        self._changed.set()

    def link_drained(self, link: Link) -> None:
        assert self.ending is None, "drained after the end"
        self.drained_count += 1
        self._changed.set()

    def link_ended(self, link: Link, reason: str, clean: bool) -> None:
        assert self.ending is None, "ended twice"
        self.ending = (reason, clean)
        self._changed.set()

    async def until(self, happened: Callable[[], bool]) -> None:
        while not happened():
            self._changed.clear()
            await self._changed.wait()

    async def data_frames(self, count: int) -> list[Data]:
        """Wait for `count` data frames and return all that came."""
        await self.until(lambda: len(self.frames) - self._control_count() >= count)
        return [frame for frame in self.frames if isinstance(frame, Data)]

    async def end(self) -> tuple[str, bool]:
        await self.until(lambda: self.ending is not None)
        assert self.ending is not None
        return self.ending

    def _control_count(self) -> int:
        return sum(1 for frame in self.frames[:1] if isinstance(frame, Welcome))


class NoService:
    """For tests of links alone."""

    async def call(self, request: CallRequest) -> bytes:
        raise NotImplementedError

    async def send(self, request: CallRequest) -> None:
        raise NotImplementedError

    async def status(self) -> StatusReport:
        raise NotImplementedError

    async def read_egress(self, request: EgressRequest) -> EgressPage:
        raise NotImplementedError

    async def read_state(self, request: StateRequest) -> StateReport:
        raise NotImplementedError


class RawPeer(Protocol):
    """A client in another language: it writes and reads serialized frames, or does not."""

    async def write(self, encoded: bytes) -> None: ...

    async def read(self) -> bytes | None:
        """Return the next frame, None at the end."""
        ...

    async def vanish(self) -> None:
        """End the transport without a goodbye."""
        ...


class RawStream:
    def __init__(self, channel: aio.Channel) -> None:
        self._channel = channel
        stream: aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            f"/{SERVICE}/Connect"
        )
        self._call = stream()

    async def write(self, encoded: bytes) -> None:
        await self._call.write(encoded)

    async def read(self) -> bytes | None:
        try:
            encoded = await self._call.read()
        except aio.AioRpcError:
            return None
        return encoded if isinstance(encoded, bytes) else None

    async def vanish(self) -> None:
        await self._call.done_writing()


class RawLane:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def write(self, encoded: bytes) -> None:
        self.writer.write(struct.pack("<I", len(encoded)) + encoded)
        await self.writer.drain()

    async def read(self) -> bytes | None:
        try:
            (length,) = struct.unpack("<I", await self._reader.readexactly(4))
            return await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def vanish(self) -> None:
        self.writer.close()


class Setting:
    """One server; clients and raw peers come by one kind of transport."""

    def __init__(self, server: LinkServer, lane: Lane, tasks: asyncio.TaskGroup) -> None:
        self.server = server
        self.lane: Lane = lane
        self.tasks = tasks
        self.accepted: list[tuple[Link, Keeper]] = []
        self.hellos: list[Hello] = []
        self.arrived = asyncio.Event()

    def receiver(self, link: Link, hello: Hello) -> Keeper:
        keeper = Keeper()
        self.accepted.append((link, keeper))
        self.hellos.append(hello)
        link.send(WELCOME)
        self.arrived.set()
        return keeper

    async def connect(
        self, keeper: Keeper, name: str = "~c", limits: LinkLimits | None = None
    ) -> Link:
        return await connect(
            self.server.address, Hello(name), keeper, self.tasks, lane=self.lane, limits=limits
        )

    async def pair(self, limits: LinkLimits | None = None) -> tuple[Link, Keeper, Link, Keeper]:
        """Return a client's link with its keeper, and the server's side of it."""
        keeper = Keeper()
        link = await self.connect(keeper, limits=limits)
        return link, keeper, *self.accepted[-1]

    async def lane_offer(self) -> LaneOffer:
        async with self._channel() as channel:
            ask: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(OPEN_LANE.path)
            return OPEN_LANE.reply.decode(await ask(b""))

    @asynccontextmanager
    async def raw_peer(self, hello: Hello | None = None) -> AsyncIterator[RawPeer]:
        """Open a transport without a link on it; with a hello, wait for the welcome."""
        if self.lane == "auto":
            offer = await self.lane_offer()
            path, token = offer.path, offer.token
            if hello is not None:
                hello = msgspec.structs.replace(hello, lane_token=token)
            # A small buffer in the kernel, so that one who does not read is soon noticed.
            raw_socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            raw_socket.setblocking(False)
            await asyncio.get_running_loop().sock_connect(raw_socket, path)
            lane = RawLane(*await asyncio.open_unix_connection(sock=raw_socket, limit=4_096))
            try:
                yield await self._welcomed(lane, hello)
            finally:
                lane.writer.close()
        else:
            async with self._channel() as channel:
                yield await self._welcomed(RawStream(channel), hello)

    async def _welcomed(self, peer: RawPeer, hello: Hello | None) -> RawPeer:
        if hello is not None:
            await peer.write(encode_frame(hello))
            encoded = await peer.read()
            assert encoded is not None
            assert decode_frame(encoded) == WELCOME
        return peer

    def _channel(self) -> aio.Channel:
        options = channel_options(LinkLimits())
        return aio.insecure_channel(self.server.address, options=options)


@asynccontextmanager
async def setting(
    lane: Lane, folder: Path, limits: LinkLimits | None = None, peers: PeerKeys | None = None
) -> AsyncIterator[Setting]:
    def receiver(link: Link, hello: Hello) -> Keeper:
        return stage.receiver(link, hello)

    lane_path = str(folder / "lane")
    async with (
        asyncio.timeout(PATIENCE_S),
        asyncio.TaskGroup() as tasks,
        LinkServer(
            receiver, NoService(), lane_path=lane_path, limits=limits, peers=peers
        ) as server,
    ):
        stage = Setting(server, lane, tasks)
        yield stage
