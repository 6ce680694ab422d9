"""The life of a link, apart from what carries its bytes.

Checks what comes in, says goodbye, notices a peer that is silent, and tells its receiver of the end
exactly once. Sockets and streams are in `raw_lane` and `grpc_link`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from sublet.functions.errors import TooLargeError
from sublet.runtime.links.link import LinkLimits, LinkReceiver
from sublet.runtime.protocol.frames import (
    Alive,
    Challenge,
    Data,
    Frame,
    Goodbye,
    Hello,
    Proof,
    Welcome,
)
from sublet.runtime.protocol.wire.errors import WireError
from sublet.runtime.protocol.wire.frames import decode_frame, encode_frame

_ALIVE = encode_frame(Alive())
_ASK = encode_frame(Alive(asks=True))
_LARGE_FOLLOWS = encode_frame(Alive(large_follows=True))
LOOKS_IN_SILENCE = 4
"""A peer is looked after so often in `silence_s`, and lost if it was silent at all looks but one:
before the last it was asked twice. Looks are counted, and time is not measured, so that a pause of
one's own does not count as the peer's silence."""
LARGE_BYTES = 128 * 2**10
LARGE_PATIENCE = 16
"""A larger frame is announced, and may take so many times longer than silence may last: on a bad
line, a frame that comes whole or not at all must not look like silence."""


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
        "_answers",
        "_carrier",
        "_close_reason",
        "_heard",
        "_large_follows",
        "_limits",
        "_looks_in_vain",
        "_peer",
        "_phase",
        "_receiver",
        "_said",
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
        self._answers = False
        """The peer has said that it answers who asks for a sign of life."""
        self._heard = self._said = True
        """Since the last look."""
        self._looks_in_vain = 0
        self._large_follows = False

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
        self._said = True
        if len(encoded) > LARGE_BYTES and self._adopted and self._answers:
            self._carrier.write(_LARGE_FOLLOWS)
        self._carrier.write(encoded)

    def close(self, reason: str) -> None:
        if self._phase is not _Phase.OPEN:
            return
        self._phase = _Phase.CLOSING
        self._close_reason = reason
        self._carrier.write(encode_frame(Goodbye(reason)))
        self._start_timer(self._limits.close_timeout_s, self._close_timed_out)

    def abandon(self, reason: str) -> None:
        if self._phase is not _Phase.ENDED:
            self._carrier.abort()
            self._end(reason, clean=False)

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
        self._receiver = receiver
        self._adopted = True
        if self._phase is _Phase.OPEN:
            self._stop_timer()
            if self._answers:
                self._look_later()

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
        self._heard = True
        self._large_follows = False
        if isinstance(frame, Data):
            self._receiver.frame_received(self, frame)
        elif isinstance(frame, Goodbye):
            self._goodbye_received(frame.reason)
        elif isinstance(frame, Alive):
            self._alive_received(frame)
        elif isinstance(frame, Hello | Challenge | Proof | Welcome):
            self._greeting_received(frame)
        else:
            self._receiver.frame_received(self, frame)
        return not self.ended

    def _alive_received(self, frame: Alive) -> None:
        if not self._adopted:
            self._receiver.frame_received(self, frame)  # Who will not have it as the first.
            return
        self._large_follows = frame.large_follows
        if frame.asks and self._phase is _Phase.OPEN:
            self._said = True
            self._carrier.write(_ALIVE)

    def _greeting_received(self, frame: Hello | Challenge | Proof | Welcome) -> None:
        if self._adopted:
            self.fail("hello and welcome may only be the first frame of a link")
            return
        if isinstance(frame, Hello | Welcome):
            self._answers = frame.answers_alive
        self._receiver.frame_received(self, frame)

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

    def _look_later(self) -> None:
        self._start_timer(self._limits.silence_s / LOOKS_IN_SILENCE, self._look)

    def _look(self) -> None:
        """Ask who has said nothing since we last looked, and tell who has heard nothing."""
        if not self._heard:
            self._looks_in_vain += 1
            patience = LARGE_PATIENCE if self._large_follows else 1
            if self._looks_in_vain >= LOOKS_IN_SILENCE * patience - 1:
                silence_s = self._limits.silence_s * patience
                self.abandon(f"lost: the other end was silent for {silence_s:g} s")
                return
            self._carrier.write(_ASK)
        else:
            self._looks_in_vain = 0
            if not self._said:
                self._carrier.write(_ALIVE)
        self._heard = self._said = False
        self._look_later()

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
