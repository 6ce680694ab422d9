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


class _Asked:
    """A worker's connection, with how many wait for its answers."""

    __slots__ = ("unary", "waiting")

    def __init__(self, unary: UnaryClient) -> None:
        self.unary = unary
        self.waiting = 0


class RpcPool:
    def __init__(self, limits: LinkLimits) -> None:
        self._limits = limits
        self._asked: dict[str, _Asked] = {}

    async def ask(
        self,
        address: str,
        what: Callable[[UnaryClient], Coroutine[Any, Any, T]],
        timeout_s: float,
    ) -> T:
        """Ask a worker something; `TimeoutError` if it says nothing for so long."""
        asked = self._asked.get(address)
        if asked is None:
            asked = self._asked[address] = _Asked(UnaryClient(address, self._limits))
        asked.waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                return await what(asked.unary)
        except (TimeoutError, UnavailableError, UnknownOutcomeError):
            if self._asked.get(address) is asked:
                del self._asked[address]
            raise
        finally:
            asked.waiting -= 1
            if self._asked.get(address) is not asked and not asked.waiting:
                # To close it earlier would cancel the questions of others.
                await asked.unary.__aexit__(None, None, None)

    async def close(self) -> None:
        asked, self._asked = self._asked, {}
        for each in asked.values():
            if not each.waiting:
                await each.unary.__aexit__(None, None, None)
