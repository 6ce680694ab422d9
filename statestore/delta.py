"""Many commits of one partition as one: the newest of each row, and what must be deleted.

This is what makes a changelog cheap to fold: a key that was written a thousand times is one
row, and a message that was sent and acknowledged meanwhile is none. Values are absolute, so a
delta that is applied again, whole or in part, changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from sublet.statestore.contract import Commit, EgressEntry, OutboxEntry, Record, StateRow

ALL = 2**63 - 1
"""As an acknowledged number: every entry there is."""


class Delta:
    """What a run of commits changed. Rows with value None say that older ones are gone."""

    __slots__ = (
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
        self.state: dict[str, dict[bytes, StateRow]] = {}
        self.inbox: dict[str, int | None] = {}
        self.sent: dict[str, int | None] = {}
        self.outbox: dict[str, deque[OutboxEntry]] = {}
        self.outbox_acknowledged: dict[str, int] = {}
        """Older entries up to this number are gone; those in `outbox` came later."""
        self.egress: dict[str, deque[EgressEntry]] = {}
        self.egress_next: dict[str, tuple[int, int]] = {}
        """Egress to (first position written here, next position)."""
        self.egress_trimmed: dict[str, int] = {}
        self.records: dict[str, dict[str, Record]] = {}

    def absorb(self, commit: Commit) -> None:
        """Add the next commit of the partition."""
        self.index = commit.index
        self.clock_ms = commit.clock_ms
        state = self.state
        for row in commit.state:
            of_key = state.get(row[0])
            if of_key is None:
                state[row[0]] = {row[1]: row}
            else:
                of_key[row[1]] = row
        for source in commit.inbox_forgotten:
            self.inbox[source] = None
        self.inbox.update(commit.inbox)
        if commit.outbox or commit.outbox_acknowledged or commit.outbox_forgotten:
            self._absorb_outbox(commit)
        if commit.egress or commit.egress_trimmed:
            self._absorb_egress(commit)
        for record in commit.records:
            self.records.setdefault(record.kind, {})[record.id] = record

    def _absorb_outbox(self, commit: Commit) -> None:
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

    def _absorb_egress(self, commit: Commit) -> None:
        for entry in commit.egress:
            self.egress.setdefault(entry.egress, deque()).append(entry)
            first, _ = self.egress_next.get(entry.egress, (entry.first, 0))
            self.egress_next[entry.egress] = (first, entry.first + entry.length)
        for name, position in commit.egress_trimmed.items():
            entries = self.egress.get(name)
            while entries and entries[0].first + entries[0].length <= position:
                entries.popleft()
            self.egress_trimmed[name] = max(self.egress_trimmed.get(name, 0), position)

    def egress_bounds(self, name: str, stored: tuple[int, int] | None) -> tuple[int, int] | None:
        """Return (first kept, next) of an egress, given what was there before this delta."""
        written = self.egress_next.get(name)
        if stored is None and written is None:
            return None
        first = stored[0] if stored is not None else written[0]  # type: ignore[index]
        after = written[1] if written is not None else stored[1]  # type: ignore[index]
        return max(first, min(self.egress_trimmed.get(name, 0), after)), after


def merge_state(
    rows: Iterable[StateRow], newer: Mapping[str, Mapping[bytes, StateRow]]
) -> dict[str, dict[bytes, StateRow]]:
    """Return the rows by key and subkey after newer ones replaced or deleted some."""
    merged: dict[str, dict[bytes, StateRow]] = {}
    for row in rows:
        merged.setdefault(row.key, {})[row.subkey] = row
    for key, of_key in newer.items():
        kept = merged.setdefault(key, {})
        kept.update(of_key)
        for subkey, row in of_key.items():
            if row.value is None:
                del kept[subkey]
        if not kept:
            del merged[key]
    return merged


def merge_records(rows: Iterable[Record], newer: Mapping[str, Record]) -> list[Record]:
    """Return the records of one kind after newer ones replaced or deleted some, by no order."""
    merged = {row.id: row for row in rows}
    merged.update(newer)
    return [row for row in merged.values() if row.value is not None]
