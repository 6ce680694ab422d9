"""Clients that leave: by their goodbye, by a long silence, or because there is no room.

Of a client that has left nothing is kept: neither its numbers nor the replies that it is owed. One
that has only been silent, where there is no room for more replies, *expires*: that it was here is
on record, and whatever it sends under this name from then on is refused, so that nothing it repeats
is done a second time.
"""

from __future__ import annotations

from sublet.runtime.partition.commit.pending_commit import PendingCommit
from sublet.runtime.partition.model.step_machine import StepMachine
from sublet.runtime.partition.queue.arrival_order import ArrivalOrder
from sublet.runtime.partition.records.channels import Outbox
from sublet.runtime.partition.records.client_sessions import ClientSessions
from sublet.runtime.partition.records.positions import Positions
from sublet.runtime.partition.records.watermarks import StreamProgress
from sublet.statestore.contract import EXPIRED, Record

CLIENT_SILENT_MS = 60_000
"""A client that says nothing for so long loses its replies where there is no room for more."""
EXPIRED_CLIENTS_MAX = 10_000
"""Clients of a partition that have expired within `CLIENT_TTL_MS`; then no more do, and there is no
room for others instead."""


class ClientDeparture:
    def __init__(
        self,
        steps: StepMachine,
        *,
        clients: ClientSessions,
        positions: Positions,
        outbox: Outbox,
        pending: PendingCommit,
        progress: StreamProgress,
        arrivals: ArrivalOrder,
    ) -> None:
        self._steps = steps
        self._clients = clients
        self._positions = positions
        self._outbox = outbox
        self._pending = pending
        self._progress = progress
        self._arrivals = arrivals

    def goodbye(self, client: str, now_ms: float) -> None:
        """Nobody will ask for the client's replies or repeat its messages."""
        if not self._steps.stopped and self._clients.expired.pop(client, None) is not None:
            self._pending.record(Record(EXPIRED, client, None))
            self._steps.advance(now_ms)
        self._forget(client, now_ms)

    def make_room(self, now_ms: float) -> bool:
        """Let clients expire that have been silent for long, until there is room for replies to
        others; return whether there is."""
        outbox, seen_ms = self._outbox, self._clients.seen_ms
        while outbox.owes_too_much:
            silent = min(outbox.owed, key=lambda client: seen_ms.get(client, now_ms))
            if now_ms - seen_ms.get(silent, now_ms) < CLIENT_SILENT_MS:
                return False
            if len(self._clients.expired) >= EXPIRED_CLIENTS_MAX:
                return False
            self._pending.record(self._clients.expire(silent, now_ms))
            self._forget(silent, now_ms)
        return True

    def time_passed(self, now_ms: float) -> None:
        """Forget who is long gone, and note who is silent."""
        for client in self._clients.overdue(self._outbox.entries, now_ms):
            self.goodbye(client, now_ms)
        self._pending.record_all(self._clients.note_silent(now_ms))
        self._pending.record_all(self._clients.forget_expired(now_ms))

    def _forget(self, client: str, now_ms: float) -> None:
        forgotten = self._clients.forget(client)
        self._positions.forget_refusal(client)
        if self._steps.stopped:
            return
        if forgotten is not None:
            self._pending.record(forgotten)
        self._progress.source_gone(client, self._arrivals.next(), now_ms)
        if self._positions.knows(client) or client in self._outbox.sent:
            self._positions.forget_client(client)
            self._outbox.forget(client)
            self._clients.left(client)
            self._steps.advance(now_ms)
