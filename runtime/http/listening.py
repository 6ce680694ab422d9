"""The socket at which HTTP is served: how it is opened, and how it is closed without a reset."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import socket
import struct
from typing import NamedTuple

import structlog

from sublet.runtime.config.addresses import is_wildcard_host
from sublet.runtime.config.settings import PortTakenError

_log = structlog.get_logger(__name__)

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


class ListenAt(NamedTuple):
    """Where to listen; port 0 takes any free one."""

    host: str
    port: int = 0
    or_any_port: bool = False
    """Take any free one if the port is taken."""
    kept: socket.socket | None = None
    """Listens already, and goes on when the worker ends; then the rest does not count."""
    front: socket.socket | None = None
    """Listens beside the other, for all workers of a supervisor, and goes on when they end."""

    def open(self) -> socket.socket:
        if self.kept is not None:
            return self.kept
        try:
            return listen(self.host, self.port)
        except PortTakenError:
            if not self.or_any_port:
                raise
            _log.warning("the port is in use; listening for HTTP on another", port=self.port)
            return listen(self.host, 0)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 takes any free one. On `::` it takes IPv4, too, as gRPC
    does."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    is_dual = family is socket.AF_INET6 and is_wildcard_host(host) and socket.has_dualstack_ipv6()
    try:
        listener = socket.create_server(
            (host.strip("[]"), port), family=family, backlog=BACKLOG, dualstack_ipv6=is_dual
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTakenError(port, "--http-port") from None
        raise OSError(
            f"cannot listen for HTTP on {host}: {error.strerror}; choose an address of this "
            "machine (--host)"
        ) from None
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
