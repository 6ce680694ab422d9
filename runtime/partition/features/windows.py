"""How time goes on in a partition: markers count, windows close, watermarks are told downstream.

What is known of time is in `StreamProgress`; here it meets the messages that close windows and the
commit that tells of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from sublet.runtime.partition.commit.pending_commit import PendingCommit
from sublet.runtime.partition.lifecycle.parked_messages import ParkedMessages
from sublet.runtime.partition.model.clock import PartitionClock
from sublet.runtime.partition.model.effects import LoadWindows
from sublet.runtime.partition.model.step_machine import StepMachine
from sublet.runtime.partition.model.work import QueuedMessage, Span
from sublet.runtime.partition.queue.arrival_order import ArrivalOrder
from sublet.runtime.partition.queue.key_locks import KeyLocks
from sublet.runtime.partition.records.watermarks import (
    StreamProgress,
    closing_message,
    decode_marker,
)
from sublet.statestore.contract import Record


class Windows:
    def __init__(
        self,
        steps: StepMachine,
        *,
        progress: StreamProgress,
        pending: PendingCommit,
        locks: KeyLocks,
        arrivals: ArrivalOrder,
        parked: ParkedMessages,
        clock: PartitionClock,
    ) -> None:
        self._steps = steps
        self._progress = progress
        self._pending = pending
        self._locks = locks
        self._arrivals = arrivals
        self._parked = parked
        self._clock = clock

    def advance(self, now_ms: float) -> None:
        """Count markers whose time has come, close windows, and tell it downstream."""
        progress = self._progress
        self._pending.record_all(progress.advance(self._clock.at_ms(now_ms), now_ms))
        for timer, key in progress.closings():
            message = closing_message(timer, key, self._arrivals.next())
            progress.opened(message)
            deadline_ms = None if progress.slo_ms is None else now_ms + progress.slo_ms
            waiting = QueuedMessage(message, deadline_ms, arrived_ms=now_ms)
            self._locks.make_ready_or_wait(waiting)
        told = progress.tell()
        if told:
            self._pending.tell_watermarks(progress.downstream, told)
            self._pending.record_all(progress.changed_records())
        load = progress.load()
        if load is not None:
            self._steps.effects.append(LoadWindows(*load))

    def take_markers(self, span: Span, now_ms: float) -> None:
        """Take markers from their channel, in their place among its messages."""
        batch = span.chunk.batch
        if not self._progress.is_used:
            self._parked.first_marker_came()
        for index in range(span.start, span.stop):
            value_ms = decode_marker(span.chunk.raw(index))
            source = batch.keys[index] or batch.source
            self._progress.marker(source, value_ms, self._arrivals.next(), now_ms)

    def loaded(self, records: Sequence[Record], now_ms: float) -> None:
        """Windows that end soon are here; later ones stay in the store."""
        if not self._steps.stopped:
            self._steps.damaged.extend(self._progress.loaded(records))
            self._steps.advance(now_ms)
