"""Threads for user code that may take long, or for ever.

Threads are daemons of our own: a handler that never ends must keep neither the process from
stopping nor the next handler from getting a thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

Job = Callable[[], None]


class HandlerInterrupt(BaseException):
    """Raised inside user code that has run too long. Not an `Exception`: handlers often catch
    those."""


def interrupt_thread(thread: threading.Thread) -> None:
    """Raise `HandlerInterrupt` in a thread, at its next bytecode."""
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident), ctypes.py_object(HandlerInterrupt)
        )


class RunnerThread:
    """One daemon thread that runs one job at a time.

    An interruption may arrive when its job has just ended, and then anywhere. So a thread that was
    interrupted once gets no other job: it ends.
    """

    def __init__(self, on_idle: Callable[[RunnerThread], None]) -> None:
        self.interrupted = False
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._on_idle = on_idle
        self._thread = threading.Thread(target=self._run, name="sublet-handler", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, job: Job | None) -> None:
        """Run a job; None ends the thread."""
        self._jobs.put(job)

    def _run(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                job()
                self._on_idle(self)
        except HandlerInterrupt:
            return  # It came late: the job has ended, or is given up.

    def interrupt(self) -> None:
        self.interrupted = True
        interrupt_thread(self._thread)


class RunnerThreads:
    """A bounded set of threads that can lose members to handlers that never end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads_max: int = 32) -> None:
        self._loop = loop
        self._threads_max = threads_max
        self._idle: list[RunnerThread] = []
        self._waiting: deque[tuple[Job, Callable[[RunnerThread], None]]] = deque()
        self._busy: set[RunnerThread] = set()
        self._interrupted: set[RunnerThread] = set()

    @property
    def abandoned_count(self) -> int:
        """Threads that are still inside a handler which was given up."""
        self._interrupted = {thread for thread in self._interrupted if thread.is_alive}
        return len(self._interrupted)

    def run(self, job: Job, started: Callable[[RunnerThread], None]) -> None:
        """Run the job in a thread as soon as one is free; `started` is told which."""
        self._waiting.append((job, started))
        self._assign()

    def ended(self, thread: RunnerThread) -> None:
        """The job is over, or given up: do not count on a thread that was interrupted."""
        if thread.interrupted:
            self._busy.discard(thread)
            self._interrupted.add(thread)
            thread.submit(None)
            self._assign()

    def _assign(self) -> None:
        while self._waiting and (self._idle or len(self._busy) < self._threads_max):
            job, started = self._waiting.popleft()
            thread = self._idle.pop() if self._idle else RunnerThread(self._returned)
            self._busy.add(thread)
            thread.submit(job)
            started(thread)

    def _returned(self, thread: RunnerThread) -> None:
        try:
            self._loop.call_soon_threadsafe(self._take_back, thread)
        except RuntimeError:
            return  # The loop is closed: the worker has stopped.

    def _take_back(self, thread: RunnerThread) -> None:
        if not thread.interrupted:
            self._busy.discard(thread)
            self._idle.append(thread)
            self._assign()


class Watchdog(Protocol):
    """Looks after user code that runs on the event loop."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def enter(self, timeout_ms: float | None) -> None:
        """User code starts now."""
        ...

    def leave(self) -> None:
        """User code has ended."""
        ...


class LoopWatchdog:
    """Interrupts user code that runs on the event loop for too long.

    A thread looks at the clock; the interruption itself is a signal, whose handler runs in the
    main thread and raises only if user code is what it interrupts. It also ends a `time.sleep`.
    """

    SIGNAL = signal.SIGUSR2
    LOOK_EVERY_S = 0.05

    def __init__(self) -> None:
        self._until: float | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sublet-watchdog", daemon=True)
        self._installed = False

    def start(self) -> None:
        """Begin to watch; does nothing outside the main thread, where signals do not work."""
        if threading.current_thread() is not threading.main_thread():
            return
        signal.signal(self.SIGNAL, self._interrupt)
        self._installed = True
        self._thread.start()

    def stop(self) -> None:
        if self._installed:
            self._stop.set()
            self._thread.join()
            signal.signal(self.SIGNAL, signal.SIG_IGN)

    def enter(self, timeout_ms: float | None) -> None:
        """User code starts now."""
        if timeout_ms is not None:
            self._until = time.monotonic() + timeout_ms / 1000

    def leave(self) -> None:
        """User code has ended."""
        self._until = None

    def _watch(self) -> None:
        main = threading.main_thread().ident
        while not self._stop.wait(self.LOOK_EVERY_S):
            until = self._until
            if until is not None and time.monotonic() > until and main is not None:
                signal.pthread_kill(main, self.SIGNAL)

    def _interrupt(self, _signal: int, _frame: object) -> None:
        until = self._until
        if until is not None and time.monotonic() > until:
            self._until = None
            raise HandlerInterrupt
