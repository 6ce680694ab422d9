"""Handlers that await something: which messages they handle, and when nobody waits for them.

At most `open_calls_max` of messages that clients have sent; beyond that only messages of other
partitions may come, for which handlers may be waiting there.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from sublet.runtime.partition.model.effects import Interrupt
from sublet.runtime.partition.model.work import QueuedMessage

EXPIRIES_SPARE = 64


class AwaitingHandlers:
    __slots__ = ("_open_max", "by_id", "expiries", "room")

    def __init__(self, open_max: int) -> None:
        self.by_id: dict[str, QueuedMessage] = {}
        """Their messages."""
        self.expiries: list[tuple[float, int, QueuedMessage]] = []
        """A heap of their deadlines, where these end what nobody waits for."""
        self.room = open_max
        """How many more may begin to await something; negative if there are too many."""
        self._open_max = open_max

    def suspended(self, waiting: QueuedMessage) -> Interrupt | None:
        """A handler goes on later; if it is to end instead, return that."""
        message = waiting.message
        self.by_id[message.id] = waiting
        self.room = self._open_max - len(self.by_id)
        if waiting.interrupted is not None:
            # Cancelled during its first step.
            return Interrupt(message.id, waiting.interrupted)
        if waiting.expires and waiting.deadline_ms is not None:
            heappush(self.expiries, (waiting.deadline_ms, message.order, waiting))
            if len(self.expiries) > 2 * len(self.by_id) + EXPIRIES_SPARE:
                # Most end long before: forget those now and then.
                self.expiries[:] = [each for each in self.expiries if not each[2].ended]
                heapify(self.expiries)
        return None

    def ended(self, message_id: str) -> QueuedMessage | None:
        """A handler is done; return its message, if it is one of these."""
        waiting = self.by_id.pop(message_id, None)
        self.room = self._open_max - len(self.by_id)
        return waiting

    def expired(self, now_ms: float) -> Iterator[QueuedMessage]:
        """Give, once, each whose deadline has passed; it may have ended long ago."""
        while self.expiries and self.expiries[0][0] < now_ms:
            yield heappop(self.expiries)[2]

    def keys(self) -> list[str]:
        """Return the keys whose states they use."""
        return [each.message.key for each in self.by_id.values()]
