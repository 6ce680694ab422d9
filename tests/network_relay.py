"""A slow and lossy line, for kernels without netem: `delay_ms jitter_ms loss seed`.

Runs on the router of a `tests.network`, which leads packets into its device. Each is lost with
the probability `loss`, or comes out again after `delay_ms` plus up to `jitter_ms`; so they overtake
one another. Ends when its standard input does, that is, with whoever has started it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import struct
import sys
from collections.abc import Callable

DEVICE = "relay"
PACKET_BYTES_MAX = 65_536
WAITING_MAX = 20_000
_TUNSETIFF = 0x400454CA
_TUN_WITHOUT_HEADER = 0x0001 | 0x1000


def open_device(name: str) -> int:
    """Return the file of a new network device: what the kernel sends to it is read there."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TUN_WITHOUT_HEADER))
    return file


async def relay(file: int, delay_s: Callable[[], float | None]) -> None:
    """Give every packet back after its delay (None: never), until standard input ends."""
    loop = asyncio.get_running_loop()
    waiting = 0

    def give_back(packet: bytes) -> None:
        nonlocal waiting
        waiting -= 1
        try:
            os.write(file, packet)
        except OSError:
            return  # The device has no room, or is not up: lost, as packets may be.

    def take() -> None:
        nonlocal waiting
        try:
            packet = os.read(file, PACKET_BYTES_MAX)
        except OSError:
            return
        after_s = delay_s()
        if after_s is not None and waiting < WAITING_MAX:
            waiting += 1
            loop.call_later(after_s, give_back, packet)

    ended = asyncio.Event()
    loop.add_reader(file, take)
    loop.add_reader(sys.stdin.fileno(), ended.set)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await ended.wait()


def main() -> None:
    delay_ms, jitter_ms, loss, seed = map(float, sys.argv[1:])
    chance = random.Random(seed)

    def delay_s() -> float | None:
        if chance.random() < loss:
            return None
        return (delay_ms + chance.uniform(0.0, jitter_ms)) / 1000.0

    asyncio.run(relay(open_device(DEVICE), delay_s))


if __name__ == "__main__":
    main()
