"""ScalaSSC's queue for partitioned state: batches of few keys, and nobody waits for ever.

Requests for the same key are best run together: their state is locked, read and written once.
So a batch that has begun with a key goes on with the key's next requests, although others came
earlier, as long as they did not come too much later. How much is counted in batches: each request
carries the index of the batch that it would be in if all ran in the order of arrival. The order
for each key is that of arrival.

Decides only what is in a batch and when; time and how many executors are busy come as arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from math import isfinite
from typing import Generic, TypeVar

BATCH_SIZE = 20
BATCH_WAIT_MS = 20.0
EXECUTORS_MAX = 10

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class _Request(Generic[K, T]):
    __slots__ = ("arrived_ms", "batch", "item", "key", "taken")

    def __init__(self, key: K, item: T, arrived_ms: float, batch: int) -> None:
        self.key = key
        self.item = item
        self.arrived_ms = arrived_ms
        self.batch = batch
        self.taken = False


class GroupedQueue(Generic[K, T]):
    """Batches of `batch_size`, or of what there is when the oldest has waited `batch_wait_ms`.

    A request is preferred for its key only while its index is less than `executors_max` ahead of
    the smallest that waits: it would have run beside the oldest anyway, if all executors took a
    batch in the order of arrival. Therefore fewer than `overtaking_max` later requests run before
    any request. And the first of each batch is always the oldest of all.

    All operations take O(1) for a request, on average over a queue's life: each one stands in its
    key's line and in the line of all. One that was taken for its key stays in the line of all until
    those before it are gone, marked; by the same bound that are fewer than `overtaking_max`.

    The queue has no bound of its own: whoever puts something in looks at its length.
    """

    def __init__(
        self,
        *,
        batch_size: int = BATCH_SIZE,
        batch_wait_ms: float = BATCH_WAIT_MS,
        executors_max: int = EXECUTORS_MAX,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; allowed: 1 or more")
        if not (isfinite(batch_wait_ms) and batch_wait_ms >= 0.0):
            raise ValueError(f"batch_wait_ms is {batch_wait_ms}; allowed: 0 or more")
        if executors_max < 1:
            raise ValueError(f"executors_max is {executors_max}; allowed: 1 or more")
        self._batch_size = batch_size
        self._batch_wait_ms = batch_wait_ms
        self._executors_max = executors_max
        self._count = 0
        self._batch = 1
        self._batch_fill = 0
        self._by_key: dict[K, deque[_Request[K, T]]] = {}
        # May hold requests that were taken; the first of them never is.
        self._by_arrival: deque[_Request[K, T]] = deque()

    def __len__(self) -> int:
        return self._count

    @property
    def overtaking_max(self) -> int:
        """Fewer later requests than this run before any request."""
        return self._batch_size * self._executors_max

    def put(self, key: K, item: T, now_ms: float) -> None:
        request = _Request(key, item, now_ms, self._batch)
        self._count += 1
        self._batch_fill += 1
        if self._batch_fill == self._batch_size:
            self._begin_batch()
        self._by_arrival.append(request)
        line = self._by_key.get(key)
        if line is None:
            line = self._by_key[key] = deque()
        line.append(request)

    def next_ready_ms(self, now_ms: float) -> float | None:
        """Return when a batch can be taken if nothing more comes; None if nothing waits.

        Not before `now_ms`. Whether an executor is free is not asked here.
        """
        if not self._count:
            return None
        if self._count >= self._batch_size:
            return now_ms
        return max(now_ms, self._by_arrival[0].arrived_ms + self._batch_wait_ms)

    def take(self, now_ms: float, executors_busy: int, room: int | None = None) -> list[T]:
        """Return the next batch; nothing if none is ready, or no executor is free.

        With `room`, a batch of at most so many, for who cannot run a whole one just now.
        """
        size = self._batch_size if room is None else min(room, self._batch_size)
        ready_ms = self.next_ready_ms(now_ms)
        if ready_ms is None or ready_ms > now_ms or executors_busy >= self._executors_max:
            return []
        by_arrival, by_key = self._by_arrival, self._by_key
        batch: list[T] = []
        line: deque[_Request[K, T]] | None = None
        while by_arrival and len(batch) < size:
            oldest = by_arrival[0]
            if not line or line[0].batch - oldest.batch >= self._executors_max:
                line = by_key[oldest.key]
            request = line.popleft()
            request.taken = True
            batch.append(request.item)
            if not line:
                del by_key[request.key]
            while by_arrival and by_arrival[0].taken:
                by_arrival.popleft()
        self._count -= len(batch)
        if not self._count and len(batch) < self._batch_size:
            # What comes now cannot be in this batch any more.
            self._begin_batch()
        return batch

    def _begin_batch(self) -> None:
        self._batch += 1
        self._batch_fill = 0
