"""What waits in a worker, over all its partitions, and what of it could be lent."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from sublet.scheduler.laxity_queue import Entry, LaxityQueue

if TYPE_CHECKING:
    from sublet.runtime.partition.model.work import Chunk
    from sublet.runtime.partition.partition import Partition

QueuedChunk: TypeAlias = "tuple[Partition, Chunk]"
BacklogEntry: TypeAlias = "Entry[QueuedChunk | None]"
WorkerBacklog: TypeAlias = "LaxityQueue[QueuedChunk | None]"
"""By deadline. None stands for what cannot be lent from here: a guest, or a message that waits by
itself."""


class LendableWork:
    """What the binding policies of a worker have to be asked about."""

    __slots__ = ("backlog", "hot_keys", "unbound")

    def __init__(self, backlog: WorkerBacklog) -> None:
        self.backlog = backlog
        self.unbound: deque[QueuedChunk] = deque()
        """Chunks that have come since the policies were asked last. Whoever runs all that waits
        clears it."""
        self.hot_keys: dict[tuple[str, str], Partition] = {}
        """Busy keys whose waiters could be lent, by partition name and key."""

    def has_unbound(self) -> bool:
        """Tell whether a policy has yet to be asked about some message."""
        return any(chunk.count for _, chunk in self.unbound)
