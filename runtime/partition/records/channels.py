"""The two ends of a channel: what was taken from each source, what is owed to each destination.

Pure bookkeeping. A message is taken once, in order; it is kept by its sender until the receiver
has taken it durably.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from sublet.functions.address import CLIENT_MARK
from sublet.runtime.config.limits import Limits
from sublet.statestore.contract import OutboxEntry

AHEAD_MAX = 10_000
"""Messages of a channel that may be done ahead of others; each is a number in its commits."""
MESSAGES_MAX = Limits().outbox_max
OWED_BYTES_MAX = 128 * 1024 * 1024
"""Replies of a partition that clients have not taken."""


class Inbox:
    """How far each source's messages were received (in memory) and taken (durably)."""

    __slots__ = ("ahead", "reached", "received", "refused", "taken")

    def __init__(
        self, taken: Mapping[str, int], ahead: Mapping[str, Iterable[int]] | None = None
    ) -> None:
        self.taken = dict(taken)
        self.received = dict(taken)
        self.reached = dict(taken)
        """Up to where all are done or on record, at the latest with the next commit."""
        self.ahead: dict[str, set[int]] = {
            source: set(numbers) for source, numbers in (ahead or {}).items()
        }
        """Messages that were done before earlier ones of the same source."""
        self.refused: dict[str, int] = {}
        """Sources that know from which message on they have to send again, to the first of those
        that were refused."""

    def accept(self, source: str, first: int, count: int) -> int:
        """Return how many messages at the front of the batch are known already.

        `count` means that nothing is new. A negative number means that messages are missing
        before `first`; then nothing was accepted.
        """
        received = self.received.get(source, 0)
        if first > received + 1:
            return -1
        skip = received + 1 - first
        if skip >= count:
            return count
        self.received[source] = first + count - 1
        return skip

    def knows(self, source: str) -> bool:
        """Tell whether anything is known of a source, if only what was done ahead."""
        return source in self.received or source in self.ahead

    def expected(self, source: str) -> int:
        """Return the number of the next message that is new."""
        return self.received.get(source, 0) + 1

    def done_ahead(self, source: str, first: int, start: int, count: int) -> set[int] | None:
        """Return the places, from `start` on, of messages in a received batch that an earlier
        owner has done."""
        ahead = self.ahead.get(source)
        if not ahead:
            return None
        return {
            number - first for number in ahead if first + start <= number < first + count
        } or None

    def reach(self, source: str, upto: int) -> int:
        """All up to a number are done: return up to where, with those that were done ahead."""
        ahead = self.ahead.get(source)
        if ahead:
            while upto + 1 in ahead:
                upto += 1
                ahead.remove(upto)
            if upto > self.received.get(source, 0):
                # Done by an earlier owner, and not sent again yet: need not be.
                self.received[source] = upto
        self.reached[source] = upto
        return upto

    def may_go_ahead(self, source: str) -> bool:
        """Tell whether one more message may be done before earlier ones of its source."""
        return len(self.ahead.get(source, ())) < AHEAD_MAX

    def reach_ahead(self, source: str, number: int) -> bool:
        """One message is done; return whether others before it are not."""
        if number == self.reached.get(source, 0) + 1:
            return False
        self.ahead.setdefault(source, set()).add(number)
        return True

    def reach_some(self, source: str, numbers: Sequence[int]) -> int | None:
        """Messages are done; return up to where all are, or None if that has not changed."""
        reached = self.reached.get(source, 0)
        ahead = self.ahead.setdefault(source, set())
        ahead.update(numbers)
        return self.reach(source, reached) if reached + 1 in ahead else None

    def begin(self, source: str, first: int) -> None:
        """The first message of a new source has this number, and not 1."""
        self.received[source] = self.reached[source] = first - 1

    def forget(self, source: str) -> None:
        self.received.pop(source, None)
        self.taken.pop(source, None)
        self.reached.pop(source, None)
        self.ahead.pop(source, None)


class Outbox:
    """Batches that are committed and not yet acknowledged, by destination."""

    __slots__ = (
        "entries",
        "message_count",
        "messages_max",
        "owed",
        "owed_bytes",
        "owed_count",
        "sent",
    )

    def __init__(
        self,
        sent: Mapping[str, int],
        entries: Iterable[OutboxEntry],
        messages_max: int = MESSAGES_MAX,
    ) -> None:
        """Beyond `messages_max`, whoever sends something here has to wait."""
        self.messages_max = messages_max
        self.sent = dict(sent)
        self.entries: dict[str, deque[OutboxEntry]] = {}
        self.message_count = 0
        """Messages for partitions. Replies to clients are counted for each client by itself:
        one that takes none must not hinder others."""
        self.owed: dict[str, tuple[int, int]] = {}
        """Client to the replies that it has not taken: how many, and their bytes."""
        self.owed_count = 0
        self.owed_bytes = 0
        for entry in entries:
            self.keep(entry)

    @property
    def owes_too_much(self) -> bool:
        """Too many replies wait for clients to take them."""
        return self.owed_count > self.messages_max or self.owed_bytes > OWED_BYTES_MAX

    def number(self, destination: str, count: int) -> int:
        """Reserve numbers for `count` messages and return the first of them."""
        first = self.sent.get(destination, 0) + 1
        self.sent[destination] = first + count - 1
        return first

    def keep(self, entry: OutboxEntry) -> None:
        self.entries.setdefault(entry.destination, deque()).append(entry)
        self._count(entry, 1)

    def _count(self, entry: OutboxEntry, sign: int) -> None:
        destination, _, length, data = entry
        length *= sign
        if destination[:1] != CLIENT_MARK:
            self.message_count += length
            return
        added_bytes = sign * len(data)
        self.owed_count += length
        self.owed_bytes += added_bytes
        count, size_bytes = self.owed.get(destination, (0, 0))
        count += length
        if count:
            self.owed[destination] = (count, size_bytes + added_bytes)
        else:
            del self.owed[destination]

    def acknowledge(self, destination: str, upto: int) -> bool:
        """Drop what was taken; return whether anything was."""
        waiting = self.entries.get(destination)
        if not waiting:
            return False
        dropped = False
        while waiting and waiting[0].first + waiting[0].length - 1 <= upto:
            self._count(waiting.popleft(), -1)
            dropped = True
        if not waiting:
            del self.entries[destination]
        return dropped

    def forget(self, destination: str) -> None:
        for entry in self.entries.pop(destination, ()):
            self._count(entry, -1)
        self.sent.pop(destination, None)
