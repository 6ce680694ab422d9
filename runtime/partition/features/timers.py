"""Delayed messages: set by handlers, sent when they are due, unless they are cancelled before.

The near future is in memory, the rest in the store (`TimerIndex`); more is read as time goes by.
"""

from __future__ import annotations

from collections.abc import Sequence

from sublet.functions.effects import Cancelled, Outgoing
from sublet.runtime.partition.commit.pending_commit import PendingCommit
from sublet.runtime.partition.model.clock import PartitionClock
from sublet.runtime.partition.model.effects import LoadTimers
from sublet.runtime.partition.model.ownership import Ownership
from sublet.runtime.partition.model.step_machine import StepMachine
from sublet.runtime.partition.model.work import Span
from sublet.runtime.partition.records.due_index import in_order
from sublet.runtime.partition.records.timers import TimerIndex
from sublet.statestore.contract import Record


class Timers:
    def __init__(
        self,
        steps: StepMachine,
        owner: Ownership,
        *,
        index: TimerIndex,
        pending: PendingCommit,
        clock: PartitionClock,
    ) -> None:
        self._steps = steps
        self._owner = owner
        self._index = index
        self._pending = pending
        self._clock = clock

    def next_id(self) -> str:
        """Return an id for a delayed message; unique for all owners of the partition, and behind
        those that were given before."""
        return f"{in_order(self._owner.epoch)}.{in_order(next(self._index.numbers))}"

    def load(self, now_ms: float) -> None:
        """Read the timers of the near future, if that is due."""
        until_ms = self._index.load_until_ms(self._clock.at_ms(now_ms))
        if until_ms is not None:
            self._steps.effects.append(LoadTimers(until_ms, self._index.loaded_max))

    def loaded(self, records: Sequence[Record], now_ms: float) -> None:
        """Timers of the near future are here; later ones stay in the store."""
        self._steps.damaged.extend(self._index.loaded(records))
        self._steps.woken(now_ms)

    def fire(self, now_ms: float) -> None:
        """Send what is due."""
        for id_, timer in self._index.fire(self._clock.at_ms(now_ms)):
            # As an effect, not as a record: the one that has set it may be in the same commit.
            cancelled = Cancelled(self._owner.partition, id_)
            payload = bytes(timer.payload)
            sent = Outgoing(timer.partition, timer.key, payload, None, timer.trace)
            self._pending.send([cancelled, sent], traced=bool(timer.trace))

    def cancel(self, span: Span) -> None:
        """Another partition has cancelled timers that are here."""
        keys = span.chunk.batch.keys[span.start : span.stop]
        effects = [Cancelled(self._owner.partition, each) for each in keys]
        self._index.note(effects)
        self._pending.send(effects)
