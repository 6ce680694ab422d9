"""The commit that a partition fills while the one before it is in flight.

Whoever changes something durable says so here, by a verb; the verb knows whether a commit has to
follow, or whether that can wait for the next one. Nothing is encoded before the commit is sealed:
then its contents go round the participants (`commit_participant`), and this begins anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from sublet.functions.address import is_client, is_pipeline
from sublet.functions.effects import Effect
from sublet.runtime.partition.model.channel_names import REPLY_MARK, reply_channel
from sublet.runtime.partition.model.work import Chunk, ColumnWork, QueuedMessage
from sublet.runtime.protocol.frames import ErrorInfo, Extra, Kind
from sublet.statestore.contract import EgressEntry, OutboxEntry, Record, StateRow


class OutgoingCall(msgspec.Struct):
    """A call that leaves with the commit that parks its caller."""

    partition: str
    key: str
    payload: bytes
    deadline_ms: float | None
    extra: Extra
    number: int = 0
    """Set when the commit is sealed."""


class Replies:
    """Replies to one caller, in the order in which they were made."""

    __slots__ = ("errors", "refs", "values")

    def __init__(self) -> None:
        self.refs: list[int] = []
        self.values: list[Any] = []
        self.errors: dict[int, ErrorInfo] = {}

    def add(self, ref: int, value: Any) -> None:
        self.refs.append(ref)
        self.values.append(value)

    def add_error(self, ref: int, error: ErrorInfo) -> None:
        self.errors[len(self.refs)] = error
        self.refs.append(ref)
        self.values.append(None)


class CommitContents:
    """What one commit holds, and what has to be known of it when it is stored."""

    __slots__ = (
        "acknowledged",
        "ahead",
        "answers",
        "calls",
        "cancelled_calls",
        "clock_ms",
        "due",
        "effects",
        "egress",
        "egress_trimmed",
        "ended",
        "ended_from",
        "ended_of_clients",
        "forgotten",
        "has_background",
        "inbox",
        "index",
        "markers",
        "message_count",
        "outbox",
        "preimages",
        "ran",
        "records",
        "replies",
        "rows",
        "runs",
        "sealed_ms",
        "tickets",
        "traced",
    )

    def __init__(self) -> None:
        self.message_count = 0
        self.ended = 0
        """Messages that have come to their end in it."""
        self.ended_from: dict[str, int] = {}
        """Of those, by the partition that has sent them."""
        self.ended_of_clients = 0
        """Those of them that clients wait for, who hear of nothing before the commit."""
        self.due: list[tuple[float | list[float | None], int, int]] = []
        """Deadlines of those that have one: of spans, with the rows that are meant. Whether they
        were kept is seen when it is stored."""
        self.rows: list[StateRow] = []
        self.runs = 0
        """Whose rows these are: one run has at most one row for each place."""
        self.ran: list[str] = []
        """Ids of the messages that ran, while they have to be told apart."""
        self.inbox: dict[str, int] = {}
        self.ahead: set[str] = set()
        """Sources of which other messages than before are done ahead of their position."""
        self.forgotten: list[str] = []
        self.acknowledged: dict[str, int] = {}
        self.effects: list[Effect] = []
        self.traced = False
        """Some message among the effects is sampled."""
        self.calls: list[OutgoingCall] = []
        self.cancelled_calls: dict[str, list[int]] = {}
        """Destination to the numbers of calls for whose replies nobody waits any more."""
        self.replies: dict[str, Replies] = {}
        self.markers: dict[str, list[int | None]] = {}
        """Partition to the watermarks that it is told, behind everything else that is sent."""
        self.records: list[Record] = []
        self.answers: list[tuple[str, object]] = []
        """Ids of idempotency records in it, with their answers: a load finds them only when it is
        stored."""
        self.tickets: list[object] = []
        """Whoever waits for this commit."""
        self.has_background = False
        """Some of its messages have no deadline to keep at all."""
        # From here on: known when it is sealed.
        self.index = 0
        self.clock_ms = 0
        """On the partition's clock."""
        self.sealed_ms = 0.0
        self.outbox: list[OutboxEntry] = []
        self.egress: list[EgressEntry] = []
        self.egress_trimmed: dict[str, int] = {}
        self.preimages: Sequence[str] = ()
        """Keys whose states have to be kept, as they are, before it is sent."""


class PendingCommit:
    """Gathers everything until `seal`."""

    __slots__ = ("_contents", "has_acknowledged", "message_count", "needs_commit", "row_count")

    def __init__(self) -> None:
        self._contents = CommitContents()
        self.message_count = 0
        """What counts towards the bound of messages in one commit."""
        self.row_count = 0
        self.has_acknowledged = False
        """Something may be deleted from the outbox, which is not urgent."""
        self.needs_commit = False
        """False while there is only housekeeping, which can wait for the next commit."""

    def seal(self) -> CommitContents:
        """Return what was gathered, and begin anew."""
        contents, self._contents = self._contents, CommitContents()
        contents.message_count = self.message_count
        self.message_count = self.row_count = 0
        self.has_acknowledged = self.needs_commit = False
        return contents

    def request_commit(self) -> None:
        """Let a commit follow, also if nothing is in it."""
        self.needs_commit = True

    def add_ticket(self, ticket: object) -> None:
        """Let somebody hear when everything until now is stored."""
        self._contents.tickets.append(ticket)
        self.needs_commit = True

    # What is asked before it is sealed

    @property
    def ended_of_clients(self) -> int:
        return self._contents.ended_of_clients

    def acknowledged_upto(self, destination: str) -> int:
        return self._contents.acknowledged.get(destination, 0)

    def keys_written(self) -> set[str]:
        """Return the keys whose newest states are stored by no commit yet."""
        return {row.key for row in self._contents.rows}

    # Messages

    def count_messages(self, count: int) -> None:
        """Count messages that are records in it."""
        self.message_count += count

    def consume(self, waiting: QueuedMessage, value: Any, error: ErrorInfo | None) -> None:
        """A message ends with its result, or with the error that is its answer."""
        message, contents = waiting.message, self._contents
        self.message_count += 1
        contents.ended += 1
        self.needs_commit = True
        if waiting.deadline_ms is not None:
            contents.due.append((waiting.deadline_ms, 0, 1))
        if is_client(message.source):
            contents.ended_of_clients += 1
        elif not is_pipeline(message.source):
            _count(contents.ended_from, message.source, 1)
        if message.kind is Kind.CALL:
            self.reply(message.source, message.number, value, error)

    def consume_span(self, chunk: Chunk, start: int, stop: int, values: Sequence[Any]) -> None:
        """Messages of a column end, each with its result."""
        batch, contents, count = chunk.batch, self._contents, stop - start
        if batch.kind is Kind.CALL:
            # Without a question that the chunk has answered: it is asked for every run.
            source = batch.source
            replies = self._replies_to(source if chunk.from_client else source + REPLY_MARK)
            replies.refs.extend(range(batch.first + start, batch.first + stop))
            replies.values.extend(values)
        if chunk.deadlines_ms is not None:
            contents.due.append((chunk.deadlines_ms, start, stop))
        if chunk.from_client:
            contents.ended_of_clients += count
        elif chunk.from_partition:
            _count(contents.ended_from, batch.source, count)
        self.message_count += count
        contents.ended += count
        self.needs_commit = True

    def consume_columns(self, work: ColumnWork, values: Sequence[Any]) -> None:
        """Messages that were lent as columns end, each with its result."""
        columns, contents = work.columns, self._contents
        assert columns is not None
        numbers = columns.each_number()
        for start, stop, source, kind, *_ in work.origins:
            if kind is Kind.CALL:
                replies = self._replies_to(reply_channel(source))
                replies.refs.extend(numbers[start:stop])
                replies.values.extend(values[start:stop])
            if is_client(source):
                contents.ended_of_clients += stop - start
            elif not is_pipeline(source):
                _count(contents.ended_from, source, stop - start)
        if any(each is not None for each in work.deadlines_ms):
            contents.due.append((list(work.deadlines_ms), 0, work.count))
        self.message_count += work.count
        contents.ended += work.count
        self.needs_commit = True

    def discard(self, chunk: Chunk, count: int) -> None:
        """Messages of a column end that nobody has to run, and nobody waits for."""
        contents = self._contents
        self.message_count += count
        contents.ended += count
        if chunk.from_client:
            contents.ended_of_clients += count
        elif chunk.from_partition:
            _count(contents.ended_from, chunk.batch.source, count)
        self.needs_commit = True

    def reply(self, source: str, number: int, value: Any, error: ErrorInfo | None) -> None:
        """Answer a message of a source; it goes with what else is in the commit."""
        replies = self._replies_to(reply_channel(source))
        if error is None:
            replies.add(number, value)
        else:
            replies.add_error(number, error)

    def _replies_to(self, destination: str) -> Replies:
        known = self._contents.replies
        replies = known.get(destination)
        if replies is None:
            replies = known[destination] = Replies()
        return replies

    # Channels

    def reach(self, source: str, upto: int) -> None:
        """All of a source's messages up to here are done, or on record."""
        self._contents.inbox[source] = upto
        self.needs_commit = True

    def reach_ahead(self, source: str) -> None:
        """Other messages than before are done ahead of a source's position."""
        self._contents.ahead.add(source)
        self.needs_commit = True

    def skip_to(self, source: str, upto: int) -> None:
        """Messages of a source are lost: where it goes on is stored with what follows."""
        self._contents.inbox[source] = upto

    def skip_ahead(self, source: str) -> None:
        """As `skip_to`, while earlier messages of the source are not done."""
        self._contents.ahead.add(source)

    def confirm(self, source: str, upto: int) -> None:
        """Ask the store whether it still knows how far a source's messages are done."""
        self._contents.inbox.setdefault(source, upto)
        self.needs_commit = True

    def forget_source(self, source: str) -> None:
        """Of a source's numbers, and of what it is owed, nothing is kept."""
        contents = self._contents
        contents.inbox.pop(source, None)
        contents.acknowledged.pop(source, None)
        contents.forgotten.append(source)
        self.has_acknowledged = bool(contents.acknowledged)
        self.needs_commit = True

    def acknowledge(self, destination: str, upto: int) -> None:
        """What a destination has taken need not be kept: housekeeping."""
        self._contents.acknowledged[destination] = upto
        self.has_acknowledged = True

    # What runs have changed and sent

    def add_run(
        self, rows: Sequence[StateRow], effects: Sequence[Effect], *, traced: bool = False
    ) -> None:
        """A run has changed these rows, and wants these effects."""
        contents = self._contents
        contents.rows.extend(rows)
        contents.runs += 1
        self.row_count += len(rows)
        if effects:
            contents.effects.extend(effects)
            if traced:
                contents.traced = True
        self.needs_commit = True

    def add_rows(self, rows: Sequence[StateRow]) -> None:
        """Rows follow from what a run has changed."""
        self._contents.rows.extend(rows)
        self.row_count += len(rows)

    def add_background(self) -> None:
        """What a run has done has no deadline to keep at all."""
        self._contents.has_background = True

    def note_ran(self, ids: Iterable[str]) -> None:
        """These messages ran, and it may matter whose commit it is."""
        self._contents.ran.extend(ids)

    def send(self, effects: Iterable[Effect], *, traced: bool = False) -> None:
        """Let effects leave that no run has had."""
        contents = self._contents
        contents.effects.extend(effects)
        if traced:
            contents.traced = True
        self.needs_commit = True

    def call(self, call: OutgoingCall) -> None:
        self._contents.calls.append(call)
        self.needs_commit = True

    def drop_calls(self, dropped: Collection[OutgoingCall]) -> None:
        """Let calls not leave that nobody waits for any more."""
        gone = {id(each) for each in dropped}
        contents = self._contents
        contents.calls = [each for each in contents.calls if id(each) not in gone]

    def cancel_call(self, destination: str, number: int) -> None:
        """Tell a callee that nobody waits for its reply any more."""
        self._contents.cancelled_calls.setdefault(destination, []).append(number)
        self.needs_commit = True

    def tell_watermarks(self, partitions: Iterable[str], watermarks: Sequence[int | None]) -> None:
        """Tell watermarks. The latest is enough; None is told behind the one before it."""
        markers = self._contents.markers
        for partition in partitions:
            told = [*markers.get(partition, ()), *watermarks]
            known = [each for each in told if each is not None][-1:]
            markers[partition] = [*known, None] if told[-1] is None else list(known)
        self.needs_commit = True

    # Records

    def record(self, record: Record) -> None:
        self._contents.records.append(record)
        self.needs_commit = True

    def record_all(self, records: Sequence[Record]) -> None:
        if records:
            self._contents.records.extend(records)
            self.needs_commit = True

    def tidy(self, record: Record) -> None:
        """Delete what nobody needs, when there is a commit anyway."""
        self._contents.records.append(record)

    def remember(self, answer: object, record: Record) -> None:
        """Record the answer to a request with an idempotency key."""
        self._contents.answers.append((record.id, answer))
        self._contents.records.append(record)
        self.needs_commit = True


def _count(counts: dict[str, int], name: str, count: int) -> None:
    counts[name] = counts.get(name, 0) + count
