"""Clients that leave while they are being answered, and a worker that ends before it has answered
them all: whatever was asked is taken back, and those who still listen are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Scope

from sublet.functions.errors import SubletError

CONNECTION = "sublet.connection"
"""Where a scope has its `Connection`, if the server can tell of its end."""

T = TypeVar("T")


class Connection(Protocol):
    on_lost: Callable[[], object] | None

    def is_lost(self) -> bool: ...


async def unless_left(scope: Scope, asked: Coroutine[Any, Any, T]) -> T:
    """Return what was asked for; if the client leaves before, cancel that.

    Raises `ClientDisconnect` then.
    """
    connection: Connection | None = scope.get(CONNECTION)
    task = asyncio.current_task()
    if connection is None or task is None:
        return await asked
    if connection.is_lost():
        asked.close()
        raise ClientDisconnect
    connection.on_lost = task.cancel
    try:
        return await asked
    except asyncio.CancelledError:
        if not connection.is_lost():
            raise  # The worker stops.
        task.uncancel()
        raise ClientDisconnect from None
    finally:
        connection.on_lost = None


class OpenRequests:
    """Those for which something is under way; their callers are told when the worker ends."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Cancel what is under way, and let nothing more begin."""
        self._ended.set()
        for task in self._tasks:
            task.cancel()

    @contextmanager
    def unless_ended(self, error: SubletError) -> Iterator[None]:
        """Raise the error, instead of what is done inside, when the worker ends.

        Inside another one, the inner error counts.
        """
        task = asyncio.current_task()
        assert task is not None
        if self._ended.is_set():
            raise error
        is_outer = task not in self._tasks
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if not self._ended.is_set():
                raise
            task.uncancel()
            raise error from None
        finally:
            if is_outer:
                self._tasks.discard(task)
