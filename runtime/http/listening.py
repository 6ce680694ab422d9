"""The socket at which HTTP is served: how it is opened, and how it is closed without a reset."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import socket
import struct

from sublet.runtime.config.settings import PortTakenError

BACKLOG = 1_024

_SO_ATTACH_FILTER = 26
# A program for the kernel's packet filter, which is given the TCP header: drop what begins a
# connection (SYN without ACK), pass all else.
_DROP_SYN = (
    (0x30, 0, 0, 13),  # Load the byte of flags.
    (0x54, 0, 0, 0x12),  # Keep SYN and ACK of it.
    (0x15, 0, 1, 0x02),  # If only SYN is set,
    (0x06, 0, 0, 0),  # drop;
    (0x06, 0, 0, 0xFFFFFFFF),  # else pass.
)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 takes any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host.strip("[]"), port), family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTakenError(port, "--http-port") from None
        raise OSError(f"cannot listen for HTTP on {host}:{port}: {error.strerror}") from None
    listener.setblocking(False)
    return listener


def let_nobody_connect(listener: socket.socket) -> None:
    """Let the kernel drop attempts to connect, as if they had not arrived.

    It resets those who have connected and were not accepted yet when a socket is closed. Once
    nobody else can connect, these can be accepted before that. Who tries meanwhile tries again
    after a second, and is refused at once then. Linux only; elsewhere it does nothing.
    """
    program = b"".join(struct.pack("HBBI", *step) for step in _DROP_SYN)
    kept = ctypes.create_string_buffer(program, len(program))
    value = struct.pack("HP", len(_DROP_SYN), ctypes.addressof(kept))
    with contextlib.suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, value)
