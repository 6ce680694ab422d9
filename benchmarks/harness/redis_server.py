"""A Redis server for a measurement: on a free loopback port, in a directory that goes with it.

    .venv/bin/python -m benchmarks.harness.redis_server       # installs Redis where it is missing

Nothing is kept on disk: a server that wrote would be slower, and the runtimes that Redis stands for
hold their state in memory. Where there is no `redis-server`, Debian's package is installed; that
needs root.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from benchmarks.harness.processes import Child, free_ports

PROGRAM = "redis-server"
PACKAGE = "redis-server"
INSTALL_WAIT_S = 300.0
START_WAIT_S = 10.0


class RedisMissingError(RuntimeError):
    """There is no Redis here and none could be installed; the text says what to do."""


def install() -> str:
    """Return the path of the server's program; install it first if there is none."""
    if found := shutil.which(PROGRAM):
        return found
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        raise RedisMissingError(
            f"there is no {PROGRAM} in PATH; install Redis 6 or newer (Debian: apt-get install "
            f"{PACKAGE}), or run this as root where apt-get can do it"
        )
    print(f"installing {PACKAGE}", file=sys.stderr, flush=True)
    done = subprocess.run(
        [apt, "install", "--yes", "--no-install-recommends", PACKAGE],
        # In runlevel 1 Debian's packages do not start their services.
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=INSTALL_WAIT_S,
        check=False,
    )
    found = shutil.which(PROGRAM)
    if done.returncode or found is None:
        raise RedisMissingError(f"apt-get could not install {PACKAGE}: {done.stderr.strip()}")
    return found


class RedisServer:
    """A server that runs within a `with` block; `url` says where."""

    def __init__(self, appendfsync: str = "") -> None:
        """With `appendfsync` (always, everysec) it keeps an AOF; otherwise it keeps nothing."""
        self._appendfsync = appendfsync
        self._stack = ExitStack()
        self._port = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    def clear(self) -> None:
        """Forget everything."""
        if not _ask(self._port, b"FLUSHALL").startswith(b"+OK"):
            raise RuntimeError("Redis would not forget")

    def __enter__(self) -> Self:
        program = install()
        with ExitStack() as stack:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="redis-"))
            (port,) = free_ports(1)
            options = {
                "--bind": "127.0.0.1",
                "--port": str(port),
                "--dir": directory,
                "--save": "",
                "--appendonly": "yes" if self._appendfsync else "no",
                "--appendfsync": self._appendfsync or "no",
                "--logfile": f"{directory}/redis.log",
            }
            command = [program, *(word for each in options.items() for word in each)]
            stack.enter_context(Child(command, is_read=False))
            _await_port(port)
            self._port = port
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()


def _ask(port: int, command: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=5.0) as connection:
        connection.sendall(command + b"\r\n")
        return connection.recv(64)


def _await_port(port: int) -> None:
    until_s = time.monotonic() + START_WAIT_S
    while True:
        try:
            if _ask(port, b"PING").startswith(b"+PONG"):
                return
        except OSError:
            # It is not listening yet.
            pass
        if time.monotonic() > until_s:
            raise RedisMissingError(f"{PROGRAM} did not answer within {START_WAIT_S:.0f} s")
        time.sleep(0.02)


def main() -> None:
    with RedisServer() as server:
        print(f"{install()} works ({server.url})")


if __name__ == "__main__":
    main()
