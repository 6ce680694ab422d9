"""The client of one side: told a load by a line of JSON, it answers with what the load took.

Started by path, with the checkout of its side on PYTHONPATH, as that of an old commit has another
`benchmarks` or none.
"""

import asyncio
import json
import random
import statistics
import sys
import time
from itertools import accumulate

import uvloop

from sublet import Client

FUNCTION = "guard/count"
KEY_COUNT = 10_000
KEYS = random.Random(42).choices(
    [f"k{index:05d}" for index in range(KEY_COUNT)],
    cum_weights=list(accumulate(1 / rank for rank in range(1, KEY_COUNT + 1))),
    k=100_000,
)
BATCH_SIZE = 4_000
BATCHES_IN_FLIGHT = 4
# Prime, so that callers do not walk in step.
CALLER_STRIDE = 701
START_TIMEOUT_S = 60.0
RETRY_S = 0.05


async def saturate(client: Client, count: int) -> list[float]:
    """Keep a few large batches in flight."""
    ones = [1] * BATCH_SIZE
    starts = iter(range(0, count, BATCH_SIZE))

    async def feed() -> None:
        for start in starts:
            first = start % (len(KEYS) - BATCH_SIZE)
            await client.call_many(FUNCTION, KEYS[first : first + BATCH_SIZE], ones)

    await asyncio.gather(*(feed() for _ in range(BATCHES_IN_FLIGHT)))
    return []


async def call(client: Client, count: int, callers: int) -> list[float]:
    """Let each caller await its reply before it calls again."""
    latencies_s: list[float] = []

    async def caller(number: int) -> None:
        position = number * CALLER_STRIDE
        for _ in range(count // callers):
            started_s = time.perf_counter()
            await client.call(FUNCTION, KEYS[position % len(KEYS)], 1)
            latencies_s.append(time.perf_counter() - started_s)
            position += 1

    await asyncio.gather(*(caller(number) for number in range(callers)))
    return latencies_s


async def add_keys(client: Client, prefix: str, count: int) -> list[float]:
    for start in range(0, count, BATCH_SIZE):
        keys = [f"{prefix}{index:07d}" for index in range(start, min(start + BATCH_SIZE, count))]
        await client.call_many(FUNCTION, keys, [1] * len(keys))
    return []


async def connected(address: str) -> Client:
    """Wait for the worker, and until each partition has been placed."""
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            client = Client(address)
            try:
                await client.__aenter__()
                await client.call_many(FUNCTION, KEYS[:1_000], [0] * 1_000)
            except Exception:
                await asyncio.sleep(RETRY_S)
            else:
                return client


async def obey(addresses: list[str]) -> None:
    clients = {address: await connected(address) for address in addresses}
    print(json.dumps({}), flush=True)
    loop = asyncio.get_running_loop()
    # In a thread: links say that they live while the other side has its turn.
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        client = clients[order["address"]]
        started_s, started_cpu_s = time.perf_counter(), time.process_time()
        match order["load"]:
            case "saturate":
                latencies_s = await saturate(client, order["count"])
            case "call":
                latencies_s = await call(client, order["count"], order["callers"])
            case "add_keys":
                latencies_s = await add_keys(client, order["prefix"], order["count"])
            case unknown:
                raise ValueError(f"unknown load {unknown!r}; allowed: saturate, call, add_keys")
        figures = {
            "wall_s": time.perf_counter() - started_s,
            "client_cpu_s": time.process_time() - started_cpu_s,
        }
        if latencies_s:
            figures["p50_s"] = statistics.median(latencies_s)
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    uvloop.run(obey(sys.argv[1:]))
