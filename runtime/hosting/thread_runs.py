"""Runs of plain `def` handlers in threads beside the loop."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from math import inf

import structlog

from sublet.runtime.execution.sync_runner import RunScope, SyncRunner, given_up
from sublet.runtime.execution.threads import (
    HandlerInterrupt,
    Interruptible,
    RunnerThread,
    RunnerThreads,
)
from sublet.runtime.hosting.hosted import Hosted
from sublet.runtime.leases.borrowed_runs import BorrowedRun
from sublet.runtime.partition.model.work import RunResult, Work
from sublet.scheduler.pace import OFF_LOOP_QUANTUM_MS, QUANTA_MAX

_log = structlog.get_logger(__name__)

THREADS_BUSY_MAX = max(2, os.cpu_count() or 1)
"""Plain `def` handlers that are too slow for the loop: so many runs go on at once. More would only
share the cores with them, and make what is urgent wait for what is not."""
ABANDON_GRACE_S = 1.0


class BusyTime:
    """How long runs have gone on, those that go on at the same time counted each."""

    __slots__ = ("_running", "_since_s", "_total_s")

    def __init__(self, now_s: float) -> None:
        self._running = 0
        self._since_s = now_s
        self._total_s = 0.0

    def changed(self, by: int, now_s: float) -> None:
        """A run has begun, or ended."""
        self._total_s += self._running * (now_s - self._since_s)
        self._since_s = now_s
        self._running += by

    def take_s(self, now_s: float) -> float:
        """Return the time since it was taken last, also of runs that have not ended."""
        self.changed(0, now_s)
        total_s, self._total_s = self._total_s, 0.0
        return total_s


class ThreadRuns:
    """All runs in threads, and how many of them keep a core busy."""

    def __init__(self, runner: SyncRunner, on_end: Callable[[ThreadRun, RunResult], None]) -> None:
        self._runner = runner
        self._on_end = on_end
        self._threads: RunnerThreads
        self._busy: set[ThreadRun] = set()
        self.busy_times: dict[str, BusyTime] = {}
        """Function to the time of its blocking runs; "": of all that keep a core busy."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._threads = RunnerThreads(loop)

    @property
    def abandoned_count(self) -> int:
        return self._threads.abandoned_count

    @property
    def busy(self) -> int:
        return len(self._busy)

    @property
    def is_full(self) -> bool:
        return len(self._busy) >= THREADS_BUSY_MAX

    def run(self, hosted: Hosted | BorrowedRun, work: Work, ends_ms: float) -> None:
        """`ends_ms`: when it should be over, by what is known of its function."""
        run = ThreadRun(hosted, work, self._runner, self._threads, self._ended)
        if not hosted.env.function.blocking:
            run.ends_ms = ends_ms
            self._busy.add(run)
        self._count(run, 1)
        run.start()

    def _count(self, run: ThreadRun, by: int) -> None:
        function, now_s = run.hosted.env.function, time.monotonic()
        name = function.name if function.blocking else ""
        busy = self.busy_times.get(name)
        if busy is None:
            busy = self.busy_times[name] = BusyTime(now_s)
        busy.changed(by, now_s)

    def _ended(self, run: ThreadRun, result: RunResult) -> None:
        self._busy.discard(run)
        self._count(run, -1)
        self._on_end(run, result)

    def make_room_for(self, rank: float) -> None:
        """Let the least urgent run end after its quantum, if it is less urgent than this."""
        last = max(self._busy, key=ThreadRun.rank, default=None)
        if last is not None and rank < last.rank():
            last.scope.cut_wanted = True

    def free_ms(self, now_ms: float) -> float:
        """Return when the next run can begin, as far as is known."""
        if not self.is_full:
            return now_ms
        return max(now_ms, min([run.ends_ms for run in self._busy]))


class ThreadRun:
    """One run of a plain `def` handler in a thread, with somebody who looks at the clock."""

    def __init__(
        self,
        hosted: Hosted | BorrowedRun,
        work: Work,
        runner: SyncRunner,
        threads: RunnerThreads,
        on_end: Callable[[ThreadRun, RunResult], None],
    ) -> None:
        self.hosted = hosted
        self.work = work
        self._runner = runner
        self._threads = threads
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self.scope = RunScope(work, hosted.env)
        if type(hosted) is BorrowedRun:
            # A guest is not cut: its lessor waits for all of it.
            self.scope.quantum_s = self.scope.limit_s = inf
        else:
            self.scope.quantum_s = OFF_LOOP_QUANTUM_MS / 1000
            self.scope.limit_s = QUANTA_MAX * self.scope.quantum_s
        self._guard = Interruptible[int]()
        self._timeout_ms = hosted.env.function.timeout_ms
        if self._timeout_ms is not None:
            self.scope.guard = self._guard
        self._thread: RunnerThread | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._over = False
        self.ends_ms = 0.0
        """When it should be over, by what is known of its function."""

    def rank(self) -> float:
        return self.work.rank_last

    def start(self) -> None:
        # Its log lines carry what ours carry.
        self._threads.run(partial(copy_context().run, self._run_in_thread), self._started)

    def _started(self, thread: RunnerThread) -> None:
        self._thread = thread
        if self._timeout_ms is not None:
            self._look_after(self._timeout_ms / 1000)

    def _run_in_thread(self) -> None:
        try:
            result = self._runner.run(self.work, self.hosted.env, self.scope)
        except BaseException as error:
            # Not a handler's. Nobody else would hear of it, and the partition wait for ever.
            result = given_up(self.work, self.hosted.env.function, 0, error)
        try:
            self._loop.call_soon_threadsafe(self._end, result)
        except RuntimeError:
            return  # The loop is closed: the worker has stopped.

    def _look_after(self, left_s: float) -> None:
        self._watch = self._loop.call_later(left_s + 0.01, self._look)

    def _look(self) -> None:
        """Interrupt the message that runs, if it has run too long."""
        assert self._timeout_ms is not None
        timeout_s = self._timeout_ms / 1000
        running = self._guard.running
        if running is None:
            # Between two messages; not even the one that begins now can be overdue before.
            self._look_after(timeout_s)
            return
        left_s = running[1] + timeout_s - time.monotonic()
        if left_s > 0:
            self._look_after(left_s)
        elif self._guard.interrupt(running):
            self._watch = self._loop.call_later(ABANDON_GRACE_S, self._abandon, running)
        else:
            self._look_after(timeout_s)

    def _abandon(self, running: tuple[int, float]) -> None:
        """If the handler does not even notice the interruption, go on without it."""
        if self._guard.running is not running:
            self._look()
            return
        assert self._thread is not None
        function = self.hosted.env.function
        _log.error("abandoned a thread whose handler never ended", function=function.name)
        # What is behind it runs elsewhere from now on.
        self.scope.limit_s = 0.0
        self._threads.abandon(self._thread)
        result = given_up(self.work, function, running[0], HandlerInterrupt())
        result.elapsed_ms = function.timeout_ms or 0.0
        self._end(result)

    def _end(self, result: RunResult) -> None:
        if self._over:
            return
        self._over = True
        if self._watch is not None:
            self._watch.cancel()
        self._on_end(self, result)
