"""Carries out what a worker's partitions decide: loads, runs, commits, wakes, passes on.

The shell around `Partition`. User code that is short runs here, on the loop, in turns of about a
millisecond between which the loop is free; the rest runs beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from math import inf

import msgspec
import structlog

from sublet.functions.address import is_client, split_partition_name
from sublet.functions.app import Function
from sublet.functions.effects import Routes
from sublet.functions.errors import (
    UnavailableError,
    UnknownOutcomeError,
)
from sublet.functions.state import StateClock
from sublet.functions.state.partial import runs_in_parts
from sublet.runtime.config.limits import Limits
from sublet.runtime.execution.async_runner import (
    AsyncRunner,
    CallOpened,
    EffectBegun,
    EffectPerformed,
    Ended,
    Invocation,
    Opened,
)
from sublet.runtime.execution.loop_monitor import LoopMonitor, Running
from sublet.runtime.execution.state_cache import StateCache
from sublet.runtime.execution.state_import import assign_states
from sublet.runtime.execution.sync_runner import ExecutionEnv, RunScope, SyncRunner
from sublet.runtime.execution.threads import (
    LoopWatchdog,
    Watchdog,
)
from sublet.runtime.hosting.call_timeouts import CallTimeouts
from sublet.runtime.hosting.group_commit import GroupCommitter
from sublet.runtime.hosting.hosted import Clock, Hosted, Transport
from sublet.runtime.hosting.store_reads import StoreReads
from sublet.runtime.hosting.thread_runs import BusyTime, ThreadRun, ThreadRuns
from sublet.runtime.hosting.turns import Turns
from sublet.runtime.leases.adapter import Lending
from sublet.runtime.leases.binding import Binding
from sublet.runtime.leases.borrowed_runs import AsyncGuests, BorrowedRun
from sublet.runtime.leases.state_merge import StateMerger
from sublet.runtime.observability.telemetry import PartitionTimes, Telemetry
from sublet.runtime.observability.throttled_log import Notices
from sublet.runtime.observability.tracing import Tracing
from sublet.runtime.partition.model.channel_names import endpoint_of
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
    NoCells,
    Pace,
    PartitionReleased,
    Perform,
    Ready,
    Recall,
    Redeliver,
    Refuse,
    Resume,
    Run,
    Settled,
    Stop,
    WakeAt,
)
from sublet.runtime.partition.model.effects import Store as StoreCommit
from sublet.runtime.partition.model.environment import (
    Acquisition,
    SnapshotRoom,
    StateAccess,
    StreamTopology,
    WorkerEnvironment,
)
from sublet.runtime.partition.model.lease import Lease
from sublet.runtime.partition.model.work import Failure, QueuedMessage, RunResult, Work
from sublet.runtime.partition.model.worker_backlog import LendableWork, WorkerBacklog
from sublet.runtime.partition.partition import Partition
from sublet.runtime.partition.records.snapshots import Snapshot
from sublet.runtime.partition.records.watermarks import downstream_partitions, expected_sources
from sublet.runtime.protocol.frames import Ack, Batch, ErrorInfo
from sublet.runtime.protocol.handover_messages import Released
from sublet.scheduler.laxity_queue import LaxityQueue
from sublet.scheduler.pace import QUANTA_MAX, LearnedPace
from sublet.scheduler.ready_queue import STARVATION_MS
from sublet.scheduler.scaling.plan import Plan
from sublet.scheduler.urgency import Urgency
from sublet.statestore.contract import (
    Commit,
    Outcome,
    Recovered,
    StateRow,
    Store,
)

_log = structlog.get_logger(__name__)

GUEST_ON_LOOP_MS = 2.0
WARM_BYTES_MAX = 256 * 1024
"""So much state goes with a partition to its next owner, so that its first messages need not wait
for the store."""


class Host:
    def __init__(  # noqa: PLR0913  # Its surroundings are all named, and given once.
        self,
        functions: Mapping[str, Function],
        store: Store,
        *,
        routes: Routes,
        outside: Transport,
        limits: Limits,
        clock: Clock,
        urgency: Urgency | None = None,
        pace: Pace | None = None,
        starvation_ms: float = STARVATION_MS,
        loop_blocked_ms: float = 0.0,
        watchdog: Watchdog | None = None,
        tracing: Tracing | None = None,
        binding: Binding | None = None,
    ) -> None:
        """Without others, what came first runs first, the pace is learned from what runs cost,
        a thread interrupts what runs too long on the loop, nobody tells what blocks it, and nothing
        is lent."""
        self.partitions: dict[str, Hosted] = {}
        self.telemetry = Telemetry()
        self._functions = functions
        self._partition_counts = {each.name: each.partition_count for each in functions.values()}
        self._store = store
        self._routes = routes
        self._outside = outside
        self._limits = limits
        self._clock = clock
        self._tracing = tracing or Tracing()
        self._notices = Notices(clock.monotonic_ms)
        self.snapshot_room = SnapshotRoom(limits.snapshot_bytes_max)
        self.pace: Pace = pace or LearnedPace()
        self.urgency = urgency or Urgency()
        tracks_all = any(each.infeasible == "refuse" for each in functions.values())
        backlog: WorkerBacklog = LaxityQueue()
        lendable = None if binding is None else LendableWork(backlog)
        self._environment = WorkerEnvironment(
            limits=limits,
            pace=self.pace,
            urgency=self.urgency,
            backlog=backlog if tracks_all or binding is not None else None,
            tracks_all=tracks_all,
            lendable=lendable,
            curve=self.pace if isinstance(self.pace, LearnedPace) else None,
            snapshot_room=self.snapshot_room,
        )
        # Who does not learn what runs cost, cuts none: in a test all runs must be alike.
        quantum_ms = self.pace.quantum_ms if isinstance(self.pace, LearnedPace) else inf
        self._quantum_s = quantum_ms / 1000
        self.committer = GroupCommitter(store, self._commit_ended, self._group_committed)
        self._watchdog: Watchdog = watchdog or LoopWatchdog()
        self._monitor = LoopMonitor(loop_blocked_ms, self) if loop_blocked_ms else None
        self._sync = SyncRunner(self._watchdog)
        self._async = AsyncRunner(
            self._watchdog,
            on_call=self._opened,
            on_unwanted=self._call_unwanted,
            on_end=self._invocation_ended,
        )
        self._threads = ThreadRuns(self._sync, self._thread_run_ended)
        self._turns = Turns(
            self.urgency.order,
            starvation_ms,
            self._threads,
            self.committer,
            take=self._take,
            monotonic_ms=clock.monotonic_ms,
            before=None if binding is None else self._look_before_turn,
            after=None if binding is None else self._look_at_waiting,
        )
        self._reads = StoreReads(store, clock, self.telemetry, self._apply_effects)
        self._call_timeouts = CallTimeouts(self._call_expired)
        self._loop: asyncio.AbstractEventLoop
        self._tasks: asyncio.TaskGroup
        self._is_taking = False
        self._watchers: set[asyncio.Event] = set()
        """Set after each step of a partition, for those who wait for something of it."""
        self._left_lately: set[str] = set()
        """Partitions that are not here since this turn of the loop."""
        self._heavy: dict[str, frozenset[str]] = {}
        """Partitions whose last commit was too large for the store, with the ids of the messages
        that were alone in one."""
        self.lending: Lending | None = None
        """None where nothing is lent or taken."""
        if binding is not None and lendable is not None:
            self.lending = self._open_lending(binding, lendable)

    @property
    def threads_abandoned(self) -> int:
        return self._threads.abandoned_count

    @property
    def loop_blocked(self) -> Mapping[str, tuple[int, float]]:
        """See `LoopMonitor.blocked`."""
        return {} if self._monitor is None else self._monitor.blocked

    def running(self) -> Running | None:
        """See `UserCode`."""
        run = self._watchdog.running
        return None if run is None else Running(run[0], run[2], 0)

    def running_aside(self) -> Iterable[Running]:
        """See `UserCode`."""
        found = [self._async.running_aside()]
        if self.lending is not None:
            found.append(self.lending.async_guests.running_aside())
        return [Running(*each) for each in found if each is not None]

    @property
    def busy_times(self) -> Mapping[str, BusyTime]:
        """See `ThreadRuns`."""
        return self._threads.busy_times

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Begin; background work becomes children of the given group."""
        self._loop = asyncio.get_running_loop()
        self._threads.start(self._loop)
        self._turns.start(self._loop)
        self._tasks = tasks
        self._watchdog.start()
        if self._monitor is not None:
            self._monitor.start()
        self._async.start(tasks)
        if self.lending is not None:
            self.lending.async_guests.start(tasks)
        tasks.create_task(self.committer.run())

    def stop(self) -> None:
        if self.lending is not None:
            self.lending.stop()
            self.lending.async_guests.stop()
        self._async.stop()
        if self._monitor is not None:
            self._monitor.stop()
        self._watchdog.stop()

    def _open_lending(self, binding: Binding, lendable: LendableWork) -> Lending:
        return Lending(
            self._functions,
            self,
            binding,
            urgency=self.urgency,
            lendable=lendable,
            async_guests=AsyncGuests(self._watchdog),
            routes=self._routes,
            limits=self._limits,
            tell=self._outside.send_to_peer,
            meet=self._outside.ensure_connected,
            monotonic_ms=self._clock.monotonic_ms,
        )

    # Partitions

    def add(self, name: str, recovered: Recovered, warm: Released | None = None) -> None:
        """Own a partition from now on; `warm` is what its former owner has said at the end."""
        if recovered.lost:
            self.committer.gaps += 1
        function = self._functions[split_partition_name(name)[0]]
        now_ms = self._clock.monotonic_ms()
        state_clock = StateClock(
            bytes_max=self._limits.state_bytes_max,
            read=lambda: partition.clock_ms(self._clock.monotonic_ms()),
        )
        cache = None
        if warm is not None and (warm.epoch, warm.index) != (recovered.epoch - 1, recovered.index):
            warm = None  # Somebody else has been there since.
        if function.state_kind is not None:
            cache = StateCache(
                function.name,
                function.state_kind,
                state_clock,
                complete=recovered.empty or (warm is not None and warm.complete),
                bytes_max=self._cache_share,
                versions=function.state_versions,
            )
        merger = None
        if self.lending is not None and cache is not None and runs_in_parts(function):
            merger = StateMerger(
                function, cache, lambda: partition.progress, lambda: partition.timers.next_id()
            )
        partition = Partition(
            function,
            Acquisition(
                partition=name,
                recovered=recovered,
                now_ms=now_ms,
                wall_ms=self._clock.wall_ms(),
                oversized=self._heavy.get(name),
            ),
            self._environment,
            StateAccess(cells=cache or NoCells(), fetchable=cache, merger=merger),
            StreamTopology(
                expected_sources(function, self._partition_counts),
                downstream_partitions(function.name, self._functions.values()),
            ),
        )
        self._heavy.pop(name, None)
        env = ExecutionEnv(
            name,
            function,
            cache=cache,
            clock=state_clock,
            routes=self._routes,
            limits=self._limits,
            next_timer=partition.timers.next_id,
            monotonic_ms=self._clock.monotonic_ms,
            clock_ms=partition.clock_ms,
            progress=partition.progress,
        )
        hosted = self.partitions[name] = Hosted(
            partition,
            env,
            cache,
            state_clock,
            PartitionTimes(self.telemetry, name, function.name),
        )
        if warm is not None and cache is not None:
            state_clock.now_ms = partition.clock_ms(now_ms)
            rows = [StateRow(key, *row) for key, stored in warm.states for row in stored]
            cache.insert([key for key, _ in warm.states], rows)
        partition.start(now_ms)
        self._apply_effects(hosted)

    def leave(self, name: str, on_left: Callable[[Released], None], *, at_once: bool) -> None:
        """Begin nothing more in a partition; once it has come to rest it is removed and told."""
        hosted = self.partitions.get(name)
        if hosted is not None:
            hosted.on_left = on_left
            hosted.partition.leave(self._clock.monotonic_ms(), at_once=at_once)
            self._apply_effects(hosted)

    def _end(self, hosted: Hosted, end: PartitionReleased | Stop) -> None:
        if isinstance(end, PartitionReleased):
            self._left(hosted, end)
        else:
            if end.outcome is Outcome.REFUSED:
                self._heavy[hosted.partition.name] = end.unstorable
            self.remove(hosted.partition.name)
            self._outside.lost(hosted.partition.name, end.outcome)

    def _left(self, hosted: Hosted, left: PartitionReleased) -> None:
        partition, cache, on_left = hosted.partition, hosted.cache, hosted.on_left
        released = Released(partition.name, partition.epoch, left.last_index)
        if left.settled and cache is not None:
            hosted.clock.now_ms = partition.clock_ms(self._clock.monotonic_ms())
            released.states, released.complete = cache.newest(
                WARM_BYTES_MAX, partition.keys_unsettled()
            )
        self.remove(partition.name)
        if on_left is not None:
            on_left(released)

    def _cache_share(self) -> int:
        return self._limits.cache_bytes_max // max(1, len(self.partitions))

    def remove(self, name: str) -> None:
        """Stop owning a partition. What it has not committed is forgotten."""
        hosted = self.partitions.pop(name, None)
        if hosted is None:
            return
        self._turns.discard(name)
        self.telemetry.partition_left(hosted.env.function.name, hosted.partition)
        hosted.partition.stop(Outcome.FENCED)
        # Nobody has taken it away; and by then its name may be that of another owner here.
        hosted.partition.effects.clear()
        if self.lending is not None:
            self.lending.partition_left(hosted.partition)
        if hosted.wake is not None:
            hosted.wake.cancel()
        self._async.forget(name)
        self._call_timeouts.end_partition(name)
        for ticket in hosted.tickets:
            if not ticket.done():
                ticket.set_exception(
                    UnknownOutcomeError(
                        f"{name} moved to another worker while the message was in flight"
                    )
                )
        if not self._left_lately:
            self._loop.call_soon(self._redeliver_after_handover)
        self._left_lately.add(name)
        self._wake_watchers()

    def _redeliver_after_handover(self) -> None:
        """Offer again what partitions here have sent to some that have left: what those had not
        taken is forgotten, and when the placement was told it was still theirs."""
        left, self._left_lately = self._left_lately, set()
        self._outside.left(left - self.partitions.keys())
        self.deliver_again(left.__contains__)

    def is_idle(self) -> bool:
        """Tell whether nothing runs, waits to run or is being committed."""
        return all(hosted.partition.idle for hosted in self.partitions.values())

    def unanswered_of_clients(self) -> int:
        """Return what clients have sent and not been answered: also what waits for its commit."""
        return sum(hosted.partition.unanswered_of_clients for hosted in self.partitions.values())

    def unanswered_by_function(self) -> dict[str, int]:
        """Return the same of each function for which there is something."""
        found: dict[str, int] = {}
        for hosted in self.partitions.values():
            count = hosted.partition.unanswered_of_clients
            if count:
                name = hosted.env.function.name
                found[name] = found.get(name, 0) + count
        return found

    # Events from outside

    def batch_arrived(self, batch: Batch, hosted: Hosted) -> None:
        hosted.partition.batch_arrived(batch, self._clock.monotonic_ms())
        self._apply_effects(hosted)

    def refuse(self, batch: Batch, hosted: Hosted, reason: str, error: ErrorInfo) -> None:
        hosted.partition.refuse(batch, reason, error, self._clock.monotonic_ms())
        self._apply_effects(hosted)

    def acknowledged(self, ack: Ack) -> None:
        hosted = self.partitions.get(endpoint_of(ack.source))
        if hosted is None:
            return
        hosted.partition.delivery.acknowledged(ack.target, ack.upto)
        if ack.context and not is_client(ack.target):  # Behind a client there is no way.
            target = endpoint_of(ack.target).rpartition("/")[0]
            function = hosted.env.function.name
            self.urgency.paths.learn(function, target, ack.context, self._clock.monotonic_ms())

    def deliver_again(self, reaches: Callable[[str], bool]) -> None:
        """Offer everything that these endpoints have not acknowledged to `Transport` again."""
        for hosted in tuple(self.partitions.values()):
            hosted.partition.delivery.again(reaches)
            self._apply_effects(hosted)

    def resend_from(self, partition: str, destination: str, first: int) -> None:
        hosted = self.partitions.get(partition)
        if hosted is not None:
            hosted.partition.delivery.resend_from(destination, first)
            self._apply_effects(hosted)

    def missed(self, partition: str, destination: str, first: int) -> None:
        """The owner of a destination has nothing from this number on."""
        hosted = self.partitions.get(partition)
        if hosted is not None:
            hosted.partition.delivery.missed(destination, first, self._clock.monotonic_ms())
            self._apply_effects(hosted)

    def client_gone(self, client: str) -> None:
        now_ms = self._clock.monotonic_ms()
        for hosted in tuple(self.partitions.values()):
            hosted.partition.clients.goodbye(client, now_ms)
            self._apply_effects(hosted)

    # Changes by hand

    async def administer(
        self, hosted: Hosted, event: Callable[[Partition, object, float], None]
    ) -> None:
        """Give the partition an event with a ticket; return when its change is committed."""
        if hosted.partition.stopped:
            raise UnavailableError(f"{hosted.partition.name} has moved to another worker", 500)
        ticket: asyncio.Future[None] = self._loop.create_future()
        hosted.tickets.add(ticket)
        try:
            event(hosted.partition, ticket, self._clock.monotonic_ms())
            self._apply_effects(hosted)
            await ticket
        finally:
            hosted.tickets.discard(ticket)

    def cancel(self, hosted: Hosted, source: str, number: int) -> QueuedMessage | None:
        """Let a message end without effect; see `Requests.cancel`."""
        found = hosted.partition.requests.cancel(source, number, self._clock.monotonic_ms())
        self._apply_effects(hosted)
        return found

    def release_key(self, hosted: Hosted, key: str) -> None:
        hosted.partition.state_editor.release(key, self._clock.monotonic_ms())
        self._apply_effects(hosted)

    async def pin(self, hosted: Hosted, id_: str, keys: Collection[str] | None) -> Snapshot:
        """Begin a snapshot of a partition at its last commit; return when it may be read."""
        pinned: list[Snapshot] = []
        await self.administer(
            hosted,
            lambda partition, ticket, now_ms: pinned.append(
                partition.snapshot_pinned(id_, keys, ticket, now_ms)
            ),
        )
        return pinned[0]

    def monotonic_ms(self) -> float:
        return self._clock.monotonic_ms()

    def clock_ms(self, hosted: Hosted) -> int:
        """Return the time of the partition's own clock."""
        return hosted.partition.clock_ms(self._clock.monotonic_ms())

    # Effects

    def _apply_effects(self, hosted: Hosted) -> None:
        partition = hosted.partition
        if partition.unrun:
            self._note_unrun(hosted)
        while partition.damaged:
            _log.error("found a corrupt record", problem=partition.damaged.popleft())
        while partition.effects:
            effects, partition.effects = partition.effects, []
            for effect in effects:
                kind = type(effect)
                if kind is Run:
                    self._run(hosted, effect.work)  # type: ignore[union-attr]
                elif kind is Ready:
                    self._line_up(hosted, effect.rank, effect.arrived_ms)  # type: ignore[union-attr]
                elif kind is Deliver:
                    self._outside.deliver(partition.name, effect.entry)  # type: ignore[union-attr]
                elif kind is Acknowledge:
                    self._outside.acknowledge(effect.ack)  # type: ignore[union-attr]
                elif kind is StoreCommit:
                    hosted.times.sealed(effect.commit.index)  # type: ignore[union-attr]
                    hosted.committing = effect.commit  # type: ignore[union-attr]
                    self.committer.add(effect.commit)  # type: ignore[union-attr]
                elif kind is WakeAt:
                    self._wake_at(hosted, effect.at_ms)  # type: ignore[union-attr]
                else:
                    self._carry_out_rare(hosted, effect)
        if self._watchers:
            self._wake_watchers()

    def _wake_watchers(self) -> None:
        for watcher in self._watchers:
            watcher.set()

    async def until(self, happened: Callable[[], bool]) -> None:
        """Wait for something that a step of a partition brings about, or its removal."""
        if happened():
            return
        stepped = asyncio.Event()
        self._watchers.add(stepped)
        try:
            while not happened():
                stepped.clear()
                await stepped.wait()
        finally:
            self._watchers.discard(stepped)

    def _note_unrun(self, hosted: Hosted) -> None:
        now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.wall_ms()
        unrun = hosted.partition.unrun
        while unrun:
            hosted.times.unrun(unrun.popleft(), now_ms, wall_ms)

    def _carry_out_rare(self, hosted: Hosted, effect: object) -> None:
        partition = hosted.partition
        match effect:
            case (
                LoadStates()
                | Fetch()
                | LoadPreimages()
                | LoadTimers()
                | LoadWindows()
                | LoadStaged()
            ):
                self._tasks.create_task(self._reads.carry_out(hosted, effect))
            case Lend():
                assert self.lending is not None
                assert effect.work.lease is not None
                self._trace(hosted, effect.work)
                self.lending.loaded(effect.work.lease)
            case Resume():
                self._call_timeouts.end(partition.name, effect.message_id, effect.call)
                resumed = (effect.message_id, effect.call, effect.result, effect.error)
                self._async.resume(partition.name, *resumed)
            case Perform():
                self._async.perform(partition.name, effect.message_id, effect.name)
            case Interrupt():
                self._async.interrupt(partition.name, effect.message_id)
            case Recall():
                assert self.lending is not None
                self.lending.recall(effect.lease)
            case Redeliver():
                self._outside.deliver_anew(partition.name, effect.entry)
            case Refuse():
                self._notices.refused(hosted.env.function.name, effect.refused)
                self._outside.refuse(effect.refused)
            case Settled():
                if effect.ticket in hosted.tickets and not effect.ticket.done():
                    effect.ticket.set_result(None)
            case PartitionReleased() | Stop():
                self._end(hosted, effect)
            case _:
                raise AssertionError(effect)

    def _wake_at(self, hosted: Hosted, at_ms: float) -> None:
        if hosted.wake is not None:
            hosted.wake.cancel()
        delay_s = max(0.0, (at_ms - self._clock.monotonic_ms()) / 1000)
        hosted.wake = self._loop.call_later(delay_s, self._wake, hosted)

    def _wake(self, hosted: Hosted) -> None:
        hosted.wake = None
        hosted.partition.woken(self._clock.monotonic_ms())
        self._apply_effects(hosted)

    def _group_committed(self, elapsed_ms: float, size: int) -> None:
        self.telemetry.group_committed(elapsed_ms, size)
        self._notices.group_committed(elapsed_ms, size)

    def _commit_ended(self, commit: Commit, outcome: Outcome) -> None:
        hosted = self.partitions.get(commit.partition)
        if hosted is None or hosted.committing is not commit:
            # Of a former owner here. Its epoch does not tell: a store that has lost data gives
            # an epoch twice.
            return
        hosted.committing = None
        now_ms = self._clock.monotonic_ms()
        if outcome is Outcome.DONE or outcome is Outcome.DUPLICATE:
            hosted.times.committed(now_ms)
        hosted.partition.committed(outcome, now_ms)
        self._apply_effects(hosted)

    # Running user code

    def pump(self) -> None:
        """A frame has come."""
        self._turns.frame_arrived()

    def _line_up(self, hosted: Hosted, rank: float, arrived_ms: float) -> None:
        off_loop = self._needs_thread(hosted.env.function)
        self._turns.put(hosted.partition.name, hosted, rank, arrived_ms, off_loop=off_loop)
        if off_loop and self._threads.is_full:
            self._threads.make_room_for(rank)

    def _needs_thread(self, function: Function) -> bool:
        """Tell whether runs of a function keep a core busy beside the loop."""
        return not function.is_async and not function.blocking and self.pace.off_loop(function)

    def _look_before_turn(self, now_ms: float) -> None:
        lending = self.lending
        if lending is not None and lending.lessor.asks_each:
            lending.look(now_ms, at_once=True)

    def _look_at_waiting(self) -> None:
        """Let the policies see what has to wait."""
        lending = self.lending
        if lending is None:
            return
        lendable = lending.lendable
        if self._turns or self._threads.busy or lendable.backlog:
            lending.look(self._clock.monotonic_ms())
        elif lendable.has_unbound():
            # Behind runs that keep no core busy: of blocking handlers only so many go on at once.
            lending.look(self._clock.monotonic_ms())
        else:
            lendable.unbound.clear()  # All of it has run.

    def _take(self, hosted: Hosted | BorrowedRun, now_ms: float) -> None:
        """It is the partition's turn, or a guest's."""
        if type(hosted) is BorrowedRun:
            self._run_guest(hosted)
            return
        assert type(hosted) is Hosted
        if hosted.partition.stopped:
            return
        work, hosted.loaded = hosted.loaded, None
        if work is not None:
            self._run_here(hosted, work)
            return
        self._is_taking = True
        try:
            hosted.partition.take(now_ms)
            self._apply_effects(hosted)
        finally:
            self._is_taking = False

    def _run(self, hosted: Hosted, work: Work) -> None:
        if work.off_loop:
            self._run_aside(hosted, work)
        elif self._is_taking:
            self._is_taking = False
            self._run_here(hosted, work)
        else:
            hosted.loaded = work
            self._turns.put(hosted.partition.name, hosted, work.rank, work.arrived_ms)

    def _run_here(self, hosted: Hosted, work: Work) -> None:
        partition, env = hosted.partition, hosted.env
        now_ms = self._clock.monotonic_ms()
        hosted.clock.now_ms = partition.clock_ms(now_ms)
        if work.waiting:
            self._trace(hosted, work)
        waiting: list[Invocation] = []
        limit_s = self._quantum_s
        if work.assigns:
            self._finish(hosted, work, assign_states(work, env, limit_s), waiting)
            return
        if not work.is_background and not self._turns.is_more_urgent(work.rank_last):
            limit_s *= QUANTA_MAX
        if env.function.is_async:
            result, waiting = self._async.run(work, env, limit_s)
        else:
            scope = RunScope(work, env)
            scope.limit_s = limit_s
            result = self._sync.run(work, env, scope)
        self._finish(hosted, work, result, waiting)

    def _trace(self, hosted: Hosted, work: Work) -> None:
        """Begin the runs of sampled messages, of which most works have none."""
        for waiting in work.waiting if work.columns is None else ():
            if waiting.message.extra.trace:
                now_ms = self._clock.monotonic_ms()
                arrived_ms = now_ms if waiting.arrived_ms is None else waiting.arrived_ms
                waiting.traced = self._tracing.started(
                    hosted.env.function.name,
                    hosted.partition.name,
                    waiting.message,
                    self._clock.wall_ms() - int(now_ms - arrived_ms),
                )

    def _finish(
        self, hosted: Hosted, work: Work, result: RunResult, waiting: list[Invocation]
    ) -> None:
        partition = hosted.partition
        now_ms = self._clock.monotonic_ms()
        if result.cut_at is not None:
            work = partition.cut(work, result)
        if result.is_tainted:
            keys = work.keys if hosted.env.function.kind == "keyed" else [""]
            partition.cells_tainted(set(keys))
        hosted.times.ran(work, result, now_ms, self._clock.wall_ms())
        dead_before = partition.counters.dead
        partition.finished(work, result, now_ms)
        if result.failed:
            self._tell_failures(hosted, result.failed.values(), dead_before)
        for invocation in waiting:
            for opened in invocation.calls:
                self._open(hosted, opened)
        self._apply_effects(hosted)

    def _opened(self, opened: Opened) -> None:
        hosted = self.partitions.get(opened.partition)
        if hosted is not None:
            self._open(hosted, opened)
            self._apply_effects(hosted)

    def _open(self, hosted: Hosted, opened: Opened) -> None:
        calls = hosted.partition.calls
        match opened:
            case CallOpened():
                self._open_call(hosted, opened)
            case EffectBegun():
                calls.begin(opened.message_id, opened.name)
            case EffectPerformed():
                calls.performed(*opened[1:], self._clock.monotonic_ms())

    def _open_call(self, hosted: Hosted, opened: CallOpened) -> None:
        request = opened.request
        hosted.partition.calls.opened(
            opened.message_id,
            opened.call,
            request.partition,
            request.key,
            request.payload,
            self._clock.monotonic_ms(),
            timeout_ms=request.timeout_ms,
        )
        self._call_timeouts.start(opened)

    def _call_expired(self, opened: CallOpened) -> None:
        text = f"{opened.request.partition} did not reply within {opened.request.timeout_ms:g} ms"
        self._end_call(opened.partition, opened.message_id, opened.call, text)

    def _call_unwanted(self, partition: str, message_id: str, call: int) -> None:
        """A handler has cancelled its own call: by `asyncio.timeout`, for one."""
        self._call_timeouts.end(partition, message_id, call)
        text = "the handler ended without awaiting the reply"
        self._end_call(partition, message_id, call, text)

    def _end_call(self, partition: str, message_id: str, call: int, text: str) -> None:
        hosted = self.partitions.get(partition)
        if hosted is None or hosted.partition.stopped:
            return
        error = ErrorInfo("deadline_exceeded", text)
        hosted.partition.calls.expired(message_id, call, error, self._clock.monotonic_ms())
        self._apply_effects(hosted)

    def _invocation_ended(self, ended: Ended) -> None:
        self._call_timeouts.end_message(ended.partition, ended.message_id)
        hosted = self.partitions.get(ended.partition)
        if hosted is None:
            return
        if ended.abandoned:
            hosted.partition.cells_tainted([self._cell_key(hosted, ended.key)])
        elif ended.rows and hosted.cache is not None:
            hosted.cache.changed([self._cell_key(hosted, ended.key)])
        now_ms = self._clock.monotonic_ms()
        hosted.times.ended(ended.message_id, ended.failure, now_ms, self._clock.wall_ms())
        dead_before = hosted.partition.counters.dead
        failure = hosted.partition.invocation_ended(
            ended.message_id,
            ended.value,
            ended.failure,
            ended.rows,
            ended.effects,
            ended.step_ms,
            now_ms,
        )
        if failure is not None:
            self._tell_failures(hosted, [failure], dead_before)
        self._apply_effects(hosted)

    def _tell_failures(self, hosted: Hosted, failures: Iterable[Failure], dead_before: int) -> None:
        partition = hosted.partition
        dead = partition.counters.dead - dead_before
        self._notices.failed(hosted.env.function.name, partition.name, failures, dead)

    def _cell_key(self, hosted: Hosted, key: str) -> str:
        return key if hosted.env.function.kind == "keyed" else ""

    def _run_aside(self, hosted: Hosted, work: Work) -> None:
        env = hosted.env
        hosted.clock.now_ms = hosted.partition.clock_ms(self._clock.monotonic_ms())
        self._trace(hosted, work)
        if work.assigns:
            # There is no user code in it that could take long.
            self._finish(hosted, work, assign_states(work, env, self._quantum_s), [])
        elif env.function.is_async:
            result, waiting = self._async.run_aside(work, env)
            self._finish(hosted, work, result, waiting)
        else:
            self._run_in_thread(hosted, work)

    def _run_in_thread(self, hosted: Hosted | BorrowedRun, work: Work) -> None:
        function, ends_ms = hosted.env.function, inf
        if not function.blocking:
            expected_ms = self.urgency.expected_ms(function, work.count)
            ends_ms = self._clock.monotonic_ms() + expected_ms
        self._threads.run(hosted, work, ends_ms)

    def _thread_run_ended(self, run: ThreadRun, result: RunResult) -> None:
        hosted, work = run.hosted, run.work
        self._turns.thread_freed()
        if type(hosted) is BorrowedRun:
            assert self.lending is not None
            self.lending.guest_ran(hosted, result, result.is_tainted)
            return
        assert type(hosted) is Hosted
        if hosted.partition.stopped:
            return
        if hosted.cache is not None and result.rows:
            hosted.cache.changed({row.key for row in result.rows})
        self._finish(hosted, work, result, [])

    # Leases

    def workers_changed(self, workers: Iterable[str]) -> None:
        """Learn who could be asked to run something."""
        if self.lending is not None:
            self.lending.workers_changed(workers)

    def follow(self, plan: Plan) -> None:
        """The controller has written another plan."""
        if self.lending is not None:
            self.lending.follow(plan)

    def peer_lost(self, worker: str) -> None:
        """A link to another worker has ended."""
        if self.lending is not None:
            self.lending.peer_lost(worker)

    def lease_message(self, worker: str, message: msgspec.Raw) -> None:
        """Another worker says something of leases."""
        if self.lending is not None:
            self.lending.message(worker, message)

    def cache_of(self, partition: Partition) -> StateCache | None:
        """See `LendingHost`."""
        return self.partitions[partition.name].cache

    def changed(self, partition: Partition) -> None:
        """See `LendingHost`."""
        hosted = self.partitions.get(partition.name)
        if hosted is not None and hosted.partition is partition:
            self._apply_effects(hosted)

    def queued(self) -> int:
        """See `LendingHost`."""
        return sum([hosted.partition.queued for hosted in self.partitions.values()])

    def owned(self) -> list[Partition]:
        """See `LendingHost`."""
        return [hosted.partition for hosted in self.partitions.values()]

    def returned(self, lease: Lease, result: RunResult, finish: Callable[[], None]) -> None:
        """See `LendingHost`."""
        hosted = self.partitions[lease.partition.name]
        now_ms, counters = self._clock.monotonic_ms(), hosted.partition.counters
        hosted.times.returned(lease.work, result, lease.started_ms, now_ms, self._clock.wall_ms())
        dead_before = counters.dead
        finish()
        if result.failed:
            self._tell_failures(hosted, result.failed.values(), dead_before)

    def starts_ms(self, now_ms: float) -> float:
        """See `LendingHost`."""
        return self._threads.free_ms(now_ms)

    def line_up_guest(self, guest: BorrowedRun, rank: float) -> None:
        """See `LendingHost`."""
        work, function = guest.work, guest.function
        work.rank = work.rank_last = rank
        # It is not cut: a long one must not keep the loop.
        cost_ms = max(guest.offer.cost_ms, self.urgency.expected_ms(function, work.count))
        work.off_loop = self.pace.off_loop(function) or (
            cost_ms > GUEST_ON_LOOP_MS and not function.is_async
        )
        needs_thread = work.off_loop and not function.is_async and not function.blocking
        name, arrived_ms = _guest_name(guest), work.arrived_ms
        self._turns.put(name, guest, rank, arrived_ms, off_loop=needs_thread)

    def discard_guest(self, guest: BorrowedRun) -> None:
        """See `LendingHost`."""
        self._turns.discard(_guest_name(guest))

    def _run_guest(self, guest: BorrowedRun) -> None:
        lending = self.lending
        assert lending is not None
        guest.begin()
        lending.started(guest)
        if guest.function.is_async:
            lending.async_guests.run(guest, lending.guest_ran, self._quantum_s)
        elif guest.work.off_loop:
            self._run_in_thread(guest, guest.work)
        else:
            result = self._sync.run(guest.work, guest.env)
            lending.guest_ran(guest, result, result.is_tainted)


def _guest_name(guest: BorrowedRun) -> str:
    """Return its name in line; no partition has one like it."""
    return "\x00" + "/".join(map(str, guest.lease))
