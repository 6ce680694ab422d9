"""Asks every partition all the time whether it answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from sublet import Client, SubletError
from sublet.functions.address import partition_index_of, partition_name
from tests.chaos.app import QUESTIONS, app
from tests.chaos.recovery import percentile

PROBE_EVERY_S = 0.1
PAUSE_S = 0.1
LATENCIES_MAX = 2_000_000

Answered = Callable[[str, float, float], None]
"""Partition, when it was asked, when it answered."""


class Prober:
    """One question under way to each partition, ten times a second while they are answered."""

    def __init__(self, client: Client, answered: Answered) -> None:
        self.latencies_s: list[float] = []
        self.errors: list[str] = []
        self._client = client
        self._answered = answered

    async def run(self) -> None:
        """Ask until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for function in app.functions.values():
                for index in range(function.partition_count):
                    tasks.create_task(
                        self._ask(function.name, index, key_in(index, function.partition_count))
                    )

    def percentiles(self) -> list[float]:
        """Return how long answers took: half of them, 99 %, the longest."""
        return [round(percentile(self.latencies_s, share), 4) for share in (0.5, 0.99, 1.0)]

    async def _ask(self, function: str, index: int, key: str) -> None:
        partition, question = partition_name(function, index), QUESTIONS[function]
        while True:
            # At round times, so that all questions of one turn leave together.
            await asyncio.sleep(PROBE_EVERY_S - time.monotonic() % PROBE_EVERY_S)
            asked_s = time.monotonic()
            try:
                await self._client.call(function, key, question)
            except SubletError as error:
                self.errors.append(f"{partition}: {error!r}")
                await asyncio.sleep(PAUSE_S)
                continue
            now_s = time.monotonic()
            self._answered(partition, asked_s, now_s)
            if len(self.latencies_s) < LATENCIES_MAX:
                self.latencies_s.append(now_s - asked_s)


def key_in(index: int, partition_count: int) -> str:
    """Return a key of probes that is in a partition."""
    number = 0
    while partition_index_of(f"probe{number}", partition_count) != index:
        number += 1
    return f"probe{number}"
