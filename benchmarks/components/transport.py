"""What does a frame cost between two processes: gRPC streams, raw TCP, a Unix socket?

Run: `python benchmarks/components/transport.py` (under 60 s). JSON lines go to stdout, tables to
stderr.

For each variant there is one worker process that echoes frames and one client process; all of them
stay up, and the variants are measured in turn within each round, so that a noisy peer hurts
all alike. Figures are medians over the rounds. CPU seconds are those of both processes
(`getrusage`, all threads). Only ratios within one run mean anything.

Three parts:

- transports: latency with one frame in flight; frames a second with 32 in flight; MB/s at 1 MiB;
- tuning: the same stream under options and environment variables that gRPC offers;
- flow control: the receiver stops reading; how many of 2,000 frames of 64 kB does the sender get
  rid of, does its write wait, and by how much does its memory grow?
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import grpc
import grpc.aio
import uvloop
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from rich.console import Console
from rich.table import Table

SEED = 20261116
ROUNDS = 3
SAMPLE_SECONDS = 0.3
TUNING_ROUNDS = 5
IN_FLIGHT = 32
FRAME_SIZES = {"64 B": 64, "9 kB": 9_000, "64 kB": 64_000}
MIB = 1 << 20
STALL_FRAMES = 2_000
STALL_FRAME_BYTES = 64_000
STALL_SECONDS = 1.0
REPLY_SECONDS_MAX = 20.0
HEADER_BYTES = 4
METHOD = "/sublet.benchmark.Echo/Frames"
STALL_METHOD = "/sublet.benchmark.Echo/Stall"


@dataclass(frozen=True, slots=True)
class Variant:
    """One pair of processes. `kind`: grpc, grpc_protobuf, tcp or unix."""

    name: str
    kind: str
    environment: dict[str, str] = field(default_factory=dict)
    options: list[tuple[str, Any]] = field(default_factory=list)
    over_unix_socket: bool = False
    loop: str = "uvloop"


TRANSPORTS = (
    Variant("grpc.aio, bytes", "grpc"),
    Variant("grpc.aio, protobuf", "grpc_protobuf"),
    Variant("raw TCP", "tcp"),
    Variant("raw Unix socket", "unix", over_unix_socket=True),
)
# The first is the same as the reference: what differs there is noise, and no tuning whose figures
# lie within that has been shown to do anything.
TUNINGS = (
    Variant("control: nothing changed", "grpc"),
    Variant("over a Unix socket", "grpc", over_unix_socket=True),
    Variant("asyncio's own loop", "grpc", loop="asyncio"),
    Variant("GRPC_ENABLE_FORK_SUPPORT=0", "grpc", {"GRPC_ENABLE_FORK_SUPPORT": "0"}),
    Variant("GRPC_POLL_STRATEGY=poll", "grpc", {"GRPC_POLL_STRATEGY": "poll"}),
    Variant(
        "optimization_target=latency", "grpc", options=[("grpc.optimization_target", "latency")]
    ),
    Variant(
        "optimization_target=throughput",
        "grpc",
        options=[("grpc.optimization_target", "throughput")],
    ),
    Variant("bdp_probe=0", "grpc", options=[("grpc.http2.bdp_probe", 0)]),
)


def frame_class() -> Any:
    """The protobuf message `Frame { bytes data = 1; }`."""
    file = descriptor_pb2.FileDescriptorProto(
        name="transport_frame.proto", package="sublet.benchmark", syntax="proto3"
    )
    file.message_type.add(name="Frame").field.add(
        name="data",
        number=1,
        type=descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
        label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("sublet.benchmark.Frame"))


def serializers(kind: str) -> tuple[Callable[..., Any] | None, Callable[..., Any] | None]:
    """bytes → wire and wire → bytes; None leaves the bytes as they are."""
    if kind == "grpc":
        return None, None
    frame = frame_class()
    return (
        lambda data: frame(data=data).SerializeToString(),
        lambda wire: frame.FromString(wire).data,
    )


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


class FrameProtocol(asyncio.Protocol):
    """Frames with a length of 4 bytes before them; `on_frame` is called with each."""

    def __init__(self, on_frame: Callable[[FrameProtocol, bytes], None]) -> None:
        self._on_frame = on_frame
        self._pending = bytearray()
        self.transport: asyncio.Transport
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, as uvloop's transports do not inherit from asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def send(self, frame: bytes) -> None:
        self.transport.writelines((len(frame).to_bytes(HEADER_BYTES, "big"), frame))

    def data_received(self, data: bytes) -> None:
        pending = self._pending
        pending += data
        begin = 0
        with memoryview(pending) as view:
            while len(pending) - begin >= HEADER_BYTES:
                body = begin + HEADER_BYTES
                end = body + int.from_bytes(view[begin:body], "big")
                if end > len(pending):
                    break
                self._on_frame(self, bytes(view[body:end]))
                begin = end
        del pending[:begin]


# The worker: echoes until its stdin closes; a line "cpu" on stdin is answered by its CPU seconds.


async def echo(frames: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
    async for frame in frames:
        yield frame


async def never_read(_: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    await asyncio.sleep(REPLY_SECONDS_MAX)
    yield b""


async def serve_grpc(variant: Variant, address: str) -> tuple[str, Any]:
    to_wire, from_wire = serializers(variant.kind)
    server = grpc.aio.server(options=variant.options)
    handlers = {
        path.rsplit("/", 1)[1]: grpc.stream_stream_rpc_method_handler(
            behaviour, request_deserializer=from_wire, response_serializer=to_wire
        )
        for path, behaviour in ((METHOD, echo), (STALL_METHOD, never_read))
    }
    service = METHOD.split("/")[1]
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port(address)
    await server.start()
    return (address if variant.over_unix_socket else f"127.0.0.1:{port}"), server


async def serve_raw(variant: Variant, path: str) -> tuple[str, Any]:
    loop = asyncio.get_running_loop()

    def answer(protocol: FrameProtocol, frame: bytes) -> None:
        if frame == b"stall":
            protocol.transport.pause_reading()
        else:
            protocol.send(frame)

    if variant.kind == "unix":
        return path, await loop.create_unix_server(lambda: FrameProtocol(answer), path)
    server = await loop.create_server(lambda: FrameProtocol(answer), "127.0.0.1", 0)
    return str(server.sockets[0].getsockname()[1]), server


async def run_worker(variant: Variant, path: str) -> None:
    if variant.kind.startswith("grpc"):
        address = f"unix:{path}" if variant.over_unix_socket else "127.0.0.1:0"
        address, _server = await serve_grpc(variant, address)
    else:
        address, _server = await serve_raw(variant, path)
    say(address)
    closed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def answer_questions() -> None:
        for _ in sys.stdin:
            say(cpu_seconds())
        loop.call_soon_threadsafe(closed.set)

    threading.Thread(target=answer_questions, daemon=True).start()
    await closed.wait()


# The client: each line of stdin is a measurement to make, answered by one line.


class Link(Protocol):
    """One connection to the echo."""

    async def exchange(self, frame: bytes, seconds: float, in_flight: int) -> list[float]:
        """Keeps `in_flight` frames under way for `seconds`; the latency of each, in seconds."""
        ...

    async def stall(self, frame: bytes, *, obey: bool) -> dict[str, int]:
        """Writes to a reader that does not read; how many writes came to which end.

        With `obey` each write is awaited; without, all are started at once. Each write is of a
        copy of its own, as in a runtime, or a queue of references would look like no memory.
        Ends are "returned", "waiting" (after STALL_SECONDS), "not started", or an error's name.
        """
        ...


def check_echo(echoed: Any, frame: bytes) -> None:
    """The length only: comparing 1 MiB would be measured too. Also refuses gRPC's end of stream."""
    if not isinstance(echoed, bytes) or len(echoed) != len(frame):
        raise ValueError(f"an echo of {len(frame)} bytes came back as {echoed!r:.60}")


class GrpcLink:
    def __init__(self, variant: Variant, address: str) -> None:
        to_wire, from_wire = serializers(variant.kind)
        self._channel = grpc.aio.insecure_channel(address, options=variant.options)
        self._open: Callable[[str], Any] = lambda method: self._channel.stream_stream(
            method, request_serializer=to_wire, response_deserializer=from_wire
        )()
        self._call = self._open(METHOD)

    async def exchange(self, frame: bytes, seconds: float, in_flight: int) -> list[float]:
        call = self._call
        sent_at: deque[float] = deque()
        latencies: list[float] = []
        end = time.perf_counter() + seconds
        if in_flight == 1:
            while (now := time.perf_counter()) < end:
                await call.write(frame)
                check_echo(await call.read(), frame)
                latencies.append(time.perf_counter() - now)
            return latencies
        room = asyncio.Semaphore(in_flight)
        written = asyncio.Event()

        async def write() -> None:
            while time.perf_counter() < end:
                await room.acquire()
                sent_at.append(time.perf_counter())
                await call.write(frame)
            written.set()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            while not written.is_set() or sent_at:
                if not sent_at:
                    await asyncio.sleep(0)
                    continue
                check_echo(await call.read(), frame)
                latencies.append(time.perf_counter() - sent_at.popleft())
                room.release()
        return latencies

    async def stall(self, frame: bytes, *, obey: bool) -> dict[str, int]:
        # Kept, with its tasks, so that what they hold is still there to be measured. Nothing is
        # cancelled: a cancelled write ends the whole call.
        call = self._stalled = self._open(STALL_METHOD)
        ends: Counter[str] = Counter()

        async def write() -> None:
            try:
                await call.write(bytes(memoryview(frame)))
                ends["returned"] += 1
            except grpc.aio.AioRpcError as error:
                known = "TOO_MANY_OPERATIONS"
                ends[
                    known if known in (error.debug_error_string() or "") else error.code().name
                ] += 1
            except asyncio.InvalidStateError:
                ends["call already over"] += 1

        async def write_all() -> None:
            for _ in range(STALL_FRAMES):
                await write()

        works = [write_all()] if obey else [write() for _ in range(STALL_FRAMES)]
        self._tasks = [asyncio.ensure_future(each) for each in works]
        _, pending = await asyncio.wait(self._tasks, timeout=STALL_SECONDS)
        if pending:
            ends["waiting"] = len(pending)
        return dict(ends)


class RawLink:
    def __init__(self, variant: Variant, address: str) -> None:
        self._variant = variant
        self._address = address
        self._protocol: FrameProtocol | None = None
        self._on_frame: Callable[[bytes], None] = lambda _frame: None

    async def _connect(self) -> FrameProtocol:
        loop = asyncio.get_running_loop()

        def make() -> FrameProtocol:
            return FrameProtocol(lambda _protocol, frame: self._on_frame(frame))

        if self._variant.kind == "unix":
            return (await loop.create_unix_connection(make, self._address))[1]
        return (await loop.create_connection(make, "127.0.0.1", int(self._address)))[1]

    async def exchange(self, frame: bytes, seconds: float, in_flight: int) -> list[float]:
        if self._protocol is None:
            self._protocol = await self._connect()
        protocol = self._protocol
        sent_at: deque[float] = deque()
        latencies: list[float] = []
        drained = asyncio.Event()
        end = time.perf_counter() + seconds

        def received(echoed: bytes) -> None:
            check_echo(echoed, frame)
            now = time.perf_counter()
            latencies.append(now - sent_at.popleft())
            if now < end:
                sent_at.append(now)
                protocol.send(frame)
            elif not sent_at:
                drained.set()

        self._on_frame = received
        for _ in range(in_flight):
            sent_at.append(time.perf_counter())
            protocol.send(frame)
        await drained.wait()
        return latencies

    async def stall(self, frame: bytes, *, obey: bool) -> dict[str, int]:
        protocol = self._stalled = await self._connect()  # kept: its buffer is to be measured
        protocol.send(b"stall")
        await asyncio.sleep(0.05)
        ends: Counter[str] = Counter()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STALL_SECONDS):
                for _ in range(STALL_FRAMES):
                    if obey:
                        await protocol.writable.wait()
                    protocol.send(bytes(memoryview(frame)))
                    ends["returned"] += 1
        if ends["returned"] < STALL_FRAMES:
            ends["waiting"] = 1
        return dict(ends)


async def run_client(variant: Variant, address: str) -> None:
    link: Link
    if variant.kind.startswith("grpc"):
        link = GrpcLink(variant, address)
    else:
        link = RawLink(variant, address)
    chance = random.Random(SEED)
    frames = {size: chance.randbytes(size) for size in (*FRAME_SIZES.values(), MIB)}
    say("ready")
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line)
        if order["measure"] == "stall":
            resident_before = resident_bytes()
            ends = await link.stall(frames[STALL_FRAME_BYTES], obey=order["obey"])
            say({"ends": ends, "grown_mb": (resident_bytes() - resident_before) / 1e6})
            continue
        cpu_before = cpu_seconds()
        begin = time.perf_counter()
        latencies = await link.exchange(
            frames[order["frame_bytes"]], order["seconds"], order["in_flight"]
        )
        elapsed = time.perf_counter() - begin
        latencies.sort()
        say(
            {
                "frames": len(latencies),
                "frames_per_second": len(latencies) / elapsed,
                "p50_us": latencies[len(latencies) // 2] * 1e6,
                "p99_us": latencies[len(latencies) * 99 // 100] * 1e6,
                "cpu_seconds": cpu_seconds() - cpu_before,
            }
        )


# The controller.


class Pair:
    """A worker and a client of one variant, asked by lines and ended by closing their stdin."""

    def __init__(self, variant: Variant, directory: str, number: int) -> None:
        self.variant = variant
        path = os.path.join(directory, str(number))
        self._worker = self._start("worker", path)
        address = self._answer(self._worker)
        self._client = self._start("client", address)
        self._answer(self._client)

    def _start(self, role: str, address: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, __file__, role, self.variant.name, address],
            env={**os.environ, **self.variant.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @staticmethod
    def _answer(process: subprocess.Popen[str], question: object = None) -> Any:
        assert process.stdin is not None
        assert process.stdout is not None
        # A process that hangs must not hang the benchmark: it is ended, and its pipe with it.
        guard = threading.Timer(REPLY_SECONDS_MAX, process.kill)
        guard.start()
        try:
            if question is not None:
                process.stdin.write(json.dumps(question) + "\n")
                process.stdin.flush()
            line = process.stdout.readline()
        finally:
            guard.cancel()
        if not line:
            raise RuntimeError(f"process {process.pid} ended without an answer")
        return json.loads(line)

    def exchange(self, frame_bytes: int, in_flight: int, seconds: float) -> dict[str, float]:
        worker_cpu_before = self._answer(self._worker, "cpu")
        result: dict[str, float] = self._answer(
            self._client,
            {
                "measure": "exchange",
                "frame_bytes": frame_bytes,
                "in_flight": in_flight,
                "seconds": seconds,
            },
        )
        cpu = result["cpu_seconds"] + self._answer(self._worker, "cpu") - worker_cpu_before
        result["cpu_seconds_per_1000_frames"] = cpu / result["frames"] * 1000
        return result

    def stall(self, *, obey: bool) -> dict[str, Any]:
        answer: dict[str, Any] = self._answer(self._client, {"measure": "stall", "obey": obey})
        return answer

    def end(self) -> None:
        for process in (self._client, self._worker):
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(1.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()


def median_of(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


def spread(rounds: list[dict[str, float]]) -> str:
    rates = [each["frames_per_second"] for each in rounds]
    return f"{min(rates):.0f}..{max(rates):.0f}"


def measure_transports(pairs: list[Pair]) -> list[dict[str, Any]]:
    cases = [("64 B", 64, 1)]
    cases += [(name, size, IN_FLIGHT) for name, size in FRAME_SIZES.items()]
    cases += [("1 MiB", MIB, 4)]
    samples: dict[tuple[str, str, int], list[dict[str, float]]] = {}
    chance = random.Random(SEED)
    for _ in range(ROUNDS):
        for name, size, in_flight in cases:
            for pair in chance.sample(pairs, len(pairs)):
                samples.setdefault((pair.variant.name, name, in_flight), []).append(
                    pair.exchange(size, in_flight, SAMPLE_SECONDS)
                )
    results = []
    for name, size, in_flight in cases:
        reference = median_of(samples[pairs[0].variant.name, name, in_flight])
        for pair in pairs:
            median = median_of(samples[pair.variant.name, name, in_flight])
            results.append(
                {
                    "benchmark": "transport",
                    "variant": pair.variant.name,
                    "frame": name,
                    "in_flight": in_flight,
                    "frames_per_second": round(median["frames_per_second"]),
                    "lowest_and_highest": spread(samples[pair.variant.name, name, in_flight]),
                    "mb_per_second": round(median["frames_per_second"] * size / 1e6, 1),
                    "p50_us": round(median["p50_us"]),
                    "p99_us": round(median["p99_us"]),
                    "cpu_seconds_per_1000_frames": round(median["cpu_seconds_per_1000_frames"], 4),
                    "rate_ratio_to_first": round(
                        median["frames_per_second"] / reference["frames_per_second"], 2
                    ),
                }
            )
    return results


def measure_tunings(pairs: list[Pair]) -> list[dict[str, Any]]:
    samples: dict[str, list[tuple[dict[str, float], dict[str, float]]]] = {}
    chance = random.Random(SEED)
    for _ in range(TUNING_ROUNDS):
        for pair in chance.sample(pairs, len(pairs)):
            loaded = pair.exchange(FRAME_SIZES["9 kB"], IN_FLIGHT, SAMPLE_SECONDS)
            alone = pair.exchange(FRAME_SIZES["64 B"], 1, SAMPLE_SECONDS / 2)
            samples.setdefault(pair.variant.name, []).append((loaded, alone))
    results = []
    for pair in pairs:
        loaded = median_of([each for each, _ in samples[pair.variant.name]])
        alone = median_of([each for _, each in samples[pair.variant.name]])
        reference = median_of([each for each, _ in samples[pairs[0].variant.name]])
        results.append(
            {
                "benchmark": "transport_tuning",
                "variant": pair.variant.name,
                "frames_per_second_9kb": round(loaded["frames_per_second"]),
                "lowest_and_highest": spread([each for each, _ in samples[pair.variant.name]]),
                "cpu_seconds_per_1000_frames": round(loaded["cpu_seconds_per_1000_frames"], 4),
                "p50_us_64b_alone": round(alone["p50_us"]),
                "rate_ratio_to_first": round(
                    loaded["frames_per_second"] / reference["frames_per_second"], 2
                ),
            }
        )
    return results


def measure_stalls(directory: str) -> list[dict[str, Any]]:
    """Each case has processes of its own: a heap that has grown before would hide the growth."""
    results = []
    for number, variant in enumerate(TRANSPORTS):
        if variant.kind == "grpc_protobuf":
            continue
        for obey in (True, False):
            pair = Pair(variant, directory, 1000 + 2 * number + obey)
            try:
                answer = pair.stall(obey=obey)
            finally:
                pair.end()
            results.append(
                {
                    "benchmark": "transport_stall",
                    "variant": variant.name,
                    "sender": "awaits each write" if obey else "starts all writes",
                    "ends_of_writes": answer["ends"],
                    "writes_wanted": STALL_FRAMES,
                    "frame_bytes": STALL_FRAME_BYTES,
                    "sender_grown_mb": round(answer["grown_mb"], 1),
                }
            )
    return results


def show(title: str, results: list[dict[str, Any]]) -> None:
    table = Table(title=title)
    columns = [name for name in results[0] if name != "benchmark"]
    for name in columns:
        table.add_column(
            name.replace("_", " "), justify="left" if name in ("variant", "sender") else "right"
        )
    for result in results:
        table.add_row(*(str(result[name]) for name in columns))
    Console(stderr=True, width=130).print(table)


def main() -> None:
    by_name = {each.name: each for each in (*TRANSPORTS, *TUNINGS)}
    if len(sys.argv) > 1:
        role, name, address = sys.argv[1:]
        run = run_worker if role == "worker" else run_client
        factory = uvloop.new_event_loop if by_name[name].loop == "uvloop" else None
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(run(by_name[name], address))
        return
    parts: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        with contextlib.ExitStack() as stack:
            pairs = []
            for number, variant in enumerate(by_name.values()):
                pair = Pair(variant, directory, number)
                stack.callback(pair.end)
                pair.exchange(64, IN_FLIGHT, 0.2)  # warm-up
                pairs.append(pair)
            count = len(TRANSPORTS)
            parts["transports"] = measure_transports(pairs[:count])
            parts["tuning of grpc.aio"] = measure_tunings([pairs[0], *pairs[count:]])
        parts["a receiver that stops reading"] = measure_stalls(directory)
    for results in parts.values():
        for result in results:
            say(result)
    for title, results in parts.items():
        show(title, results)


if __name__ == "__main__":
    main()
