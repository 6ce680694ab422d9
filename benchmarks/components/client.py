"""What a call costs on the client's side.

Run: `python -m benchmarks.components.client` (about 15 s). One JSON line; `--profile` shows where
time goes.

A process of its own echoes whole columns without looking into them, so that the client is what is
measured. Calls a second are given for the wall clock and for a second of the client's own CPU: on
shared cores only the latter says what the client costs. `loop_per_s` is the same load of callers
on bare futures, without a client: the ceiling that the event loop sets.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import uvloop

from benchmarks.harness.processes import Child, exit_on_terminate
from benchmarks.harness.workload import zipf_keys
from sublet.runtime.client.client import Client
from sublet.runtime.links.link import Link, LinkReceiver
from sublet.runtime.links.server import LinkServer
from sublet.runtime.protocol.frames import (
    Ack,
    Batch,
    Data,
    Frame,
    FunctionInfo,
    Hello,
    Kind,
    Topology,
    Welcome,
)
from sublet.runtime.protocol.rpc import Service

ROUNDS = 3
SAMPLE_S = 1.0
CALLERS = 64
MANY = 100_000
FUNCTION = FunctionInfo("bench/echo", 16, "keyed")
START_TIMEOUT_S = 20.0


class _Echo:
    """Answers every batch with its own column."""

    def __init__(self) -> None:
        self.address = ""
        self._replied: dict[str, int] = {}

    def accept(self, link: Link, hello: Hello) -> LinkReceiver:
        self._replied = {}
        partitions = [f"{FUNCTION.name}/{index}" for index in range(FUNCTION.partition_count)]
        placement = dict.fromkeys(partitions, "w1")
        topology = Topology(1, [FUNCTION], placement, {"w1": self.address})
        link.send(Welcome("w1", topology, 16_384, 4 * 2**20, 1_024))
        return self

    def frame_received(self, link: Link, frame: Frame) -> None:
        if not isinstance(frame, Data) or not frame.batches:
            return
        replies: list[Batch] = []
        acks: list[Ack] = []
        for batch in frame.batches:
            target, source, count = batch.target, batch.source, batch.count
            acks.append(Ack(target, source, batch.first + count - 1))
            if batch.kind is Kind.CALL:
                first = self._replied.get(target, 0) + 1
                self._replied[target] = first + count - 1
                reply = Batch(source, target, first, Kind.REPLY, [], batch.payloads, count)
                reply.refs_first = batch.first
                replies.append(reply)
        link.send(Data(replies, acks))

    def link_drained(self, link: Link) -> None:
        pass

    def link_ended(self, link: Link, reason: str, clean: bool) -> None:
        pass


async def _serve(lane_path: str) -> None:
    echo = _Echo()
    no_service = cast("Service", None)  # Nobody makes unary calls here.
    async with LinkServer(echo.accept, no_service, lane_path=lane_path) as server:
        echo.address = server.address
        print(server.address, flush=True)
        # Ends with whoever started us: our standard input is a pipe from there.
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def _callers(ask: Callable[[int], Awaitable[object]], count: int) -> int:
    """Ask, with so many callers at once, until the time is over; return how often."""
    end_s = time.perf_counter() + SAMPLE_S
    asked = 0

    async def caller(turn: int) -> None:
        nonlocal asked
        while time.perf_counter() < end_s:
            await ask(turn)
            turn += count
            asked += 1

    async with asyncio.TaskGroup() as tasks:
        for turn in range(count):
            tasks.create_task(caller(turn))
    return asked


async def _rates(measure: Callable[[], Awaitable[int]]) -> tuple[float, float]:
    """Return how many a second of the wall clock, and of this process's CPU."""
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    count = await measure()
    return (
        count / (time.perf_counter() - start_s),
        count / (time.process_time() - start_cpu_s),
    )


class _BareEcho:
    """Answers in the next turn of the loop but one, as a client with no cost would."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[int]] = []
        self._loop = asyncio.get_running_loop()

    async def ask(self, turn: int) -> int:
        waiter: asyncio.Future[int] = self._loop.create_future()
        if not self._waiting:
            self._loop.call_soon(self._answer)
        self._waiting.append(waiter)
        return await waiter

    def _answer(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.set_result(1)


async def _measure(address: str, *, profiled: bool) -> dict[str, float]:
    keys = zipf_keys(MANY)
    messages: list[object] = [1] * MANY
    figures: dict[str, list[float]] = {}
    profile = cProfile.Profile()
    async with Client(address) as client:

        async def many() -> int:
            await client.call_many(FUNCTION.name, keys, messages)
            return MANY

        async def send_many() -> int:
            await client.send_many(FUNCTION.name, keys, messages)
            return MANY

        def one(turn: int) -> Awaitable[object]:
            return client.call(FUNCTION.name, keys[turn % MANY], 1)

        await _callers(one, CALLERS)  # warm-up
        await many()
        if profiled:
            profile.enable()
            await _callers(one, CALLERS)
            await many()
            profile.disable()
            pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(28)
        bare = _BareEcho()
        cases: dict[str, Callable[[], Awaitable[int]]] = {
            "call": lambda: _callers(one, CALLERS),
            "call_one_caller": lambda: _callers(one, 1),
            "call_many": many,
            "send_many": send_many,
            "loop": lambda: _callers(bare.ask, CALLERS),
        }
        for _ in range(ROUNDS):
            for name, measure in cases.items():
                wall, cpu = await _rates(measure)
                figures.setdefault(f"{name}_per_s", []).append(wall)
                figures.setdefault(f"{name}_per_cpu_s", []).append(cpu)
    return {name: round(statistics.median(values)) for name, values in figures.items()}


def main() -> None:
    if "--serve" in sys.argv:
        uvloop.run(_serve(sys.argv[-1]))
        return
    exit_on_terminate()
    with tempfile.TemporaryDirectory() as directory:
        lane_path = str(Path(directory) / "lane.sock")
        command = [sys.executable, "-m", "benchmarks.components.client", "--serve", lane_path]
        with Child(command) as server:
            address = server.read_line(START_TIMEOUT_S)
            if address is None:
                sys.exit("the echo did not start")
            figures = uvloop.run(_measure(address, profiled="--profile" in sys.argv))
    print(json.dumps({"benchmark": "client", "callers": CALLERS, **figures}))


if __name__ == "__main__":
    main()
