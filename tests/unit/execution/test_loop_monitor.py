"""When a loop counts as blocked, and what is said of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import structlog

from sublet.runtime.execution.loop_monitor import OTHER, LoopMonitor, Running, SignsOfLife

LIMIT_S = 0.25


class NoHandlers:
    def running(self) -> Running | None:
        return None

    def running_aside(self) -> Iterable[Running]:
        return ()


def block() -> None:
    time.sleep(0.2)


def test_a_loop_is_blocked_when_no_answer_has_come_for_the_limit() -> None:
    signs = SignsOfLife(LIMIT_S)
    signs.asked(1.0)

    assert not signs.is_blocked(1.2)
    assert signs.is_blocked(1.25)


def test_a_loop_that_has_answered_is_not_blocked() -> None:
    signs = SignsOfLife(LIMIT_S)
    signs.asked(1.0)
    signs.answered()

    assert not signs.is_blocked(9.0)


def test_nobody_is_blamed_for_a_process_that_was_stopped() -> None:
    signs = SignsOfLife(LIMIT_S)

    assert not signs.was_stopped(1.0, cpu_s=0.5)
    assert not signs.was_stopped(1.05, cpu_s=0.5)
    assert signs.was_stopped(9.0, cpu_s=0.6)


def test_who_computes_without_a_break_is_to_blame() -> None:
    """It holds the interpreter, so that the monitor cannot look either."""
    signs = SignsOfLife(LIMIT_S)

    assert not signs.was_stopped(1.0, cpu_s=0.5)
    assert not signs.was_stopped(4.0, cpu_s=3.4)


async def test_what_blocks_the_loop_is_told_and_counted_without_a_handler_too() -> None:
    monitor = LoopMonitor(20, NoHandlers())
    with structlog.testing.capture_logs() as lines:
        monitor.start()
        # Once it is seen to live, block it.
        await asyncio.sleep(0)
        until_s = time.monotonic() + 5
        while not monitor.blocked and time.monotonic() < until_s:
            block()
            await asyncio.sleep(0.02)
        monitor.stop()

    count, total_s = monitor.blocked[OTHER]
    assert count >= 1
    assert total_s > 0.02
    told = [each for each in lines if each["event"].startswith("something blocked the loop for")]
    assert len(told) == 1
    assert "time.sleep(0.2)" in told[0]["stack"]
