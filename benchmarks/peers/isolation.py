"""Keeps a measured system from talking to anything but this machine."""

import ctypes
import fcntl
import os
import socket
import struct

_CLONE_NEWUSER = 0x1000_0000
_CLONE_NEWNET = 0x4000_0000
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
# struct ifreq: the interface's name, then a union of which the flags are the first two bytes.
_INTERFACE_REQUEST = struct.Struct("16sh14x")


def loopback_only() -> None:
    """Move this process, and what it starts from now on, into a network of its own that has
    nothing but a loopback interface.

    Linux only, and to be called before any thread is started. Raises OSError where the system
    does not allow it.
    """
    flags = _CLONE_NEWNET if os.geteuid() == 0 else _CLONE_NEWNET | _CLONE_NEWUSER
    if ctypes.CDLL(None, use_errno=True).unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"no network namespace: {os.strerror(number)}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = _INTERFACE_REQUEST.pack(b"lo", 0)
        _, up = _INTERFACE_REQUEST.unpack(fcntl.ioctl(control, _SIOCGIFFLAGS, request))
        fcntl.ioctl(control, _SIOCSIFFLAGS, _INTERFACE_REQUEST.pack(b"lo", up | _IFF_UP))
