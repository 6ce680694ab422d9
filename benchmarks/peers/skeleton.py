"""The ceiling: what the workloads reach in Python with no runtime around them.

One driver process, one or two uvloop workers, msgpack frames over TCP, counts in a dict. No
retries, no dedupe, no queue, no scheduling: what a runtime costs is its distance from here.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from sys import executable

import msgspec
import uvloop

from benchmarks.harness.machine import data_directory
from benchmarks.harness.processes import Child, exit_on_terminate
from benchmarks.harness.redis_server import RedisServer
from benchmarks.harness.report import Reporter, parse_arguments
from benchmarks.harness.workload import (
    CALLER_COUNTS,
    CALLER_STRIDE,
    PACE_TICK_S,
    PACED_RATES_PER_S,
    ArrivalSchedule,
    Durations,
    LatencyLog,
    latency_figures,
    split_by_worker,
    worker_of,
    zipf_keys,
)
from benchmarks.peers.frames import FrameConnection, OnFrame
from benchmarks.peers.skeleton_worker import STORES

WORKER_COUNTS = (1, 2)
BATCH_SIZES = (500, 2_000)
FRAMES_IN_FLIGHT = 8
WORKER_START_WAIT_S = 15.0
DRAIN_WAIT_S = 20.0

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


@asynccontextmanager
async def connected(ports: list[int], on_frame: OnFrame) -> AsyncIterator[list[FrameConnection]]:
    loop = asyncio.get_running_loop()
    connections: list[FrameConnection] = []
    try:
        for port in ports:
            _, connection = await loop.create_connection(
                lambda: FrameConnection(on_frame), "127.0.0.1", port
            )
            connections.append(connection)
        yield connections
    finally:
        for connection in connections:
            connection.close()


async def saturate(ports: list[int], batch_size: int, duration_s: float) -> dict[str, float]:
    """A: keep `FRAMES_IN_FLIGHT` frames at each worker until the time is over."""
    keys_of = split_by_worker(zipf_keys(), len(ports))
    positions = [0] * len(ports)
    finished = asyncio.Event()
    reply_count = frames_returned_after_end = 0
    end_s = 0.0

    def next_frame(worker: int) -> bytes:
        keys = keys_of[worker]
        start = positions[worker]
        positions[worker] = (start + batch_size) % (len(keys) - batch_size)
        now_s = time.time()
        return _encode((worker, [(key, 1, now_s) for key in keys[start : start + batch_size]]))

    def on_frame(connection: FrameConnection, frame: bytes) -> None:
        nonlocal reply_count, frames_returned_after_end
        worker, replies = _decode(frame)
        reply_count += len(replies)
        if time.perf_counter() < end_s:
            connection.send(next_frame(worker))
            return
        frames_returned_after_end += 1
        if frames_returned_after_end == FRAMES_IN_FLIGHT * len(ports):
            finished.set()

    async with connected(ports, on_frame) as connections:
        start_s = time.perf_counter()
        end_s = start_s + duration_s
        for _ in range(FRAMES_IN_FLIGHT):
            for worker, connection in enumerate(connections):
                connection.send(next_frame(worker))
        async with asyncio.timeout(duration_s + DRAIN_WAIT_S):
            await finished.wait()
        return {"messages_per_s": reply_count / (time.perf_counter() - start_s)}


async def pace(ports: list[int], rate_per_s: float, durations: Durations) -> dict[str, float]:
    """L: send what is due on every tick, one frame for each worker; the tag is the due times."""
    targets = [(key, worker_of(key, len(ports))) for key in zipf_keys()]
    schedule = ArrivalSchedule.lasting(
        durations.paced_s, rate_per_s=rate_per_s, start_s=time.perf_counter() + 0.1
    )
    latencies = LatencyLog(schedule, durations.paced_warm_up_s)
    finished = asyncio.Event()

    def on_frame(connection: FrameConnection, frame: bytes) -> None:
        dues_s, _replies = _decode(frame)
        latencies.add(dues_s, time.perf_counter())
        if latencies.is_complete:
            finished.set()

    async with connected(ports, on_frame) as connections:
        sent_count = 0
        while sent_count < schedule.count:
            frames: list[list[tuple[str, int, float]]] = [[] for _ in ports]
            due_count = schedule.due_count(time.perf_counter())
            for index in range(sent_count, due_count):
                key, worker = targets[index % len(targets)]
                frames[worker].append((key, 1, schedule.due_s(index)))
            sent_count = due_count
            for connection, messages in zip(connections, frames, strict=True):
                if messages:
                    connection.send(_encode(([due_s for _, _, due_s in messages], messages)))
            await asyncio.sleep(PACE_TICK_S)
        try:
            async with asyncio.timeout(DRAIN_WAIT_S):
                await finished.wait()
        except TimeoutError:
            pass  # `completed_share` tells.
        return latencies.figures()


class Caller:
    """B: each call has its own id and future; the calls of one loop turn share a frame."""

    def __init__(self, worker_count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._replies: dict[int, asyncio.Future[tuple[str, int]]] = {}
        self._unsent: list[list[tuple[int, str]]] = [[] for _ in range(worker_count)]
        self._is_flush_planned = False
        self._call_count = 0
        self.connections: list[FrameConnection] = []

    def call(self, key: str, worker: int) -> asyncio.Future[tuple[str, int]]:
        self._call_count += 1
        reply = self._replies[self._call_count] = self._loop.create_future()
        self._unsent[worker].append((self._call_count, key))
        if not self._is_flush_planned:
            self._is_flush_planned = True
            self._loop.call_soon(self._flush)
        return reply

    def on_frame(self, connection: FrameConnection, frame: bytes) -> None:
        ids, replies = _decode(frame)
        for call_id, reply in zip(ids, replies, strict=True):
            self._replies.pop(call_id).set_result(reply)

    def _flush(self) -> None:
        self._is_flush_planned = False
        for connection, calls in zip(self.connections, self._unsent, strict=True):
            if calls:
                ids = [call_id for call_id, _ in calls]
                connection.send(_encode((ids, [(key, 1, 0.0) for _, key in calls])))
                calls.clear()


async def call_and_await(
    ports: list[int], caller_count: int, duration_s: float
) -> dict[str, float]:
    targets = [(key, worker_of(key, len(ports))) for key in zipf_keys()]
    caller = Caller(len(ports))
    latencies_s: list[float] = []

    async def call_repeatedly(position: int) -> None:
        while (sent_s := time.perf_counter()) < end_s:
            key, worker = targets[position % len(targets)]
            await caller.call(key, worker)
            latencies_s.append(time.perf_counter() - sent_s)
            position += 1

    async with connected(ports, caller.on_frame) as caller.connections:
        start_s = time.perf_counter()
        end_s = start_s + duration_s
        async with asyncio.timeout(duration_s + DRAIN_WAIT_S), asyncio.TaskGroup() as tasks:
            for index in range(caller_count):
                tasks.create_task(call_repeatedly(index * CALLER_STRIDE))
        rate = len(latencies_s) / (time.perf_counter() - start_s)
    return {"calls_per_s": rate, **latency_figures(latencies_s)}


def start_worker(store: str, directory: Path, redis_url: str) -> tuple[Child, int]:
    directory.mkdir(parents=True)
    module = "benchmarks.peers.skeleton_worker"
    worker = Child([executable, "-m", module, store, str(directory), "--redis-url", redis_url])
    try:
        line = worker.read_line(WORKER_START_WAIT_S)
        if line is None:
            raise RuntimeError(f"the skeleton's worker on {store} ended before it was ready")
        return worker, int(line)
    except BaseException:
        worker.stop()
        raise


def measure(reporter: Reporter, durations: Durations, store: str, ports: list[int]) -> None:
    suffix = f"{store} w={len(ports)}"
    uvloop.run(saturate(ports, BATCH_SIZES[0], durations.saturate_s / 4))  # warm-up
    for batch_size in BATCH_SIZES:
        figures = uvloop.run(saturate(ports, batch_size, durations.saturate_s))
        reporter.case(f"A {suffix} batch={batch_size}", figures)
    for caller_count in CALLER_COUNTS:
        figures = uvloop.run(call_and_await(ports, caller_count, durations.calls_s))
        reporter.case(f"B {suffix} c={caller_count}", figures)
    for rate_per_s in PACED_RATES_PER_S:
        figures = uvloop.run(pace(ports, rate_per_s, durations))
        reporter.case(f"L {suffix} rate={rate_per_s}", figures)


def main() -> None:
    arguments = parse_arguments("Measures the skeleton: the workloads with no runtime.")
    exit_on_terminate()
    reporter = Reporter("skeleton", as_json=arguments.json)
    with data_directory() as directory:
        for store in filter(arguments.wants_store, STORES):
            for worker_count in WORKER_COUNTS:
                with ExitStack() as workers:
                    redis_url = ""
                    if store == "redis":
                        redis_url = workers.enter_context(RedisServer("always")).url
                    ports = []
                    for index in range(worker_count):
                        place = Path(directory) / f"{store}-{worker_count}-{index}"
                        worker, port = start_worker(store, place, redis_url)
                        workers.callback(worker.stop)
                        ports.append(port)
                    measure(reporter, arguments.durations, store, ports)


if __name__ == "__main__":
    main()
