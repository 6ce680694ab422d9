"""From the first request while there is no worker to its answer, on real processes.

    .venv/bin/python -m benchmarks.elasticity.zero [--rounds 10] [--keep]

Two `sublet run --workers 0..1`, one with a process that stands by and one without, take turns. Each
turn waits until the worker has ended, and the other process waits for a word; then it asks once, by
a new connection: HTTP, gRPC as any language has it, and Sublet's client. Wall time depends on what
else the machine does, so there are three more: CPU that the worker has used from the request until
it had answered, the same request while it runs, and a process that only imports what a worker
needs, right after it.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from grpc import aio

from benchmarks.elasticity.keep import write
from benchmarks.harness import machine
from benchmarks.harness.tables import Grid
from benchmarks.leases.load import cpu_s
from sublet import Client
from sublet.proto import sublet_pb2 as pb

ROUNDS = 10
PATIENCE_S = 120.0
LOOK_S = 0.02
IMPORTS = (
    "import uvloop, sublet.runtime.worker, sublet.runtime.http.routes, sublet.runtime.http.server, "
    "sublet.runtime.scaling.shell, benchmarks.elasticity.zero_app"
)
STILL_LOOKS = 10
"""So often in a row a process that stands by is seen to wait."""


class Run:
    """A `sublet run`, and what it says."""

    def __init__(self, process: Process, has_standby: bool) -> None:
        self._process = process
        self._has_standby = has_standby
        self._rests = 0
        self.lines: list[str] = []
        self.address = self.http = ""

    async def read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            text = line.decode()
            self.lines.append(text)
            if found := re.search(r"callers wait at (\S+) and http://([\d.:]+)", text):
                self.address, self.http = found.groups()

    async def until(self, happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not happened():
                if self._process.returncode is not None:
                    raise RuntimeError("".join(self.lines))
                await asyncio.sleep(LOOK_S)

    async def at_zero(self) -> int:
        """Wait until there is no worker, and the process of the next one is as ready as can be;
        return that one, or 0 if there is none."""
        rests = self._rests
        await self.until(lambda: sum("no worker is left" in line for line in self.lines) > rests)
        self._rests += 1
        if not self._has_standby:
            return 0
        await self.until(lambda: len(children(self._process.pid)) == 1)
        (pid,) = children(self._process.pid)
        looks: deque[bool] = deque(maxlen=STILL_LOOKS)

        def is_still() -> bool:
            looks.append(state(pid) == "S" and cpu_s(pid) > 0)
            return len(looks) == STILL_LOOKS and all(looks)

        await self.until(is_still)
        return pid

    async def worker_pid(self) -> int:
        """Return the worker that has started since there was none."""
        rests = self._rests

        def ready() -> list[str]:
            return [line for line in self.lines if '"event": "ready"' in line]

        await self.until(lambda: len(ready()) > rests)
        return int(json.loads(ready()[-1])["pid"])


async def by_http(run: Run) -> None:
    def ask() -> None:
        connection = http.client.HTTPConnection(run.http, timeout=PATIENCE_S)
        try:
            headers = {"content-type": "application/json"}
            connection.request("POST", "/functions/zero/count/a", "1", headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise RuntimeError(f"{answer.status} {answer.read()!r}")
        finally:
            connection.close()

    await asyncio.to_thread(ask)


async def by_grpc(run: Run) -> None:
    async with aio.insecure_channel(run.address) as channel:
        ask: Any = channel.unary_unary(
            "/sublet.v1.Sublet/Call",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=pb.CallReply.FromString,
        )
        request = pb.CallRequest(function="zero/count", key="a", json="1", deadline_ms=60_000)
        await ask(request, timeout=PATIENCE_S)


async def by_client(run: Run) -> None:
    async with Client(run.address, connect_timeout="60s") as client:
        await client.call("zero/count", "a", 1)


WAYS: dict[str, Callable[[Run], Awaitable[None]]] = {
    "HTTP": by_http,
    "gRPC": by_grpc,
    "client": by_client,
}


async def timed(asking: Awaitable[None]) -> float:
    start_s = time.perf_counter()
    await asking
    return time.perf_counter() - start_s


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state(pid: int) -> str:
    """Return whether a process runs (R), or waits (S)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def memory_mb(pid: int) -> float:
    """Return what a process has in memory, its part of what it shares with others."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    (found,) = (line for line in lines if line.startswith("Pss:"))
    return int(found.split()[1]) / 1024


def imports_s() -> float:
    start_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", IMPORTS], check=True, cwd=machine.ROOT)
    return time.perf_counter() - start_s


async def turn(run: Run, way: str, figures: dict[str, list[float]]) -> None:
    standby = await run.at_zero()
    if standby:
        figures["memory_mb"].append(memory_mb(standby))
    before_s = cpu_s(standby) if standby else 0.0
    figures["first_s"].append(await timed(WAYS[way](run)))
    pid = await run.worker_pid()
    if standby not in (0, pid):
        raise RuntimeError(f"{standby} stood by, and {pid} is the worker")
    figures["cpu_s"].append(cpu_s(pid) - before_s)
    figures["again_s"].append(await timed(WAYS[way](run)))
    figures["imports_s"].append(await asyncio.to_thread(imports_s))


Figures = dict[str, dict[str, dict[str, list[float]]]]
"""By kind of run, way in, and figure."""


async def measure(runs: dict[str, Run], rounds: int) -> Figures:
    names = ("first_s", "cpu_s", "again_s", "imports_s", "memory_mb")
    found: Figures = {kind: {way: {name: [] for name in names} for way in WAYS} for kind in runs}
    for run in runs.values():
        await run.until(lambda: bool(run.address))  # noqa: B023
    for _ in range(rounds):
        for way in WAYS:
            for kind, run in runs.items():
                await turn(run, way, found[kind][way])
    return found


@asynccontextmanager
async def running(standby: str) -> AsyncIterator[Run]:
    with tempfile.TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sublet", "run", "benchmarks.elasticity.zero_app:app"),
            *("--workers", "0..1", "--scaling", "fixed", "--set", "idle_after_s=0.5"),
            *("--data-dir", folder, "--port", "0", "--http-port", "0", "--log-format", "json"),
            *("--set", f"standby={standby}"),
            cwd=machine.ROOT,
            stdout=PIPE,
            stderr=STDOUT,
        )
        run = Run(process, standby == "true")
        reading = asyncio.create_task(run.read())
        try:
            yield run
        finally:
            process.terminate()
            await process.wait()
            await reading


async def story(rounds: int) -> Figures:
    async with running("true") as standby, running("false") as plain:
        return await measure({"stands by": standby, "none": plain}, rounds)


def ms(values: list[float], share: float) -> str:
    ordered = sorted(values)
    place = min(len(ordered) - 1, round(share * (len(ordered) - 1)))
    return f"{ordered[place] * 1000:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--keep", action="store_true", help="write the results beside the others")
    arguments = parser.parse_args()
    load_before = os.getloadavg()[0]
    found = asyncio.run(story(arguments.rounds))
    grid = Grid(
        "First request while there is no worker, to its answer",
        [
            "process",
            "by",
            "p50 (ms)",
            "p95 (ms)",
            "CPU of the worker meanwhile, p50 (ms)",
            "while it runs, p50 (ms)",
            "a process with the same imports, p50 (ms)",
            "first / imports, p50",
        ],
        [
            [
                kind,
                way,
                ms(each["first_s"], 0.5),
                ms(each["first_s"], 0.95),
                ms(each["cpu_s"], 0.5),
                ms(each["again_s"], 0.5),
                ms(each["imports_s"], 0.5),
                f"{statistics.median(each['first_s']) / statistics.median(each['imports_s']):.2f}",
            ]
            for kind, ways in found.items()
            for way, each in ways.items()
        ],
        word_columns=2,
    )
    held = [mb for each in found["stands by"].values() for mb in each["memory_mb"]]
    cores, load = os.cpu_count(), (load_before + os.getloadavg()[0]) / 2
    note = (
        f"{arguments.rounds} rounds; `python -m benchmarks.elasticity.zero`. {cores} cores; load "
        f"{load:.0f}, the mean of before and after: wall times depend on it, CPU and ratios hardly "
        "do. With a process that stands by, and without one, in turns; it has "
        f"{statistics.median(held):.0f} MB in memory."
    )
    data = {"rounds": arguments.rounds, "cores": cores, "load": load, "figures": found}
    write("elasticity_zero", "Scale to zero", note, [grid], data, arguments.keep)


if __name__ == "__main__":
    main()
