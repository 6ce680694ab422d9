"""One client's channel to one partition: what was asked, what must be asked again, who waits.

No I/O, clock or randomness. Messages that leave together are one `Segment` of columns, so that a
message has no object of its own but the waiter of whoever wants its reply. A segment passes from
`unsent` (it has no numbers yet) to `sent`, and, when its link is lost or the partition refuses
it, to `resend` and back, with the same numbers. The partition takes every number once, so sending
twice is safe; what is not safe is to use a number for another message while a copy of the first
may still be under way somewhere. That is what `tainted` is for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from sublet.functions.codec import Codec, codec_for, join_column, split_column
from sublet.functions.errors import PayloadError, SubletError, UnknownOutcomeError, error_from_code
from sublet.runtime.protocol.frames import ANSWERED, Batch, ErrorInfo, Extra, Kind

ANY = codec_for(Any)

SEGMENT_MESSAGES_MAX = 512
SEGMENT_BYTES_MAX = 256 * 1024
_MESSAGE_BYTES_OVERHEAD = 8
_NIL, _TRUE = b"\xc0", b"\xc3"

MakeError = Callable[[], SubletError]


class Waiter(Protocol):
    """Whoever waits for one outcome: a future of asyncio, of a thread, or of a test."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


class _Missing:
    def __repr__(self) -> str:
        return "<no reply yet>"


MISSING: Any = _Missing()


class Gather:
    """The outcomes of many messages for one waiter, by each message's place in the request."""

    __slots__ = ("errors", "remaining", "results", "waiter")

    def __init__(self, count: int, waiter: Waiter, *, replies: bool) -> None:
        self.waiter = waiter
        self.remaining = count
        self.results: list[Any] = [MISSING] * count if replies else []
        self.errors: dict[int, SubletError] = {}

    def fail(self, place: int, error: SubletError) -> None:
        """Put an error in a message's place; `settle` is the caller's."""
        self.errors[place] = error
        if self.results:
            self.results[place] = error

    def settle(self, count: int) -> None:
        """Count outcomes that were put in their places; the last one wakes the waiter."""
        self.remaining -= count
        if self.remaining == 0 and not self.waiter.done():
            self.waiter.set_result(None)


class Segment:
    """Messages of one channel that have their kind, deadline and reply type in common."""

    __slots__ = (
        "acked",
        "born_ms",
        "channel",
        "codec",
        "column",
        "deadline_ms",
        "dropped",
        "extras",
        "first",
        "gather",
        "items",
        "keys",
        "kind",
        "places",
        "refusals",
        "removed",
        "size",
        "tail",
        "tainted",
        "unanswered",
        "unsettled",
        "waiters",
        "withdrawn",
    )

    def __init__(
        self, kind: Kind, deadline_ms: int | None, codec: Codec[Any], born_ms: float = 0.0
    ) -> None:
        self.kind = kind
        self.born_ms = born_ms
        """When its first caller asked; 0: nobody noted it. For telemetry alone."""
        self.channel: Channel | None = None
        """Whose numbers it has."""
        self.tail: Segment | None = None
        """What was cut off from it."""
        self.removed: list[int] = []
        """Places of messages that were taken out before they left."""
        self.dropped = False
        """Its numbers belong to others now."""
        self.withdrawn: list[tuple[Segment, int, bool]] = []
        """The calls that the messages of this segment take back, if that is what they do, and
        whether that is because they are late."""
        self.deadline_ms = deadline_ms
        self.codec = codec
        self.keys: list[str] = []
        self.items: list[bytes] = []
        """Payloads, until they are joined to a column."""
        self.column: bytes | None = None
        self.size = 0
        self.extras: dict[int, Extra] | None = None
        self.waiters: list[Waiter | None] = []
        """One for each message (None: told already), unless there is a `gather`."""
        self.gather: Gather | None = None
        self.places: Sequence[int] = ()
        self.first = 0
        """0 until it has a number."""
        self.acked = 0
        self.unanswered = 0
        self.unsettled = 0
        """Messages whose caller has heard nothing yet."""
        self.refusals = 0
        self.tainted = False
        """A copy may be under way on a link that is not ours any more."""

    @property
    def count(self) -> int:
        return len(self.keys)

    @property
    def last(self) -> int:
        return self.first + len(self.keys) - 1

    @property
    def full(self) -> bool:
        return len(self.keys) >= SEGMENT_MESSAGES_MAX or self.size >= SEGMENT_BYTES_MAX

    def add(self, key: str, payload: bytes, waiter: Waiter) -> None:
        self.keys.append(key)
        self.items.append(payload)
        self.waiters.append(waiter)
        self.size += len(payload) + len(key) + _MESSAGE_BYTES_OVERHEAD
        self.unsettled += 1

    def fill(self, keys: list[str], column: bytes, gather: Gather, places: Sequence[int]) -> None:
        """Take many messages at once: columns, one waiter, and each message's place there."""
        self.keys = keys
        self.column = column
        self.size = len(column) + _MESSAGE_BYTES_OVERHEAD * len(keys) + sum(map(len, keys))
        self.gather = gather
        self.places = places
        self.unsettled = len(keys)

    def find(self, place: int) -> tuple[Segment, int]:
        """Return where the message stands that was added as number `place`."""
        segment = self
        while True:
            index = place - bisect_left(segment.removed, place)
            if index < len(segment.keys) or segment.tail is None:
                return segment, index
            place = index - len(segment.keys)
            segment = segment.tail

    def place(self, place: int) -> tuple[Channel | None, int]:
        """Return the channel and number of the message that was added as number `place`; 0 if it
        has none yet."""
        segment, index = self.find(place)
        return segment.channel, segment.first + index if segment.first else 0

    def remove(self, index: int) -> None:
        """Take out a message that has not left."""
        assert not self.first
        insort(self.removed, self.place_of(index))
        self._split()
        self.size -= len(self.items[index]) + len(self.keys[index]) + _MESSAGE_BYTES_OVERHEAD
        del self.keys[index], self.items[index], self.waiters[index]
        self.unsettled -= 1
        if self.extras:
            extras = self.extras.items()
            self.extras = {at - (at > index): each for at, each in extras if at != index} or None

    def place_of(self, index: int) -> int:
        """Return as what number a message was added."""
        for each in self.removed:
            index += each <= index
        return index

    def parts(self) -> Iterator[Segment]:
        """The segment, and all that was cut off from it."""
        segment: Segment | None = self
        while segment is not None:
            yield segment
            segment = segment.tail

    def unanswered_places(self) -> list[int]:
        """Return the messages whose callers have been told nothing, as they were added."""
        gather = self.gather
        if gather is None:
            left = [index for index, waiter in enumerate(self.waiters) if waiter is not None]
        else:
            results = gather.results
            left = [at for at, place in enumerate(self.places) if results[place] is MISSING]
        return [self.place_of(index) for index in left] if self.removed else left

    def is_open(self, index: int) -> bool:
        """Tell whether the caller of a message has heard nothing yet."""
        if not self.unsettled:
            return False
        if self.gather is None:
            return self.waiters[index] is not None
        return self.gather.results[self.places[index]] is MISSING

    def cancel(self, called: Segment, place: int, *, late: bool) -> None:
        """Add the withdrawal of a call."""
        self.keys.append("")
        self.items.append(_TRUE if late else _NIL)
        self.withdrawn.append((called, place, late))
        self.size += _MESSAGE_BYTES_OVERHEAD

    def name_withdrawn(self, channel: Channel) -> None:
        """Name the calls by their numbers, which may have changed; forget those without one."""
        named = [
            (key, each)
            for each in self.withdrawn
            if (key := _number_in(channel, *each[:2])) is not None
        ]
        self.keys = [key for key, _ in named]
        self.withdrawn = [each for _, each in named]
        self.items = [_TRUE if late else _NIL for _, (_, _, late) in named]
        self.column = None

    def batch(
        self, target: str, source: str, time_left_ms: int | None, now_ms: float = 0.0
    ) -> Batch:
        column = self.column
        if column is None:
            column = self.column = join_column(self.items)
            self.items = []
        return Batch(
            target,
            source,
            self.first,
            self.kind,
            self.keys,
            msgspec.Raw(column),
            len(self.keys),
            time_left_ms,
            self.extras,
            age_ms=max(0, int(now_ms - self.born_ms)) if self.born_ms else 0,
        )

    def cut(self, at: int) -> Segment:
        """Keep the first `at` messages; return the others, of which none was taken.

        Some may be answered: a partition runs what is urgent, or lent, before what came first.
        """
        assert 0 < at < len(self.keys)
        right = Segment(self.kind, self.deadline_ms, self.codec, self.born_ms)
        right.channel, right.tail, self.tail = self.channel, self.tail, right
        self._split()
        self.items, right.items = self.items[:at], self.items[at:]
        self.withdrawn, right.withdrawn = self.withdrawn[:at], self.withdrawn[at:]
        self.keys, right.keys = self.keys[:at], self.keys[at:]
        right.size = self.size * len(right.keys) // (at + len(right.keys))
        self.size -= right.size
        if self.extras:
            extras, self.extras = self.extras, None
            self.extras = {place: each for place, each in extras.items() if place < at} or None
            right.extras = {p - at: each for p, each in extras.items() if p >= at} or None
        self.waiters, right.waiters = self.waiters[:at], self.waiters[at:]
        right.gather = self.gather
        self.places, right.places = self.places[:at], self.places[at:]
        right.first = self.first + at if self.first else 0
        right.tainted, right.refusals = self.tainted, self.refusals
        left = len(right.keys)
        if self.kind in ANSWERED:
            left = len(right.unanswered_places())
        if self.unsettled:
            right.unsettled = left
            self.unsettled -= left
        if self.unanswered:
            right.unanswered = left
            self.unanswered -= left
        return right

    def _split(self) -> None:
        if self.column is not None:
            self.items = [bytes(each) for each in split_column(self.column)]
            self.column = None

    def fail(self, make_error: MakeError) -> int:
        """Tell every caller who still waits; return how many. Later replies are dropped."""
        failed, self.unsettled = self.unsettled, 0
        if not failed:
            return 0
        gather = self.gather
        if gather is None:
            for waiter in self.waiters:
                if waiter is not None and not waiter.done():
                    waiter.set_exception(make_error())
            self.waiters = [None] * len(self.keys)
            return failed
        self.gather = None
        if self.kind not in ANSWERED:
            open_places = self.places[self.acked :]
        else:
            results = gather.results
            open_places = [place for place in self.places if results[place] is MISSING]
        for place in open_places:
            gather.fail(place, make_error())
        gather.settle(len(open_places))
        return failed

    def taken_upto(self, acked: int) -> int:
        """The first `acked` messages were durably taken; return how many callers that settled."""
        before, self.acked = self.acked, acked
        if self.kind in ANSWERED or not self.unsettled:
            return 0
        settled = acked - before
        self.unsettled -= settled
        if self.gather is not None:
            self.gather.settle(settled)
            return settled
        for waiter in self.waiters[before:acked]:
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
        return settled

    def answer(self, at: int, values: Sequence[Any], *, with_errors: bool) -> int:
        """Hand out the replies of messages `at` ..; return how many callers that settled.

        Only `with_errors` may there be errors among the values.
        """
        count = len(values)
        self.unanswered -= count
        if not self.unsettled:
            return 0
        gather = self.gather
        if gather is None:
            waiters = self.waiters
            for value in values:
                waiter = waiters[at]
                # A caller who was cancelled is done already; nobody wants this reply.
                if waiter is not None and not waiter.done():
                    if with_errors and isinstance(value, SubletError):
                        waiter.set_exception(value)
                    else:
                        waiter.set_result(value)
                waiters[at] = None
                at += 1
        else:
            results, places = gather.results, self.places
            if count != len(places):
                places = places[at : at + count]
            for place, value in zip(places, values, strict=True):
                results[place] = value
                if with_errors and isinstance(value, SubletError):
                    gather.errors[place] = value
            gather.settle(count)
        self.unsettled -= count
        return count


class Channel:
    """All that one client owes to, and expects from, one partition."""

    __slots__ = (
        "ack_due",
        "awaiting",
        "awaiting_firsts",
        "doubted_ms",
        "endpoint",
        "epoch",
        "filling",
        "gap_told",
        "held",
        "next_number",
        "partition",
        "peer",
        "queued",
        "refusals",
        "replies_taken",
        "resend",
        "sent",
        "stranded_ms",
        "unsent",
        "worker",
    )

    def __init__(self, partition: str, endpoint: str) -> None:
        self.partition = partition
        self.endpoint = endpoint
        self.worker: str | None = None
        """Who owns the partition, as far as we know."""
        self.peer: Any = None
        """Our link to the owner, while there is one; the session's business."""
        self.queued = False
        """Stands in its peer's queue of channels that have something to send."""
        self.held = False
        """Waits until the partition wants to hear from us again."""
        self.stranded_ms: float | None = None
        """Since when somebody waits here and the owner cannot be reached."""
        self.refusals = 0
        """In a row, without anything taken in between."""
        self.doubted_ms: float | None = None
        """Since when a former owner, as it seems, wants what was taken, and nothing was since."""
        self.epoch = 0
        """The latest of the partition's owners that has acknowledged something."""
        self.next_number = 1
        self.unsent: deque[Segment] = deque()
        self.filling: Segment | None = None
        """The last of `unsent`, while it may still grow."""
        self.sent: deque[Segment] = deque()
        self.resend: deque[Segment] = deque()
        """Numbered; its numbers follow those of `sent`."""
        self.awaiting: list[Segment] = []
        """Numbered calls with replies to come, by number."""
        self.awaiting_firsts: list[int] = []
        self.replies_taken = 0
        self.ack_due = False
        self.gap_told = False

    # Towards the partition

    @property
    def has_work(self) -> bool:
        return bool(self.resend or self.unsent)

    def is_idle(self) -> bool:
        """Nothing to send, nothing unacknowledged, nobody waits."""
        return not (self.unsent or self.sent or self.resend or self.awaiting)

    def next_segment(self) -> Segment | None:
        """Return what has to leave next, without the segments that nobody wants any more."""
        if self.resend:
            return self.resend[0]
        unsent = self.unsent
        while unsent:
            segment = unsent[0]
            if segment.unsettled:
                return segment
            if segment.withdrawn:
                segment.name_withdrawn(self)
                if segment.keys:
                    return segment
            unsent.popleft()
            if segment is self.filling:
                self.filling = None
        return None

    def cut_next(self, at: int) -> Segment:
        """Cut the next segment, which has no numbers yet, in two; return the second half."""
        assert not self.resend
        segment = self.unsent[0]
        right = segment.cut(at)
        self.unsent.insert(1, right)
        if self.filling is segment:
            self.filling = None
        return right

    def send_next(self) -> Segment:
        """Move the next segment to `sent`, with numbers if it has none, and return it."""
        if self.resend:
            segment = self.resend.popleft()
        else:
            segment = self.unsent.popleft()
            if segment is self.filling:
                self.filling = None
            self._number(segment)
        self.sent.append(segment)
        return segment

    def send_first(self, segment: Segment) -> None:
        """Let a segment that nobody waits for leave next; what was sent before may come back."""
        assert not self.resend
        self._number(segment)
        self.resend.append(segment)

    def _number(self, segment: Segment) -> None:
        segment.channel = self
        first = segment.first = self.next_number
        self.next_number = first + len(segment.keys)
        if segment.kind in ANSWERED:
            segment.unanswered = len(segment.keys)
            self.awaiting.append(segment)
            self.awaiting_firsts.append(first)

    def acknowledged(self, upto: int) -> tuple[int, int]:
        """The partition has durably taken everything up to this number.

        Return how many messages are not in flight any more, and how many callers were told.
        """
        landed = settled = 0
        if upto >= self.next_number:
            return 0, 0
        for queue in (self.sent, self.resend):
            while queue and queue[0].first <= upto:
                segment = queue[0]
                acked = min(len(segment.keys), upto - segment.first + 1)
                if queue is self.sent:
                    landed += max(0, acked - segment.acked)
                if acked > segment.acked:
                    settled += segment.taken_upto(acked)
                    self.refusals = 0
                if acked < len(segment.keys):
                    break
                queue.popleft()
        return landed, settled

    def ground(self, first: int) -> int:
        """Take back what was sent from this number on; return how many were in flight."""
        grounded = 0
        sent = self.sent
        while sent and sent[-1].last >= first:
            segment = sent[-1]
            if segment.first < first:
                kept, segment = segment, segment.cut(first - segment.first)
                if not kept.unanswered:
                    self._await_no_more(kept)
                if segment.unanswered:
                    self._await_replies(segment)
            else:
                sent.pop()
            grounded += len(segment.keys) - segment.acked
            self.resend.appendleft(segment)
        return grounded

    def lose(self) -> int:
        """The link is gone: everything sent may or may not have arrived.

        Return how many messages were in flight.
        """
        for segment in self.sent:
            segment.tainted = True
        return self.ground(0)

    def taint(self) -> None:
        """Further copies of what was grounded may be under way."""
        for segment in self.resend:
            segment.tainted = True

    def taint_before(self, first: int) -> None:
        """Of messages before this number nobody knows any more whether they were taken."""
        for segment in (*self.sent, *self.resend):
            if segment.first < first:
                segment.tainted = True

    def give_up(self, segments: Sequence[Segment], make_error: MakeError) -> int:
        """Tell the callers of grounded segments, and drop those; return how many were told.

        A tainted one keeps its number, for a copy of it may still be taken: its callers hear
        that nobody knows.
        """
        settled = 0
        untainted: list[Segment] = []
        for segment in segments:
            if segment.tainted:
                settled += segment.fail(lambda: _unknown(make_error()))
            else:
                untainted.append(segment)
        return settled + self.drop(untainted, make_error)

    def drop(self, segments: Sequence[Segment], make_error: MakeError) -> int:
        """Forget grounded segments, which the partition has refused, and tell their callers.

        Whatever follows is numbered anew. Return how many callers were told.
        """
        if not segments:
            return 0
        settled = sum(segment.fail(make_error) for segment in segments)
        dropped = {id(segment) for segment in segments}
        for segment in segments:
            segment.dropped = True
        resend = list(self.resend)
        at = next(place for place, each in enumerate(resend) if id(each) in dropped)
        self.next_number = resend[at].first
        self._forget_replies_from(self.next_number)
        self.resend = deque(resend[:at])
        for segment in resend[at:]:
            if segment.withdrawn:
                segment.name_withdrawn(self)
            if id(segment) not in dropped and segment.keys:
                self._number(segment)
                self.resend.append(segment)
        return settled

    def fail_unsent(self, make_error: MakeError) -> int:
        """Tell everybody whose message has never left, and drop it; return how many."""
        settled = sum(segment.fail(make_error) for segment in self.unsent)
        self.unsent = deque(each for each in self.unsent if each.withdrawn)
        self.filling = None
        return settled

    def fail_all(self, make_error: MakeError, make_unknown: MakeError) -> int:
        """Tell everybody who waits; return how many.

        What was never sent is dropped. What was sent stays, to be sent again under its number.
        """
        settled = self.fail_unsent(make_error)
        for queue in (self.sent, self.resend, self.awaiting):
            settled += sum(segment.fail(make_unknown) for segment in queue)
        return settled

    def expire(self, make_unknown: MakeError) -> tuple[int, list[Segment]]:
        """The partition has forgotten us: nothing sent before can be asked for any more.

        Return how many callers were told that nobody knows, and the segments of which it is
        certain that they were not taken, in order and without numbers.
        """
        self.ground(0)
        fresh = [each for each in self.resend if not each.tainted and not each.acked]
        fresh_ids = {id(each) for each in fresh}
        settled = 0
        for segment in (*self.resend, *self.awaiting):
            if id(segment) not in fresh_ids:
                settled += segment.fail(make_unknown)
        for segment in fresh:
            segment.first = segment.unanswered = 0
        fresh.extend(self.unsent)
        for queue in (self.resend, self.unsent):
            queue.clear()
        self.filling = None
        self._forget_replies_from(0)
        return settled, fresh

    # From the partition

    def take_replies(self, batch: Batch) -> tuple[int, int]:
        """Hand out replies that have not come before; return how many, and callers told.

        A negative number of replies means that some are missing before these.
        """
        taken = self.replies_taken
        if batch.first > taken + 1:
            return -1, 0
        skip = taken + 1 - batch.first
        count = batch.count
        if skip >= count:
            return 0, 0
        self.replies_taken = batch.first + count - 1
        self.gap_told = False
        return count - skip, self._hand_out(batch, skip)

    def is_answered_anew(self, batch: Batch) -> bool:
        """Tell whether replies have numbers that others had before: their callers still wait, so
        the store has lost who was answered first."""
        again = self.replies_taken + 1 - batch.first
        refs = batch.refs or range(batch.refs_first, batch.refs_first + batch.count)
        return again > 0 and any(map(self._is_awaited, refs[:again]))

    def _is_awaited(self, ref: int) -> bool:
        place = bisect_right(self.awaiting_firsts, ref) - 1
        segment = self.awaiting[place] if place >= 0 else None
        return segment is not None and ref <= segment.last and segment.is_open(ref - segment.first)

    def _hand_out(self, batch: Batch, at: int) -> int:
        count, refs, settled = batch.count, batch.refs, 0
        column: _ReplyColumn | None = None
        while at < count:
            ref = refs[at] if refs is not None else batch.refs_first + at
            place = bisect_right(self.awaiting_firsts, ref) - 1
            segment = self.awaiting[place] if place >= 0 else None
            if segment is None or ref > segment.last:
                at += 1  # Nobody asked this, or nobody wants it any more.
                continue
            offset = ref - segment.first
            # As many at once as are consecutive on both sides.
            stop = min(count, at + len(segment.keys) - offset)
            if refs is not None:
                run = at + 1
                while run < stop and refs[run] == ref + run - at:
                    run += 1
                stop = run
            if column is None or column.codec is not segment.codec:
                column = _ReplyColumn(batch, segment.codec)
            values = column.values(at, stop)
            settled += segment.answer(offset, values, with_errors=column.with_errors)
            if segment.unanswered <= 0:
                del self.awaiting[place]
                del self.awaiting_firsts[place]
            at = stop
        return settled

    def _forget_replies_from(self, first: int) -> None:
        place = bisect_right(self.awaiting_firsts, first - 1)
        del self.awaiting[place:]
        del self.awaiting_firsts[place:]

    def _await_no_more(self, segment: Segment) -> None:
        place = bisect_right(self.awaiting_firsts, segment.first) - 1
        if place >= 0 and self.awaiting[place] is segment:
            del self.awaiting[place]
            del self.awaiting_firsts[place]

    def _await_replies(self, segment: Segment) -> None:
        place = bisect_right(self.awaiting_firsts, segment.first)
        self.awaiting.insert(place, segment)
        self.awaiting_firsts.insert(place, segment.first)


class _ReplyColumn:
    """The replies of one batch, decoded for one type: in one step if all of them fit."""

    __slots__ = ("_batch", "_decoded", "_items", "codec")

    def __init__(self, batch: Batch, codec: Codec[Any]) -> None:
        self.codec = codec
        self._batch = batch
        self._decoded: list[Any] | None = None
        self._items: list[msgspec.Raw] | None = None
        if not batch.errors:
            try:
                self._decoded = codec.decode_column(batch.payloads)
            except PayloadError:
                self._items = _items_of(batch)
        else:
            self._items = _items_of(batch)

    @property
    def with_errors(self) -> bool:
        return self._decoded is None

    def values(self, start: int, stop: int) -> list[Any]:
        """Return values, and errors in the places of those that failed."""
        decoded = self._decoded
        if decoded is not None:
            return decoded if stop - start == len(decoded) else decoded[start:stop]
        return [self._value(place) for place in range(start, stop)]

    def _value(self, place: int) -> Any:
        errors = self._batch.errors
        error = errors.get(place) if errors else None
        if error is not None:
            return error_of(error)
        assert self._items is not None
        try:
            return self.codec.decode(self._items[place])
        except PayloadError as refusal:
            return PayloadError(f"the reply of {self._batch.source}: {refusal}")


def _items_of(batch: Batch) -> list[msgspec.Raw]:
    try:
        return split_column(batch.payloads)
    except PayloadError:
        # A header is checked on the way in, the items are not: each then fails by itself.
        return [msgspec.Raw(b"\xc1")] * batch.count


def _number_in(channel: Channel, called: Segment, place: int) -> str | None:
    """Return the number of a call, if it (still) has one in this channel."""
    segment, index = called.find(place)
    if segment.channel is not channel or not segment.first or segment.dropped:
        return None
    return str(segment.first + index)


def error_of(error: ErrorInfo) -> SubletError:
    return error_from_code(error.code, error.message, error.retry_after_ms)


def _unknown(error: SubletError) -> UnknownOutcomeError:
    return UnknownOutcomeError(f"the worker was lost and may have accepted the message ({error})")
