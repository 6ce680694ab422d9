"""Child processes of a measurement: started here, listened to with a limit, ended by their id."""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Self

from benchmarks.harness.machine import ROOT

STOP_WAIT_S = 10.0
READ_SIZE_BYTES = 65_536


class Child:
    """One process whose standard output is read line by line, or with `is_read=False` joins the
    standard error. Leaving the context ends it.

    Its standard input is a pipe that closes when this process dies: a server that watches it
    cannot outlive us. With `own_session` the process leads a group of its own, and when it has to
    be killed, whatever it started is killed with it.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        directory: Path = ROOT,
        environment: Mapping[str, str] | None = None,
        errors: IO[str] | int | None = None,
        own_session: bool = False,
        is_read: bool = True,
    ) -> None:
        self._own_session = own_session
        self._process = subprocess.Popen(
            command,
            cwd=directory,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            # A pipe that nobody reads fills up and stops the process.
            stdout=subprocess.PIPE if is_read else sys.stderr,
            stderr=errors,
            start_new_session=own_session,
        )
        self._output = self._process.stdout
        self._unread = bytearray()

    @property
    def pid(self) -> int:
        return self._process.pid

    def read_line(self, timeout_s: float) -> str | None:
        """Return the next line without its end, or None after the last one.

        Raises TimeoutError when none is complete in time.
        """
        if self._output is None:
            raise ValueError("the process was started with is_read=False")
        deadline_s = time.monotonic() + timeout_s
        while (end := self._unread.find(b"\n")) < 0:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([self._output], [], [], left_s)[0]:
                raise TimeoutError(f"process {self.pid} printed no line within {timeout_s:.0f} s")
            chunk = os.read(self._output.fileno(), READ_SIZE_BYTES)
            if not chunk:
                return None
            self._unread += chunk
        line = self._unread[:end].decode()
        del self._unread[: end + 1]
        return line

    def write_line(self, line: str) -> None:
        """Say something to the process on its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def wait(self, timeout_s: float) -> int:
        """Return the exit code. Raises subprocess.TimeoutExpired."""
        return self._process.wait(timeout_s)

    def stop(self) -> None:
        """End the process: asked first, then killed. Safe to call twice."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_WAIT_S)
            except subprocess.TimeoutExpired:
                # Not reaped yet, so its id, and that of the group it leads, is still its own.
                if self._own_session:
                    os.killpg(self.pid, signal.SIGKILL)
                self._process.kill()
                self._process.wait(STOP_WAIT_S)
        for pipe in (self._output, self._process.stdin):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def exit_on_terminate() -> None:
    """Let SIGTERM unwind the stack, so that contexts end the processes they started."""
    signal.signal(signal.SIGTERM, _exit_on_signal)


def free_ports(count: int) -> list[int]:
    """Return loopback ports that are free now, for servers that cannot bind port 0 themselves."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
