"""How a worker ends its own tasks."""

from __future__ import annotations

import asyncio

from sublet.runtime.worker import _cancelled


async def test_a_task_that_has_lost_a_cancellation_is_cancelled_again() -> None:
    lost = 0

    async def beat() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.sleep(3_600)
            except asyncio.CancelledError:
                lost += 1
                if lost > 2:
                    raise

    task = asyncio.create_task(beat())
    await asyncio.sleep(0)

    async with asyncio.timeout(10):
        await _cancelled(task)

    assert lost == 3
