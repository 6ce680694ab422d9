"""The floor of a round trip over gRPC in Python: a bare grpc.aio stream that echoes.

One bidirectional stream, both ends on this machine, opaque bytes of one small message. One
message at a time gives the latency that a runtime on grpc.aio cannot go below; 64 in flight give
how many frames a second a stream moves.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import msgspec
import uvloop

from benchmarks.harness.processes import Child, exit_on_terminate
from benchmarks.harness.report import Reporter, parse_arguments
from benchmarks.harness.workload import key_name, latency_figures
from benchmarks.peers.lifeline import parent_is_gone

if TYPE_CHECKING:
    # Subscripted in the stubs only.
    EchoStream = grpc.aio.StreamStreamCall[bytes, bytes]

METHOD = "/echo/Stream"
SERVE = "serve"
FRAMES_IN_FLIGHT = 64
SERVER_START_WAIT_S = 15.0
DRAIN_WAIT_S = 20.0
MESSAGE = msgspec.msgpack.encode((key_name(42), 1, 1.7e9))


class EchoService(grpc.GenericRpcHandler):
    """Answers every method with its stream; nothing is parsed."""

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        return grpc.stream_stream_rpc_method_handler(self._echo)

    async def _echo(
        self, requests: AsyncIterator[bytes], context: "grpc.aio.ServicerContext[bytes, bytes]"
    ) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request


async def serve() -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((EchoService(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await parent_is_gone()
    await server.stop(grace=None)


async def echo_one_by_one(port: int, duration_s: float) -> dict[str, float]:
    latencies_s: list[float] = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stream: EchoStream = channel.stream_stream(METHOD)()
        async with asyncio.timeout(duration_s + DRAIN_WAIT_S):
            await stream.write(MESSAGE)  # warm-up: the connection is made here
            await stream.read()
            start_s = time.perf_counter()
            end_s = start_s + duration_s
            while (sent_s := time.perf_counter()) < end_s:
                await stream.write(MESSAGE)
                await stream.read()
                latencies_s.append(time.perf_counter() - sent_s)
            rate = len(latencies_s) / (time.perf_counter() - start_s)
            await stream.done_writing()
    return {"calls_per_s": rate, **latency_figures(latencies_s)}


async def echo_in_flight(port: int, in_flight: int, duration_s: float) -> dict[str, float]:
    sent_times_s: asyncio.Queue[float] = asyncio.Queue()
    latencies_s: list[float] = []
    credits_left = asyncio.Semaphore(in_flight)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stream: EchoStream = channel.stream_stream(METHOD)()

        async def write_all() -> None:
            while (now_s := time.perf_counter()) < end_s:
                await credits_left.acquire()
                sent_times_s.put_nowait(now_s)
                await stream.write(MESSAGE)
            await stream.done_writing()

        start_s = time.perf_counter()
        end_s = start_s + duration_s
        async with asyncio.timeout(duration_s + DRAIN_WAIT_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(write_all())
            async for _ in stream:
                latencies_s.append(time.perf_counter() - sent_times_s.get_nowait())
                credits_left.release()
        rate = len(latencies_s) / (time.perf_counter() - start_s)
    return {"calls_per_s": rate, **latency_figures(latencies_s)}


def main() -> None:
    arguments = parse_arguments("Measures a bare grpc.aio stream that echoes one small message.")
    exit_on_terminate()
    reporter = Reporter("grpc", as_json=arguments.json)
    with Child([sys.executable, "-m", "benchmarks.peers.grpc_echo", SERVE]) as server:
        line = server.read_line(SERVER_START_WAIT_S)
        if line is None:
            raise RuntimeError("the echo server ended before it was ready")
        port = int(line)
        figures = uvloop.run(echo_one_by_one(port, arguments.durations.calls_s))
        reporter.case("B echo c=1", figures)
        figures = uvloop.run(echo_in_flight(port, FRAMES_IN_FLIGHT, arguments.durations.calls_s))
        reporter.case(f"B echo c={FRAMES_IN_FLIGHT}", figures)


if __name__ == "__main__":
    if sys.argv[1:] == [SERVE]:
        uvloop.run(serve())
    else:
        main()
