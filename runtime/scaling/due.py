"""When a cluster without workers needs one again, by what its store has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sublet.runtime.partition.partition import Partition
from sublet.statestore.contract import TIMER, WINDOW, Store

EVER_MS = 2**53
"""After everything that is due at some time; every store can compare it."""
READS_MAX = 16
"""Partitions that are looked at at once."""


async def first_due_ms(
    store: Store, partitions: Sequence[Partition], now_ms: float
) -> float | None:
    """Return in how many milliseconds the first timer is due, or the first window that closes by
    the clock; None if there is none. Windows of events' own time wait for what somebody sends."""
    room = asyncio.Semaphore(READS_MAX)

    async def first_of(partition: Partition, kind: str) -> float | None:
        async with room:
            found = await store.records_due(partition.name, kind, EVER_MS, 1)
        due = [each.due_ms for each in found if each.due_ms is not None]
        return min(due) - partition.clock_ms(now_ms) if due else None

    by_clock = [each for each in partitions if each.progress.is_used and each.progress.by_clock]
    found = await asyncio.gather(
        *(first_of(each, TIMER) for each in partitions),
        *(first_of(each, WINDOW) for each in by_clock),
    )
    due = [due_ms for due_ms in found if due_ms is not None]
    return max(0.0, min(due)) if due else None
