"""Ports for what has to be told where to listen.

They lie below those that the system gives to connections, so that a port that is free when it is
chosen is free when somebody listens there.
"""

from __future__ import annotations

import random
import socket

FIRST, STOP = 12_000, 22_000
"""A node of Redis Cluster adds 10,000, and is still below."""

_chance = random.SystemRandom()


def free_ports(count: int) -> list[int]:
    """Return some ports one after the other, of which all are free."""
    for _ in range(1_000):
        first = _chance.randrange(FIRST, STOP - count)
        ports = list(range(first, first + count))
        if all(map(_is_free, ports)):
            return ports
    raise RuntimeError(f"no {count} ports from {FIRST} to {STOP} are free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
