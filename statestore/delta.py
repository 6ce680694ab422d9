"""Many commits of one partition as one: the newest of each row, and what must be deleted.

This is what makes a changelog cheap to fold: a key that was written a thousand times is one
row, and a message that was sent and acknowledged meanwhile is none. Values are absolute, so a
delta that is applied again, whole or in part, changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

import msgspec

from sublet.statestore.contract import EgressEntry, OutboxEntry, Record, StateRow

# Plain tuples, because the garbage collector soon stops visiting those, unlike named ones: with
# hundreds of thousands of rows that is the difference between a pause and none.
RowTuple = tuple[str, bytes, bytes | None, int | None]
RecordTuple = tuple[str, str, bytes | None, int | None]

ALL = 2**63 - 1
"""As an acknowledged number: every entry there is."""


class PackedCommit(msgspec.Struct, array_like=True, kw_only=True):
    """A `Commit` as it is read back from its packed bytes: the same fields in the same order."""

    partition: str
    epoch: int
    index: int
    id: bytes
    clock_ms: int
    state: list[RowTuple] = []
    inbox: dict[str, int] = {}
    inbox_forgotten: list[str] = []
    outbox: list[OutboxEntry] = []
    outbox_acknowledged: dict[str, int] = {}
    outbox_forgotten: list[str] = []
    egress: list[EgressEntry] = []
    egress_trimmed: dict[str, int] = {}
    records: list[RecordTuple] = []
    token: str = ""


_decoder = msgspec.msgpack.Decoder(PackedCommit)


class DamagedCommitError(ValueError):
    """Packed bytes are not a commit; the text says which, and what is wrong with them."""


class Delta:
    """What a run of commits changed. Rows with value None say that older ones are gone."""

    __slots__ = (
        "cells",
        "clock_ms",
        "egress",
        "egress_next",
        "egress_trimmed",
        "inbox",
        "index",
        "outbox",
        "outbox_acknowledged",
        "records",
        "sent",
        "state",
    )

    def __init__(self) -> None:
        self.index = 0
        self.clock_ms = 0
        self.state: dict[str, RowTuple] = {}
        """Of each key the row with the empty subkey; most keys have no other."""
        self.cells: dict[str, dict[bytes, RowTuple]] = {}
        self.inbox: dict[str, int | None] = {}
        self.sent: dict[str, int | None] = {}
        self.outbox: dict[str, deque[OutboxEntry]] = {}
        self.outbox_acknowledged: dict[str, int] = {}
        """Older entries up to this number are gone; those in `outbox` came later."""
        self.egress: dict[str, deque[EgressEntry]] = {}
        self.egress_next: dict[str, tuple[int, int]] = {}
        """Egress to (first position written here, next position)."""
        self.egress_trimmed: dict[str, int] = {}
        self.records: dict[str, dict[str, RecordTuple]] = {}

    def absorb(self, packed: bytes) -> int:
        """Add the next commit of the partition; return about how many rows it has."""
        try:
            commit = _decoder.decode(packed)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise DamagedCommitError(f"what follows commit {self.index}: {error}") from None
        self.index = commit.index
        self.clock_ms = commit.clock_ms
        state = self.state
        for row in commit.state:
            if row[1]:
                self.cells.setdefault(row[0], {})[row[1]] = row
            else:
                state[row[0]] = row
        for source in commit.inbox_forgotten:
            self.inbox[source] = None
        self.inbox.update(commit.inbox)
        if commit.outbox or commit.outbox_acknowledged or commit.outbox_forgotten:
            self._absorb_outbox(commit)
        if commit.egress or commit.egress_trimmed:
            self._absorb_egress(commit)
        for record in commit.records:
            self.records.setdefault(record[0], {})[record[1]] = record
        return 1 + len(commit.state) + len(commit.records)

    def _absorb_outbox(self, commit: PackedCommit) -> None:
        for destination in commit.outbox_forgotten:
            self.outbox.pop(destination, None)
            self.outbox_acknowledged[destination] = ALL
            self.sent[destination] = None
        for destination, last in commit.outbox_acknowledged.items():
            entries = self.outbox.get(destination)
            while entries and entries[0].first + entries[0].length - 1 <= last:
                entries.popleft()
            former = self.outbox_acknowledged.get(destination, 0)
            self.outbox_acknowledged[destination] = max(former, last)
        for entry in commit.outbox:
            self.outbox.setdefault(entry.destination, deque()).append(entry)
            self.sent[entry.destination] = entry.first + entry.length - 1

    def _absorb_egress(self, commit: PackedCommit) -> None:
        for entry in commit.egress:
            self.egress.setdefault(entry.egress, deque()).append(entry)
            first, _ = self.egress_next.get(entry.egress, (entry.first, 0))
            self.egress_next[entry.egress] = (first, entry.first + entry.length)
        for name, position in commit.egress_trimmed.items():
            entries = self.egress.get(name)
            while entries and entries[0].first + entries[0].length <= position:
                entries.popleft()
            self.egress_trimmed[name] = max(self.egress_trimmed.get(name, 0), position)

    def state_rows(self) -> list[RowTuple]:
        """Return all rows by key and subkey."""
        rows = list(self.state.values())
        for of_key in self.cells.values():
            rows += of_key.values()
        rows.sort()
        return rows

    def state_keys(self) -> set[str]:
        return self.state.keys() | self.cells.keys()

    def state_of(self, keys: Iterable[str]) -> dict[str, dict[bytes, RowTuple]]:
        """Return the rows of those of the keys that were changed."""
        found: dict[str, dict[bytes, RowTuple]] = {}
        for key in keys:
            of_key = dict(self.cells.get(key, {}))
            if key in self.state:
                of_key[b""] = self.state[key]
            if of_key:
                found[key] = of_key
        return found

    def egress_bounds(self, name: str, stored: tuple[int, int] | None) -> tuple[int, int] | None:
        """Return (first kept, next) of an egress, given what was there before this delta."""
        written = self.egress_next.get(name)
        if stored is None and written is None:
            return None
        first = stored[0] if stored is not None else written[0]  # type: ignore[index]
        after = written[1] if written is not None else stored[1]  # type: ignore[index]
        return max(first, min(self.egress_trimmed.get(name, 0), after)), after


def merge_state(
    rows: Iterable[RowTuple], newer: Mapping[str, Mapping[bytes, RowTuple]]
) -> dict[str, list[StateRow]]:
    """Return the rows of each key, by subkey, after newer ones replaced or deleted some."""
    merged: dict[str, dict[bytes, RowTuple]] = {}
    for row in rows:
        merged.setdefault(row[0], {})[row[1]] = row
    for key, of_key in newer.items():
        merged.setdefault(key, {}).update(of_key)
    kept: dict[str, list[StateRow]] = {}
    for key, by_subkey in merged.items():
        of_row = [StateRow(*by_subkey[each]) for each in sorted(by_subkey)]
        present = [row for row in of_row if row.value is not None]
        if present:
            kept[key] = present
    return kept


def merge_records(rows: Iterable[RecordTuple], newer: Mapping[str, RecordTuple]) -> list[Record]:
    """Return the records of one kind after newer ones replaced or deleted some, by no order."""
    merged = {row[1]: row for row in rows}
    merged.update(newer)
    return [Record(*row) for row in merged.values() if row[2] is not None]
