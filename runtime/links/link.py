"""What a link is, whatever carries it: frames both ways, in order, until it ends.

A link never waits for its user and its user never waits for it: sending queues, receiving calls
back. How much may be queued is the user's decision, who sees `pending_bytes`. A link promises
order, not delivery: when it ends without a goodbye, nobody knows what of the last frames arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from sublet.runtime.config.limits import SILENCE_S_MAX, SILENCE_S_MIN
from sublet.runtime.protocol.frames import Frame, Hello

PROTOCOL = 1


class LinkLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of every link of a process."""

    frame_bytes_max: int = 4 * 2**20 + 64 * 2**10
    """Of one serialized frame, both ways. Both ends must agree."""
    pending_bytes_high: int = 2**20
    """Above it, the link owes its user a `link_drained`."""
    pending_bytes_low: int = 256 * 2**10
    links_max: int = 1_000
    """Accepted by a server at a time."""
    unary_calls_max: int = 1_000
    """Under way on a server at a time."""
    hello_timeout_s: float = 5.0
    """From a link's opening to its first frame, on either side."""
    close_timeout_s: float = 2.0
    """From a goodbye to the end of the link, whatever the peer does."""
    silence_s: float = 4.0
    """A link whose other end says nothing for so long, not even when asked, is lost. Well above
    what an event loop may pause: a peer that only computes must be able to answer."""

    def __post_init__(self) -> None:
        if not 0 < self.pending_bytes_low <= self.pending_bytes_high:
            raise ValueError(
                f"pending_bytes_low is {self.pending_bytes_low}; "
                f"allowed: 1..{self.pending_bytes_high} (pending_bytes_high)"
            )
        if not 1_024 <= self.frame_bytes_max < 2**28:
            raise ValueError(
                f"frame_bytes_max is {self.frame_bytes_max}; allowed: 1024..{2**28 - 1}"
            )
        if not SILENCE_S_MIN <= self.silence_s <= SILENCE_S_MAX:
            raise ValueError(
                f"silence_s is {self.silence_s:g}; allowed: {SILENCE_S_MIN:g}..{SILENCE_S_MAX:g}"
            )


class Link(Protocol):
    """One end of a link. All methods are for the event loop's thread and never block."""

    @property
    def peer(self) -> str:
        """Who is at the other end, for people: an address and the kind of transport."""
        ...

    @property
    def pending_bytes(self) -> int:
        """Bytes that were sent and have not yet been taken by the transport below."""
        ...

    def send(self, frame: Frame) -> None:
        """Queue a frame. On a link that is closing or has ended, the frame is dropped.

        Raises `TooLargeError` (and queues nothing) for a frame above `frame_bytes_max`.
        """
        ...

    def close(self, reason: str) -> None:
        """Say goodbye after all frames sent so far, and end. May be called more than once.

        Frames of the peer are still delivered until it has said goodbye too; then, or after
        `close_timeout_s`, the receiver hears `link_ended`.
        """
        ...

    def abandon(self, reason: str) -> None:
        """End now, without a goodbye: to the peer, the link is lost. The receiver hears it."""
        ...


class LinkReceiver(Protocol):
    """The user's end of a link. Its methods are called on the loop and must not raise."""

    def frame_received(self, link: Link, frame: Frame) -> None:
        """Take a checked frame: whoever connected gets a `Welcome` first, then everybody only
        `Data`, `Topology` and `Refused`. A `Goodbye` is told by `link_ended`."""
        ...

    def link_drained(self, link: Link) -> None:
        """`pending_bytes` was above its high mark and has fallen to its low mark."""
        ...

    def link_ended(self, link: Link, reason: str, clean: bool) -> None:
        """The last call for this link, made exactly once.

        `clean` if and only if the peer said goodbye: then every frame that it had sent was
        delivered. It says nothing about frames that were sent to it after it said so. A peer that
        is frozen, or cut off without a word, is noticed after `silence_s`.
        """
        ...


ReceiverFactory = Callable[[Link, Hello], LinkReceiver]
"""Accepts a link by returning who receives its frames, and sends the `Welcome` then or soon after.

Raises a `SubletError` to refuse; its text becomes the reason of the goodbye.
"""
