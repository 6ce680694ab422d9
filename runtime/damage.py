"""What the store gives back and nobody can read: said with its place, never guessed at.

A record that a partition cannot do without keeps the partition from being served; others (a timer,
an answer that was given before) are left where they are, and told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from sublet.statestore.contract import DamagedError, Record

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises; the second for text inside that is no UTF-8."""

T = TypeVar("T")


def decoded(decode: Callable[[bytes], T], partition: str, record: Record) -> T:
    """Return what a record holds, or raise `DamagedError`."""
    assert record.value is not None
    try:
        return decode(record.value)
    except UNREADABLE as error:
        raise damaged(partition, f"{record.kind} record {record.id!r:.200}", error) from None


def damaged(partition: str, what: str, error: Exception) -> DamagedError:
    return DamagedError(f"the {what} of {partition} is damaged ({error}); restore it from a copy")
