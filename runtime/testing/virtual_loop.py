"""An event loop whose time stands still until somebody moves it.

Callbacks run as on any asyncio loop; `asyncio.sleep` and timeouts count virtual time. There are no
sockets and no threads: whoever wants them gets an error that says so. Time moves in whole
milliseconds, so that no sum of delays ever falls short of the moment that it was meant for.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, NoReturn, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TURNS_MAX = 1_000_000
"""Turns of the loop at one instant; a handler that spins for ever is stopped there."""

_RESOLUTION_S = 1e-6


class StuckError(RuntimeError):
    """A test waits for something that can never happen, or that never ends."""


class VirtualLoop(asyncio.BaseEventLoop):
    # Of the base class, which does not declare it for type checkers.
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.failure: BaseException | None = None
        """What ended a callback that nobody else can be told of."""
        self._clock_resolution = _RESOLUTION_S
        self._selector = _NothingToSelect(self)

    def time(self) -> float:
        return self.now_ms / 1000

    def run_ready(self) -> None:
        """Run all that can run at this instant; raise what went wrong.

        Also works where another loop is running: that one just waits, as for any plain call.
        """
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        self._selector.turns_left = TURNS_MAX
        try:
            self.run_forever()
        finally:
            asyncio._set_running_loop(outer)
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def jump(self, to_ms: int) -> None:
        """Let it be later; what became due meanwhile runs with the next `run_ready`."""
        self.now_ms = max(self.now_ms, to_ms)

    def next_due_ms(self, ignored: set[int]) -> int | None:
        """Return when the next timer is due; `ignored` holds the `id()` of those that do not
        count."""
        due_s = [
            handle.when()
            for handle in self._scheduled
            if not handle.cancelled() and id(handle) not in ignored
        ]
        return math.ceil(min(due_s) * 1000 - _RESOLUTION_S * 500) if due_s else None

    def fail(self, failure: BaseException) -> None:
        """Stop, and raise this from `run_ready`."""
        if self.failure is None:
            self.failure = failure
        self.stop()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A callback that raises is a defect; tasks that were dropped with the test are none."""
        error = context.get("exception")
        if "handle" in context and error is not None:
            self.fail(error)
        elif error is not None:
            super().call_exception_handler(context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run the function here and now: `asyncio.to_thread` works, and stays deterministic."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> NoReturn:
        _refuse_network(f"look up {host}:{port}")

    async def sock_connect(self, sock: Any, address: Any) -> NoReturn:
        _refuse_network(f"connect to {address}")

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody waits in a selector that would have to be woken."""

    def __del__(self) -> None:
        """Nothing is left open when a test just drops its harness."""


class _NothingToSelect:
    """Stands where a loop waits for sockets: here the waiting ends the run instead."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.turns_left = TURNS_MAX

    def select(self, timeout_s: float | None) -> list[Any]:
        self.turns_left -= 1
        if timeout_s is None or timeout_s > _RESOLUTION_S:
            self._loop.stop()
        elif self.turns_left < 0:
            error = f"after {TURNS_MAX} turns of the loop something still runs without waiting"
            self._loop.fail(StuckError(error))
        return []


def _refuse_network(what: str) -> NoReturn:
    raise RuntimeError(
        f"a handler wants to {what}, but under test there is no network: give the function "
        "something that it can call instead"
    )


class LooseTasks(asyncio.TaskGroup):
    """Tasks that live until `cancel_all`, or until the test drops them, without a word.

    Looks like a task group to those who start tasks, but nobody stays inside it: a test is plain
    synchronous code.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._virtual_loop = loop
        self._alive: dict[asyncio.Task[Any], None] = {}

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        task = self._virtual_loop.create_task(coro, name=name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._alive[task] = None
        task.add_done_callback(self._ended)
        return task

    def cancel_all(self) -> None:
        for task in tuple(self._alive):
            task.cancel()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._alive[task]
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self._virtual_loop.fail(error)


def immediately(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never really waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError(f"{coroutine!r} waits")
