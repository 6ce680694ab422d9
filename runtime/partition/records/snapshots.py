"""Consistent reading of a partition while it goes on: what it was at one commit, page by page.

Pure bookkeeping of one partition. A reader *pins* the partition: from then on, before a commit
changes a key that this reader has yet to come to, the key's old state is kept in memory. A page is
what the store has, with what was kept in its place: so all pages together are the state at the
commit of the pin, however long they take and whatever was committed meanwhile.

It does not matter that a store reads a page at several moments. Whatever a commit changes was kept
before the commit was sent; so what was not kept when the page is put together was not changed.

Keys are read in order, once: what lies behind the reader is not kept, and what was kept for it
goes. Beyond a bound a snapshot ends, and its reader is told why; the partition never waits for a
reader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from sortedcontainers import SortedDict

from sublet.functions.errors import OverloadedError, SnapshotLostError
from sublet.runtime.partition.commit.commit_participant import CommitParticipant
from sublet.runtime.partition.commit.pending_commit import CommitContents
from sublet.runtime.partition.model.environment import SnapshotRoom
from sublet.statestore.contract import StateRow

SNAPSHOTS_MAX = 16
"""Of one partition, at the same time; then a reader has to wait."""
IDLE_MS = 120_000
"""A snapshot of which nothing was read for so long ends."""
LIFE_MS = 3_600_000
"""So does one that is so old, however busy its reader is."""
RETRY_AFTER_MS = 1_000
ENDED_KEPT_MAX = 64
KEY_BYTES = 200
"""What a kept key takes in memory beside its text and its rows, about."""
ROW_BYTES = 150

OfKey = Sequence[StateRow]
"""All rows of one key, at least one."""


class Snapshot:
    """The state of a partition at one commit, as far as it has to be remembered."""

    __slots__ = ("bytes", "floor", "id", "index", "kept", "keys", "started_ms", "used_ms")

    def __init__(self, id_: str, index: int, keys: frozenset[str] | None, now_ms: float) -> None:
        self.id = id_
        self.index = index
        """The last commit that is in it."""
        self.keys = keys
        """Those that its reader wants; None: all."""
        self.floor: str | None = None
        """Keys up to this one were read, and are not asked for again; None: nothing was read."""
        self.kept: SortedDict[str, OfKey | tuple[()]] = SortedDict()
        """Keys that were changed since, with their old rows: none, if the key had no state."""
        self.bytes = 0
        self.started_ms = self.used_ms = now_ms

    def lacks(self, key: str) -> bool:
        """Tell whether the key's state has to be kept before it changes."""
        return (
            (self.floor is None or key > self.floor)
            and key not in self.kept
            and (self.keys is None or key in self.keys)
        )


class Snapshots(CommitParticipant):
    """The snapshots of one partition."""

    def __init__(self, partition: str, room: SnapshotRoom) -> None:
        self.open: dict[str, Snapshot] = {}
        self.started = 0
        self.ended_at_bounds = 0
        self._partition = partition
        self._room = room
        self._ended: deque[tuple[str, str]] = deque(maxlen=ENDED_KEPT_MAX)
        """The latest that ended at a bound, with the reason."""

    @property
    def bytes(self) -> int:
        """What is kept, for all of them."""
        return sum([each.bytes for each in self.open.values()])

    # Readers

    def pin(self, id_: str, index: int, keys: Collection[str] | None, now_ms: float) -> Snapshot:
        """Begin a snapshot at the last commit that was sealed. It may be read once that commit is
        done."""
        self.expire(now_ms)
        if len(self.open) >= SNAPSHOTS_MAX:
            raise OverloadedError(
                f"{self._partition} is read by {SNAPSHOTS_MAX} snapshots, the maximum",
                RETRY_AFTER_MS,
            )
        self.started += 1
        wanted = None if keys is None else frozenset(keys)
        found = self.open[id_] = Snapshot(id_, index, wanted, now_ms)
        return found

    def page_begins(self, id_: str, after: str | None, now_ms: float) -> Snapshot:
        """Somebody asks for the keys after the given one, and for none before them any more.

        The last page may be asked for again. `SnapshotLostError` if the snapshot is over.
        """
        self.expire(now_ms)
        snapshot = self._find(id_, after)
        snapshot.used_ms = now_ms
        if after is not None and after != snapshot.floor:
            snapshot.floor = after
            for key in list(snapshot.kept.irange(maximum=after)):
                self._account(snapshot, -_weight(key, snapshot.kept.pop(key)))
        return snapshot

    def page_read(
        self, id_: str, after: str | None, found: Sequence[OfKey], upto: str | None
    ) -> list[OfKey]:
        """Return the page at the commit of the pin, by key.

        `found` is what the store says of the keys after `after` up to `upto` (None: to the last).
        `SnapshotLostError` if the snapshot has ended since `page_begins`, or was read further by
        somebody else: then something may not have been kept.
        """
        snapshot = self._find(id_, after)
        by_key: dict[str, OfKey] = {rows[0].key: rows for rows in found}
        kept = snapshot.kept.irange(after, upto, (False, True))
        for key in kept:
            old = snapshot.kept[key]
            if old:
                by_key[key] = old
            else:
                by_key.pop(key, None)
        return [by_key[key] for key in sorted(by_key)]

    def _find(self, id_: str, after: str | None) -> Snapshot:
        snapshot = self.open.get(id_)
        if snapshot is None:
            why = next((why for ended, why in self._ended if ended == id_), "")
            why = why or f"{self._partition} has a new owner, or its reader ended it"
            raise SnapshotLostError(f"the snapshot {id_!r:.100} is gone: {why}; take a new one")
        if snapshot.floor is not None and (after is None or after < snapshot.floor):
            raise SnapshotLostError(
                f"the snapshot {id_!r:.100} of {self._partition} was already read further, "
                "and earlier pages are not kept; take a new one"
            )
        return snapshot

    def end(self, id_: str) -> None:
        """Its reader has all that it wants."""
        snapshot = self.open.pop(id_, None)
        if snapshot is not None:
            self._account(snapshot, -snapshot.bytes)

    # Commits

    def contribute(self, contents: CommitContents) -> None:
        """Let a commit wait for the old states of what it changes.

        One that is part of a snapshot, being sent again, changes nothing for it.
        """
        if self.open:
            contents.preimages = self.unkept(contents.index, contents.rows, contents.sealed_ms)

    def unkept(self, index: int, rows: Sequence[StateRow], now_ms: float) -> list[str]:
        """Return the keys whose old states have to be kept before this commit is sent."""
        self.expire(now_ms)
        concerned = [each for each in self.open.values() if each.index < index]
        if not concerned:
            return []
        keys = dict.fromkeys([row.key for row in rows])
        return [key for key in keys if any(each.lacks(key) for each in concerned)]

    def keep(self, index: int, keys: Sequence[str], rows: Sequence[StateRow]) -> None:
        """These are the committed states of the keys; the commit that changes them comes next."""
        by_key: dict[str, list[StateRow]] = {key: [] for key in keys}
        for row in rows:
            by_key[row.key].append(row)
        for snapshot in [each for each in self.open.values() if each.index < index]:
            for key, of_key in by_key.items():
                if snapshot.lacks(key):
                    old = tuple(of_key)
                    snapshot.kept[key] = old
                    self._account(snapshot, _weight(key, old))
        while self._room.bytes > self._room.bytes_max and self.open:
            self._end_at_bound(
                max(self.open.values(), key=lambda each: each.bytes),
                f"more than {self._room.bytes_max} bytes of old states (snapshot_bytes_max) would "
                "have to be kept for readers, as much is written meanwhile; read more partitions "
                "at once, or when less is written, or raise snapshot_bytes_max",
            )

    # Ends

    def expire(self, now_ms: float) -> None:
        """End what nobody reads any more, and what has taken too long."""
        if not self.open:
            return
        for snapshot in list(self.open.values()):
            if now_ms - snapshot.used_ms > IDLE_MS:
                why = f"it was not read for {IDLE_MS // 1000} s"
                self._end_at_bound(snapshot, why)
            elif now_ms - snapshot.started_ms > LIFE_MS:
                why = f"it was not fully read within {LIFE_MS // 60_000} minutes"
                self._end_at_bound(snapshot, f"{why}; read more partitions at once")

    def lose(self, why: str) -> None:
        """End all: what has to be kept for them cannot be known."""
        for snapshot in list(self.open.values()):
            self._end_at_bound(snapshot, why)

    def clear(self) -> None:
        """The partition is not ours any more."""
        for id_ in list(self.open):
            self.end(id_)

    def _end_at_bound(self, snapshot: Snapshot, why: str) -> None:
        self.end(snapshot.id)
        self.ended_at_bounds += 1
        self._ended.append((snapshot.id, why))

    def _account(self, snapshot: Snapshot, size_bytes: int) -> None:
        snapshot.bytes += size_bytes
        self._room.bytes += size_bytes


def _weight(key: str, rows: Sequence[StateRow]) -> int:
    of_rows = sum([ROW_BYTES + len(row.subkey) + len(row.value or b"") for row in rows])
    return KEY_BYTES + len(key) + of_rows
