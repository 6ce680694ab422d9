"""Restate: durable virtual objects. Its server, its Python SDK under hypercorn, and a client.

All three run on this machine and talk over loopback. Every call is durable and exactly once.
"""
# mypy: ignore-errors
# Restate is installed for the peers' interpreter only, so its types are unknown here.

import asyncio
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import uvloop

from benchmarks.harness.machine import data_directory
from benchmarks.harness.processes import Child, exit_on_terminate, free_ports
from benchmarks.harness.report import Reporter, parse_arguments
from benchmarks.harness.workload import (
    CALLER_COUNTS,
    CALLER_STRIDE,
    PACE_TICK_S,
    ArrivalSchedule,
    Durations,
    LatencyLog,
    latency_figures,
    split_by_worker,
    zipf_keys,
)
from benchmarks.peers.isolation import loopback_only
from benchmarks.peers.restate_service import COUNTER, PART

SERVER_PACKAGES = Path(__file__).parent / "node_modules" / "@restatedev"
SERVER_PARTITION_COUNT = 4
BATCH_SIZE = 100
PART_COUNT = 16
# Above some 400 calls a second the queue only grows, so the common rates say nothing here.
PACED_RATE_PER_S = 200
PACED_CONNECTION_COUNT = 64
START_WAIT_S = 60.0
REPLY_WAIT_S = 30.0
KEYS = zipf_keys()
# By default hypercorn closes a connection after 1,000 requests; Restate then backs off and
# stalls for tens of seconds.
HYPERCORN_CONFIG = """\
keep_alive_max_requests = 1000000000
keep_alive_timeout = 3600
h2_max_concurrent_streams = 1000
"""


class HttpPool:
    """A fixed number of keep-alive HTTP/1.1 connections; a general client would cost more than
    the calls that are to be measured."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: asyncio.Queue = asyncio.Queue()

    @asynccontextmanager
    async def opened(self, connection_count: int) -> AsyncIterator["HttpPool"]:
        writers = []
        try:
            for _ in range(connection_count):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                writers.append(writer)
                self._idle.put_nowait((reader, writer))
            yield self
        finally:
            for writer in writers:
                writer.close()

    async def post(self, path: str, body: object) -> bytes:
        """Return the answer's body. Raises RuntimeError for any status but a success."""
        reader, writer = await self._idle.get()
        content = json.dumps(body).encode()
        writer.write(
            f"POST {path} HTTP/1.1\r\nhost: loopback\r\ncontent-type: application/json\r\n"
            f"content-length: {len(content)}\r\n\r\n".encode()
            + content
        )
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        answer = await self._read_body(reader, head)
        self._idle.put_nowait((reader, writer))
        if not head.startswith(b"http/1.1 2"):
            raise RuntimeError(f"{path} was answered {head[:40]!r} {answer[:200]!r}")
        return answer

    async def _read_body(self, reader: asyncio.StreamReader, head: bytes) -> bytes:
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name == b"content-length":
                return await reader.readexactly(int(value))
        chunks = []
        while size := int(await reader.readline(), 16):
            chunks.append(await reader.readexactly(size))
            await reader.readline()
        await reader.readline()
        return b"".join(chunks)


async def call_and_await(port: int, caller_count: int, duration_s: float) -> dict[str, float]:
    """B: callers that each await a reply before the next call."""
    latencies_s = []

    async def call_repeatedly(position: int) -> None:
        while (sent_s := time.perf_counter()) < end_s:
            await pool.post(f"/{COUNTER}/{KEYS[position % len(KEYS)]}/add", 1)
            latencies_s.append(time.perf_counter() - sent_s)
            position += 1

    async with HttpPool(port).opened(caller_count) as pool:
        start_s = time.perf_counter()
        end_s = start_s + duration_s
        async with asyncio.timeout(duration_s + REPLY_WAIT_S), asyncio.TaskGroup() as tasks:
            for index in range(caller_count):
                tasks.create_task(call_repeatedly(index * CALLER_STRIDE))
        rate = len(latencies_s) / (time.perf_counter() - start_s)
    return {"calls_per_s": rate, **latency_figures(latencies_s)}


async def saturate(port: int, duration_s: float) -> dict[str, float]:
    """A: one call in flight for each part, `BATCH_SIZE` messages in each."""
    keys_of = split_by_worker(KEYS, PART_COUNT)
    reply_count = 0

    async def send_batches(part: int) -> None:
        nonlocal reply_count
        keys, start = keys_of[part], 0
        while time.perf_counter() < end_s:
            messages = [(key, 1) for key in keys[start : start + BATCH_SIZE]]
            await pool.post(f"/{PART}/p{part}/add_all", messages)
            reply_count += len(messages)
            start = (start + BATCH_SIZE) % (len(keys) - BATCH_SIZE)

    async with HttpPool(port).opened(PART_COUNT) as pool:
        start_s = time.perf_counter()
        end_s = start_s + duration_s
        async with asyncio.timeout(duration_s + REPLY_WAIT_S), asyncio.TaskGroup() as tasks:
            for part in range(PART_COUNT):
                tasks.create_task(send_batches(part))
        return {"messages_per_s": reply_count / (time.perf_counter() - start_s)}


async def pace(port: int, durations: Durations) -> dict[str, float]:
    """L: one call a message, from the intended arrival; waiting for a connection counts."""

    async def send(index: int) -> None:
        await pool.post(f"/{COUNTER}/{KEYS[index % len(KEYS)]}/add", 1)
        latencies.add([schedule.due_s(index)], time.perf_counter())

    async with HttpPool(port).opened(PACED_CONNECTION_COUNT) as pool:
        schedule = ArrivalSchedule.lasting(
            durations.paced_s, rate_per_s=PACED_RATE_PER_S, start_s=time.perf_counter() + 0.1
        )
        latencies = LatencyLog(schedule, durations.paced_warm_up_s)
        try:
            async with (
                asyncio.timeout(durations.paced_s + REPLY_WAIT_S),
                asyncio.TaskGroup() as tasks,
            ):
                sent_count = 0
                while sent_count < schedule.count:
                    due_count = schedule.due_count(time.perf_counter())
                    for index in range(sent_count, due_count):
                        tasks.create_task(send(index))
                    sent_count = due_count
                    await asyncio.sleep(PACE_TICK_S)
        except TimeoutError:
            pass  # `completed_share` tells.
    return latencies.figures()


def server_binary() -> Path:
    """Return the server itself: npm's launcher would not pass a signal on to it."""
    found = sorted(SERVER_PACKAGES.glob("restate-server-*/bin/restate-server"))
    if not found:
        raise FileNotFoundError("no Restate server; run benchmarks/peers/setup.sh first")
    return found[0]


def start_service(directory: Path, port: int) -> Child:
    config = directory / "hypercorn.toml"
    config.write_text(HYPERCORN_CONFIG)
    command = [sys.executable, "-m", "hypercorn", "--config", str(config), "--workers", "1"]
    command += ["--worker-class", "uvloop", "--bind", f"127.0.0.1:{port}"]
    return Child([*command, "benchmarks.peers.restate_service:app"], is_read=False)


def start_server(directory: Path, ingress_port: int, admin_port: int, node_port: int) -> Child:
    environment = {
        "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress_port}",
        "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin_port}",
        "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node_port}",
        "RESTATE_ADVERTISED_ADDRESS": f"http://127.0.0.1:{node_port}",
        "RESTATE_BASE_DIR": str(directory),
        "RESTATE_DEFAULT_NUM_PARTITIONS": str(SERVER_PARTITION_COUNT),
        "RESTATE_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "RESTATE_LOG_FILTER": "warn",
    }
    command = [str(server_binary()), "--node-name", "measured"]
    return Child(command, directory=directory, environment=environment, is_read=False)


def register(admin_port: int, service_port: int) -> None:
    """Tell the server where the handlers are, as soon as both are up."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{admin_port}/deployments",
        json.dumps({"uri": f"http://127.0.0.1:{service_port}"}).encode(),
        {"content-type": "application/json"},
    )
    deadline_s = time.monotonic() + START_WAIT_S
    while True:
        try:
            urllib.request.urlopen(request, timeout=20).read()
            return
        except (urllib.error.URLError, OSError) as error:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"Restate was not ready in {START_WAIT_S:.0f} s") from error
        time.sleep(0.25)


def main() -> None:
    arguments = parse_arguments("Measures Restate: durable calls and counts.")
    exit_on_terminate()
    # The server asks the internet for its newest release on every start, and has no setting
    # against it.
    loopback_only()
    reporter = Reporter("restate", as_json=arguments.json)
    durations = arguments.durations
    ingress_port, admin_port, node_port, service_port = free_ports(4)
    with data_directory() as name, ExitStack() as stack:
        directory = Path(name)
        stack.enter_context(start_service(directory, service_port))
        stack.enter_context(start_server(directory, ingress_port, admin_port, node_port))
        register(admin_port, service_port)
        uvloop.run(call_and_await(ingress_port, 8, durations.calls_s / 2))  # warm-up
        for caller_count in CALLER_COUNTS:
            figures = uvloop.run(call_and_await(ingress_port, caller_count, durations.calls_s))
            reporter.case(f"B durable c={caller_count}", figures)
        figures = uvloop.run(saturate(ingress_port, durations.saturate_s))
        reporter.case(f"A durable batch={BATCH_SIZE}", figures)
        figures = uvloop.run(pace(ingress_port, durations))
        reporter.case(f"L durable rate={PACED_RATE_PER_S}", figures)


if __name__ == "__main__":
    main()
