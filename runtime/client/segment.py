"""Messages of a client that leave together, as columns, and who waits for their outcomes.

No I/O, clock or randomness. A message has no object of its own but the waiter of its caller.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from sublet.functions.codec import Codec, codec_for, join_column, split_column
from sublet.functions.errors import SubletError
from sublet.runtime.protocol.frames import ANSWERED, Batch, Extra, Kind

if TYPE_CHECKING:
    from sublet.runtime.client.channel import Channel

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
        "cancelled",
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
        self.cancelled: list[tuple[Segment, int, bool]] = []
        """The calls that the messages of this segment cancel, if that is what they do, and whether
        that is because they are late."""
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

    def add_cancellation(self, called: Segment, place: int, *, late: bool) -> None:
        """Cancel a call by a message of this segment."""
        self.keys.append("")
        self.items.append(_TRUE if late else _NIL)
        self.cancelled.append((called, place, late))
        self.size += _MESSAGE_BYTES_OVERHEAD

    def name_cancelled(self, channel: Channel) -> None:
        """Name the calls by their numbers, which may have changed; forget those without one."""
        named = [
            (key, each)
            for each in self.cancelled
            if (key := _number_in(channel, *each[:2])) is not None
        ]
        self.keys = [key for key, _ in named]
        self.cancelled = [each for _, each in named]
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
        self.cancelled, right.cancelled = self.cancelled[:at], self.cancelled[at:]
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


def _number_in(channel: Channel, called: Segment, place: int) -> str | None:
    """Return the number of a call, if it (still) has one in this channel."""
    segment, index = called.find(place)
    if segment.channel is not channel or not segment.first or segment.dropped:
        return None
    return str(segment.first + index)
