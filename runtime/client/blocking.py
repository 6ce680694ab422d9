"""The client for programs without an event loop: the same methods, each waits for its outcome."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import Future
from contextvars import Context
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Literal

import uvloop

from sublet.functions.app import Function
from sublet.functions.duration import Duration
from sublet.functions.errors import UnavailableError
from sublet.runtime.client.client import Addresses, Client
from sublet.runtime.client.connections import PlainTaskGroup
from sublet.runtime.client.egress_cursor import EgressCursor
from sublet.runtime.client.egress_range import BlockingEgressRange
from sublet.runtime.client.egress_reader import EgressReader, EgressRecord
from sublet.runtime.client.pipelines import BlockingPipeline, Pipeline
from sublet.runtime.client.session import ClientStats
from sublet.runtime.client.snapshots import BlockingStateSnapshot, SnapshotPin, StateSnapshot
from sublet.runtime.observability.tracing import current_traceparent
from sublet.runtime.protocol.frames import Topology
from sublet.runtime.protocol.pipeline_messages import KnownPipeline
from sublet.runtime.protocol.rpc import CallInfo, EgressGap

_Request = tuple[Callable[[], Coroutine[Any, Any, Any]], "Future[Any]"]


class BlockingClient:
    """A `Client` with an event loop in a thread of its own.

    Use it as `with BlockingClient("127.0.0.1:7337") as client`, from any number of threads at once:
    what they ask for at the same time shares frames. A process that was forked off needs a new
    one: threads do not survive a fork.
    """

    def __init__(self, addresses: Addresses, **options: Any) -> None:
        """Takes what `Client` takes."""
        self._client = Client(addresses, **options)
        self._thread = threading.Thread(target=self._run, name="sublet client", daemon=True)
        self._process_id = os.getpid()
        self._started: Future[None] = Future()
        self._ended: Future[None] = Future()
        self._requests: deque[_Request] = deque()
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._tasks: asyncio.TaskGroup
        self._open = False
        # Guards the way from "is it open?" to the request's place in the queue.
        self._gate = threading.Lock()

    def __enter__(self) -> BlockingClient:
        """Connect; `UnavailableError` if no worker answers within `connect_timeout`."""
        self._check_process()
        self._thread.start()
        self._started.result()
        self._open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Say goodbye. Threads that still wait get an error."""
        self.close()

    def close(self) -> None:
        """What the end of `with` does; it may be called more than once."""
        if os.getpid() != self._process_id:
            return  # The parent's client is not ours to close.
        with self._gate:
            was_open, self._open = self._open, False
        if was_open:
            self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread.ident is not None:
            self._thread.join()
        if was_open:
            self._ended.result()

    @property
    def is_open(self) -> bool:
        """False before `with`, after its end, and once the client's own thread has failed."""
        return self._open

    @property
    def topology(self) -> Topology:
        """The functions, the workers, and who owns what, as this client knows them."""
        return self._client.topology

    @property
    def stats(self) -> ClientStats:
        """What this client has counted so far."""
        return self._client.stats

    def call(
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
        """See `Client.call`."""
        client = self._client
        trace = trace or current_traceparent()
        return self._wait(
            lambda: client.call(
                function,
                key,
                message,
                deadline=deadline,
                idempotency_key=idempotency_key,
                info=info,
                trace=trace,
            )
        )

    def send(
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
        """See `Client.send`."""
        client = self._client
        trace = trace or current_traceparent()
        self._wait(
            lambda: client.send(
                function,
                key,
                message,
                deadline=deadline,
                idempotency_key=idempotency_key,
                info=info,
                trace=trace,
            )
        )

    def call_many(
        self,
        function: Function | str,
        keys: Sequence[str] | None,
        messages: Sequence[object],
        *,
        deadline: Duration | None = None,
        return_errors: bool = False,
    ) -> list[Any]:
        """See `Client.call_many`."""
        client = self._client
        replies: list[Any] = self._wait(
            lambda: client.call_many(
                function, keys, messages, deadline=deadline, return_errors=return_errors
            )
        )
        return replies

    def send_many(
        self,
        function: Function | str,
        keys: Sequence[str] | None,
        messages: Sequence[object],
        *,
        deadline: Duration | None = None,
    ) -> None:
        """See `Client.send_many`."""
        client = self._client
        self._wait(lambda: client.send_many(function, keys, messages, deadline=deadline))

    def watermark(
        self, function: Function | str, time: int | float | datetime | None, *, source: str = ""
    ) -> None:
        """See `Client.watermark`."""
        client = self._client
        self._wait(lambda: client.watermark(function, time, source=source))

    def pipeline(
        self,
        function: Function | str,
        name: str,
        *,
        generation: int = 0,
        patience: Duration = "10m",
    ) -> BlockingPipeline:
        """See `Client.pipeline`."""

        async def make() -> Pipeline:
            return self._client.pipeline(function, name, generation=generation, patience=patience)

        return BlockingPipeline(self._wait(make), self._wait)

    def pipelines(
        self, function: Function | str, *, patience: Duration = "1m"
    ) -> list[KnownPipeline]:
        """See `Client.pipelines`."""
        found: list[KnownPipeline] = self._wait(
            lambda: self._client.pipelines(function, patience=patience)
        )
        return found

    def snapshot(
        self,
        function: Function | str,
        *,
        partitions: Collection[int] | None = None,
        keys: Collection[str] | None = None,
        of: Any = Any,
        page_max: int = 5_000,
        patience: Duration = "1m",
        pins: Sequence[SnapshotPin] = (),
    ) -> BlockingStateSnapshot:
        """See `Client.snapshot`; it is read by a plain `with` and `for`."""

        async def make() -> StateSnapshot:
            return self._client.snapshot(
                function,
                partitions=partitions,
                keys=keys,
                of=of,
                page_max=page_max,
                patience=patience,
                pins=pins,
            )

        return BlockingStateSnapshot(self._wait(make), self._wait, self._begin)

    def message_schema(self, function: Function | str) -> dict[str, Any] | None:
        """See `Client.message_schema`."""
        client = self._client
        found: dict[str, Any] | None = self._wait(lambda: client.message_schema(function))
        return found

    def state_schema(self, function: Function | str) -> dict[str, Any]:
        """See `Client.state_schema`."""
        client = self._client
        found: dict[str, Any] = self._wait(lambda: client.state_schema(function))
        return found

    def egress(
        self,
        name: str,
        *,
        start: str | EgressCursor = "start",
        until: str | EgressCursor | None = None,
        lost: Literal["raise", "skip"] = "raise",
        of: Any = Any,
        batch_max: int = 1_000,
    ) -> BlockingEgressReader:
        """See `Client.egress`; the reader is a plain iterator, for one thread at a time."""
        reader = self._client.egress(
            name, start=start, until=until, lost=lost, of=of, batch_max=batch_max
        )
        return BlockingEgressReader(reader, self._wait)

    def egress_range(
        self,
        name: str,
        start: str | EgressCursor,
        end: str | EgressCursor,
        *,
        lost: Literal["raise", "skip"] = "raise",
        parallel: int = 4,
        page_max: int = 10_000,
        patience: Duration | None = None,
    ) -> BlockingEgressRange:
        """See `Client.egress_range`; the reader is a plain iterator, for one thread at a time."""
        reader = self._client.egress_range(
            name,
            start,
            end,
            lost=lost,
            parallel=parallel,
            page_max=page_max,
            patience=patience,
        )
        return BlockingEgressRange(reader, self._wait, self._begin)

    def egress_bounds(
        self, name: str, *, patience: Duration | None = None
    ) -> tuple[EgressCursor, EgressCursor]:
        """See `Client.egress_bounds`."""
        client = self._client
        found: tuple[EgressCursor, EgressCursor] = self._wait(
            lambda: client.egress_bounds(name, patience=patience)
        )
        return found

    # In the callers' threads

    def _wait(self, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        outcome = self._begin(ask)
        try:
            return outcome.result()
        except BaseException:
            # An interrupt, for one: nobody will take the outcome.
            outcome.cancel()
            raise

    def _begin(self, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Future[Any]:
        self._check_process()
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "a blocking call inside the client's own thread would deadlock; "
                "call it from another thread"
            )
        outcome: Future[Any] = Future()
        with self._gate:
            if not self._open:
                raise RuntimeError("the client is closed; use it inside its `with` block")
            self._requests.append((ask, outcome))
            if len(self._requests) == 1:
                # One wake-up for all who ask before the loop has looked.
                # Without the context of this thread: its trace is not theirs.
                self._loop.call_soon_threadsafe(self._begin_requests, context=Context())
        return outcome

    def _check_process(self) -> None:
        if os.getpid() != self._process_id:
            raise RuntimeError(
                f"this client was created in process {self._process_id}, before a fork; "
                "create one in each process"
            )

    # In the loop's thread

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            outcome = self._ended if self._started.done() else self._started
            outcome.set_exception(error)
        else:
            self._ended.set_result(None)
        finally:
            with self._gate:
                self._open = False
            self._begin_requests()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with PlainTaskGroup() as self._tasks, self._client:
            self._started.set_result(None)
            await self._stop.wait()

    def _begin_requests(self) -> None:
        requests = self._requests
        while requests:
            ask, outcome = requests.popleft()
            if outcome.cancelled():
                continue
            if self._open:
                task = self._tasks.create_task(_run_request(ask(), outcome))
                outcome.add_done_callback(partial(self._give_up, task))
            elif not outcome.done():
                outcome.set_exception(UnavailableError("the client is closed"))

    def _give_up(self, task: asyncio.Task[None], outcome: Future[Any]) -> None:
        """Let a request end whose thread does not wait any more."""
        if outcome.cancelled() and self._open:
            self._loop.call_soon_threadsafe(task.cancel)


class BlockingEgressReader:
    """An `EgressReader` for programs without an event loop: `for record in client.egress(...)`."""

    def __init__(
        self,
        reader: EgressReader,
        wait: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any],
    ) -> None:
        self._reader = reader
        self._wait = wait

    @property
    def cursor(self) -> EgressCursor:
        """See `EgressReader.cursor`."""
        return self._reader.cursor

    @property
    def lost(self) -> Sequence[EgressGap]:
        """What was passed over (with `lost="skip"`), the latest of it."""
        return self._reader.lost

    def __iter__(self) -> BlockingEgressReader:
        return self

    def __next__(self) -> EgressRecord:
        if not self._reader.has_waiting and not self._wait(self._reader.fill):
            raise StopIteration
        return self._reader.take()

    def next_batch(self) -> list[EgressRecord]:
        """See `EgressReader.next_batch`."""
        records: list[EgressRecord] = self._wait(self._reader.next_batch)
        return records


async def _run_request(asked: Coroutine[Any, Any, Any], outcome: Future[Any]) -> None:
    try:
        result = await asked
    except Exception as error:
        # Whatever it is, it belongs to the thread that asked.
        if outcome.set_running_or_notify_cancel():
            outcome.set_exception(error)
    else:
        if outcome.set_running_or_notify_cancel():
            outcome.set_result(result)
