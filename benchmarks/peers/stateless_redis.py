"""The common way without a runtime: a worker that keeps nothing, and its state in Redis.

For each batch one MGET, the counting, one MSET: a retry counts twice, and two workers with a key
in common lose updates. The server keeps an AOF with `appendfsync always`. The driver is the
skeleton's.
"""

import argparse
import asyncio
from contextlib import ExitStack
from sys import executable

import msgspec
import uvloop
from redis.asyncio import Redis

from benchmarks.harness.processes import Child, exit_on_terminate
from benchmarks.harness.redis_server import RedisServer
from benchmarks.harness.report import Reporter, parse_arguments
from benchmarks.harness.workload import PACED_RATES_PER_S
from benchmarks.peers.frames import FrameConnection
from benchmarks.peers.lifeline import parent_is_gone
from benchmarks.peers.skeleton import WORKER_START_WAIT_S, pace, saturate

BATCH_SIZES = (500, 2_000)
WORKER_COUNTS = (1, 2)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


async def answer(client: Redis, frame: bytes) -> bytes:
    """Read, count, write back."""
    tag, messages = _decode(frame)
    keys = list({key for key, _, _ in messages})
    found = await client.mget(keys)
    counts = {key: int(each or 0) for key, each in zip(keys, found, strict=True)}
    replies = []
    for key, amount, _time in messages:
        counts[key] = count = counts[key] + amount
        replies.append((key, count))
    await client.mset(counts)
    return _encode((tag, replies))


async def serve(redis_url: str) -> None:
    client = Redis.from_url(redis_url)
    frames: asyncio.Queue[tuple[FrameConnection, bytes]] = asyncio.Queue()

    async def work() -> None:
        # One batch at a time: two that share a key would overwrite each other.
        while True:
            connection, frame = await frames.get()
            connection.send(await answer(client, frame))

    server = await asyncio.get_running_loop().create_server(
        lambda: FrameConnection(lambda *arrived: frames.put_nowait(arrived)), "127.0.0.1", 0
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(work())
        await parent_is_gone()
        working.cancel()
    await client.aclose()


def drive() -> None:
    arguments = parse_arguments("Measures workers without state, and Redis.")
    exit_on_terminate()
    reporter = Reporter("stateless", as_json=arguments.json)
    durations = arguments.durations
    for count in WORKER_COUNTS:
        with ExitStack() as stack:
            url = stack.enter_context(RedisServer("always")).url
            command = [executable, "-m", "benchmarks.peers.stateless_redis", "--serve", url]
            ports = []
            for _ in range(count):
                line = stack.enter_context(Child(command)).read_line(WORKER_START_WAIT_S)
                ports.append(int(line or 0))
            uvloop.run(saturate(ports, BATCH_SIZES[0], durations.saturate_s / 4))  # warm-up
            for size in BATCH_SIZES:
                figures = uvloop.run(saturate(ports, size, durations.saturate_s))
                reporter.case(f"A redis w={count} batch={size}", figures)
            for rate_per_s in PACED_RATES_PER_S:
                figures = uvloop.run(pace(ports, rate_per_s, durations))
                reporter.case(f"L redis w={count} rate={rate_per_s}", figures)


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--serve", default="")
    given, _ = parser.parse_known_args()
    if given.serve:
        uvloop.run(serve(given.serve))
    else:
        drive()


if __name__ == "__main__":
    main()
