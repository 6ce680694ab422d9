"""What waits in a partition for its first run: how urgent it is, and what the next run takes.

Beside the `Backlog`, which knows the order of messages, stands what depends on the function: ranks
from costs and deadlines, runs that wait for more messages, runs of few keys. No effects: the
partition says when there is a turn, and what comes of the messages that it is given.

- `announce` says how urgent the most urgent message is, whenever that changes, until `begin`.
- `choose` takes messages: whole columns as `Work` that is ready to run, as long as nothing has to
  be known of single messages; otherwise which ones they are, to be taken `Singly`; or a `Span` of
  what keeps its place in line and is not run at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sublet.runtime.partition.model.effects import Ready
from sublet.runtime.partition.model.environment import WorkerEnvironment
from sublet.runtime.partition.model.step_machine import StepMachine
from sublet.runtime.partition.model.work import (
    Chunk,
    ColumnWork,
    Origin,
    QueuedMessage,
    Span,
    Work,
)
from sublet.runtime.partition.queue.backlog import IN_LINE, NOT_LENT, Backlog, MessageRef
from sublet.runtime.partition.queue.key_locks import KeyLocks
from sublet.runtime.partition.queue.load_tracker import LoadTracker
from sublet.runtime.partition.records.channels import Inbox
from sublet.runtime.protocol.frames import Kind
from sublet.runtime.protocol.messages import MessageColumns
from sublet.scheduler.batching import Batching
from sublet.scheduler.grouped_queue import GroupedQueue
from sublet.scheduler.orders import LAST_MS
from sublet.scheduler.pace import RUNS_AT_ONCE


class Singly(NamedTuple):
    """Messages to be looked at one by one."""

    refs: Sequence[MessageRef]
    spans: Sequence[Span] = ()
    """What they are together; without any, they were pulled out of their lines."""


class WorkQueue:
    def __init__(
        self,
        owner: StepMachine,
        locks: KeyLocks,
        inbox: Inbox,
        worker: WorkerEnvironment,
        load: LoadTracker,
        batching: Batching | None,
    ) -> None:
        """With `batching`, runs wait for more messages."""
        function, urgency = owner.function, worker.urgency
        self.backlog = Backlog(
            None if worker.backlog is None else load.changed,
            in_order=not urgency.order.by_deadline,
        )
        self.ready = locks.ready
        """What may run now, having waited by itself."""
        self.batching = batching
        self.announced: float | None = None
        """The rank that was told, until `begin` answers it."""
        self.gathering_until_ms: float | None = None
        """When the next run starts although more messages might come."""
        self._gathering_since_ms = 0.0
        """Since when the first message of the next run has been waiting, about."""
        self._gathering_from_ms: float | None = None
        """Since when a run could have begun that waits for more messages."""
        self._grouped: GroupedQueue[str, MessageRef] | None = None
        """The messages of the backlog by key, for functions that want runs of few keys."""
        if function.grouping:
            self._grouped = GroupedQueue(
                batch_size=function.batch_size
                or function.batch_size_max
                or worker.limits.batch_size_max,
                batch_wait_ms=0.0,
                executors_max=function.concurrency or RUNS_AT_ONCE,
            )
        self._name = owner.name
        self._function = function
        self._inbox = inbox
        self._urgency, self._live = urgency, worker.live
        self._lends = worker.lendable is not None
        self.load = load
        self._work_number = 0

    def __len__(self) -> int:
        """How many messages wait for a run."""
        return self.backlog.count + len(self.ready)

    def __bool__(self) -> bool:
        """Tell whether any does."""
        return self.backlog.count > 0 or bool(self.ready)

    def work(self, waiting: Sequence[QueuedMessage] = (), spans: Sequence[Span] = ()) -> Work:
        self._work_number += 1
        return Work(self._work_number, spans=spans, waiting=waiting)

    def column_work(
        self,
        columns: MessageColumns,
        deadlines_ms: Sequence[float | None],
        origins: Sequence[Origin],
    ) -> ColumnWork:
        self._work_number += 1
        return ColumnWork(self._work_number, columns, deadlines_ms, origins)

    def close(self) -> None:
        """Forget everything, for good."""
        self.load.close()
        self.backlog.clear()

    # Ranks

    def add(self, chunk: Chunk, fresh: int, now_ms: float) -> None:
        """Let a chunk of so many messages wait in its place."""
        batch, urgency, backlog = chunk.batch, self._urgency, self.backlog
        if not chunk.is_background:
            self._live.last_ms = now_ms
        if self.batching is not None:
            self.batching.arrived(fresh)
            if not backlog.count:
                self._gathering_since_ms = now_ms
        rank = urgency.rank(self._function, self._name, fresh, now_ms, chunk.earliest_ms)
        chunk.rank = rank
        if not urgency.order.by_deadline:
            chunk.urgent = None
            backlog.add(chunk, chunk.arrived_ms)
        else:
            # What the order puts behind everything else has no deadline to be kept any more.
            backlog.add(chunk, rank if rank >= LAST_MS else chunk.earliest_ms)
        if self._lends:
            self.load.arrived(chunk)
        if self._grouped is not None and batch.kind not in IN_LINE:
            for index in chunk.places():
                self._grouped.put(batch.keys[index], (chunk, index), now_ms)

    def is_more_urgent(self) -> bool:
        """Tell whether the backlog goes before those that are ready, as far as is known; some
        are."""
        if not self._urgency.order.by_deadline or self._grouped is not None:
            return False
        chunk, rank = self.backlog.first(), self.ready[0].rank
        return chunk is not None and rank is not None and chunk.rank < rank

    def announce(self, now_ms: float) -> Ready | None:
        """Return the rank of the most urgent message, if it is not known; there is at least
        one."""
        chunk, ready = self.backlog.first(), self.ready
        if ready:
            # They have been waiting since before the backlog.
            first = ready[0]
            if first.rank is None:
                due_ms = first.deadline_ms
                if due_ms is None:
                    due_ms = now_ms + self._urgency.patience_ms
                first.rank = self._urgency.rank(self._function, self._name, 1, now_ms, due_ms)
            rank, arrived_ms = first.rank, first.arrived_ms
            if arrived_ms is None:
                arrived_ms = now_ms
            if chunk is not None and chunk.rank < rank:
                rank = chunk.rank
        else:
            assert chunk is not None
            rank, arrived_ms = chunk.rank, chunk.arrived_ms
            if not self._urgency.order.by_deadline:
                # The first in line speaks for the most urgent one behind it.
                rank = self.backlog.least_rank()
        if rank == self.announced:
            return None
        self.announced = rank
        return Ready(rank, arrived_ms)

    def begin(self) -> None:
        """The turn that was announced has come."""
        if self._urgency.started is not None and self.announced is not None:
            self._urgency.started(self.announced)
        self.announced = None

    # Runs that wait for more messages

    def gathers(self, now_ms: float, batch_size: Callable[[], int]) -> bool:
        """Tell whether the next run should wait for more messages, and until when."""
        batching = self.batching
        if batching is None or self.announced is not None:
            return False
        queued = self.backlog.count
        wait_ms = batching.wait_ms(queued, now_ms - self._gathering_since_ms, now_ms)
        if wait_ms <= 0 or queued >= batch_size():
            return False
        chunk = self.backlog.first()
        assert chunk is not None
        start_by_ms = self._urgency.start_by_ms(self._function, queued, chunk.earliest_ms)
        until_ms = min(now_ms + wait_ms, start_by_ms)
        if until_ms <= now_ms:
            return False  # Also when it is too short for any clock.
        self.gathering_until_ms = until_ms
        if self._gathering_from_ms is None:
            self._gathering_from_ms = now_ms
        return True

    def gathered(self, work: Work, now_ms: float) -> None:
        """A run begins: note how long it has waited for more messages, where runs do."""
        if self._gathering_from_ms is not None:
            work.gathering_ms = now_ms - self._gathering_from_ms
            self._gathering_from_ms = None

    def took(self) -> None:
        """Count from here on how long those that are left wait for a run."""
        first = self.backlog.first()
        if first is not None:
            self._gathering_since_ms = first.arrived_ms

    # What a run takes

    def choose(
        self,
        size: int,
        now_ms: float,
        *,
        singly: bool,
        peers_only: bool,
        heads_max: int,
        running: int,
    ) -> Work | Singly | Span | None:
        """Take up to `size` messages, the most urgent first; None if there are none.

        `singly`: nothing may run as whole columns now; then at most `heads_max` are taken from the
        heads of lines. `peers_only`: messages of clients have to wait. `running` runs go on.
        """
        backlog, grouped = self.backlog, self._grouped
        marker = backlog.next_marker() if grouped is not None else None
        if grouped and marker is None:
            found = grouped.take(now_ms, running, size)
            refs = [ref for ref in found if backlog.take_out(*ref)]
            return Singly(refs) if refs else None
        chunk, is_pulled = (marker, False) if marker else self._next_chunk(size, peers_only)
        if chunk is None:
            return None
        if is_pulled:
            return Singly(backlog.pull(chunk, size))
        if chunk.batch.kind in IN_LINE:
            return backlog.take(chunk, chunk.stop - chunk.start)
        if singly or self.is_single(chunk, now_ms):
            spans = self._take_heads(chunk, min(size, max(1, heads_max)), peers_only)
            refs = [(each, index) for each, start, end in spans for index in range(start, end)]
            return Singly(refs, spans)
        rank = rank_last = chunk.rank
        arrived_ms, first = chunk.arrived_ms, chunk
        span = backlog.take(chunk, size)
        spans = [span]
        room = size - (span.stop - span.start)
        while room and backlog.count:
            chunk, is_pulled = self._next_chunk(room, peers_only)
            if chunk is None or is_pulled:
                break
            if chunk.batch.kind in IN_LINE or self.is_single(chunk, now_ms):
                break
            if not _goes_with(chunk, first):
                break
            if chunk.rank > rank_last:
                rank_last = chunk.rank
            span = backlog.take(chunk, room)
            spans.append(span)
            room -= span.stop - span.start
        work = self.work(spans=spans)
        work.rank, work.rank_last, work.arrived_ms = rank, rank_last, arrived_ms
        return work

    def _take_heads(self, head: Chunk, room: int, peers_only: bool) -> list[Span]:
        """Take messages from the heads of lines, most urgent first."""
        spans: list[Span] = []
        chunk: Chunk | None = head
        is_pulled = False
        while room and chunk is not None and not is_pulled and chunk.batch.kind not in IN_LINE:
            if not _goes_with(chunk, head):
                break
            span = self.backlog.take(chunk, room)
            spans.append(span)
            room -= span.stop - span.start
            chunk, is_pulled = self._next_chunk(room, peers_only)
        return spans

    def _next_chunk(self, room: int, peers_only: bool) -> tuple[Chunk | None, bool]:
        if peers_only:
            return self.backlog.next_of_peers(), False
        chunk, is_pulled = self.backlog.next(room)
        if chunk is not None and is_pulled and not self._inbox.may_go_ahead(chunk.batch.source):
            return self.backlog.next(room, pulls=False)
        return chunk, is_pulled

    def lend(self, parts: Sequence[tuple[Chunk, int]], *, in_order: bool) -> list[MessageRef]:
        """Take so many messages of each chunk, or what must run before them."""
        refs: list[MessageRef] = []
        for chunk, count in parts:
            # What was taken for the one before may have emptied it.
            is_lent = chunk.count and chunk.batch.kind not in NOT_LENT
            if is_lent and self._inbox.may_go_ahead(chunk.batch.source):
                refs += self.backlog.lend(chunk, count, in_order=in_order)
        return refs

    def lend_places(
        self, chunk: Chunk, places: Sequence[int], *, in_order: bool
    ) -> list[MessageRef]:
        """Take these messages of a chunk, and what must run before them."""
        if chunk.batch.kind in NOT_LENT or not self._inbox.may_go_ahead(chunk.batch.source):
            return []
        return self.backlog.lend_places(chunk, places, in_order=in_order)

    def is_single(self, chunk: Chunk, now_ms: float) -> bool:
        """Tell whether messages of the chunk have to be looked at one by one."""
        return bool(chunk.batch.extras) or (chunk.earliest_ms < now_ms and chunk.expires)


def _goes_with(chunk: Chunk, first: Chunk) -> bool:
    """Tell whether messages may run together: states are no messages, and what is urgent does not
    wait for the end of what is not."""
    is_state, is_first_state = chunk.batch.kind is Kind.ASSIGN, first.batch.kind is Kind.ASSIGN
    return is_state == is_first_state and chunk.is_background == first.is_background
