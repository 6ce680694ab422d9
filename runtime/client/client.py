"""The client: calls functions and sends them messages, from any asyncio program.

Routes, encodes and checks what callers ask for, and waits with them. Numbers, repetition and
refusals are in `session`, links in `connections`.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import datetime
from math import ceil
from types import TracebackType
from typing import Any, Literal

import msgspec

from sublet.functions.address import (
    CLIENT_MARK,
    is_placed_by_key,
    partition_index_of,
    partition_name,
)
from sublet.functions.app import Function
from sublet.functions.codec import Codec, join_column
from sublet.functions.context import check_message
from sublet.functions.duration import Duration, milliseconds
from sublet.functions.errors import (
    DeadlineExceededError,
    EncodeError,
    KeyRejectedError,
    RejectedError,
    SubletError,
    TooLargeError,
    UnavailableError,
    UnknownFunctionError,
)
from sublet.functions.watermarks import check_takes_watermarks, refusal_of_source
from sublet.functions.windows import watermark_ms_of
from sublet.runtime.client.channel import Channel
from sublet.runtime.client.connections import Events, PlainTaskGroup, SessionLinks
from sublet.runtime.client.egress_cursor import EgressCursor
from sublet.runtime.client.egress_range import EgressRange
from sublet.runtime.client.egress_reader import EgressReader, EgressSource, end_of, first_of
from sublet.runtime.client.pipelines import Pipeline, known_pipelines
from sublet.runtime.client.retries import RetryPolicy
from sublet.runtime.client.segment import (
    ANY,
    SEGMENT_BYTES_MAX,
    SEGMENT_MESSAGES_MAX,
    Gather,
    Segment,
)
from sublet.runtime.client.session import ClientStats, Session, with_extra
from sublet.runtime.client.snapshots import SnapshotPin, SnapshotSource, StateSnapshot
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.links.link import LinkLimits
from sublet.runtime.observability.telemetry import request_id
from sublet.runtime.observability.tracing import current_traceparent, new_traceparent
from sublet.runtime.protocol.frames import Extra, FunctionInfo, Kind, Topology, Welcome
from sublet.runtime.protocol.idempotency_key import refusal_of_idempotency_key
from sublet.runtime.protocol.pipeline_messages import KnownPipeline
from sublet.runtime.protocol.rpc import (
    AdministerRequest,
    CallInfo,
    CancelRequest,
    EgressPage,
    EgressRequest,
    FunctionDescription,
)

Addresses = str | Sequence[str] | Callable[[], Sequence[str]]

KEYS_CACHED_MAX = 100_000
"""Keys of one function whose partition is remembered; then all are forgotten."""
SLICE_MESSAGES_MAX = 8_192
"""Messages of one `call_many` or `send_many` that are routed in one go."""


class _Route:
    """Where the keys of one function go."""

    __slots__ = ("by_key", "channels", "info", "turn")

    def __init__(self, info: FunctionInfo, channels: list[Channel]) -> None:
        self.info = info
        self.channels = channels
        self.by_key: dict[str, Channel] = {}
        """Only keys that were found to be good."""
        self.turn = random.randrange(len(channels))

    def next_channel(self) -> Channel:
        self.turn = (self.turn + 1) % len(self.channels)
        return self.channels[self.turn]


class Client:
    """Calls functions of a cluster, over one link to each worker.

    Use it as `async with Client("127.0.0.1:7337") as client`. Any number of tasks of one event loop
    may call at once; what they ask for in one turn of the loop leaves in one frame to each
    worker. A lost worker is reconnected to, a moved partition is followed, and what was not
    acknowledged is sent again: every message is taken exactly once, and messages to one key are
    taken in the order in which they were asked for.
    """

    def __init__(  # noqa: PLR0913  # All but the addresses are options, by name.
        self,
        addresses: Addresses,
        *,
        connect_timeout: Duration = "10s",
        overload_retries: int = 10,
        in_flight_max: int = 65_536,
        lane: Literal["auto", "never"] = "auto",
        limits: LinkLimits | None = None,
        trace_sample_ratio: float = 0.0,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """
        - `addresses`: one `host:port` or several, of any workers of the cluster; the others are
          found through them. Or a function that returns them, asked again when all are lost.
        - `connect_timeout`: how long no worker, or not the one that owns a partition, may be
          reachable before callers get `UnavailableError`. The longer that goes on, the longer
          is its `retry_after_ms`, up to 10 s.
        - `overload_retries`: how often a message that a full worker refuses is sent again by
          itself, each time after the pause that the worker asks for; then `OverloadedError`.
        - `in_flight_max`: messages that may be under way at once; further callers wait.
        - `lane`: "never" for plain gRPC also where the worker is on this machine.
        - `trace_sample_ratio`: which share of the calls that belong to no trace begins one.
        - `tell`: hears once, when no worker is there for some seconds, what requests wait for;
          without it, that is logged as a warning.
        """
        if not 0 <= trace_sample_ratio <= 1:
            raise ValueError(f"trace_sample_ratio is {trace_sample_ratio}; allowed: 0..1")
        self._trace_sample_ratio = trace_sample_ratio
        if in_flight_max < 1:
            raise ValueError(f"in_flight_max is {in_flight_max}; allowed: 1 or more")
        self._addresses = _address_source(addresses)
        self._connect_timeout_s = milliseconds(connect_timeout) / 1000.0
        self._retry_policy = RetryPolicy(
            unreachable_ms=milliseconds(connect_timeout), overload_retries=overload_retries
        )
        self._in_flight_max = in_flight_max
        self._lane: Literal["auto", "never"] = lane
        self._limits = limits or LinkLimits()
        self._tell = tell
        self._stats = ClientStats()
        self._exit_stack = AsyncExitStack()
        self._routes: dict[str, _Route] = {}
        self._room_queue: deque[tuple[asyncio.Future[None], int]] = deque()
        self._room_reserved = 0
        self._message_bytes_max = 0
        self._key_bytes_max = 0
        self._retiring: list[SessionLinks] = []
        self._egress_source: EgressSource | None = None
        self._snapshot_source: SnapshotSource | None = None
        self._open = False
        self._used = False
        self._tasks: asyncio.TaskGroup
        self._links: SessionLinks
        self._session: Session
        self._loop: asyncio.AbstractEventLoop

    # Life

    async def __aenter__(self) -> Client:
        """Connect to a worker; `UnavailableError` if none answers within `connect_timeout`."""
        if self._used:
            raise RuntimeError("a client cannot be reopened; create a new one")
        self._used = True
        self._loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            self._tasks = await stack.enter_async_context(PlainTaskGroup())
            self._links = self._new_links()
            self._session = self._links.session
            stack.push_async_callback(self._close)
            await self._links.start(self._connect_timeout_s)
            self._open = True
            self._exit_stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Say goodbye. Callers that still wait get an error."""
        await self._exit_stack.__aexit__(kind, error, trace)

    async def _close(self) -> None:
        self._open = False
        self._routes.clear()
        for waiter, _ in self._room_queue:
            if not waiter.done():
                waiter.set_exception(_closed())
        timeout_s = self._limits.close_timeout_s
        for links in (*self._retiring, self._links):
            await links.close("client closed", timeout_s)

    def _new_links(self) -> SessionLinks:
        session = Session(
            # Unguessable: whoever knows the name of a client could take its replies.
            CLIENT_MARK + secrets.token_hex(12),
            retry_policy=self._retry_policy,
            stats=self._stats,
            rng=random.random,
        )
        self._stats.sessions += 1
        events = Events(self._settled, self._welcomed, self._expired, self._tell)
        return SessionLinks(
            session, self._addresses, events, self._tasks, lane=self._lane, limits=self._limits
        )

    def _welcomed(self, welcome: Welcome) -> None:
        self._message_bytes_max = welcome.message_bytes_max
        self._key_bytes_max = welcome.key_bytes_max

    def _expired(self, links: SessionLinks) -> None:
        former = links.session
        if links is not self._links:
            # Another partition has forgotten it before, and it has a successor.
            self._session.succeed(former)
        else:
            successor = self._new_links()
            if former.topology is not None:
                successor.session.topology_changed(former.topology)
            successor.session.succeed(former)
            self._retiring.append(links)
            self._links, self._session = successor, successor.session
            self._routes.clear()
            successor.keep()
        self._links.plan_flush()
        # Those who were told have left room, for other channels of the same name as well.
        links.plan_flush()
        self._settled()

    def _settled(self) -> None:
        if self._room_queue:
            self._grant_room()
        if self._retiring:
            for links in tuple(self._retiring):
                if links.session.settled:
                    self._retiring.remove(links)
                    self._tasks.create_task(
                        links.close("client closed", self._limits.close_timeout_s)
                    )

    # What can be seen

    @property
    def topology(self) -> Topology:
        """The functions, the workers, and who owns what, as this client knows them."""
        topology = self._session.topology
        assert topology is not None, "use the client inside its `async with` block"
        return topology

    @property
    def stats(self) -> ClientStats:
        """What this client has counted so far."""
        return self._stats

    # One message

    async def call(
        self,
        function: Function | str,
        key: str = "",
        message: object = None,
        *,
        deadline: Duration | None = None,
        idempotency_key: str = "",
        info: CallInfo | None = None,
        trace: str = "",
    ) -> Any:
        """Call a function and return its reply, after all its effects are durable.

        A `Function` returns its declared type, a name (`"app/name"`) plain values. With a
        deadline, `DeadlineExceededError` is raised when it has passed; the effect may still
        happen. Two calls with the same `idempotency_key` to one key have one effect and one
        reply, for 24 hours, whoever makes them; one that was taken back does not count.

        What the handler raised comes as `HandlerError`; other errors are those of
        `sublet.functions.errors`. A caller that is cancelled takes its call back, as one whose
        deadline has passed does: what has not begun then does not run, and a handler that awaits
        something is interrupted; see the page on deadlines.

        `info` is filled in with the request's id and time, for `sublet why`. `trace` is a W3C
        traceparent; without one, the call belongs to the current span of OpenTelemetry, if
        there is one that is sampled.
        """
        name, codec = (function, ANY) if type(function) is str else _name_of(function)
        return await self._ask(
            Kind.CALL, name, key, message, codec, deadline, idempotency_key, info, trace
        )

    async def send(
        self,
        function: Function | str,
        key: str = "",
        message: object = None,
        *,
        deadline: Duration | None = None,
        idempotency_key: str = "",
        info: CallInfo | None = None,
        trace: str = "",
    ) -> None:
        """Hand a message over; return when it is durably taken, before it is handled.

        If its `idempotency_key` turns out to be that of another message, it becomes a dead letter.
        """
        name = function if type(function) is str else _name_of(function)[0]
        await self._ask(Kind.SEND, name, key, message, ANY, deadline, idempotency_key, info, trace)

    async def _ask(  # noqa: PLR0913  # What `call` and `send` were given, by place: it is quick.
        self,
        kind: Kind,
        name: str,
        key: str,
        message: object,
        codec: Codec[Any],
        deadline: Duration | None,
        idempotency_key: str,
        info: CallInfo | None,
        trace: str,
    ) -> Any:
        payload = ANY.encode(message)
        deadline_ms = None if deadline is None else self._deadline_ms(deadline)
        trace = trace or self._trace()
        extra = _extra(idempotency_key, trace) if idempotency_key or trace else None
        stats, asked_ms = self._stats, 0.0
        if info is not None:
            asked_ms = self._loop.time() * 1000.0
        if name not in self._routes:
            await self._look_for(name, deadline_ms)
        if self._room_queue or stats.in_flight + self._room_reserved >= self._in_flight_max:
            asked_ms = asked_ms or self._loop.time() * 1000.0
            await self._wait_for_room(1, deadline_ms)
        # From here to the message's place in its channel nothing is awaited: callers keep their
        # order.
        try:
            route = self._routes.get(name) or self._route(name)
            channel = route.by_key.get(key) if type(key) is str else None
            if channel is None:
                channel = self._channel(route, key, idempotency_key)
            if len(payload) > self._message_bytes_max:
                raise _too_large(payload, self._message_bytes_max)
        except SubletError:
            # It may have been given room that it does not take: others wait for it.
            self._grant_room()
            raise
        waiter = self._loop.create_future()
        segment = self._session.add(channel, kind, key, payload, deadline_ms, codec, waiter)
        if not segment.born_ms:
            # Once a segment, not once a message: its first one has waited longest.
            segment.born_ms = asked_ms or self._loop.time() * 1000.0
        if extra is not None:
            with_extra(segment, extra)
        place = len(segment.keys) + len(segment.removed) - 1
        links = self._links
        links.plan_flush()
        try:
            return await waiter
        except SubletError as error:
            error.request_id = _request_id(segment, place)
            raise
        except asyncio.CancelledError:
            links.session.cancel(segment, place)
            self._after_cancel(links)
            raise
        finally:
            if info is not None:
                info.request_id = _request_id(segment, place)
                info.elapsed_ms = self._loop.time() * 1000.0 - asked_ms
                info.trace = trace

    def _after_cancel(self, links: SessionLinks) -> None:
        links.plan_flush()
        self._links.plan_flush()  # What had not left may have got another name meanwhile.
        self._settled()

    def _trace(self) -> str:
        trace = current_traceparent()
        ratio = self._trace_sample_ratio
        if not trace and ratio and random.random() < ratio:
            return new_traceparent()
        return trace

    # Many messages

    async def call_many(
        self,
        function: Function | str,
        keys: Sequence[str] | None,
        messages: Sequence[object],
        *,
        deadline: Duration | None = None,
        return_errors: bool = False,
    ) -> list[Any]:
        """Call a function with many messages; return the replies in the same order.

        `keys` and `messages` have the same length; without keys the messages are spread over
        the partitions. All are waited for. Then the first error is raised, or, with
        `return_errors`, errors stand in the places of their replies. A caller that is cancelled
        takes back what is not answered.
        """
        gather = await self._ask_many(Kind.CALL, function, keys, messages, deadline)
        if gather.errors and not return_errors:
            raise gather.errors[min(gather.errors)]
        return gather.results

    async def send_many(
        self,
        function: Function | str,
        keys: Sequence[str] | None,
        messages: Sequence[object],
        *,
        deadline: Duration | None = None,
    ) -> None:
        """Hand many messages over; return when all are durably taken.

        If some were not, the error of the first of them is raised, after all others are taken.
        """
        gather = await self._ask_many(Kind.SEND, function, keys, messages, deadline)
        if gather.errors:
            raise gather.errors[min(gather.errors)]

    async def watermark(
        self, function: Function | str, time: int | float | datetime | None, *, source: str = ""
    ) -> None:
        """Say that nothing of an earlier event time is to come; windows that end before close.

        `time` is milliseconds since 1970 or a datetime with a time zone. It counts behind
        everything that this client has sent to the function before. With several sources, the
        one that is furthest behind decides, so each has a name that stays the same when another
        process goes on for it; without a name, the client itself is the source, until it
        says goodbye. None: the source has nothing to say (for now), and is not waited for.

        Returns when all partitions of the function have durably taken it.
        """
        check_takes_watermarks(function)
        value_ms = None if time is None else watermark_ms_of(time)
        refusal = refusal_of_source(source)
        if refusal is not None:
            raise RejectedError(refusal)
        check_message(source, b"", self._key_bytes_max, self._message_bytes_max)
        name, codec = _name_of(function)
        await self._look_for(name, None)
        count = len(self._route(name).channels)
        if self._room_queue or self._stats.in_flight + count > self._in_flight_max:
            await self._wait_for_room(count, None)
        waiter = self._loop.create_future()
        gather = Gather(count, waiter, replies=False)
        column = ANY.encode_column([value_ms])
        asked_ms = self._loop.time() * 1000.0
        for place, channel in enumerate(self._route(name).channels):
            segment = Segment(Kind.MARKER, None, codec, asked_ms)
            self._session.add_many(channel, segment, [source], column, gather, [place])
        self._links.plan_flush()
        await waiter
        if gather.errors:
            raise gather.errors[min(gather.errors)]

    # Rows in batches

    def pipeline(
        self,
        function: Function | str,
        name: str,
        *,
        generation: int = 0,
        timeout: Duration = "10m",
    ) -> Pipeline:
        """Bring rows to a function in batches that have their effect once, however often a batch
        is begun again, by whichever process.

        - `name`: tells the pipeline apart from others, and stays the same when another process
          goes on for it; such as the id of a streaming query.
        - `generation`: what `Pipeline.begin` has returned to its driver; for its tasks.
        - `timeout`: how long a request is retried while there is no room for its rows, or the
          partition has no owner.
        """
        return Pipeline(_PipelineAsker(self, _name_of(function)[0]), name, generation, timeout)

    async def cancel(self, request_id: str) -> None:
        """End somebody's request without effect; return when that is durable.

        One that waits does not run, an `async def` handler is interrupted at its `await`. The
        caller gets `RequestCancelledError`. `NotCancelledError` if the request has ended, or runs
        where it cannot be interrupted. To cancel a call of your own, cancel the task that awaits
        it.
        """
        failed: SubletError = UnavailableError("no worker is known")
        for address in self._reader_addresses():
            try:
                async with UnaryClient(address) as unary:
                    action = CancelRequest(request_id=request_id)
                    await unary.administer(AdministerRequest(action=action))
                    return
            except RejectedError:
                raise
            except SubletError as error:
                failed = error
        raise failed

    async def pipelines(
        self, function: Function | str, *, timeout: Duration = "1m"
    ) -> list[KnownPipeline]:
        """Return the pipelines that have brought rows to a function, by name.

        They are known until they are forgotten (`Pipeline.forget`), also if nobody comes back.
        """
        return await known_pipelines(_PipelineAsker(self, _name_of(function)[0]), timeout)

    async def message_schema(self, function: Function | str) -> dict[str, Any] | None:
        """Return what a function takes, as JSON Schema; None: anything."""
        found = msgspec.json.decode((await self._described(function)).message_schema or "null")
        return found if isinstance(found, dict) else None

    async def state_schema(self, function: Function | str) -> dict[str, Any]:
        """Return what the states of a function's keys can be set to, as JSON Schema.

        `RejectedError` if it has no states that can be.
        """
        described = await self._described(function)
        if not described.state_schema:
            told = f"has the state {described.state}" if described.state else "has no state"
            raise RejectedError(
                f"{described.name} is {described.kind} and {told}, which cannot be set; allowed: "
                "keyed states without windows or sketches"
            )
        found: dict[str, Any] = msgspec.json.decode(described.state_schema)
        return found

    async def _described(self, function: Function | str) -> FunctionDescription:
        name = self._route(_name_of(function)[0]).info.name
        failed: SubletError = UnavailableError("no worker is known")
        for address in self._reader_addresses():
            try:
                async with UnaryClient(address) as unary:
                    for each in await unary.describe_functions():
                        if each.name == name:
                            return each
            except SubletError as error:
                failed = error
        raise failed

    # States

    def snapshot(
        self,
        function: Function | str,
        *,
        partitions: Collection[int] | None = None,
        keys: Collection[str] | None = None,
        value_type: Any = Any,
        page_max: int = 5_000,
        timeout: Duration = "1m",
        pins: Sequence[SnapshotPin] = (),
    ) -> StateSnapshot:
        """Read the states of a function, each partition as it was at one commit, while messages go
        on: `async with client.snapshot("shop/cart") as snapshot`, `async for found in snapshot`.

        - `partitions`, `keys`: only these; by default, all. Others are not touched.
        - `value_type`: the type of the states; plain values by default. A map with other keys than
          texts is a list of pairs, a sketch is what it says about its values, and the states of
          windows are a list of those that are open.
        - `page_max`: keys that are read at once, at most; a page has about a megabyte, too.
        - `timeout`: how long the owner of a partition may be unreachable before `UnavailableError`.
        - `pins`: of another process, which has pinned for this one. Workers forget pins of which
          nothing is read for two minutes; those of other partitions than are read here do not
          count as such while this one is being read, so that others may come to them later.

        A worker keeps what is written over before it was read, up to a bound
        (`snapshot_bytes_max`); then, and when a partition goes to another worker in the middle of
        it, `SnapshotLostError`.
        """
        route = self._route(_name_of(function)[0])
        if self._snapshot_source is None:
            source = SnapshotSource(_Owners(self), self._retry_policy, self._limits)
            self._snapshot_source = source
            self._exit_stack.push_async_callback(source.close)
        return StateSnapshot(
            self._snapshot_source,
            route.info,
            partitions=partitions,
            keys=keys,
            value_type=value_type,
            page_max=page_max,
            timeout=timeout,
            pins=pins,
        )

    def _pipeline_partitions(self, name: str) -> int:
        return self._route(name).info.partition_count

    async def _ask_partition(self, name: str, index: int, request: bytes, codec: Codec[Any]) -> Any:
        """Ask the partition itself, not its function."""
        if len(request) > self._message_bytes_max:
            raise _too_large(request, self._message_bytes_max)
        self._route(name)
        if self._room_queue or self._stats.in_flight + self._room_reserved >= self._in_flight_max:
            await self._wait_for_room(1, None)
        channel = self._route(name).channels[index]
        waiter = self._loop.create_future()
        self._session.add(channel, Kind.STAGE, "", request, None, codec, waiter)
        self._links.plan_flush()
        return await waiter

    # Egress

    def egress(
        self,
        name: str,
        *,
        start: str | EgressCursor = "start",
        until: str | EgressCursor | None = None,
        lost: Literal["raise", "skip"] = "raise",
        value_type: Any = Any,
        batch_max: int = 1_000,
    ) -> EgressReader:
        """Read what functions emit: `async for record in client.egress("orders")`.

        Values of one key come in the order in which they were emitted; all partitions of all
        functions that emit to it are read, also those that begin to later. It goes on for ever, or
        to `until`.

        - `start`: "start" (the oldest that is kept), "now", or a cursor: that of an earlier
          reader, or its text.
        - `until`: "now" reads what is there when it begins, then ends; a cursor reads up to it,
          of the partitions that it names.
        - `lost`: what to do about values that were dropped at a bound before they were read:
          raise `EgressLostError`, or go on with the oldest that is kept (`reader.lost` tells).
        - `value_type`: the type of the values; plain values by default.
        - `batch_max`: how many records are read, and held in memory, at once.
        """
        return EgressReader(
            self._read_egress,
            name,
            start=start,
            until=until,
            lost=lost,
            value_type=value_type,
            batch_max=batch_max,
        )

    def egress_range(
        self,
        name: str,
        start: str | EgressCursor,
        end: str | EgressCursor,
        *,
        lost: Literal["raise", "skip"] = "raise",
        parallel: int = 4,
        page_max: int = 10_000,
        timeout: Duration | None = None,
    ) -> EgressRange:
        """Read exactly what is between two cursors, as columns: always the same values.

        Only partitions that `end` names are read; one that `start` does not name from its first
        position on. A range may be cut into several, and they be read side by side.

        - `lost`: as in `egress`, of values that were dropped at a bound.
        - `parallel`: of how many partitions a page is read at once, and held in memory.
        - `page_max`: how many values a page has at most; it also ends at about 1 MiB.
        - `timeout`: how long no worker may answer before `UnavailableError`; by default,
          `connect_timeout`.
        """
        return EgressRange(
            self._egress_asker(timeout),
            name,
            start,
            end,
            lost=lost,
            parallel=parallel,
            page_max=page_max,
        )

    async def egress_bounds(
        self, name: str, *, timeout: Duration | None = None
    ) -> tuple[EgressCursor, EgressCursor]:
        """Return cursors at the oldest value of an egress that is kept, and behind the newest.

        `timeout` is as in `egress_range`.
        """
        # From its end on, a worker reads no value for it.
        request = EgressRequest(egress=name, limit=1, at_end=True)
        page = await self._egress_asker(timeout)(request)
        return first_of(page), end_of(page)

    def _egress_asker(
        self, timeout: Duration | None
    ) -> Callable[[EgressRequest], Coroutine[Any, Any, EgressPage]]:
        timeout_ms = None if timeout is None else milliseconds(timeout)
        return lambda request: self._read_egress(request, timeout_ms)

    async def _read_egress(
        self, request: EgressRequest, timeout_ms: float | None = None
    ) -> EgressPage:
        if not self._open:
            raise _closed()
        if self._egress_source is None:
            source = EgressSource(
                self._reader_addresses,
                retry_policy=self._retry_policy,
                limits=self._limits,
                tell=self._tell,
            )
            self._egress_source = source
            self._exit_stack.push_async_callback(source.close)
        # What is read elsewhere opens no link, and without one new workers would stay unknown.
        self._links.want_any()
        return await self._egress_source.read(request, timeout_ms)

    def _reader_addresses(self) -> Sequence[str]:
        topology = self._session.topology
        found = list(topology.workers.values()) if topology is not None else []
        # A directory may be away: then what is known has to do.
        with suppress(OSError, SubletError):
            found += self._addresses()
        return list(dict.fromkeys(found))

    async def _ask_many(
        self,
        kind: Kind,
        function: Function | str,
        keys: Sequence[str] | None,
        messages: Sequence[object],
        deadline: Duration | None,
    ) -> Gather:
        count = len(messages)
        if keys is not None and len(keys) != count:
            raise RejectedError(f"{len(keys)} keys but {count} messages")
        name, codec = _name_of(function)
        deadline_ms = None if deadline is None else self._deadline_ms(deadline)
        await self._look_for(name, deadline_ms)
        self._route(name)
        waiter = self._loop.create_future()
        gather = Gather(count, waiter, replies=kind is Kind.CALL)
        if not count:
            return gather
        asked_ms = self._loop.time() * 1000.0
        stats, slice_max = self._stats, min(SLICE_MESSAGES_MAX, self._in_flight_max)
        asked: list[tuple[SessionLinks, Segment]] = []
        try:
            for start in range(0, count, slice_max):
                places = range(start, min(count, start + slice_max))
                in_flight = stats.in_flight + self._room_reserved
                if self._room_queue or in_flight + len(places) > self._in_flight_max:
                    await self._wait_for_room(len(places), deadline_ms)
                for channel, group in self._groups(self._route(name), keys, places, gather):
                    for at in range(0, len(group), SEGMENT_MESSAGES_MAX):
                        chosen = group[at : at + SEGMENT_MESSAGES_MAX]
                        segment = Segment(kind, deadline_ms, codec, asked_ms)
                        added = self._add_many(channel, segment, keys, messages, gather, chosen)
                        asked.extend((self._links, each) for each in added)
                # What was refused takes no room.
                self._grant_room()
                self._links.plan_flush()
            await waiter
        except asyncio.CancelledError:
            for links, segment in asked:
                links.session.cancel_many(segment)
                self._after_cancel(links)
            raise
        return gather

    def _groups(
        self, route: _Route, keys: Sequence[str] | None, places: range, gather: Gather
    ) -> Iterable[tuple[Channel, Sequence[int]]]:
        """Return the places of messages by channel, without those whose key is refused."""
        if keys is None or route.info.kind == "stateless":
            # Long runs: it does not matter where they go.
            share = -(-len(places) // len(route.channels))
            starts = range(0, len(places), share)
            return [(route.next_channel(), places[start : start + share]) for start in starts]
        chosen = keys[places.start : places.stop]
        found: list[Channel | None]
        if set(map(type, chosen)) == {str} and "" not in chosen:
            found = [*map(route.by_key.get, chosen)]
        else:
            found = [None] * len(places)
        groups: defaultdict[Channel, list[int]] = defaultdict(list)
        for place, key, known in zip(places, chosen, found, strict=True):
            if known is not None:
                groups[known].append(place)
                continue
            try:
                groups[self._channel(route, key)].append(place)
            except KeyRejectedError as error:
                gather.fail(place, error)
                gather.settle(1)
        return groups.items()

    def _add_many(
        self,
        channel: Channel,
        segment: Segment,
        keys: Sequence[str] | None,
        messages: Sequence[object],
        gather: Gather,
        places: Sequence[int],
    ) -> Sequence[Segment]:
        """Add messages to a channel, in one segment or in many; return which."""
        try:
            column = ANY.encode_column([messages[place] for place in places])
        except EncodeError:
            column = b""
        if column and len(column) <= min(SEGMENT_BYTES_MAX, self._message_bytes_max):
            chosen = [""] * len(places) if keys is None else [keys[place] for place in places]
            self._session.add_many(channel, segment, chosen, column, gather, places)
            return (segment,)
        # Large ones, and ones that cannot be written: one by one.
        added: list[Segment] = []
        for place in places:
            try:
                payload = ANY.encode(messages[place])
                if len(payload) > self._message_bytes_max:
                    raise _too_large(payload, self._message_bytes_max)
            except RejectedError as error:
                gather.fail(place, error)
                gather.settle(1)
                continue
            alone = Segment(segment.kind, segment.deadline_ms, segment.codec, segment.born_ms)
            key = "" if keys is None else keys[place]
            self._session.add_many(channel, alone, [key], join_column([payload]), gather, [place])
            added.append(alone)
        return added

    # Routing

    async def _look_for(self, name: str, deadline_ms: int | None) -> None:
        """Before a function is called unknown, meet somebody: who has no link misses new ones."""
        if not self._open or self._session.peers:
            return
        if any(each.is_named(name) for each in self.topology.functions):
            return
        until_s = self._loop.time() + self._retry_policy.unreachable_ms / 1000.0
        if deadline_ms is not None:
            until_s = min(until_s, deadline_ms / 1000.0)
        try:
            await self._links.wait_connected(until_s)
        except TimeoutError:
            raise UnavailableError(
                f"no worker is reachable, and {name!r:.200} was not in the last known topology"
            ) from None

    def _route(self, name: str) -> _Route:
        if not self._open:
            raise _closed()
        route = self._routes.get(name)
        if route is not None:
            return route
        for info in self.topology.functions:
            if info.is_named(name):
                count = info.partition_count
                partitions = [partition_name(info.name, each) for each in range(count)]
                channels = [*map(self._session.channel_of, partitions)]
                route = self._routes[name] = _Route(info, channels)
                return route
        known = ", ".join(sorted(each.name for each in self.topology.functions)) or "none"
        raise UnknownFunctionError(f"no function {name!r:.200} in this cluster; known: {known}")

    def _channel(self, route: _Route, key: str, idempotency_key: str = "") -> Channel:
        check_message(key, b"", self._key_bytes_max, self._message_bytes_max)
        count = route.info.partition_count
        if not is_placed_by_key(route.info.kind, key):
            if idempotency_key:
                return route.channels[partition_index_of(idempotency_key, count)]
            return route.next_channel()
        index = partition_index_of(key, count)
        if len(route.by_key) >= KEYS_CACHED_MAX:
            route.by_key.clear()
        channel = route.by_key[key] = route.channels[index]
        return channel

    def _deadline_ms(self, deadline: Duration) -> int:
        # Whole milliseconds, so that callers of one turn can share a batch.
        return ceil(self._loop.time() * 1000.0 + milliseconds(deadline))

    # Room

    async def _wait_for_room(self, count: int, deadline_ms: int | None) -> None:
        """Wait, in the order of arrival, until so many more messages may be under way."""
        if not self._open:
            raise _closed()
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._room_queue.append((waiter, count))
        try:
            async with asyncio.timeout_at(None if deadline_ms is None else deadline_ms / 1000.0):
                await waiter
        except TimeoutError:
            self._give_back(waiter, count)
            raise DeadlineExceededError(
                f"{self._in_flight_max} messages are in flight (in_flight_max), and none "
                "ended before this message's deadline"
            ) from None
        except asyncio.CancelledError:
            self._give_back(waiter, count)
            raise
        # The caller adds its messages before anybody else runs.
        self._room_reserved -= count

    def _give_back(self, waiter: asyncio.Future[None], count: int) -> None:
        if waiter.cancelled():
            self._room_queue = deque(each for each in self._room_queue if each[0] is not waiter)
        else:
            # It was granted in the very turn in which its caller gave up.
            self._room_reserved -= count
        self._grant_room()

    def _grant_room(self) -> None:
        queue = self._room_queue
        while queue:
            waiter, count = queue[0]
            if self._stats.in_flight + self._room_reserved + count > self._in_flight_max:
                return
            queue.popleft()
            if not waiter.done():
                self._room_reserved += count
                waiter.set_result(None)


class _PipelineAsker:
    """What a pipeline needs of its client."""

    def __init__(self, client: Client, function: str) -> None:
        self._client = client
        self._function = function
        self.partition_count = client._pipeline_partitions(function)
        self.message_bytes_max = client._message_bytes_max

    async def ask(self, index: int, request: bytes, codec: Codec[Any]) -> Any:
        return await self._client._ask_partition(self._function, index, request, codec)

    def begin(self, task: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._client._tasks.create_task(task)


class _Owners:
    """What readers of snapshots need of their client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def topology(self) -> Topology:
        return self._client.topology

    def addresses(self) -> Sequence[str]:
        return self._client._reader_addresses()


def _address_source(addresses: Addresses) -> Callable[[], Sequence[str]]:
    if callable(addresses):
        return addresses
    listed = [addresses] if isinstance(addresses, str) else list(addresses)
    if not listed:
        raise ValueError("no address given; allowed: one or more 'host:port'")
    for address in listed:
        host, mark, port = address.rpartition(":")
        if not host or not mark or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise ValueError(f"{address!r} is not an address; allowed: 'host:port'")
    return lambda: listed


def _name_of(function: Function | str) -> tuple[str, Codec[Any]]:
    if isinstance(function, str):
        return function, ANY
    if isinstance(function, Function):
        return function.name, function.reply_codec
    raise TypeError(
        f"{function!r:.100} is not a function; allowed: an @app.function, or a name such as "
        "'shop/cart'"
    )


def _request_id(segment: Segment, place: int) -> str:
    channel, number = segment.place(place)
    return request_id(channel.partition, channel.endpoint, number) if channel and number else ""


def _extra(idempotency_key: str, trace: str) -> Extra:
    if idempotency_key:
        refusal = refusal_of_idempotency_key(idempotency_key)
        if refusal is not None:
            raise RejectedError(refusal)
    return Extra(idempotency_key=idempotency_key, trace=trace)


def _too_large(payload: bytes, bytes_max: int) -> TooLargeError:
    return TooLargeError(f"the message has {len(payload)} bytes; allowed: {bytes_max}")


def _closed() -> RuntimeError:
    return RuntimeError("the client is closed; use it inside its `async with` block")
