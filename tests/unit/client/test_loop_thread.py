"""A client's event loop in a thread of its own, and what callers in other threads get from it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar

import pytest

from sublet.runtime.client.loop_thread import LoopThread

trace: ContextVar[str] = ContextVar("trace", default="none")


class Client(AbstractAsyncContextManager[None]):
    """Does nothing."""

    async def __aexit__(self, *_: object) -> None:
        pass


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread(Client())
    thread.start()
    yield thread
    thread.close()


def test_a_request_runs_in_the_context_of_the_thread_that_asks(thread: LoopThread) -> None:
    async def asked() -> str:
        return trace.get()

    token = trace.set("mine")
    mine = thread.wait(asked)
    trace.reset(token)

    assert (mine, thread.wait(asked)) == ("mine", "none")


def test_what_is_made_for_a_caller_is_made_in_the_loops_thread(thread: LoopThread) -> None:
    assert thread.run(lambda: threading.current_thread().name) == "sublet client"


def test_what_is_raised_there_is_raised_here(thread: LoopThread) -> None:
    def broken() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        thread.run(broken)


def test_a_blocking_call_in_the_loops_own_thread_is_refused(thread: LoopThread) -> None:
    with pytest.raises(RuntimeError, match="would deadlock; call it from another thread"):
        thread.run(lambda: thread.run(lambda: None))


def test_nothing_is_asked_of_a_closed_client() -> None:
    thread = LoopThread(Client())

    with pytest.raises(RuntimeError, match="the client is closed; use it inside"):
        thread.run(lambda: None)
