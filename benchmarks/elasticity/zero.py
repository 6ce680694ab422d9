"""From the first request while there is no worker to its answer, on real processes.

    .venv/bin/python -m benchmarks.elasticity.zero [--rounds 10] [--keep]

One `sublet run --workers 0..1`; each round waits until its worker has ended and asks once, by a new
connection: HTTP, gRPC as any language has it, and Sublet's client. Wall time depends on what else
the machine does, so there are three more: CPU that the worker had used when it had answered, the
same request while it runs, and a process that only imports what a worker needs, right after it.
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
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from grpc import aio

from benchmarks.elasticity.keep import write
from benchmarks.harness import machine
from benchmarks.harness.tables import Grid
from sublet import Client
from sublet.proto import sublet_pb2 as pb

ROUNDS = 10
PATIENCE_S = 120.0
LOOK_S = 0.02
IMPORTS = (
    "import uvloop, sublet.runtime.worker, sublet.runtime.http.routes, sublet.runtime.http.server, "
    "sublet.runtime.scaling.shell, benchmarks.elasticity.zero_app"
)
TICKS_S = os.sysconf("SC_CLK_TCK")


class Run:
    """A `sublet run`, and what it says."""

    def __init__(self, process: Process) -> None:
        self._process = process
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

    async def at_zero(self, rests: int) -> None:
        await self.until(lambda: sum("no worker is left" in line for line in self.lines) > rests)

    @property
    def worker_pid(self) -> int:
        ready = [line for line in self.lines if '"event": "ready"' in line]
        return int(json.loads(ready[-1])["pid"])


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


def cpu_s(pid: int) -> float:
    """What a process has used of the processor so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_S


def imports_s() -> float:
    start_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", IMPORTS], check=True, cwd=machine.ROOT)
    return time.perf_counter() - start_s


async def measure(run: Run, rounds: int) -> dict[str, dict[str, list[float]]]:
    await run.until(lambda: bool(run.address))
    found: dict[str, dict[str, list[float]]] = {
        way: {"first_s": [], "cpu_s": [], "again_s": [], "imports_s": []} for way in WAYS
    }
    rests = 0
    for _ in range(rounds):
        for way, ask in WAYS.items():
            await run.at_zero(rests)
            rests += 1
            figures = found[way]
            figures["first_s"].append(await timed(ask(run)))
            await run.until(lambda: sum('"event": "ready"' in each for each in run.lines) > rests)  # noqa: B023
            figures["cpu_s"].append(cpu_s(run.worker_pid))
            figures["again_s"].append(await timed(ask(run)))
            figures["imports_s"].append(await asyncio.to_thread(imports_s))
    return found


async def story(rounds: int) -> dict[str, dict[str, list[float]]]:
    with tempfile.TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sublet", "run", "benchmarks.elasticity.zero_app:app"),
            *("--workers", "0..1", "--scaling", "fixed", "--set", "idle_after_s=0.5"),
            *("--data-dir", folder, "--port", "0", "--http-port", "0", "--log-format", "json"),
            cwd=machine.ROOT,
            stdout=PIPE,
            stderr=STDOUT,
        )
        run = Run(process)
        reading = asyncio.create_task(run.read())
        try:
            return await measure(run, rounds)
        finally:
            process.terminate()
            await process.wait()
            await reading


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
            "by",
            "p50 (ms)",
            "p95 (ms)",
            "CPU of the worker until then, p50 (ms)",
            "while it runs, p50 (ms)",
            "a process with the same imports, p50 (ms)",
            "first / imports, p50",
        ],
        [
            [
                way,
                ms(each["first_s"], 0.5),
                ms(each["first_s"], 0.95),
                ms(each["cpu_s"], 0.5),
                ms(each["again_s"], 0.5),
                ms(each["imports_s"], 0.5),
                f"{statistics.median(each['first_s']) / statistics.median(each['imports_s']):.2f}",
            ]
            for way, each in found.items()
        ],
        1,
    )
    cores, load = os.cpu_count(), (load_before + os.getloadavg()[0]) / 2
    note = (
        f"{arguments.rounds} rounds; `python -m benchmarks.elasticity.zero`. {cores} cores, with a "
        f"load of {load:.0f} by others meanwhile: wall times are those of a busy machine, CPU and "
        "ratios are not."
    )
    data = {"rounds": arguments.rounds, "cores": cores, "load": load, "figures": found}
    write("elasticity_zero", "Scale to zero", note, [grid], data, arguments.keep)


if __name__ == "__main__":
    main()
