"""The step machine of one partition: events in, effects out.

No I/O, clock, randomness or user code. Whoever owns a `Partition` calls one method for each event,
then carries out what has gathered in `effects`. What it promises:

- A message is taken from its channel once and in order. Taken means: in the commit it is either
  consumed, with everything it caused, or parked as a record. So one number for each source says
  exactly what is done, however long single messages wait.
- One commit is under way at a time. Meanwhile the next batches run; their effects gather in the
  next commit. Nothing is told to anybody before the commit that holds it is done.
- Messages of one sender to one key run in the order sent. A key whose message waits (for a retry,
  for a call, for a thread) holds back its later messages; other keys go on.
- It says how urgent its most urgent message is, and runs nothing before it is told that it has
  its turn. Until then whatever arrives may become more urgent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from sublet.functions.address import is_client, is_pipeline
from sublet.functions.app import Function
from sublet.functions.effects import Cancelled, Effect, Outgoing
from sublet.runtime.config.limits import Limits
from sublet.runtime.partition.lifecycle.admission import Admission, infeasible
from sublet.runtime.partition.lifecycle.cancellation import Interrupts
from sublet.runtime.partition.lifecycle.completion import MessageCompletion
from sublet.runtime.partition.lifecycle.inflight_commit import InFlightCommit
from sublet.runtime.partition.lifecycle.message_dispatch import SingleMessages
from sublet.runtime.partition.lifecycle.run_gate import RunGate
from sublet.runtime.partition.model.corruption import check_outbox, damaged, decoded
from sublet.runtime.partition.model.effects import (
    Acknowledge,
    Cells,
    Counters,
    Deliver,
    Fetch,
    Fetchable,
    Lend,
    Load,
    LoadStaged,
    LoadTimers,
    LoadWindows,
    Merger,
    Pace,
    PartitionReleased,
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
from sublet.runtime.partition.model.lease import Lease
from sublet.runtime.partition.model.work import Chunk, Failure, QueuedMessage, RunResult, Span, Work
from sublet.runtime.partition.queue.backlog import IN_LINE
from sublet.runtime.partition.queue.key_locks import KeyLocks
from sublet.runtime.partition.queue.leased_work import LentWork
from sublet.runtime.partition.queue.state_prefetch import KEYS_MAX, Prefetch
from sublet.runtime.partition.queue.work_queue import Singly, WorkQueue
from sublet.runtime.partition.records.call_journal import Calls
from sublet.runtime.partition.records.channels import Inbox, Outbox, endpoint_of
from sublet.runtime.partition.records.client_sessions import Clients
from sublet.runtime.partition.records.commit_budget import CommitSize
from sublet.runtime.partition.records.due_index import in_order
from sublet.runtime.partition.records.egress_retention import EgressRetention
from sublet.runtime.partition.records.oversized_messages import UNSTORABLE, OversizedMessages
from sublet.runtime.partition.records.pending_commit import CommitEncoder, OutgoingCall, as_oldest
from sublet.runtime.partition.records.snapshots import Snapshot, SnapshotRoom, Snapshots
from sublet.runtime.partition.records.staged_batches import Staging, requests_of
from sublet.runtime.partition.records.timers import HORIZON_MS, LOADED_MAX, Timers
from sublet.runtime.partition.records.watermarks import (
    StreamProgress,
    closing_message,
    decode_marker,
)
from sublet.runtime.protocol.frames import Batch, ErrorInfo, Kind, Refused
from sublet.runtime.protocol.messages import Message
from sublet.scheduler.batching import Curve
from sublet.scheduler.urgency import Urgency
from sublet.statestore.contract import (
    AHEAD,
    DEAD,
    Outcome,
    Record,
    Recovered,
    StateRow,
)
from sublet.statestore.contract import EXPIRED as EXPIRED_CLIENT

HOUSEKEEPING_MS = 1_000
DAMAGED_KEPT_MAX = 256
_decode_message = msgspec.msgpack.Decoder(Message).decode
_decode_numbers = msgspec.msgpack.Decoder(list[int]).decode


def _check_columns(function: Function) -> Callable[[msgspec.Raw], None]:
    def check(column: msgspec.Raw) -> None:
        function.column_type.check(column)

    return check


class Partition:
    def __init__(  # noqa: PLR0913, PLR0915  # Its surroundings are all named, and given once.
        self,
        name: str,
        function: Function,
        recovered: Recovered,
        *,
        cells: Cells,
        pace: Pace,
        limits: Limits,
        now_ms: float,
        wall_ms: int,
        urgency: Urgency | None = None,
        curve: Curve | None = None,
        fetchable: Fetchable | None = None,
        prefetch_keys_max: int = KEYS_MAX,
        expected: Sequence[str] = (),
        downstream: Sequence[str] = (),
        timers_loaded_max: int = LOADED_MAX,
        merger: Merger | None = None,
        is_heavy: bool = False,
        unstorable: Collection[str] = (),
        snapshot_room: SnapshotRoom | None = None,
    ) -> None:
        """Without urgency, what came first is the most urgent; without a curve of costs,
        what there is runs, unless the function says how many should run together. `fetchable`
        are the cells, if states may be read before they are needed.

        `expected` are the sources whose watermarks are waited for, `downstream` the partitions
        that wait for those of this one. With a `merger`, messages may run in parts. If a commit
        was too large for the store, it `is_heavy`: commits are small at first; messages that were
        alone in such a commit are `unstorable`, and fail. All partitions of a worker share the
        room for snapshots.
        """
        self.name = name
        self.function = function
        self.epoch = recovered.epoch
        self.effects: list[StepEffect] = []
        self.counters = Counters()
        self.damaged: deque[str] = deque(maxlen=DAMAGED_KEPT_MAX)
        """The latest records that could not be read and were left; for the log, which takes them
        away."""
        self.stopped = False
        self.leaving = False
        """Nothing is taken or begun any more: another worker is to own the partition."""
        self._store_forgets = recovered.token != ""
        self._missed: dict[str, int] = {}
        """Destinations that miss what was acknowledged, with the commit after which they are told
        so."""
        self._leaves_at_once = False
        self._cells = cells
        self._pace = pace
        self._limits = limits
        self._urgency = urgency or Urgency()
        ahead = {
            each.id: decoded(_decode_numbers, name, each)
            for each in recovered.ahead
            if each.value is not None
        }
        self._inbox = Inbox(recovered.inbox, ahead)
        check_outbox(name, recovered.outbox)
        self._outbox = Outbox(recovered.sent, recovered.outbox)
        self._egress = EgressRetention(
            recovered.egress, recovered.egress_marks, limits, partition=name
        )
        # Whole numbers: a sum of fractions could reach a timer's time one tick too late.
        self._clock_base_ms = max(recovered.clock_ms, wall_ms) - int(now_ms)
        self._queue = WorkQueue(name, function, self._inbox, self._urgency, curve, limits, now_ms)
        self._queue.owner = self
        self._backlog = self._queue.backlog
        self._prefetch: Prefetch | None = None
        """None where no state is read ahead."""
        if fetchable is not None and function.kind == "keyed":
            self._prefetch = Prefetch(fetchable, prefetch_keys_max)
        self._lines = KeyLocks(function.kind)
        self._ready, self._keys = self._lines.ready, self._lines.keys
        self._lent = LentWork(function, self._lines, cells, merger)
        self.versions = self._lent.versions
        """Of the states that lessees have."""
        self.mergeable = merger is not None
        self._by_hand: set[str] = set()
        """Keys that somebody holds to change their state."""
        self._calls = Calls(function.name)
        self._commit_size = CommitSize(limits.commit_messages_max, is_heavy=is_heavy)
        self._unstorable = OversizedMessages(unstorable)
        self._timers = Timers(name, timers_loaded_max)
        self.progress = StreamProgress(
            function,
            recovered.watermarks,
            partition=name,
            expected=expected,
            downstream=downstream,
            now_ms=now_ms,
            loaded_max=timers_loaded_max,
        )
        self._wake_ms: float | None = None
        self.staging = Staging(
            name,
            recovered.staging,
            self.clock_ms(now_ms),
            limits=limits,
            partition_count=function.partition_count if function.kind == "keyed" else 0,
            takes_states=function.kind == "keyed" and function.window is None,
            check_columns=_check_columns(function) if function.takes_columns else None,
        )
        self.snapshots = Snapshots(name, snapshot_room or SnapshotRoom(limits.snapshot_bytes_max))
        self._clients = Clients(
            (*recovered.inbox, *ahead),
            now_ms,
            self.clock_ms(now_ms),
            recovered.expired,
            recovered.silent,
        )
        self._completion = MessageCompletion(
            name,
            function,
            limits,
            inbox=self._inbox,
            gone=self._clients.gone,
            lines=self._lines,
            queue=self._queue,
            calls=self._calls,
            progress=self.progress,
            staging=self.staging,
            counters=self.counters,
            dead_count=recovered.dead_count,
            clock_ms=self.clock_ms,
        )
        encoder = CommitEncoder(
            name, self._outbox, self._egress, limits.message_bytes_max, recovered.token
        )
        self.in_flight_commit = InFlightCommit(
            name,
            function,
            recovered.epoch,
            recovered.index,
            encoder,
            size=self._commit_size,
            completion=self._completion,
            inbox=self._inbox,
            outbox=self._outbox,
            clients=self._clients,
            urgency=self._urgency,
            calls=self._calls,
            timers=self._timers,
            progress=self.progress,
            staging=self.staging,
            snapshots=self.snapshots,
        )
        """What the store has not answered."""
        self._singles = SingleMessages(
            function,
            self._queue,
            self._lines,
            self._completion,
            self.progress,
            self.clock_ms,
            in_parts=self.mergeable,
        )
        self._interrupts = Interrupts(
            self._inbox, self._backlog, self._lines, self._singles, self._completion
        )
        self._awaiting = self._interrupts.awaiting
        self._runs = RunGate(
            function,
            limits,
            pace,
            self._urgency,
            cells,
            size=self._commit_size,
            unstorable=self._unstorable,
            queue=self._queue,
            lines=self._lines,
            awaiting=self._awaiting,
            lent=self._lent,
            staging=self.staging,
            completion=self._completion,
            in_flight_commit=self.in_flight_commit,
        )
        self._running = self._runs.going
        self.unrun = self._completion.unrun
        """For telemetry, which takes them away."""
        self._admission = Admission(
            name,
            recovered.epoch,
            self._inbox,
            self._outbox,
            self._backlog,
            limits,
            self._clients,
            self.progress,
            self.staging,
            self._completion,
            self.counters,
            self._client_expired,
            store_forgets=self._store_forgets,
        )
        self.refusals = self._admission.refusals
        """Messages refused, by reason; counted as `Counters` are."""
        self._recover(recovered.parked, recovered.journal)

    # Start

    def _recover(self, parked: Sequence[Record], journal: Sequence[Record]) -> None:
        messages = [
            decoded(_decode_message, self.name, each) for each in parked if each.value is not None
        ]
        self._singles.order = self.progress.last_order
        for message in sorted(messages, key=lambda each: each.order):
            waiting = QueuedMessage(message, parked=True)
            self._completion.parked[message.id] = waiting
            self._singles.order = max(self._singles.order, message.order)
            if self.progress.is_used:
                self.progress.opened(message)
            if is_client(message.source):
                self._completion.open_from_clients += 1
            elif is_pipeline(message.source) and message.attempt == 1:
                self.staging.parked(message.source, message.number)
            self._lines.make_ready_or_wait(waiting)
        self._calls.recover(self.name, journal, self._completion.parked, self._completion.pending)

    def start(self, now_ms: float) -> None:
        """Send again what was not acknowledged, look for due timers, go on with parked work."""
        for entries in self._outbox.entries.values():
            self.effects.extend(Deliver(entry) for entry in entries)
        self._load_timers(now_ms)
        self._advance(now_ms)

    # Events: messages

    @property
    def open_from_clients(self) -> int:
        """Messages of clients taken and not finished."""
        return self._completion.open_from_clients

    @property
    def unanswered_of_clients(self) -> int:
        """Those, and what is finished and waits for its commit: what the worker's bound counts."""
        if self.stopped:
            return 0
        completion, sealed = self._completion, self.in_flight_commit.sealed
        waiting = 0 if sealed is None else sealed.ended_of_clients
        return completion.open_from_clients + completion.pending.ended_of_clients + waiting

    @property
    def queued(self) -> int:
        """How many messages wait for a run."""
        return self._backlog.count + len(self._ready)

    @property
    def queued_bytes(self) -> int:
        return self._backlog.size_bytes

    def batch_arrived(self, batch: Batch, now_ms: float) -> None:
        """Take a batch from a peer or a client into the queue."""
        if self.stopped:
            return
        if self.leaving:
            error = ErrorInfo("not_owner", f"{self.name} is moving to another worker")
            refused = Refused(batch.target, batch.source, batch.first, error, self.epoch)
            self.effects.append(Refuse(refused))
            return
        taken = self._admission.accept(batch, now_ms)
        if isinstance(taken, int):
            self._take_in(batch, taken, now_ms)
            self._advance(now_ms)
        else:
            self._tell(taken, now_ms)

    def _tell(self, told: Refuse | Acknowledge | None, now_ms: float) -> None:
        """Tell the sender of a batch; what it may hear only later has to be committed first."""
        if told is not None:
            self.effects.append(told)
        elif self._completion.pending.needs_commit:
            self._advance(now_ms)

    def _take_in(self, batch: Batch, skip: int, now_ms: float) -> None:
        if batch.kind is Kind.REPLY:
            self._take_replies(batch, skip)
        elif batch.kind is Kind.CANCEL_CALL:
            self.effects.extend(self._interrupts.take(batch, skip, now_ms))
        elif batch.kind is Kind.STAGE:
            self._take_staging(batch, skip, now_ms)
        else:
            self._line_up(batch, skip, now_ms)

    def _line_up(self, batch: Batch, skip: int, now_ms: float) -> None:
        function, urgency = self.function, self._urgency
        removed_indexes, fresh = None, batch.count - skip
        if self._inbox.ahead:
            removed_indexes = self._inbox.done_ahead(batch.source, batch.first, skip, batch.count)
        chunk = Chunk(batch, skip, now_ms, function.slo_ms, urgency.patience_ms, removed_indexes)
        if removed_indexes:
            fresh = chunk.count
        if chunk.from_client:
            self._completion.open_from_clients += fresh
        if function.infeasible == "refuse" and chunk.from_client:
            self._answer_infeasible(chunk, now_ms)
            fresh = chunk.count
        if not fresh:
            return
        if function.window is not None:
            self._count_from_frontier(chunk, now_ms)
        if self._prefetch is not None and batch.kind not in IN_LINE:
            self._prefetch.arrived(chunk)
        self._queue.add(chunk, fresh, now_ms)

    def _answer_infeasible(self, chunk: Chunk, now_ms: float) -> None:
        """Answer calls at once that cannot be in time by what waits already."""
        batch = chunk.batch
        if not self._inbox.may_go_ahead(batch.source):
            return  # Each answer is a number in the commits until all before it are done.
        for index, error in infeasible(chunk, self.function, self._urgency, now_ms):
            waiting = chunk.message(index, self._singles.next_order())
            self._completion.took_ahead(batch.source, batch.first + index)
            self._completion.complete_unexecuted(waiting, error, now_ms)
            self._admission.count("infeasible", 1)

    def _count_from_frontier(self, chunk: Chunk, now_ms: float) -> None:
        """Let messages be due as long after their window can close as they would be after now."""
        progress, clock_ms = self.progress, self.clock_ms(now_ms)
        progress.arrived(chunk, clock_ms)
        # Somebody waits for the reply to a call, whenever the window closes.
        if self._urgency.frontier and chunk.batch.kind is Kind.SEND:
            frontier_ms = progress.frontier_ms(chunk.batch.source, clock_ms, now_ms)
            chunk.postpone(frontier_ms - now_ms)

    def refuse(self, batch: Batch, reason: str, error: ErrorInfo, now_ms: float) -> None:
        """Take nothing new from this batch, because the worker has no room, or stops."""
        if not self.stopped:
            self._tell(self._admission.refuse(batch, reason, error), now_ms)

    def acknowledged(self, destination: str, upto: int) -> None:
        """A receiver has durably taken our messages: they need not be kept."""
        if not self.stopped and self._outbox.acknowledge(destination, upto):
            # Only housekeeping: it rides on the next commit.
            self._completion.pending.acknowledged[destination] = upto

    def deliver_again(self, reaches: Callable[[str], bool]) -> None:
        """Endpoints have (re)connected or moved: send what they have not acknowledged."""
        if self.stopped:
            return
        for destination, entries in self._outbox.entries.items():
            if reaches(endpoint_of(destination)):
                self.effects.extend(Deliver(entry) for entry in entries)

    def resend_from(self, destination: str, first: int) -> None:
        """A destination says that it misses messages from this number on."""
        if self.stopped:
            return
        for entry in self._outbox.entries.get(destination, ()):
            if entry.first + entry.length > first:
                self.effects.append(Deliver(entry))

    def missed(self, destination: str, first: int, now_ms: float) -> None:
        """The owner of a destination says that it has nothing from this number on.

        If we have nothing so old, it was acknowledged; then the store has lost data. What is not
        committed of that is still stored: begin anew from there. Else what is stored of ours may be
        older than what we know, too: a commit has to find all of it there before the destination
        is told what is the oldest that there is.
        """
        if self.stopped:
            return
        entries = self._outbox.entries.get(destination)
        if self._store_forgets and self._acknowledged_meanwhile(destination) >= first:
            self.stop(Outcome.GAP)
        elif not entries or entries[0].first <= first:
            self.resend_from(destination, first)
        else:
            self._missed.setdefault(destination, self.in_flight_commit.index + 1)
            self._completion.pending.needs_commit = True
            self._advance(now_ms)

    def _acknowledged_meanwhile(self, destination: str) -> int:
        """Return up to where a destination has acknowledged what may still be stored here."""
        sealed, pending = self.in_flight_commit.sealed, self._completion.pending
        before = 0 if sealed is None else sealed.acknowledged.get(destination, 0)
        return max(before, pending.acknowledged.get(destination, 0))

    def _tell_oldest(self) -> None:
        """A commit is stored: whoever misses what nobody has may hear of it."""
        for destination, index in tuple(self._missed.items()):
            if index > self.in_flight_commit.index:
                continue
            del self._missed[destination]
            if entries := self._outbox.entries.get(destination):
                oldest = entries[0]
                self.effects.append(Redeliver(as_oldest(oldest)))
                self.resend_from(destination, oldest.first + oldest.length)

    def client_gone(self, client: str, now_ms: float) -> None:
        """A client has said goodbye: nobody will ask for its replies or repeat its messages."""
        if not self.stopped and self._clients.expired.pop(client, None) is not None:
            self._completion.pending.record(Record(EXPIRED_CLIENT, client, None))
            self._advance(now_ms)
        self._forget_client(client, now_ms)

    def _client_expired(self, client: str, now_ms: float) -> None:
        """A client takes no replies: drop them, and take nothing more under its name."""
        self._completion.pending.record(self._clients.expire(client, self.clock_ms(now_ms)))
        self._forget_client(client, now_ms)

    def _forget_client(self, client: str, now_ms: float) -> None:
        forgotten = self._clients.forget(client)
        self._admission.told.pop(client, None)
        if self.stopped:
            return
        if forgotten is not None:
            self._completion.pending.record(forgotten)
        self.progress.source_gone(client, self._singles.next_order(), now_ms)
        if self._inbox.knows(client) or client in self._outbox.sent:
            if client in self._inbox.ahead:
                self._completion.pending.record(Record(AHEAD, client, None))
            self._inbox.forget(client)
            self._outbox.forget(client)
            self._completion.pending.forgotten.append(client)
            self._completion.pending.acknowledged.pop(client, None)
            self._clients.left(client)
            self._completion.pending.needs_commit = True
            self._advance(now_ms)

    # Events: state and user code

    def loaded(
        self,
        work: Work,
        keys: Sequence[str],
        rows: Sequence[StateRow],
        answers: Sequence[Record],
        now_ms: float,
    ) -> None:
        """The state that `Load` asked for is here."""
        if self.stopped:
            return
        self._cells.insert(keys, rows)
        prefetch = self._prefetch
        if prefetch is not None:
            prefetch.loaded(keys)
        if answers:
            left = self._completion.answer_repeated(work.waiting, answers, now_ms)
            work = self._without_answered(work, left)
            if not work.count:
                if prefetch is not None:
                    prefetch.ended(work)
                if work.lease is not None:
                    # Whoever has lent it learns that there is nothing in it.
                    self._begin(work, now_ms)
                self._work_ended(work)
                if self._lent.parts:
                    self._merge_all(now_ms)
                self._advance(now_ms)
                return
        if self._lent.part_read(work):
            self._merge_all(now_ms)
            self._advance(now_ms)
        elif prefetch is None or not prefetch.waits(work):
            self._begin(work, now_ms)

    def _begin(self, work: Work, now_ms: float) -> None:
        """All that a work needs is in memory: let it run here, or where it was lent to."""
        if work.lease is None:
            self.effects.append(Run(work))
        elif self._lent.is_read(work):
            self._come_home(work, now_ms)
        elif work.id in self._lent.works:
            self.effects.append(Lend(work))

    def fetched(self, keys: Sequence[str], rows: Sequence[StateRow], now_ms: float) -> None:
        """The state that `Fetch` asked for is here."""
        if self.stopped:
            return
        assert self._prefetch is not None
        fresh, able = self._prefetch.done(keys)
        if len(fresh) < len(keys):
            known = set(fresh)
            rows = [row for row in rows if row.key in known]
        self._cells.insert(fresh, rows)
        self.counters.prefetched += len(fresh)
        for work in able:
            self.counters.prefetch_hits += self._prefetch.use(work.keys)
            self._begin(work, now_ms)
        if able or self._running:
            self._fetch_ahead()

    def _fetch_ahead(self) -> None:
        """Read the states of what has come and cannot run yet."""
        prefetch = self._prefetch
        assert prefetch is not None
        prefetch.look()
        if keys := prefetch.begin():
            self.effects.append(Fetch(keys))

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
            self._running[work.id] = part
        return part

    def finished(self, work: Work, result: RunResult, now_ms: float) -> None:
        """User code has run on the work."""
        if self.stopped:
            return
        self._work_ended(work)
        self.counters.runs += 1
        if len(result.suspended) < work.count and not work.assigns:
            self._pace.learn(self.function, result.cut_at or work.count, result.elapsed_ms)
        if self._queue.batching is not None:
            self._queue.batching.ended(work.count, self._backlog.count, now_ms)
        if self._commit_size.is_heavy or self._unstorable.ids:
            result = self._told_apart(work, result)
        self._gather(work, result)
        if work.spans and result.is_plain:
            self._completion.consume_spans(work.spans, result.values)
        else:
            self._settle_each(work, result, now_ms)
        if self._lent.parts:
            self._merge_all(now_ms)
        self._advance(now_ms)

    def _told_apart(self, work: Work, result: RunResult) -> RunResult:
        """Note whose commit the next one is, in case that the store refuses it; return what
        becomes of the run, if that has happened before."""
        ids = work.message_ids()
        self._completion.pending.ran += ids
        if len(ids) > 1 or not result.is_plain or not self._unstorable.has_come(ids[0]):
            self._unstorable.others_came()
            return result
        self.cells_tainted({row.key for row in result.rows})
        failed = RunResult()
        failed.values, failed.elapsed_ms = [None], result.elapsed_ms
        failed.failed[0] = UNSTORABLE
        return failed

    def _gather(self, work: Work, result: RunResult) -> None:
        """Put what a run has changed and sent into the next commit."""
        pending = self._completion.pending
        if self.versions and work.lease is None:
            self.versions.forget({row.key for row in result.rows})
        pending.rows.extend(result.rows)
        pending.runs += 1
        if self.staging.fed_rows and work.is_background:
            pending.has_background = True
        if result.effects:
            self._timers.note(result.effects)
            self._note_windows(result.effects)
            pending.effects.extend(result.effects)
            if work.waiting and any(each.traced is not None for each in work.waiting):
                pending.traced = True
        pending.needs_commit = True

    def _work_ended(self, work: Work) -> None:
        if work.lease is not None:
            self._lent.dropped(work)
        else:
            self._runs.ended(work)

    def _settle_each(self, work: Work, result: RunResult, now_ms: float) -> None:
        """Some messages of a run failed, wait, or were waiting before."""
        messages = work.waiting or [
            self._singles.message(*work.locate(index)) for index in range(work.count)
        ]
        for waiting in self._completion.settle(messages, work.spans, result, now_ms):
            interrupt = self._interrupts.suspended(waiting)
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
    ) -> None:
        """A handler that had been awaiting something is done."""
        waiting = self._awaiting.pop(message_id, None)
        if self.stopped or waiting is None:
            return
        self._pace.learn(self.function, 1, step_ms)
        pending = self._completion.pending
        pending.needs_commit = True
        if self._commit_size.is_heavy or self._unstorable.ids:
            pending.ran.append(message_id)
            if failure is None and self._unstorable.has_come(message_id):
                self.cells_tainted({row.key for row in rows})
                failure = UNSTORABLE
        if failure is not None:
            holds = self._completion.fail(waiting, failure, now_ms)
        else:
            holds = False
            if self.versions:
                self.versions.forget({row.key for row in rows})
            pending.rows.extend(rows)
            pending.runs += 1
            self._timers.note(effects)
            self._note_windows(effects)
            pending.effects.extend(effects)
            pending.traced = pending.traced or waiting.traced is not None
            self._completion.consume(waiting, value, None, now_ms)
        if not holds:
            self._lines.release(self._lines.lock_of(waiting.message))
        if self._lent.parts:
            self._merge_all(now_ms)
        self._advance(now_ms)

    def cells_tainted(self, keys: Collection[str]) -> None:
        """A handler was given up and may go on changing these cells: they are read again, once
        everything that is known of them is committed."""
        self._runs.tainted.update(keys)

    # Taking work

    def take(self, now_ms: float) -> None:
        """It is this partition's turn: start one run, if one can start."""
        self._queue.begin()
        if self.stopped or self.leaving:
            return
        # Asked once: a run on the loop must not begin beside one that goes on elsewhere.
        off_loop = self._pace.off_loop(self.function)
        while (self._backlog.count or self._ready) and self._runs.may_begin(off_loop, now_ms):
            if self._start_work(off_loop, now_ms):
                break
        if self._queue.batching is not None:
            self._queue.took()
        if not self._runs.has_exclusive_run():
            self._advance(now_ms)  # Otherwise there is nothing to begin until the end of the run.
        prefetch = self._prefetch
        if prefetch is not None and (prefetch.unseen or prefetch.fetched):
            self._fetch_next(prefetch)

    def _fetch_next(self, prefetch: Prefetch) -> None:
        """A run has begun, or is about to: read what comes after it meanwhile."""
        if not self._backlog.count:
            prefetch.forget_unused()
        elif prefetch.unseen and self._running:
            self._fetch_ahead()

    def _advance(self, now_ms: float) -> None:
        """Begin the next commit if none is under way, and say what could run."""
        if self.stopped:
            return
        if self.leaving:
            self._leave_if_done(now_ms)
            return
        if self.progress.is_used and not self._runs.has_exclusive_run():
            self._let_time_pass(now_ms)
        if self.staging.hungry:
            self._feed(now_ms)
        if self.in_flight_commit.commit is None and self._completion.pending.needs_commit:
            self._seal_if_wanted(now_ms)
        if self._lines.retries and not self._runs.has_exclusive_run():
            self._lines.take_retries(now_ms)
        if self._interrupts.expiries.heap:
            self.effects.extend(self._interrupts.due(now_ms))
        queue = self._queue
        queue.gathering_until_ms = None
        if (
            (self._backlog.count or self._ready)
            and self._runs.may_begin(self._pace.off_loop(self.function), now_ms)
            and (self._ready or not queue.gathers(now_ms, self._runs.batch_size))
        ):
            ready = queue.announce(self._ready, now_ms)
            if ready is not None:
                self.effects.append(ready)
        elif self._prefetch is not None and self._prefetch.unseen:
            self._fetch_ahead()
        self._plan_wake(now_ms)

    def _start_work(self, off_loop: bool, now_ms: float) -> bool:
        """Start one run, or take what does not run; return whether a run has started."""
        size = self._runs.batch_size()
        if self.staging.fed_rows:
            size = min(size, max(1, self._runs.background_room(now_ms)))
        if self._ready and not (
            # Of a full partition's backlog only peers' messages may run, if there are any.
            len(self._awaiting) < self._limits.open_calls_max
            and self._queue.is_more_urgent(self._ready)
        ):
            work = self._singles.take_ready(size, now_ms)
        else:
            work = self._take_from_backlog(size, off_loop, now_ms)
        if work is None:
            return False
        if self._queue.batching is not None:
            self._queue.begun(work, now_ms)
        self._runs.begin(work, off_loop=off_loop)
        return self._load_or_run(work, now_ms)

    def _take_from_backlog(self, size: int, off_loop: bool, now_ms: float) -> Work | None:
        """Take up to `size` messages; None if what was taken does not run (now)."""
        limits = self._limits
        chosen = self._queue.choose(
            size,
            now_ms,
            singly=bool(self._keys) or (off_loop and not self._runs.take_columns()),
            # Handlers may be waiting for messages of other partitions: clients come later.
            peers_only=len(self._awaiting) >= limits.open_calls_max,
            # What waits for a busy key is in the next commit, too.
            heads_max=limits.commit_messages_max - self._completion.pending.message_count,
            running=len(self._running),
        )
        if chosen is None or type(chosen) is Work:
            return chosen
        if type(chosen) is Span:
            if chosen.chunk.batch.kind is Kind.CANCEL_TIMER:
                self._take_cancels(chosen)
            else:
                self._take_markers(chosen, now_ms)
            return None
        assert type(chosen) is Singly
        places, spans = chosen
        return self._singles.take(places, now_ms, many_runs=off_loop, spans=spans)

    def _load_or_run(self, work: Work, now_ms: float) -> bool:
        asked: list[str] = []
        if work.waiting:
            work = self._set_repeated_aside(work, asked, now_ms)
            if not work.count:
                self._work_ended(work)
                return False
        missing: Sequence[str] = ()
        if self.function.kind == "keyed":
            # A batch may have few keys for many messages.
            keys = work.distinct_keys if self.function.takes_batch else work.keys
            missing = self._cells.missing(keys)
        elif self.function.kind == "stateful":
            missing = self._cells.missing([""])
        prefetch = self._prefetch
        if prefetch is not None:
            if prefetch.fetched:
                self.counters.prefetch_hits += prefetch.use(work.keys)
            if missing:
                missing = prefetch.load(work, missing)
        if missing or asked:
            self.effects.append(Load(work, missing, asked))
        elif prefetch is None or not prefetch.waits(work):
            self._begin(work, now_ms)
            return True
        if work.lease is not None:
            self._lent.reads(work)
        return True

    # What is taken and does not run

    def _take_cancels(self, span: Span) -> None:
        keys = span.chunk.batch.keys[span.start : span.stop]
        effects = [Cancelled(self.name, each) for each in keys]
        self._timers.note(effects)
        self._completion.pending.effects.extend(effects)
        self._completion.took_whole(span)

    def _take_markers(self, span: Span, now_ms: float) -> None:
        batch = span.chunk.batch
        if not self.progress.is_used:
            # The first one: until now nobody had to know what is open.
            for waiting in self._completion.parked.values():
                self.progress.opened(waiting.message)
        for index in range(span.start, span.stop):
            value_ms = decode_marker(span.chunk.raw(index))
            source = batch.keys[index] or batch.source
            self.progress.marker(source, value_ms, self._singles.next_order(), now_ms)
        self._completion.took_whole(span)
        # Before anything that stands behind it runs.
        self._let_time_pass(now_ms)

    # Leases

    def state_keys(self, work: Work) -> Collection[str]:
        """Return the keys whose states a work uses."""
        return self._lent.state_keys(work)

    @property
    def state_bytes(self) -> int:
        """What the state of one key weighs, about."""
        return self._cells.mean_bytes

    def lends(self, *, in_parts: bool) -> bool:
        """Tell whether somebody else may run messages now."""
        if self.stopped or self.leaving or not self._runs.may_begin_elsewhere():
            return False
        if in_parts and self.mergeable:
            return True
        function = self.function
        return function.window is None and (function.kind != "stateful" or "" not in self._keys)

    def weigh(self, chunk: Chunk) -> None:
        """Count a chunk of the backlog in all that waits in the worker."""
        self._queue.weigh(chunk)

    def unweigh(self, chunk: Chunk) -> None:
        self._queue.unweigh(chunk)

    def lend(self, parts: Sequence[tuple[Chunk, int]], lease: Lease, now_ms: float) -> bool:
        """Take so many messages of each chunk, or what must run before them, for a lease.

        Returns whether there is anything in it; then `lease.work` is set, and `Lend` is said as
        soon as the states are in memory. `lease_ended` follows.
        """
        in_order = not lease.partial and self.function.order == "key"
        places = self._queue.lend(parts, in_order=in_order)
        if not places:
            return False
        work = self._singles.take(places, now_ms, many_runs=True, in_parts=lease.partial)
        if work is not None:
            self._completion.pending.message_count += (
                work.count
            )  # Each is a record in the next commit.
        is_lent = work is not None and self._lend(work, lease, now_ms)
        self._advance(now_ms)
        return is_lent

    def crowd(self, lock: str, *, in_parts: bool) -> list[QueuedMessage]:
        """Return what waits for a key and could be lent: in parts, all that is behind it; whole,
        also who is first, if nobody is running yet."""
        return self._lent.crowd(lock, in_parts=in_parts)

    def lend_crowd(self, lock: str, count: int, lease: Lease, now_ms: float) -> bool:
        """As `lend`: what `crowd` returned; in parts, the last of it."""
        taken = self._lent.take_crowd(lock, count, in_parts=lease.partial)
        if not taken:
            return False
        for waiting in taken:
            if waiting.entry is not None:
                self._queue.unweigh_waiting(waiting)
        is_lent = self._lend(self._queue.work(taken), lease, now_ms)
        self._advance(now_ms)
        return is_lent

    def _lend(self, work: Work, lease: Lease, now_ms: float) -> bool:
        self._lent.begin(work, lease)
        if lease.partial:
            self._begin(work, now_ms)
            return True
        return self._load_or_run(work, now_ms)

    def lease_ended(self, lease: Lease, result: RunResult | None, now_ms: float) -> None:
        """What was lent has been worked off; without a result, it has not, and runs here."""
        work, lent = lease.work, self._lent
        if self.stopped or work.id not in lent.works:
            return
        if result is None:
            if lent.gives_up(work):
                self._come_home(work, now_ms)
            return
        lent.returned(work, result)
        if lease.partial:
            self._merge_all(now_ms)
        else:
            self.counters.runs += 1
            self._gather(work, result)
            if result.rows:
                self._completion.pending.rows.extend(self._cells.apply(result.rows))
            self._settle_each(work, result, now_ms)
            for lock in {self._lines.lock_of(each.message) for each in work.waiting}:
                if lock in self._keys:
                    self._queue.crowded(lock)
            if lent.parts:
                self._merge_all(now_ms)
        self._advance(now_ms)

    def _come_home(self, work: Work, now_ms: float) -> None:
        """Let messages that were lent in vain run here."""
        assert work.lease is not None
        result = self._lent.came_home(work)
        for waiting in work.waiting:
            waiting.stays = True
            self._queue.weigh_waiting(waiting, now_ms)
        if work.lease.partial:
            self._completion.settle_parts(work.waiting, result, now_ms)
        else:
            self._settle_each(work, result, now_ms)
            if self._lent.parts:
                self._merge_all(now_ms)
        self._advance(now_ms)

    def _merge_all(self, now_ms: float) -> None:
        """Merge what lessees have added to states that nobody uses now."""
        for merged in self._lent.merge(self._keys_in_hands()):
            if isinstance(merged, Load):
                self.effects.append(merged)
                continue
            (work, result), is_merged = merged
            if is_merged:
                self.counters.runs += 1
                self._gather(work, result)
            self._completion.settle_parts(work.waiting, result, now_ms)

    def _keys_in_hands(self) -> set[str]:
        """Return the keys whose states somebody here uses now."""
        in_hands = set(self._by_hand)
        for work in self._running.values():
            in_hands.update(self.state_keys(work))
        in_hands.update([each.message.key for each in self._awaiting.values()])
        return in_hands

    # Idempotency keys

    def _set_repeated_aside(self, work: Work, asked: list[str], now_ms: float) -> Work:
        """Take out what is being answered or was just answered; `asked` gets the ids of others."""
        left = self._completion.set_repeated_aside(work.waiting, asked, now_ms)
        return self._without_answered(work, left)

    def _without_answered(self, work: Work, left: Sequence[QueuedMessage]) -> Work:
        if len(left) == work.count:
            return work
        remaining = Work(work.id, waiting=left)
        remaining.off_loop, remaining.exclusive = work.off_loop, work.exclusive
        remaining.recorded = work.recorded
        if work.lease is None:
            self._running[work.id] = remaining
        else:
            self._lent.replaced(work, remaining)
        still_used = {self._lines.lock_of(each.message) for each in left}
        for lock in {self._lines.lock_of(each.message): None for each in work.waiting}:
            if lock not in still_used:
                self._lines.release(lock)
        return remaining

    # Events: changes by hand

    def hold_key(self, key: str) -> bool:
        """Keep the messages of a key waiting, if none of them runs, awaits or is tried again."""
        if self.stopped or key in self._keys:
            return False
        keyed = self.function.kind == "keyed"
        if any(not keyed or key in work.keys for work in self._running.values()):
            return False
        self._keys[key] = deque()
        self._by_hand.add(key)
        return True

    def release_key(self, key: str, now_ms: float) -> None:
        """Let the messages of a held key go on."""
        if not self.stopped:
            self._let_go(key, now_ms)
            self._advance(now_ms)

    def _let_go(self, key: str, now_ms: float) -> None:
        self._by_hand.discard(key)
        self._lines.release(key)
        if self._lent.parts:
            self._merge_all(now_ms)

    def commit_wanted(self, ticket: object, now_ms: float) -> None:
        """Settle the ticket when everything until now is committed."""
        self._completion.pending.tickets.append(ticket)
        self._completion.pending.needs_commit = True
        self._advance(now_ms)

    def state_replaced(
        self, key: str, rows: Sequence[StateRow], ticket: object, now_ms: float
    ) -> None:
        """Change the committed state of a held key, which then goes on."""
        self._completion.pending.rows.extend(rows)
        self._completion.pending.runs += 1
        if self._prefetch is not None:
            self._prefetch.touched(key)
        if self.versions:
            self.versions.forget((key,))
        self._cells.drop(key)
        self._cells.insert([key], rows)
        self._let_go(key, now_ms)
        self.commit_wanted(ticket, now_ms)

    def dead_letter_taken(
        self, letter: str, replayed: Message | None, ticket: object, now_ms: float
    ) -> None:
        """Forget a dead letter; its message, if given, runs again as if it had just come."""
        self._completion.pending.record(Record(DEAD, letter, None))
        self._completion.dead_count -= 1
        source = letter.rpartition(":")[0]
        if is_pipeline(source):
            self.staging.revived(source)
        if replayed is not None:
            # Without its idempotency key, under which its failure is on record as the answer.
            extra = msgspec.structs.replace(replayed.extra, idempotency_key="")
            message = msgspec.structs.replace(
                replayed, order=self._singles.next_order(), attempt=1, last_error=None, extra=extra
            )
            waiting = QueuedMessage(message)
            if is_client(message.source):
                self._completion.open_from_clients += 1
            self._completion.park(waiting)
            # As a retry that is due: a run on the loop may be using its key without holding it.
            self._lines.retry_at(now_ms, waiting)
        self.commit_wanted(ticket, now_ms)

    # Calls that handlers await

    def call_opened(
        self,
        message_id: str,
        call: int,
        destination: str,
        key: str,
        payload: bytes,
        now_ms: float,
        *,
        timeout_ms: float | None = None,
    ) -> None:
        """A waiting handler calls somebody: send it once, or give it the recorded result."""
        waiting = self._awaiting.get(message_id)
        if self.stopped or waiting is None:
            return
        made = self._calls.make(waiting, call, destination, key, payload, now_ms, timeout_ms)
        if type(made) is OutgoingCall:
            self._completion.pending.calls.append(made)
            self._completion.pending.needs_commit = True
            self._advance(now_ms)
        elif type(made) is Resume:
            self.effects.append(made)

    def call_expired(self, message_id: str, call: int, error: ErrorInfo, now_ms: float) -> None:
        """Nobody answered in time: the handler gets the error, now and whenever it is rerun."""
        waiting = self._awaiting.get(message_id)
        if self.stopped or waiting is None:
            return
        resumed = self._calls.expired(waiting, call, error, self._completion.pending)
        if resumed is not None:
            self.effects.append(resumed)
            self._advance(now_ms)

    def _take_replies(self, batch: Batch, skip: int) -> None:
        awaiting = self._awaiting
        for resumed in self._calls.replies(batch, skip, self._completion.pending):
            if resumed.message_id in awaiting:
                self.effects.append(resumed)
        self._completion.took(batch.source, batch.first + batch.count - 1)
        self._completion.pending.needs_commit = True

    # Rows of pipelines

    def _take_staging(self, batch: Batch, skip: int, now_ms: float) -> None:
        """Do at once what a pipeline asks for; the answer comes with the commit."""
        source, completion, pending = batch.source, self._completion, self._completion.pending
        done = self._inbox.done_ahead(source, batch.first, skip, batch.count) or ()
        for index, request in enumerate(requests_of(batch)):
            if index < skip or index in done:
                continue
            handled = self.staging.handle(request, self.clock_ms(now_ms))
            pending.records.extend(handled.records)
            if handled.error is not None and handled.error.code == "overloaded":
                self._admission.count("staged", 1)
            completion.answer(source, batch.first + index, handled.answer, handled.error)
            if handled.forgotten:
                self._inbox.forget(handled.forgotten)
                pending.inbox.pop(handled.forgotten, None)
                pending.forgotten.append(handled.forgotten)
            if handled.begins is not None:
                pipeline, first = handled.begins
                self._inbox.begin(pipeline, first)
                pending.inbox[pipeline] = first - 1
            completion.took_ahead(source, batch.first + index)
        pending.needs_commit = True

    def _feed(self, now_ms: float) -> None:
        """Put sealed rows into the queue, as far as they may stand there."""
        batches, wanted = self.staging.feed(self.clock_ms(now_ms))
        for batch in batches:
            skip = self._inbox.accept(batch.source, batch.first, batch.count)
            if 0 <= skip < batch.count:
                self._line_up(batch, skip, now_ms)
            else:
                # They stay where they are, and so do all behind them.
                error = ValueError(f"row {self._inbox.expected(batch.source)} comes next")
                what = f"position of rows {batch.first} .. of {batch.source!r:.200}"
                self.damaged.append(str(damaged(self.name, what, error)))
        if wanted:
            self.effects.append(LoadStaged(wanted))

    def staged_loaded(self, ids: Sequence[str], records: Sequence[Record], now_ms: float) -> None:
        """The rows that `LoadStaged` asked for are here."""
        if not self.stopped:
            self.damaged.extend(self.staging.loaded(ids, records))
            self._advance(now_ms)

    # Snapshots

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
        if not self.stopped and (store := self.in_flight_commit.preimages_loaded(rows)) is not None:
            self.effects.append(store)

    # Windows

    def _let_time_pass(self, now_ms: float) -> None:
        """Count markers whose time has come, close windows, and tell it downstream."""
        progress, pending = self.progress, self._completion.pending
        records = progress.advance(self.clock_ms(now_ms), now_ms)
        slo_ms = self.function.slo_ms
        deadline_ms = None if slo_ms is None else now_ms + slo_ms
        for timer, key in progress.closings():
            message = closing_message(timer, key, self._singles.next_order())
            progress.opened(message)
            self._lines.make_ready_or_wait(QueuedMessage(message, deadline_ms, arrived_ms=now_ms))
        told = progress.tell()
        if told:
            pending.tell(progress.downstream, told)
            records += progress.changed_records()
        if records:
            pending.records.extend(records)
            pending.needs_commit = True
        load = progress.load()
        if load is not None:
            self.effects.append(LoadWindows(*load))

    def _note_windows(self, effects: Sequence[Effect]) -> None:
        self._completion.pending.records.extend(self.progress.note(effects))
        self.counters.too_late = self.progress.too_late

    def windows_loaded(self, records: Sequence[Record], now_ms: float) -> None:
        """Windows that end soon are here; later ones stay in the store."""
        if not self.stopped:
            self.damaged.extend(self.progress.loaded(records))
            self._advance(now_ms)

    # Timers

    def next_timer(self) -> str:
        """Return an id for a delayed message; unique for all owners of the partition, and behind
        those that were given before."""
        return f"{in_order(self.epoch)}.{in_order(next(self._timers.numbers))}"

    def timers_loaded(self, records: Sequence[Record], until_ms: int, now_ms: float) -> None:
        """Timers of the near future are here; later ones stay in the store."""
        self.damaged.extend(self._timers.loaded(records))
        self.woken(now_ms)

    def _load_timers(self, now_ms: float) -> None:
        until_ms = self._timers.load_until_ms(self.clock_ms(now_ms))
        if until_ms is not None:
            self.effects.append(LoadTimers(until_ms, self._timers.loaded_max))

    def woken(self, now_ms: float) -> None:
        """Time has passed: fire what is due, retry what waited, forget who is long gone."""
        if self.stopped or self.leaving:
            return
        self._wake_ms = None
        pending = self._completion.pending
        for id_, timer in self._timers.fire(self.clock_ms(now_ms)):
            # As an effect, not as a record: the one that has set it may be in the same commit.
            pending.effects.append(Cancelled(self.name, id_))
            payload = bytes(timer.payload)
            pending.effects.append(Outgoing(timer.partition, timer.key, payload, None, timer.trace))
            pending.traced = pending.traced or bool(timer.trace)
            pending.needs_commit = True
        self._load_timers(now_ms)
        for client in self._clients.overdue(self._outbox.entries, now_ms):
            self.client_gone(client, now_ms)
        # Another one by now, if somebody was forgotten.
        pending = self._completion.pending
        for record in self._clients.note_silent(now_ms, self.clock_ms(now_ms)):
            pending.record(record)
            pending.needs_commit = True
        for record in self._clients.forget_expired(self.clock_ms(now_ms)):
            pending.record(record)
        self.snapshots.expire(now_ms)
        for record in self.staging.orphans(self.clock_ms(now_ms)):
            pending.record(record)
        if pending.acknowledged or self._egress.look(self.clock_ms(now_ms)):
            pending.needs_commit = True
        self._advance(now_ms)

    def _plan_wake(self, now_ms: float) -> None:
        wake_ms = now_ms + HORIZON_MS / 2
        timer_ms = self._timers.next_due_ms
        if timer_ms is not None:
            wake_ms = min(wake_ms, timer_ms - self._clock_base_ms)
        retries, expiries = self._lines.retries, self._interrupts.expiries.heap
        if retries and retries[0][0] > now_ms:
            wake_ms = min(wake_ms, retries[0][0])
        if expiries:
            wake_ms = min(wake_ms, expiries[0][0] + 1)
        if self.progress.is_used:
            due_ms = self.progress.wake_ms(now_ms, self._clock_base_ms)
            wake_ms = wake_ms if due_ms is None else min(wake_ms, due_ms)
        if self._queue.gathering_until_ms is not None:
            wake_ms = min(wake_ms, self._queue.gathering_until_ms)
        if self.staging.fed_rows and now_ms < self._urgency.background_ms:
            wake_ms = min(wake_ms, self._urgency.background_ms)
        if self._completion.pending.acknowledged and self.in_flight_commit.commit is None:
            wake_ms = min(wake_ms, now_ms + HOUSEKEEPING_MS)
        if self._wake_ms is None or wake_ms < self._wake_ms:
            self._wake_ms = wake_ms
            self.effects.append(WakeAt(wake_ms))

    # Commits

    def clock_ms(self, now_ms: float) -> int:
        """The partition's own clock: starts where the last owner's ended, never goes back."""
        return self._clock_base_ms + int(now_ms)

    def _seal_if_wanted(self, now_ms: float) -> None:
        """Begin the next commit; none is under way."""
        if self._completion.pending.needs_commit and self._runs.unrecorded is None:
            self.effects.append(self.in_flight_commit.seal(self.clock_ms(now_ms), now_ms))
            self.counters.egress_dropped = self._egress.dropped

    def committed(self, outcome: Outcome, now_ms: float) -> None:
        """The store has answered: tell everybody, or stop."""
        in_flight_commit = self.in_flight_commit
        if self.stopped or in_flight_commit.commit is None:
            return
        if outcome is Outcome.UNKNOWN:
            self.effects.append(Store(in_flight_commit.commit))
            return
        if outcome is Outcome.REFUSED and in_flight_commit.sealed is not None:
            self._unstorable.refused(in_flight_commit.sealed.ran)
        if outcome in (Outcome.FENCED, Outcome.GAP, Outcome.REFUSED):
            self.stop(outcome)
            return
        self.effects += in_flight_commit.done(now_ms)
        if self._missed:
            self._tell_oldest()
        if self._cells.over_bound():
            self._cells.shrink(self._keys_in_use())
        self._load_timers(now_ms)
        self._advance(now_ms)

    def _keys_in_use(self) -> set[str]:
        in_use = {
            row.key for row in self._completion.pending.rows
        }  # So far they exist only in their cells.
        in_use.update(self._keys)
        if self._prefetch is not None:
            in_use.update(self._prefetch.fetched)
        for work in self._running.values():
            in_use.update(work.keys if self.function.kind == "keyed" else ("",))
        if self._lent.parts or self._lent.reads_for_parts:
            in_use |= self._lent.keys_in_use()
        return in_use

    # The end

    def leave(self, now_ms: float, *, at_once: bool = False) -> None:
        """Begin nothing more, so that another worker can go on; `PartitionReleased` follows.

        What runs ends first and is committed, unless it has to be left at once: then it is done
        again by the next owner, as all that waits is.
        """
        self.leaving = True
        self._leaves_at_once = self._leaves_at_once or at_once
        self._advance(now_ms)

    def _leave_if_done(self, now_ms: float) -> None:
        if self.in_flight_commit.commit is not None or (self._running and not self._leaves_at_once):
            return
        # What cannot be committed because of what runs has not happened.
        is_stuck = self._runs.unrecorded is not None
        if self._completion.pending.needs_commit and not is_stuck:
            self._seal_if_wanted(now_ms)
        else:
            self.effects.append(
                PartitionReleased(self.in_flight_commit.index, settled=not is_stuck)
            )

    def keys_unsettled(self) -> set[str]:
        """Return the keys whose states in memory may differ from what is stored."""
        unsettled = self._keys_in_use() | self._runs.tainted | self._by_hand
        unsettled.update([each.message.key for each in self._awaiting.values()])
        return unsettled

    def stop(self, outcome: Outcome) -> None:
        """Forget everything: somebody else owns the partition, or nothing here can be stored."""
        if self.stopped:
            return
        self.stopped = True
        self._completion.open_from_clients = 0
        self._queue.close()
        self._lines.clear()
        for waiting in self._completion.parked.values():
            if waiting.entry is not None:
                self._queue.unweigh_waiting(waiting)
        self._lent.clear()
        self.snapshots.clear()
        self.effects.append(Stop(outcome, frozenset(self._unstorable.ids)))

    @property
    def idle(self) -> bool:
        """Nothing runs, waits to run, or is being committed."""
        return not (
            self._running
            or self._lent.works
            or self._lent.parts
            or self._backlog
            or self._ready
            or self.in_flight_commit.commit is not None
            or self._completion.pending.needs_commit
        )
