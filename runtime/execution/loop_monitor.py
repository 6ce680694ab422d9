"""Notices what blocks an event loop, and says who it is and where.

A thread asks the loop for a sign of life some times a second, and looks at its stack while none
comes: nothing is done for any message. It only tells; `LoopWatchdog` interrupts.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from contextvars import copy_context
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NamedTuple, Protocol

import structlog

from sublet.runtime.execution.threads import Declared
from sublet.runtime.observability.telemetry import Spells

LOOKS_PER_LIMIT = 5
STILL_BLOCKED_S = 5.0
"""Who blocks for longer is told of meanwhile: it may never end."""
FRAMES_MAX = 20
OTHER = "other"
"""Stands for a function where no handler is to blame."""
_EXECUTION = str(Path(__file__).parent)
_IDLE = ("asyncio/runners.py", "uvloop/__init__.py", "asyncio/base_events.py", "selectors.py")

_log = structlog.get_logger(__name__)


class Running(NamedTuple):
    """User code on some loop."""

    function: Declared
    since_s: float
    thread_id: int


class Sample(NamedTuple):
    """What was seen while a loop was blocked."""

    function: Declared | None
    since_s: float
    stack: str


class SignsOfLife:
    """Decides when a loop is blocked. No clock: whoever looks has one."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._asked_s: float | None = None
        self._looked_s: float | None = None
        self._cpu_s = 0.0

    @property
    def asked_s(self) -> float | None:
        """Since when an answer is waited for."""
        return self._asked_s

    def asked(self, now_s: float) -> None:
        self._asked_s = now_s

    def answered(self) -> None:
        self._asked_s = None

    def was_stopped(self, now_s: float, cpu_s: float) -> bool:
        """Tell whether the process was frozen or starved since the last look: then nobody is to
        blame. Somebody who computes without ever letting other threads run uses the time."""
        looked_s, used_s = self._looked_s, cpu_s - self._cpu_s
        self._looked_s, self._cpu_s = now_s, cpu_s
        if looked_s is None:
            return False
        elapsed_s = now_s - looked_s
        return elapsed_s > self._limit_s and used_s < elapsed_s / 2

    def is_blocked(self, now_s: float) -> bool:
        return self._asked_s is not None and now_s - self._asked_s >= self._limit_s


class UserCode(Protocol):
    """Where handlers run on loops."""

    def running(self) -> Running | None:
        """What runs on the main loop."""
        ...

    def running_aside(self) -> Iterable[Running]:
        """What runs on other loops; the same values as long as it does."""
        ...


class LoopMonitor:
    """Tells of handlers, and of anything else, that block a loop."""

    def __init__(self, limit_ms: float, code: UserCode) -> None:
        self.blocked: dict[str, tuple[int, float]] = {}
        """Function to how often it has blocked a loop, and for how long in all (s)."""
        self._limit_s = limit_ms / 1000
        self._code = code
        self._signs = SignsOfLife(self._limit_s)
        self._spells = Spells()
        self._answers = 0
        self._asked = 0
        self._sample: Sample | None = None
        self._is_told = False
        self._aside: dict[Running, Sample] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._loop_thread = 0

    def start(self) -> None:
        """Begin to watch the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        # In our context: its log lines carry what ours carry.
        run = partial(copy_context().run, self._watch)
        self._thread = threading.Thread(target=run, name="sublet-loop-monitor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self._limit_s / LOOKS_PER_LIMIT):
            now_s = time.monotonic()
            if self._signs.was_stopped(now_s, time.process_time()):
                self._signs.answered()
                self._sample, self._is_told = None, False
                self._aside.clear()
                self._asked += 1  # An answer that comes yet is of no interest.
                self._answers = self._asked
            try:
                self._look(now_s)
            except RuntimeError:
                return  # The loop is closed: the worker has stopped.
            self._look_aside(now_s)

    def _answer(self, number: int) -> None:
        """Runs on the loop."""
        self._answers = max(self._answers, number)

    def _look(self, now_s: float) -> None:
        signs = self._signs
        if signs.asked_s is not None and self._answers >= self._asked:
            signs.answered()
            if self._sample is not None:
                self._tell(self._sample, now_s, is_over=True)
            self._sample, self._is_told = None, False
        if signs.asked_s is None:
            self._asked += 1
            signs.asked(now_s)
            self._loop.call_soon_threadsafe(self._answer, self._asked)
        elif self._sample is None:
            if signs.is_blocked(now_s):
                running = self._code.running()
                since_s = signs.asked_s if running is None else running.since_s
                function = None if running is None else running.function
                self._sample = _sample(function, since_s, self._loop_thread)
        elif not self._is_told and now_s - self._sample.since_s > STILL_BLOCKED_S:
            self._is_told = True
            self._tell(self._sample, now_s, is_over=False)

    def _look_aside(self, now_s: float) -> None:
        seen = set(self._code.running_aside())
        for running in [each for each in self._aside if each not in seen]:
            self._tell(self._aside.pop(running), now_s, is_over=True)
        for running in seen:
            if running not in self._aside and now_s - running.since_s >= self._limit_s:
                sample = _sample(running.function, running.since_s, running.thread_id)
                if sample is not None:
                    self._aside[running] = sample

    def _tell(self, sample: Sample, now_s: float, *, is_over: bool) -> None:
        blocked_s = now_s - sample.since_s
        name = OTHER if sample.function is None else sample.function.name
        if is_over:
            count, total_s = self.blocked.get(name, (0, 0.0))
            # A new dict entry at once: others read it meanwhile.
            self.blocked[name] = (count + 1, total_s + blocked_s)
        again = self._spells.note(f"{name} {is_over}", now_s * 1000)
        if again is None:
            return
        values = {"times": again} if again else {}
        _log.warning(_words(sample.function, blocked_s, is_over), stack=sample.stack, **values)


def _words(function: Declared | None, blocked_s: float, is_over: bool) -> str:
    blocked = "blocked" if is_over else "has been blocking"
    text = f"{blocked} the loop for {blocked_s:.1f} s"
    if function is None:
        return f"something {text}; the stack shows where"
    if function.is_async:
        return f"{function.name} {text}; await, or make it a plain `def` with blocking=True"
    return f"{function.name} {text}; use blocking=True"


def _sample(function: Declared | None, since_s: float, thread_id: int) -> Sample | None:
    """Return what a thread does now; None if it does nothing."""
    frame = sys._current_frames().get(thread_id)
    if frame is None or (function is None and frame.f_code.co_filename.endswith(_IDLE)):
        return None
    return Sample(function, since_s, _stack_text(frame))


def _stack_text(frame: FrameType) -> str:
    """Return the innermost calls of a thread, without those of the runtime around a handler."""
    frames = list(traceback.extract_stack(frame))
    own = [at for at, each in enumerate(frames) if each.filename.startswith(_EXECUTION)]
    first = own[-1] + 1 if own else 0
    shown = frames[first:] or frames
    return "".join(traceback.format_list(shown[-FRAMES_MAX:]))
