"""One client process of the soak. Reads commands as JSON lines, tells each second what it saw.

- `closed`: so many callers, each with one call under way: finds out what the workers can do.
- `open`: calls at a given rate, whether or not earlier ones were answered.
- `slow`: asks for large replies and then reads nothing for a while, again and again.
- `totals`: what was answered, and what nobody knows, by key.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import uvloop

from benchmarks.soak.app import work
from sublet import Client
from sublet.functions.errors import OverloadedError, SubletError, UnknownOutcomeError

ZIPF = 1.2
TICK_S = 0.005
OPEN_MAX = 30_000
"""Calls under way in one process; more are not made, and counted as skipped."""
SLOW_REPLY_BYTES = 32 * 1024
SLOW_CALLS = 40
SLOW_PAUSE_S = 1.5


def zipf_keys(count: int, chance: random.Random) -> Iterator[str]:
    """Yield keys for ever: the n-th most frequent one about n^-1.2 times as often as the first."""
    weights = list(itertools.accumulate((rank + 1) ** -ZIPF for rank in range(count)))
    places = range(count)
    while True:
        for place in chance.choices(places, cum_weights=weights, k=1_000):
            yield f"k{place}"


class Load:
    def __init__(self, client: Client, keys: Iterator[str], tasks: asyncio.TaskGroup) -> None:
        self._client = client
        self._keys = keys
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self.answered: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._offered = self._skipped = 0
        self._refused: Counter[str] = Counter()
        self._latencies_ms: list[int] = []

    async def call(self, key: str, intended_s: float, reply_bytes: int = 0) -> None:
        self.under_way += 1
        self._idle.clear()
        self._offered += 1
        try:
            await self._client.call(work, key, (1, reply_bytes))
        except OverloadedError as error:
            self._refused[error.code] += 1
        except UnknownOutcomeError as error:
            self.unknown[key] += 1
            self._refused[error.code] += 1
        except SubletError as error:
            self._refused[error.code] += 1
        else:
            self.answered[key] += 1
            self._latencies_ms.append(round((self._loop.time() - intended_s) * 1000))
        finally:
            self.under_way -= 1
            if not self.under_way:
                self._idle.set()

    async def closed(self, callers: int, seconds: float) -> None:
        until_s = self._loop.time() + seconds

        async def caller() -> None:
            while self._loop.time() < until_s:
                await self.call(next(self._keys), self._loop.time())

        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(caller())

    async def open(self, rate_per_s: float, seconds: float) -> None:
        start_s, made, total = self._loop.time(), 0, int(rate_per_s * seconds)
        while made < total:
            due = min(total, int((self._loop.time() - start_s) * rate_per_s))
            for number in range(made, due):
                if self.under_way < OPEN_MAX:
                    intended_s = start_s + number / rate_per_s
                    self._tasks.create_task(self.call(next(self._keys), intended_s))
                else:
                    self._skipped += 1
            made = due
            await asyncio.sleep(TICK_S)
        await self.settled()

    async def slow(self, seconds: float) -> None:
        until_s = self._loop.time() + seconds
        while self._loop.time() < until_s:
            if self.under_way < OPEN_MAX:
                for _ in range(SLOW_CALLS):
                    now_s = self._loop.time()
                    self._tasks.create_task(self.call(next(self._keys), now_s, SLOW_REPLY_BYTES))
            await asyncio.sleep(0.1)
            # On purpose: the loop stands still, so nobody takes what comes.
            time.sleep(SLOW_PAUSE_S)  # noqa: ASYNC251
        await self.settled()

    async def settled(self) -> None:
        """Wait until nothing is under way."""
        await asyncio.sleep(0)  # Tasks that were just made have not begun.
        await self._idle.wait()

    def second(self) -> dict[str, Any]:
        """Return what has happened since this was asked last."""
        told = {
            "offered": self._offered,
            "skipped": self._skipped,
            "refused": dict(self._refused),
            "latencies_ms": sorted(self._latencies_ms),
            "under_way": self.under_way,
        }
        self._offered = self._skipped = 0
        self._refused, self._latencies_ms = Counter(), []
        return told


def tell(**line: Any) -> None:
    print(json.dumps(line), flush=True)


async def run(addresses: list[str], keys: int, seed: int) -> None:
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader(limit=2**20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    async with Client(addresses, overload_retries=0) as client, asyncio.TaskGroup() as tasks:
        load = Load(client, zipf_keys(keys, random.Random(seed)), tasks)

        async def each_second() -> None:
            while True:
                await asyncio.sleep(1.0)
                tell(second=load.second())

        telling = tasks.create_task(each_second())
        tell(ready=True)
        while line := await commands.readline():
            command = json.loads(line)
            match command.pop("do"):
                case "closed":
                    await load.closed(**command)
                case "open":
                    await load.open(**command)
                case "slow":
                    await load.slow(**command)
                case "totals":
                    tell(second=load.second())
                    answered, unknown = dict(load.answered), dict(load.unknown)
                    tell(totals={"answered": answered, "unknown": unknown})
            tell(done=True)
        telling.cancel()


def main() -> None:
    uvloop.run(run(json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))


if __name__ == "__main__":
    main()
