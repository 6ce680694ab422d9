"""What all who look at the load of a worker are told of one partition.

Its messages stand in the worker's laxity queue, by deadline, as long as somebody wants to know what
waits; where work is lent, what has come and the keys that messages wait for are told as well.
"""

from __future__ import annotations

from typing import Protocol

from sublet.functions.app import Function
from sublet.runtime.partition.model.work import Chunk, QueuedMessage
from sublet.scheduler.urgency import Urgency


class QueueOwner(Protocol):
    """The partition whose queue it is."""

    @property
    def name(self) -> str: ...

    @property
    def function(self) -> Function: ...


class LoadTracker:
    __slots__ = ("_closed", "_function", "_lends_parts", "_owner", "_urgency")

    def __init__(self, owner: QueueOwner, urgency: Urgency, *, lends_parts: bool) -> None:
        """`lends_parts`: what waits for a busy key may run in parts elsewhere."""
        self._owner = owner
        self._function = owner.function
        self._urgency = urgency
        self._lends_parts = lends_parts
        self._closed = False

    def close(self) -> None:
        """Nothing of this partition waits any more, for good."""
        self._closed = True

    # Chunks

    def arrived(self, chunk: Chunk) -> None:
        """A chunk has come, and could be lent; somebody looks at what could."""
        assert self._urgency.unseen is not None
        self._urgency.unseen.append((self._owner, chunk))

    def track(self, chunk: Chunk) -> None:
        """Count what is left of a chunk in all that waits in the worker."""
        urgency = self._urgency
        assert urgency.waiting is not None
        self.untrack(chunk)
        if chunk.count and not self._closed:
            due_ms = urgency.due_ms(self._function, chunk.earliest_ms)
            cost_ms = urgency.occupies_ms(self._function, chunk.count)
            chunk.entry = urgency.waiting.put(due_ms, cost_ms, (self._owner, chunk))

    def untrack(self, chunk: Chunk) -> None:
        """Do not count a chunk any more."""
        if chunk.entry is not None:
            assert self._urgency.waiting is not None
            self._urgency.waiting.remove(chunk.entry)
            chunk.entry = None

    def changed(self, chunk: Chunk) -> None:
        """Something has come to a chunk of the backlog, or was taken from it."""
        if chunk.entry is not None or self._urgency.weighs_all:
            self.track(chunk)

    # Messages that wait by themselves

    def track_message(self, waiting: QueuedMessage, now_ms: float) -> None:
        """Count a message that waits by itself in all that waits in the worker."""
        urgency = self._urgency
        if urgency.waiting is not None and waiting.entry is None:
            due_ms = waiting.deadline_ms
            due_ms = now_ms + urgency.patience_ms if due_ms is None else due_ms
            due_ms = urgency.due_ms(self._function, due_ms)
            cost_ms = urgency.occupies_ms(self._function, 1)
            waiting.entry = urgency.waiting.put(due_ms, cost_ms, None)

    def untrack_message(self, waiting: QueuedMessage) -> None:
        """Do not count a message any more, if it is counted by itself."""
        if waiting.entry is not None:
            assert self._urgency.waiting is not None
            self._urgency.waiting.remove(waiting.entry)
            waiting.entry = None

    # Hot keys

    def has_waiter(self, lock: str) -> None:
        """One more message waits for a busy key: tell it, if it could run in parts elsewhere."""
        if self._lends_parts:
            self.is_hot(lock)

    def is_hot(self, lock: str) -> None:
        """Messages wait for a busy key: tell it to those who look for what could be lent."""
        if self._urgency.unseen is not None:
            self._urgency.crowds[self._owner.name, lock] = self._owner
