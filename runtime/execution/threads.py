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
from typing import Generic, Protocol, TypeVar

Job = Callable[[], None]


class HandlerInterrupt(BaseException):
    """Raised inside user code that has run too long. Not an `Exception`: handlers often catch
    those."""


T = TypeVar("T")


def set_async_exception(thread_id: int, error: type[BaseException] | None) -> None:
    """Raise an error in a thread, at its next bytecode; None takes back what was not raised."""
    given = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), given)


class Interruptible(Generic[T]):
    """What one thread runs, so that others can interrupt that and nothing else.

    An interruption reaches a thread some time after somebody has asked for it. So there is one
    ticket for each thing that runs: whoever interrupts takes it, and so does the thread when it
    leaves. If it finds none, it waits for the interruption and takes it back where that has not
    come yet. Without locks: an interruption could come while one is held.
    """

    def __init__(
        self, send: Callable[[int, type[BaseException] | None], None] = set_async_exception
    ) -> None:
        """`send` is given the id of a thread and what to raise there."""
        self._send = send
        self.running: tuple[T, float] | None = None
        """What runs, and since when (monotonic, s)."""
        self._ticket: tuple[list[None], list[None]] = ([], [])
        """One item for whoever takes it; one once an interruption is on its way."""
        self._thread_id = 0

    def enter(self, what: T) -> None:
        """This thread begins something."""
        self._thread_id = threading.get_ident()
        self._ticket = ([None], [])
        self.running = (what, time.monotonic())

    def leave(self) -> None:
        """It has ended: nothing that comes after it is interrupted. May raise
        `HandlerInterrupt`."""
        self.running = None
        ticket, sent = self._ticket
        if take_ticket(ticket):
            return
        while not sent:
            time.sleep(0)
        self._send(self._thread_id, None)

    def interrupt(self, running: tuple[T, float]) -> bool:
        """Raise `HandlerInterrupt` in what was seen to run, at its next bytecode, once; False if it
        has ended, or was interrupted before."""
        (ticket, sent), thread_id = self._ticket, self._thread_id
        # After the ticket: whoever enters changes it last.
        if self.running is not running or not take_ticket(ticket):
            return False
        self._send(thread_id, HandlerInterrupt)
        sent.append(None)
        return True


def take_ticket(ticket: list[None]) -> bool:
    """Take the right to do something, if nobody has; one step that no other thread can split."""
    try:
        ticket.pop()
    except IndexError:
        return False
    return True


class RunnerThread:
    """One daemon thread that runs one job at a time."""

    def __init__(self, on_idle: Callable[[RunnerThread], None]) -> None:
        self.is_abandoned = False
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._on_idle = on_idle
        self._thread = threading.Thread(target=self._run, name="sublet-handler", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, job: Job | None) -> None:
        """Run a job, which must not raise; None ends the thread."""
        self._jobs.put(job)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            self._on_idle(self)


class RunnerThreads:
    """A bounded set of threads that can lose members to handlers that never end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads_max: int = 32) -> None:
        self._loop = loop
        self._threads_max = threads_max
        self._idle: list[RunnerThread] = []
        self._waiting: deque[tuple[Job, Callable[[RunnerThread], None]]] = deque()
        self._busy: set[RunnerThread] = set()
        self._abandoned: set[RunnerThread] = set()

    @property
    def abandoned_count(self) -> int:
        """Threads that are still inside a handler which was given up."""
        self._abandoned = {thread for thread in self._abandoned if thread.is_alive}
        return len(self._abandoned)

    def run(self, job: Job, started: Callable[[RunnerThread], None]) -> None:
        """Run the job in a thread as soon as one is free; `started` is told which."""
        self._waiting.append((job, started))
        self._assign()

    def abandon(self, thread: RunnerThread) -> None:
        """Its job is given up: let another thread take its place. It ends with its job."""
        thread.is_abandoned = True
        self._busy.discard(thread)
        self._abandoned.add(thread)
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
        if not thread.is_abandoned:
            self._busy.discard(thread)
            self._idle.append(thread)
            self._assign()


class Declared(Protocol):
    """What is to be known of a function whose handler runs."""

    @property
    def name(self) -> str: ...

    @property
    def is_async(self) -> bool: ...

    @property
    def timeout_ms(self) -> float | None: ...


class Position(Protocol):
    """How far a run has come."""

    @property
    def index(self) -> int:
        """The message that runs now."""
        ...


class OneStep:
    """Of what has one message only."""

    index = 0


ONE_STEP = OneStep()
LoopRun = tuple[Declared, Position, float]
"""User code that runs on the event loop, and since when (monotonic, s). A plain tuple: one is made
for each step of an `async def` handler."""


class Watchdog(Protocol):
    """Looks after user code that runs on the event loop."""

    passes: tuple[type[BaseException], ...] = ()
    """Where nobody answers signals: Ctrl-C, which is not meant for the handler that it hits."""
    running: LoopRun | None = None
    """What runs now, where that is known."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def enter(self, function: Declared, position: Position) -> None:
        """User code starts now."""
        ...

    def leave(self) -> None:
        """User code has ended."""
        ...


class OverdueMessages:
    """Decides when a message has run too long on the loop. No clock: whoever looks has one.

    Between two looks many messages may have run. One that was not there at the look before is
    taken to have begun at this one, unless it is the first of its run.
    """

    def __init__(self) -> None:
        self._run: LoopRun | None = None
        self._index = 0
        self._since_s = 0.0
        self._is_told = False

    def look(self, run: LoopRun | None, now_s: float) -> tuple[LoopRun, int] | None:
        """Return the message that runs now if it is overdue, each once."""
        if run is None:
            self._run = None
            return None
        function, position, since_s = run
        index = position.index
        if run is not self._run or index != self._index:
            self._since_s = since_s if index == 0 else now_s
            self._run, self._index, self._is_told = run, index, False
        timeout_ms = function.timeout_ms
        if timeout_ms is None or self._is_told or now_s <= self._since_s + timeout_ms / 1000:
            return None
        self._is_told = True
        return run, index


class LoopWatchdog:
    """Interrupts user code that runs on the event loop for too long.

    A thread looks at the clock; the interruption itself is a signal, whose handler runs in the
    main thread and raises only if it interrupts the message that the thread has seen. It also ends
    a `time.sleep`.
    """

    SIGNAL = signal.SIGUSR2
    LOOK_EVERY_S = 0.05

    passes: tuple[type[BaseException], ...] = ()

    def __init__(self) -> None:
        self.running: LoopRun | None = None
        self._overdue = OverdueMessages()
        self._asked: tuple[LoopRun, int] | None = None
        """What the signal is to interrupt."""
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

    def enter(self, function: Declared, position: Position) -> None:
        """User code starts now."""
        self.running = (function, position, time.monotonic())

    def leave(self) -> None:
        """User code has ended. May raise `HandlerInterrupt`, but not when it has returned."""
        self.running = None

    def _watch(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while not self._stop.wait(self.LOOK_EVERY_S):
            overdue = self._overdue.look(self.running, time.monotonic())
            if overdue is not None:
                self._asked = overdue
                signal.pthread_kill(main, self.SIGNAL)

    def _interrupt(self, _signal: int, _frame: object) -> None:
        asked, self._asked = self._asked, None
        if asked is not None and asked[0] is self.running and asked[0][1].index == asked[1]:
            raise HandlerInterrupt
