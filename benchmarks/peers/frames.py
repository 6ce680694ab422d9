"""Length-prefixed frames over a stream, as thin as asyncio allows."""

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import cast

_LENGTH = struct.Struct("<I")


class FrameConnection(asyncio.Protocol):
    """One end of a connection; calls `on_frame` with itself and each complete frame."""

    def __init__(self, on_frame: "OnFrame") -> None:
        self._on_frame = on_frame
        self._received = bytearray()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport, not its type.
        self._transport = cast(asyncio.Transport, transport)
        # Without it a small frame waits for the acknowledgement of the one before.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        position, end = 0, len(received)
        while end - position >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(received, position)
            frame_end = position + _LENGTH.size + length
            if frame_end > end:
                break
            with memoryview(received) as view:
                frame = bytes(view[position + _LENGTH.size : frame_end])
            self._on_frame(self, frame)
            position = frame_end
        del received[:position]

    def send(self, frame: bytes) -> None:
        self._transport.write(_LENGTH.pack(len(frame)) + frame)

    def close(self) -> None:
        self._transport.close()


OnFrame = Callable[[FrameConnection, bytes], None]
