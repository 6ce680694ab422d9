"""One partition with a store, whose effects a test carries out one at a time.

Nothing happens by itself: a test lets a batch arrive, then says how a run ends, what a commit
comes to, how late it is.
"""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Sequence
from typing import Any, ClassVar, TypeVar

import msgspec

from sublet.functions.app import App, Function
from sublet.functions.codec import join_column, split_column
from sublet.functions.effects import Effect
from sublet.functions.retry import Retry
from sublet.runtime.config.limits import Limits
from sublet.runtime.partition.model.effects import (
    Acknowledge,
    Deliver,
    Fetch,
    Interrupt,
    Lend,
    LoadPreimages,
    LoadStaged,
    LoadStates,
    LoadTimers,
    LoadWindows,
    Merger,
    NoCells,
    PartitionReleased,
    Perform,
    Ready,
    Recall,
    Redeliver,
    Refuse,
    Resume,
    Run,
    Settled,
    StepEffect,
    Stop,
    Store,
    WakeAt,
)
from sublet.runtime.partition.model.environment import (
    DUE_LOADED_MAX,
    Acquisition,
    StateAccess,
    StreamTopology,
    WorkerEnvironment,
)
from sublet.runtime.partition.model.lease import Lease
from sublet.runtime.partition.model.work import Failure, QueuedMessage, RunResult, Work
from sublet.runtime.partition.model.worker_backlog import LendableWork, WorkerBacklog
from sublet.runtime.partition.partition import Partition
from sublet.runtime.protocol.frames import Ack, Batch, ErrorInfo, Extra, Kind, Refused
from sublet.scheduler.batching import Curve
from sublet.scheduler.live_traffic import LiveTraffic
from sublet.scheduler.urgency import Urgency
from sublet.statestore.contract import (
    IDEMPOTENCY,
    STAGED,
    TIMER,
    WINDOW,
    Commit,
    Outcome,
    Record,
    StateRow,
)
from sublet.statestore.memory import MemoryBackend, MemoryStore

T = TypeVar("T")

NAME = "app/f/0"
CLIENT = "~c"
PEER = "app/g/1"

BROKEN = Failure(ErrorInfo("handler_failed", "broken"), True)
REJECTED = Failure(ErrorInfo("rejected", "rejected"), False)


def now_done(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns that never really waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError("it waited")


def make_function(*, is_async: bool = False, **options: Any) -> Function:
    app = App("app", partitions=1)
    options.setdefault("retry", Retry(attempts=3, backoff="10ms"))
    if is_async:

        @app.function(name="f", **options)
        async def waits(ctx: Any, message: Any) -> None: ...

        return waits
    if options.get("batch") in (True, "columns"):

        @app.function(name="f", **options)
        def together(batch: Any) -> None: ...

        return together

    @app.function(name="f", **options)
    def alone(ctx: Any, message: Any) -> None: ...

    return alone


def batch(
    first: int,
    keys: Sequence[str],
    *,
    source: str = CLIENT,
    kind: Kind = Kind.CALL,
    payloads: Sequence[Any] | None = None,
    time_left_ms: int | list[int] | None = None,
    extras: dict[int, Extra] | None = None,
) -> Batch:
    """Return messages `first` .. for the partition, one for each key."""
    items = [msgspec.msgpack.encode(each) for each in payloads or [None] * len(keys)]
    column = msgspec.Raw(join_column(items))
    return Batch(NAME, source, first, kind, list(keys), column, len(keys), time_left_ms, extras)


def replies(first: int, refs: Sequence[int], values: Sequence[Any], *, callee: str = PEER) -> Batch:
    """Return replies of another partition to calls of this one."""
    column = msgspec.Raw(join_column([msgspec.msgpack.encode(each) for each in values]))
    return Batch(
        f"{NAME}<", f"{callee}<", first, Kind.REPLY, [], column, len(refs), refs=list(refs)
    )


class FixedPace:
    def __init__(self) -> None:
        self.size = 1_000
        self.aside = False
        self.learned: list[tuple[int, float]] = []

    def batch_size(self, function: Function, limit: int) -> int:
        return min(limit, self.size)

    def off_loop(self, function: Function) -> bool:
        return self.aside

    def learn(self, function: Function, count: int, elapsed_ms: float) -> None:
        self.learned.append((count, elapsed_ms))


class TenMs:
    """Every message of every function takes 10 ms."""

    def coefficients(self, function: Function) -> tuple[float, float]:
        return 0.0, 10.0

    def expected_ms(self, function: Function, count: int) -> float:
        return 10.0 * count

    def at_once(self, function: Function) -> int:
        return 1


class KnownCells(NoCells):
    """Keeps which keys were loaded and which were dropped."""

    is_complete = False

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.dropped: list[str] = []
        self.full = False
        self.in_use: Collection[str] = ()

    def missing(self, keys: Sequence[str]) -> Sequence[str]:
        return [key for key in dict.fromkeys(keys) if key not in self.known]

    unread = missing

    def insert(self, keys: Sequence[str], rows: Sequence[StateRow]) -> None:
        self.known.update(keys)

    def drop(self, key: str) -> None:
        self.known.discard(key)
        self.dropped.append(key)

    def over_bound(self) -> bool:
        return self.full

    def shrink(self, in_use: Collection[str]) -> None:
        self.in_use = in_use


class Owner:
    """One owner of the partition; `take_over` makes the next one on the same store."""

    store_type: ClassVar[type[Any]] = MemoryStore

    def __init__(  # noqa: PLR0913  # Its surroundings are all named, and given once.
        self,
        function: Function | None = None,
        *,
        limits: Limits | None = None,
        backend: MemoryBackend | None = None,
        cells: KnownCells | None = None,
        now_ms: float = 0.0,
        timers_loaded_max: int = DUE_LOADED_MAX,
        urgency: Urgency | None = None,
        backlog: WorkerBacklog | None = None,
        lendable: LendableWork | None = None,
        live: LiveTraffic | None = None,
        curve: Curve | None = None,
        prefetch_keys_max: int = 0,
        merger: Merger | None = None,
        refused: Stop | None = None,
        downstream: Sequence[str] = (),
    ) -> None:
        """`backlog`: all that waits in the worker enters it. `refused`: why the owner before it
        has stopped, if it knows."""
        self.urgency = urgency
        self.backlog = backlog
        self.lendable = lendable
        self.live = live or LiveTraffic()
        self.now_ms = now_ms
        self.function = function or make_function()
        self.limits = limits or Limits()
        self.backend = backend or MemoryBackend()
        self.store: MemoryStore = self.store_type(self.backend)
        self.pace = FixedPace()
        self.timers_loaded_max = timers_loaded_max
        self.downstream = downstream
        self.loads: list[LoadStates] = []
        self.fetches: list[Sequence[str]] = []
        self.runs: list[Work] = []
        self.commits: list[Commit] = []
        self.delivered: list[Batch] = []
        self.acks: list[Ack] = []
        self.refusals: list[Refused] = []
        self.resumed: list[Resume] = []
        self.performing: list[tuple[str, str]] = []
        self.timer_loads: list[LoadTimers] = []
        self.window_loads: list[LoadWindows] = []
        self.staged_loads: list[LoadStaged] = []
        self.old_loads: list[Sequence[str]] = []
        self.settled: list[object] = []
        self.stops: list[Outcome] = []
        self.stopped: Stop | None = None
        self.left: list[PartitionReleased] = []
        self.interrupted: list[str] = []
        self.recalled: list[Lease] = []
        self.lent: list[Work] = []
        """What could go to whom it was lent, since its states are here."""
        self.ready: Ready | None = None
        self.held = False
        """The worker has something more urgent to do."""
        self.wake_ms: float | None = None
        self.partition = Partition(
            self.function,
            Acquisition(
                partition=NAME,
                recovered=now_done(self.store.acquire(NAME, "worker")),
                now_ms=now_ms,
                wall_ms=1_000_000 + int(now_ms),
                oversized=refused.unstorable if refused else None,
            ),
            WorkerEnvironment(
                limits=self.limits,
                pace=self.pace,
                urgency=urgency or Urgency(),
                backlog=backlog if lendable is None else lendable.backlog,
                tracks_all=backlog is not None,
                lendable=lendable,
                live=self.live,
                curve=curve,
                due_loaded_max=timers_loaded_max,
            ),
            StateAccess(
                cells=cells or NoCells(),
                fetchable=cells if prefetch_keys_max else None,
                prefetch_keys_max=prefetch_keys_max,
                merger=merger,
            ),
            StreamTopology(downstream=downstream),
        )
        self.partition.start(now_ms)
        self.collect()
        self.load_timers()

    def take_over(self, *, downstream: Sequence[str] | None = None) -> Owner:
        """Return the next owner. This one goes on, if a test lets it.

        `downstream`: who waits for its watermarks, if its worker has other functions.
        """
        was_refused = self.stopped is not None and self.stopped.outcome is Outcome.REFUSED
        return Owner(
            self.function,
            limits=self.limits,
            backend=self.backend,
            now_ms=self.now_ms,
            timers_loaded_max=self.timers_loaded_max,
            urgency=self.urgency,
            backlog=self.backlog,
            lendable=self.lendable,
            live=self.live,
            refused=self.stopped if was_refused else None,
            downstream=self.downstream if downstream is None else downstream,
        )

    def collect(self) -> None:
        """Note what the partition asks for. Unless it is held, it has its turn at once."""
        while self.partition.effects:
            effects, self.partition.effects = self.partition.effects, []
            for effect in effects:
                self._collect(effect)
            if self.ready is not None and not self.held:
                self.take()

    def take(self) -> None:
        """Give the partition its turn."""
        self.ready = None
        self.partition.take(self.now_ms)
        self.collect()

    def _collect(self, effect: StepEffect) -> None:  # noqa: C901, PLR0912  # One case an effect.
        match effect:
            case Ready():
                self.ready = effect
            case Interrupt():
                self.interrupted.append(effect.message_id)
            case Recall():
                self.recalled.append(effect.lease)
            case LoadStates():
                self.loads.append(effect)
            case Fetch():
                self.fetches.append(effect.keys)
            case Run():
                self.runs.append(effect.work)
            case Lend():
                self.lent.append(effect.work)
            case Store():
                self.commits.append(effect.commit)
            case Deliver() | Redeliver():
                self.delivered.append(msgspec.msgpack.decode(effect.entry.data, type=Batch))
            case Acknowledge():
                self.acks.append(effect.ack)
            case Refuse():
                self.refusals.append(effect.refused)
            case Resume():
                self.resumed.append(effect)
            case Perform():
                self.performing.append((effect.message_id, effect.name))
            case LoadTimers():
                self.timer_loads.append(effect)
            case LoadWindows():
                self.window_loads.append(effect)
            case LoadStaged():
                self.staged_loads.append(effect)
            case LoadPreimages():
                self.old_loads.append(effect.keys)
            case Settled():
                self.settled.append(effect.ticket)
            case WakeAt():
                self.wake_ms = effect.at_ms
            case Stop():
                self.stops.append(effect.outcome)
                self.stopped = effect
            case PartitionReleased():
                self.left.append(effect)

    # Events

    def arrive(self, first: int, keys: Sequence[str], **options: Any) -> None:
        self.receive(batch(first, keys, **options))

    def receive(self, frame: Batch) -> None:
        self.partition.batch_arrived(frame, self.now_ms)
        self.collect()

    def leave(self, *, at_once: bool = False) -> None:
        self.partition.leave(self.now_ms, at_once=at_once)
        self.collect()

    def acknowledge(self, destination: str, upto: int) -> None:
        self.partition.delivery.acknowledged(destination, upto)
        self.collect()

    def client_gone(self, client: str = CLIENT) -> None:
        self.partition.clients.goodbye(client, self.now_ms)
        self.collect()

    def pass_time(self, delay_ms: float) -> None:
        """Let time pass, and wake the partition if it wanted to be woken by then."""
        self.now_ms += delay_ms
        if self.wake_ms is not None and self.wake_ms <= self.now_ms:
            self.wake_ms = None
            self.partition.woken(self.now_ms)
            self.collect()

    def load(self) -> None:
        """Carry out the oldest load."""
        load = self.loads.pop(0)
        answers = now_done(self.store.records(NAME, IDEMPOTENCY, load.idempotency_ids))
        self.loaded(load, answers)

    def loaded(self, load: LoadStates, answers: Sequence[Record] = ()) -> None:
        self.partition.loaded(load.work, load.keys, [], answers, self.now_ms)
        self.collect()

    def fetch(self, rows: Sequence[StateRow] = ()) -> None:
        """Carry out the oldest reading ahead."""
        self.partition.fetched(self.fetches.pop(0), rows, self.now_ms)
        self.collect()

    def load_timers(self) -> None:
        """Carry out the oldest load of timers."""
        load = self.timer_loads.pop(0)
        self.timers_loaded(load, self.read_timers(load))

    def read_timers(self, load: LoadTimers) -> list[Record]:
        return now_done(self.store.records_due(NAME, TIMER, load.until_ms, load.limit))

    def timers_loaded(self, load: LoadTimers, records: Sequence[Record]) -> None:
        self.partition.timers.loaded(records, self.now_ms)
        self.collect()

    def load_windows(self) -> None:
        """Carry out the oldest load of windows' ends."""
        load = self.window_loads.pop(0)
        records = now_done(self.store.records_due(NAME, WINDOW, load.until_ms, load.limit))
        self.partition.windows.loaded(records, self.now_ms)
        self.collect()

    def load_staged(self) -> None:
        """Carry out the oldest load of staged rows."""
        ids = self.staged_loads.pop(0).ids
        records = now_done(self.store.records(NAME, STAGED, ids))
        self.partition.pipelines.loaded(ids, records, self.now_ms)
        self.collect()

    def finish(
        self,
        *,
        at: int = 0,
        failed: dict[int, Failure] | None = None,
        suspended: Collection[int] = (),
        unfinished: Collection[int] = (),
        effects: Sequence[Effect] = (),
        rows: Sequence[StateRow] = (),
    ) -> Work:
        """End a run (the oldest, unless said otherwise). Replies are the payloads' texts."""
        work = self.runs.pop(at)
        result = RunResult()
        result.values = [f"done {key}" for key in work.keys]
        result.failed = failed or {}
        result.suspended = set(suspended)
        result.unfinished = set(unfinished)
        result.effects = list(effects)
        result.rows = list(rows)
        result.elapsed_ms = 0.1
        self.partition.finished(work, result, self.now_ms)
        self.collect()
        return work

    def end(
        self, message_id: str, failure: Failure | None = None, effects: Sequence[Effect] = ()
    ) -> None:
        """End a handler that was suspended."""
        self.partition.invocation_ended(message_id, "ended", failure, [], effects, 0.1, self.now_ms)
        self.collect()

    def call(self, message_id: str, call: int = 1, key: str = "x", payload: Any = None) -> None:
        data = msgspec.msgpack.encode(payload)
        self.partition.calls.opened(message_id, call, PEER, key, data, self.now_ms)
        self.collect()

    def cancel(self, number: int, *, source: str = CLIENT) -> QueuedMessage | None:
        """Cancel a message by hand."""
        found = self.partition.requests.cancel(source, number, self.now_ms)
        self.collect()
        return found

    def begin(self, message_id: str, name: str) -> None:
        """Let a handler ask whether it may do a side effect."""
        self.partition.calls.begin(message_id, name)
        self.collect()

    def performed(
        self, message_id: str, name: str, result: Any = None, error: ErrorInfo | None = None
    ) -> None:
        raw = msgspec.Raw(msgspec.msgpack.encode(result))
        self.partition.calls.performed(message_id, name, raw, error, self.now_ms)
        self.collect()

    def expire(self, message_id: str, call: int = 1) -> None:
        error = ErrorInfo("deadline_exceeded", "too late")
        self.partition.calls.expired(message_id, call, error, self.now_ms)
        self.collect()

    def commit(self, outcome: Outcome | None = None) -> Commit:
        """Send the commit to the store and tell the outcome (the store's, unless given)."""
        commit = self.commits.pop(0)
        told = outcome or now_done(self.store.commit([commit]))[0]
        self.partition.committed(told, self.now_ms)
        self.collect()
        return commit

    def load_old(self, *, fails: bool = False) -> None:
        """Read what is to be written over, for readers of snapshots."""
        found = now_done(self.store.states(NAME, self.partition.epoch, keys=self.old_loads.pop(0)))
        rows = None if fails or found is None else [row for rows in found.states for row in rows]
        self.partition.preimages_loaded(rows)
        self.collect()

    def settle(self) -> None:
        """Let everything that can go on without time passing go on, without failures."""
        for _ in range(1_000):
            if self.loads:
                self.load()
            elif self.fetches:
                self.fetch()
            elif self.timer_loads:
                self.load_timers()
            elif self.window_loads:
                self.load_windows()
            elif self.staged_loads:
                self.load_staged()
            elif self.old_loads:
                self.load_old()
            elif self.runs:
                self.finish()
            elif self.commits:
                self.commit()
            else:
                return
        raise AssertionError("the partition does not come to rest")

    # What came out

    def keys_running(self) -> list[list[str]]:
        return [list(work.keys) for work in self.runs]

    def ids_running(self) -> list[list[str]]:
        return [work.message_ids() for work in self.runs]

    def records(self, kind: str) -> dict[str, Record]:
        """What is stored of a kind."""
        return self.backend.partitions[NAME].records.get(kind, {})

    def replies(self, to: str = CLIENT) -> list[tuple[int, Any]]:
        """(message, result or error code) of all replies delivered so far."""
        told: list[tuple[int, Any]] = []
        for each in self.delivered:
            if each.kind is Kind.REPLY and each.target == to:
                refs = each.refs or range(each.refs_first, each.refs_first + each.count)
                for place, raw in enumerate(split_column(each.payloads)):
                    error = (each.errors or {}).get(place)
                    value = error.code if error else msgspec.msgpack.decode(raw)
                    told.append((refs[place], value))
        return told

    def sent(self, to: str = PEER) -> list[Any]:
        """Payloads of all messages delivered to another partition so far."""
        return [
            msgspec.msgpack.decode(raw)
            for each in self.delivered
            if each.target == to and each.kind in (Kind.SEND, Kind.CALL)
            for raw in split_column(each.payloads)
        ]
