"""The raw lane: serialized frames over a Unix socket, each after its length.

A frame of gRPC costs what hundreds of messages cost; a lane costs a small part of that. Two ends
on one machine agree on it over gRPC (`OpenLane`), whose contract stays whole without it.
"""

from __future__ import annotations

import asyncio
import stat
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import cast

from sublet.runtime.links.lifecycle import FrameLink
from sublet.runtime.links.link import LinkLimits

LENGTH = Struct("<I")
JOINED_BYTES_MAX = 16 * 1024
"""Up to this size, copying a frame costs less than handing it over in two parts."""
TOKENS_MAX = 1_000
TOKEN_LIFE_S = 10.0
# What fits into the kernel's sockaddr_un, with its final zero.
PATH_BYTES_MAX = 107


class LaneCarrier(asyncio.Protocol):
    """One socket. Never buffers more of an unfinished frame than `frame_bytes_max`."""

    def __init__(
        self,
        limits: LinkLimits,
        link_made: Callable[[LaneCarrier], FrameLink],
        lost: Callable[[FrameLink], None] | None = None,
    ) -> None:
        """`link_made` is called when the socket is open, `lost` after the link's end."""
        self._limits = limits
        self._link_made = link_made
        self._lost = lost
        self._unfinished = bytearray()
        self._wanted_bytes = LENGTH.size
        self._abort_timer: asyncio.TimerHandle | None = None
        # Both are set by `connection_made`, which comes before everything else.
        self._transport: asyncio.Transport
        self._link: FrameLink

    @property
    def link(self) -> FrameLink:
        return self._link

    @property
    def pending_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def write(self, encoded: bytes) -> None:
        # Not `writelines`: that of asyncio, from Python 3.12 on, does not say when the buffer is
        # full, and so never that it has drained.
        length = LENGTH.pack(len(encoded))
        if len(encoded) <= JOINED_BYTES_MAX:
            self._transport.write(length + encoded)
        else:
            self._transport.write(length)
            self._transport.write(encoded)

    def finish(self) -> None:
        self._transport.close()
        self._abort_timer = asyncio.get_running_loop().call_later(
            self._limits.close_timeout_s, self.abort
        )

    def abort(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(
            self._limits.pending_bytes_high, self._limits.pending_bytes_low
        )
        self._link = self._link_made(self)

    def data_received(self, data: bytes) -> None:
        link = self._link
        if link.ended:
            return
        if self._unfinished:
            self._unfinished += data
            if len(self._unfinished) < self._wanted_bytes:
                return
            data = bytes(self._unfinished)
            self._unfinished.clear()
        # Everything that is whole is taken in one go; this loop runs once for each frame.
        unpack_from = LENGTH.unpack_from
        frame_bytes_max = self._limits.frame_bytes_max
        start, end = 0, len(data)
        wanted_bytes = LENGTH.size
        while end - start >= LENGTH.size:
            (length,) = unpack_from(data, start)
            if not 0 < length <= frame_bytes_max:
                link.fail(f"a frame of {length} bytes; allowed: 1..{frame_bytes_max}")
                return
            stop = start + LENGTH.size + length
            if stop > end:
                wanted_bytes = LENGTH.size + length
                break
            if not link.bytes_received(data[start + LENGTH.size : stop]):
                return
            start = stop
        self._wanted_bytes = wanted_bytes
        if start < end:
            self._unfinished += memoryview(data)[start:]

    def resume_writing(self) -> None:
        self._link.carrier_drained()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self._unfinished.clear()
        self._link.carrier_lost(f"lost: {exc or 'the socket was closed without a goodbye'}")
        if self._lost is not None:
            self._lost(self._link)


class LaneTokens:
    """One-time tokens: who has one has been talking to this worker over gRPC just now."""

    def __init__(self) -> None:
        self._expiry_s: OrderedDict[str, float] = OrderedDict()

    def add(self, token: str, now_s: float) -> None:
        """Remember a fresh token; beyond `TOKENS_MAX`, the oldest is forgotten."""
        self._expiry_s[token] = now_s + TOKEN_LIFE_S
        if len(self._expiry_s) > TOKENS_MAX:
            self._expiry_s.popitem(last=False)

    def take(self, token: str, now_s: float) -> bool:
        """Return whether the token is good; it is not good again."""
        return self._expiry_s.pop(token, now_s) > now_s


def prepare_lane_path(path: str) -> None:
    """Make the socket's folder, or check the one that is there: only its owner may enter it."""
    if len(path.encode()) > PATH_BYTES_MAX:
        raise ValueError(f"lane path {path!r} is longer than {PATH_BYTES_MAX} bytes")
    folder = Path(path).parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o077:
        raise ValueError(
            f"the folder of lane {path!r} has mode {mode:04o}; allowed: 0700, or name a new folder"
        )


def remove_lane_socket(path: str) -> None:
    Path(path).unlink(missing_ok=True)
