"""Does the side effects of `async def` handlers: on their loop, or in a thread if they may block.

Only doing: whether a side effect is to be done, and when its handler may go on, is decided by the
partition (`records.call_journal`).
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import copy_context
from typing import Any, NamedTuple

import msgspec

from sublet.functions.errors import SubletError, text_of
from sublet.functions.side_effects import SideEffect
from sublet.runtime.protocol.frames import ErrorInfo

NIL = msgspec.Raw(b"\xc0")
THREADS_MAX = 32


class Performed(NamedTuple):
    """What came of a side effect."""

    result: msgspec.Raw
    error: ErrorInfo | None
    cause: BaseException | None
    """What its function raised; for the traceback alone."""


async def perform(effect: SideEffect, bytes_max: int) -> Performed:
    """Do a side effect, as often as it may be tried, and return what came of it."""
    attempt = 1
    while True:
        try:
            value = await _act(effect)
        except Exception as error:
            if effect.is_final(error):
                return _failed(error, error)
            if attempt >= effect.retry.attempts:
                return _failed(effect.failure(error, attempt), error)
            await asyncio.sleep(effect.retry.wait_ms(attempt) / 1000)
            attempt += 1
            continue
        try:
            return Performed(msgspec.Raw(effect.encode(value, bytes_max)), None, None)
        except SubletError as error:
            return _failed(error, error)


async def _act(effect: SideEffect) -> object:
    if effect.awaits:
        value = effect.action()
    else:
        run = copy_context().run
        loop = asyncio.get_running_loop()
        value = await loop.run_in_executor(_threads, run, effect.action)
    return await value if inspect.isawaitable(value) else value


def _failed(told: Exception, cause: Exception) -> Performed:
    assert isinstance(told, SubletError)
    return Performed(NIL, ErrorInfo(told.code, text_of(told)), cause)


class EffectThreads(Executor):
    """Daemon threads, made when they are needed: one that blocks for ever must not keep the
    process from stopping, as those of a `ThreadPoolExecutor` do."""

    def __init__(self, threads_max: int = THREADS_MAX) -> None:
        self._threads_max = threads_max
        self._count = 0
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `Executor.submit`."""
        future: Future[Any] = Future()
        self._jobs.put((future, lambda: fn(*args, **kwargs)))
        with self._lock:
            if not self._idle.acquire(blocking=False) and self._count < self._threads_max:
                self._count += 1
                threading.Thread(target=self._run, name="sublet-effect", daemon=True).start()
        return future

    def _run(self) -> None:
        while True:
            future, job = self._jobs.get()
            if not future.set_running_or_notify_cancel():
                self._idle.release()
                continue
            try:
                result = job()
            except BaseException as error:
                # Before anybody hears of it: who submits the next job then finds this thread.
                self._idle.release()
                future.set_exception(error)
            else:
                self._idle.release()
                future.set_result(result)
                del result
            del future, job


_threads = EffectThreads()
