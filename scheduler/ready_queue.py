"""Which of a worker's partitions has its turn: the upper level of the two-level queue.

Holds one place for each partition that could run something, ranked by its most urgent message.
The messages themselves stay in their partitions until their turn.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

STARVATION_MS = 10_000.0
GUARD_EVERY = 10
"""At most one turn in so many goes to who has waited too long: under lasting overload everybody
has, and the order must still count."""
STALE_MAX = 64

T = TypeVar("T")


class _Place(Generic[T]):
    __slots__ = ("arrived_ms", "item", "name", "number", "rank")

    def __init__(self, name: str, item: T, rank: float, arrived_ms: float, number: int) -> None:
        self.name = name
        self.item = item
        self.rank = rank
        self.arrived_ms = arrived_ms
        self.number = number


class ReadyQueue(Generic[T]):
    """Smallest rank first, among equals who has waited for the longest.

    Whatever the ranks say, now and then a turn goes to who has waited for `starvation_ms`: no
    order can leave anybody behind for ever.
    """

    def __init__(self, starvation_ms: float = STARVATION_MS) -> None:
        self._starvation_ms = starvation_ms
        self._places: dict[str, _Place[T]] = {}
        self._number = 0
        self._turns_by_rank = GUARD_EVERY
        # Keeps places that were taken or ranked anew meanwhile; they are skipped when met.
        self._by_rank: list[tuple[float, int, str]] = []
        self._oldest_ms = math.inf
        """Nobody has waited since before; looked up only when somebody may have for too long."""

    def __len__(self) -> int:
        return len(self._places)

    def put(self, name: str, item: T, rank: float, arrived_ms: float) -> None:
        """Enter, or rank anew who is in the queue already."""
        known = self._places.get(name)
        if known is not None:
            if known.rank == rank and known.arrived_ms <= arrived_ms:
                return
            arrived_ms = min(arrived_ms, known.arrived_ms)
        self._number += 1
        self._places[name] = _Place(name, item, rank, arrived_ms, self._number)
        heappush(self._by_rank, (rank, self._number, name))
        if arrived_ms < self._oldest_ms:
            self._oldest_ms = arrived_ms
        if len(self._by_rank) > 2 * len(self._places) + STALE_MAX:
            self._forget_stale()

    def pop(self, now_ms: float) -> T | None:
        """Remove and return whose turn it is; None if nobody waits."""
        turns = self._turns_by_rank
        if turns >= GUARD_EVERY - 1 and now_ms - self._oldest_ms >= self._starvation_ms:
            oldest = self._oldest()
            if oldest is not None and now_ms - oldest.arrived_ms >= self._starvation_ms:
                self._turns_by_rank = 0
                del self._places[oldest.name]
                return oldest.item
        first = self._first()
        if first is None:
            return None
        self._turns_by_rank = turns + 1
        heappop(self._by_rank)
        del self._places[first.name]
        return first.item

    def discard(self, name: str) -> None:
        """Leave the queue, if in it."""
        self._places.pop(name, None)

    def rank(self) -> float | None:
        """Return the smallest rank that waits."""
        first = self._first()
        return None if first is None else first.rank

    def _first(self) -> _Place[T] | None:
        heap, places = self._by_rank, self._places
        while heap:
            _, number, name = heap[0]
            place = places.get(name)
            if place is not None and place.number == number:
                return place
            heappop(heap)
        return None

    def _oldest(self) -> _Place[T] | None:
        oldest = min(
            self._places.values(), key=lambda each: (each.arrived_ms, each.number), default=None
        )
        self._oldest_ms = math.inf if oldest is None else oldest.arrived_ms
        return oldest

    def _forget_stale(self) -> None:
        places, heap = self._places, self._by_rank
        heap[:] = [each for each in heap if each[2] in places and places[each[2]].number == each[1]]
        heapify(heap)
