"""Starts workers by fork, from a process that has imported them: a tenth of the time.

A worker so started is a process like any other: it has a memory, a loop, a log and an end of its
own. What `sublet worker` does before its first import is left to the tests of the command line.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

PROJECT = Path(__file__).parents[2]
MESSAGE_BYTES_MAX = 1024 * 1024
SERVERS = 2
"""Workers take turns: Python hashes texts in another order in each process that is not forked."""

_turns = count()


class ForkedProcess:
    """A worker that was forked; tests do to it what they do to a `subprocess.Popen`."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._pidfd: int | None = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return how it has ended; None as long as it has not."""
        return self.wait(0.0)

    def wait(self, timeout: float) -> int | None:
        """Wait for its end, at most so many seconds."""
        if self._pidfd is not None and select.select([self._pidfd], [], [], timeout)[0]:
            self.returncode = self._server.reap(self.pid)
            os.close(self._pidfd)
            self._pidfd = None
        if self._pidfd is not None and timeout:
            raise subprocess.TimeoutExpired("sublet worker", timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        # Nobody else gets its id: only `wait` lets it be reaped.
        if self._pidfd is not None:
            signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """A process that forks workers; it and they end with this one."""

    def __init__(self) -> None:
        self._socket, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.fork_server", str(there.fileno())],
                cwd=PROJECT,
                env={**os.environ, "GRPC_VERBOSITY": "ERROR", "GRPC_ENABLE_FORK_SUPPORT": "0"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(there.fileno(),),
            )
        atexit.register(self._end)

    def start_worker(self, target: str, environment: Mapping[str, str], log: Path) -> ForkedProcess:
        """Start `sublet worker` with just these variables; what it writes is added to the log."""
        asked = {"target": target, "environment": dict(environment), "log": str(log)}
        return ForkedProcess(self, self._ask(asked))

    def reap(self, pid: int) -> int:
        """Return how a worker has ended, as `Popen.returncode` says it."""
        return os.waitstatus_to_exitcode(self._ask({"reap": pid}))

    def _ask(self, asked: Mapping[str, Any]) -> int:
        with self._lock:
            self._socket.sendall(json.dumps(asked).encode())
            if not (answer := self._socket.recv(MESSAGE_BYTES_MAX)):
                raise RuntimeError("the process that forks workers has ended")
        return int(answer)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()


@cache
def _server(_: int) -> ForkServer:
    return ForkServer()


def start_worker(target: str, environment: Mapping[str, str], log: Path) -> ForkedProcess:
    """Start one more `sublet worker`, in the project's folder."""
    return _server(next(_turns) % SERVERS).start_worker(target, environment, log)


# The process that forks


def _serve(asker: socket.socket) -> list[str]:
    """Fork until the asker has gone. Returns in each child, with its command line."""
    children: set[int] = set()
    while message := asker.recv(MESSAGE_BYTES_MAX):
        asked = json.loads(message)
        if "reap" in asked:
            _, answer = os.waitpid(asked["reap"], 0)
            children.remove(asked["reap"])
        else:
            answer = os.fork()
            if not answer:
                asker.close()
                return _begin(**asked)
            children.add(answer)
        asker.sendall(str(answer).encode())
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    sys.exit()


def _begin(target: str, environment: dict[str, str], log: str) -> list[str]:
    """Become what a process is that was started anew."""
    os.environ.clear()
    os.environ.update(environment)
    with open(log, "ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return ["sublet", "worker", target]


def _main() -> NoReturn:
    # Ctrl-C is for the workers and for whoever started them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import uvloop  # noqa: F401

    import sublet.runtime.cli_run
    import sublet.runtime.http.app
    import sublet.runtime.http.server
    import sublet.runtime.http.sse
    import sublet.runtime.loading
    import sublet.runtime.log
    import sublet.runtime.metrics
    import sublet.runtime.worker
    import sublet.statestore.memory
    import sublet.statestore.redis_directory
    import sublet.statestore.redis_store
    import sublet.statestore.sqlite
    import sublet.statestore.sqlite_directory  # noqa: F401
    from sublet.runtime.cli import cli, main

    # Imports what reads a command line.
    cli(["config", "show"], standalone_mode=False)
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise RuntimeError(f"an import has started threads ({threads}), which a fork leaves behind")
    sys.argv = _serve(socket.socket(fileno=int(sys.argv[1])))
    main()
    sys.exit()


if __name__ == "__main__":
    _main()
