"""A Redis of the tests' own: another port, a folder of its own, an AOF; ended with the tests."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

PROGRAM = "redis-server"
START_WAIT_S = 20.0
STOP_WAIT_S = 10.0
PORT_MAX = 65_535 - 10_000


class RedisProcess:
    """A `redis-server` that can be ended, frozen and started again on the same data."""

    def __init__(
        self,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
        **options: str,
    ) -> None:
        """`options` are those of its command line, with _ for -; `prefix` is a command that
        becomes the one behind it, such as `ip netns exec`."""
        self.folder = folder
        self._host = host
        self._prefix = prefix
        self.port = _free_port()
        self._options = {
            "bind": host,
            "port": str(self.port),
            "dir": str(folder),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
            "logfile": str(folder / "redis.log"),
        } | {name.replace("_", "-"): value for name, value in options.items()}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://{self._host}:{self.port}/0"

    def start(self) -> None:
        program = shutil.which(PROGRAM)
        if program is None:
            raise RuntimeError(f"there is no {PROGRAM}; `make redis` installs it where it can")
        words = [word for name, value in self._options.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen(
            [*self._prefix, program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        until_s = time.monotonic() + START_WAIT_S
        while not self.ask("PING").startswith((b"+PONG", b"-NOAUTH")):
            if self._process.poll() is not None or time.monotonic() > until_s:
                log = self.folder / "redis.log"
                raise RuntimeError(f"{PROGRAM} did not start: {log.read_text()[-2000:]}")
            time.sleep(0.02)

    def ask(self, *words: str) -> bytes:
        """Send one command and return the beginning of the answer; nothing if there is none."""
        try:
            with socket.create_connection((self._host, self.port), timeout=5.0) as connection:
                encoded = [each.encode() for each in words]
                parts = [b"$%d\r\n%b\r\n" % (len(each), each) for each in encoded]
                connection.sendall(b"*%d\r\n" % len(encoded) + b"".join(parts))
                return connection.recv(65_536)
        except OSError:
            return b""

    def kill(self) -> None:
        """End it without a word, as a crash does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def lose_data(self) -> None:
        """Delete what a server that was ended has kept."""
        shutil.rmtree(self.folder / "appendonlydir", ignore_errors=True)
        (self.folder / "dump.rdb").unlink(missing_ok=True)

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, number)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_WAIT_S)


def _free_port() -> int:
    """Return a port that is free now; as a node of Redis Cluster, Redis adds 10,000 to it."""
    for _ in range(1_000):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port <= PORT_MAX:
            return port
    raise RuntimeError(f"no port up to {PORT_MAX} is free")
