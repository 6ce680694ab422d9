"""When what waits in a partition is worth a run: now, or after a while in which more may come.

A batch costs `a + b·n`: larger ones cost less for each message, and make the first one wait.
"""

from __future__ import annotations

from typing import Protocol

from sublet.functions.app import Function


class Batching(Protocol):
    def wait_ms(self, function: Function, queued: int, waited_ms: float, laxity_ms: float) -> float:
        """Return for how long a partition should wait for more messages; 0 lets it run now.

        `queued` messages wait, the first of them for `waited_ms`; they are late if they do not
        start within `laxity_ms`. Asked when something could start that was not told yet.
        """
        ...


class FixedBatching:
    """Runs when so many wait, or after so long: for who knows what is best."""

    def __init__(self, size: int | None, window_ms: float) -> None:
        self._size = size
        self._window_ms = window_ms

    def wait_ms(self, function: Function, queued: int, waited_ms: float, laxity_ms: float) -> float:
        if self._size is not None and queued >= self._size:
            return 0.0
        return min(self._window_ms - waited_ms, laxity_ms)


def batching_of(function: Function, otherwise: Batching | None) -> Batching | None:
    """Return what a function has declared, or the given one; None runs what there is at once."""
    if function.batch_wait_ms is not None:
        return FixedBatching(function.batch_size, function.batch_wait_ms)
    return None if function.batch_size is not None else otherwise
