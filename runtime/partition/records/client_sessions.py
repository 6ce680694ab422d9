"""The clients that a partition knows: when it heard of each, who has left, and who has expired.

Pure bookkeeping; records for the next commit are returned. A client is known from its first
message on, until it says goodbye or has been silent for `CLIENT_TTL_MS`. One that has left while
messages of its own are open is *gone*: these still run, but of its replies and numbers nothing is
kept. One that has *expired* has lost its replies for lack of room; that it was here is on record.
Who has to expire, `ClientDeparture` decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sublet.functions.address import is_client
from sublet.runtime.partition.commit.commit_participant import CommitParticipant
from sublet.runtime.partition.commit.pending_commit import CommitContents
from sublet.runtime.partition.model.clock import PartitionClock
from sublet.statestore.contract import EXPIRED, SILENT, Record

CLIENT_TTL_MS = 24 * 3_600_000
SILENCE_NOTED_MS = 120_000
"""After so long it is on record since when a client is silent: however often a partition has a new
owner, nobody is known for ever."""
GONE_CLIENTS_MAX = 10_000


class ClientSessions(CommitParticipant):
    """When each client was heard of, and which have left while messages of theirs are open."""

    __slots__ = (
        "_clock",
        "_look_ms",
        "_noted",
        "_overdue_ms",
        "expired",
        "gone",
        "seen_ms",
        "unanswered",
    )

    def __init__(
        self,
        sources: Iterable[str],
        now_ms: float,
        clock: PartitionClock,
        expired: Sequence[Record] = (),
        silent: Sequence[Record] = (),
    ) -> None:
        self._clock = clock
        self.unanswered = 0
        """Messages of clients that were taken and whose end is not stored: nobody has heard of
        it."""
        self.seen_ms: dict[str, float] = {source: now_ms for source in sources if is_client(source)}
        self._noted = {each.id for each in silent}
        """Those of whom it is on record since when they are silent."""
        self._look_ms = now_ms
        """Nobody else has been silent for long before."""
        self._overdue_ms = now_ms
        """Nobody is overdue before."""
        clock_ms = clock.at_ms(now_ms)
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
        return self._unnoted(client) if self._noted else None

    def forget(self, client: str) -> Record | None:
        """Forget when a client was heard of; return what has to be in the next commit."""
        self.seen_ms.pop(client, None)
        return self._unnoted(client)

    def _unnoted(self, client: str) -> Record | None:
        if client not in self._noted:
            return None
        self._noted.remove(client)
        return Record(SILENT, client, None)

    def note_silent(self, now_ms: float) -> list[Record]:
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
                due_ms = self._clock.at_ms(now_ms) - int(now_ms - seen_ms) + CLIENT_TTL_MS
                records.append(Record(SILENT, client, b"\xc0", due_ms))
            else:
                first_ms = min(first_ms, seen_ms)
        self._look_ms = first_ms + SILENCE_NOTED_MS
        return records

    def expire(self, client: str, now_ms: float) -> Record:
        """Remember that a client has lost its replies; return the record of it."""
        due_ms = self.expired[client] = self._clock.at_ms(now_ms) + CLIENT_TTL_MS
        return Record(EXPIRED, client, b"\xc0", due_ms)

    def forget_expired(self, now_ms: float) -> list[Record]:
        """Forget who has expired long ago; return the records that say so."""
        clock_ms = self._clock.at_ms(now_ms)
        over = [client for client, due_ms in self.expired.items() if due_ms <= clock_ms]
        for client in over:
            del self.expired[client]
        return [Record(EXPIRED, client, None) for client in over]

    def left(self, client: str) -> None:
        """Remember that a client has gone whose messages may still be open."""
        self.gone[client] = None
        if len(self.gone) > GONE_CLIENTS_MAX:
            del self.gone[next(iter(self.gone))]

    def contribute(self, contents: CommitContents) -> None:
        """Let a commit hold nothing of clients that have left."""
        if self.gone:
            self._leave_out_gone(contents)

    def _leave_out_gone(self, contents: CommitContents) -> None:
        gone = self.gone
        for source in [each for each in contents.inbox if each in gone]:
            del contents.inbox[source]
        contents.ahead.difference_update(gone)
        for destination in [each for each in contents.replies if each in gone]:
            del contents.replies[destination]
        if self.unanswered == contents.ended_of_clients:
            # No message of a client is open: they need not be remembered any longer.
            gone.clear()

    def stored(self, contents: CommitContents, now_ms: float) -> None:
        """Clients may hear of the ends of their messages."""
        self.unanswered -= contents.ended_of_clients

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
