"""Spark in processes of its own, from the installed package: a master, a worker, Spark Connect.

Everything listens on the loopback only, at ports that the system chooses, and is ended by its id.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tests.integration.cluster import PROJECT
from tests.spark.spark_home import JAVA_OPTIONS, lean_spark_home

SPARK_HOME = lean_spark_home()
START_WAIT_S = 300.0
END_WAIT_S = 60.0
LOOK_EVERY_S = 0.02
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executorEnv.PYTHONPATH": str(PROJECT),
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
"""Of every driver here."""

HOSTS = ("127.0.0.1", "127.0.0.2")

T = TypeVar("T")


def environment() -> dict[str, str]:
    """What every process of Spark needs: the same Python, and our packages."""
    return {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
        "SPARK_DAEMON_MEMORY": "512m",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": str(PROJECT),
    }


def wait_for(happened: Callable[[], T | None], what: str, wait_s: float = START_WAIT_S) -> T:
    """Return what a question answers, once that is something true."""
    until_s = time.monotonic() + wait_s
    while not (found := happened()):
        if time.monotonic() > until_s:
            raise TimeoutError(f"not within {wait_s:g} s: {what}")
        time.sleep(LOOK_EVERY_S)
    return found


# Processes


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 if it is gone."""
    try:
        # The name, in parentheses, may hold anything.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def children_of(pid: int) -> list[int]:
    living = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
    return [each for each in living if parent_of(each) == pid]


def descendants_of(pid: int) -> list[int]:
    found = children_of(pid)
    for each in found:
        found += children_of(each)
    return found


def program_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def is_dead(pid: int) -> bool:
    """Tell whether a process has ended, even if nobody has asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def java_above(pid: int) -> int:
    """Return the Java process to which a Python worker belongs: an executor, or a driver."""
    for _ in range(20):
        pid = parent_of(pid)
        if pid <= 1:
            break
        if program_of(pid) == "java":
            return pid
    raise AssertionError("no Java process above")


def kill(pid: int) -> None:
    """`kill -9`; it may have gone by itself."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


class JavaProcess:
    """A program of Spark that runs until it is ended, with all that it has started."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.log = log
        with log.open("ab") as told:
            self._process = subprocess.Popen(
                [str(SPARK_HOME / "bin" / command[0]), *command[1:]],
                env=environment(),
                cwd=log.parent,
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=told,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def said(self, pattern: str) -> str:
        """Wait until its log has a line; return the first group of the pattern."""

        def look() -> str | None:
            text = self.log.read_text(errors="replace")
            if found := re.search(pattern, text):
                return found[1]
            assert self._process.poll() is None, f"{self.log.name} has ended:\n{text[-4_000:]}"
            return None

        return wait_for(look, f"{pattern} in {self.log}")

    def end(self) -> None:
        """End it, and what it has started, whatever state they are in."""
        below = descendants_of(self.pid)
        self._process.terminate()
        try:
            self._process.wait(END_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_WAIT_S)
        for pid in below:
            if "pyspark" in _command_of(pid) or program_of(pid) == "java":
                kill(pid)


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


class Standalone:
    """A master with two workers, whose executors are processes of their own.

    Each worker has another address of the loopback: Spark begins a task a second time only on
    another host.
    """

    def __init__(self, folder: Path, cores: int = 4) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._cores = cores
        self._master: JavaProcess | None = None
        self._workers: list[JavaProcess] = []
        self.master = ""

    def start(self) -> None:
        ports = ["--port", "0", "--webui-port", "0"]
        name = "org.apache.spark.deploy.master.Master"
        words = ["spark-class", name, "--host", HOSTS[0], *ports]
        self._master = JavaProcess(words, self._folder / "master.log")
        self.master = self._master.said(r"Starting Spark master at (spark://\S+)")
        name = "org.apache.spark.deploy.worker.Worker"
        for host in HOSTS:
            words = ["spark-class", name, "--host", host, *ports, "--memory", "2g"]
            words += ["--cores", str(self._cores // len(HOSTS))]
            words += ["--work-dir", str(self._folder / host), self.master]
            self._workers.append(JavaProcess(words, self._folder / f"worker-{host}.log"))
        for worker in self._workers:
            worker.said(r"(Successfully registered with master)")

    def executors(self) -> list[int]:
        """Return the ids of the executors that live now."""
        found = [each for worker in self._workers for each in children_of(worker.pid)]
        return [each for each in found if program_of(each) == "java" and not is_dead(each)]

    def kill_executor(self, pid: int) -> None:
        """`kill -9`; return when it is gone."""
        kill(pid)
        wait_for(lambda: pid not in self.executors(), f"end of executor {pid}")

    def end(self) -> None:
        for each in (*self._workers, self._master):
            if each is not None:
                each.end()


class ConnectServer:
    """A driver that serves clients of Spark Connect."""

    def __init__(self, folder: Path, master: str, settings: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._settings = {
            **SETTINGS,
            "spark.master": master,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            **settings,
        }
        self.url = ""

    def start(self) -> None:
        words = [w for name, value in self._settings.items() for w in ("--conf", f"{name}={value}")]
        name = "org.apache.spark.sql.connect.service.SparkConnectServer"
        command = ["spark-submit", *words, "--class", name]
        self._process = JavaProcess(command, self._folder / "connect.log")
        port = self._process.said(r"Spark Connect server started at: \S+?:(\d+)")
        self.url = f"sc://127.0.0.1:{port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self) -> None:
        self._process.end()


@contextmanager
def running_standalone(folder: Path, cores: int = 4) -> Iterator[Standalone]:
    standalone = Standalone(folder, cores)
    try:
        standalone.start()
        yield standalone
    finally:
        standalone.end()


@contextmanager
def running_connect(
    folder: Path, master: str, settings: Mapping[str, str]
) -> Iterator[ConnectServer]:
    server = ConnectServer(folder, master, settings)
    try:
        server.start()
        yield server
    finally:
        server.end()
