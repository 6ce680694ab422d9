"""An exact range of an egress, in a client: columns of values, pages of several partitions at once.

For whoever has cut an egress into ranges and reads them side by side, as a job of Spark does. The
same range is always the same values: positions have no gaps, and what is gone is told.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import structlog

from sublet.functions.errors import EgressLostError, RejectedError, UnavailableError
from sublet.runtime.client.egress_cursor import EgressCursor
from sublet.runtime.client.egress_reader import FOLLOW_WAIT_MS, LOST_KEPT_MAX
from sublet.runtime.protocol.egress import described
from sublet.runtime.protocol.rpc import (
    EGRESS_LIMIT_MAX,
    EgressGap,
    EgressPage,
    EgressRequest,
    EgressValues,
)

_log = structlog.get_logger(__name__)

PARALLEL_DEFAULT = 4
PARALLEL_MAX = 64
PAGE_ROWS_MAX = 10_000


class _Left(NamedTuple):
    """What is still to be read of a partition: `position` .. `stop - 1`."""

    partition: str
    position: int
    stop: int


class EgressRange:
    """Reads the values between two cursors, of the partitions that the second one names.

    `async for values in client.egress_range(...)`, or `next_batch`. Values of one partition come
    in order. One page of each of `parallel` partitions is in memory. After an `UnavailableError`
    it can be asked to go on.
    """

    def __init__(
        self,
        ask: Callable[[EgressRequest], Awaitable[EgressPage]],
        egress: str,
        start: str | EgressCursor,
        end: str | EgressCursor,
        *,
        lost: Literal["raise", "skip"] = "raise",
        parallel: int = PARALLEL_DEFAULT,
        page_max: int = PAGE_ROWS_MAX,
    ) -> None:
        """See `Client.egress_range`."""
        if lost not in ("raise", "skip"):
            raise ValueError(f"lost is {lost!r}; allowed: 'raise', 'skip'")
        if not 1 <= parallel <= PARALLEL_MAX:
            raise ValueError(f"parallel is {parallel}; allowed: 1..{PARALLEL_MAX}")
        if not 1 <= page_max <= EGRESS_LIMIT_MAX:
            raise ValueError(f"page_max is {page_max}; allowed: 1..{EGRESS_LIMIT_MAX}")
        self._egress = egress
        self._lost: deque[EgressGap] = deque(maxlen=LOST_KEPT_MAX)
        self._ask = ask
        self._skips_lost = lost == "skip"
        self._parallel = parallel
        self._page_max = page_max
        self._left = deque(ranges_between(EgressCursor(str(start)), EgressCursor(str(end))))
        self._waiting: deque[EgressValues] = deque()

    @property
    def egress(self) -> str:
        return self._egress

    @property
    def lost(self) -> Sequence[EgressGap]:
        """What was skipped (with `lost="skip"`), the latest of it."""
        return self._lost

    def __aiter__(self) -> EgressRange:
        return self

    async def __anext__(self) -> EgressValues:
        if not self.has_waiting and not await self.fill():
            raise StopAsyncIteration
        return self.take()

    async def next_batch(self) -> list[EgressValues]:
        """Return the next pages of some partitions; nothing once everything was read."""
        while self._left:
            asked = [self._left[each] for each in range(min(self._parallel, len(self._left)))]
            pages = await _all([self._page(each) for each in asked])
            # Only now is anything changed: who was disturbed before it asks for the same again.
            found: list[EgressValues] = []
            for left, page in zip(asked, pages, strict=True):
                self._left.popleft()
                reached = self._take_lost(left, page)
                for entry in page.entries:
                    assert entry.first == reached, "an unreported gap"
                    found.append(entry)
                    reached = entry.first + entry.count
                if reached < left.stop:
                    self._left.append(_Left(left.partition, reached, left.stop))
            if found:
                return found
        return []

    @property
    def has_waiting(self) -> bool:
        """Tell whether values were read that were not given out."""
        return bool(self._waiting)

    async def fill(self) -> bool:
        """Read pages if none is waiting; return whether one is then, or all is read."""
        if not self._waiting:
            self._waiting.extend(await self.next_batch())
        return bool(self._waiting)

    def take(self) -> EgressValues:
        """Give out values that are waiting."""
        return self._waiting.popleft()

    async def _page(self, left: _Left) -> EgressPage:
        partition, position, stop = left
        page = await self._ask(
            EgressRequest(
                egress=self._egress,
                positions={partition: position},
                until={partition: stop},
                limit=min(stop - position, self._page_max),
                wait_ms=FOLLOW_WAIT_MS,
                skip_lost=True,
            )
        )
        end = page.bounds.get(partition, (0, 0))[1]
        if stop > end:
            raise RejectedError(
                f"position {stop} of {partition} in {self._egress} is beyond its end, {end}: "
                "the cursor belongs to another egress, or the store has lost data"
            )
        if page.lost and not self._skips_lost:
            raise EgressLostError(f"{self._egress}: {described(_cut(page.lost, stop))}")
        if not page.entries and not page.lost:
            raise UnavailableError(
                f"positions {position}..{stop - 1} of {partition} in {self._egress} cannot be read"
            )
        return page

    def _take_lost(self, left: _Left, page: EgressPage) -> int:
        """Take note of what is gone; return where the values of the page begin."""
        if not page.lost:
            return left.position
        lost = _cut(page.lost, left.stop)
        _log.warning("egress values were lost", egress=self._egress, what=described(lost))
        self._lost.extend(lost)
        return max(each.next for each in lost)


def ranges_between(start: EgressCursor, end: EgressCursor) -> list[_Left]:
    """Return what is to be read between two cursors; what `start` does not name begins at 0."""
    found = [_Left(partition, start.get(partition) or 0, stop) for partition, stop in end]
    return [each for each in found if each.position < each.stop]


def _cut(lost: list[EgressGap], stop: int) -> list[EgressGap]:
    """Return the gaps as far as they were asked for."""
    return [msgspec.structs.replace(each, next=min(each.next, stop)) for each in lost]


async def _all(asked: list[Coroutine[Any, Any, EgressPage]]) -> list[EgressPage]:
    """Wait for all pages; the first failure ends the others, and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as tasks:
            reading = [tasks.create_task(each) for each in asked]
    except BaseExceptionGroup as group:
        # Readers know how to handle the one error, not a group of them.
        raise group.exceptions[0] from None
    return [each.result() for each in reading]
