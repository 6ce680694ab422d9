"""Keeps one partition's messages in what the worker knows of all that waits.

They stand in the worker's backlog, by deadline, as long as somebody wants to know what waits. Where
work is lent, arrivals and hot keys are noted as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sublet.runtime.partition.model.environment import WorkerEnvironment
from sublet.runtime.partition.model.work import Chunk, QueuedMessage

if TYPE_CHECKING:
    from sublet.runtime.partition.partition import Partition


class LoadTracker:
    __slots__ = (
        "_backlog",
        "_closed",
        "_function",
        "_lendable",
        "_lends_parts",
        "_owner",
        "_tracks_all",
        "_urgency",
    )

    def __init__(self, owner: Partition, worker: WorkerEnvironment, *, lends_parts: bool) -> None:
        """`lends_parts`: what waits for a busy key may run in parts elsewhere."""
        self._owner = owner
        self._function = owner.function
        self._urgency = worker.urgency
        self._backlog = worker.backlog
        self._tracks_all = worker.tracks_all
        self._lendable = worker.lendable
        self._lends_parts = lends_parts
        self._closed = False

    def close(self) -> None:
        """Nothing of this partition waits any more, for good."""
        self._closed = True

    def reply_after_ms(self, count: int, deadline_ms: float) -> float:
        """Return after how long a request would be answered that stands behind `count` others of
        its own batch and behind everything that is due before it."""
        function, urgency = self._function, self._urgency
        ahead_ms = 0.0
        if self._backlog is not None:
            ahead_ms = self._backlog.cost_ahead_ms(urgency.due_ms(function, deadline_ms))
        own_ms = urgency.expected_ms(function, count + 1)
        return ahead_ms + own_ms + urgency.paths.path_ms(function.name)

    # Chunks

    def arrived(self, chunk: Chunk) -> None:
        """A chunk has come, and could be lent."""
        assert self._lendable is not None
        self._lendable.unbound.append((self._owner, chunk))

    def track(self, chunk: Chunk) -> None:
        """Count what is left of a chunk in all that waits in the worker."""
        assert self._backlog is not None
        self.untrack(chunk)
        if chunk.count and not self._closed:
            due_ms = self._urgency.due_ms(self._function, chunk.earliest_ms)
            cost_ms = self._urgency.occupies_ms(self._function, chunk.count)
            chunk.entry = self._backlog.put(due_ms, cost_ms, (self._owner, chunk))

    def untrack(self, chunk: Chunk) -> None:
        """Do not count a chunk any more."""
        if chunk.entry is not None:
            assert self._backlog is not None
            self._backlog.remove(chunk.entry)
            chunk.entry = None

    def changed(self, chunk: Chunk) -> None:
        """Something has come to a chunk of the backlog, or was taken from it."""
        if chunk.entry is not None or self._tracks_all:
            self.track(chunk)

    # Messages that wait by themselves

    def track_message(self, waiting: QueuedMessage, now_ms: float) -> None:
        """Count a message that waits by itself in all that waits in the worker."""
        if self._backlog is not None and waiting.entry is None:
            urgency, due_ms = self._urgency, waiting.deadline_ms
            due_ms = now_ms + urgency.patience_ms if due_ms is None else due_ms
            due_ms = urgency.due_ms(self._function, due_ms)
            cost_ms = urgency.occupies_ms(self._function, 1)
            waiting.entry = self._backlog.put(due_ms, cost_ms, None)

    def untrack_message(self, waiting: QueuedMessage) -> None:
        """Do not count a message any more, if it is counted by itself."""
        if waiting.entry is not None:
            assert self._backlog is not None
            self._backlog.remove(waiting.entry)
            waiting.entry = None

    # Hot keys

    def has_waiter(self, lock: str) -> None:
        """One more message waits for a busy key: note the key, if it could run in parts."""
        if self._lends_parts:
            self.is_hot(lock)

    def is_hot(self, lock: str) -> None:
        """Messages wait for a busy key: note it for those who look for what could be lent."""
        if self._lendable is not None:
            self._lendable.hot_keys[self._owner.name, lock] = self._owner
