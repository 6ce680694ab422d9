"""How far each source's messages are done, in the next commit.

A message is *taken* from its channel when the next commit holds its end, or itself as a record of
its own. Channels are taken in order, so one number says it all; what is taken *ahead* of earlier
messages is noted beside that number until those are taken, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from sublet.functions.address import is_pipeline
from sublet.runtime.partition.commit.commit_participant import CommitParticipant
from sublet.runtime.partition.commit.pending_commit import CommitContents, PendingCommit
from sublet.runtime.partition.records.channels import Inbox
from sublet.runtime.partition.records.client_sessions import ClientSessions
from sublet.runtime.partition.records.staged_batches import Staging
from sublet.runtime.protocol.frames import Batch
from sublet.statestore.contract import AHEAD, Record

_encode = msgspec.msgpack.Encoder().encode


class Positions(CommitParticipant):
    __slots__ = ("_gone", "_inbox", "_pending", "_staging")

    def __init__(
        self, inbox: Inbox, clients: ClientSessions, staging: Staging, pending: PendingCommit
    ) -> None:
        self._inbox = inbox
        self._gone = clients.gone
        """Of their numbers nothing is kept."""
        self._staging = staging
        self._pending = pending

    def took(self, source: str, upto: int) -> None:
        """All of a source's messages up to here are done, or on record."""
        if self._gone and source in self._gone:
            self._pending.request_commit()
            return
        inbox = self._inbox
        if source in inbox.ahead:
            self._pending.reach_ahead(source)
            reached = inbox.reach(source, upto)
        else:
            # What `reach` does where nothing was done ahead, as mostly.
            reached = inbox.reached[source] = upto
        self._pending.reach(source, reached)
        if self._staging.fed_rows and is_pipeline(source):
            self._pending.record_all(self._staging.reached(source, reached))

    def took_ahead(self, source: str, number: int) -> None:
        """One message is done, or on record, while earlier ones of its source may wait."""
        if self._gone and source in self._gone:
            self._pending.request_commit()
        elif self._inbox.reach_ahead(source, number):
            self._pending.reach_ahead(source)
        else:
            self.took(source, number)

    def took_some(self, source: str, numbers: Sequence[int]) -> None:
        """As `took_ahead`, of several messages at once, none of which a pipeline has sent."""
        if self._gone and source in self._gone:
            self._pending.request_commit()
            return
        inbox = self._inbox
        first, count = numbers[0], len(numbers)
        in_line = first == inbox.reached.get(source, 0) + 1 and numbers[-1] == first + count - 1
        if in_line and source not in inbox.ahead:
            self._pending.reach(source, inbox.reach(source, numbers[-1]))
            return
        reached = inbox.reach_some(source, numbers)
        self._pending.reach_ahead(source)
        if reached is not None:
            self._pending.reach(source, reached)

    def take_each(self, batch: Batch, skip: int) -> Iterator[int]:
        """Give the index of each message of a batch that is done at once, unless it was before;
        when the next one is asked for, it is taken."""
        source, first = batch.source, batch.first
        done = self._inbox.done_ahead(source, first, skip, batch.count) or ()
        for index in range(skip, batch.count):
            if index not in done:
                yield index
                self.took_ahead(source, first + index)
        self._pending.request_commit()

    def skipped(self, source: str, numbers: range) -> None:
        """Messages are lost, and nobody will send them: the next ones go on behind them."""
        inbox, upto = self._inbox, numbers[-1]
        inbox.received[source] = upto
        if inbox.reached.get(source, 0) < numbers[0] - 1:
            for number in numbers:
                inbox.reach_ahead(source, number)
            self._pending.skip_ahead(source)
            return
        if source in inbox.ahead:
            inbox.ahead[source].difference_update(numbers)
            self._pending.skip_ahead(source)
        self._pending.skip_to(source, inbox.reach(source, upto))

    def begin(self, source: str, first: int) -> None:
        """The first message of a new source has this number, and not 1."""
        self._inbox.begin(source, first)
        self._pending.reach(source, first - 1)

    def knows(self, source: str) -> bool:
        return self._inbox.knows(source)

    def forget(self, source: str) -> None:
        """Of a source's numbers nothing is kept any more; all its messages are done."""
        self._inbox.forget(source)
        self._pending.forget_source(source)

    def forget_client(self, client: str) -> None:
        """The same of a client, messages of which may be open."""
        if client in self._inbox.ahead:
            self._pending.record(Record(AHEAD, client, None))
        self.forget(client)

    def forget_refusal(self, source: str) -> None:
        """A source does not wait to be told anything."""
        self._inbox.refused.pop(source, None)

    # Commits

    def contribute(self, contents: CommitContents) -> None:
        """Record what was taken ahead, where that has changed."""
        if not contents.ahead:
            return
        ahead = self._inbox.ahead
        for source in sorted(contents.ahead):
            numbers = sorted(ahead.get(source, ()))
            value = _encode(numbers) if numbers else None
            contents.records.append(Record(AHEAD, source, value))
            if not numbers:
                ahead.pop(source, None)
