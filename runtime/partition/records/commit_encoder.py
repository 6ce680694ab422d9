"""How what a commit sends becomes numbered entries of the outbox and of egresses.

Sealing a commit gives every message its number, in the order: sends, calls, watermarks, cancelled
calls, replies. Until then nothing has one, so that what is dropped before leaves no gap.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from sublet.functions.codec import codec_for, join_column, split_column
from sublet.functions.effects import Cancelled, Delayed, Emitted, Outgoing
from sublet.functions.errors import EncodeError, TooLargeError
from sublet.runtime.partition.commit.commit_participant import CommitParticipant
from sublet.runtime.partition.commit.pending_commit import CommitContents, OutgoingCall, Replies
from sublet.runtime.partition.model.channel_names import REPLY_MARK
from sublet.runtime.partition.records.channels import Outbox
from sublet.runtime.partition.records.egress_retention import EgressRetention
from sublet.runtime.partition.records.timers import Timer
from sublet.runtime.protocol.egress import EgressColumns
from sublet.runtime.protocol.frames import Batch, ErrorInfo, Extra, Kind
from sublet.statestore.contract import TIMER, EgressEntry, OutboxEntry, Record, StateRow

ENTRY_BYTES_MAX = 1024 * 1024
ENTRY_MESSAGES_MAX = 10_000
"""No link carries a batch that is much larger."""

_any = codec_for(Any)
_encode = msgspec.msgpack.Encoder().encode
_decode_batch = msgspec.msgpack.Decoder(Batch).decode


class CommitEncoder(CommitParticipant):
    """Numbers and packs what leaves with a commit."""

    def __init__(
        self, partition: str, outbox: Outbox, egress: EgressRetention, reply_bytes_max: int
    ) -> None:
        self._partition = partition
        self._outbox = outbox
        self._egress = egress
        self._reply_bytes_max = reply_bytes_max
        self._entry_bytes_max = min(ENTRY_BYTES_MAX, reply_bytes_max)

    def contribute(self, contents: CommitContents) -> None:
        """Number and pack all messages and values that leave."""
        outbox, now_ms = contents.outbox, contents.sealed_ms
        if contents.effects:
            self._pack_effects(contents)
        if contents.calls:
            outbox.extend([self._pack_call(call, now_ms) for call in contents.calls])
        for destination, told in contents.markers.items():
            payloads = join_column([_encode(value_ms) for value_ms in told])
            sources = [self._partition] * len(told)
            outbox.append(self._entry(destination, Kind.MARKER, sources, payloads, None))
        for destination, numbers in contents.cancelled_calls.items():
            outbox.extend(self._pack_cancelled_calls(destination, numbers))
        for destination, replies in contents.replies.items():
            column = _encode_results(replies)
            if (
                not replies.errors
                and len(column) <= self._entry_bytes_max
                and len(replies.refs) <= ENTRY_MESSAGES_MAX
            ):
                # Most of them: nothing to count, nothing to cut.
                outbox.append(self._reply_entry(destination, replies.refs, column, {}))
            else:
                outbox.extend(self._pack_replies(destination, replies, column))
        if contents.runs > 1:
            contents.rows = _latest(contents.rows)

    def _pack_effects(self, contents: CommitContents) -> None:
        sends: dict[str, list[Outgoing]] = {}
        cancels: dict[str, list[str]] = {}
        emits: dict[str, list[Emitted]] = {}
        for effect in contents.effects:
            # Most effects are sends: asked first.
            if type(effect) is Outgoing:
                sends.setdefault(effect.partition, []).append(effect)
            elif type(effect) is Emitted:
                emits.setdefault(effect.egress, []).append(effect)
            elif type(effect) is Delayed:
                payload = msgspec.Raw(effect.payload)
                timer = Timer(effect.partition, effect.key, payload, effect.trace)
                contents.records.append(Record(TIMER, effect.timer, _encode(timer), effect.due_ms))
            elif type(effect) is Cancelled:
                if effect.partition == self._partition:
                    contents.records.append(Record(TIMER, effect.timer, None))
                else:
                    cancels.setdefault(effect.partition, []).append(effect.timer)
        contents.outbox.extend(self._pack_sends(sends, contents.traced, contents.sealed_ms))
        contents.outbox.extend(self._pack_cancels(cancels))
        contents.egress.extend(self._pack_emits(emits, contents.clock_ms))

    def _pack_sends(
        self, sends: dict[str, list[Outgoing]], traced: bool, now_ms: float
    ) -> Iterator[OutboxEntry]:
        for destination, all_messages in sends.items():
            sizes = [len(each.payload) + len(each.key) for each in all_messages]
            for start, stop in _pieces(sizes):
                messages = all_messages[start:stop]
                keys = [each.key for each in messages]
                payloads = join_column([each.payload for each in messages])
                left = _time_left([each.deadline_ms for each in messages], now_ms)
                extras = _traces(messages) if traced else None
                yield self._entry(destination, Kind.SEND, keys, payloads, left, extras)

    def _pack_cancels(self, cancels: dict[str, list[str]]) -> Iterator[OutboxEntry]:
        for destination, all_timers in cancels.items():
            for start, stop in _pieces([len(each) for each in all_timers]):
                timers = all_timers[start:stop]
                payloads = join_column([b"\xc0"] * len(timers))
                yield self._entry(destination, Kind.CANCEL_TIMER, timers, payloads, None)

    def _pack_emits(self, emits: dict[str, list[Emitted]], clock_ms: int) -> Iterator[EgressEntry]:
        for name, all_values in emits.items():
            for start, stop in _pieces([len(each.payload) + len(each.key) for each in all_values]):
                values = all_values[start:stop]
                first = self._egress.number(name, len(values))
                columns = EgressColumns(
                    clock_ms,
                    [each.key for each in values],
                    msgspec.Raw(join_column([each.payload for each in values])),
                )
                yield EgressEntry(name, first, len(values), _encode(columns))

    def _entry(
        self,
        destination: str,
        kind: Kind,
        keys: list[str],
        payloads: bytes,
        time_left_ms: int | list[int] | None,
        extras: dict[int, Extra] | None = None,
    ) -> OutboxEntry:
        count = len(keys)
        first = self._outbox.number(destination, count)
        batch = Batch(
            destination,
            self._partition,
            first,
            kind,
            keys,
            msgspec.Raw(payloads),
            count,
            time_left_ms,
            extras,
        )
        return OutboxEntry(destination, first, count, _encode(batch))

    def _pack_call(self, call: OutgoingCall, now_ms: float) -> OutboxEntry:
        call.number = self._outbox.sent.get(call.partition, 0) + 1
        left = _time_left([call.deadline_ms], now_ms)
        payloads = join_column([call.payload])
        return self._entry(call.partition, Kind.CALL, [call.key], payloads, left, {0: call.extra})

    def _pack_cancelled_calls(self, destination: str, numbers: list[int]) -> Iterator[OutboxEntry]:
        keys = [str(number) for number in numbers]
        for start, stop in _pieces([len(key) for key in keys]):
            payloads = join_column([b"\xc0"] * (stop - start))
            yield self._entry(destination, Kind.CANCEL_CALL, keys[start:stop], payloads, None)

    def _pack_replies(
        self, destination: str, replies: Replies, column: bytes
    ) -> Iterator[OutboxEntry]:
        size_bytes = len(column) + sum(len(each.message) for each in replies.errors.values())
        fits = size_bytes <= self._entry_bytes_max
        if fits and len(replies.refs) <= ENTRY_MESSAGES_MAX:
            yield self._reply_entry(destination, replies.refs, column, replies.errors)
            return
        results: list[bytes | msgspec.Raw] = list(split_column(column))
        sizes = [len(bytes(each)) for each in results]
        for place, size in enumerate(sizes):
            if size > self._reply_bytes_max:
                # No link would carry it, and nothing behind it would ever arrive.
                results[place], sizes[place] = b"\xc0", 1
                replies.errors[place] = reply_too_large(size, self._reply_bytes_max)
        for place, error in replies.errors.items():
            sizes[place] += len(error.message)
        for start, stop in _pieces(sizes):
            errors = {
                place - start: error
                for place, error in replies.errors.items()
                if start <= place < stop
            }
            refs, piece = replies.refs[start:stop], join_column(results[start:stop])
            yield self._reply_entry(destination, refs, piece, errors)

    def _reply_entry(
        self, destination: str, refs: list[int], column: bytes, errors: dict[int, ErrorInfo]
    ) -> OutboxEntry:
        count = len(refs)
        consecutive = refs[-1] - refs[0] + 1 == count and (
            count < 3 or refs == list(range(refs[0], refs[0] + count))
        )
        first = self._outbox.number(destination, count)
        # Replies between partitions are numbered apart from requests, on both ends.
        mark = REPLY_MARK if destination.endswith(REPLY_MARK) else ""
        batch = Batch(
            destination,
            self._partition + mark,
            first,
            Kind.REPLY,
            [],
            msgspec.Raw(column),
            count,
            None,
            None,
            refs[0],
            None if consecutive else refs,
            errors or None,
        )
        return OutboxEntry(destination, first, count, _encode(batch))


def as_oldest(entry: OutboxEntry) -> OutboxEntry:
    """Return an entry that says that there is nothing before it."""
    batch = _decode_batch(entry.data)
    batch.is_oldest = True
    return entry._replace(data=_encode(batch))


def _latest(rows: list[StateRow]) -> list[StateRow]:
    """Leave out what a later run has written over; a hot key is stored once a commit."""
    return list({(row[0], row[1]): row for row in rows}.values())


def _traces(messages: list[Outgoing]) -> dict[int, Extra] | None:
    sampled = enumerate(messages)
    return {place: Extra(trace=each.trace) for place, each in sampled if each.trace} or None


def reply_too_large(size_bytes: int, bytes_max: int) -> ErrorInfo:
    """Return what a caller gets instead of a reply that nobody may send."""
    error = TooLargeError(f"the reply has {size_bytes} bytes; allowed: {bytes_max}")
    return ErrorInfo(error.code, str(error))


def _encode_results(replies: Replies) -> bytes:
    try:
        return _any.encode_column(replies.values)
    except EncodeError:
        # The state change stands; only the answer cannot be told.
        encoded = []
        for place, value in enumerate(replies.values):
            try:
                encoded.append(_any.encode(value))
            except EncodeError as error:
                encoded.append(b"\xc0")
                replies.errors[place] = ErrorInfo(error.code, f"the reply: {error}")
        return join_column(encoded)


def _pieces(sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Cut a column so that no entry is much larger than a frame should be."""
    start = size = 0
    for place, each in enumerate(sizes):
        too_long = place - start >= ENTRY_MESSAGES_MAX
        if too_long or (size and size + each > ENTRY_BYTES_MAX):
            yield start, place
            start, size = place, 0
        size += each
    yield start, len(sizes)


def _time_left(deadlines_ms: list[float | None], now_ms: float) -> int | list[int] | None:
    first = deadlines_ms[0]
    if all(each == first for each in deadlines_ms):
        return None if first is None else max(0, int(first - now_ms))
    return [-1 if each is None else max(0, int(each - now_ms)) for each in deadlines_ms]
