"""Calls and side effects that handlers await: each is made once and answered once, also if the
handler is run again."""

from __future__ import annotations

import msgspec

from sublet.runtime.partition.commit.pending_commit import OutgoingCall
from sublet.runtime.partition.model.effects import Resume
from sublet.runtime.partition.model.step_machine import StepMachine
from sublet.runtime.partition.queue.awaiting_handlers import AwaitingHandlers
from sublet.runtime.partition.records.call_journal import CallJournal
from sublet.runtime.partition.records.positions import Positions
from sublet.runtime.protocol.frames import Batch, ErrorInfo


class Calls:
    def __init__(
        self,
        steps: StepMachine,
        *,
        journal: CallJournal,
        awaiting: AwaitingHandlers,
        positions: Positions,
    ) -> None:
        self._steps = steps
        self._journal = journal
        self._awaiting = awaiting
        self._positions = positions

    def opened(
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
        waiting = self._awaiting.by_id.get(message_id)
        if self._steps.stopped or waiting is None:
            return
        made = self._journal.make(waiting, call, destination, key, payload, now_ms, timeout_ms)
        if type(made) is OutgoingCall:
            self._steps.advance(now_ms)
        elif type(made) is Resume:
            self._steps.effects.append(made)

    def expired(self, message_id: str, call: int, error: ErrorInfo, now_ms: float) -> None:
        """Nobody answered in time: the handler gets the error, now and whenever it is rerun."""
        waiting = self._awaiting.by_id.get(message_id)
        if self._steps.stopped or waiting is None:
            return
        resumed = self._journal.expired(waiting, call, error)
        if resumed is not None:
            self._steps.effects.append(resumed)
            self._steps.advance(now_ms)

    def is_new(self, message_id: str, call: int) -> bool:
        """Tell whether a waiting handler has not made a call before, in no run of it."""
        waiting = self._awaiting.by_id.get(message_id)
        return waiting is not None and call not in waiting.journal

    def take_replies(self, batch: Batch, skip: int) -> None:
        """Give waiting handlers the results that have come."""
        for resumed in self._journal.replies(batch, skip):
            if resumed.message_id in self._awaiting.by_id:
                self._steps.effects.append(resumed)
        self._positions.took(batch.source, batch.first + batch.count - 1)

    # Side effects

    def begin(self, message_id: str, name: str) -> None:
        """A waiting handler is about to do a side effect: let it, or give it the recorded result.

        On a partition that leaves it waits in vain, and is run by the next owner.
        """
        waiting = self._awaiting.by_id.get(message_id)
        if self._steps.stopped or self._steps.leaving or waiting is None:
            return
        begun = self._journal.begin(waiting, name)
        if begun is not None:
            self._steps.effects.append(begun)

    def performed(
        self,
        message_id: str,
        name: str,
        result: msgspec.Raw,
        error: ErrorInfo | None,
        now_ms: float,
    ) -> None:
        """A handler has done a side effect; it goes on when the result is stored."""
        waiting = self._awaiting.by_id.get(message_id)
        if self._steps.stopped or waiting is None:
            return
        resumed = self._journal.performed(waiting, name, result, error)
        if resumed is not None:
            self._steps.effects.append(resumed)
        self._steps.advance(now_ms)

    def stored(self) -> None:
        """Tell handlers that go on because the results of their side effects are stored."""
        told, self._journal.told = self._journal.told, []
        for resumed in told:
            if resumed.message_id in self._awaiting.by_id:
                self._steps.effects.append(resumed)
