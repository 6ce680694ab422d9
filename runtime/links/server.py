"""Where links and unary calls arrive: one gRPC port, and beside it a lane.

Opens the door and checks who comes in. What the frames mean is their receiver's business.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import NoReturn, cast

import grpc
import msgspec
import structlog
from grpc import aio

from sublet.functions.errors import OverloadedError, SubletError, UnavailableError
from sublet.runtime.config.settings import PortTakenError
from sublet.runtime.links.grpc_link import GrpcCarrier, Stream, server_options
from sublet.runtime.links.lifecycle import FrameLink
from sublet.runtime.links.link import PROTOCOL, Link, LinkLimits, ReceiverFactory
from sublet.runtime.links.raw_lane import (
    LaneCarrier,
    LaneTokens,
    prepare_lane_path,
    remove_lane_socket,
)
from sublet.runtime.observability.tracing import TRACEPARENT_CHARS_MAX
from sublet.runtime.protocol import wire
from sublet.runtime.protocol.frames import Frame, Goodbye, Hello
from sublet.runtime.protocol.rpc import CallInfo, CallRequest, Service, answering

_log = structlog.get_logger(__name__)

Context = aio.ServicerContext[bytes, bytes]
UnaryHandler = Callable[[bytes, Context], Awaitable[bytes]]

USED_S = 5.0
"""A worker that was called so recently is probably called again."""
CLOSED_RETRY_MS = 500
_DEADLINE_S_MAX = 365 * 24 * 3600.0


class LinkServer:
    """Accepts links and answers unary calls between `async with` and its end.

    The end says goodbye on every link and waits for the peers' answer, `close_timeout_s` at most.
    """

    def __init__(
        self,
        receiver_factory: ReceiverFactory,
        service: Service,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        lane_path: str = "",
        limits: LinkLimits | None = None,
    ) -> None:
        """Port 0 takes any free one. Without a lane path there is no lane."""
        self._receiver_factory = receiver_factory
        self._service = service
        self._host = host
        self._port = port
        # Absolute: clients have their own working folders.
        self._lane_path = os.path.abspath(lane_path) if lane_path else ""
        self._limits = limits or LinkLimits()
        self._tokens = LaneTokens()
        self._links: set[FrameLink] = set()
        self._link_gone = asyncio.Event()
        self._unary_calls = 0
        self._asked_calls = 0
        """Those of them that callers wait for."""
        self._called_s = -USED_S
        self._is_closed = False
        self._stopping = False
        self._grpc_server: aio.Server
        self._lane_server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        """host:port of the gRPC server, once it is started."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    @property
    def lane_path(self) -> str:
        return self._lane_path

    @property
    def link_count(self) -> int:
        return len(self._links)

    @property
    def is_used(self) -> bool:
        """Whether unary calls are to be expected, as there were some lately."""
        now_s = asyncio.get_running_loop().time()
        return bool(self._asked_calls) or now_s < self._called_s + USED_S

    def close(self) -> None:
        """Refuse unary calls from now on; nothing has happened then. Those under way are answered,
        and links go on."""
        self._is_closed = True

    @property
    def is_closed(self) -> bool:
        """Whether, after `close`, every unary call has its reply."""
        return self._is_closed and not self._asked_calls

    async def link_count_fallen(self, count: int) -> None:
        """Wait until there are no more than `count` links."""
        while len(self._links) > count:
            self._link_gone.clear()
            await self._link_gone.wait()

    async def __aenter__(self) -> LinkServer:
        if self._lane_path:
            prepare_lane_path(self._lane_path)
        self._grpc_server = aio.server(options=server_options(self._limits))
        self._grpc_server.add_generic_rpc_handlers((self._handlers(),))
        if self._port and _is_taken(self._host, self._port):
            # gRPC would write a line of its own, and raise one that says less.
            raise PortTakenError(self._port, "--port")
        try:
            self._port = self._grpc_server.add_insecure_port(self.address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self.address}: {error}") from None
        await self._grpc_server.start()
        if self._lane_path:
            self._lane_server = await asyncio.get_running_loop().create_unix_server(
                self._lane_accepted, self._lane_path
            )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping = True
        if self._lane_server is not None:
            self._lane_server.close()
            remove_lane_socket(self._lane_path)
        for link in tuple(self._links):
            link.close("the worker is stopping")
        try:
            # A little longer than the links' own patience.
            async with asyncio.timeout(self._limits.close_timeout_s * 1.5):
                await self.link_count_fallen(0)
        except TimeoutError:
            _log.warning("links did not close in time", count=len(self._links))
        await self._grpc_server.stop(grace=0)

    async def _connect(self, requests: object, context: Context) -> None:
        carrier = GrpcCarrier(cast("Stream", context), self._limits)
        link = FrameLink(
            carrier, _Doorkeeper(self._accept), self._limits, f"{context.peer()} (grpc)"
        )
        refusal = self._refusal()
        if refusal is not None:
            await context.write(wire.encode_frame(Goodbye(refusal)))
            return
        self._links.add(link)
        link.expect_first_frame()
        try:
            await carrier.run(link)
        finally:
            self._forget(link)

    def _lane_accepted(self) -> LaneCarrier:
        return LaneCarrier(self._limits, self._lane_opened, self._forget)

    def _lane_opened(self, carrier: LaneCarrier) -> FrameLink:
        link = FrameLink(carrier, _Doorkeeper(self._accept_lane), self._limits, "lane")
        refusal = self._refusal()
        if refusal is not None:
            link.fail(refusal)
            carrier.finish()
            return link
        self._links.add(link)
        link.expect_first_frame()
        return link

    def _refusal(self) -> str | None:
        if self._stopping:
            return "the worker is stopping"
        if len(self._links) >= self._limits.links_max:
            return f"the worker has {len(self._links)} links; allowed: {self._limits.links_max}"
        return None

    def _forget(self, link: FrameLink) -> None:
        self._links.discard(link)
        self._link_gone.set()

    def _accept_lane(self, link: FrameLink, hello: Hello) -> None:
        if self._tokens.take(hello.lane_token, asyncio.get_running_loop().time()):
            self._accept(link, msgspec.structs.replace(hello, lane_token=""))
        else:
            link.fail("a lane opens with a fresh token from OpenLane")

    def _accept(self, link: FrameLink, hello: Hello) -> None:
        if hello.protocol != PROTOCOL:
            link.fail(f"protocol {hello.protocol} is not supported; allowed: {PROTOCOL}")
            return
        try:
            receiver = self._receiver_factory(link, hello)
        except SubletError as error:
            link.fail(str(error))
            return
        link.adopt(receiver)

    def _handlers(self) -> grpc.GenericRpcHandler:
        # Without serializers gRPC hands over the bytes as they are.
        methods = {
            "Connect": grpc.stream_stream_rpc_method_handler(self._connect),
            "OpenLane": self._unary(self._open_lane, is_asked=False),
            "Call": self._unary(self._call),
            "Send": self._unary(self._send),
            "Status": self._unary(self._status, is_asked=False),
            "ReadEgress": self._unary(self._read_egress),
            "ReadState": self._unary(self._read_state),
            "ListState": self._unary(self._list_state),
            "PinSnapshot": self._unary(self._pin_snapshot),
            "ReadSnapshot": self._unary(self._read_snapshot),
            "EndSnapshot": self._unary(self._end_snapshot),
            "DescribeFunctions": self._unary(self._describe_functions),
            "ListRecords": self._unary(self._list_records),
            "Explain": self._unary(self._explain),
            "Administer": self._unary(self._administer),
        }
        return grpc.method_handlers_generic_handler(wire.SERVICE, methods)

    def _unary(
        self, answer: UnaryHandler, *, is_asked: bool = True
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        """`is_asked`: it is something that the cluster is asked for; a worker that ends lets
        others answer it."""

        async def handle(encoded: bytes, context: Context) -> bytes:
            if self._unary_calls >= self._limits.unary_calls_max:
                return await _abort(context, OverloadedError("too many calls are in flight"))
            if self._is_closed and is_asked:
                told = "this worker is stopping; ask another one"
                return await _abort(context, UnavailableError(told, CLOSED_RETRY_MS))
            self._unary_calls += 1
            self._asked_calls += is_asked
            if is_asked:
                self._called_s = asyncio.get_running_loop().time()
            try:
                return await answer(encoded, context)
            except SubletError as error:
                return await _abort(context, error)
            except Exception:
                _log.exception("a unary call failed")
                return await _abort(context, SubletError("internal error; see the worker's log"))
            finally:
                self._unary_calls -= 1
                self._asked_calls -= is_asked

        return grpc.unary_unary_rpc_method_handler(handle)

    async def _open_lane(self, encoded: bytes, context: Context) -> bytes:
        if self._lane_server is None:
            return wire.encode_lane_reply("", "")
        token = secrets.token_hex(16)
        self._tokens.add(token, asyncio.get_running_loop().time())
        return wire.encode_lane_reply(self._lane_path, token)

    async def _call(self, encoded: bytes, context: Context) -> bytes:
        request = _with_metadata(wire.decode_call(encoded), context)
        with _telling_id(context):
            return wire.encode_call_reply(await self._service.call(request), request.json)

    async def _send(self, encoded: bytes, context: Context) -> bytes:
        with _telling_id(context):
            await self._service.send(_with_metadata(wire.decode_call(encoded), context))
        return wire.encode_send_reply()

    async def _status(self, encoded: bytes, context: Context) -> bytes:
        self._called_s = asyncio.get_running_loop().time()  # Who asks for it may ask for more.
        return wire.encode_status(await self._service.status())

    async def _read_egress(self, encoded: bytes, context: Context) -> bytes:
        request = wire.decode_egress_request(encoded)
        return wire.encode_egress_page(await self._service.read_egress(request), request.json)

    async def _read_state(self, encoded: bytes, context: Context) -> bytes:
        request = wire.decode_state_request(encoded)
        return wire.encode_state(await self._service.read_state(request))

    async def _list_state(self, encoded: bytes, context: Context) -> bytes:
        request = wire.decode_state_list_request(encoded)
        return wire.encode_state_page(await self._service.list_state(request))

    async def _pin_snapshot(self, encoded: bytes, context: Context) -> bytes:
        request = wire.decode_pin_request(encoded)
        return wire.encode_pinned(await self._service.pin_snapshot(request))

    async def _read_snapshot(self, encoded: bytes, context: Context) -> bytes:
        request = wire.decode_snapshot_page_request(encoded)
        return wire.encode_snapshot_page(await self._service.read_snapshot(request))

    async def _end_snapshot(self, encoded: bytes, context: Context) -> bytes:
        await self._service.end_snapshot(wire.decode_end_snapshot_request(encoded))
        return wire.encode_end_snapshot_reply()

    async def _describe_functions(self, encoded: bytes, context: Context) -> bytes:
        return wire.encode_descriptions(await self._service.describe_functions())

    async def _list_records(self, encoded: bytes, context: Context) -> bytes:
        request = wire.decode_records_request(encoded)
        return wire.encode_record_page(await self._service.list_records(request))

    async def _explain(self, encoded: bytes, context: Context) -> bytes:
        request = wire.decode_explain_request(encoded)
        return wire.encode_request_times(await self._service.explain(request))

    async def _administer(self, encoded: bytes, context: Context) -> bytes:
        await self._service.administer(wire.decode_administer_request(encoded))
        return wire.encode_administer_reply()


class _Doorkeeper:
    """Receives for a link until its hello, and sees to it that this comes first."""

    def __init__(self, accept: Callable[[FrameLink, Hello], None]) -> None:
        self._accept = accept

    def frame_received(self, link: Link, frame: Frame) -> None:
        assert isinstance(link, FrameLink)
        if isinstance(frame, Hello):
            self._accept(link, frame)
        else:
            link.fail("the first frame must be hello")

    def link_drained(self, link: Link) -> None:
        pass

    def link_ended(self, link: Link, reason: str, clean: bool) -> None:
        pass


async def _abort(context: Context, error: SubletError) -> NoReturn:
    status, text, metadata = wire.status_from_error(error)
    await context.abort(status, text, metadata)
    raise AssertionError("abort raises")


@contextmanager
def _telling_id(context: Context) -> Iterator[None]:
    """Tell the caller the id of its request, if the service has given it one."""
    info = CallInfo()
    token = answering.set(info)
    try:
        yield
    finally:
        answering.reset(token)
    if info.request_id:
        context.set_trailing_metadata(((wire.REQUEST_ID_METADATA, info.request_id),))


def _with_metadata(request: CallRequest, context: Context) -> CallRequest:
    """Return the request with what the gRPC call says beside it: its deadline and its trace."""
    request = _with_deadline(request, context)
    for name, value in context.invocation_metadata() or ():
        if name == wire.TRACE_METADATA and len(value) <= TRACEPARENT_CHARS_MAX:
            return msgspec.structs.replace(request, trace=str(value))
    return request


def _with_deadline(request: CallRequest, context: Context) -> CallRequest:
    """Return the request due at the earlier of its own deadline and that of the gRPC call."""
    remaining_s = cast("float | None", context.time_remaining())
    # A client without a deadline is shown as one with a deadline in the far future.
    if remaining_s is None or remaining_s > _DEADLINE_S_MAX:
        return request
    left_ms = max(1, int(remaining_s * 1_000))
    if request.time_left_ms is not None:
        left_ms = min(left_ms, request.time_left_ms)
    return msgspec.structs.replace(request, time_left_ms=left_ms)


def _is_taken(host: str, port: int) -> bool:
    """Tell whether somebody listens there already; False if nobody can say."""
    try:
        found = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as tried:
            # As the server does it: what ended a moment ago is nobody's.
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                tried.bind(address)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return True
    return False
