"""One client's channel to one partition: what was sent, what must be sent again, who waits.

No I/O, clock or randomness. A segment passes from `unsent` (it has no numbers yet) to `sent`, and,
when its link is lost or the partition refuses it, to `resend` and back, with the same numbers. The
partition accepts every number once, so sending twice is safe. What is not safe is to use a number
for another message while a copy of the first may still be in flight somewhere: that is what
`tainted` is for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from sublet.functions.codec import Codec, split_column
from sublet.functions.errors import PayloadError, SubletError, UnknownOutcomeError, error_from_code
from sublet.runtime.client.segment import MakeError, Segment
from sublet.runtime.protocol.frames import ANSWERED, Batch, ErrorInfo


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
        "unreachable_since_ms",
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
        self.unreachable_since_ms: float | None = None
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
            if segment.cancelled:
                segment.name_cancelled(self)
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

    def rewind(self, first: int) -> int:
        """Move what was sent from this number on back to `resend`; return how many were in
        flight."""
        rewound = 0
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
            rewound += len(segment.keys) - segment.acked
            self.resend.appendleft(segment)
        return rewound

    def lose(self) -> int:
        """The link is gone: everything sent may or may not have arrived.

        Return how many messages were in flight.
        """
        for segment in self.sent:
            segment.tainted = True
        return self.rewind(0)

    def taint(self) -> None:
        """Further copies of what was rewound may be in flight."""
        for segment in self.resend:
            segment.tainted = True

    def taint_before(self, first: int) -> None:
        """Of messages before this number nobody knows any more whether they were taken."""
        for segment in (*self.sent, *self.resend):
            if segment.first < first:
                segment.tainted = True

    def give_up(self, segments: Sequence[Segment], make_error: MakeError) -> int:
        """Tell the callers of rewound segments, and drop those; return how many were told.

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
        """Forget rewound segments, which the partition has refused, and tell their callers.

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
            if segment.cancelled:
                segment.name_cancelled(self)
            if id(segment) not in dropped and segment.keys:
                self._number(segment)
                self.resend.append(segment)
        return settled

    def fail_unsent(self, make_error: MakeError) -> int:
        """Tell everybody whose message has never left, and drop it; return how many."""
        settled = sum(segment.fail(make_error) for segment in self.unsent)
        self.unsent = deque(each for each in self.unsent if each.cancelled)
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
        self.rewind(0)
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


def error_of(error: ErrorInfo) -> SubletError:
    return error_from_code(error.code, error.message, error.retry_after_ms)


def _unknown(error: SubletError) -> UnknownOutcomeError:
    return UnknownOutcomeError(f"the worker was lost and may have accepted the message ({error})")
