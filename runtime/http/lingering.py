"""Closes connections in a way that no reply gets lost.

A socket that is closed while something is unread, or is about to arrive, resets its connection, and
the reset may overtake the reply that was sent before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

LINGER_S = 1.0
"""Longer than this nobody waits for the peer to close, too."""


class LingeringTransport:
    """A transport whose `close` sends what is left and then an end (FIN), and goes on reading until
    the peer closes, too, `LINGER_S` at most. Its protocol drops what still comes."""

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        on_closing: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_closing` is called once it is closed, which need not be sent yet."""
        self._transport = transport
        self._loop = loop
        self._on_closing = on_closing
        self.write = transport.write
        self.is_lingering = False
        self._timer: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    @property
    def has_sent_all(self) -> bool:
        """Whether the kernel has all that was written."""
        return not self._transport.get_write_buffer_size()

    def is_closing(self) -> bool:
        return self.is_lingering or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing():
            return
        self.is_lingering = True
        self._transport.write_eof()
        # Backpressure has no meaning any more, and an end that is not read is not noticed.
        self._transport.resume_reading()
        # The protocol resumes writing when the last byte has gone, not before.
        self._transport.set_write_buffer_limits(high=0)
        self._timer = self._loop.call_later(LINGER_S, self._transport.close)
        self._on_closing()

    def lost(self) -> None:
        """The connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
