"""The step machine of one partition: events in, effects out.

No I/O, clock, randomness or user code. Whoever owns a `Partition` calls one method for each event,
then carries out what has gathered in `effects`. What it promises:

- A message is taken from its channel once and in order. Taken means: in the commit it is either
  consumed, with everything it caused, or parked as a record. So one number for each source says
  exactly what is done, however long single messages wait.
- One commit is in flight at a time. Meanwhile the next batches run; their effects gather in the
  next commit. Nothing is told to anybody before the commit that holds it is stored.
- Messages of one sender to one key run in the order sent. A key whose message waits (for a retry,
  for a call, for a thread) holds back its later messages; other keys go on.
- It says how urgent its most urgent message is, and runs nothing before it is told that it has
  its turn. Until then whatever arrives may become more urgent.

Here is the way of messages and runs. What a partition offers beside that (leases, pipelines,
calls, timers, windows, changes by hand) are `features`, each an attribute.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from math import inf
from typing import Any

from sublet.functions.address import is_client
from sublet.functions.app import Function
from sublet.functions.effects import Effect
from sublet.runtime.partition.commit.oversized_messages import fail_unstorable, unstorable
from sublet.runtime.partition.model.effects import (
    Acknowledge,
    Counters,
    PartitionReleased,
    Refuse,
    Settled,
    StepEffect,
    Stop,
    Store,
    WakeAt,
)
from sublet.runtime.partition.model.environment import (
    Acquisition,
    StateAccess,
    StreamTopology,
    WorkerEnvironment,
)
from sublet.runtime.partition.model.work import (
    Chunk,
    Failure,
    QueuedMessage,
    RunResult,
    Span,
    Work,
)
from sublet.runtime.partition.parts import PartitionParts
from sublet.runtime.partition.queue.work_queue import Singly
from sublet.runtime.partition.records.due_index import HORIZON_MS
from sublet.runtime.partition.records.snapshots import Snapshot
from sublet.runtime.protocol.frames import Batch, ErrorInfo, Kind
from sublet.statestore.contract import Outcome, Record, StateRow

HOUSEKEEPING_MS = 1_000
DAMAGED_KEPT_MAX = 256


class Partition:
    def __init__(
        self,
        function: Function,
        acquired: Acquisition,
        worker: WorkerEnvironment,
        states: StateAccess | None = None,
        streams: StreamTopology | None = None,
    ) -> None:
        self.name = acquired.partition
        self.function = function
        self.epoch = acquired.recovered.epoch
        self.effects: list[StepEffect] = []
        self.counters = Counters()
        self.damaged: deque[str] = deque(maxlen=DAMAGED_KEPT_MAX)
        """The latest records that could not be read and were left; for the log, which takes them
        away."""
        self.stopped = False
        self.leaving = False
        """Nothing is taken or begun any more: another worker is to own the partition."""
        self._leaves_at_once = False
        self._wake_ms: float | None = None
        states, streams = states or StateAccess(), streams or StreamTopology()
        self._parts = parts = PartitionParts(
            self, function, acquired, worker, states, streams, self.counters
        )
        # Those that most steps need; the others are asked for where they are.
        self._pace, self._urgency, self._live = worker.pace, worker.urgency, worker.live
        self._cells = states.cells
        self._pending = parts.pending
        self.in_flight_commit = parts.in_flight_commit
        """What the store has not answered."""
        self.progress, self._timers = parts.records.progress, parts.records.timers
        self._staging, self._clients = parts.records.staging, parts.records.clients
        self._inbox, self._clock = parts.records.inbox, parts.records.clock
        self._journal = parts.records.calls
        self._admission = parts.admission
        self._queue, self._backlog, self._ready = (
            parts.queue,
            parts.queue.backlog,
            parts.queue.ready,
        )
        self._locks, self._awaiting, self._leased = parts.locks, parts.awaiting, parts.leased
        self._gate, self._budget, self._states = parts.gate, parts.budget, parts.states
        self._preparation, self._results = parts.preparation, parts.results
        self._completion = parts.completion
        self.refusals = parts.admission.refusals
        """Messages refused, by reason; counted as `Counters` are."""
        self.unrun = parts.completion.unrun
        """For telemetry, which takes them away."""
        self.calls, self.timers, self.windows = parts.calls, parts.timers, parts.windows
        self.requests = parts.requests
        self.leases, self.pipelines = parts.leases, parts.pipelines
        self.snapshots, self.state_editor = parts.records.snapshots, parts.state_editor
        self.dead_letters = parts.dead_letters
        self.delivery, self.clients = parts.delivery, parts.departure
        for waiting in parts.records.parked:
            self._recover(waiting)

    def _recover(self, waiting: QueuedMessage) -> None:
        """Go on with a message that an earlier owner has put on record."""
        message = waiting.message
        self._parts.arrivals.recovered(message.order)
        self._parts.parked.recover(waiting)
        if is_client(message.source):
            self._clients.unanswered += 1
        self._locks.make_ready_or_wait(waiting)

    def start(self, now_ms: float) -> None:
        """Send again what was not acknowledged, look for due timers, go on with parked work."""
        self.delivery.again(lambda endpoint: True)
        self.timers.load(now_ms)
        self.advance(now_ms)

    # What is asked

    @property
    def open_from_clients(self) -> int:
        """Messages of clients taken and not finished."""
        sealed = self.in_flight_commit.sealed
        ended = self._pending.ended_of_clients + (sealed.ended_of_clients if sealed else 0)
        return self.unanswered_of_clients - (0 if self.stopped else ended)

    @property
    def unanswered_of_clients(self) -> int:
        """Those, and what is finished and waits for its commit: what the worker's bound counts."""
        return 0 if self.stopped else self._clients.unanswered

    @property
    def queued(self) -> int:
        """How many messages wait for a run."""
        return self._backlog.count + len(self._ready)

    @property
    def awaiting(self) -> int:
        """How many handlers await something."""
        return len(self._awaiting.by_id)

    def next_due_ms(self, now_ms: float) -> float | None:
        """Return when the next timer or window is due; None if none is known."""
        base_ms, timers, due_ms = self._clock.base_ms, self._timers.by_time, inf
        if timers:
            due_ms = timers[0][0] - base_ms
        window_ms = self.progress.wake_ms(now_ms, base_ms) if self.progress.is_used else None
        if window_ms is not None:
            due_ms = min(due_ms, window_ms)
        return None if due_ms == inf else due_ms

    def waiting_chunks(self) -> Iterator[Chunk]:
        """All that waits for its first run."""
        return iter(self._backlog)

    def waiting_singly(self) -> Iterable[QueuedMessage]:
        """What may run now, having waited by itself."""
        return self._ready

    @property
    def queued_bytes(self) -> int:
        return self._backlog.size_bytes

    @property
    def idle(self) -> bool:
        """Nothing runs, waits to run, or is being committed."""
        return not (
            self._gate.in_flight
            or self._leased.works
            or self._leased.parts
            or self._backlog
            or self._ready
            or self.in_flight_commit.commit is not None
            or self._pending.needs_commit
        )

    def needs_worker(self, functions: Container[str], now_ms: float) -> bool:
        """Tell whether there is something that only a worker brings to its end: work, messages on
        record, rows that a pipeline has sealed, messages for partitions of these functions, or a
        source whose silence is being waited for. Timers and windows by the clock are not meant:
        they are known by when they are due.
        """
        if not self.idle or self._awaiting.by_id or self._parts.parked.by_id:
            return True
        if self._staging.sealed_rows or self.delivery.is_due(functions):
            return True
        # A new owner waits for the whole silence again.
        progress = self.progress
        waits = progress.is_used and not progress.by_clock
        return waits and progress.wake_ms(now_ms, self._clock.base_ms) is not None

    def clock_ms(self, now_ms: float) -> int:
        """The partition's own clock: starts where the last owner's ended, never goes back."""
        return self._clock.base_ms + int(now_ms)

    def keys_unsettled(self) -> set[str]:
        """Return the keys whose states in memory may differ from what is stored."""
        return self._parts.keys.unsettled()

    # Messages arrive

    def batch_arrived(self, batch: Batch, now_ms: float) -> None:
        """Take a batch from a peer or a client into the queue."""
        if self.stopped:
            return
        if self.leaving:
            self.effects.append(self._admission.refuse_leaving(batch))
            return
        taken = self._admission.accept(batch, now_ms)
        if isinstance(taken, int):
            self._take_in(batch, taken, now_ms)
            self.advance(now_ms)
        else:
            self._tell(taken, now_ms)

    def refuse(self, batch: Batch, reason: str, error: ErrorInfo, now_ms: float) -> None:
        """Take nothing new from this batch, because the worker has no room, or stops."""
        if not self.stopped:
            self._tell(self._admission.refuse(batch, reason, error), now_ms)

    def _tell(self, told: Sequence[Refuse | Acknowledge], now_ms: float) -> None:
        """Tell the sender of a batch; what it may hear only later has to be committed first."""
        self.effects.extend(told)
        if self._pending.needs_commit and not any(isinstance(each, Acknowledge) for each in told):
            self.advance(now_ms)

    def _take_in(self, batch: Batch, skip: int, now_ms: float) -> None:
        if batch.kind is Kind.CALL or batch.kind is Kind.SEND:
            self.line_up(batch, skip, now_ms)
        elif batch.kind is Kind.REPLY:
            self.calls.take_replies(batch, skip)
        elif batch.kind is Kind.CANCEL_CALL:
            taken = self._parts.records.positions.take_each(batch, skip)
            self.effects.extend(self._parts.cancellation.take(batch, taken, now_ms))
        elif batch.kind is Kind.STAGE:
            self.pipelines.take(batch, skip, now_ms)
        else:
            self.line_up(batch, skip, now_ms)

    def line_up(self, batch: Batch, skip: int, now_ms: float) -> None:
        """Let the messages of a batch wait for their turn, but for the first `skip`."""
        function, urgency = self.function, self._urgency
        removed_indexes, fresh = None, batch.count - skip
        if self._inbox.ahead:
            removed_indexes = self._inbox.done_ahead(batch.source, batch.first, skip, batch.count)
        chunk = Chunk(batch, skip, now_ms, function.slo_ms, urgency.patience_ms, removed_indexes)
        if removed_indexes:
            fresh = chunk.count
        counters = self.counters
        counters.accepted += fresh
        if chunk.from_partition:
            counters.arrived[batch.source] = counters.arrived.get(batch.source, 0) + fresh
        if chunk.from_client:
            self._clients.unanswered += fresh
            if self._parts.feasibility.is_checked:
                self._parts.feasibility.answer_infeasible(chunk, now_ms)
                fresh = chunk.count
        if not fresh:
            return
        if function.window is not None:
            progress, clock_ms = self.progress, self.clock_ms(now_ms)
            progress.arrived(chunk, clock_ms)
            # Somebody waits for the reply to a call, whenever the window closes.
            if urgency.frontier and batch.kind is Kind.SEND:
                progress.postpone(chunk, clock_ms, now_ms)
        if self._states.prefetches:
            self._states.arrived(chunk)
        self._queue.add(chunk, fresh, now_ms)

    # A run begins

    def take(self, now_ms: float) -> None:
        """It is this partition's turn: start one run, if one can start."""
        queue, gate = self._queue, self._gate
        queue.begin()
        if self.stopped or self.leaving:
            return
        # Asked once: a run on the loop must not begin beside one that goes on elsewhere.
        off_loop = self._pace.off_loop(self.function)
        while (self._backlog.count or self._ready) and gate.may_begin(off_loop, now_ms):
            if self._start_run(off_loop, now_ms):
                break
        if queue.batching is not None:
            queue.took()
        if not gate.has_exclusive_run():
            self.advance(now_ms)  # Otherwise there is nothing to begin until the end of the run.
        if self._states.prefetches:
            # A run has begun, or is about to: read what comes after it meanwhile.
            if not self._backlog.count:
                self._states.forget_unused()
            elif self._states.has_unread and gate.in_flight:
                self._preparation.fetch()

    def _start_run(self, off_loop: bool, now_ms: float) -> bool:
        """Start one run, or take what does not run; return whether a run has started."""
        queue = self._queue
        size = self._parts.sizer.batch_size()
        if self._staging.fed_rows:
            size = self._parts.background.batch_size(size, now_ms)
        # Of a full partition's backlog only peers' messages may run, if there are any.
        if self._ready and not (self._awaiting.room > 0 and queue.is_more_urgent()):
            work = self._parts.dispatch.take_ready(size, now_ms)
        else:
            work = self._take_from_backlog(size, off_loop, now_ms)
        if work is None:
            return False
        if queue.batching is not None:
            queue.gathered(work, now_ms)
        self._gate.begin(work, off_loop=off_loop)
        return self._preparation.load_or_begin(work, now_ms)

    def _take_from_backlog(self, size: int, off_loop: bool, now_ms: float) -> Work | None:
        """Take up to `size` messages; None if what was taken does not run (now)."""
        chosen = self._queue.choose(
            size,
            now_ms,
            singly=bool(self._locks.keys) or (off_loop and not self._gate.takes_columns()),
            # Handlers may be waiting for messages of other partitions: clients come later.
            peers_only=self._awaiting.room <= 0,
            # What waits for a busy key is in the next commit, too.
            heads_max=self._budget.messages_max - self._pending.message_count,
            running=len(self._gate.in_flight),
        )
        if chosen is None or type(chosen) is Work:
            return chosen
        if type(chosen) is Singly:
            refs, spans = chosen
            return self._parts.dispatch.take(refs, now_ms, many_runs=off_loop, spans=spans)
        assert type(chosen) is Span
        self._take_in_line(chosen, now_ms)
        return None

    def _take_in_line(self, span: Span, now_ms: float) -> None:
        """Take what keeps its place in line, and is not run."""
        if span.chunk.batch.kind is Kind.CANCEL_TIMER:
            self.timers.cancel(span)
            self._completion.discard_span(span)
        else:
            self.windows.take_markers(span, now_ms)
            self._completion.discard_span(span)
            # Before anything that stands behind it runs.
            self.windows.advance(now_ms)

    def loaded(
        self,
        work: Work,
        keys: Sequence[str],
        rows: Sequence[StateRow],
        answers: Sequence[Record],
        now_ms: float,
    ) -> None:
        """The state that `LoadStates` asked for is here."""
        if not self.stopped:
            self._preparation.loaded(work, keys, rows, answers, now_ms)

    def fetched(self, keys: Sequence[str], rows: Sequence[StateRow], now_ms: float) -> None:
        """The state that `Fetch` asked for is here."""
        if not self.stopped:
            self._preparation.fetched(keys, rows, now_ms)

    # A run ends

    def cut(self, work: Work, result: RunResult) -> Work:
        """User code has run only on the first messages of the work: the others go back.

        Returns the work that has run, which is to be `finished`.
        """
        assert result.cut_at is not None
        if not work.spans:
            # They were taken one by one, and each waits for itself.
            unrun = range(result.cut_at, work.count)
            result.unfinished.update(unrun)
            result.values.extend([None] * len(unrun))
            return work
        part, rest = work.first_part(result.cut_at)
        if not self.stopped:
            for span in reversed(rest):
                self._backlog.give_back(span)
            self._gate.in_flight[work.id] = part
        return part

    def finished(self, work: Work, result: RunResult, now_ms: float) -> None:
        """User code has run on the work."""
        if self.stopped:
            return
        self._preparation.ended(work)
        if len(result.suspended) < work.count and not work.assigns:
            self._pace.learn(self.function, result.cut_at or work.count, result.elapsed_ms)
        self._urgency.ran(self.function, result.elapsed_ms)
        if self._queue.batching is not None:
            self._queue.batching.ended(work.count, self._backlog.count, now_ms)
        if self._budget.tells_apart:
            ids = work.message_ids()
            if self._budget.ran(ids, is_plain=result.is_plain):
                self._parts.tainted.add({row.key for row in result.rows})
                fail_unstorable(result, unstorable(self.function, work.keys[0]))
        self._results.add(work, result)
        if work.spans and result.is_plain:
            self._completion.consume_spans(work.spans, result.values)
        else:
            self._settle(work, result, now_ms)
        if self._leased.parts:
            self._parts.returns.merge_parts(now_ms)
        self.advance(now_ms)

    def _settle(self, work: Work, result: RunResult, now_ms: float) -> None:
        """Some messages of a run failed, wait, or were waiting before."""
        messages = work.waiting or [
            self._parts.arrivals.message(*work.locate(index)) for index in range(work.count)
        ]
        for waiting in self._parts.settlement.settle(messages, work.spans, result, now_ms):
            interrupt = self._awaiting.suspended(waiting)
            if interrupt is not None:
                self.effects.append(interrupt)

    def invocation_ended(
        self,
        message_id: str,
        value: Any,
        failure: Failure | None,
        rows: Sequence[StateRow],
        effects: Sequence[Effect],
        step_ms: float,
        now_ms: float,
    ) -> Failure | None:
        """A handler that had been awaiting something is done; return why it failed, if it did."""
        waiting = self._awaiting.ended(message_id)
        if self.stopped or waiting is None:
            return failure
        if self._journal.performing:
            self._journal.run_ended(message_id)
        self._pace.learn(self.function, 1, step_ms)
        self._urgency.ran(self.function, step_ms)
        is_plain = failure is None
        if self._budget.tells_apart and self._budget.ended_late(message_id, is_plain=is_plain):
            self._parts.tainted.add({row.key for row in rows})
            failure = unstorable(self.function, waiting.message.key)
        if failure is not None:
            holds = self._parts.settlement.fail(waiting, failure, now_ms)
        else:
            holds = False
            self._results.add_late(rows, effects, traced=waiting.traced is not None)
            self._completion.consume(waiting, value, None, now_ms)
        if not holds:
            self._locks.release(self._locks.lock_of(waiting.message))
        if self._leased.parts:
            self._parts.returns.merge_parts(now_ms)
        self.advance(now_ms)
        return failure

    def cells_tainted(self, keys: Collection[str]) -> None:
        """A handler was given up and may go on changing these cells: they are read again, once
        everything that is known of them is committed."""
        self._parts.tainted.add(keys)

    # Every step

    def advance(self, now_ms: float) -> None:
        """Begin the next commit if none is in flight, and say what could run."""
        if self.stopped:
            return
        if self.leaving:
            self._leave_if_done(now_ms)
            return
        gate, queue = self._gate, self._queue
        if self.progress.is_used and not gate.has_exclusive_run():
            self.windows.advance(now_ms)
        if self._staging.hungry:
            self.pipelines.feed(now_ms)
        if self._pending.needs_commit and self.in_flight_commit.commit is None:
            self._seal(now_ms)
        if self._locks.retries and not gate.has_exclusive_run():
            self._locks.take_retries(now_ms)
        if self._awaiting.expiries:
            self.effects.extend(self._parts.cancellation.due(now_ms))
        queue.gathering_until_ms = None
        if (
            (self._backlog.count or self._ready)
            and gate.may_begin(self._pace.off_loop(self.function), now_ms)
            and (self._ready or not queue.gathers(now_ms, self._parts.sizer.batch_size))
        ):
            ready = queue.announce(now_ms)
            if ready is not None:
                self.effects.append(ready)
        elif self._states.prefetches and self._states.has_unread:
            self._preparation.fetch()
        self._plan_wake(now_ms)

    def _plan_wake(self, now_ms: float) -> None:
        wake_ms = now_ms + HORIZON_MS / 2
        timers = self._timers.by_time
        if timers:
            wake_ms = min(wake_ms, timers[0][0] - self._clock.base_ms)
        retries, expiries = self._locks.retries, self._awaiting.expiries
        if retries and retries[0][0] > now_ms:
            wake_ms = min(wake_ms, retries[0][0])
        if expiries:
            wake_ms = min(wake_ms, expiries[0][0] + 1)
        if self.progress.is_used:
            due_ms = self.progress.wake_ms(now_ms, self._clock.base_ms)
            wake_ms = wake_ms if due_ms is None else min(wake_ms, due_ms)
        if self._queue.gathering_until_ms is not None:
            wake_ms = min(wake_ms, self._queue.gathering_until_ms)
        if self._staging.fed_rows and now_ms < self._live.background_from_ms:
            wake_ms = min(wake_ms, self._live.background_from_ms)
        if self._pending.has_acknowledged and self.in_flight_commit.commit is None:
            wake_ms = min(wake_ms, now_ms + HOUSEKEEPING_MS)
        if self._wake_ms is None or wake_ms < self._wake_ms:
            self._wake_ms = wake_ms
            self.effects.append(WakeAt(wake_ms))

    def woken(self, now_ms: float) -> None:
        """Time has passed: fire what is due, retry what waited, forget who is long gone."""
        if self.stopped or self.leaving:
            return
        self._wake_ms = None
        self.timers.fire(now_ms)
        self.timers.load(now_ms)
        self.clients.time_passed(now_ms)
        self.snapshots.expire(now_ms)
        clock_ms = self.clock_ms(now_ms)
        self._pending.record_all(self._staging.orphans(clock_ms))
        if self._pending.has_acknowledged or self._parts.records.egress.look(clock_ms):
            self._pending.request_commit()
        self.advance(now_ms)

    # Commits

    def _seal(self, now_ms: float) -> None:
        """Begin the next commit, unless a run is in flight without whose end there is none."""
        if self._gate.unrecorded is None:
            clock_ms = self._clock.base_ms + int(now_ms)
            self.effects.append(self.in_flight_commit.seal(clock_ms, now_ms))
            self.counters.egress_dropped = self._parts.records.egress.dropped

    def committed(self, outcome: Outcome, now_ms: float) -> None:
        """The store has answered: tell everybody, or stop."""
        in_flight_commit = self.in_flight_commit
        if self.stopped or in_flight_commit.commit is None:
            return
        if outcome is Outcome.UNKNOWN:
            self.effects.append(Store(in_flight_commit.commit))
            return
        if outcome is Outcome.REFUSED and in_flight_commit.sealed is not None:
            self._parts.oversized.refused(in_flight_commit.sealed.ran)
        if outcome in (Outcome.FENCED, Outcome.GAP, Outcome.REFUSED):
            self.stop(outcome)
            return
        self.effects += in_flight_commit.stored(now_ms)
        if self._journal.told:
            self.calls.stored()
        if self.delivery.missed_from:
            self.delivery.committed()
        if self._cells.over_bound():
            self._cells.shrink(self._parts.keys.in_use())
        self.timers.load(now_ms)
        self.advance(now_ms)

    def snapshot_pinned(
        self, id_: str, keys: Collection[str] | None, ticket: object, now_ms: float
    ) -> Snapshot:
        """Remember the state as it is at the last commit, for a reader; once the ticket is settled
        it may be read. With keys, only they are remembered."""
        snapshot = self.snapshots.pin(id_, self.in_flight_commit.index, keys, now_ms)
        if self.in_flight_commit.sealed is None:
            self.effects.append(Settled(ticket))
        else:
            self.in_flight_commit.sealed.tickets.append(ticket)
        return snapshot

    def preimages_loaded(self, rows: Sequence[StateRow] | None) -> None:
        """Take the states that `LoadPreimages` asked for; None if they cannot be known: then no
        reader is waited for."""
        in_flight_commit, keys = self.in_flight_commit, self.in_flight_commit.preimages
        if self.stopped or not keys:
            return
        if rows is None:
            self.snapshots.lose("the store did not return the old states in time")
        else:
            self.snapshots.keep(in_flight_commit.index, keys, rows)
        self.effects.append(in_flight_commit.preimages_kept())

    # The end

    def leave(self, now_ms: float, *, at_once: bool = False) -> None:
        """Begin nothing more, so that another worker can go on; `PartitionReleased` follows.

        What runs ends first and is committed, unless it has to be left at once: then it is done
        again by the next owner, as all that waits is.
        """
        self.leaving = True
        self._leaves_at_once = self._leaves_at_once or at_once
        self.advance(now_ms)

    def _leave_if_done(self, now_ms: float) -> None:
        # The next owner could not know of a side effect that is done and not on record.
        is_busy = bool(self._gate.in_flight or self._journal.performing)
        is_busy = is_busy and not self._leaves_at_once
        if self.in_flight_commit.commit is not None or is_busy:
            return
        # What cannot be committed because of what runs has not happened.
        is_stuck = self._gate.unrecorded is not None
        if self._pending.needs_commit and not is_stuck:
            self._seal(now_ms)
        else:
            self.effects.append(
                PartitionReleased(self.in_flight_commit.index, settled=not is_stuck)
            )

    def stop(self, outcome: Outcome) -> None:
        """Forget everything: somebody else owns the partition, or nothing here can be stored."""
        if self.stopped:
            return
        self.stopped = True
        self._queue.close()
        self._locks.clear()
        self._parts.parked.untrack()
        self._leased.clear()
        self.snapshots.clear()
        self.effects.append(Stop(outcome, frozenset(self._parts.oversized.ids)))
