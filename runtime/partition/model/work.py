"""A batch on its way through a partition: queued, run, and what came of it.

Columns as long as possible: a message becomes an object of its own only when it has to wait for
something that its peers do not wait for (a retry, a call, a busy key).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from sublet.functions.address import CLIENT_MARK, PIPELINE_MARK
from sublet.functions.codec import join_column, split_column
from sublet.functions.effects import Effect
from sublet.runtime.protocol.frames import Batch, ErrorInfo, Kind
from sublet.runtime.protocol.messages import NO_EXTRA, Message, MessageColumns, common, consecutive
from sublet.scheduler.urgency import BACKGROUND_MS
from sublet.statestore.contract import StateRow

if TYPE_CHECKING:
    from sublet.runtime.partition.model.lease import Lease
    from sublet.runtime.partition.model.worker_backlog import BacklogEntry
    from sublet.runtime.protocol.lease_messages import PartialState


class Traced(Protocol):
    """The run of a sampled message."""

    traceparent: str
    """What messages carry that it causes."""

    def entered(self) -> AbstractContextManager[None]:
        """Log lines and spans of user code belong to the run meanwhile."""
        ...

    def committed(self, times: Any) -> None:
        """All that it caused is durable; `times` are `telemetry.SpanTimes`."""
        ...

    def failed(self, error: ErrorInfo) -> None:
        """The handler failed; it may run again."""
        ...


class QueuedMessage:
    """A message object with what is true only in this process."""

    __slots__ = (
        "age_ms",
        "arrived_ms",
        "cancelled",
        "deadline_ms",
        "ended",
        "entry",
        "expires",
        "holds_key",
        "interrupted",
        "journal",
        "message",
        "parked",
        "rank",
        "stays",
        "traced",
    )

    def __init__(
        self,
        message: Message,
        deadline_ms: float | None = None,
        *,
        parked: bool = False,
        arrived_ms: float | None = None,
        age_ms: int = 0,
    ) -> None:
        self.message = message
        self.age_ms = age_ms
        """How long it had waited in its sender; for telemetry alone."""
        self.deadline_ms = deadline_ms
        self.arrived_ms = arrived_ms
        """None if it arrived at an earlier owner of the partition."""
        self.parked = parked
        """True once a commit holds it: then the end of it must delete the record."""
        self.ended = False
        self.cancelled = False
        """It has ended without effect, because somebody has cancelled it."""
        self.entry: BacklogEntry | None = None
        """Its place among all that waits in the worker, if it is counted there."""
        self.stays = False
        """It has come home from a lease: from now on it waits for its turn here."""
        self.expires = False
        """After its deadline nobody waits for the reply."""
        self.interrupted: ErrorInfo | None = None
        """Why its handler was told to end."""
        self.rank: float | None = None
        """Its place among all that waits in the worker, once it was asked for."""
        self.traced: Traced | None = None
        """Its run, if the message is sampled."""
        self.holds_key = False
        """While it waits for a retry: its key waits with it."""
        self.journal: dict[int | str, Recorded] = {}
        """What its handler has called, by number, and done outside, by name."""


class Recorded(msgspec.Struct, array_like=True):
    """A call that a message has made: where it went, and what came back; or, with a name, a side
    effect: what came of it."""

    message_id: str
    call: int
    destination: str
    number: int
    digest: int
    done: bool = False
    result: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: ErrorInfo | None = None
    name: str = ""
    """Of a side effect, which has no number, and is on record only when it is done."""


class Chunk:
    """A received batch in the backlog; `start` moves as messages are taken from it."""

    __slots__ = (
        "arrived_ms",
        "batch",
        "columns",
        "deadlines_ms",
        "decoded",
        "earliest_ms",
        "entry",
        "from_client",
        "from_partition",
        "is_background",
        "patience_end_ms",
        "priority",
        "rank",
        "raws",
        "removed_indexes",
        "seen",
        "start",
        "stop",
        "urgent",
    )

    def __init__(
        self,
        batch: Batch,
        start: int,
        now_ms: float,
        slo_ms: float | None,
        patience_ms: float = 0.0,
        removed_indexes: set[int] | None = None,
    ) -> None:
        self.batch = batch
        mark = batch.source[:1]
        self.from_client = mark == CLIENT_MARK
        self.from_partition = mark != CLIENT_MARK and mark != PIPELINE_MARK
        self.start = start
        self.stop = batch.count
        self.removed_indexes = removed_indexes
        """Messages between `start` and `stop` that are not waiting here (any more)."""
        self.arrived_ms = now_ms
        left = batch.time_left_ms
        least_left = min(left, default=None) if isinstance(left, list) else left
        self.is_background = least_left is not None and least_left >= BACKGROUND_MS
        self.urgent: int | None = None
        """The first of the most urgent messages, where some are more urgent than others."""
        self.deadlines_ms: float | list[float | None] | None
        if left is None:
            self.deadlines_ms = None if slo_ms is None else now_ms + slo_ms
        elif isinstance(left, int):
            self.deadlines_ms = None if left < 0 else now_ms + left
        else:
            self.deadlines_ms = [None if each < 0 else now_ms + each for each in left]
        self.patience_end_ms = self.earliest_ms = now_ms + patience_ms
        """When the most urgent message is due; those without deadline, when patience ends."""
        if isinstance(self.deadlines_ms, list):
            self.find_urgent()
        elif self.deadlines_ms is not None:
            self.earliest_ms = self.deadlines_ms
        self.priority = 0.0
        """Place among the chunks of the partition; the smallest comes first."""
        self.rank = 0.0
        """Place among all that waits in the worker."""
        self.entry: BacklogEntry | None = None
        """Its place among all that waits in the worker, where somebody wants to know."""
        self.seen = 0
        """Up to here, its keys were looked at for states to read ahead."""
        self.decoded: list[Any] | None = None
        self.columns: Any = None
        """Its messages as the columns that their handler takes, once they were asked for."""
        self.raws: list[msgspec.Raw] | None = None

    @property
    def count(self) -> int:
        return self.stop - self.start - (len(self.removed_indexes) if self.removed_indexes else 0)

    @property
    def expires(self) -> bool:
        """Tell whether nobody waits for the replies after the deadlines."""
        batch = self.batch
        return self.from_client and batch.kind is Kind.CALL and batch.time_left_ms is not None

    def postpone(self, by_ms: float) -> None:
        """Let all messages be due later."""
        deadlines = self.deadlines_ms
        if isinstance(deadlines, list):
            self.deadlines_ms = [None if each is None else each + by_ms for each in deadlines]
        elif deadlines is not None:
            self.deadlines_ms = deadlines + by_ms
        self.earliest_ms += by_ms
        self.patience_end_ms += by_ms

    def find_urgent(self) -> None:
        """Look for the most urgent message among those that are left."""
        best, place = self.patience_end_ms, self.start
        for index in range(self.start, self.stop):
            due_ms = self.deadline_ms(index)
            if (
                due_ms is not None
                and due_ms < best
                and not (self.removed_indexes and index in self.removed_indexes)
            ):
                best, place = due_ms, index
        self.earliest_ms = best
        self.urgent = place

    def places(self) -> list[int]:
        """Return where the messages are that are left."""
        places = range(self.start, self.stop)
        removed_indexes = self.removed_indexes
        return (
            [index for index in places if index not in removed_indexes]
            if removed_indexes
            else list(places)
        )

    def most_urgent(self, within_ms: float) -> list[int]:
        """Return the messages that are due about as soon as the first of them."""
        left = self.places()
        if self.urgent is None:
            return left
        until_ms = self.earliest_ms + within_ms
        due = [(index, self.deadline_ms(index)) for index in left]
        return [index for index, at_ms in due if at_ms is not None and at_ms <= until_ms] or left

    def deadline_ms(self, index: int) -> float | None:
        deadlines = self.deadlines_ms
        return deadlines[index] if isinstance(deadlines, list) else deadlines

    def raw(self, index: int) -> msgspec.Raw:
        if self.raws is None:
            self.raws = split_column(self.batch.payloads)
        return self.raws[index]

    def message(self, index: int, order: int) -> QueuedMessage:
        batch = self.batch
        extra = batch.extras.get(index, NO_EXTRA) if batch.extras else NO_EXTRA
        # A copy: the raw view would keep the whole frame alive for one waiting message.
        message = Message(
            batch.source,
            batch.first + index,
            batch.kind,
            batch.keys[index],
            self.raw(index).copy(),
            order,
            1,
            extra,
        )
        waiting = QueuedMessage(
            message, self.deadline_ms(index), arrived_ms=self.arrived_ms, age_ms=batch.age_ms
        )
        waiting.expires = batch.kind is Kind.CALL and (extra.expires or self.expires)
        return waiting


class Span(NamedTuple):
    """Messages `start` .. `stop` (exclusive) of a chunk."""

    chunk: Chunk
    start: int
    stop: int


class Work:
    """Messages that run together: either whole spans of chunks, or single waiting messages."""

    __slots__ = (
        "_distinct",
        "arrived_ms",
        "columns",
        "count",
        "exclusive",
        "gathering_ms",
        "id",
        "keys",
        "lease",
        "loading_ms",
        "off_loop",
        "rank",
        "rank_last",
        "recorded",
        "spans",
        "waiting",
    )

    def __init__(
        self, number: int, *, spans: Sequence[Span] = (), waiting: Sequence[QueuedMessage] = ()
    ) -> None:
        self.id = number
        self.spans = spans
        self.waiting = waiting
        self.columns: MessageColumns | None = None
        """Only of a `ColumnWork`, as long as nobody has asked for its messages."""
        self.off_loop = False
        self.exclusive = True
        self.rank = self.arrived_ms = 0.0
        """Of its most urgent messages, should it have to wait for its turn once more."""
        self.rank_last = 0.0
        """Of its least urgent messages: whoever is more urgent need not wait for them."""
        self.loading_ms = self.gathering_ms = 0.0
        """How long it waited for state, and for more messages; for telemetry alone."""
        self.recorded = True
        """False if the pending commit speaks of messages whose end it does not hold yet."""
        self.lease: Lease | None = None
        """Somebody else runs it."""
        self.keys: Sequence[str]
        if waiting:
            self.keys = [each.message.key for each in waiting]
        elif len(spans) == 1:
            chunk, start, stop = spans[0]
            keys = chunk.batch.keys
            self.keys = keys if stop - start == len(keys) else keys[start:stop]
        else:
            self.keys = [
                key for chunk, start, stop in spans for key in chunk.batch.keys[start:stop]
            ]
        self.count = len(self.keys)
        self._distinct: Sequence[str] | None = None

    @property
    def distinct_keys(self) -> Sequence[str]:
        """Each key once, in the order of their first messages."""
        if self._distinct is None:
            self._distinct = list(dict.fromkeys(self.keys))
        return self._distinct

    @property
    def assigns(self) -> bool:
        """Tell whether states are among the messages (see `Kind.ASSIGN`): all of them, if these
        are whole columns."""
        if self.spans:
            return self.spans[0].chunk.batch.kind is Kind.ASSIGN
        return any(each.message.kind is Kind.ASSIGN for each in self.waiting)

    @property
    def is_background(self) -> bool:
        """Tell whether it has no deadline to keep at all (see `scheduler.urgency`)."""
        if self.spans:
            return self.spans[0].chunk.is_background
        first = self.waiting[0]
        due_ms, arrived_ms = first.deadline_ms, first.arrived_ms
        if due_ms is None or arrived_ms is None:
            return False
        return due_ms - arrived_ms >= BACKGROUND_MS

    def payload_columns(self) -> list[tuple[Chunk | None, int, int, bytes | msgspec.Raw]]:
        """Return the columns to decode: (chunk, start, stop, msgpack array)."""
        if self.waiting:
            joined = join_column([each.message.payload for each in self.waiting])
            return [(None, 0, len(self.waiting), joined)]
        return [(chunk, start, stop, chunk.batch.payloads) for chunk, start, stop in self.spans]

    def calls(self) -> bool | Collection[int]:
        """Tell whose replies somebody waits for: True for all, False for none, or the places."""
        if self.waiting:
            asked = [each.message.kind is Kind.CALL for each in self.waiting]
            if all(asked):
                return True
            return {place for place, is_call in enumerate(asked) if is_call} or False
        if len(self.spans) == 1:
            return self.spans[0].chunk.batch.kind is Kind.CALL
        kinds = {chunk.batch.kind is Kind.CALL for chunk, _, _ in self.spans}
        if len(kinds) == 1:
            return kinds.pop()
        places: set[int] = set()
        place = 0
        for chunk, start, stop in self.spans:
            if chunk.batch.kind is Kind.CALL:
                places.update(range(place, place + stop - start))
            place += stop - start
        return places

    def first_part(self, count: int) -> tuple[Work, list[Span]]:
        """Return its first messages as a work, and the spans of the others."""
        done: list[Span] = []
        rest: list[Span] = []
        for chunk, start, stop in self.spans:
            middle = min(stop, start + count)
            count -= middle - start
            if start < middle:
                done.append(Span(chunk, start, middle))
            if middle < stop:
                rest.append(Span(chunk, middle, stop))
        part = Work(self.id, spans=done)
        part.off_loop, part.exclusive, part.recorded = self.off_loop, self.exclusive, self.recorded
        part.rank, part.rank_last, part.arrived_ms = self.rank, self.rank_last, self.arrived_ms
        part.loading_ms, part.gathering_ms = self.loading_ms, self.gathering_ms
        return part, rest

    def message_ids(self) -> list[str]:
        """Return the ids of its messages, in order."""
        if self.waiting:
            return [each.message.id for each in self.waiting]
        return [
            f"{chunk.batch.source}:{chunk.batch.first + place}"
            for chunk, start, stop in self.spans
            for place in range(start, stop)
        ]

    def locate(self, index: int) -> tuple[Chunk, int]:
        """Return the chunk of a message and its place in it (only for work made of spans)."""
        for chunk, start, stop in self.spans:
            if index < stop - start:
                return chunk, start + index
            index -= stop - start
        raise IndexError(index)


class Origin(NamedTuple):
    """Messages `start` .. `stop` (exclusive) of a `ColumnWork` have come together."""

    start: int
    stop: int
    source: str
    kind: Kind
    arrived_ms: float | None
    age_ms: int
    expires: bool
    """See `Chunk.expires`."""


class ColumnWork(Work):
    """Messages that are lent, still as columns.

    Whoever asks for its messages (`waiting`) gets objects, and it is a work of single messages from
    then on: that is the way of all that fail, are cancelled or come home.
    """

    __slots__ = ("_waiting", "deadlines_ms", "on_split", "origins", "record_id")

    def __init__(
        self,
        number: int,
        columns: MessageColumns,
        deadlines_ms: Sequence[float | None],
        origins: Sequence[Origin] = (),
    ) -> None:
        self._waiting: Sequence[QueuedMessage] = ()
        self.origins = origins
        """Where its messages come from; of guests nobody has to know."""
        self.deadlines_ms = deadlines_ms
        self.record_id = ""
        """Of the record that holds all of it, if one does."""
        self.on_split: Callable[[ColumnWork, Sequence[QueuedMessage]], None] | None = None
        """Told when its messages become objects."""
        super().__init__(number, waiting=())
        self.columns = columns
        self.keys = columns.keys
        self.count = len(columns.keys)

    @property
    def waiting(self) -> Sequence[QueuedMessage]:
        columns, self.columns = self.columns, None
        if columns is not None:
            self._waiting = self._messages(columns)
            if self.on_split is not None:
                self.on_split(self, self._waiting)
        return self._waiting

    @waiting.setter
    def waiting(self, waiting: Sequence[QueuedMessage]) -> None:
        self._waiting = waiting

    def _messages(self, columns: MessageColumns) -> list[QueuedMessage]:
        found = [
            QueuedMessage(message, deadline_ms)
            for message, deadline_ms in zip(columns.messages(), self.deadlines_ms, strict=True)
        ]
        for start, stop, _, kind, arrived_ms, age_ms, expires in self.origins:
            for waiting in found[start:stop]:
                waiting.arrived_ms, waiting.age_ms = arrived_ms, age_ms
                waiting.expires = expires and kind is Kind.CALL
        return found

    @property
    def assigns(self) -> bool:
        return False

    @property
    def is_background(self) -> bool:
        return False

    def payload_columns(self) -> list[tuple[Chunk | None, int, int, bytes | msgspec.Raw]]:
        if self.columns is None:
            return super().payload_columns()
        return [(None, 0, self.count, self.columns.payloads)]

    def calls(self) -> bool | Collection[int]:
        if self.columns is None:
            return super().calls()
        kinds = self.columns.kinds
        if not isinstance(kinds, list):
            return kinds is Kind.CALL
        return {place for place, kind in enumerate(kinds) if kind is Kind.CALL}

    def message_ids(self) -> list[str]:
        if self.columns is None:
            return super().message_ids()
        columns = self.columns
        numbered = zip(columns.each_source(), columns.each_number(), strict=True)
        return [f"{source}:{number}" for source, number in numbered]


def gathered(
    refs: Sequence[tuple[Chunk, int]], order: int
) -> tuple[MessageColumns, list[float | None], list[Origin]]:
    """Put messages of chunks into columns of their own, with their deadlines and where they come
    from. They have no extras; the first of them gets this place in the order of arrival."""
    sources: list[str] = []
    numbers: list[int] = []
    kinds: list[Kind] = []
    keys: list[str] = []
    raws: list[msgspec.Raw] = []
    deadlines_ms: list[float | None] = []
    origins: list[Origin] = []
    payloads: msgspec.Raw | None = None
    for chunk, group in groupby(refs, itemgetter(0)):
        batch, places, start = chunk.batch, [index for _, index in group], len(keys)
        first, count = batch.first, len(places)
        if count == batch.count == len(refs):
            keys, payloads = batch.keys, batch.payloads
        else:
            mine = batch.keys
            keys += [mine[index] for index in places]
            raws += [chunk.raw(index) for index in places]
        numbers += [first + index for index in places]
        sources += [batch.source] * count
        kinds += [batch.kind] * count
        due_ms = chunk.deadlines_ms
        deadlines_ms += (
            [due_ms[index] for index in places] if isinstance(due_ms, list) else [due_ms] * count
        )
        origins.append(
            Origin(
                start,
                start + count,
                batch.source,
                batch.kind,
                chunk.arrived_ms,
                batch.age_ms,
                chunk.expires,
            )
        )
    if payloads is None:
        payloads = msgspec.Raw(join_column(raws))
    columns = MessageColumns(
        common(sources), consecutive(numbers), common(kinds), keys, payloads, order
    )
    return columns, deadlines_ms, origins


def no_traceback() -> str:
    return ""


class Failure(NamedTuple):
    """Why a message was not handled; `retryable` if running it again may help."""

    error: ErrorInfo
    retryable: bool
    cause: BaseException | None = None
    """What user code raised and did not mean to; for the log alone."""
    traceback: Callable[[], str] = no_traceback
    """How it came to that, in a bounded text. Made only for those who keep it: most attempts that
    fail are followed by another."""
    kind: str = ""
    """What it has in common with others like it: the exception and its line. For the log alone."""


class RunResult:
    """What one run of user code produced. Indexes are places in the work."""

    __slots__ = (
        "cut_at",
        "effects",
        "elapsed_ms",
        "failed",
        "is_tainted",
        "partials",
        "rows",
        "suspended",
        "unfinished",
        "values",
    )

    def __init__(self) -> None:
        self.values: list[Any] = []
        """A reply for each message; meaningless for those in the sets below."""
        self.failed: dict[int, Failure] = {}
        self.unfinished: set[int] = set()
        """Not run, because an earlier message of their key failed or waits."""
        self.suspended: set[int] = set()
        """Their handlers await something and end later, through `Partition.invocation_ended`."""
        self.rows: list[StateRow] = []
        self.effects: list[Effect] = []
        self.partials: Sequence[PartialState] = ()
        """What a lessee that started from empty states has added."""
        self.elapsed_ms = 0.0
        self.cut_at: int | None = None
        """From here on nothing was run, and nothing stands above; see `Partition.cut`."""
        self.is_tainted = False
        """The run was given up: states in memory may have, or get, changes that are not above."""

    @property
    def is_plain(self) -> bool:
        return not (self.failed or self.unfinished or self.suspended)
