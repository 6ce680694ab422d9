"""What the store gives back and nobody can read: said with its place, never guessed at.

A record that a partition cannot do without keeps the partition from being served; others (a timer,
an answer that was given before) are left where they are, and told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from sublet.runtime.protocol.frames import Batch
from sublet.statestore.contract import CorruptDataError, OutboxEntry, Record

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises; the second for text inside that is no UTF-8."""

T = TypeVar("T")

_decode_batch = msgspec.msgpack.Decoder(Batch).decode


def decoded(decode: Callable[[bytes], T], partition: str, record: Record) -> T:
    """Return what a record holds, or raise `CorruptDataError`."""
    assert record.value is not None
    try:
        return decode(record.value)
    except UNREADABLE as error:
        raise damaged(partition, f"{record.kind} record {record.id!r:.200}", error) from None


def check_outbox(partition: str, entries: Sequence[OutboxEntry]) -> None:
    """Raise `CorruptDataError` if there are entries that nobody could take: they would end every
    link on which they are sent, again and again."""
    for entry in entries:
        try:
            batch = _decode_batch(entry.data)
            if (batch.first, batch.count) != (entry.first, entry.length):
                raise msgspec.ValidationError(f"it holds messages {batch.first} ..")
        except UNREADABLE as error:
            what = f"outbox entry {entry.first} to {entry.destination!r:.200}"
            raise damaged(partition, what, error) from None


def damaged(partition: str, what: str, error: Exception) -> CorruptDataError:
    return CorruptDataError(
        f"the {what} of {partition} is corrupt ({error}); restore it from a backup"
    )
