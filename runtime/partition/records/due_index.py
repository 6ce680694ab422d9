"""Records that are due at some time: the near future in memory, the rest in the store.

Pure bookkeeping. A store knows only what is committed, so between a change and the end of its
commit (and of every load that began before that) this remembers what the store cannot know: which
records are over, and which exist beyond the horizon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Generic, TypeVar

from sublet.runtime.partition.commit.commit_participant import CommitParticipant
from sublet.runtime.partition.commit.pending_commit import CommitContents
from sublet.runtime.partition.model.corruption import decoded
from sublet.runtime.partition.model.environment import DUE_LOADED_MAX
from sublet.statestore.contract import CorruptDataError, Record

HORIZON_MS = 60_000
LONG_AGO_MS = -(2**62)

T = TypeVar("T")


def in_order(number: int) -> str:
    """Return a number as text that stands behind that of every smaller one, in memory and in every
    store: records that are due at one time are given out in the order of their ids."""
    digits = str(number)
    return f"{chr(ord('a') + len(digits) - 1)}{digits}"


class DueIndex(CommitParticipant, Generic[T]):
    """Each record is given out once, unless it is over before. Ids are never used again."""

    def __init__(
        self, partition: str, decode: Callable[[bytes], T], loaded_max: int = DUE_LOADED_MAX
    ) -> None:
        self._of = partition
        self.loaded_max = loaded_max
        """How many records one load brings at most."""
        self._decode = decode
        self.by_time: list[tuple[int, str]] = []
        """A heap: when each is due, and its id; also of some that are over."""
        self._values: dict[str, T] = {}
        self._given: set[str] = set()
        """Given out by `due`, and not over yet."""
        self._damaged: set[str] = set()
        """Cannot be read, and stay in the store: nobody may think that they are past."""
        self._horizon_ms = LONG_AGO_MS
        """Every committed record that is due earlier is in memory, or is being loaded."""
        self._loading = False
        self._truncated = False
        """The store had more records before the horizon than one load brings."""
        self._moved = False
        """A commit has deleted records since the last load began."""
        self._over: set[str] = set()
        """Over, while the store may still tell of them."""
        self._over_committed: list[str] = []
        self._far: dict[str, tuple[int, T]] = {}
        """Beyond the horizon and not committed: no load finds them yet."""
        self._over_pending: list[str] = []
        self._far_pending: list[str] = []
        self._over_sealed: list[str] = []
        self._far_sealed: list[str] = []

    @property
    def next_due_ms(self) -> int | None:
        return self.by_time[0][0] if self.by_time else None

    def add(self, id_: str, due_ms: int, value: T) -> None:
        """Learn of a record that the next commit holds."""
        if due_ms < self._horizon_ms:
            self._insert(id_, due_ms, value)
        else:
            self._far[id_] = (due_ms, value)
            self._far_pending.append(id_)

    def due(self, time_ms: int) -> Iterator[tuple[str, T]]:
        """Give out what is due; whoever takes it says `end` when its record is deleted."""
        while self.by_time and self.by_time[0][0] <= time_ms:
            _, id_ = heappop(self.by_time)
            value = self._values.pop(id_, None)
            if value is not None:
                self._given.add(id_)
                yield id_, value

    def end(self, id_: str) -> None:
        """The next commit deletes the record."""
        self._values.pop(id_, None)
        self._far.pop(id_, None)
        self._given.discard(id_)
        self._damaged.discard(id_)
        self._over.add(id_)
        self._over_pending.append(id_)

    def is_past(self, time_ms: int) -> bool:
        """Tell whether nothing is left, here or in the store, that was due until this time."""
        if self._loading or self._horizon_ms <= time_ms or self._given or self._damaged:
            return False
        return not self.by_time or self.by_time[0][0] > time_ms

    def _insert(self, id_: str, due_ms: int, value: T) -> None:
        self._values[id_] = value
        heappush(self.by_time, (due_ms, id_))

    # Commits

    def contribute(self, contents: CommitContents) -> None:
        """What was noted so far is in the commit that starts now."""
        if self._over_pending:
            self._over_sealed, self._over_pending = self._over_pending, []
        if self._far_pending:
            self._far_sealed, self._far_pending = self._far_pending, []

    def stored(self, contents: CommitContents, now_ms: float) -> None:
        """From now on every load tells the truth about what the commit held."""
        if self._far_sealed:
            for id_ in self._far_sealed:
                self._far.pop(id_, None)
            self._far_sealed = []
        if self._over_sealed:
            self._moved = True
            self._over_committed.extend(self._over_sealed)
            self._over_sealed = []
            self._forget_over()

    def _forget_over(self) -> None:
        if not self._loading:
            self._over.difference_update(self._over_committed)
            self._over_committed = []

    # Loads

    def load_until_ms(self, time_ms: int) -> int | None:
        """Return up to when records should be read from the store now; None if not yet."""
        if self._loading or time_ms + HORIZON_MS / 2 < self._horizon_ms:
            return None
        if self._truncated and (
            not self._moved or (self.by_time and self.by_time[0][0] <= self._horizon_ms)
        ):
            # The store would tell the same ones again, and nothing behind them.
            return None
        self._loading = True
        self._moved = False
        until_ms = time_ms + HORIZON_MS
        # What is set from here on is kept in memory, as is what the load cannot find.
        self._horizon_ms = until_ms
        for id_, (due_ms, value) in list(self._far.items()):
            if due_ms < until_ms:
                del self._far[id_]
                self._insert(id_, due_ms, value)
        return until_ms

    def loaded(self, records: Sequence[Record]) -> list[str]:
        """The store has answered with its first records due before what was asked for.

        Those that are damaged are left where they are; returned is what is to be said of them.
        """
        self._loading = False
        problems: list[str] = []
        for record in records:
            if record.value is None or record.due_ms is None:
                continue
            known = self._values, self._over, self._given, self._damaged
            if any(record.id in each for each in known):
                continue
            try:
                value = decoded(self._decode, self._of, record)
            except CorruptDataError as error:
                self._damaged.add(record.id)
                problems.append(str(error))
            else:
                self._insert(record.id, record.due_ms, value)
        self._truncated = len(records) >= self.loaded_max
        if self._truncated and records[-1].due_ms is not None:
            self._horizon_ms = records[-1].due_ms
        self._forget_over()
        return problems
