"""Messages as columns: what they have in common is said once, and each can be had again."""

from __future__ import annotations

import msgspec
import pytest

from sublet.runtime.protocol.frames import Extra, Kind
from sublet.runtime.protocol.messages import (
    LENT_MARK,
    Message,
    MessageColumns,
    parked_messages,
)

_encode = msgspec.msgpack.encode


def message(number: int, *, source: str = "~c", kind: Kind = Kind.SEND, **more: object) -> Message:
    raw = msgspec.Raw(_encode(number))
    return Message(source, number, kind, f"k{number}", raw, 0, **more)  # type: ignore[arg-type]


def again(messages: list[Message]) -> list[Message]:
    encoded = _encode(MessageColumns.of(messages))
    found = list(msgspec.msgpack.decode(encoded, type=MessageColumns).messages())
    for each in found:
        each.order = 0
    return found


def test_what_all_have_in_common_is_said_once() -> None:
    columns = MessageColumns.of([message(4), message(5), message(6)])
    assert (columns.sources, columns.numbers, columns.kinds) == ("~c", 4, Kind.SEND)
    assert (columns.extras, columns.times_ms) == ({}, None)


@pytest.mark.parametrize(
    "messages",
    [
        [message(4), message(5), message(6)],
        [message(4), message(9)],
        [message(1), message(1, source="~d")],
        [message(1), message(2, kind=Kind.CALL)],
        [message(1), message(2, extra=Extra(trace="00-a-01"))],
        [message(1, at_ms=7), message(2)],
    ],
)
def test_each_message_comes_back_as_it_was(messages: list[Message]) -> None:
    assert again(messages) == messages


def test_places_in_the_order_of_arrival_follow_the_first() -> None:
    columns = MessageColumns.of([message(1), message(2)])
    columns.order = 40
    assert [each.order for each in columns.messages()] == [40, 41]


def test_a_message_is_found_by_its_number() -> None:
    one_source = MessageColumns.of([message(4), message(9)])
    assert (one_source.place_of("~c", 9), one_source.place_of("~c", 5)) == (1, None)
    assert one_source.place_of("~d", 9) is None
    two = MessageColumns.of([message(4), message(4, source="~d")])
    assert (two.place_of("~d", 4), two.place_of("~e", 4)) == (1, None)


def test_doubles_are_seen() -> None:
    assert not MessageColumns.of([message(1), message(2)]).has_doubles()
    assert not MessageColumns.of([message(1), message(1, source="~d")]).has_doubles()
    assert MessageColumns.of([message(1), message(1)]).has_doubles()


def test_a_record_of_columns_that_do_not_match_is_refused() -> None:
    columns = MessageColumns.of([message(1), message(9)])
    id_ = f"{LENT_MARK}~c:1"
    assert len(parked_messages(id_, _encode(columns))) == 2
    columns.numbers = [1]
    with pytest.raises(msgspec.ValidationError, match="differ in length"):
        parked_messages(id_, _encode(columns))
    columns.numbers, columns.payloads = 1, msgspec.Raw(_encode([1]))
    with pytest.raises(msgspec.ValidationError):
        parked_messages(id_, _encode(columns))
