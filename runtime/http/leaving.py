"""Clients that leave while they are being answered: whatever was asked for them is taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Scope

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
