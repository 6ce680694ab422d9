"""Real workers in processes of their own, which a test can kill, freeze and start again."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from sublet import Client, RetryLaterError, SubletError
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.rpc import EgressRequest, StatusReport
from sublet.statestore.contract import Directory
from sublet.statestore.redis.directory import RedisDirectory
from sublet.statestore.sqlite.directory import SqliteDirectory
from tests.integration.fork_server import PROJECT, start_worker

PATIENCE_S = 60.0
LOOK_EVERY_S = 0.02
REAPED_WITHIN_S = 120.0
"""A virtual machine may stand still for the better part of a minute."""
APP = "tests.integration.apps:app"

# A death is noticed within the term; tests have no time for the default of two seconds.
QUICK_DEATH = {"SUBLET_HEARTBEAT_MS": "60", "SUBLET_MEMBER_TERM_MS": "600"}

# Callers in tests look more often than balancers do; who stops many workers has no time for more.
SHORT_NOTICE = {"SUBLET_DRAIN_NOTICE_S": "1"}


class WorkerProcess:
    """One `sublet worker`. Whatever a test does to it, `end` reaps it."""

    def __init__(
        self,
        target: str,
        environment: Mapping[str, str],
        log: Path,
        prefix: Sequence[str] = (),
        options: Sequence[str] = (),
        inherited: Sequence[int] = (),
    ) -> None:
        """`prefix` is a command that becomes the one behind it, such as `ip netns exec`; the
        worker gets these options, and files that are `inherited`."""
        variables = {**os.environ, **environment}
        self._process = (
            _start_by(prefix, [target, *options], variables, log, inherited)
            if prefix or options
            else start_worker(target, variables, log)
        )
        self.address = ""
        """Known once the cluster has seen it ready."""
        self.is_wanted = True
        """Nobody has killed it, or asked it to stop."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None as long as it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """`kill -9`: nothing is flushed, nobody is told."""
        self.is_wanted = False
        self._process.kill()
        self._process.wait(REAPED_WITHIN_S)

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Ask it to stop (SIGTERM)."""
        self.is_wanted = False
        self._process.terminate()

    async def ended(self) -> int:
        """Wait for its end; return the exit code."""
        await until(lambda: not self.is_running)
        assert self._process.returncode is not None
        return self._process.returncode

    def memory_bytes(self) -> int:
        """Return what it has in memory now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE")

    def end(self) -> None:
        if self.is_running:
            self._process.kill()
            self._process.wait(REAPED_WITHIN_S)


def _start_by(
    prefix: Sequence[str],
    arguments: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    inherited: Sequence[int],
) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            [*prefix, sys.executable, "-m", "sublet", "worker", *arguments],
            pass_fds=inherited,
            env=environment,
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


class Cluster:
    """Workers that share a data directory. Made by `running_cluster`."""

    def __init__(self, target: str, data_dir: Path, settings: Mapping[str, object]) -> None:
        self.workers: list[WorkerProcess] = []
        self.data_dir = data_dir
        self.log_path = data_dir / "workers.log"
        self._target = target
        self._redis_url = str(settings.get("redis_url", ""))
        self._environment = {
            "SUBLET_LOG_LEVEL": "warning",
            "SUBLET_LOG_FORMAT": "json",
            "SUBLET_DATA_DIR": str(data_dir),
            **QUICK_DEATH,
            **SHORT_NOTICE,
            **{f"SUBLET_{name.upper()}": str(value) for name, value in settings.items()},
        }

    @property
    def living(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers if worker.is_running]

    @property
    def log(self) -> str:
        """Everything that workers have written so far, but for how handlers failed."""
        path = self.log_path
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return "".join(each for each in lines if '"a handler failed"' not in each)

    def add_worker(
        self,
        target: str = "",
        expected: int = 1,
        variables: Mapping[str, str] = {},
        **settings: object,
    ) -> WorkerProcess:
        """Start one more, with settings and environment variables of its own; `ready` waits for
        it."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        own = {f"SUBLET_{name.upper()}": str(value) for name, value in settings.items()}
        environment = {**self._environment, "SUBLET_WORKERS_EXPECTED": str(expected), **own}
        environment |= variables
        worker = WorkerProcess(target or self._target, environment, self.log_path)
        self.workers.append(worker)
        return worker

    async def start(self, count: int) -> None:
        for _ in range(count):
            self.add_worker(expected=count)
        if count:
            await self.ready()

    async def ready(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until the living workers are all in, and each serves what it was given."""
        async with asyncio.timeout(patience_s):
            while not await self._is_ready():
                for worker in self.workers:
                    if worker.is_wanted and not worker.is_running:
                        raise AssertionError(f"a worker has ended:\n{self.log}")
                await asyncio.sleep(LOOK_EVERY_S)

    async def _is_ready(self) -> bool:
        living = {worker.pid: worker for worker in self.living}
        if not self._redis_url and not (self.data_dir / "sublet.db").exists():
            return False
        directory = self._directory()
        try:
            view = await directory.view()
        except RetryLaterError:
            # A Redis Cluster says for a while that it is down, when a node of it was killed.
            return False
        finally:
            await directory.close()
        if {member.pid for member in view.members.values()} != living.keys():
            return False
        if len(view.placement) != sum(view.functions.values()) or not view.placement:
            return False
        shares: dict[str, list[str]] = {id_: [] for id_ in view.members}
        for partition, worker in view.placement.items():
            if worker not in shares:
                return False
            shares[worker].append(partition)
        for id_, member in view.members.items():
            living[member.pid].address = member.address
            try:
                report = await self.status(living[member.pid])
            except SubletError:
                return False
            if report.worker != id_ or sorted(shares[id_]) != report.partitions:
                return False
        return True

    def _directory(self) -> Directory:
        if self._redis_url:
            return RedisDirectory(self._redis_url)
        return SqliteDirectory(self.data_dir / "sublet.db")

    async def freeze(self, worker: WorkerProcess) -> None:
        """SIGSTOP, but not while it holds the file's lock: then nobody could go on."""
        if self._redis_url:
            worker.freeze()
            return
        async with asyncio.timeout(PATIENCE_S):
            while True:
                worker.freeze()
                if await self._file_is_free():
                    return
                worker.thaw()

    async def _file_is_free(self) -> bool:
        with (self.data_dir / "sublet.db-lock").open() as lock:
            for _ in range(50):
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    # Another worker has it for a moment, or the frozen one for ever.
                    await asyncio.sleep(LOOK_EVERY_S / 4)
                else:
                    return True
        return False

    def addresses(self) -> list[str]:
        return [worker.address for worker in self.living if worker.address]

    def client(self, **options: Any) -> Client:
        """A client that knows all workers and finds new ones."""
        return Client(self.addresses, **options)

    async def status(self, worker: WorkerProcess) -> StatusReport:
        async with UnaryClient(worker.address) as unary:
            return await unary.status()

    async def counters(self) -> Counter[str]:
        """Return the sums of what all living workers count."""
        totals: Counter[str] = Counter()
        for worker in self.living:
            totals.update((await self.status(worker)).counters)
        return totals

    async def egress(self, name: str, limit: int = 10_000) -> list[Any]:
        """Return all values of an egress, by partition in order."""
        found: dict[str, list[Any]] = {}
        request = EgressRequest(egress=name, limit=limit)
        async with UnaryClient(self.living[0].address) as unary:
            while (page := await unary.read_egress(request)).entries:
                for entry in page.entries:
                    found.setdefault(entry.partition, []).extend(
                        msgspec.msgpack.decode(entry.values)
                    )
                request = msgspec.structs.replace(request, positions=page.next)
        return [value for partition in sorted(found) for value in found[partition]]

    def close(self) -> None:
        for worker in self.workers:
            worker.end()


async def until(happened: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait for a condition, as long as a test is patient."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = happened()
            if not isinstance(found, bool):
                found = await found
            if found:
                return
            await asyncio.sleep(LOOK_EVERY_S)


@asynccontextmanager
async def running_cluster(
    data_dir: Path, workers: int = 1, *, app: str = APP, log: Path | None = None, **settings: object
) -> AsyncIterator[Cluster]:
    """Run workers until the end of the block; `queue_max=3` becomes `SUBLET_QUEUE_MAX=3`."""
    cluster = Cluster(app, data_dir, settings)
    cluster.log_path = log or cluster.log_path
    try:
        await cluster.start(workers)
        yield cluster
    except BaseException as error:
        error.add_note(f"the workers wrote:\n{cluster.log[-6_000:]}")
        raise
    finally:
        cluster.close()
