"""Connections of a reader to the workers that it asks, shared by all who read through one client.

One that brings no answer is given up, so that the next question gets a new one; it is closed when
nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from sublet.functions.errors import UnavailableError, UnknownOutcomeError
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.links.link import LinkLimits

T = TypeVar("T")


class _Connection:
    """To one worker, with how many wait for its answers."""

    __slots__ = ("unary", "waiting")

    def __init__(self, unary: UnaryClient) -> None:
        self.unary = unary
        self.waiting = 0


class RpcPool:
    def __init__(self, limits: LinkLimits) -> None:
        self._limits = limits
        self._connections: dict[str, _Connection] = {}

    async def ask(
        self,
        address: str,
        what: Callable[[UnaryClient], Coroutine[Any, Any, T]],
        timeout_s: float,
    ) -> T:
        """Ask a worker something; `TimeoutError` if it says nothing for so long."""
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = _Connection(
                UnaryClient(address, self._limits)
            )
        connection.waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                return await what(connection.unary)
        except (TimeoutError, UnavailableError, UnknownOutcomeError):
            if self._connections.get(address) is connection:
                del self._connections[address]
            raise
        finally:
            connection.waiting -= 1
            if self._connections.get(address) is not connection and not connection.waiting:
                # To close it earlier would cancel the questions of others.
                await connection.unary.__aexit__(None, None, None)

    async def close(self) -> None:
        connections, self._connections = self._connections, {}
        for each in connections.values():
            if not each.waiting:
                await each.unary.__aexit__(None, None, None)
