"""Messages that are on record by themselves, since the positions of their channels go on without
them: those that wait for a retry, a call, a busy key, or run beside others.

Whatever belongs to a message that was taken by itself is noted here when it is put on record, and
when it ends: what watermarks wait for, which rows of a pipeline have run, the journal of its calls.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sublet.functions.address import is_pipeline
from sublet.runtime.partition.commit.pending_commit import PendingCommit
from sublet.runtime.partition.model.effects import Counters
from sublet.runtime.partition.model.work import ColumnWork, QueuedMessage
from sublet.runtime.partition.queue.load_tracker import LoadTracker
from sublet.runtime.partition.records.call_journal import CallJournal
from sublet.runtime.partition.records.staged_batches import Staging
from sublet.runtime.partition.records.watermarks import StreamProgress
from sublet.runtime.protocol.frames import Kind
from sublet.runtime.protocol.messages import LENT_MARK
from sublet.statestore.contract import PARKED, Record

_encode = msgspec.msgpack.Encoder().encode


class ParkedMessages:
    __slots__ = (
        "_calls",
        "_counters",
        "_load",
        "_pending",
        "_progress",
        "_staging",
        "by_id",
        "lent",
    )

    def __init__(
        self,
        *,
        pending: PendingCommit,
        progress: StreamProgress,
        staging: Staging,
        calls: CallJournal,
        load: LoadTracker,
        counters: Counters,
    ) -> None:
        self.by_id: dict[str, QueuedMessage] = {}
        self.lent: dict[str, ColumnWork] = {}
        """What is lent and on record as columns, by the id of the record."""
        self._pending = pending
        self._progress = progress
        self._staging = staging
        self._calls = calls
        self._load = load
        self._counters = counters

    def recover(self, waiting: QueuedMessage) -> None:
        """An earlier owner has put the message on record."""
        message = waiting.message
        self.by_id[message.id] = waiting
        if self._progress.is_used:
            self._progress.opened(message)
        self.began(waiting)

    def began(self, waiting: QueuedMessage) -> None:
        """A message is about to run whose position counts already. It may be put back: until it has
        come to an end, a row of a pipeline is not told as taken."""
        message = waiting.message
        if is_pipeline(message.source) and message.attempt == 1:
            self._staging.parked(message.source, message.number)

    def park(self, waiting: QueuedMessage, *, anew: bool = False) -> None:
        """Put the message itself into the commit; `anew` if it differs from what is on record."""
        if waiting.parked and not anew:
            return
        message = waiting.message
        if not waiting.parked:
            self._counters.parked += 1
            if self._progress.is_used:
                self._progress.opened(message)
            if message.kind is Kind.MARKER:
                self._pending.record(self._progress.closed(message))
        waiting.parked = True
        self.by_id[message.id] = waiting
        if is_pipeline(message.source):
            note = self._staging.parked if message.attempt == 1 else self._staging.unparked
            note(message.source, message.number)
        self._pending.record(Record(PARKED, message.id, _encode(message)))

    def retried(self, waiting: QueuedMessage) -> None:
        """Put the message on record for another attempt, without what is not to be repeated."""
        if waiting.journal:
            self._calls.tried(waiting)
        self.park(waiting, anew=True)

    def park_waiter(self, waiting: QueuedMessage) -> None:
        """Put a message on record that waits for a busy key: what waits counts in the commit."""
        self._pending.count_messages(1)
        self.park(waiting)

    # Columns

    def keeps_columns(self, source: str) -> bool:
        """Tell whether messages of a source may be on record together: nobody has to know when each
        of them ends."""
        return not self._progress.is_used and not is_pipeline(source)

    def park_columns(self, work: ColumnWork) -> None:
        """Put messages that are lent together into the commit, as one record."""
        assert work.columns is not None
        self._counters.parked += work.count
        work.record_id = id_ = f"{LENT_MARK}{work.columns.first_id}"
        self.lent[id_] = work
        work.on_split = self._split
        self._pending.record(Record(PARKED, id_, _encode(work.columns)))

    def columns_ended(self, work: ColumnWork) -> None:
        """All messages of a lent work have ended."""
        assert work.columns is not None
        self._forget_columns(work)

    def _forget_columns(self, work: ColumnWork) -> None:
        del self.lent[work.record_id]
        self._pending.record(Record(PARKED, work.record_id, None))

    def _split(self, work: ColumnWork, messages: Sequence[QueuedMessage]) -> None:
        """Put messages on record by themselves that were on record together."""
        self._forget_columns(work)
        for waiting in messages:
            message = waiting.message
            waiting.parked = True
            self.by_id[message.id] = waiting
            self._pending.record(Record(PARKED, message.id, _encode(message)))

    def find(self, source: str, number: int) -> QueuedMessage | None:
        """Return a message that is on record; None if it is not. Those that were on record together
        with it are by themselves from now on."""
        found = self.by_id.get(f"{source}:{number}")
        if found is not None:
            return found
        for work in self.lent.values():
            place = None if work.columns is None else work.columns.place_of(source, number)
            if place is not None:
                return work.waiting[place]
        return None

    def count_lent(self, count: int) -> None:
        """So many messages were put on record to run elsewhere: they count in the commit."""
        self._pending.count_messages(count)

    def ended(self, waiting: QueuedMessage) -> None:
        """A message that was taken by itself has ended, on record or not."""
        message = waiting.message
        if waiting.parked:
            self._pending.record(Record(PARKED, message.id, None))
            self.by_id.pop(message.id, None)
        elif message.kind is Kind.MARKER:
            self._pending.record(self._progress.closed(message))
        if is_pipeline(message.source):
            self._staging.unparked(message.source, message.number)
        if self._progress.is_used:
            self._progress.ended(message)
            self._counters.windows_ended += message.kind is Kind.MARKER
        waiting.ended = True
        if waiting.entry is not None:
            self._load.untrack_message(waiting)
        if waiting.journal:
            self._calls.ended(waiting)

    def first_marker_came(self) -> None:
        """Until now nobody had to know what is open."""
        for work in tuple(self.lent.values()):
            work.waiting  # noqa: B018  # Each has to be known by itself.
        for waiting in self.by_id.values():
            self._progress.opened(waiting.message)

    def untrack(self) -> None:
        """None of them waits any more."""
        for waiting in self.by_id.values():
            self._load.untrack_message(waiting)
