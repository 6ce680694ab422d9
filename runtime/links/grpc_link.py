"""Links over a bidirectional gRPC stream, and the client's side of the contract.

A frame is written as it is: frames are already full, and gRPC would gain nothing from waiting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Literal, Protocol, TypeVar, cast

import grpc
import msgspec
from grpc import aio

from sublet.functions.errors import SubletError, UnavailableError
from sublet.runtime.links.identity import Claim, PeerKeys
from sublet.runtime.links.lifecycle import FrameLink
from sublet.runtime.links.link import Link, LinkLimits, LinkReceiver
from sublet.runtime.links.raw_lane import LaneCarrier
from sublet.runtime.observability.tracing import current_traceparent
from sublet.runtime.protocol.frames import Challenge, Frame, Hello, Welcome
from sublet.runtime.protocol.rpc import (
    AdministerRequest,
    CallInfo,
    CallRequest,
    EgressList,
    EgressListRequest,
    EgressPage,
    EgressRequest,
    EndSnapshotRequest,
    ExplainRequest,
    FunctionDescription,
    PinnedPartition,
    PinRequest,
    RecordPage,
    RecordsRequest,
    RequestTimes,
    ScalingReport,
    ScalingRequest,
    SnapshotPage,
    SnapshotPageRequest,
    StateListRequest,
    StatePage,
    StateReport,
    StateRequest,
    StatusReport,
)
from sublet.runtime.protocol.wire import methods
from sublet.runtime.protocol.wire.errors import REQUEST_ID_METADATA, error_from_status
from sublet.runtime.protocol.wire.methods import SERVICE, TRACE_METADATA, Method

RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")

# A frame somewhat above the limit still arrives, and is answered by a goodbye that says why.
# One far above it is refused by gRPC itself, before it is in memory.
_SLACK_BYTES = 64 * 2**10
NO_WORKER = "another process answers there, not the worker of this cluster that was called"
_STREAM_FAILED = (grpc.RpcError, aio.BaseError, asyncio.InvalidStateError)


def connection_options(limits: LinkLimits) -> list[tuple[str, int]]:
    """Return what both ends of every gRPC connection are set to."""
    silence_ms = int(limits.silence_s * 1_000)
    return [
        ("grpc.max_receive_message_length", limits.frame_bytes_max + _SLACK_BYTES),
        ("grpc.max_send_message_length", limits.frame_bytes_max + _SLACK_BYTES),
        # For unary calls: links look after their peers themselves. The kernel then gives up what is
        # not acknowledged for so long, however slow the line is.
        ("grpc.keepalive_time_ms", silence_ms),
        ("grpc.keepalive_timeout_ms", silence_ms),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def channel_options(limits: LinkLimits, *, retries: bool = False) -> list[tuple[str, int]]:
    """`retries`: what a server that goes away has never seen is asked again, over a new
    connection."""
    return [
        *connection_options(limits),
        # A worker that comes back on its old port is reached at once, not after the waiting time
        # that an earlier channel to it has run up.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", int(retries)),
    ]


def server_options(limits: LinkLimits) -> list[tuple[str, int]]:
    return [
        *connection_options(limits),
        # Two workers on one port would share its connections by chance.
        ("grpc.so_reuseport", 0),
        # How often somebody asks whether we live is their affair: an answer costs next to nothing.
        ("grpc.http2.max_ping_strikes", 0),
    ]


class Stream(Protocol):
    """What a client's call and a server's context have in common."""

    def read(self) -> Awaitable[object]: ...

    def write(self, message: bytes, /) -> Awaitable[None]: ...


class GrpcCarrier:
    """One stream. Whoever opened or accepted it runs `run` until the link has ended."""

    def __init__(
        self,
        stream: Stream,
        limits: LinkLimits,
        half_close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """A client gives `half_close`; a server ends its stream by returning from `run`."""
        self._stream = stream
        self._limits = limits
        self._half_close = half_close
        self._queue: deque[bytes] = deque()
        self._pending_bytes = 0
        self._above_high = False
        self._finishing = False
        self._wake = asyncio.Event()
        self._over = asyncio.Event()
        self._abort_timer: asyncio.TimerHandle | None = None

    @property
    def pending_bytes(self) -> int:
        return self._pending_bytes

    def write(self, encoded: bytes) -> None:
        self._queue.append(encoded)
        self._pending_bytes += len(encoded)
        if self._pending_bytes > self._limits.pending_bytes_high:
            self._above_high = True
        self._wake.set()

    def finish(self) -> None:
        self._finishing = True
        self._wake.set()
        self._abort_timer = asyncio.get_running_loop().call_later(
            self._limits.close_timeout_s, self.abort
        )

    def abort(self) -> None:
        self._over.set()

    async def run(self, link: FrameLink) -> None:
        """Move frames both ways until the stream is over."""
        try:
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(self._read_frames(link))
                writer = tasks.create_task(self._write_frames(link))
                await self._over.wait()
                reader.cancel()
                writer.cancel()
        finally:
            if self._abort_timer is not None:
                self._abort_timer.cancel()
            self._queue.clear()
            self._pending_bytes = 0
            link.carrier_lost("lost: the stream was abandoned")

    async def _read_frames(self, link: FrameLink) -> None:
        read = self._stream.read
        try:
            while (encoded := await read()) is not aio.EOF:
                link.bytes_received(cast("bytes", encoded))
            link.carrier_lost("lost: the stream ended without a goodbye")
        except _STREAM_FAILED as error:
            link.carrier_lost(f"lost: {_reason(error)}")
        self._over.set()

    async def _write_frames(self, link: FrameLink) -> None:
        queue, write = self._queue, self._stream.write
        try:
            while True:
                while queue:
                    encoded = queue.popleft()
                    await write(encoded)
                    self._pending_bytes -= len(encoded)
                    if self._above_high and self._pending_bytes <= self._limits.pending_bytes_low:
                        self._above_high = False
                        link.carrier_drained()
                if self._finishing:
                    break
                self._wake.clear()
                await self._wake.wait()
            if self._half_close is None:
                self._over.set()
            else:
                # The reader then sees the server end the stream: to cancel it from here could
                # overtake the goodbye.
                await self._half_close()
        except _STREAM_FAILED:
            # Only the reader knows whether the peer said goodbye before: it reads to the end.
            return


def _reason(error: Exception) -> str:
    if isinstance(error, aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__


async def connect(
    address: str,
    hello: Hello,
    receiver: LinkReceiver,
    tasks: asyncio.TaskGroup,
    *,
    lane: Literal["auto", "never"] = "auto",
    limits: LinkLimits | None = None,
    peers: PeerKeys | None = None,
) -> Link:
    """Open a link to a worker's gRPC address and return it once the worker has welcomed us.

    The receiver has then got the `Welcome`. With `lane="auto"` the link is a raw lane, where the
    worker offers one that can be opened from here. Tasks of the link run in `tasks` until it ends.
    Who is no client proves with what it knows of its `peers` that it is one.
    Raises `UnavailableError` if there is no worker, or if it does not want the link; the receiver
    hears nothing then.
    """
    limits = limits or LinkLimits()
    channel = aio.insecure_channel(address, options=channel_options(limits))
    try:
        async with asyncio.timeout(limits.hello_timeout_s):
            if lane == "auto":
                greeter = Greeter(receiver, hello, peers)
                link = await _connect_lane(channel, address, greeter, limits)
                if link is not None:
                    await channel.close()
                    return link
    except TimeoutError:
        await channel.close()
        raise UnavailableError(f"{address} did not respond") from None
    except BaseException:
        await channel.close()
        raise
    return await _connect_stream(channel, address, Greeter(receiver, hello, peers), tasks, limits)


async def _connect_lane(
    channel: aio.Channel, address: str, greeter: Greeter, limits: LinkLimits
) -> FrameLink | None:
    """Return a welcomed link, or None if there is no way to have one as a lane."""
    open_lane: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
        methods.OPEN_LANE.path
    )
    try:
        reply = await open_lane(methods.OPEN_LANE.request.encode(None))
    except aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return None
        raise UnavailableError(f"{address}: {_reason(error)}") from None
    offer = methods.OPEN_LANE.reply.decode(reply)
    if not offer.path:
        return None

    def link_made(carrier: LaneCarrier) -> FrameLink:
        return FrameLink(carrier, greeter, limits, f"{address} (lane)")

    loop = asyncio.get_running_loop()
    try:
        _, carrier = await loop.create_unix_connection(
            lambda: LaneCarrier(limits, link_made), offer.path
        )
    except OSError:
        # Another machine, another container, another user.
        return None
    link = carrier.link
    link.send(greeter.hello(offer.token))
    try:
        refusal = await greeter.answered
    except asyncio.CancelledError:
        carrier.abort()
        raise
    # A refused token means that the same path leads to somebody else here. Any other refusal
    # will be repeated, and then told, on the stream.
    return link if refusal is None else None


async def _connect_stream(
    channel: aio.Channel,
    address: str,
    greeter: Greeter,
    tasks: asyncio.TaskGroup,
    limits: LinkLimits,
) -> FrameLink:
    open_stream: aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
        f"/{SERVICE}/Connect"
    )
    call = open_stream()
    carrier = GrpcCarrier(cast("Stream", call), limits, call.done_writing)
    link = FrameLink(carrier, greeter, limits, f"{address} (grpc)")
    link.send(greeter.hello())

    async def run() -> None:
        try:
            await carrier.run(link)
        finally:
            await channel.close()

    tasks.create_task(run())
    await greeter.welcomed(address, limits.hello_timeout_s, carrier.abort)
    return link


class Greeter:
    """Receives for a link that waits for its `Welcome`, then hands it to the real receiver."""

    def __init__(self, receiver: LinkReceiver, hello: Hello, peers: PeerKeys | None) -> None:
        self._receiver = receiver
        self._hello = hello
        self._peers = peers
        self._claim: Claim | None = None
        self.answered: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        """None when welcomed, else why not."""

    def hello(self, lane_token: str = "") -> Hello:
        """Return what to begin with."""
        hello = msgspec.structs.replace(self._hello, lane_token=lane_token)
        if self._peers is None:
            return hello
        self._claim = Claim(self._peers, hello)
        return self._claim.hello

    async def welcomed(self, address: str, timeout_s: float, abort: Callable[[], None]) -> None:
        """Wait for the welcome; raise UnavailableError if there is none. Nobody who is not
        waited for any more is left connected."""
        try:
            async with asyncio.timeout(timeout_s):
                refusal = await self.answered
        except TimeoutError:
            abort()
            raise UnavailableError(f"{address} did not respond to hello") from None
        except asyncio.CancelledError:
            abort()
            raise
        if refusal is not None:
            raise UnavailableError(f"{address}: {refusal}")

    def frame_received(self, link: Link, frame: Frame) -> None:
        assert isinstance(link, FrameLink)
        claim = self._claim
        if isinstance(frame, Challenge) and claim is not None and not claim.is_answered:
            proof = claim.answer(frame)
            if proof is None:
                link.fail(NO_WORKER)
            else:
                link.send(proof)
        elif not isinstance(frame, Welcome):
            link.fail("the first frame must be welcome or goodbye")
        elif claim is not None and not claim.is_answered:
            link.fail(NO_WORKER)
        elif not self.answered.done():
            self.answered.set_result(None)
            link.adopt(self._receiver)
            self._receiver.frame_received(link, frame)

    def link_drained(self, link: Link) -> None:
        pass

    def link_ended(self, link: Link, reason: str, clean: bool) -> None:
        if not self.answered.done():
            self.answered.set_result(reason)


class UnaryClient:
    """The unary calls of one worker, for tools and tests; `async with` closes its connection.

    Raises what the worker raised, `UnavailableError` if it cannot be reached, and
    `UnknownOutcomeError` if it was lost in the middle.
    """

    def __init__(self, address: str, limits: LinkLimits | None = None) -> None:
        limits = limits or LinkLimits()
        self._address = address
        self._connect_timeout_s = limits.hello_timeout_s
        options = channel_options(limits, retries=True)
        self._channel = aio.insecure_channel(address, options=options)

    async def __aenter__(self) -> UnaryClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._channel.close()

    async def call(self, request: CallRequest, info: CallInfo | None = None) -> bytes:
        return await self._ask(methods.CALL, request, request.trace, info)

    async def send(self, request: CallRequest, info: CallInfo | None = None) -> None:
        await self._ask(methods.SEND, request, request.trace, info)

    async def status(self) -> StatusReport:
        return await self._ask(methods.STATUS, None)

    async def describe_functions(self) -> list[FunctionDescription]:
        return await self._ask(methods.DESCRIBE_FUNCTIONS, None)

    async def read_egress(self, request: EgressRequest) -> EgressPage:
        return await self._ask(methods.READ_EGRESS, request)

    async def list_egresses(self, request: EgressListRequest) -> EgressList:
        return await self._ask(methods.LIST_EGRESSES, request)

    async def read_state(self, request: StateRequest) -> StateReport:
        return await self._ask(methods.READ_STATE, request)

    async def list_state(self, request: StateListRequest) -> StatePage:
        return await self._ask(methods.LIST_STATE, request)

    async def pin_snapshot(self, request: PinRequest) -> list[PinnedPartition]:
        return await self._ask(methods.PIN_SNAPSHOT, request)

    async def read_snapshot(self, request: SnapshotPageRequest) -> SnapshotPage:
        return await self._ask(methods.READ_SNAPSHOT, request)

    async def end_snapshot(self, request: EndSnapshotRequest) -> None:
        await self._ask(methods.END_SNAPSHOT, request)

    async def list_records(self, request: RecordsRequest) -> RecordPage:
        return await self._ask(methods.LIST_RECORDS, request)

    async def explain(self, request: ExplainRequest) -> list[RequestTimes]:
        return await self._ask(methods.EXPLAIN, request)

    async def scaling(self, request: ScalingRequest) -> ScalingReport:
        return await self._ask(methods.SCALING, request)

    async def administer(self, request: AdministerRequest) -> None:
        await self._ask(methods.ADMINISTER, request)

    async def _ask(
        self,
        method: Method[RequestT, ReplyT],
        request: RequestT,
        trace: str = "",
        info: CallInfo | None = None,
    ) -> ReplyT:
        trace = trace or current_traceparent()
        metadata = [(TRACE_METADATA, trace)] if trace else None
        encoded = method.request.encode(request)
        await self._connected()
        ask: aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(method.path)
        try:
            call = ask(encoded, metadata=metadata)
            reply = await call
            if info is not None:
                found = {str(name): str(value) for name, value in await call.trailing_metadata()}
                info.request_id, info.trace = found.get(REQUEST_ID_METADATA, ""), trace
        except aio.AioRpcError as error:
            raise _error_of(error) from None
        return method.reply.decode(reply)

    async def _connected(self) -> None:
        # Asked first, so that a worker that is not there is not mistaken for one that was lost.
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                state = self._channel.get_state(try_to_connect=True)
                while state is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        raise UnavailableError(f"no worker responds at {self._address}")
                    await self._channel.wait_for_state_change(state)
                    state = self._channel.get_state(try_to_connect=True)
        except TimeoutError:
            raise UnavailableError(f"no worker responds at {self._address}") from None


def _error_of(error: aio.AioRpcError) -> SubletError:
    metadata = [(str(key), value) for key, value in error.trailing_metadata() or ()]
    return error_from_status(error.code(), error.details() or "", metadata)
