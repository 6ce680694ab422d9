"""A client's event loop in a thread of its own, for callers in other threads."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeVar

import uvloop

from sublet.functions.errors import UnavailableError
from sublet.runtime.client.connections import PlainTaskGroup

T = TypeVar("T")

Begin = Callable[[Callable[[], Coroutine[Any, Any, T]]], "Future[T]"]
"""Lets something run in the loop, and returns at once; who cancels what is returned ends it."""

_Request = tuple[Callable[[], Coroutine[Any, Any, Any]], "Future[Any]", Context]


class LoopThread:
    """Opens a client in a thread of its own, and runs there what callers ask for.

    A request runs in the context (`contextvars`) of the thread that asked for it, as it would in
    that thread's own event loop.
    """

    def __init__(self, client: AbstractAsyncContextManager[object]) -> None:
        self._client = client
        self._thread = threading.Thread(target=self._run, name="sublet client", daemon=True)
        self._process_id = os.getpid()
        self._started: Future[None] = Future()
        self._ended: Future[None] = Future()
        self._requests: deque[_Request] = deque()
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._tasks: asyncio.TaskGroup
        self._open = False
        # Held from "is it open?" until the request is in the queue.
        self._gate = threading.Lock()

    @property
    def is_open(self) -> bool:
        return self._open

    # In the callers' threads

    def start(self) -> None:
        """Return when the client is open; raise what it raises otherwise."""
        self._check_process()
        self._thread.start()
        self._started.result()
        self._open = True

    def close(self) -> None:
        """Close the client and wait for its end. Threads that still wait get an error."""
        if os.getpid() != self._process_id:
            return  # The parent's client is not ours to close.
        with self._gate:
            was_open, self._open = self._open, False
        if was_open:
            self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread.ident is not None:
            self._thread.join()
        if was_open:
            self._ended.result()

    def wait(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the loop and return its result."""
        outcome = self.begin(ask)
        try:
            return outcome.result()
        except BaseException:
            # An interrupt, for one: nobody will take the outcome.
            outcome.cancel()
            raise

    def run(self, make: Callable[[], T]) -> T:
        """Call a plain function in the loop's thread and return its result."""

        async def call() -> T:
            return make()

        return self.wait(call)

    def begin(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Start a coroutine in the loop; cancelling the future cancels it."""
        self._check_process()
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "a blocking call inside the client's own thread would deadlock; "
                "call it from another thread"
            )
        outcome: Future[T] = Future()
        with self._gate:
            if not self._open:
                raise RuntimeError("the client is closed; use it inside its `with` block")
            self._requests.append((ask, outcome, copy_context()))
            if len(self._requests) == 1:
                # One wake-up for all requests that come before the loop has looked.
                self._loop.call_soon_threadsafe(self._begin_requests, context=Context())
        return outcome

    def _check_process(self) -> None:
        if os.getpid() != self._process_id:
            raise RuntimeError(
                f"this client was created in process {self._process_id}, before a fork; "
                "create one in each process"
            )

    # In the loop's thread

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            outcome = self._ended if self._started.done() else self._started
            outcome.set_exception(error)
        else:
            self._ended.set_result(None)
        finally:
            with self._gate:
                self._open = False
            self._begin_requests()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with PlainTaskGroup() as self._tasks, self._client:
            self._started.set_result(None)
            await self._stop.wait()

    def _begin_requests(self) -> None:
        requests = self._requests
        while requests:
            ask, outcome, context = requests.popleft()
            if outcome.cancelled():
                continue
            if self._open:
                task = self._tasks.create_task(_run_request(ask(), outcome), context=context)
                outcome.add_done_callback(partial(self._give_up, task))
            elif not outcome.done():
                outcome.set_exception(UnavailableError("the client is closed"))

    def _give_up(self, task: asyncio.Task[None], outcome: Future[Any]) -> None:
        """Cancel a request whose thread no longer waits."""
        if outcome.cancelled() and self._open:
            self._loop.call_soon_threadsafe(task.cancel)


async def _run_request(asked: Coroutine[Any, Any, T], outcome: Future[T]) -> None:
    try:
        result = await asked
    except Exception as error:
        # Whatever it is, it belongs to the thread that asked.
        if outcome.set_running_or_notify_cancel():
            outcome.set_exception(error)
    else:
        if outcome.set_running_or_notify_cancel():
            outcome.set_result(result)


def one_ahead(
    begin: Begin[T | None], read: Callable[[], Coroutine[Any, Any, T | None]]
) -> Generator[T, None, None]:
    """Yield what `read` finds, until it finds nothing; read on while that is being used.

    Who closes the iterator earlier does not wait for what is being read, however long that takes.
    """
    reading = begin(read)
    try:
        while found := reading.result():
            reading = begin(read)
            yield found
    finally:
        reading.cancel()
