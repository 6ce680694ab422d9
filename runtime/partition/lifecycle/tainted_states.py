"""States that a handler which was given up may go on changing: they are read again, once everything
that is known of them is stored."""

from __future__ import annotations

from collections.abc import Iterable

from sublet.runtime.partition.commit.pending_commit import PendingCommit
from sublet.runtime.partition.lifecycle.inflight_commit import InFlightCommit
from sublet.runtime.partition.model.effects import Cells
from sublet.runtime.partition.queue.leased_work import LeasedWork


class TaintedStates:
    __slots__ = ("_cells", "_in_flight_commit", "_leased", "_pending", "keys")

    def __init__(
        self,
        cells: Cells,
        *,
        pending: PendingCommit,
        in_flight_commit: InFlightCommit,
        leased: LeasedWork,
    ) -> None:
        self.keys: set[str] = set()
        self._cells = cells
        self._pending = pending
        self._in_flight_commit = in_flight_commit
        self._leased = leased

    def add(self, keys: Iterable[str]) -> None:
        self.keys.update(keys)

    def drop(self) -> bool:
        """Let them be read again, if that is possible now; return whether it is."""
        if self._in_flight_commit.commit is not None or self._pending.row_count:
            return False
        if self._leased.reads_for_parts:
            return False
        for key in self.keys:
            self._cells.drop(key)
        self.keys.clear()
        return True
