"""Rows of pipelines: staged by requests, sealed batch by batch, and fed into the queue.

What pipelines have brought is in `Staging`. A request is done at once, out of line; its answer
comes with the commit. Sealed rows become messages of a channel that the partition feeds to itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from sublet.runtime.partition.commit.pending_commit import PendingCommit
from sublet.runtime.partition.lifecycle.admission import Admission
from sublet.runtime.partition.model.clock import PartitionClock
from sublet.runtime.partition.model.corruption import damaged
from sublet.runtime.partition.model.effects import LoadStaged
from sublet.runtime.partition.model.step_machine import StepMachine
from sublet.runtime.partition.records.channels import Inbox
from sublet.runtime.partition.records.positions import Positions
from sublet.runtime.partition.records.staged_batches import Staging, requests_of
from sublet.runtime.protocol.frames import Batch
from sublet.statestore.contract import Record


class Pipelines:
    def __init__(
        self,
        steps: StepMachine,
        *,
        staging: Staging,
        inbox: Inbox,
        positions: Positions,
        pending: PendingCommit,
        admission: Admission,
        clock: PartitionClock,
    ) -> None:
        self.staging = staging
        self._steps = steps
        self._inbox = inbox
        self._positions = positions
        self._pending = pending
        self._admission = admission
        self._clock = clock

    def take(self, batch: Batch, skip: int, now_ms: float) -> None:
        """Do at once what a pipeline asks for; the answer comes with the commit."""
        requests, source = requests_of(batch), batch.source
        for index in self._positions.take_each(batch, skip):
            handled = self.staging.handle(requests[index], self._clock.at_ms(now_ms))
            self._pending.record_all(handled.records)
            if handled.error is not None and handled.error.code == "overloaded":
                self._admission.count("staged", 1)
            self._pending.reply(source, batch.first + index, handled.answer, handled.error)
            if handled.forgotten:
                self._positions.forget(handled.forgotten)
            if handled.begins is not None:
                self._positions.begin(*handled.begins)

    def feed(self, now_ms: float) -> None:
        """Put sealed rows into the queue, as far as they may stand there."""
        batches, wanted = self.staging.feed(self._clock.at_ms(now_ms))
        for batch in batches:
            skip = self._inbox.accept(batch.source, batch.first, batch.count)
            if 0 <= skip < batch.count:
                self._steps.line_up(batch, skip, now_ms)
            else:
                # They stay where they are, and so do all behind them.
                error = ValueError(f"row {self._inbox.expected(batch.source)} comes next")
                what = f"position of rows {batch.first} .. of {batch.source!r:.200}"
                self._steps.damaged.append(str(damaged(batch.target, what, error)))
        if wanted:
            self._steps.effects.append(LoadStaged(wanted))

    def loaded(self, ids: Sequence[str], records: Sequence[Record], now_ms: float) -> None:
        """The rows that `LoadStaged` asked for are here."""
        if not self._steps.stopped:
            self._steps.damaged.extend(self.staging.loaded(ids, records))
            self._steps.advance(now_ms)
