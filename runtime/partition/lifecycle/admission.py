"""Which messages of a batch that arrives are new, and whether a partition takes them.

Pure bookkeeping beside the partition's channels. No effects: what the sender is told is returned. A
batch that is not taken is refused as a whole, with a reason and, if it may come again, when. What
has been said once to a source is not said again for the batches that were already on their way
behind a refused one.

- Whether there is room is asked once for each batch of a client, before its messages are accepted.
  Batches of partitions have no such question: what they send is bounded where it comes from.
- What is here already is acknowledged again, as far as it is committed; if the store may have lost
  it, by the next commit.
- Replies that a client does not take bound what it may ask for; and where there is no room for more
  replies at all, whoever has been silent for `CLIENT_SILENT_MS` *expires* first: its replies and
  numbers are dropped, but not that it was here, which is on record. Whatever it sends under this
  name from then on is refused, so that nothing it repeats is done a second time.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from sublet.functions.address import is_client
from sublet.functions.app import Function
from sublet.runtime.config.limits import Limits
from sublet.runtime.partition.lifecycle.completion import MessageCompletion
from sublet.runtime.partition.model.effects import Acknowledge, Counters, Refuse
from sublet.runtime.partition.model.work import Chunk
from sublet.runtime.partition.queue.backlog import Backlog
from sublet.runtime.partition.records.channels import AHEAD_MAX, Inbox, Outbox
from sublet.runtime.partition.records.client_sessions import Clients
from sublet.runtime.partition.records.staged_batches import Staging
from sublet.runtime.partition.records.watermarks import SOURCES_MAX, StreamProgress
from sublet.runtime.protocol.frames import Ack, Batch, ErrorInfo, Kind, Refused
from sublet.scheduler.urgency import Urgency

CLIENT_SILENT_MS = 60_000
"""A client that says nothing for so long loses its replies where there is no room for more."""
OWED_BYTES_MAX = 128 * 1024 * 1024
"""Replies of a partition that clients have not taken."""
EXPIRED_CLIENTS_MAX = 10_000
"""Clients of a partition that have expired within `CLIENT_TTL_MS`; then no more do, and there is no
room for others instead."""
DONE_AT_ONCE = (Kind.CANCEL_CALL, Kind.STAGE)
"""What does not wait in the queue."""


class Admission:
    """Says which batches have to come again later, and counts what was refused."""

    def __init__(  # noqa: PLR0913  # All that may be full, each by its name.
        self,
        name: str,
        epoch: int,
        inbox: Inbox,
        outbox: Outbox,
        backlog: Backlog,
        limits: Limits,
        clients: Clients,
        progress: StreamProgress,
        staging: Staging,
        completion: MessageCompletion,
        counters: Counters,
        expire: Callable[[str, float], None],
        *,
        store_forgets: bool,
    ) -> None:
        """`expire` ends what is kept for a client that has been silent for long. A store that
        forgets may go back to older data: what is known here may then be gone."""
        self.refusals: dict[str, int] = {}
        """Messages refused, by reason."""
        self.told: dict[str, int] = {}
        """Sources that know from which message on they have to send again, to the first of those
        that were refused."""
        self._name = name
        self._epoch = epoch
        self._inbox = inbox
        self._outbox = outbox
        self._backlog = backlog
        self._limits = limits
        self._clients = clients
        self._progress = progress
        self._staging = staging
        self._completion = completion
        self._counters = counters
        self._expire = expire
        self._store_forgets = store_forgets

    def count(self, reason: str, messages: int) -> None:
        self.refusals[reason] = self.refusals.get(reason, 0) + messages

    def accept(self, batch: Batch, now_ms: float) -> int | Refuse | Acknowledge | None:
        """Accept what is new in a batch, and return how many messages before that are not; if
        nothing of it is taken, what its sender is told, unless it knows."""
        source = batch.source
        if is_client(source):
            if source in self._clients.expired:
                return self._refuse_expired(batch)
            if (heard := self._clients.heard(source, now_ms)) is not None:
                self._completion.pending.record(heard)
            self._clients.gone.pop(source, None)
            if batch.kind is Kind.REPLY:
                return None  # Nobody has called a client: there is nothing that it could answer.
            refusal = self._refusal(batch, now_ms)
            if refusal is not None:
                return self.refuse(batch, *refusal)
        elif batch.is_oldest:
            self._skip_to(batch)
        skip = self._inbox.accept(source, batch.first, batch.count)
        if skip < 0:
            return self._refuse_gap(batch)
        self._counters.duplicates += skip
        if skip >= batch.count:
            return self._acknowledge_again(batch)
        if self.told:
            self.told.pop(source, None)
        return skip

    def refuse(self, batch: Batch, reason: str, error: ErrorInfo) -> Refuse | Acknowledge | None:
        """Take nothing new from a batch; return what its sender is told.

        Said as often as it is asked for: the sender waits for an answer each time.
        """
        expected = self._inbox.expected(batch.source)
        if batch.first > expected:
            return self._refuse_gap(batch)
        if batch.first + batch.count <= expected:
            return self._acknowledge_again(batch)
        fresh = batch.first + batch.count - expected
        self._counters.refused += fresh
        self.count(reason, fresh)
        return self._tell(batch, expected, error)

    def _refuse_gap(self, batch: Batch) -> Refuse | None:
        """Messages before this batch are missing, or were refused."""
        told, from_client = self.told.get(batch.source), is_client(batch.source)
        if told is not None and batch.first > told:
            # Those behind a refused batch were on their way already.
            if from_client:
                self._counters.refused += batch.count
                self.count("behind", batch.count)
            return None
        # A client that nobody knows here may be one that was forgotten, or one whose first messages
        # were refused while the partition was on its way: only the client itself can tell.
        expected = self._inbox.expected(batch.source)
        return self._tell(batch, expected, ErrorInfo("gap", f"expected message {expected}"))

    def _skip_to(self, batch: Batch) -> None:
        """Take what is missing before a batch for done: the store has lost that it was, and its
        sender has forgotten it."""
        source, inbox = batch.source, self._inbox
        missing = range(inbox.expected(source), batch.first)
        if not missing:
            return
        if inbox.reached.get(source, 0) == inbox.received.get(source, 0):
            inbox.received[source] = missing[-1]
            inbox.ahead.get(source, set()).difference_update(missing)
            self._completion.took(source, missing[-1])
        elif len(missing) < AHEAD_MAX and inbox.may_go_ahead(source):
            inbox.received[source] = missing[-1]
            for number in missing:
                self._completion.took_ahead(source, number)
        else:
            return  # Not before the earlier ones are done: it will be said again.
        self.count("lost", len(missing))

    def _acknowledge_again(self, batch: Batch) -> Acknowledge | None:
        taken, pending = self._inbox.taken.get(batch.source, 0), self._completion.pending
        if not taken:
            return None
        if self._store_forgets:
            # Its sender would forget what the store may have lost here: a commit asks it first.
            pending.inbox.setdefault(batch.source, self._inbox.reached[batch.source])
            pending.needs_commit = True
            return None
        return Acknowledge(Ack(batch.target, batch.source, taken, None, self._epoch))

    def _refuse_expired(self, batch: Batch) -> Refuse:
        """What a client that has expired has sent before, nobody knows."""
        self._counters.refused += batch.count
        self.count("expired", batch.count)
        text = "session expired: unacknowledged replies were discarded"
        return self._tell(batch, batch.first, ErrorInfo("session_expired", text))

    def _tell(self, batch: Batch, first: int, error: ErrorInfo) -> Refuse:
        self.told[batch.source] = batch.first
        return Refuse(Refused(batch.target, batch.source, first, error, self._epoch))

    def _refusal(self, batch: Batch, now_ms: float) -> tuple[str, ErrorInfo] | None:
        """Return why there is no room now for a batch of a client, if there is none."""
        limits, outbox = self._limits, self._outbox
        if batch.kind in DONE_AT_ONCE:
            # Each is a number in the commits until all before it are done.
            if not self._inbox.may_go_ahead(batch.source):
                text = (
                    f"{self._name} has completed {AHEAD_MAX} messages of this client out of order"
                )
                return "ahead", ErrorInfo("overloaded", text, 50)
            if batch.kind is Kind.CANCEL_CALL:
                return None  # It makes room.
            if not self._staging.has_room_for(len(memoryview(batch.payloads))):
                text = f"{self._name} is already storing as many staged rows as allowed"
                return "storing", ErrorInfo("overloaded", text, 20)
        elif (full := self._queue_full(batch)) is not None:
            return "queue", ErrorInfo("overloaded", full, 50)
        if outbox.message_count > limits.outbox_max:
            text = f"{self._name} has too many undelivered messages to other partitions"
            return "outbox", ErrorInfo("overloaded", text, 100)
        owed = outbox.owed.get(batch.source)
        if owed is not None and (owed[0] > limits.client_credit or owed[1] > limits.link_bytes_max):
            text = f"{self._name} holds too many unacknowledged replies for this client"
            return "replies", ErrorInfo("overloaded", text, 100)
        if (
            outbox.owed_count > limits.outbox_max or outbox.owed_bytes > OWED_BYTES_MAX
        ) and not self._makes_room(now_ms):
            text = f"{self._name} holds too many unacknowledged replies"
            return "replies", ErrorInfo("overloaded", text, 100)
        if batch.kind is Kind.MARKER and not self._progress.has_room_for(batch.keys):
            text = f"{self._name} has {SOURCES_MAX} sources, the maximum"
            return "sources", ErrorInfo("rejected", text)
        return None

    def _queue_full(self, batch: Batch) -> str | None:
        backlog, limits = self._backlog, self._limits
        # Rows of pipelines are there because there is room: nobody else has to wait for them.
        queued = backlog.count - self._staging.fed_rows
        if queued + batch.count > limits.queue_max and queued > 0:
            return f"the queue of {self._name} is full"
        if backlog.size_bytes > limits.queue_bytes_max:
            return f"the queue of {self._name} holds {backlog.size_bytes} bytes"
        return None

    def _makes_room(self, now_ms: float) -> bool:
        """Let clients expire that have been silent for long, before others have to wait."""
        outbox, limits, seen_ms = self._outbox, self._limits, self._clients.seen_ms
        while outbox.owed_count > limits.outbox_max or outbox.owed_bytes > OWED_BYTES_MAX:
            silent = min(outbox.owed, key=lambda client: seen_ms.get(client, now_ms))
            if now_ms - seen_ms.get(silent, now_ms) < CLIENT_SILENT_MS:
                return False
            if len(self._clients.expired) >= EXPIRED_CLIENTS_MAX:
                return False
            self._expire(silent, now_ms)
        return True


def infeasible(
    chunk: Chunk, function: Function, urgency: Urgency, now_ms: float
) -> list[tuple[int, ErrorInfo]]:
    """Return the places of calls that cannot be in time by what waits already, and why.

    They are taken out of the chunk; the caller answers them at once.
    """
    if chunk.batch.kind is not Kind.CALL or chunk.deadlines_ms is None:
        return []
    found: list[tuple[int, ErrorInfo]] = []
    removed_indexes = chunk.removed_indexes or set()
    ahead = 0
    for index in range(chunk.start, chunk.stop):
        due_ms = chunk.deadline_ms(index)
        if index in removed_indexes:
            continue
        wait_ms = urgency.estimate_ms(function, ahead, due_ms or math.inf)
        if due_ms is None or now_ms + wait_ms <= due_ms:
            ahead += 1
            continue
        removed_indexes.add(index)
        left_ms = max(0, int(due_ms - now_ms))
        text = f"a reply would take about {wait_ms:.0f} ms, and is due in {left_ms} ms"
        found.append((index, ErrorInfo("infeasible", text, max(1, int(wait_ms) - left_ms))))
    while chunk.start in removed_indexes:
        removed_indexes.remove(chunk.start)
        chunk.start += 1
    chunk.removed_indexes = removed_indexes or None
    return found
