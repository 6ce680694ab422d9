"""The virtual clock: what happens when, and nothing between."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Call = Callable[..., None]


class Events:
    """A heap of calls by time; among equals, those that were planned first come first."""

    __slots__ = ("_heap", "_number", "handled", "now_ms")

    def __init__(self, now_ms: float = 0.0) -> None:
        self.now_ms = now_ms
        self.handled = 0
        self._number = 0
        # Plain tuples: the number makes sure that nothing behind it is ever compared.
        self._heap: list[tuple[float, int, Call, tuple[Any, ...]]] = []

    def at(self, at_ms: float, call: Call, *arguments: Any) -> None:
        """Plan a call; a time that has passed means now."""
        self._number += 1
        heappush(self._heap, (at_ms, self._number, call, arguments))

    def after(self, delay_ms: float, call: Call, *arguments: Any) -> None:
        self._number += 1
        heappush(self._heap, (self.now_ms + delay_ms, self._number, call, arguments))

    def run_until(self, until_ms: float) -> bool:
        """Let everything happen that is due by then; return whether anything is left."""
        heap = self._heap
        handled = 0
        while heap and heap[0][0] <= until_ms:
            at_ms, _, call, arguments = heappop(heap)
            if at_ms > self.now_ms:
                self.now_ms = at_ms
            handled += 1
            call(*arguments)
        self.handled += handled
        self.now_ms = max(self.now_ms, until_ms)
        return bool(heap)
