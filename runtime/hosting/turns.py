"""Whose turn it is in a worker: partitions and guests, the most urgent first.

What is short runs on the loop, in turns of about a millisecond between which the loop is free. What
needs a thread waits in a line of its own while all threads that may be busy are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sublet.runtime.hosting.group_commit import GroupCommitter
from sublet.runtime.hosting.hosted import Hosted
from sublet.runtime.hosting.thread_runs import ThreadRuns
from sublet.runtime.leases.borrowed_runs import BorrowedRun
from sublet.scheduler.batching import FrameTurns
from sublet.scheduler.ready_queue import ReadyQueue, ready_queue

TURN_MS = 1.0

Runnable = Hosted | BorrowedRun


class Turns:
    def __init__(  # noqa: PLR0913  # Its surroundings are all named, and given once.
        self,
        order: object,
        starvation_ms: float,
        threads: ThreadRuns,
        committer: GroupCommitter,
        *,
        take: Callable[[Runnable, float], None],
        monotonic_ms: Callable[[], float],
        before: Callable[[float], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        """`take` runs what has its turn. `before` and `after` a turn, whoever lends may look at
        what has to wait."""
        self._ready: ReadyQueue[Runnable] = ready_queue(order, starvation_ms)
        self._off_loop: ReadyQueue[Runnable] = ready_queue(order, starvation_ms)
        """What needs a thread."""
        self._threads = threads
        self._committer = committer
        self._take = take
        self._before = before
        self._after = after
        self._monotonic_ms = monotonic_ms
        self._frames = FrameTurns()
        self._is_planned = False
        self._loop: asyncio.AbstractEventLoop

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def put(
        self, name: str, item: Runnable, rank: float, arrived_ms: float, *, off_loop: bool = False
    ) -> None:
        """Put something in line with all others of the worker."""
        (self._off_loop if off_loop else self._ready).put(name, item, rank, arrived_ms)
        self.plan()

    def discard(self, name: str) -> None:
        self._ready.discard(name)
        self._off_loop.discard(name)

    def is_more_urgent(self, rank: float) -> bool:
        """Tell whether something on the loop's line comes before this rank."""
        return bool(self._ready.waiting) and (self._ready.rank() or 0.0) < rank

    def __bool__(self) -> bool:
        """Whether anything is in line."""
        return bool(self._ready.waiting or self._off_loop.waiting)

    def thread_freed(self) -> None:
        if self._off_loop.waiting:
            self.plan()

    def frame_arrived(self) -> None:
        """Run what is ready at once, if not more is to come in this turn."""
        if self and self._frames.arrived():
            self._run()
        if self._after is not None and self._threads.busy:
            self._after()

    def plan(self) -> None:
        if not self._is_planned:
            self._is_planned = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._frames.ended()
        if self._ready.waiting or self._off_loop.waiting or self._before is not None:
            self._run()
        if self._after is not None:
            self._after()
        # What was in line for the loop may have found that it needs a thread.
        if self._ready.waiting or (self._off_loop.waiting and not self._threads.is_full):
            self._loop.call_soon(self._turn)
        else:
            self._is_planned = False

    def _run(self) -> None:
        """Run the most urgent work for one turn, then let the loop breathe."""
        now_ms = self._monotonic_ms()
        self._committer.turn_begins()
        if self._before is not None:
            self._before(now_ms)
        while self._off_loop.waiting and not self._threads.is_full:
            next_ = self._off_loop.pop(now_ms)
            assert next_ is not None
            self._take(next_, now_ms)
        until_ms = now_ms + TURN_MS
        ready = self._ready
        while ready.waiting and now_ms <= until_ms:
            next_ = ready.pop(now_ms)
            assert next_ is not None
            self._take(next_, now_ms)
            now_ms = self._monotonic_ms()
        self._committer.turn_ended()
