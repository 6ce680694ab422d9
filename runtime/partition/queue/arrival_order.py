"""The order of arrival: each message that is taken by itself has a place in it.

Retries and watermarks keep to these places, also with the next owner.
"""

from __future__ import annotations

from sublet.runtime.partition.model.clock import PartitionClock
from sublet.runtime.partition.model.work import Chunk, QueuedMessage
from sublet.runtime.partition.records.watermarks import StreamProgress


class ArrivalOrder:
    __slots__ = ("_clock", "_progress", "last")

    def __init__(self, progress: StreamProgress, clock: PartitionClock) -> None:
        self.last = progress.last_order
        """The place of the latest message."""
        self._progress = progress
        self._clock = clock

    def next(self) -> int:
        self.last += 1
        return self.last

    def next_of(self, count: int) -> int:
        """Give so many messages their places; return that of the first."""
        first = self.last + 1
        self.last += count
        return first

    @property
    def keeps_times(self) -> bool:
        """When a message arrived counts, and not only in which order."""
        return self._progress.by_arrival

    def recovered(self, order: int) -> None:
        """An earlier owner has given this place."""
        self.last = max(self.last, order)

    def message(self, chunk: Chunk, index: int) -> QueuedMessage:
        """Take one message out of its columns."""
        waiting = chunk.message(index, self.next())
        if self._progress.by_arrival:
            waiting.message.at_ms = self._clock.at_ms(chunk.arrived_ms)
        return waiting
