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
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple, Protocol

import msgspec
import xxhash

from sublet.functions.address import Address, is_client
from sublet.functions.app import Function
from sublet.functions.codec import codec_for
from sublet.functions.effects import Cancelled, Delayed, Effect, Outgoing
from sublet.functions.errors import EncodeError
from sublet.runtime.channels import REPLY_MARK, Inbox, Outbox, endpoint_of
from sublet.runtime.frames import Ack, Batch, ErrorInfo, Extra, Kind, Refused
from sublet.runtime.limits import Limits
from sublet.runtime.pending import OutgoingCall, Pending, Sealer, Timer
from sublet.runtime.work import Chunk, Failure, Message, Recorded, RunResult, Span, Waiting, Work
from sublet.statestore.contract import (
    DEAD,
    IDEMPOTENCY,
    JOURNAL,
    PARKED,
    TIMER,
    Commit,
    OutboxEntry,
    Outcome,
    Record,
    Recovered,
    StateRow,
)

TIMER_HORIZON_MS = 60_000
TIMERS_LOADED_MAX = 1_000
IDEMPOTENCY_TTL_MS = 24 * 3_600_000
CLIENT_TTL_MS = 24 * 3_600_000
HOUSEKEEPING_MS = 1_000

_any = codec_for(Any)
_encode = msgspec.msgpack.Encoder().encode
_decode_message = msgspec.msgpack.Decoder(Message).decode
_decode_recorded = msgspec.msgpack.Decoder(Recorded).decode
_decode_timer = msgspec.msgpack.Decoder(Timer).decode


class Load(NamedTuple):
    """Read the state of these keys (and these idempotency records), then `loaded`."""

    work: Work
    keys: Sequence[str]
    idempotency_ids: Sequence[str]


class Run(NamedTuple):
    """Run user code on the work, then `finished`."""

    work: Work


class Store(NamedTuple):
    """Send the commit to the store, then `committed`. On UNKNOWN it is sent again as it is."""

    commit: Commit


class Deliver(NamedTuple):
    """Bring committed messages to their destination, if it can be reached now."""

    entry: OutboxEntry


class Acknowledge(NamedTuple):
    ack: Ack


class Refuse(NamedTuple):
    refused: Refused


class WakeAt(NamedTuple):
    """Call `woken` when the monotonic clock has reached this time."""

    at_ms: float


class LoadTimers(NamedTuple):
    """Read timers due before this time of the partition's clock, then `timers_loaded`."""

    until_ms: int
    limit: int


class Resume(NamedTuple):
    """Give a waiting handler the result of its call."""

    message_id: str
    call: int
    result: msgspec.Raw
    error: ErrorInfo | None


class Stop(NamedTuple):
    """The partition is not ours any more; forget it."""

    outcome: Outcome


StepEffect = (
    Load | Run | Store | Deliver | Acknowledge | Refuse | WakeAt | LoadTimers | Resume | Stop
)


class Answer(msgspec.Struct, array_like=True):
    """What an idempotency record remembers."""

    digest: int
    result: msgspec.Raw
    error: ErrorInfo | None = None


class DeadLetter(msgspec.Struct, array_like=True):
    """A message that failed for good, as stored."""

    message: Message
    error: ErrorInfo
    at_ms: int


_decode_answer = msgspec.msgpack.Decoder(Answer).decode


class Pace(Protocol):
    """Learns what runs cost and says how much may run at once, and where."""

    def batch_size(self, function: Function, limit: int) -> int: ...

    def off_loop(self, function: Function) -> bool: ...

    def learn(self, function: Function, count: int, elapsed_ms: float) -> None: ...


class Cells(Protocol):
    """The state in memory. Dropped cells are read again."""

    def missing(self, keys: Sequence[str]) -> Sequence[str]: ...

    def insert(self, keys: Sequence[str], rows: Sequence[StateRow]) -> None: ...

    def drop(self, key: str) -> None: ...

    def over_bound(self) -> bool: ...

    def shrink(self, in_use: Collection[str]) -> None: ...


class NoCells:
    """For stateless functions."""

    def missing(self, keys: Sequence[str]) -> Sequence[str]:
        return ()

    def insert(self, keys: Sequence[str], rows: Sequence[StateRow]) -> None:
        return

    def drop(self, key: str) -> None:
        return

    def over_bound(self) -> bool:
        return False

    def shrink(self, in_use: Collection[str]) -> None:
        return


class Counters:
    """What a partition counts; read by metrics, never by decisions."""

    __slots__ = (
        "consumed",
        "dead",
        "duplicates",
        "egress_dropped",
        "failures",
        "late",
        "parked",
        "refused",
        "retries",
        "runs",
    )

    def __init__(self) -> None:
        self.consumed = 0
        self.late = 0
        self.failures = 0
        self.retries = 0
        self.dead = 0
        self.duplicates = 0
        self.refused = 0
        self.parked = 0
        self.runs = 0
        self.egress_dropped = 0


class KeyQueue:
    """Messages of one key that wait behind each other."""

    __slots__ = ("busy", "queue")

    def __init__(self) -> None:
        self.busy = True
        """Somebody runs, awaits, or waits for a retry on this key."""
        self.queue: deque[Waiting] = deque()


class Partition:
    def __init__(
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
    ) -> None:
        self.name = name
        self.function = function
        self.epoch = recovered.epoch
        self.effects: list[StepEffect] = []
        self.counters = Counters()
        self.open_from_clients = 0
        """Messages of clients taken and not finished: what the worker's bound counts."""
        self.queued = 0
        self.stopped = False
        self._cells = cells
        self._pace = pace
        self._limits = limits
        self._index = recovered.index
        self._inbox = Inbox(recovered.inbox)
        self._refused: set[str] = set()
        self._outbox = Outbox(recovered.sent, recovered.outbox)
        self._egress_kept = {name: kept for name, (kept, _) in recovered.egress.items()}
        self._egress_next = {name: next_ for name, (_, next_) in recovered.egress.items()}
        self._sealer = Sealer(name, self._outbox, self._egress_next)
        self._clock_base_ms = max(recovered.clock_ms, wall_ms) - now_ms
        self._dead_count = recovered.dead_count
        self._queue: deque[Chunk] = deque()
        self._ready: deque[Waiting] = deque()
        self._keys: dict[str, KeyQueue] = {}
        self._retries: list[tuple[float, int, Waiting]] = []
        self._running: dict[int, Work] = {}
        self._suspect: set[str] = set()
        self._awaiting: dict[str, Waiting] = {}
        self._calls: dict[tuple[str, int], tuple[Waiting, int]] = {}
        self._unsent_calls: list[tuple[OutgoingCall, Waiting, int]] = []
        self._idempotent_open: dict[str, list[Waiting]] = {}
        self._pending = Pending()
        self._committing: Commit | None = None
        self._work_number = 0
        self._order = 0
        self._timer_number = 0
        self._timers: list[tuple[int, str]] = []
        self._timer_values: dict[str, Timer] = {}
        self._timer_horizon_ms = 0
        self._timers_loading = False
        self._wake_ms: float | None = None
        self._clients_seen_ms: dict[str, float] = {
            source: now_ms for source in recovered.inbox if is_client(source)
        }
        self._recover(recovered.parked, recovered.journal)

    # Start

    def _recover(self, parked: Sequence[Record], journal: Sequence[Record]) -> None:
        by_id: dict[str, Waiting] = {}
        messages = [_decode_message(each.value) for each in parked if each.value is not None]
        for message in sorted(messages, key=lambda each: each.order):
            waiting = Waiting(message, parked=True)
            by_id[message.id] = waiting
            self._order = max(self._order, message.order)
            if is_client(message.source):
                self.open_from_clients += 1
            self._make_ready_or_wait(waiting)
        for record in journal:
            if record.value is None:
                continue
            recorded = _decode_recorded(record.value)
            owner = by_id.get(recorded.message_id)
            if owner is None:
                self._pending.records.append(Record(JOURNAL, record.id, None))
            else:
                owner.journal[recorded.call] = recorded
                if not recorded.done:
                    self._calls[recorded.destination, recorded.number] = (owner, recorded.call)

    def start(self, now_ms: float) -> None:
        """Send again what was not acknowledged, look for due timers, go on with parked work."""
        for entries in self._outbox.entries.values():
            self.effects.extend(Deliver(entry) for entry in entries)
        self._load_timers(now_ms)
        self._advance(now_ms)

    # Events: messages

    def batch_arrived(self, batch: Batch, now_ms: float) -> None:
        """Take a batch from a peer or a client into the queue."""
        source = batch.source
        from_client = is_client(source)
        if from_client:
            self._clients_seen_ms[source] = now_ms
            refusal = self._refusal(batch)
            if refusal is not None:
                self._refuse_new(batch, refusal)
                return
        skip = self._inbox.accept(source, batch.first, batch.count)
        if skip < 0:
            # After a refusal the sender's next batches are on their way already: say it once.
            if source not in self._refused:
                expected = self._inbox.received.get(source, 0) + 1
                code = "session_expired" if from_client and expected == 1 else "gap"
                self._refuse(batch, expected, ErrorInfo(code, f"expected message {expected}"))
            return
        self._refused.discard(source)
        self.counters.duplicates += skip
        if skip >= batch.count:
            self._acknowledge_again(batch)
            return
        if batch.kind is Kind.REPLY:
            self._take_replies(batch, skip)
        else:
            fresh = batch.count - skip
            self.queued += fresh
            if from_client:
                self.open_from_clients += fresh
            self._queue.append(Chunk(batch, skip, now_ms, self.function.slo_ms))
        self._advance(now_ms)

    def refuse(self, batch: Batch, error: ErrorInfo) -> None:
        """Take nothing new from this batch, because the worker has no room."""
        self._refuse_new(batch, error)

    def _refuse_new(self, batch: Batch, error: ErrorInfo) -> None:
        received = self._inbox.received.get(batch.source, 0)
        if batch.first + batch.count - 1 <= received:
            self._acknowledge_again(batch)
        elif batch.source not in self._refused:
            self.counters.refused += batch.count
            self._refuse(batch, max(batch.first, received + 1), error)

    def _refusal(self, batch: Batch) -> ErrorInfo | None:
        limits = self._limits
        if self.queued + batch.count > limits.queue_max and self.queued:
            return ErrorInfo("overloaded", f"the queue of {self.name} is full", 50)
        if self._outbox.message_count > limits.outbox_max:
            return ErrorInfo("overloaded", f"{self.name} waits for other partitions", 100)
        return None

    def _refuse(self, batch: Batch, first: int, error: ErrorInfo) -> None:
        self._refused.add(batch.source)
        self.effects.append(Refuse(Refused(batch.target, batch.source, first, error)))

    def _acknowledge_again(self, batch: Batch) -> None:
        taken = self._inbox.taken.get(batch.source, 0)
        if taken:
            self.effects.append(Acknowledge(Ack(batch.target, batch.source, taken)))

    def acknowledged(self, destination: str, upto: int) -> None:
        """A receiver has durably taken our messages: they need not be kept."""
        if self._outbox.acknowledge(destination, upto):
            # Only housekeeping: it rides on the next commit.
            self._pending.acknowledged[destination] = upto

    def deliver_again(self, reaches: Callable[[str], bool]) -> None:
        """Endpoints have (re)connected or moved: send what they have not acknowledged."""
        for destination, entries in self._outbox.entries.items():
            if reaches(endpoint_of(destination)):
                self.effects.extend(Deliver(entry) for entry in entries)

    def resend_from(self, destination: str, first: int) -> None:
        """A destination says that it misses messages from this number on."""
        for entry in self._outbox.entries.get(destination, ()):
            if entry.first + entry.length > first:
                self.effects.append(Deliver(entry))

    def client_gone(self, client: str, now_ms: float) -> None:
        """A client has said goodbye: nobody will ask for its replies or repeat its messages."""
        self._clients_seen_ms.pop(client, None)
        if client in self._inbox.received or client in self._outbox.sent:
            self._inbox.forget(client)
            self._outbox.forget(client)
            self._pending.forgotten.append(client)
            self._pending.inbox.pop(client, None)
            self._pending.must_flush = True
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
        if answers or any(each.message.extra.idempotency_key for each in work.waiting):
            work = self._answer_repeated(work, answers, now_ms)
            if not work.count:
                self._running.pop(work.id)
                self._advance(now_ms)
                return
        self.effects.append(Run(work))

    def finished(self, work: Work, result: RunResult, now_ms: float) -> None:
        """User code has run on the work."""
        if self.stopped:
            return
        del self._running[work.id]
        self.counters.runs += 1
        if len(result.suspended) < work.count:
            self._pace.learn(self.function, work.count, result.elapsed_ms)
        pending = self._pending
        pending.rows.extend(result.rows)
        if result.effects:
            self._note_timers(result.effects)
            pending.effects.extend(result.effects)
        pending.must_flush = True
        if work.spans and result.is_plain:
            self._consume_spans(work.spans, result.values, now_ms)
        else:
            self._settle_each(work, result, now_ms)
        self._advance(now_ms)

    def _consume_spans(self, spans: Sequence[Span], values: list[Any], now_ms: float) -> None:
        """The fast way: every message of whole columns was handled."""
        pending, place = self._pending, 0
        for chunk, start, stop in spans:
            batch, count = chunk.batch, stop - start
            if batch.kind is Kind.CALL:
                replies = pending.replies_to(self._reply_channel(batch.source))
                replies.refs.extend(range(batch.first + start, batch.first + stop))
                replies.values.extend(
                    values if count == len(values) else values[place : place + count]
                )
            place += count
            self._count_late(chunk, start, stop, now_ms)
            if is_client(batch.source):
                self.open_from_clients -= count
        pending.message_count += place
        self.counters.consumed += place

    def _count_late(self, chunk: Chunk, start: int, stop: int, now_ms: float) -> None:
        deadlines = chunk.deadlines_ms
        if deadlines is None:
            return
        if isinstance(deadlines, list):
            due = deadlines[start:stop]
            self.counters.late += sum(1 for each in due if each is not None and each < now_ms)
        elif deadlines < now_ms:
            self.counters.late += stop - start

    def _reply_channel(self, source: str) -> str:
        return source if is_client(source) else source + REPLY_MARK

    def _settle_each(self, work: Work, result: RunResult, now_ms: float) -> None:
        """The careful way: some messages failed, wait, or were waiting before."""
        held: dict[str, bool] = {}
        for index in range(work.count):
            waiting = work.waiting[index] if work.waiting else self._own_message(work, index)
            lock = self._lock_of(waiting.message)
            holds = False
            if index in result.suspended:
                self._await(waiting)
                holds = True
            elif index in result.unfinished:
                self._wait_behind(waiting)
            elif index in result.failed:
                holds = self._fail(waiting, result.failed[index], now_ms)
            else:
                self._consume(waiting, result.values[index], None, now_ms)
            held[lock] = held.get(lock, False) or holds
        for lock, is_held in held.items():
            if not is_held:
                self._release_key(lock)

    def _await(self, waiting: Waiting) -> None:
        """The handler goes on later; meanwhile its key waits and its message is on record."""
        self._awaiting[waiting.message.id] = waiting
        self._hold_key(waiting)
        self._park(waiting)

    def _own_message(self, work: Work, index: int) -> Waiting:
        chunk, place = work.locate(index)
        self._order += 1
        return chunk.message(place, self._order)

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
        pending = self._pending
        pending.must_flush = True
        if failure is not None:
            holds = self._fail(waiting, failure, now_ms)
        else:
            holds = False
            pending.rows.extend(rows)
            self._note_timers(effects)
            pending.effects.extend(effects)
            self._consume(waiting, value, None, now_ms)
        if not holds:
            self._release_key(self._lock_of(waiting.message))
        self._advance(now_ms)

    def cells_suspect(self, keys: Collection[str]) -> None:
        """A handler was given up and may go on changing these cells: they are read again, once
        everything that is known of them is committed."""
        self._suspect.update(keys)

    # Messages that end

    def _consume(
        self, waiting: Waiting, value: Any, error: ErrorInfo | None, now_ms: float
    ) -> None:
        message, pending = waiting.message, self._pending
        pending.must_flush = True
        pending.message_count += 1
        self.counters.consumed += 1
        if waiting.deadline_ms is not None and waiting.deadline_ms < now_ms:
            self.counters.late += 1
        if is_client(message.source):
            self.open_from_clients -= 1
        if waiting.parked:
            pending.records.append(Record(PARKED, message.id, None))
        waiting.ended = True
        for call, recorded in waiting.journal.items():
            self._calls.pop((recorded.destination, recorded.number), None)
            pending.records.append(Record(JOURNAL, f"{message.id}/{call}", None))
        self._reply(message, value, error)
        if message.extra.idempotency_key:
            self._remember_answer(message, value, error)

    def _reply(self, message: Message, value: Any, error: ErrorInfo | None) -> None:
        if message.kind is not Kind.CALL:
            return
        replies = self._pending.replies_to(self._reply_channel(message.source))
        if error is None:
            replies.add(message.number, value)
        else:
            replies.add_error(message.number, error)

    def _fail(self, waiting: Waiting, failure: Failure, now_ms: float) -> bool:
        """Try again later, or give up: then the failure is the answer, or a dead letter.

        Returns whether the message goes on holding its key.
        """
        message, retry = waiting.message, self.function.retry
        self.counters.failures += 1
        gives_up = not failure.retryable or message.attempt >= retry.attempts
        wants_grave = message.kind is not Kind.CALL
        if gives_up and wants_grave and self._dead_count >= self._limits.dead_letters_max:
            gives_up = False  # There is no room to keep it, and it must not be lost.
        if not gives_up:
            self.counters.retries += 1
            message.last_error = failure.error
            wait_ms = retry.wait_ms(message.attempt)
            message.attempt += 1
            self._park(waiting, anew=True)
            heappush(self._retries, (now_ms + wait_ms, message.order, waiting))
            if self.function.order == "none":
                return False
            self._hold_key(waiting)
            return True
        if wants_grave:
            letter = DeadLetter(message, failure.error, self.clock_ms(now_ms))
            self._pending.record(Record(DEAD, message.id, _encode(letter)))
            self._dead_count += 1
            self.counters.dead += 1
        self._consume(waiting, None, failure.error, now_ms)
        return False

    def _park(self, waiting: Waiting, *, anew: bool = False) -> None:
        """Put the message itself into the commit, since its channel goes on without it."""
        if waiting.parked and not anew:
            return
        message = waiting.message
        if not waiting.parked:
            self.counters.parked += 1
        waiting.parked = True
        self._pending.record(Record(PARKED, message.id, _encode(message)))

    # Keys that wait

    def _lock_of(self, message: Message) -> str:
        kind = self.function.kind
        if kind == "keyed":
            return message.key
        return "" if kind == "stateful" else f"\x00{message.id}"

    def _hold_key(self, waiting: Waiting) -> None:
        lock = self._lock_of(waiting.message)
        held = self._keys.get(lock)
        if held is None:
            held = self._keys[lock] = KeyQueue()
        held.busy = True

    def _wait_behind(self, waiting: Waiting) -> None:
        """Queue a message that was taken already behind its key."""
        lock = self._lock_of(waiting.message)
        held = self._keys.get(lock)
        if held is None:
            held = self._keys[lock] = KeyQueue()
        queue, order = held.queue, waiting.message.order
        place = len(queue)
        # Several runs go on at once: one that was taken later may stand here already.
        while place and queue[place - 1].message.order > order:
            place -= 1
        queue.insert(place, waiting)
        self._park(waiting)

    def _release_key(self, lock: str) -> None:
        held = self._keys.get(lock)
        if held is None:
            return
        if held.queue:
            self._ready.append(held.queue.popleft())
            held.busy = True
        else:
            del self._keys[lock]

    def _make_ready_or_wait(self, waiting: Waiting) -> None:
        lock = self._lock_of(waiting.message)
        held = self._keys.get(lock)
        if held is None:
            self._keys[lock] = KeyQueue()
            self._ready.append(waiting)
        else:
            held.queue.append(waiting)

    # Taking work

    def _advance(self, now_ms: float) -> None:
        """Start what can be started, and the next commit if none is under way."""
        if self.stopped:
            return
        while self._start_work(now_ms):
            pass
        self._seal_if_idle(now_ms)
        self._plan_wake(now_ms)

    def _start_work(self, now_ms: float) -> bool:
        if not (self._queue or self._ready or self._retries):
            return False
        if self._pending.message_count >= self._limits.commit_messages_max:
            return False
        if len(self._awaiting) >= self._limits.open_calls_max:
            return False
        if self._suspect and not self._drop_suspect():
            return False
        off_loop = self._pace.off_loop(self.function)
        if self._running:
            exclusive = any(each.exclusive for each in self._running.values())
            room = self.function.concurrency or 10
            if exclusive or not off_loop or len(self._running) >= room:
                return False
        while self._retries and self._retries[0][0] <= now_ms:
            waiting = heappop(self._retries)[2]
            if self.function.order == "none":
                self._make_ready_or_wait(waiting)
            else:
                self._ready.append(waiting)
        size = self._batch_size()
        if self._ready:
            if self.function.batch is not False and self._ready[0].message.attempt > 1:
                size = 1  # A batch failed, and one of its messages is to blame.
            work = self._work([self._ready.popleft() for _ in range(min(size, len(self._ready)))])
        else:
            taken = self._take_from_queue(size, off_loop)
            if taken is None:
                return bool(self._queue)
            work = taken
        work.off_loop = off_loop
        work.exclusive = not off_loop
        self._running[work.id] = work
        self._load_or_run(work)
        return True

    def _drop_suspect(self) -> bool:
        if self._committing is not None or self._pending.rows:
            return False
        for key in self._suspect:
            self._cells.drop(key)
        self._suspect.clear()
        return True

    def _batch_size(self) -> int:
        limit = self.function.batch_size_max or self._limits.batch_size_max
        return max(1, self._pace.batch_size(self.function, limit))

    def _work(self, waiting: Sequence[Waiting] = (), spans: Sequence[Span] = ()) -> Work:
        self._work_number += 1
        return Work(self._work_number, spans=spans, waiting=waiting)

    def _take_from_queue(self, size: int, off_loop: bool) -> Work | None:
        """Take up to `size` messages; None if what was taken does not run (now)."""
        if not self._queue:
            return None
        chunk = self._queue[0]
        if chunk.batch.kind is Kind.CANCEL:
            self._take_cancels(self._take_span(chunk, chunk.stop - chunk.start))
            return None
        if off_loop or self._keys or chunk.batch.extras:
            return self._take_single(chunk, size, many_runs=off_loop)
        spans: list[Span] = []
        room = size
        while room and self._queue:
            chunk = self._queue[0]
            if chunk.batch.extras or chunk.batch.kind is Kind.CANCEL:
                break
            span = self._take_span(chunk, room)
            spans.append(span)
            room -= span.stop - span.start
        return self._work(spans=spans)

    def _take_span(self, chunk: Chunk, room: int) -> Span:
        start = chunk.start
        stop = min(chunk.stop, start + room)
        chunk.start = stop
        if stop == chunk.stop:
            self._queue.popleft()
        batch = chunk.batch
        last = batch.first + stop - 1
        self._inbox.taken[batch.source] = last
        self._pending.inbox[batch.source] = last
        self.queued -= stop - start
        return Span(chunk, start, stop)

    def _take_single(self, chunk: Chunk, size: int, *, many_runs: bool) -> Work | None:
        """Take messages as objects: keys may be busy, or several runs go on at once."""
        chunk, start, stop = self._take_span(chunk, size)
        runnable: list[Waiting] = []
        mine: set[str] = set()
        for index in range(start, stop):
            self._order += 1
            waiting = chunk.message(index, self._order)
            lock = self._lock_of(waiting.message)
            if lock in self._keys and lock not in mine:
                self._wait_behind(waiting)
                continue
            if many_runs:
                mine.add(lock)
                self._hold_key(waiting)
            runnable.append(waiting)
        if many_runs:
            # Others may commit before this run does, so its messages have to be on record.
            for waiting in runnable:
                self._park(waiting)
        self._pending.must_flush = True
        return self._work(runnable) if runnable else None

    def _take_cancels(self, span: Span) -> None:
        keys = span.chunk.batch.keys[span.start : span.stop]
        self._pending.effects.extend(Cancelled(self.name, timer) for timer in keys)
        self._note_timers([Cancelled(self.name, timer) for timer in keys])
        self._pending.must_flush = True

    def _load_or_run(self, work: Work) -> None:
        missing: Sequence[str] = ()
        if self.function.kind == "keyed":
            missing = self._cells.missing(work.keys)
        elif self.function.kind == "stateful":
            missing = self._cells.missing([""])
        repeated: list[str] = []
        for waiting in work.waiting:
            if waiting.message.extra.idempotency_key and not waiting.journal:
                repeated.append(_idempotency_id(waiting.message))
        if missing or repeated:
            self.effects.append(Load(work, missing, repeated))
        else:
            self.effects.append(Run(work))

    # Idempotency keys

    def _answer_repeated(self, work: Work, answers: Sequence[Record], now_ms: float) -> Work:
        """Take out of the work what was asked before; return what is left."""
        known = {
            each.id: _decode_answer(each.value)
            for each in answers
            if each.value is not None
            and (each.due_ms is None or each.due_ms > self.clock_ms(now_ms))
        }
        left: list[Waiting] = []
        for waiting in work.waiting:
            message = waiting.message
            if not message.extra.idempotency_key:
                left.append(waiting)
                continue
            id_ = _idempotency_id(message)
            answer = known.get(id_)
            if answer is not None:
                self._answer_from_record(waiting, answer, now_ms)
                self._release_key(self._lock_of(message))
            elif id_ in self._idempotent_open:
                first = self._idempotent_open[id_]
                if first[0] is waiting:
                    left.append(waiting)  # A retry of the one that runs.
                else:
                    first.append(waiting)
                    self._park(waiting)
                    self._release_key(self._lock_of(message))
            else:
                self._idempotent_open[id_] = [waiting]
                left.append(waiting)
        remaining = Work(work.id, waiting=left)
        remaining.off_loop, remaining.exclusive = work.off_loop, work.exclusive
        self._running[work.id] = remaining
        return remaining

    def _answer_from_record(self, waiting: Waiting, answer: Answer, now_ms: float) -> None:
        message = waiting.message
        error = answer.error
        if answer.digest != _digest(message):
            error = ErrorInfo(
                "idempotency_conflict",
                f"idempotency key {message.extra.idempotency_key!r} was used for another request",
            )
        # Without its key, so that the answer is not remembered a second time.
        waiting.message = msgspec.structs.replace(message, extra=Extra())
        self._consume(waiting, answer.result, error, now_ms)

    def _remember_answer(self, message: Message, value: Any, error: ErrorInfo | None) -> None:
        id_ = _idempotency_id(message)
        try:
            result = msgspec.Raw(_any.encode(value))
        except EncodeError:
            result = msgspec.Raw(b"\xc0")
        answer = Answer(_digest(message), result, error)
        due_ms = self._last_clock_ms + IDEMPOTENCY_TTL_MS
        self._pending.record(Record(IDEMPOTENCY, id_, _encode(answer), due_ms))
        for follower in self._idempotent_open.pop(id_, [])[1:]:
            self._answer_from_record(follower, answer, 0.0)

    # Calls that handlers await

    def call_opened(
        self,
        message_id: str,
        call: int,
        destination: str,
        key: str,
        payload: bytes,
        now_ms: float,
    ) -> None:
        """A waiting handler calls somebody: send it once, or give it the recorded result."""
        waiting = self._awaiting.get(message_id)
        if self.stopped or waiting is None:
            return
        digest = xxhash.xxh64_intdigest(f"{destination}\x00{key}\x00".encode() + payload)
        recorded = waiting.journal.get(call)
        if recorded is not None:
            if recorded.digest != digest:
                error = ErrorInfo(
                    "non_deterministic_call",
                    f"call {call} of {message_id} is not the call recorded before; a handler must "
                    "make the same calls in the same order when it is run again",
                )
                self.effects.append(Resume(message_id, call, recorded.result, error))
            elif recorded.done:
                self.effects.append(Resume(message_id, call, recorded.result, recorded.error))
            return
        message = waiting.message
        chain = [*message.extra.chain, str(Address(self.function.name, message.key))]
        outgoing = OutgoingCall(destination, key, payload, waiting.deadline_ms, Extra(chain=chain))
        waiting.journal[call] = Recorded(message_id, call, destination, 0, digest)
        self._pending.calls.append(outgoing)
        self._unsent_calls.append((outgoing, waiting, call))
        self._pending.must_flush = True
        self._advance(now_ms)

    def call_expired(self, message_id: str, call: int, error: ErrorInfo, now_ms: float) -> None:
        """Nobody answered in time: the handler gets the error, now and whenever it is rerun."""
        waiting = self._awaiting.get(message_id)
        recorded = waiting.journal.get(call) if waiting else None
        if waiting is None or recorded is None or recorded.done:
            return
        self._record_result(waiting, recorded, msgspec.Raw(b"\xc0"), error)
        self._advance(now_ms)

    def _take_replies(self, batch: Batch, skip: int) -> None:
        results = msgspec.msgpack.decode(batch.payloads, type=list[msgspec.Raw])
        refs = batch.refs or range(batch.refs_first, batch.refs_first + batch.count)
        callee = batch.source.removesuffix(REPLY_MARK)
        for index in range(skip, batch.count):
            found = self._calls.pop((callee, refs[index]), None)
            if found is None:
                continue
            waiting, call = found
            error = batch.errors.get(index) if batch.errors else None
            self._record_result(waiting, waiting.journal[call], results[index].copy(), error)
        last = batch.first + batch.count - 1
        self._inbox.taken[batch.source] = last
        self._pending.inbox[batch.source] = last
        self._pending.must_flush = True

    def _record_result(
        self, waiting: Waiting, recorded: Recorded, result: msgspec.Raw, error: ErrorInfo | None
    ) -> None:
        recorded.done, recorded.result, recorded.error = True, result, error
        message_id = waiting.message.id
        self._pending.record(Record(JOURNAL, f"{message_id}/{recorded.call}", _encode(recorded)))
        if message_id in self._awaiting:
            self.effects.append(Resume(message_id, recorded.call, result, error))

    # Timers

    def next_timer(self) -> str:
        """Return an id for a delayed message; unique for all owners of the partition."""
        self._timer_number += 1
        return f"{self.epoch}.{self._timer_number}"

    def _note_timers(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if type(effect) is Delayed and effect.due_ms < self._timer_horizon_ms:
                timer = Timer(effect.partition, effect.key, msgspec.Raw(effect.payload))
                self._timer_values[effect.timer] = timer
                heappush(self._timers, (effect.due_ms, effect.timer))
            elif type(effect) is Cancelled and effect.partition == self.name:
                self._timer_values.pop(effect.timer, None)

    def timers_loaded(self, records: Sequence[Record], until_ms: int, now_ms: float) -> None:
        """Timers of the near future are here; later ones stay in the store."""
        self._timers_loading = False
        for record in records:
            if record.value is None or record.due_ms is None:
                continue
            if record.id not in self._timer_values:
                self._timer_values[record.id] = _decode_timer(record.value)
                heappush(self._timers, (record.due_ms, record.id))
        if len(records) >= TIMERS_LOADED_MAX and records[-1].due_ms is not None:
            self._timer_horizon_ms = records[-1].due_ms
        else:
            self._timer_horizon_ms = until_ms
        self.woken(now_ms)

    def _load_timers(self, now_ms: float) -> None:
        clock_ms = self.clock_ms(now_ms)
        if not self._timers_loading and clock_ms + TIMER_HORIZON_MS / 2 > self._timer_horizon_ms:
            self._timers_loading = True
            # Timers set from here on are noted in memory; those before are what is loaded.
            until_ms = clock_ms + TIMER_HORIZON_MS
            self.effects.append(LoadTimers(until_ms, TIMERS_LOADED_MAX))

    def woken(self, now_ms: float) -> None:
        """Time has passed: fire what is due, retry what waited, forget who is long gone."""
        if self.stopped:
            return
        self._wake_ms = None
        clock_ms = self.clock_ms(now_ms)
        pending = self._pending
        while self._timers and self._timers[0][0] <= clock_ms:
            _, id_ = heappop(self._timers)
            timer = self._timer_values.pop(id_, None)
            if timer is None:
                continue  # It was cancelled.
            pending.effects.append(Outgoing(timer.partition, timer.key, bytes(timer.payload), None))
            pending.record(Record(TIMER, id_, None))
        self._load_timers(now_ms)
        for destination in self._outbox.entries:
            if is_client(destination):
                self._clients_seen_ms.setdefault(destination, now_ms)
        for client, seen_ms in list(self._clients_seen_ms.items()):
            if now_ms - seen_ms > CLIENT_TTL_MS:
                self.client_gone(client, now_ms)
        if pending.acknowledged:
            pending.must_flush = True
        self._advance(now_ms)

    def _plan_wake(self, now_ms: float) -> None:
        due: list[float] = []
        if self._timers:
            due.append(self._timers[0][0] - self._clock_base_ms)
        if self._retries:
            due.append(self._retries[0][0])
        if self._pending.acknowledged and self._committing is None:
            due.append(now_ms + HOUSEKEEPING_MS)
        due.append(now_ms + TIMER_HORIZON_MS / 2)
        wake_ms = min(due)
        if self._wake_ms is None or wake_ms < self._wake_ms:
            self._wake_ms = wake_ms
            self.effects.append(WakeAt(wake_ms))

    # Commits

    def clock_ms(self, now_ms: float) -> int:
        """The partition's own clock: starts where the last owner's ended, never goes back."""
        self._last_clock_ms = int(self._clock_base_ms + now_ms)
        return self._last_clock_ms

    def _seal_if_idle(self, now_ms: float) -> None:
        pending = self._pending
        if self._committing is not None or not pending.must_flush:
            return
        self._pending = Pending()
        self._index += 1
        commit = self._sealer.seal(pending, self.epoch, self._index, self.clock_ms(now_ms), now_ms)
        unsent, self._unsent_calls = self._unsent_calls, []
        for outgoing, waiting, call in unsent:
            if waiting.ended:
                continue  # The handler did not wait for it after all.
            recorded = waiting.journal[call]
            recorded.number = outgoing.number
            commit.records.append(
                Record(JOURNAL, f"{recorded.message_id}/{call}", _encode(recorded))
            )
            if not recorded.done:
                self._calls[recorded.destination, recorded.number] = (waiting, call)
        self._trim_egress(commit)
        self._committing = commit
        self.effects.append(Store(commit))

    def _trim_egress(self, commit: Commit) -> None:
        for entry in commit.egress:
            excess = self._egress_next[entry.egress] - self._limits.egress_max
            kept = self._egress_kept.setdefault(entry.egress, 0)
            if excess > kept:
                self.counters.egress_dropped += excess - kept
                self._egress_kept[entry.egress] = excess
                commit.egress_trimmed = {**commit.egress_trimmed, entry.egress: excess}

    def committed(self, outcome: Outcome, now_ms: float) -> None:
        """The store has answered: tell everybody, or stop."""
        commit = self._committing
        if self.stopped or commit is None:
            return
        if outcome is Outcome.UNKNOWN:
            self.effects.append(Store(commit))
            return
        if outcome is Outcome.FENCED or outcome is Outcome.GAP:
            self.stop(outcome)
            return
        self._committing = None
        effects = self.effects
        for entry in commit.outbox:
            self._outbox.keep(entry)
            effects.append(Deliver(entry))
        for source, upto in commit.inbox.items():
            target = self.name + (REPLY_MARK if source.endswith(REPLY_MARK) else "")
            effects.append(Acknowledge(Ack(target, source, upto)))
        if self._cells.over_bound():
            self._cells.shrink(self._keys_in_use())
        self._advance(now_ms)

    def _keys_in_use(self) -> set[str]:
        in_use = {row.key for row in self._pending.rows}  # So far they exist only in their cells.
        in_use.update(self._keys)
        for work in self._running.values():
            in_use.update(work.keys if self.function.kind == "keyed" else ("",))
        return in_use

    def stop(self, outcome: Outcome) -> None:
        """Forget everything: somebody else owns the partition."""
        self.stopped = True
        self._queue.clear()
        self._ready.clear()
        self._keys.clear()
        self.effects.append(Stop(outcome))

    @property
    def idle(self) -> bool:
        """Nothing runs, waits to run, or is being committed."""
        return not (
            self._running
            or self._queue
            or self._ready
            or self._committing is not None
            or self._pending.must_flush
        )


def _idempotency_id(message: Message) -> str:
    return f"{message.key}\x00{message.extra.idempotency_key}"


def _digest(message: Message) -> int:
    return int(xxhash.xxh64_intdigest(bytes(message.payload)))
