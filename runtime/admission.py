"""Whether a partition takes what arrives: room, gaps, and the clients that it knows.

Pure bookkeeping beside the partition's channels. A batch that is not taken is refused as a whole,
with a reason and, if it may come again, when. What has been said once to a source is not said
again for the batches that were already on their way behind a refused one.

- `Admission.refusal` is asked once for each batch of a client, before its messages are accepted.
  Batches of partitions have no such question: what they send is bounded where it comes from.
- A client is known from its first message on, until it says goodbye or has been silent for
  `CLIENT_TTL_MS`. Replies that it does not take bound what it may ask for; and where there is no
  room for more replies at all, whoever has been silent for `CLIENT_SILENT_MS` *expires* first: its
  replies and numbers are dropped, but not that it was here, which is on record. Whatever it sends
  under this name from then on is refused, so that nothing it repeats is done a second time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from sublet.functions.address import is_client
from sublet.functions.app import Function
from sublet.runtime.backlog import Backlog
from sublet.runtime.channels import AHEAD_MAX, Inbox, Outbox
from sublet.runtime.frames import Batch, ErrorInfo, Kind, Refused
from sublet.runtime.limits import Limits
from sublet.runtime.pending import Pending
from sublet.runtime.staging import Staging
from sublet.runtime.windows import SOURCES_MAX, StreamProgress
from sublet.runtime.work import Chunk
from sublet.scheduler.urgency import Urgency
from sublet.statestore.contract import EXPIRED, SILENT, Record

CLIENT_TTL_MS = 24 * 3_600_000
CLIENT_SILENT_MS = 60_000
"""A client that says nothing for so long loses its replies where there is no room for more."""
SILENCE_NOTED_MS = 120_000
"""After so long it is on record since when a client is silent: however often a partition has a new
owner, nobody is known for ever."""
OWED_BYTES_MAX = 128 * 1024 * 1024
"""Replies of a partition that clients have not taken."""
GONE_CLIENTS_MAX = 10_000
EXPIRED_CLIENTS_MAX = 10_000
"""Clients of a partition that have expired within `CLIENT_TTL_MS`; then no more do, and there is no
room for others instead."""
DONE_AT_ONCE = (Kind.WITHDRAW, Kind.STAGE)
"""What does not wait in the queue."""


class Clients:
    """When each client was heard of, and which have left while messages of theirs are open."""

    __slots__ = ("_look_ms", "_noted", "_overdue_ms", "expired", "gone", "seen_ms")

    def __init__(
        self,
        sources: Iterable[str],
        now_ms: float,
        clock_ms: int,
        expired: Sequence[Record] = (),
        silent: Sequence[Record] = (),
    ) -> None:
        self.seen_ms: dict[str, float] = {source: now_ms for source in sources if is_client(source)}
        self._noted = {each.id for each in silent}
        """Those of whom it is on record since when they are silent."""
        self._look_ms = now_ms
        """Nobody else has been silent for long before."""
        self._overdue_ms = now_ms
        """Nobody is overdue before."""
        for each in silent:
            left_ms = (each.due_ms or 0) - clock_ms
            self.seen_ms[each.id] = now_ms + min(left_ms, CLIENT_TTL_MS) - CLIENT_TTL_MS
        self.gone: dict[str, None] = {}
        """What they have sent still runs; of their replies and numbers nothing is kept."""
        self.expired: dict[str, int] = {each.id: each.due_ms or 0 for each in expired}
        """Who has lost replies, and until when that is remembered, on the partition's clock."""

    def heard(self, client: str, now_ms: float) -> Record | None:
        """A client says something; return what has to be in the next commit, if anything has."""
        self.seen_ms[client] = now_ms
        return self._unnoted(client)

    def forget(self, client: str) -> Record | None:
        """Forget when a client was heard of; return what has to be in the next commit."""
        self.seen_ms.pop(client, None)
        return self._unnoted(client)

    def _unnoted(self, client: str) -> Record | None:
        if client not in self._noted:
            return None
        self._noted.remove(client)
        return Record(SILENT, client, None)

    def note_silent(self, now_ms: float, clock_ms: int) -> list[Record]:
        """Return the records that say who is silent, and when it is to be forgotten."""
        records: list[Record] = []
        if now_ms < self._look_ms:
            return records
        first_ms = now_ms
        for client, seen_ms in self.seen_ms.items():
            if client in self._noted:
                continue
            if now_ms - seen_ms > SILENCE_NOTED_MS:
                self._noted.add(client)
                due_ms = clock_ms - int(now_ms - seen_ms) + CLIENT_TTL_MS
                records.append(Record(SILENT, client, b"\xc0", due_ms))
            else:
                first_ms = min(first_ms, seen_ms)
        self._look_ms = first_ms + SILENCE_NOTED_MS
        return records

    def expire(self, client: str, clock_ms: int) -> Record:
        """Remember that a client has lost its replies; return the record of it."""
        due_ms = self.expired[client] = clock_ms + CLIENT_TTL_MS
        return Record(EXPIRED, client, b"\xc0", due_ms)

    def forget_expired(self, clock_ms: int) -> list[Record]:
        """Forget who has expired long ago; return the records that say so."""
        over = [client for client, due_ms in self.expired.items() if due_ms <= clock_ms]
        for client in over:
            del self.expired[client]
        return [Record(EXPIRED, client, None) for client in over]

    def left(self, client: str) -> None:
        """Remember that a client has gone whose messages may still be open."""
        self.gone[client] = None
        if len(self.gone) > GONE_CLIENTS_MAX:
            del self.gone[next(iter(self.gone))]

    def leave_out_gone(self, pending: Pending, *, any_open: bool) -> None:
        """Let a commit hold nothing of clients that have left; without any open message of
        clients, they need not be remembered any longer."""
        gone = self.gone
        for source in [each for each in pending.inbox if each in gone]:
            del pending.inbox[source]
        pending.ahead.difference_update(gone)
        for destination in [each for each in pending.replies if each in gone]:
            del pending.replies[destination]
        if not any_open:
            gone.clear()

    def overdue(self, owed: Iterable[str], now_ms: float) -> list[str]:
        """Return who has been silent for too long.

        Who is owed something, and was never heard, counts from when it is first noticed."""
        if now_ms < self._overdue_ms:
            return []  # Partitions are woken often, and may know many clients.
        for destination in owed:
            if is_client(destination):
                self.seen_ms.setdefault(destination, now_ms)
        overdue, next_ms = [], now_ms + SILENCE_NOTED_MS
        for client, seen_ms in self.seen_ms.items():
            if now_ms - seen_ms > CLIENT_TTL_MS:
                overdue.append(client)
            else:
                next_ms = min(next_ms, seen_ms + CLIENT_TTL_MS)
        self._overdue_ms = next_ms
        return overdue


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
        expire: Callable[[str, float], None],
    ) -> None:
        """`expire` ends what is kept for a client that has been silent for long."""
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
        self._expire = expire

    def count(self, reason: str, messages: int) -> None:
        self.refusals[reason] = self.refusals.get(reason, 0) + messages

    def refused(self, batch: Batch, expected: int, error: ErrorInfo, reason: str) -> Refused:
        """Refuse what is new in a batch, from the expected message on; return what its sender is
        told.

        Said as often as it is asked for: the sender waits for an answer each time.
        """
        self.count(reason, batch.first + batch.count - expected)
        return self._tell(batch, expected, error)

    def gap(self, batch: Batch) -> Refused | None:
        """Messages before this batch are missing, or were refused: return what its sender is
        told, if it does not know."""
        told = self.told.get(batch.source)
        if told is not None and (batch.first > told or not is_client(batch.source)):
            # Those behind a refused batch were on their way already; and a partition that has
            # nothing earlier would send the same again at once: say it once.
            return None
        # A client that nobody knows here may be one that was forgotten, or one whose first messages
        # were refused while the partition was on its way: only the client itself can tell.
        expected = self._inbox.expected(batch.source)
        return self._tell(batch, expected, ErrorInfo("gap", f"expected message {expected}"))

    def expired(self, batch: Batch) -> Refused:
        """Refuse a batch of a client that has expired; what it has sent before, nobody knows."""
        self.count("expired", batch.count)
        text = f"{self._name} has dropped the replies of this client, which took none for long"
        return self._tell(batch, batch.first, ErrorInfo("session_expired", text))

    def _tell(self, batch: Batch, first: int, error: ErrorInfo) -> Refused:
        self.told[batch.source] = batch.first
        return Refused(batch.target, batch.source, first, error, self._epoch)

    def refusal(self, batch: Batch, now_ms: float) -> tuple[str, ErrorInfo] | None:
        """Return why there is no room now for a batch of a client, if there is none."""
        limits, outbox = self._limits, self._outbox
        if batch.kind in DONE_AT_ONCE:
            # Each is a number in the commits until all before it are done.
            if not self._inbox.may_go_ahead(batch.source):
                text = f"{self._name} has done {AHEAD_MAX} messages ahead of others of this client"
                return "ahead", ErrorInfo("overloaded", text, 50)
            if batch.kind is Kind.WITHDRAW:
                return None  # It makes room.
            if not self._staging.has_room_for(len(memoryview(batch.payloads))):
                text = f"{self._name} is storing as much as it may of what was staged"
                return "storing", ErrorInfo("overloaded", text, 20)
        elif (full := self._queue_full(batch)) is not None:
            return "queue", ErrorInfo("overloaded", full, 50)
        if outbox.message_count > limits.outbox_max:
            text = f"{self._name} waits for other partitions"
            return "outbox", ErrorInfo("overloaded", text, 100)
        owed = outbox.owed.get(batch.source)
        if owed is not None and (owed[0] > limits.client_credit or owed[1] > limits.link_bytes_max):
            text = f"{self._name} keeps replies for this client that it has not taken"
            return "replies", ErrorInfo("overloaded", text, 100)
        if (
            outbox.owed_count > limits.outbox_max or outbox.owed_bytes > OWED_BYTES_MAX
        ) and not self._makes_room(now_ms):
            text = f"{self._name} keeps too many replies that clients have not taken"
            return "replies", ErrorInfo("overloaded", text, 100)
        if batch.kind is Kind.MARKER and not self._progress.has_room_for(batch.keys):
            text = f"{self._name} knows {SOURCES_MAX} sources: the most"
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
    holes = chunk.holes or set()
    ahead = 0
    for index in range(chunk.start, chunk.stop):
        due_ms = chunk.deadline_ms(index)
        if index in holes:
            continue
        wait_ms = urgency.estimate_ms(function, ahead, due_ms or math.inf)
        if due_ms is None or now_ms + wait_ms <= due_ms:
            ahead += 1
            continue
        holes.add(index)
        left_ms = max(0, int(due_ms - now_ms))
        text = f"a reply would take about {wait_ms:.0f} ms, and is due in {left_ms} ms"
        found.append((index, ErrorInfo("infeasible", text, max(1, int(wait_ms) - left_ms))))
    while chunk.start in holes:
        holes.remove(chunk.start)
        chunk.start += 1
    chunk.holes = holes or None
    return found
