"""One event loop for many processes: each runs its own callbacks in order, and can be stopped.

Every callback belongs to the process in whose context it was made. A frozen process's callbacks
wait until it is thawed, those of a dead one wait for ever. Within one process callbacks run in the
order that asyncio promises; whose turn it is, is drawn by lot.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context, ContextVar, copy_context
from heapq import heappop
from random import Random
from typing import Any, TypeVar
from zlib import crc32

from sublet.runtime.testing.virtual_loop import VirtualLoop
from tests.simulation.oracles.verdict import ViolationError, check

T = TypeVar("T")

TURNS_MAX = 400_000
"""Turns of all processes in a story of some seconds; more means that somebody runs in a circle."""

END_MS_MAX = 10_000

_HERE: ContextVar[Process] = ContextVar("process")


class Process:
    """Whoever has callbacks of its own: a worker, a client, or all that lies between them."""

    def __init__(self, loop: ClusterLoop, name: str) -> None:
        self.name = name
        self.alive = True
        self.frozen = False
        self.ready: deque[asyncio.Handle] = deque()
        self.tasks: list[asyncio.Task[Any]] = []
        """Kept, so that the tasks of a dead process end with the story and not whenever memory is
        looked through."""
        self._loop = loop
        self.address = f"{name}:1"
        self.home = copy_context()
        """The context of callbacks that come from outside."""
        self.home.run(_HERE.set, self)

    @staticmethod
    def current() -> Process:
        return _HERE.get()

    @property
    def runs(self) -> bool:
        return self.alive and not self.frozen

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self._loop.create_task(coroutine, context=self.home.copy())

    def freeze(self) -> None:
        self.frozen = True
        self._loop.turns.pop(self, None)

    def thaw(self) -> None:
        self.frozen = False
        if self.ready and self.alive:
            self._loop.turns[self] = None

    def kill(self) -> None:
        self.alive = False
        self._loop.turns.pop(self, None)


class NumberedTask(asyncio.Task[Any]):
    """A task that stands at the same place of a set in every process."""

    def __init__(self, number: int, *arguments: Any, **options: Any) -> None:
        self._number = number
        super().__init__(*arguments, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class ClusterLoop(VirtualLoop):
    def __init__(self, chance: Random) -> None:
        super().__init__()
        self.turns: dict[Process, None] = {}
        """Who has something to run now."""
        self.turn_count = 0
        self.turns_max = TURNS_MAX
        self.trace = 0
        """Equal for two stories that went the same way."""
        self._ending = False
        self._tasks_made = 0
        self._chance = chance
        self.world = Process(self, "world")
        self.set_task_factory(self._new_task)

    def _new_task(
        self, _: asyncio.AbstractEventLoop, coroutine: Any, context: Context | None = None
    ) -> asyncio.Task[Any]:
        self._tasks_made += 1
        task = NumberedTask(self._tasks_made, coroutine, loop=self, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        process = (context or copy_context()).get(_HERE)
        if process is not None:
            process.tasks.append(task)
        return task

    def _call_soon(
        self, callback: Callable[..., object], args: Any, context: Context | None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._line_up(handle)
        return handle

    def _line_up(self, handle: asyncio.Handle) -> None:
        process = handle._context.get(_HERE)  # type: ignore[attr-defined]
        if process is None:
            process = self.world
        process.ready.append(handle)
        if process.alive and not process.frozen:
            self.turns[process] = None

    def run_until(self, until_ms: int, done: Callable[[], bool] = lambda: False) -> bool:
        """Let everything happen that is due by then, or until it is done; return whether it is."""
        asyncio._set_running_loop(self)
        try:
            while not done():
                if not self._run_instant(until_ms):
                    self.now_ms = max(self.now_ms, until_ms)
                    return done()
            return True
        finally:
            asyncio._set_running_loop(None)

    def end(self, processes: Sequence[Process]) -> None:
        """End all tasks in order, also those of the dead: the collector must find none."""
        self._ending = True
        self._scheduled.clear()
        for process in processes:
            process.alive, process.frozen = True, False
            # What came from outside does not matter any more, and might begin something new.
            process.ready = deque(each for each in process.ready if _is_step(each))
            self.turns[process] = None
            for task in process.tasks:
                task.cancel()
        self.run_until(
            self.now_ms + END_MS_MAX,
            lambda: all(task.done() for process in processes for task in process.tasks),
        )

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._ending:
            super().call_exception_handler(context)

    def _run_instant(self, until_ms: int) -> bool:
        """Run one turn, or let time pass; False if nothing is due any more."""
        scheduled = self._scheduled
        now_s = self.time()
        while scheduled and scheduled[0].when() <= now_s:
            timer = heappop(scheduled)
            timer._scheduled = False  # type: ignore[attr-defined]
            if not timer.cancelled():
                self._line_up(timer)
        turns = self.turns
        if turns:
            at = self._chance.randrange(len(turns)) if len(turns) > 1 else 0
            self._run_turn(list(turns)[at])
            return True
        while scheduled and scheduled[0].cancelled():
            heappop(scheduled)._scheduled = False  # type: ignore[attr-defined]
        if not scheduled:
            return False
        # Never a little too early: whoever looks at the clock then would wait once more, for
        # ever, because no time passes meanwhile.
        when_s = scheduled[0].when()
        next_ms = math.ceil(when_s * 1000)
        next_ms += next_ms / 1000 < when_s
        if next_ms > until_ms:
            return False
        self.now_ms = next_ms
        return True

    def _run_turn(self, process: Process) -> None:
        ready = process.ready
        self.turn_count += 1
        check(self.turn_count < self.turns_max, "the cluster does not come to rest")
        self.trace = crc32(
            b"%s %d %d" % (process.name.encode(), self.now_ms, len(ready)), self.trace
        )
        for _ in range(len(ready)):
            if not process.runs:
                break  # Killed or frozen by itself, in the middle of a turn.
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()
        if self.failure is not None:
            failure, self.failure = self.failure, None
            if isinstance(failure, ViolationError):
                raise failure
            raise ViolationError(f"{process.name} failed: {failure!r}") from failure
        if not ready:
            self.turns.pop(process, None)


def _is_step(handle: asyncio.Handle) -> bool:
    """Tell whether a callback is a step of a task."""
    callback = handle._callback  # type: ignore[attr-defined]
    return isinstance(getattr(callback, "__self__", None), asyncio.Task)
