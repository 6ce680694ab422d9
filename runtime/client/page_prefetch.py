"""Reading in an event loop of another thread, one page ahead of whoever takes the pages."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

Begin = Callable[[Callable[[], Coroutine[Any, Any, T]]], "Future[T]"]
"""Lets something run in the loop, and returns at once; who cancels what is returned ends it."""


def one_ahead(
    begin: Begin[T], read: Callable[[], Coroutine[Any, Any, T]]
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
