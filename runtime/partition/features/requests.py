"""Messages that people ask about while they are open: which there are, and an end for one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Literal, NamedTuple, get_args

from sublet.runtime.partition.commit.pending_commit import PendingCommit
from sublet.runtime.partition.lifecycle.cancellation import MESSAGES, Cancellation
from sublet.runtime.partition.lifecycle.parked_messages import ParkedMessages
from sublet.runtime.partition.lifecycle.run_gate import RunGate
from sublet.runtime.partition.model.step_machine import StepMachine
from sublet.runtime.partition.model.work import ColumnWork, QueuedMessage
from sublet.runtime.partition.queue.leased_work import LeasedWork
from sublet.runtime.partition.queue.work_queue import WorkQueue

Stage = Literal["running", "away", "queue"]
"""What becomes of an open message now, in the words of `sublet why`; in the order of listing."""
_STAGES: tuple[Stage, ...] = get_args(Stage)


class OpenMessage(NamedTuple):
    """A message that was taken and has not ended."""

    source: str
    number: int
    key: str
    attempt: int
    arrived_ms: float | None
    """None if it arrived at an earlier owner of the partition."""
    stage: Stage
    """`running`: its handler runs or awaits something here; `away`: a peer has it."""


class Requests:
    def __init__(
        self,
        steps: StepMachine,
        *,
        cancellation: Cancellation,
        pending: PendingCommit,
        parked: ParkedMessages,
        gate: RunGate,
        leased: LeasedWork,
        queue: WorkQueue,
    ) -> None:
        self._steps = steps
        self._cancellation = cancellation
        self._pending = pending
        self._parked = parked
        self._gate = gate
        self._leased = leased
        self._queue = queue

    def open(self, limit: int) -> list[OpenMessage]:
        """Return what was taken and has not ended: what runs, then what waits, up to a bound."""
        begun: dict[str, Stage] = dict.fromkeys(self._leased.message_ids(), "away")
        begun |= dict.fromkeys(self._gate.message_ids(), "running")
        parked = [
            OpenMessage(
                message.source,
                message.number,
                message.key,
                message.attempt,
                waiting.arrived_ms,
                begun.get(message.id, "queue"),
            )
            for waiting in self._parked.by_id.values()
            if (message := waiting.message).kind in MESSAGES
        ]
        for work in self._parked.lent.values():
            parked += _lent(work)
        parked.sort(key=lambda each: (_STAGES.index(each.stage), each.arrived_ms or 0.0))
        return [*parked[:limit], *islice(self._queued(), max(0, limit - len(parked)))]

    def _queued(self) -> Iterator[OpenMessage]:
        for chunk, index in self._queue.backlog.refs():
            batch = chunk.batch
            if batch.kind in MESSAGES:
                number = batch.first + index
                yield OpenMessage(
                    batch.source, number, batch.keys[index], 1, chunk.arrived_ms, "queue"
                )

    def cancel(self, source: str, number: int, now_ms: float) -> QueuedMessage | None:
        """End a message; return it, or None if it is not here any more, or never was.

        Whoever asks waits until it has `ended`, then for a commit (`flush`); whether it was
        `cancelled`, it says itself.
        """
        if self._steps.stopped or self._steps.leaving:
            return None
        waiting, interrupt = self._cancellation.cancel_by_hand(source, number, now_ms)
        if interrupt is not None:
            self._steps.effects.append(interrupt)
        self._steps.advance(now_ms)
        return waiting

    def flush(self, ticket: object, now_ms: float) -> None:
        """Settle the ticket when everything until now is stored."""
        self._pending.add_ticket(ticket)
        self._steps.advance(now_ms)


def _lent(work: ColumnWork) -> Iterator[OpenMessage]:
    columns = work.columns
    assert columns is not None
    numbers = columns.each_number()
    for start, stop, source, _, arrived_ms, *_ in work.origins:
        for place in range(start, stop):
            number, key = numbers[place], columns.keys[place]
            yield OpenMessage(source, number, key, 1, arrived_ms, "away")
