"""What is kept of a partition's egress: bounded by count, by bytes and by age.

Pure bookkeeping. Values have positions without gaps, from 0 on, which go on with the next owner.
What goes is always the oldest. The count is exact. For bytes and age an egress is divided by
*marks* into some `PIECES` pieces, and goes a whole piece at a time, so that a few numbers, which
are in the commit beside the values, are all that the next owner has to know: about 7/8 of a bound
or more is kept, the newest piece always, and nothing longer than about 9/8 of its time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from sublet.runtime.config.limits import Limits
from sublet.runtime.partition.commit.commit_participant import CommitParticipant
from sublet.runtime.partition.commit.pending_commit import CommitContents
from sublet.runtime.partition.model.corruption import decoded
from sublet.statestore.contract import EGRESS, Record

PIECES = 8

_encode = msgspec.msgpack.Encoder().encode


class Mark(msgspec.Struct, array_like=True):
    """A piece: where it begins, the bytes before it, its first and its last time of writing."""

    position: int
    bytes_before: int
    first_ms: int
    last_ms: int


class Extent(msgspec.Struct, array_like=True):
    """What is known of one egress beside its positions, as stored."""

    bytes_total: int
    """Of all that was ever written."""
    marks: list[Mark]


_decode_extent = msgspec.msgpack.Decoder(Extent).decode
NO_POSITIONS: Mapping[str, tuple[int, int]] = {}


class Kept(NamedTuple):
    """How much is kept of an egress of one partition."""

    size_bytes: int
    last_ms: int
    """When something was written last; 0 if nothing is kept."""


def kept_of(stored: bytes | None) -> Kept:
    """Return what a stored record says, for people; raises `msgspec.DecodeError`."""
    if stored is None:
        return Kept(0, 0)
    extent = _decode_extent(stored)
    if not extent.marks:
        return Kept(0, 0)
    return Kept(extent.bytes_total - extent.marks[0].bytes_before, extent.marks[-1].last_ms)


class EgressRetention(CommitParticipant):
    """Where each egress of a partition begins and ends."""

    def __init__(
        self,
        recovered: Mapping[str, tuple[int, int]] = NO_POSITIONS,
        marks: Sequence[Record] = (),
        limits: Limits | None = None,
        *,
        partition: str = "",
    ) -> None:
        limits = limits or Limits()
        self._count_max = limits.egress_max
        self._bytes_max = limits.egress_bytes_max
        self._keep_ms = limits.egress_keep_ms
        self._first = {name: first for name, (first, _) in recovered.items()}
        self._next = {name: next_ for name, (_, next_) in recovered.items()}
        self._extents = {
            each.id: decoded(_decode_extent, partition, each)
            for each in marks
            if each.value is not None
        }
        self._overdue: set[str] = set()
        self.dropped = 0
        """Values that went at a bound."""

    def number(self, egress: str, count: int) -> int:
        """Reserve positions and return the first of them."""
        first = self._next.get(egress, 0)
        self._next[egress] = first + count
        self._first.setdefault(egress, first)
        return first

    def contribute(self, contents: CommitContents) -> None:
        """Take note of what a commit writes, and of what became too old: it says from which
        position on each egress is kept, of those that lose something, and holds what the next owner
        has to know."""
        if not (self._overdue or contents.egress):
            return
        changed, self._overdue = self._overdue, set()
        for name, first, _, data in contents.egress:
            changed.add(name)
            self._wrote(name, first, len(data), contents.clock_ms)
        for name in sorted(changed):
            first = self._first[name]
            kept = self._kept_from(name, contents.clock_ms)
            if kept > first:
                self.dropped += kept - first
                self._first[name] = contents.egress_trimmed[name] = kept
        contents.records.extend(
            [Record(EGRESS, name, _encode(self._extents[name])) for name in sorted(changed)]
        )

    def _wrote(self, name: str, first: int, size_bytes: int, clock_ms: int) -> None:
        extent = self._extents.get(name)
        if extent is None:
            extent = self._extents[name] = Extent(0, [])
        marks = extent.marks
        if (
            not marks
            or (extent.bytes_total - marks[-1].bytes_before) * PIECES >= self._bytes_max
            or (clock_ms - marks[-1].first_ms) * PIECES >= self._keep_ms
        ):
            marks.append(Mark(first, extent.bytes_total, clock_ms, clock_ms))
        extent.bytes_total += size_bytes
        marks[-1].last_ms = clock_ms

    def _kept_from(self, name: str, clock_ms: int) -> int:
        """Forget the marks of pieces that have to go; return the first position that stays."""
        extent, next_ = self._extents[name], self._next[name]
        kept, marks = max(self._first[name], next_ - self._count_max), extent.marks
        while len(marks) > 1 and (
            marks[1].position <= kept
            or extent.bytes_total - marks[0].bytes_before > self._bytes_max
            or clock_ms - marks[0].last_ms > self._keep_ms
        ):
            del marks[0]
            kept = max(kept, marks[0].position)
        if marks and clock_ms - marks[-1].last_ms > self._keep_ms:
            marks.clear()
            kept = next_
        return kept

    def look(self, clock_ms: int) -> bool:
        """Tell whether a commit is wanted although nothing new was written: for what is too old."""
        for name, extent in self._extents.items():
            if extent.marks and clock_ms - extent.marks[0].last_ms > self._keep_ms:
                self._overdue.add(name)
        return bool(self._overdue)
