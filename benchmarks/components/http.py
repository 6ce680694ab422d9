"""How many requests a second the HTTP ingress of one worker carries through to a function.

    .venv/bin/python -m benchmarks.components.http [--connections 64] [--seconds 3] [--json]

Each connection posts to the keyed count, waits for the reply, and posts again; keys are
Zipf-distributed. A reply comes after the commit. One worker, so one core serves; another sends the
load. Latency is from a request's first byte to its reply's last. A whole run is kept in
`results/http.jsonl`.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import uvloop
from rich.console import Console

from benchmarks.harness import machine
from benchmarks.harness.processes import Child
from benchmarks.harness.report import OUR_SYSTEM, CaseResult, write_results
from benchmarks.harness.tables import Grid, print_grid
from benchmarks.harness.workload import latency_figures, zipf_keys

RESULTS = machine.RESULTS / "http.jsonl"
CONNECTIONS = 64
SECONDS = 3.0
WARM_UP_S = 0.5
WAIT_S = 20.0
TARGET_PER_S = 3_000
APP = "benchmarks.harness.count_app:app"
KEYS = zipf_keys(10_000)
_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length:"


class Load:
    """What all connections have seen."""

    def __init__(self) -> None:
        self.latencies_s: list[float] = []
        self.failure = ""
        self._next = 0

    def request(self) -> bytes:
        self._next = (self._next + 1) % len(KEYS)
        return (
            f"POST /functions/bench/each/{KEYS[self._next]} HTTP/1.1\r\nhost: localhost\r\n"
            "content-type: application/json\r\ncontent-length: 1\r\n\r\n1"
        ).encode()


class Caller(asyncio.Protocol):
    """Posts, waits for the reply, and posts again."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._received = b""
        self._sent_s = 0.0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._post()

    def _post(self) -> None:
        self._sent_s = time.perf_counter()
        self._transport.write(self._load.request())

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(_HEAD_END)
        if not end:
            return
        at = head.index(_LENGTH) + len(_LENGTH)
        if len(body) < int(head[at:].partition(b"\r")[0]):
            return
        if not head.startswith(b"HTTP/1.1 200 "):
            self._load.failure = body.decode(errors="replace")
        self._load.latencies_s.append(time.perf_counter() - self._sent_s)
        self._received = b""
        self._post()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._load.failure = f"a connection was lost: {exc}"


def cpu_s(pid: int) -> float | None:
    """Return the processor time that a process has used so far; None where nobody can say."""
    try:
        # After the name, which may hold spaces: user and system time are the 12th and 13th.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def offer(address: str, pid: int, connections: int, seconds: float) -> dict[str, float]:
    """Return the figures of one load.

    `requests_per_cpu_s` is what one core would do if it had nothing else to do: the figure to
    compare where the machine is busy.
    """
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    load = Load()
    transports = [
        (await loop.create_connection(lambda: Caller(load), host, int(port)))[0]
        for _ in range(connections)
    ]
    await asyncio.sleep(WARM_UP_S)
    load.latencies_s.clear()
    start_s, start_cpu_s = time.perf_counter(), cpu_s(pid)
    await asyncio.sleep(seconds)
    latencies_s, elapsed_s = load.latencies_s, time.perf_counter() - start_s
    end_cpu_s = cpu_s(pid)
    for transport in transports:
        transport.abort()
    if load.failure or not latencies_s:
        raise RuntimeError(load.failure or "no request was answered")
    figures = {
        "requests_per_s": round(len(latencies_s) / elapsed_s, 1),
        **latency_figures(latencies_s),
    }
    if start_cpu_s is not None and end_cpu_s is not None and end_cpu_s > start_cpu_s:
        figures["requests_per_cpu_s"] = round(len(latencies_s) / (end_cpu_s - start_cpu_s), 1)
    return figures


def measure(store: str, connections: int, seconds: float) -> CaseResult:
    with machine.data_directory() as directory:
        environment = {
            "SUBLET_STORE": store,
            "SUBLET_DATA_DIR": directory,
            "SUBLET_HTTP_PORT": "0",
            "SUBLET_LOG_FORMAT": "json",
            "SUBLET_LOG_LEVEL": "info",
        }
        with Child(
            [sys.executable, "-m", "sublet", "worker", APP],
            environment=environment,
            errors=subprocess.STDOUT,
        ) as worker:
            figures = uvloop.run(offer(_address(worker), worker.pid, connections, seconds))
    return CaseResult(
        system=OUR_SYSTEM,
        case=f"HTTP {store} {connections}",
        figures=figures,
        machine=machine.describe(),
    )


def _address(worker: Child) -> str:
    while (line := worker.read_line(WAIT_S)) is not None:
        if line.startswith("{") and (told := json.loads(line)).get("event") == "ready":
            return str(told["http"])
    raise RuntimeError("the worker ended before it was ready")


def show(results: list[CaseResult]) -> None:
    names = ("requests_per_s", "requests_per_cpu_s", "p50_ms", "p99_ms", "max_ms")
    rows = []
    for each in results:
        told = [each.figures.get(name) for name in names]
        rows.append(
            [
                each.case,
                *(
                    "-" if figure is None else f"{figure:,.{0 if figure > 100 else 2}f}"
                    for figure in told
                ),
            ]
        )
    headings = ["case", "requests/s", "a CPU second", "p50 ms", "p99 ms", "max ms"]
    title = f"HTTP, one worker, by store and connections (target: {TARGET_PER_S:,}/s on a core)"
    print_grid(Console(), Grid(title, headings, rows, word_columns=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--json", action="store_true", help="print JSON lines, keep nothing")
    options = parser.parse_args()
    results = [
        measure(store, connections, options.seconds)
        for store in ("memory", "sqlite")
        for connections in sorted({1, options.connections})
    ]
    if options.json:
        for each in results:
            print(each.to_json())
        return
    show(results)
    write_results(results, RESULTS)
    print(f"kept in {RESULTS.relative_to(machine.ROOT)}")


if __name__ == "__main__":
    main()
