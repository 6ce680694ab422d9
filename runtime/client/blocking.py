"""The client for programs without an event loop: the same classes, each method waits.

Made by `make blocking` from the asyncio classes (generators/blocking_client.py). Do not edit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from sublet.functions.app import Function
from sublet.functions.duration import Duration
from sublet.runtime.client.client import Addresses, Client
from sublet.runtime.client.egress_cursor import EgressCursor
from sublet.runtime.client.egress_range import EgressRange
from sublet.runtime.client.egress_reader import EgressReader, EgressRecord
from sublet.runtime.client.loop_thread import LoopThread, one_ahead
from sublet.runtime.client.pipeline_protocol import Committed, PipelineProgress, Staged
from sublet.runtime.client.pipelines import Attempt, Pipeline
from sublet.runtime.client.session import ClientStats
from sublet.runtime.client.snapshots import KeyState, SnapshotPin, SnapshotStates, StateSnapshot
from sublet.runtime.links.link import LinkLimits
from sublet.runtime.protocol.frames import Topology
from sublet.runtime.protocol.pipeline_messages import Description, IfExists, KnownPipeline
from sublet.runtime.protocol.rpc import CallInfo, EgressGap, EgressValues


class BlockingClient:
    """A `Client` for programs without an event loop.

    Use it as `with BlockingClient("127.0.0.1:7337") as client`, from any number of threads at once:
    what they ask for at the same time shares frames. Its event loop has a thread of its own, which
    does not survive a fork: create a client in each process.
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
        self._async = Client(
            addresses,
            connect_timeout=connect_timeout,
            overload_retries=overload_retries,
            in_flight_max=in_flight_max,
            lane=lane,
            limits=limits,
            trace_sample_ratio=trace_sample_ratio,
            tell=tell,
        )
        self._thread = LoopThread(self._async)

    def __enter__(self) -> BlockingClient:
        """Connect to a worker; `UnavailableError` if none answers within `connect_timeout`."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Say goodbye. Threads that still wait get an error."""
        self._thread.close()

    def close(self) -> None:
        """What the end of `with` does; it may be called more than once."""
        self._thread.close()

    @property
    def is_open(self) -> bool:
        """False before `with`, after its end, and once the client's own thread has failed."""
        return self._thread.is_open

    @property
    def topology(self) -> Topology:
        """The functions, the workers, and who owns what, as this client knows them."""
        return self._async.topology

    @property
    def stats(self) -> ClientStats:
        """What this client has counted so far."""
        return self._async.stats

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
        return self._thread.wait(
            lambda: self._async.call(
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
        """Hand a message over; return when it is durably taken, before it is handled.

        If its `idempotency_key` turns out to be that of another message, it becomes a dead letter.
        """
        self._thread.wait(
            lambda: self._async.send(
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
        """Call a function with many messages; return the replies in the same order.

        `keys` and `messages` have the same length; without keys the messages are spread over
        the partitions. All are waited for. Then the first error is raised, or, with
        `return_errors`, errors stand in the places of their replies. A caller that is cancelled
        takes back what is not answered.
        """
        return self._thread.wait(
            lambda: self._async.call_many(
                function, keys, messages, deadline=deadline, return_errors=return_errors
            )
        )

    def send_many(
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
        self._thread.wait(
            lambda: self._async.send_many(function, keys, messages, deadline=deadline)
        )

    def watermark(
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
        self._thread.wait(lambda: self._async.watermark(function, time, source=source))

    def pipeline(
        self,
        function: Function | str,
        name: str,
        *,
        generation: int = 0,
        timeout: Duration = "10m",
    ) -> BlockingPipeline:
        """Bring rows to a function in batches that have their effect once, however often a batch
        is begun again, by whichever process.

        - `name`: tells the pipeline apart from others, and stays the same when another process
          goes on for it; such as the id of a streaming query.
        - `generation`: what `BlockingPipeline.begin` has returned to its driver; for its tasks.
        - `timeout`: how long a request is retried while there is no room for its rows, or the
          partition has no owner.
        """
        return BlockingPipeline(
            self._thread.run(
                lambda: self._async.pipeline(function, name, generation=generation, timeout=timeout)
            ),
            self._thread,
        )

    def cancel(self, request_id: str) -> None:
        """End somebody's request without effect; return when that is durable.

        One that waits does not run, an `async def` handler is interrupted at its `await`. The
        caller gets `RequestCancelledError`. `NotCancelledError` if the request has ended, or runs
        where it cannot be interrupted. To cancel a call of your own, cancel the task that awaits
        it.
        """
        self._thread.wait(lambda: self._async.cancel(request_id))

    def pipelines(
        self, function: Function | str, *, timeout: Duration = "1m"
    ) -> list[KnownPipeline]:
        """Return the pipelines that have brought rows to a function, by name.

        They are known until they are forgotten (`BlockingPipeline.forget`), also if nobody comes back.
        """
        return self._thread.wait(lambda: self._async.pipelines(function, timeout=timeout))

    def message_schema(self, function: Function | str) -> dict[str, Any] | None:
        """Return what a function takes, as JSON Schema; None: anything."""
        return self._thread.wait(lambda: self._async.message_schema(function))

    def state_schema(self, function: Function | str) -> dict[str, Any]:
        """Return what the states of a function's keys can be set to, as JSON Schema.

        `RejectedError` if it has no states that can be.
        """
        return self._thread.wait(lambda: self._async.state_schema(function))

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
    ) -> BlockingStateSnapshot:
        """Read the states of a function, each partition as it was at one commit, while messages go
        on: `with client.snapshot("shop/cart") as snapshot`, `for found in snapshot`.

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
        return BlockingStateSnapshot(
            self._thread.run(
                lambda: self._async.snapshot(
                    function,
                    partitions=partitions,
                    keys=keys,
                    value_type=value_type,
                    page_max=page_max,
                    timeout=timeout,
                    pins=pins,
                )
            ),
            self._thread,
        )

    def egress(
        self,
        name: str,
        *,
        start: str | EgressCursor = "start",
        until: str | EgressCursor | None = None,
        lost: Literal["raise", "skip"] = "raise",
        value_type: Any = Any,
        batch_max: int = 1_000,
    ) -> BlockingEgressReader:
        """Read what functions emit: `for record in client.egress("orders")`.

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
        return BlockingEgressReader(
            self._thread.run(
                lambda: self._async.egress(
                    name,
                    start=start,
                    until=until,
                    lost=lost,
                    value_type=value_type,
                    batch_max=batch_max,
                )
            ),
            self._thread,
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
    ) -> BlockingEgressRange:
        """Read exactly what is between two cursors, as columns: always the same values.

        Only partitions that `end` names are read; one that `start` does not name from its first
        position on. A range may be cut into several, and they be read side by side.

        - `lost`: as in `egress`, of values that were dropped at a bound.
        - `parallel`: of how many partitions a page is read at once, and held in memory.
        - `page_max`: how many values a page has at most; it also ends at about 1 MiB.
        - `timeout`: how long no worker may answer before `UnavailableError`; by default,
          `connect_timeout`.
        """
        return BlockingEgressRange(
            self._thread.run(
                lambda: self._async.egress_range(
                    name,
                    start,
                    end,
                    lost=lost,
                    parallel=parallel,
                    page_max=page_max,
                    timeout=timeout,
                )
            ),
            self._thread,
        )

    def egress_bounds(
        self, name: str, *, timeout: Duration | None = None
    ) -> tuple[EgressCursor, EgressCursor]:
        """Return cursors at the oldest value of an egress that is kept, and behind the newest.

        `timeout` is as in `egress_range`.
        """
        return self._thread.wait(lambda: self._async.egress_bounds(name, timeout=timeout))


class BlockingEgressReader:
    """`EgressReader` for programs without an event loop.

    Reads an egress: `for record in client.egress("orders")`, or `next_batch`.

    `cursor` is where it stands: behind the last record that it gave out. Kept together with what
    was made of the records (in one transaction), and given to the next reader as its `start`, it
    makes every record count exactly once, whatever fails. One page is in memory at a time. After
    an `UnavailableError` the same reader can be asked to go on.
    """

    def __init__(self, twin: EgressReader, thread: LoopThread) -> None:
        self._async = twin
        self._thread = thread

    @property
    def egress(self) -> str:
        return self._async.egress

    @property
    def lost(self) -> Sequence[EgressGap]:
        """What was skipped (with `lost="skip"`), the latest of it."""
        return self._async.lost

    @property
    def cursor(self) -> EgressCursor:
        """Where it stands: behind the last record that was given out."""
        return self._async.cursor

    def __iter__(self) -> BlockingEgressReader:
        return self

    def __next__(self) -> EgressRecord:
        if not self._async.has_waiting and not self._thread.wait(self._async.fill):
            raise StopIteration
        return self._async.take()

    def next_batch(self) -> list[EgressRecord]:
        """Return the next records, at least one unless it is over; `cursor` is behind them."""
        return self._thread.wait(self._async.next_batch)

    @property
    def has_waiting(self) -> bool:
        """Tell whether records were read that were not given out."""
        return self._async.has_waiting

    def take(self) -> EgressRecord:
        """Give out a record that is waiting."""
        return self._async.take()

    def fill(self) -> bool:
        """Read a page if no record is waiting; return whether one is then, or all is read."""
        return self._thread.wait(self._async.fill)

    def begin(self) -> None:
        """Find out where to begin and to end, if that is not known yet; `fill` does it, too."""
        self._thread.wait(self._async.begin)


class BlockingEgressRange:
    """`EgressRange` for programs without an event loop.

    Reads the values between two cursors, of the partitions that the second one names.

    `for values in client.egress_range(...)`, or `next_batch`. Values of one partition come
    in order. One page of each of `parallel` partitions is in memory. After an `UnavailableError`
    it can be asked to go on.
    """

    def __init__(self, twin: EgressRange, thread: LoopThread) -> None:
        self._async = twin
        self._thread = thread

    @property
    def egress(self) -> str:
        return self._async.egress

    @property
    def lost(self) -> Sequence[EgressGap]:
        """What was skipped (with `lost="skip"`), the latest of it."""
        return self._async.lost

    def __iter__(self) -> BlockingEgressRange:
        return self

    def __next__(self) -> EgressValues:
        if not self._async.has_waiting and not self._thread.wait(self._async.fill):
            raise StopIteration
        return self._async.take()

    def next_batch(self) -> list[EgressValues]:
        """Return the next pages of some partitions; nothing once everything was read."""
        return self._thread.wait(self._async.next_batch)

    def batches(self) -> Generator[list[EgressValues], None, None]:
        """Yield all that `next_batch` returns, one read ahead. Closing it does not wait."""
        return one_ahead(self._thread.begin, self._async.next_batch)

    @property
    def has_waiting(self) -> bool:
        """Tell whether values were read that were not given out."""
        return self._async.has_waiting

    def fill(self) -> bool:
        """Read pages if none is waiting; return whether one is then, or all is read."""
        return self._thread.wait(self._async.fill)

    def take(self) -> EgressValues:
        """Give out values that are waiting."""
        return self._async.take()


class BlockingPipeline:
    """`Pipeline` for programs without an event loop.

    Brings batches of rows to one function, each once. Made by `BlockingClient.pipeline`.
    """

    def __init__(self, twin: Pipeline, thread: LoopThread) -> None:
        self._async = twin
        self._thread = thread

    @property
    def name(self) -> str:
        return self._async.name

    @property
    def generation(self) -> int:
        """Of its driver; see `begin`."""
        return self._async.generation

    @property
    def partition_count(self) -> int:
        """How many partitions the function has; a key's is `partition_index_of`."""
        return self._async.partition_count

    @property
    def completed(self) -> int:
        """The last batch of which it is known here that it is sealed everywhere; -1: none."""
        return self._async.completed

    def attempt(
        self, batch: int, name: str = "", *, urgency: Literal["normal", "lowest"] = "normal"
    ) -> BlockingAttempt:
        """Begin to stage rows of a batch, under a name that nobody has had before.

        `urgency`: what `commit` will be told; with "lowest", rows are brought in small parts.
        """
        return BlockingAttempt(
            self._thread.run(lambda: self._async.attempt(batch, name, urgency=urgency)),
            self._thread,
        )

    def begin(self, run: str = "") -> int:
        """Take over from earlier drivers; return the new generation, which tasks have to know.

        What those have decided is finished first. From then on they decide nothing, and what they
        have staged in vain is dropped where it is in the way. Without this everything is done once
        as well, but rows of drivers that died before they decided take room until they are old.

        - `run`: the name of this driver's run, where it and its tasks cannot talk: whoever begins
          the run that was begun last is of the same generation; an earlier run is refused.
        """
        return self._thread.wait(lambda: self._async.begin(run))

    def commit(
        self,
        batch: int,
        staged: Sequence[Staged],
        *,
        deadline: Duration | None = None,
        urgency: Literal["normal", "lowest"] = "normal",
        completed: int = -1,
    ) -> Committed:
        """Let the rows of these attempts be messages of the function: all of them, once.

        Returns when that is durable, not when they have run. If another process has decided about
        the batch before, its attempts count, not these. Batches are committed in order; which
        numbers they have does not matter otherwise.

        - `deadline`: when the rows should be done, from the commit on.
        - `urgency`: "lowest" for what may wait for everything else, such as history.
        - `completed`: the last batch whose commit has returned, if that was in another process.
          Who does not know finishes the one before once more, which only takes time.
        """
        return self._thread.wait(
            lambda: self._async.commit(
                batch, staged, deadline=deadline, urgency=urgency, completed=completed
            )
        )

    def drop(self, batch: int, staged: Sequence[Staged]) -> None:
        """Forget what these attempts have staged, if they were not committed."""
        self._thread.wait(lambda: self._async.drop(batch, staged))

    def progress(self) -> PipelineProgress:
        """Tell how far it is."""
        return self._thread.wait(self._async.progress)

    def wait_taken(self) -> None:
        """Return when all that was committed so far is taken: it was run, or waits for a retry."""
        self._thread.wait(self._async.wait_taken)

    def describe(self, text: bytes = b"", *, anew: bool = False) -> Description:
        """Keep what is to be known of the pipeline, if nothing is kept yet; return what is kept,
        and whether it is complete.

        - `anew`: replace what is kept. For a driver that has begun (see `begin`): it is refused
          if another one has begun since.
        """
        return self._thread.wait(lambda: self._async.describe(text, anew=anew))

    def complete(self, mark: str = "", *, as_driver: bool = False) -> Description:
        """Say for good that nothing more is to come; return when all that was committed is taken.

        - `mark`: where it ends, for whoever goes on from there; the first one counts.
        - `as_driver`: who says so has begun (see `begin`), and is refused if another one has begun
          since, which may have more to bring.
        """
        return self._thread.wait(lambda: self._async.complete(mark, as_driver=as_driver))

    def wait_complete(self, timeout: Duration | None = None) -> Description:
        """Return when somebody has said that the pipeline is complete, or the timeout has
        passed.
        """
        return self._thread.wait(lambda: self._async.wait_complete(timeout))

    def forget(self) -> None:
        """Let nothing be known of it any longer. Who uses its name again is a new pipeline: nothing
        of the former one may still be under way.
        """
        self._thread.wait(self._async.forget)


class BlockingAttempt:
    """`Attempt` for programs without an event loop.

    Rows that one task stages for a batch; in vain, unless they are committed.
    """

    def __init__(self, twin: Attempt, thread: LoopThread) -> None:
        self._async = twin
        self._thread = thread

    @property
    def name(self) -> str:
        return self._async.name

    @property
    def batch(self) -> int:
        return self._async.batch

    def add(self, index: int, keys: Sequence[str], payloads: bytes) -> None:
        """Stage rows for one partition: their keys, and a msgpack array of their payloads.

        They run in the order in which they are added. Returns when they are on their way; it waits
        as long as too much is.
        """
        self._thread.wait(lambda: self._async.add(index, keys, payloads))

    def assign(
        self, index: int, keys: Sequence[str], states: bytes, if_exists: IfExists = "fail"
    ) -> None:
        """As `add`, for states: no handler runs, the state of each key becomes what is given.

        - `states`: a msgpack array; each as `sublet state put` takes it.
        - `if_exists`: a key that has a state by then keeps it, and the row becomes a dead letter
          ("fail") or is nothing ("keep"); or the state is replaced ("overwrite").

        All that a pipeline brings is states, or none of it.
        """
        self._thread.wait(lambda: self._async.assign(index, keys, states, if_exists))

    def end(self) -> Staged:
        """Wait until everything is durable; return what it is, for `BlockingPipeline.commit`."""
        return self._thread.wait(self._async.end)

    def drop(self, timeout: Duration | None = None) -> None:
        """Forget what was staged, and stage no more; `TimeoutError` if that takes longer than the
        timeout: then a later batch does it.
        """
        self._thread.wait(lambda: self._async.drop(timeout))


class BlockingStateSnapshot:
    """`StateSnapshot` for programs without an event loop.

    The states of a function, each partition as it was at one commit.

    `with client.snapshot("shop/cart") as snapshot`, then `for found in snapshot`, or
    `next_page` for columns. What is consistent: in each partition exactly the commits up to that
    of its pin are in it, each whole; `pins` tells which. The pins of different partitions are
    milliseconds apart, so a message from one to another may be in neither state.

    `SnapshotLostError` if a partition cannot be read to its end as it was: what was given out of
    that partition does not count.
    """

    def __init__(self, twin: StateSnapshot, thread: LoopThread) -> None:
        self._async = twin
        self._thread = thread

    @property
    def function(self) -> str:
        return self._async.function

    @property
    def pins(self) -> Mapping[int, SnapshotPin]:
        """Partition to what is read of it: which commit, and where."""
        return self._async.pins

    def __enter__(self) -> BlockingStateSnapshot:
        """Pin all partitions."""
        self._thread.wait(self._async.__aenter__)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def pin(self) -> None:
        """Pin all partitions that are not, in the same moment; reading does it, too."""
        self._thread.wait(self._async.pin)

    def close(self) -> None:
        """Let workers forget what is not read any more. They also do so by themselves, later."""
        self._thread.wait(self._async.close)

    def __iter__(self) -> BlockingStateSnapshot:
        return self

    def __next__(self) -> KeyState:
        if not self._async.has_waiting and not self._thread.wait(self._async.fill):
            raise StopIteration
        return self._async.take()

    @property
    def has_waiting(self) -> bool:
        """Tell whether states were read that were not given out."""
        return self._async.has_waiting

    def fill(self) -> bool:
        """Read a page if no state is waiting; return whether one is then, or all is read."""
        return self._thread.wait(self._async.fill)

    def take(self) -> KeyState:
        """Give out a state that is waiting."""
        return self._async.take()

    def decoded(self, page: SnapshotStates) -> list[KeyState]:
        """Return the keys of a page, with their states."""
        return self._async.decoded(page)

    def next_page(self) -> SnapshotStates | None:
        """Return the next keys, as columns, by partition and key; None once all were read."""
        return self._thread.wait(self._async.next_page)

    def pages(self) -> Generator[SnapshotStates, None, None]:
        """Yield all that `next_page` returns, one read ahead. Closing it does not wait."""
        return one_ahead(self._thread.begin, self._async.next_page)
