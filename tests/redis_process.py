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

from tests.ports import free_ports

PROGRAM = "redis-server"
START_WAIT_S = 20.0
STOP_WAIT_S = 10.0
SLOT_COUNT = 16_384


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
        (self.port,) = free_ports(1)
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

    def ask(self, *words: str, patience_s: float = 5.0) -> bytes:
        """Send one command and return the beginning of the answer; nothing if there is none."""
        try:
            with socket.create_connection((self._host, self.port), patience_s) as connection:
                encoded = [each.encode() for each in words]
                parts = [b"$%d\r\n%b\r\n" % (len(each), each) for each in encoded]
                connection.sendall(b"*%d\r\n" % len(encoded) + b"".join(parts))
                return connection.recv(65_536)
        except OSError:
            return b""

    def open_tls_port(self) -> int:
        """Listen for encrypted connections too; return where."""
        (port,) = free_ports(1)
        if not (answer := self.ask("CONFIG", "SET", "tls-port", str(port))).startswith(b"+OK"):
            raise RuntimeError(f"{PROGRAM} does not listen for TLS: {answer!r}")
        return port

    def wait_for(self, command: str, text: bytes) -> None:
        """Ask again and again until the answer contains the text."""
        until_s = time.monotonic() + START_WAIT_S
        while text not in (answer := self.ask(*command.split())):
            if time.monotonic() > until_s:
                raise RuntimeError(f"{command} answers {answer!r}, without {text!r}")
            time.sleep(0.02)

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


class RedisClusterProcesses:
    """A Redis Cluster of primaries, whose slots can be moved from one to the other."""

    def __init__(self, folder: Path, count: int = 3, **options: str) -> None:
        self.nodes: list[RedisProcess] = []
        for number in range(count):
            place = folder / f"node{number}"
            place.mkdir(parents=True)
            settings = {
                "cluster_enabled": "yes",
                "cluster_node_timeout": "15000",
                # One that is away takes only its own slots along.
                "cluster_require_full_coverage": "no",
                **options,
            }
            self.nodes.append(RedisProcess(place, **settings))
        self.ids: list[str] = []

    @property
    def url(self) -> str:
        return self.nodes[0].url

    def start(self) -> None:
        count = len(self.nodes)
        for node in self.nodes:
            node.start()
        self.ids = [_text(node.ask("CLUSTER", "MYID")) for node in self.nodes]
        bounds = [SLOT_COUNT * number // count for number in range(count + 1)]
        for number, node in enumerate(self.nodes):
            _expect_ok(node.ask("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1)))
            first, last = str(bounds[number]), str(bounds[number + 1] - 1)
            _expect_ok(node.ask("CLUSTER", "ADDSLOTSRANGE", first, last))
        for node in self.nodes[1:]:
            _expect_ok(self.nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", str(node.port)))
        until_s = time.monotonic() + START_WAIT_S
        while not all(self._is_whole(node) for node in self.nodes):
            if time.monotonic() > until_s:
                raise RuntimeError("the nodes of the Redis Cluster did not find each other")
            time.sleep(0.02)

    def _is_whole(self, node: RedisProcess) -> bool:
        info = node.ask("CLUSTER", "INFO")
        known = f"cluster_known_nodes:{len(self.nodes)}\r".encode()
        return b"cluster_state:ok" in info and b"cluster_slots_ok:16384" in info and known in info

    def add_replica(self, folder: Path) -> RedisProcess:
        """Start one more node, which copies the first, and wait until it has everything."""
        folder.mkdir()
        replica = RedisProcess(folder, cluster_enabled="yes", cluster_node_timeout="15000")
        replica.start()
        self.nodes.append(replica)
        self.ids.append(_text(replica.ask("CLUSTER", "MYID")))
        _expect_ok(self.nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", str(replica.port)))
        replica.wait_for("CLUSTER NODES", f"{self.ids[0]} 127.0.0.1".encode())
        _expect_ok(replica.ask("CLUSTER", "REPLICATE", self.ids[0]))
        replica.wait_for("INFO replication", b"master_link_status:up")
        # Otherwise its own first epoch could be the same.
        replica.wait_for("CLUSTER INFO", b"cluster_my_epoch:1")
        return replica

    def owner_of(self, slot: int) -> int:
        """Return the number of the node that has a slot, by how they were given out at first."""
        return next(
            number
            for number in range(len(self.nodes))
            if slot < SLOT_COUNT * (number + 1) // len(self.nodes)
        )

    def begin_move(self, slot: int, source: int, target: int) -> None:
        """From here on the slot belongs to both, as while an administrator moves it."""
        for node, word, other in ((target, "IMPORTING", source), (source, "MIGRATING", target)):
            answer = self.nodes[node].ask("CLUSTER", "SETSLOT", str(slot), word, self.ids[other])
            _expect_ok(answer)

    def keys_in(self, slot: int, source: int) -> list[str]:
        answer = self.nodes[source].ask("CLUSTER", "GETKEYSINSLOT", str(slot), "1000")
        return [each.decode() for each in answer.split(b"\r\n")[2::2]]

    def move_key(self, key: str, source: int, target: int) -> None:
        port = str(self.nodes[target].port)
        _expect_ok(self.nodes[source].ask("MIGRATE", "127.0.0.1", port, key, "0", "5000"))

    def end_move(self, slot: int, target: int) -> None:
        others = [each for each in range(len(self.nodes)) if each != target]
        for node in (target, *others):
            answer = self.nodes[node].ask("CLUSTER", "SETSLOT", str(slot), "NODE", self.ids[target])
            _expect_ok(answer)

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()


def _text(answer: bytes) -> str:
    """Return a text as Redis answers it."""
    return answer.split(b"\r\n")[1].decode()


def _expect_ok(answer: bytes) -> None:
    if not answer.startswith(b"+OK"):
        raise RuntimeError(f"Redis answered {answer!r}")
