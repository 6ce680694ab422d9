"""Which messages of a batch that arrives are new, and whether a partition takes them.

Pure bookkeeping beside the partition's channels. No effects: what the sender is told is returned. A
batch that is not taken is refused as a whole, with a reason and, if it may come again, when. What
has been said once to a source is not said again for the batches that were already on their way
behind a refused one.

- Whether there is room for a batch of a client, `Backpressure` says, before it is accepted.
- What is here already is acknowledged again, as far as it is committed; if the store may have lost
  it, by the next commit.
- Whatever comes under the name of a client that has expired is refused, so that nothing it repeats
  is done a second time.
"""

from __future__ import annotations

from sublet.functions.address import CLIENT_MARK, is_client
from sublet.runtime.partition.commit.pending_commit import PendingCommit
from sublet.runtime.partition.lifecycle.backpressure import Backpressure
from sublet.runtime.partition.model.effects import Acknowledge, Counters, Refuse
from sublet.runtime.partition.model.ownership import Ownership
from sublet.runtime.partition.records.channels import AHEAD_MAX, Inbox
from sublet.runtime.partition.records.client_sessions import ClientSessions
from sublet.runtime.partition.records.positions import Positions
from sublet.runtime.protocol.frames import Ack, Batch, ErrorInfo, Kind, Refused

DONE_AT_ONCE = (Kind.CANCEL_CALL, Kind.STAGE)
"""What does not wait in the queue."""

Told = tuple[Refuse | Acknowledge, ...]
"""What the sender of a batch hears at once; nothing if it knows, or has to wait for a commit."""


def _some(told: Refuse | Acknowledge | None) -> Told:
    return () if told is None else (told,)


class Admission:
    """Says which batches have to come again later, and counts what was refused."""

    def __init__(
        self,
        owner: Ownership,
        *,
        inbox: Inbox,
        positions: Positions,
        clients: ClientSessions,
        backpressure: Backpressure,
        pending: PendingCommit,
        counters: Counters,
    ) -> None:
        self.refusals: dict[str, int] = {}
        """Messages refused, by reason."""
        self._owner = owner
        self._inbox = inbox
        self._positions = positions
        self._clients = clients
        self._backpressure = backpressure
        self._pending = pending
        self._counters = counters

    def count(self, reason: str, messages: int) -> None:
        self.refusals[reason] = self.refusals.get(reason, 0) + messages

    def accept(self, batch: Batch, now_ms: float) -> int | Told:
        """Accept what is new in a batch, and return how many messages before that are not; if
        nothing of it is taken, what its sender is told, unless it knows."""
        source = batch.source
        if source[:1] == CLIENT_MARK:
            clients = self._clients
            if clients.expired and source in clients.expired:
                return (self._refuse_expired(batch),)
            if (heard := clients.heard(source, now_ms)) is not None:
                self._pending.record(heard)
            if clients.gone:
                clients.gone.pop(source, None)
            if batch.kind is Kind.REPLY:
                return ()  # Nobody has called a client: there is nothing that it could answer.
            if batch.kind in DONE_AT_ONCE:
                refusal = self._refusal_out_of_line(batch, now_ms)
            else:
                refusal = self._backpressure.refusal(batch, now_ms)
            if refusal is not None:
                return self.refuse(batch, *refusal)
        elif batch.is_oldest:
            self._skip_to(batch)
        inbox = self._inbox
        skip = inbox.accept(source, batch.first, batch.count)
        if skip < 0:
            return _some(self._refuse_gap(batch))
        self._counters.duplicates += skip
        if skip >= batch.count:
            return _some(self._acknowledge_again(batch))
        if inbox.refused:
            inbox.refused.pop(source, None)
        return skip

    def refuse(self, batch: Batch, reason: str, error: ErrorInfo) -> Told:
        """Take nothing new from a batch; return what its sender is told.

        Said as often as it is asked for: the sender waits for an answer each time. Of a batch that
        a former owner has taken in part, that part is acknowledged: nobody else would.
        """
        expected = self._inbox.expected(batch.source)
        if batch.first > expected:
            return _some(self._refuse_gap(batch))
        again = self._acknowledge_again(batch) if batch.first < expected else None
        if batch.first + batch.count <= expected:
            return _some(again)
        fresh = batch.first + batch.count - expected
        self._counters.refused += fresh
        self.count(reason, fresh)
        refused = self._refused(batch, expected, error)
        return (refused,) if again is None else (again, refused)

    def refuse_leaving(self, batch: Batch) -> Refuse:
        """Take nothing: another worker is to own the partition."""
        owner = self._owner
        error = ErrorInfo("not_owner", f"{owner.partition} is moving to another worker")
        return Refuse(Refused(batch.target, batch.source, batch.first, error, owner.epoch))

    def _refusal_out_of_line(self, batch: Batch, now_ms: float) -> tuple[str, ErrorInfo] | None:
        # Each is a number in the commits until all before it are done.
        if not self._inbox.may_go_ahead(batch.source):
            name = self._owner.partition
            text = f"{name} has completed {AHEAD_MAX} messages of this client out of order"
            return "ahead", ErrorInfo("overloaded", text, 50)
        if batch.kind is Kind.CANCEL_CALL:
            return None  # It makes room.
        return self._backpressure.refusal(batch, now_ms)

    def _refuse_gap(self, batch: Batch) -> Refuse | None:
        """Messages before this batch are missing, or were refused."""
        told, from_client = self._inbox.refused.get(batch.source), is_client(batch.source)
        if told is not None and batch.first > told:
            # Those behind a refused batch were on their way already.
            if from_client:
                self._counters.refused += batch.count
                self.count("behind", batch.count)
            return None
        # A client that nobody knows here may be one that was forgotten, or one whose first messages
        # were refused while the partition was on its way: only the client itself can tell.
        expected = self._inbox.expected(batch.source)
        return self._refused(batch, expected, ErrorInfo("gap", f"expected message {expected}"))

    def _skip_to(self, batch: Batch) -> None:
        """Take what is missing before a batch for done: the store has lost that it was, and its
        sender has forgotten it."""
        source, inbox = batch.source, self._inbox
        missing = range(inbox.expected(source), batch.first)
        if not missing:
            return
        is_next = inbox.reached.get(source, 0) == inbox.received.get(source, 0)
        if is_next or (len(missing) < AHEAD_MAX and inbox.may_go_ahead(source)):
            self._positions.skipped(source, missing)
            self.count("lost", len(missing))
        # Otherwise not before the earlier ones are done: it will be said again.

    def _acknowledge_again(self, batch: Batch) -> Acknowledge | None:
        source, inbox, owner = batch.source, self._inbox, self._owner
        taken = inbox.taken.get(source, 0)
        if not taken:
            return None
        if owner.store_forgets:
            # Its sender would forget what the store may have lost here: a commit asks it first.
            self._pending.confirm(source, inbox.reached[source])
            return None
        return Acknowledge(Ack(batch.target, source, taken, None, owner.epoch))

    def _refuse_expired(self, batch: Batch) -> Refuse:
        """What a client that has expired has sent before, nobody knows."""
        self._counters.refused += batch.count
        self.count("expired", batch.count)
        text = "session expired: unacknowledged replies were discarded"
        return self._refused(batch, batch.first, ErrorInfo("session_expired", text))

    def _refused(self, batch: Batch, first: int, error: ErrorInfo) -> Refuse:
        self._inbox.refused[batch.source] = batch.first
        return Refuse(Refused(batch.target, batch.source, first, error, self._owner.epoch))
