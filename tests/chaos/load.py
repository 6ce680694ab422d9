"""A process of load: asks at a steady rate until it is told to stop, then writes its ledger.

Started by `run`, which writes its orders as the only argument, and a line when it is to stop; it
writes a line of JSON a second about how far it is.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import httpx
import msgspec
import structlog

from sublet import Client, SubletError
from tests.chaos.ledger import Ledger
from tests.chaos.workloads import HTTP_WAIT_S, ROUNDS_PER_S, Desk, Workload, workloads

TELL_EVERY_S = 1.0
ANSWERS_WAIT_S = 120.0
CONNECT_TIMEOUT = "30m"
OVERLOAD_RETRIES = 100_000


class Orders(msgspec.Struct):
    sender: str
    source: str
    addresses: list[str]
    http_urls: list[str]
    seed: int
    rate: float
    """1: about 150 messages a second."""
    ledger_path: str


class Progress(msgspec.Struct):
    answered: int
    problems: int
    pending: dict[str, int]
    """Rounds under way, by kind of load."""


class Load:
    def __init__(self, desk: Desk, orders: Orders) -> None:
        self._desk = desk
        self._rate = orders.rate
        self._workloads = workloads(desk, orders.source)
        self._stop = asyncio.Event()
        self._pending: dict[str, int] = {each.kind: 0 for each in self._workloads}

    async def run(self) -> None:
        """Ask until told to stop, then wait for the answers, but not for ever."""
        ledger = self._desk.ledger
        listening = asyncio.create_task(self._listen())
        telling = asyncio.create_task(self._tell())
        try:
            async with asyncio.TaskGroup() as tasks:
                feeding = [tasks.create_task(self._feed(each)) for each in self._workloads]
                await self._stop.wait()
                _, late = await asyncio.wait(feeding, timeout=ANSWERS_WAIT_S)
                if late:
                    waiting = {kind: count for kind, count in self._pending.items() if count}
                    ledger.note(f"no answer {ANSWERS_WAIT_S:g} s after the end: {waiting}")
                for each in late:
                    each.cancel()
        finally:
            listening.cancel()
            telling.cancel()

    async def _listen(self) -> None:
        # A line, or the end of whoever should have written it.
        await asyncio.to_thread(sys.stdin.readline)
        self._stop.set()

    async def _tell(self) -> None:
        while True:
            ledger = self._desk.ledger
            answered = sum(ledger.answered.values())
            told = Progress(answered, len(ledger.problems), self._pending)
            sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
            sys.stdout.flush()
            await asyncio.sleep(TELL_EVERY_S)

    async def _feed(self, workload: Workload) -> None:
        interval_s = 1.0 / (ROUNDS_PER_S[workload.kind] * self._rate)
        room = asyncio.Semaphore(workload.rounds_max)
        next_s = time.monotonic() + self._desk.chance.uniform(0, interval_s)
        async with asyncio.TaskGroup() as rounds:
            while not self._stop.is_set():
                await asyncio.sleep(next_s - time.monotonic())
                # After an outage there is no flood to catch up.
                next_s = max(next_s + interval_s, time.monotonic())
                await room.acquire()
                if not self._stop.is_set():
                    rounds.create_task(self._round(workload, room))
        await workload.finish()

    async def _round(self, workload: Workload, room: asyncio.Semaphore) -> None:
        answered, kind = self._desk.ledger.answered, workload.kind
        self._pending[kind] += 1
        try:
            count = await workload.round()
            answered[kind] = answered.get(kind, 0) + count
        except* SubletError as errors:
            # Clients that are patient enough have no errors to expect.
            self._desk.ledger.note(f"{kind}: {errors.exceptions!r:.500}")
        finally:
            self._pending[kind] -= 1
            room.release()


def write_ledger(orders: Orders, ledger: Ledger) -> None:
    Path(orders.ledger_path).write_bytes(msgspec.json.encode(ledger))


def read_ledger(orders: Orders) -> Ledger:
    """Return what a load has written at its end."""
    return msgspec.json.decode(Path(orders.ledger_path).read_bytes(), type=Ledger)


async def main(orders: Orders) -> None:
    async with (
        Client(
            orders.addresses, connect_timeout=CONNECT_TIMEOUT, overload_retries=OVERLOAD_RETRIES
        ) as client,
        httpx.AsyncClient(timeout=2 * HTTP_WAIT_S) as http,
    ):
        desk = Desk(orders.sender, client, http, orders.seed)
        desk.http_urls = orders.http_urls
        try:
            await Load(desk, orders).run()
        finally:
            write_ledger(orders, desk.ledger)


if __name__ == "__main__":
    # Standard output is for what is told to the parent.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=Orders)))
