"""Which states a run has to wait for, and what is read before anybody asks.

The states in memory (`Cells`) and, where there is one, the `Prefetch` beside them. No effects: the
partition reads what is named here, and tells what it has read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sublet.functions.app import Function
from sublet.runtime.partition.model.effects import Cells, Counters, Fetch
from sublet.runtime.partition.model.work import Chunk, Work
from sublet.runtime.partition.queue.backlog import IN_LINE
from sublet.runtime.partition.queue.state_prefetch import Prefetch
from sublet.statestore.contract import StateRow


class StateLoader:
    __slots__ = ("_by_batch", "_cells", "_counters", "_kind", "_prefetch", "prefetches")

    def __init__(
        self, function: Function, cells: Cells, prefetch: Prefetch | None, counters: Counters
    ) -> None:
        self._kind = function.kind
        self._by_batch = function.takes_batch
        self._cells = cells
        self._prefetch = prefetch if function.kind == "keyed" else None
        self._counters = counters
        self.prefetches = self._prefetch is not None
        """States are read before they are needed."""

    # Runs

    def needed(self, work: Work) -> Sequence[str]:
        """Return the keys whose states a run has to read, and not wait for others to bring."""
        missing: Sequence[str] = ()
        if self._kind == "keyed":
            # A batch may have few keys for many messages.
            missing = self._cells.missing(work.distinct_keys if self._by_batch else work.keys)
        elif self._kind == "stateful":
            missing = self._cells.missing([""])
        prefetch = self._prefetch
        if prefetch is not None:
            if prefetch.fetched:
                self._counters.prefetch_hits += prefetch.use(work.keys)
            if missing:
                missing = prefetch.load(work, missing)
        return missing

    def waits(self, work: Work) -> bool:
        """Tell whether a run that has nothing to read waits for what is being fetched."""
        return self._prefetch is not None and self._prefetch.waits(work)

    def loaded(self, keys: Sequence[str], rows: Sequence[StateRow]) -> None:
        """The states that a run had to read are here."""
        self._cells.insert(keys, rows)
        if self._prefetch is not None:
            self._prefetch.loaded(keys)

    def dropped(self, work: Work) -> None:
        """A run will not take place."""
        if self._prefetch is not None:
            self._prefetch.ended(work)

    # Reading ahead

    def arrived(self, chunk: Chunk) -> None:
        """Messages have come that wait for a run."""
        if self._prefetch is not None and chunk.batch.kind not in IN_LINE:
            self._prefetch.arrived(chunk)

    def fetched(self, keys: Sequence[str], rows: Sequence[StateRow]) -> list[Work]:
        """What `Fetch` asked for is here; return the runs that have waited for it."""
        assert self._prefetch is not None
        fresh, able = self._prefetch.done(keys)
        if len(fresh) < len(keys):
            known = set(fresh)
            rows = [row for row in rows if row.key in known]
        self._cells.insert(fresh, rows)
        self._counters.prefetched += len(fresh)
        for work in able:
            self._counters.prefetch_hits += self._prefetch.use(work.keys)
        return able

    def fetch(self) -> Fetch | None:
        """Return what is to be read of what has come and cannot run yet."""
        prefetch = self._prefetch
        if prefetch is None:
            return None
        prefetch.look()
        keys = prefetch.begin()
        return Fetch(keys) if keys else None

    @property
    def has_unread(self) -> bool:
        """Messages have come whose keys nobody has looked at."""
        return self._prefetch is not None and bool(self._prefetch.unread_chunks)

    def forget_unused(self) -> None:
        """Nothing is queued any more that could need what was fetched."""
        prefetch = self._prefetch
        if prefetch is not None and (prefetch.unread_chunks or prefetch.fetched):
            prefetch.forget_unused()

    # Memory

    def replace(self, key: str, rows: Sequence[StateRow]) -> None:
        """Somebody has changed the state of a key by hand, into this."""
        if self._prefetch is not None:
            self._prefetch.touched(key)
        self._cells.drop(key)
        self._cells.insert([key], rows)

    def keys_fetched(self) -> Collection[str]:
        """Return the keys that are in memory for what waits."""
        return () if self._prefetch is None else self._prefetch.fetched
