"""When calls that handlers await have waited long enough."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sublet.runtime.execution.async_runner import CallOpened


class CallTimeouts:
    """One timer for each call that an async handler awaits."""

    def __init__(self, on_expired: Callable[[CallOpened], None]) -> None:
        self._on_expired = on_expired
        self._timers: dict[tuple[str, str], dict[int | str, asyncio.TimerHandle]] = {}
        """Partition and message to the timers of its handler's calls."""

    def start(self, opened: CallOpened) -> None:
        delay_s = opened.request.timeout_ms / 1000
        timer = asyncio.get_running_loop().call_later(delay_s, self._expired, opened)
        self._timers.setdefault((opened.partition, opened.message_id), {})[opened.call] = timer

    def _expired(self, opened: CallOpened) -> None:
        self.end(opened.partition, opened.message_id, opened.call)
        self._on_expired(opened)

    def end(self, partition: str, message_id: str, call: int | str) -> None:
        """A call has its reply, or nobody waits for it any more."""
        waiting = (partition, message_id)
        timers = self._timers.get(waiting)
        if timers is None:
            return
        timer = timers.pop(call, None)
        if timer is not None:
            timer.cancel()
        if not timers:
            del self._timers[waiting]

    def end_message(self, partition: str, message_id: str) -> None:
        for timer in self._timers.pop((partition, message_id), {}).values():
            timer.cancel()

    def end_partition(self, partition: str) -> None:
        for waiting in [each for each in self._timers if each[0] == partition]:
            self.end_message(*waiting)
