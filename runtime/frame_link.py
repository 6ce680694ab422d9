"""The life of a link, apart from what carries its bytes.

Checks what comes in, says goodbye, and tells its receiver of the end exactly once. Sockets and
streams are in `link_lane` and `link_grpc`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from sublet.functions.errors import TooLargeError
from sublet.runtime.frames import Data, Frame, Goodbye, Hello, Welcome
from sublet.runtime.link import LinkLimits, LinkReceiver
from sublet.runtime.wire import WireError, decode_frame, encode_frame


class Carrier(Protocol):
    """What moves serialized frames for a `FrameLink`: a socket, a gRPC stream, a simulation."""

    @property
    def pending_bytes(self) -> int: ...

    def write(self, encoded: bytes) -> None:
        """Queue one serialized frame."""
        ...

    def finish(self) -> None:
        """End after what was written is on its way, at the latest after `close_timeout_s`."""
        ...

    def abort(self) -> None:
        """End now."""
        ...


class _Phase(Enum):
    OPEN = "open"
    CLOSING = "closing"
    """We said goodbye; the peer may still speak."""
    ENDED = "ended"
    """The receiver was told; whatever still arrives is thrown away."""


class FrameLink:
    """The life of a link over any carrier: checks what comes, says goodbye, ends exactly once.

    The carrier calls `bytes_received`, `carrier_drained` and `carrier_lost`.
    """

    __slots__ = (
        "_adopted",
        "_carrier",
        "_close_reason",
        "_limits",
        "_peer",
        "_phase",
        "_receiver",
        "_timer",
    )

    def __init__(
        self, carrier: Carrier, receiver: LinkReceiver, limits: LinkLimits, peer: str
    ) -> None:
        self._carrier = carrier
        self._receiver = receiver
        self._limits = limits
        self._peer = peer
        self._phase = _Phase.OPEN
        self._close_reason = ""
        self._adopted = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def pending_bytes(self) -> int:
        return self._carrier.pending_bytes

    @property
    def ended(self) -> bool:
        return self._phase is _Phase.ENDED

    def send(self, frame: Frame) -> None:
        if self._phase is not _Phase.OPEN:
            return
        encoded = encode_frame(frame)
        if len(encoded) > self._limits.frame_bytes_max:
            raise TooLargeError(
                f"a frame of {len(encoded)} bytes; allowed: {self._limits.frame_bytes_max}"
            )
        self._carrier.write(encoded)

    def close(self, reason: str) -> None:
        if self._phase is not _Phase.OPEN:
            return
        self._phase = _Phase.CLOSING
        self._close_reason = reason
        self._carrier.write(encode_frame(Goodbye(reason)))
        self._start_timer(self._limits.close_timeout_s, self._close_timed_out)

    def fail(self, reason: str) -> None:
        """End the link, with a goodbye that tells the peer what it did wrong."""
        if self._phase is _Phase.ENDED:
            return
        if self._phase is _Phase.OPEN:
            self._carrier.write(encode_frame(Goodbye(reason)))
        self._end(reason, clean=False)
        # The carrier goes on reading (and throws away) until the peer has seen the goodbye and
        # closes: to close under a peer that is writing would destroy what it has not yet read.
        self._start_timer(self._limits.close_timeout_s, self._carrier.abort)

    def expect_first_frame(self) -> None:
        """End the link if nobody adopts it within `hello_timeout_s`."""
        timeout_s = self._limits.hello_timeout_s
        self._start_timer(timeout_s, lambda: self.fail(f"no hello within {timeout_s} s"))

    def adopt(self, receiver: LinkReceiver) -> None:
        """Give the link, after its opening, to who receives its frames from now on."""
        self._stop_timer()
        self._receiver = receiver
        self._adopted = True

    def bytes_received(self, encoded: bytes) -> bool:
        """Take one serialized frame; return False when the link has no use for more."""
        if self._phase is _Phase.ENDED:
            return False
        if len(encoded) > self._limits.frame_bytes_max:
            # gRPC lets a little more through than we allow, so that this can be said.
            allowed = self._limits.frame_bytes_max
            self.fail(f"a frame of {len(encoded)} bytes; allowed: 1..{allowed}")
            return False
        try:
            frame = decode_frame(encoded)
        except WireError as error:
            self.fail(f"malformed frame: {error}")
            return False
        if isinstance(frame, Data):
            self._receiver.frame_received(self, frame)
        elif isinstance(frame, Goodbye):
            self._goodbye_received(frame.reason)
        elif self._adopted and isinstance(frame, Hello | Welcome):
            self.fail("hello and welcome are the first frames of a link, and only those")
        else:
            self._receiver.frame_received(self, frame)
        return not self.ended

    def carrier_drained(self) -> None:
        if self._phase is _Phase.OPEN:
            self._receiver.link_drained(self)

    def carrier_lost(self, reason: str) -> None:
        """The carrier is gone, expectedly or not; it calls nothing after this."""
        if self._phase is not _Phase.ENDED:
            self._end(self._close_reason or reason, clean=False)
        self._stop_timer()

    def _goodbye_received(self, reason: str) -> None:
        if self._phase is _Phase.OPEN:
            self._carrier.write(encode_frame(Goodbye(reason)))
        self._carrier.finish()
        self._end(self._close_reason or reason, clean=True)

    def _close_timed_out(self) -> None:
        self._carrier.abort()
        self._end(self._close_reason, clean=False)

    def _end(self, reason: str, *, clean: bool) -> None:
        self._phase = _Phase.ENDED
        self._stop_timer()
        self._receiver.link_ended(self, reason, clean)

    def _start_timer(self, delay_s: float, then: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(delay_s, then)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
