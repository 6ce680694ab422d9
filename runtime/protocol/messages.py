"""Messages by themselves: one as it is parked, several as they travel under a lease."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import TypeVar

import msgspec

from sublet.functions.codec import join_column, split_column
from sublet.functions.errors import PayloadError
from sublet.runtime.protocol.frames import ErrorInfo, Extra, Kind

NO_EXTRA = Extra()

LENT_MARK = "+"
"""How the ids of records begin that hold `MessageColumns`; those of single messages do not."""

T = TypeVar("T")


class Message(msgspec.Struct, array_like=True):
    """One message that waits by itself. Stored as it is when it is parked."""

    source: str
    number: int
    kind: Kind
    key: str
    payload: msgspec.Raw
    order: int
    """Place in the partition's order of arrival; restores the order of a key after a takeover."""
    attempt: int = 1
    extra: Extra = NO_EXTRA
    last_error: ErrorInfo | None = None
    at_ms: int | None = None
    """When it arrived, by the partition's clock, where that matters."""

    @property
    def id(self) -> str:
        return f"{self.source}:{self.number}"


class MessageColumns(msgspec.Struct, array_like=True):
    """First attempts of messages that are lent together, as columns: so they travel, and so they
    are on record meanwhile. What all of them have in common is said once."""

    sources: str | list[str]
    numbers: int | list[int]
    """The first of consecutive ones, or each."""
    kinds: Kind | list[Kind]
    keys: list[str]
    payloads: msgspec.Raw
    """A msgpack array, one item a message."""
    order: int = 0
    """Of the first message; those of the others follow."""
    extras: dict[int, Extra] = {}
    times_ms: list[int | None] | None = None
    """See `Message.at_ms`."""

    @classmethod
    def of(cls, messages: Sequence[Message]) -> MessageColumns:
        """Put messages into columns; their places in the order of arrival are not kept."""
        extras = {at: each.extra for at, each in enumerate(messages) if each.extra != NO_EXTRA}
        times_ms = [each.at_ms for each in messages]
        return cls(
            common([each.source for each in messages]),
            consecutive([each.number for each in messages]),
            common([each.kind for each in messages]),
            [each.key for each in messages],
            msgspec.Raw(join_column([each.payload for each in messages])),
            extras=extras,
            times_ms=None if times_ms.count(None) == len(times_ms) else times_ms,
        )

    @property
    def count(self) -> int:
        return len(self.keys)

    @property
    def first_id(self) -> str:
        source = self.sources if isinstance(self.sources, str) else self.sources[0]
        number = self.numbers if isinstance(self.numbers, int) else self.numbers[0]
        return f"{source}:{number}"

    def each_source(self) -> Iterable[str]:
        sources = self.sources
        return repeat(sources, len(self.keys)) if isinstance(sources, str) else sources

    def each_number(self) -> Sequence[int]:
        numbers = self.numbers
        return range(numbers, numbers + len(self.keys)) if isinstance(numbers, int) else numbers

    def each_kind(self) -> Iterable[Kind]:
        kinds = self.kinds
        return kinds if isinstance(kinds, list) else repeat(kinds, len(self.keys))

    def is_even(self) -> bool:
        """Tell whether all columns are as long as the keys; payloads are seen when decoded."""
        columns = (self.sources, self.numbers, self.kinds, self.times_ms)
        return all(len(each) == len(self.keys) for each in columns if isinstance(each, list))

    def has_doubles(self) -> bool:
        if isinstance(self.numbers, int) and isinstance(self.sources, str):
            return False
        if isinstance(self.sources, str):
            return len(set(self.each_number())) != len(self.keys)
        return len(set(zip(self.sources, self.each_number(), strict=True))) != len(self.keys)

    def place_of(self, source: str, number: int) -> int | None:
        """Return where a message is; None if it is not among them."""
        if isinstance(self.sources, str):
            numbers = self.each_number()
            return numbers.index(number) if self.sources == source and number in numbers else None
        for place, each in enumerate(zip(self.sources, self.each_number(), strict=True)):
            if each == (source, number):
                return place
        return None

    def messages(self) -> Iterator[Message]:
        """Give each message by itself."""
        extras, times_ms = self.extras, self.times_ms
        columns = zip(
            self.each_source(),
            self.each_number(),
            self.each_kind(),
            self.keys,
            split_column(self.payloads),
            strict=True,
        )
        for place, (source, number, kind, key, payload) in enumerate(columns):
            yield Message(
                source,
                number,
                kind,
                key,
                payload.copy(),
                self.order + place,
                extra=extras.get(place, NO_EXTRA) if extras else NO_EXTRA,
                at_ms=None if times_ms is None else times_ms[place],
            )


def common(values: list[T]) -> T | list[T]:
    """Return the one value that all have, or the values."""
    return values[0] if values and values.count(values[0]) == len(values) else values


def consecutive(numbers: list[int]) -> int | list[int]:
    """Return the first of consecutive numbers, or the numbers."""
    if numbers and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return numbers[0]
    return numbers


def parked_messages(id_: str, value: bytes) -> list[Message]:
    """Return the messages of a record: one, or several that are lent together.

    Raises msgspec.MsgspecError for what is no such record.
    """
    if not id_.startswith(LENT_MARK):
        return [_decode_message(value)]
    columns = _decode_columns(value)
    try:
        if not columns.keys or not columns.is_even():
            raise PayloadError("its columns differ in length")
        return list(columns.messages())
    except (PayloadError, ValueError) as error:
        raise msgspec.ValidationError(str(error)) from error


_decode_message = msgspec.msgpack.Decoder(Message).decode
_decode_columns = msgspec.msgpack.Decoder(MessageColumns).decode
