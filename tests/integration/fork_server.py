"""Starts `sublet` by fork, from a process that has imported it: a third of the time.

What is so started is a process like any other, with a memory, a loop, an output and an end of its
own. Only its imports are done already; the tests that start it in a shell are there for these.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

PROJECT = Path(__file__).parents[2]
MESSAGE_BYTES_MAX = 1024 * 1024
SERVERS = 2
"""They take turns, so that not all workers of a cluster hash texts in the same order."""

_turns = count()


@dataclass(frozen=True)
class Command:
    """What is to be started; what it prints is added to the files."""

    arguments: list[str]
    environment: dict[str, str]
    directory: str
    stdin: str
    stdout: str
    stderr: str


class ForkedProcess:
    """A `sublet` that was forked; tests do to it what they do to a `subprocess.Popen`."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._pidfd: int | None = os.pidfd_open(pid)
        # A test may ask from several threads, and only one may reap.
        self._reaping = threading.Lock()

    def poll(self) -> int | None:
        """Return how it has ended; None as long as it has not."""
        return self.wait(0.0)

    def wait(self, timeout: float) -> int | None:
        """Wait for its end, at most so many seconds."""
        with self._reaping:
            if self._pidfd is not None and self._has_ended(timeout):
                self.returncode = self._server.reap(self.pid)
                os.close(self._pidfd)
                self._pidfd = None
            if self._pidfd is not None and timeout:
                raise subprocess.TimeoutExpired("sublet", timeout)
            return self.returncode

    def _has_ended(self, timeout_s: float) -> bool:
        # `select` refuses numbers above 1023, which a test of many connections may reach.
        ends = select.poll()
        ends.register(self._pidfd, select.POLLIN)
        return bool(ends.poll(1000 * timeout_s))

    def send_signal(self, number: int) -> None:
        # Nobody else gets its id: only `wait` lets it be reaped.
        with self._reaping:
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """A process that forks; it and what it has forked end with this one."""

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

    def start(self, command: Command) -> ForkedProcess:
        return ForkedProcess(self, self._ask(asdict(command)))

    def reap(self, pid: int) -> int:
        """Return how a process has ended, as `Popen.returncode` says it."""
        return os.waitstatus_to_exitcode(self._ask({"reap": pid}))

    def _ask(self, asked: Mapping[str, Any]) -> int:
        with self._lock:
            self._socket.sendall(json.dumps(asked).encode())
            if not (answer := self._socket.recv(MESSAGE_BYTES_MAX)):
                raise RuntimeError("the process that forks has ended")
        return int(answer)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()


@cache
def _server(_: int) -> ForkServer:
    return ForkServer()


def _start(command: Command) -> ForkedProcess:
    return _server(next(_turns) % SERVERS).start(command)


def start_worker(target: str, environment: Mapping[str, str], log: Path) -> ForkedProcess:
    """Start one more `sublet worker`, in the project's folder."""
    files = (os.devnull, str(log), str(log))
    return _start(Command(["worker", target], dict(environment), str(PROJECT), *files))


def run_sublet(
    *arguments: str,
    directory: Path,
    environment: Mapping[str, str],
    patience_s: float,
    stdin: str = "",
    one_output: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a `sublet` to its end, as `subprocess.run` would; with one output, as a terminal has it,
    errors are among the rest."""
    with TemporaryDirectory() as folder:
        given, printed, told = (Path(folder, name) for name in ("stdin", "stdout", "stderr"))
        given.write_text(stdin)
        told = printed if one_output else told
        files = (str(given), str(printed), str(told))
        process = _start(Command(list(arguments), dict(environment), str(directory), *files))
        try:
            code = process.wait(patience_s)
        finally:
            process.kill()
            process.wait(patience_s)
        assert code is not None
        return subprocess.CompletedProcess(
            ["sublet", *arguments], code, printed.read_text(), told.read_text()
        )


# The process that forks


def _serve(asker: socket.socket) -> Command:
    """Fork until the asker has gone. Returns in each child, with what it is to do."""
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
                return Command(**asked)
            children.add(answer)
        asker.sendall(str(answer).encode())
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    sys.exit()


def _become(command: Command) -> None:
    """Change all that a process that is started anew has of its own."""
    os.environ.clear()
    os.environ.update(command.environment)
    os.chdir(command.directory)
    sys.path[0] = command.directory
    sys.argv = ["sublet", *command.arguments]
    for place, name in enumerate((command.stdin, command.stdout, command.stderr)):
        opened = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT if place else os.O_RDONLY)
        os.dup2(opened, place)
        os.close(opened)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _main() -> NoReturn:
    # Ctrl-C is for what was forked, and for whoever asked for that.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import uvloop  # noqa: F401

    import sublet.runtime.cli.commands.run
    import sublet.runtime.client.client
    import sublet.runtime.config.app_loading
    import sublet.runtime.http.routes
    import sublet.runtime.http.server
    import sublet.runtime.http.sse
    import sublet.runtime.observability.logging_setup
    import sublet.runtime.services.metrics
    import sublet.runtime.worker
    import sublet.statestore.memory
    import sublet.statestore.redis.directory
    import sublet.statestore.redis.store
    import sublet.statestore.sqlite.directory
    import sublet.statestore.sqlite.store  # noqa: F401
    from sublet.runtime.cli.main import cli, main

    # Imports what reads a command line.
    cli(["config", "show"], standalone_mode=False)
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise RuntimeError(f"an import has started threads ({threads}), which a fork leaves behind")
    # Whoever is forked would copy all that a collection of garbage only looks at.
    gc.collect()
    gc.freeze()
    _become(_serve(socket.socket(fileno=int(sys.argv[1]))))
    _end_early(main)


def _end_early(main: Callable[[], object]) -> NoReturn:
    """Run it, and end as a Python does, but for taking down every module: what was forked would
    copy them all to do so, which takes six times as long as a short command itself."""
    status: object = 0
    try:
        main()
    except SystemExit as ended:
        status = ended.code
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else 0 if status is None else 1)


if __name__ == "__main__":
    _main()
