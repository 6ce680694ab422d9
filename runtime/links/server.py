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
from typing import NoReturn, TypeVar, cast

import grpc
import msgspec
import structlog
from grpc import aio

from sublet.functions.address import is_client
from sublet.functions.errors import OverloadedError, SubletError, UnavailableError
from sublet.runtime.config.addresses import joined
from sublet.runtime.config.settings import PortTakenError
from sublet.runtime.links.grpc_link import GrpcCarrier, Stream, server_options
from sublet.runtime.links.identity import Challenged, NoPeers, PeerKeys
from sublet.runtime.links.lifecycle import FrameLink
from sublet.runtime.links.link import PROTOCOL, Link, LinkLimits, ReceiverFactory
from sublet.runtime.links.raw_lane import (
    LaneCarrier,
    LaneTokens,
    prepare_lane_path,
    remove_lane_socket,
)
from sublet.runtime.observability.tracing import TRACEPARENT_CHARS_MAX
from sublet.runtime.protocol.frames import Frame, Goodbye, Hello, Proof
from sublet.runtime.protocol.rpc import (
    CallInfo,
    CallRequest,
    LaneOffer,
    Service,
    StatusReport,
    answering,
)
from sublet.runtime.protocol.wire import methods
from sublet.runtime.protocol.wire.errors import REQUEST_ID_METADATA, status_from_error
from sublet.runtime.protocol.wire.frames import encode_frame
from sublet.runtime.protocol.wire.methods import SERVICE, TRACE_METADATA, Method

_log = structlog.get_logger(__name__)

RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")

Context = aio.ServicerContext[bytes, bytes]

USED_S = 5.0
"""A worker that was called so recently is probably called again."""
CLOSED_RETRY_MS = 500
NO_PEER = (
    "only workers of this cluster may use such a name, and you have not proved to be one; "
    "names of clients begin with ~"
)
_DEADLINE_S_MAX = 365 * 24 * 3600.0


class LinkServer:
    """Accepts links and answers unary calls between `async with` and its end.

    The end says goodbye on every link and waits for the peers' answer, `close_timeout_s` at most.
    """

    def __init__(  # noqa: PLR0913  # Where it listens, and to whom, is all named.
        self,
        receiver_factory: ReceiverFactory,
        service: Service,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        or_any_port: bool = False,
        lane_path: str = "",
        limits: LinkLimits | None = None,
        peers: PeerKeys | None = None,
    ) -> None:
        """Port 0 takes any free one, as does one that is taken with `or_any_port`. Without a lane
        path there is no lane; without `peers` only clients may open links."""
        self._receiver_factory = receiver_factory
        self._service = service
        self._host = host
        self._port = port
        self._or_any_port = or_any_port
        # Absolute: clients have their own working folders.
        self._lane_path = os.path.abspath(lane_path) if lane_path else ""
        self._limits = limits or LinkLimits()
        self._peers = peers or NoPeers()
        self._tokens = LaneTokens()
        self._links: set[FrameLink] = set()
        self._link_gone = asyncio.Event()
        self._call_ended = asyncio.Event()
        self._unary_calls = 0
        self._asked_calls = 0
        """Those of them that callers wait for."""
        self.served = 0
        """Calls of people and programs so far, those not counted that only look how a worker is."""
        self._called_s = -USED_S
        self._is_closed = False
        self._stopping = False
        self._grpc_server: aio.Server
        self._lane_server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        """host:port at which the gRPC server listens, once it is started."""
        return joined(self._host, self._port)

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
        return bool(self._asked_calls) or self._used_for_s() > 0

    def _used_for_s(self) -> float:
        return self._called_s + USED_S - asyncio.get_running_loop().time()

    async def unused(self) -> None:
        """Wait until no more unary calls are to be expected."""
        while self.is_used:
            if self._asked_calls:
                await self._answered()
            else:
                await asyncio.sleep(self._used_for_s())

    @property
    def is_asked(self) -> bool:
        """Whether somebody waits for the answer of a unary call."""
        return bool(self._asked_calls)

    def close(self) -> None:
        """Refuse unary calls from now on; nothing has happened then. Those under way are answered,
        and links go on."""
        self._is_closed = True

    async def closed(self) -> None:
        """Wait, after `close`, until every unary call has its reply."""
        assert self._is_closed
        await self._answered()

    async def _answered(self) -> None:
        while self._asked_calls:
            self._call_ended.clear()
            await self._call_ended.wait()

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
        try:
            # gRPC would write a line of its own, and raise one that says less.
            _check_free(self._host, self._port)
        except PortTakenError:
            if not self._or_any_port:
                raise
            _log.warning("the port is in use; listening for gRPC on another", port=self._port)
            self._port = 0
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
        doorkeeper = _Doorkeeper(self._accept, self._peers)
        link = FrameLink(carrier, doorkeeper, self._limits, f"{context.peer()} (grpc)")
        refusal = self._refusal()
        if refusal is not None:
            await context.write(encode_frame(Goodbye(refusal)))
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
        doorkeeper = _Doorkeeper(self._accept, self._peers, self._tokens)
        link = FrameLink(carrier, doorkeeper, self._limits, "lane")
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

    def _accept(self, link: FrameLink, hello: Hello) -> None:
        try:
            receiver = self._receiver_factory(link, hello)
        except SubletError as error:
            link.fail(str(error))
            return
        link.adopt(receiver)

    def _handlers(self) -> grpc.GenericRpcHandler:
        unary, service = self._unary, self._service
        # Without serializers gRPC hands over the bytes as they are.
        handlers = {
            "Connect": grpc.stream_stream_rpc_method_handler(self._connect),
            **unary(methods.OPEN_LANE, self._open_lane, is_asked=False),
            **unary(methods.CALL, self._call),
            **unary(methods.SEND, self._send),
            **unary(methods.STATUS, self._status, is_asked=False),
            **unary(methods.READ_EGRESS, lambda request, _: service.read_egress(request)),
            **unary(methods.LIST_EGRESSES, lambda request, _: service.list_egresses(request)),
            **unary(methods.READ_STATE, lambda request, _: service.read_state(request)),
            **unary(methods.LIST_STATE, lambda request, _: service.list_state(request)),
            **unary(methods.PIN_SNAPSHOT, lambda request, _: service.pin_snapshot(request)),
            **unary(methods.READ_SNAPSHOT, lambda request, _: service.read_snapshot(request)),
            **unary(methods.END_SNAPSHOT, lambda request, _: service.end_snapshot(request)),
            **unary(methods.DESCRIBE_FUNCTIONS, lambda *_: service.describe_functions()),
            **unary(methods.LIST_RECORDS, lambda request, _: service.list_records(request)),
            **unary(methods.EXPLAIN, lambda request, _: service.explain(request)),
            **unary(methods.SCALING, lambda request, _: service.scaling(request), is_served=False),
            **unary(methods.ADMINISTER, lambda request, _: service.administer(request)),
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _unary(
        self,
        method: Method[RequestT, ReplyT],
        answer: Callable[[RequestT, Context], Awaitable[ReplyT]],
        *,
        is_asked: bool = True,
        is_served: bool = True,
    ) -> dict[str, grpc.RpcMethodHandler[bytes, bytes]]:
        """`is_asked`: other workers can answer it, too, so one that stops leaves it to them.
        `is_served`: a worker that is asked this has something to do."""

        async def handle(encoded: bytes, context: Context) -> bytes:
            if self._unary_calls >= self._limits.unary_calls_max:
                return await _abort(context, OverloadedError("too many calls are in flight"))
            if self._is_closed and is_asked:
                text = "this worker is stopping; ask another one"
                return await _abort(context, UnavailableError(text, CLOSED_RETRY_MS))
            self._unary_calls += 1
            self._asked_calls += is_asked
            if is_asked:
                self._called_s = asyncio.get_running_loop().time()
                self.served += is_served
            try:
                request = method.request.decode(encoded)
                return method.encode_reply(await answer(request, context), request)
            except SubletError as error:
                return await _abort(context, error)
            except Exception:
                _log.exception("a unary call failed", method=method.name)
                return await _abort(context, SubletError("internal error; see the worker's log"))
            finally:
                self._unary_calls -= 1
                self._asked_calls -= is_asked
                self._call_ended.set()

        return {method.name: grpc.unary_unary_rpc_method_handler(handle)}

    async def _open_lane(self, request: None, context: Context) -> LaneOffer:
        if self._lane_server is None:
            return LaneOffer()
        token = secrets.token_hex(16)
        self._tokens.add(token, asyncio.get_running_loop().time())
        return LaneOffer(path=self._lane_path, token=token)

    async def _call(self, request: CallRequest, context: Context) -> bytes:
        with _telling_id(context):
            return await self._service.call(_with_metadata(request, context))

    async def _send(self, request: CallRequest, context: Context) -> None:
        with _telling_id(context):
            await self._service.send(_with_metadata(request, context))

    async def _status(self, request: None, context: Context) -> StatusReport:
        self._called_s = asyncio.get_running_loop().time()  # Callers of it may ask for more.
        return await self._service.status()


class _Doorkeeper:
    """Receives for a link until it is known who has opened it."""

    def __init__(
        self,
        accept: Callable[[FrameLink, Hello], None],
        peers: PeerKeys,
        tokens: LaneTokens | None = None,
    ) -> None:
        """The `tokens` are those of lanes, if it is one."""
        self._accept = accept
        self._peers = peers
        self._tokens = tokens
        self._hello: Hello | None = None
        self._challenged: Challenged | None = None

    def frame_received(self, link: Link, frame: Frame) -> None:
        assert isinstance(link, FrameLink)
        if isinstance(frame, Hello) and self._hello is None:
            self._hello = frame
            self._hello_received(link, frame)
        elif isinstance(frame, Proof) and self._challenged is not None and self._hello is not None:
            if self._challenged.is_met(frame):
                self._admit(link, self._hello)
            else:
                link.fail(NO_PEER)
        else:
            link.fail("the first frame must be hello")

    def _hello_received(self, link: FrameLink, hello: Hello) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._tokens is not None and not self._tokens.take(hello.lane_token, now_s):
            link.fail("a lane opens with a fresh token from OpenLane")
        elif hello.protocol != PROTOCOL:
            link.fail(f"protocol {hello.protocol} is not supported; allowed: {PROTOCOL}")
        elif is_client(hello.endpoint):
            self._admit(link, hello)
        else:
            self._challenged = Challenged(self._peers, hello)
            challenge = self._challenged.challenge()
            if challenge is None:
                link.fail(NO_PEER)
            else:
                link.send(challenge)

    def _admit(self, link: FrameLink, hello: Hello) -> None:
        self._accept(link, msgspec.structs.replace(hello, lane_token="", nonce=b""))

    def link_drained(self, link: Link) -> None:
        pass

    def link_ended(self, link: Link, reason: str, clean: bool) -> None:
        pass


async def _abort(context: Context, error: SubletError) -> NoReturn:
    status, text, metadata = status_from_error(error)
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
        context.set_trailing_metadata(((REQUEST_ID_METADATA, info.request_id),))


def _with_metadata(request: CallRequest, context: Context) -> CallRequest:
    """Return the request with what the gRPC call says beside it: its deadline and its trace."""
    request = _with_deadline(request, context)
    for name, value in context.invocation_metadata() or ():
        if name == TRACE_METADATA and len(value) <= TRACEPARENT_CHARS_MAX:
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


def _check_free(host: str, port: int) -> None:
    """Raise `PortTakenError` if somebody listens there already, `OSError` if nobody can."""
    try:
        found = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise _cannot_listen(host, error) from None
    failures: list[OSError] = []
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
                    raise PortTakenError(port, "--port") from None
                failures.append(error)
    # A name may stand for several addresses; one is enough.
    if len(failures) == len(found):
        raise _cannot_listen(host, failures[0])


def _cannot_listen(host: str, error: OSError) -> OSError:
    return OSError(
        f"cannot listen on {host}: {error.strerror}; choose an address of this machine (--host)"
    )
