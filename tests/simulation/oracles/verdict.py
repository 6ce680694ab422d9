"""How a simulation says that something is wrong."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class ViolationError(AssertionError):
    """Something happened that must not, or did not happen that must."""


def check(condition: object, what: str, *details: object) -> None:
    if not condition:
        raise ViolationError(f"{what}: {details}" if details else what)


def now_done(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns that never really waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError("the memory store waited")
