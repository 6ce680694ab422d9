"""Which of a worker's partitions has its turn: the upper level of the two-level queue.

Holds one place for each partition that could run something, ranked by its most urgent message.
The messages themselves stay in their partitions until their turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sized
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar, runtime_checkable

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
        self.waiting: Sized = self._places
        """Who waits; for those who ask so often whether anybody does that a call is too much."""
        self._number = 0
        self._turns_by_rank = GUARD_EVERY
        # Keeps places that were taken or ranked anew meanwhile; they are skipped when met.
        self._by_rank: list[tuple[float, int, str]] = []
        self._oldest_ms = math.inf
        """Nobody has waited since before; looked up only when somebody may have for too long."""

    def __len__(self) -> int:
        return len(self._places)

    def put(self, name: str, item: T, rank: float, arrived_ms: float) -> None:
        """Enter, or rank anew who is in the queue already: that keeps its place among equals."""
        if arrived_ms < self._oldest_ms:
            self._oldest_ms = arrived_ms
        place = self._places.get(name)
        if place is None:
            self._number += 1
            place = self._places[name] = _Place(name, item, rank, arrived_ms, self._number)
        else:
            place.item = item
            if arrived_ms < place.arrived_ms:
                place.arrived_ms = arrived_ms
            if place.rank == rank:
                return
            place.rank = rank
        heappush(self._by_rank, (rank, place.number, name))
        if len(self._by_rank) > 2 * len(self._places) + STALE_MAX:
            self._forget_stale()

    def starves(self, now_ms: float) -> bool:
        """Tell whether somebody has waited for too long."""
        if now_ms - self._oldest_ms < self._starvation_ms:
            return False
        oldest = self._oldest()
        return oldest is not None and now_ms - oldest.arrived_ms >= self._starvation_ms

    def pop(self, now_ms: float) -> T | None:
        """Remove and return whose turn it is; None if nobody waits."""
        found = self.pop_named(now_ms)
        return None if found is None else found[1]

    def pop_named(self, now_ms: float) -> tuple[str, T] | None:
        """As `pop`, with the name."""
        turns = self._turns_by_rank
        if turns >= GUARD_EVERY - 1 and now_ms - self._oldest_ms >= self._starvation_ms:
            oldest = self._oldest()
            if oldest is not None and now_ms - oldest.arrived_ms >= self._starvation_ms:
                self._turns_by_rank = 0
                del self._places[oldest.name]
                return oldest.name, oldest.item
        first = self._first()
        if first is None:
            return None
        self._turns_by_rank = turns + 1
        heappop(self._by_rank)
        del self._places[first.name]
        return first.name, first.item

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
            rank, number, name = heap[0]
            place = places.get(name)
            if place is not None and place.number == number and place.rank == rank:
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
        self._by_rank = [(each.rank, each.number, each.name) for each in self._places.values()]
        heapify(self._by_rank)


@runtime_checkable
class Lanes(Protocol):
    """An order by which work waits in several lanes, of which one has its turn."""

    def lane_of(self, function: str) -> str: ...

    def entered(self, lane: str) -> None:
        """Something waits in a lane that was empty."""
        ...

    def first(self, lanes: Iterable[str]) -> str:
        """Return which of the lanes, in which something waits, has its turn."""
        ...


class LanedQueue(ReadyQueue[T]):
    """A ready queue for each lane. The order chooses the lane, and ranks count inside it."""

    def __init__(self, lanes: Lanes, starvation_ms: float = STARVATION_MS) -> None:
        super().__init__(starvation_ms)
        self._order = lanes
        self._queues: dict[str, ReadyQueue[T]] = {}
        self._lane_of: dict[str, str] = {}
        """Name to the lane that it waits in."""
        self.waiting = self._lane_of

    def __len__(self) -> int:
        return len(self._lane_of)

    def put(self, name: str, item: T, rank: float, arrived_ms: float) -> None:
        lane = self._lane_of.get(name)
        if lane is None:
            lane = self._lane_of[name] = self._order.lane_of(_function_of(name))
        queue = self._queues.get(lane)
        if queue is None:
            queue = self._queues[lane] = ReadyQueue(self._starvation_ms)
            self._order.entered(lane)
        queue.put(name, item, rank, arrived_ms)

    def pop(self, now_ms: float) -> T | None:
        if not self._queues:
            return None
        lane = self._overdue(now_ms) or self._order.first(self._queues)
        queue = self._queues[lane]
        found = queue.pop_named(now_ms)
        assert found is not None
        name, item = found
        del self._lane_of[name]
        if not queue:
            del self._queues[lane]
        return item

    def _overdue(self, now_ms: float) -> str | None:
        """Return the lane of who has waited too long, now and then."""
        self._turns_by_rank += 1
        if self._turns_by_rank < GUARD_EVERY:
            return None
        starving = [lane for lane, queue in self._queues.items() if queue.starves(now_ms)]
        if not starving:
            return None
        self._turns_by_rank = 0
        # Lanes stand in the order in which they began to wait.
        return starving[0]

    def discard(self, name: str) -> None:
        lane = self._lane_of.pop(name, None)
        if lane is not None:
            queue = self._queues[lane]
            queue.discard(name)
            if not queue:
                del self._queues[lane]

    def rank(self) -> float | None:
        ranks = [queue.rank() for queue in self._queues.values()]
        return min((rank for rank in ranks if rank is not None), default=None)


def _function_of(name: str) -> str:
    """Return the function of a partition in line, of its loaded work, or of a guest."""
    if name.startswith("\x00"):
        name = name[1:].rsplit("/", 2)[0]
    return name.partition("\x00")[0].rpartition("/")[0]


def ready_queue(order: object, starvation_ms: float = STARVATION_MS) -> ReadyQueue[T]:
    """Return a queue for what is ranked by an order."""
    if isinstance(order, Lanes):
        return LanedQueue(order, starvation_ms)
    return ReadyQueue(starvation_ms)
