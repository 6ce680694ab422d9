"""The load of `benchmarks.scalassc`: three applications' data, fed at once or at a pace.

A tuple is what the applications' papers count: a word, a reading, an observation. An item is what
a client sends: a line (of a dozen words), a reading, an observation.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

from benchmarks.harness.workload import PACE_TICK_S, ArrivalSchedule, latency_figures
from benchmarks.scalassc.apps import microseconds
from examples.machine_outlier_observations import MACHINE_COUNT, generate_observations
from examples.spike_detection_readings import generate_readings
from examples.word_count_text import generate_lines
from sublet import Client
from sublet.runtime.links.grpc_link import UnaryClient

SEED = 1
ITEMS_IN_FLIGHT = 2_000
"""Sent and not answered, whatever the size of a request; as many requests as that makes."""
PROBE_ITEMS = 100
WARM_UP_SHARE = 0.3
"""How long what is measured should be warmed up before, as a share of its own time."""
WARM_UPS_MAX = 3
LOOK_EVERY_S = 0.01
DRAIN_WAIT_S = 20.0
CALL_PAUSE_S = 0.2


@dataclass(frozen=True)
class Application:
    """One application, its data, and what becomes of it."""

    name: str
    label: str
    tuple_name: str
    function: str
    """Where items go in."""
    keys: Sequence[str]
    items: Sequence[Any]
    tuples_until: Sequence[int]
    """How many tuples the first n items are."""
    messages_until: Callable[[int], int]
    """How many messages functions have handled, at least, when the first n items are through."""
    is_by_moment: bool = False
    """Items are handled by the moment, when the next one begins."""

    def timed(self, index: int, stamp_us: int) -> Any:
        """Return item `index` with a stamp that its effects carry to the sink."""
        item = self.items[index % len(self.items)]
        if isinstance(item, str):
            return [stamp_us, item]
        if self.is_by_moment:
            return {**item, "at_s": index // MACHINE_COUNT}
        return {**item, "at_ms": stamp_us}


def word_count(count: int) -> Application:
    lines = list(islice(generate_lines(SEED), count))
    words = [0, *accumulate(len(line.split()) for line in lines)]
    return Application(
        name="WC",
        label="Word Count",
        tuple_name="words",
        function="word_count/split",
        keys=[f"page-{number}" for number in range(count)],
        items=lines,
        tuples_until=words,
        messages_until=lambda items: items + words[items],
    )


def spike_detection(count: int) -> Application:
    readings = list(islice(generate_readings(SEED), count))
    return Application(
        name="SD",
        label="Spike Detection",
        tuple_name="readings",
        function="spike_detection/average",
        keys=[sensor for sensor, _, _ in readings],
        items=[{"at_ms": at_ms, "millicelsius": value} for _, at_ms, value in readings],
        tuples_until=range(count + 1),
        messages_until=lambda items: 2 * items,
    )


def machine_outlier(count: int) -> Application:
    observed = list(islice(generate_observations(SEED), count))

    def messages_until(items: int) -> int:
        scored = max(0, items - 1) // MACHINE_COUNT * MACHINE_COUNT
        return items + 2 * scored

    return Application(
        name="MO",
        label="Machine Outlier",
        tuple_name="observations",
        function="machine_outlier/score",
        keys=["all"] * count,
        items=[
            {"at_s": at_s, "machine": machine, "cpu": cpu, "memory": memory}
            for at_s, machine, cpu, memory in observed
        ],
        tuples_until=range(count + 1),
        messages_until=messages_until,
        is_by_moment=True,
    )


def applications() -> list[Application]:
    return [word_count(40_000), spike_detection(200_000), machine_outlier(200_000)]


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return how long processes have computed so far; 0 where there is no /proc."""
    total, tick = 0.0, os.sysconf("SC_CLK_TCK")
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / tick
    return total


def _own_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@dataclass(frozen=True)
class Looks:
    """Asks the workers of a cluster what they have counted."""

    workers: Sequence[UnaryClient]

    async def look(self) -> dict[str, float]:
        """Return each counter, summed over the workers."""
        totals: dict[str, float] = {}
        for report in await asyncio.gather(*(each.status() for each in self.workers)):
            for name, value in report.counters.items():
                totals[name] = totals.get(name, 0) + value
        return totals


class Feed:
    """Sends an application's items to a cluster, each once, and waits until all are through."""

    def __init__(
        self, app: Application, client: Client, looks: Looks, pids: Sequence[int], request_size: int
    ) -> None:
        self._app = app
        self._client = client
        self._looks = looks
        self._pids = pids
        self._request_size = request_size
        self._sent = 0
        self._handled_before = 0.0

    async def saturate(self, seconds: float) -> dict[str, float]:
        """Feed what should take so long, as fast as it is taken; return what was reached.

        The amount follows from what a little reached before, so that a slow setup takes as long as
        a fast one. Time ends when the last message behind the items has been handled.
        """
        self._handled_before = (await self._looks.look())["consumed"]
        figures = await self._pass(PROBE_ITEMS)
        warm_up_s = WARM_UP_SHARE * seconds
        for _ in range(WARM_UPS_MAX):
            if figures["elapsed_s"] >= warm_up_s / 2:
                break
            figures = await self._pass(int(figures["items_per_s"] * warm_up_s))
        return await self._pass(int(figures["items_per_s"] * seconds))

    async def _pass(self, items: int) -> dict[str, float]:
        app, first = self._app, self._sent
        size = self._request_size
        # Whole requests, so that none is smaller than it should be.
        stop = min(first + -(-items // size) * size, len(app.items) // size * size)
        if stop <= first:
            raise RuntimeError(f"{app.name}: all {len(app.items)} items have been sent")
        before = await self._looks.look()
        cpu_s, own_cpu_s = cpu_seconds(self._pids), _own_cpu_seconds()
        started_s = time.perf_counter()
        await self._send(first, stop)
        self._sent = stop
        after, ended_s = await self._drained()
        elapsed_s = ended_s - started_s
        grown = {name: after[name] - before.get(name, 0) for name in after}
        tuples = app.tuples_until[stop] - app.tuples_until[first]
        worker_s = cpu_seconds(self._pids) - cpu_s
        return {
            "tuples_per_s": tuples / elapsed_s,
            "tuples_per_core_s": tuples / max(worker_s, 1e-3),
            "items_per_s": (stop - first) / elapsed_s,
            "messages_per_run": grown["consumed"] / max(1.0, grown["runs"]),
            "messages_per_commit": grown["consumed"] / max(1.0, grown["commits"]),
            "items_per_frame": (stop - first) / max(1.0, grown["frames_in"]),
            "worker_cores": worker_s / elapsed_s,
            "client_cores": (_own_cpu_seconds() - own_cpu_s) / elapsed_s,
            "elapsed_s": elapsed_s,
        }

    async def _send(self, first: int, stop: int) -> None:
        app, size, call_many = self._app, self._request_size, self._client.call_many
        slots = asyncio.Semaphore(max(2, ITEMS_IN_FLIGHT // size))

        async def request(start: int) -> None:
            end = start + size
            await call_many(app.function, app.keys[start:end], app.items[start:end])
            slots.release()

        async with asyncio.TaskGroup() as requests:
            for start in range(first, stop, size):
                await slots.acquire()
                requests.create_task(request(start))
                # A client sends in one frame what it is asked for in one turn of the loop; in
                # turns of their own, requests have frames of their own.
                await asyncio.sleep(0)

    async def _drained(self) -> tuple[dict[str, float], float]:
        """Return the counters when nothing is left to do, and since when they have been so."""
        wanted = self._handled_before + self._app.messages_until(self._sent)
        last, since_s = await self._looks.look(), time.perf_counter()
        async with asyncio.timeout(DRAIN_WAIT_S):
            while True:
                await asyncio.sleep(LOOK_EVERY_S)
                now, now_s = await self._looks.look(), time.perf_counter()
                if now["consumed"] != last["consumed"]:
                    last, since_s = now, now_s
                elif now["consumed"] >= wanted and not now["queued"]:
                    return now, since_s


async def pace(
    app: Application, client: Client, schedule: ArrivalSchedule, request_size_max: int
) -> None:
    """Send each item when it is due; return when the last one is answered.

    The timed apps have to be there. The schedule is on the monotonic clock.
    """

    async def request(first: int, stop: int) -> None:
        items = [app.timed(each, int(schedule.due_s(each) * 1e6)) for each in range(first, stop)]
        keys = [app.keys[each % len(app.keys)] for each in range(first, stop)]
        await client.call_many(app.function, keys, items)

    sent = 0
    async with (
        asyncio.timeout(schedule.count / schedule.rate_per_s + DRAIN_WAIT_S),
        asyncio.TaskGroup() as requests,
    ):
        while sent < schedule.count:
            due = schedule.due_count(time.monotonic())
            for start in range(sent, due, request_size_max):
                requests.create_task(request(start, min(start + request_size_max, due)))
                await asyncio.sleep(0)
            sent = due
            await asyncio.sleep(PACE_TICK_S)


async def paced_figures(
    app: Application, client: Client, schedule: ArrivalSchedule, warm_up_s: float
) -> dict[str, float]:
    """Return the latencies, from when an item was due until all that it caused was durable."""
    finished: dict[int, int] = {}
    wanted = schedule.count
    if app.is_by_moment:
        # The last moment waits for one that does not come.
        wanted = (schedule.count - 1) // MACHINE_COUNT
    async with asyncio.timeout(DRAIN_WAIT_S):
        while True:
            drained = await client.call("timing/drain")
            for stamp, now_us in drained:
                finished[stamp] = max(now_us, finished.get(stamp, 0))
            if len(finished) >= wanted and not drained:
                break
            await asyncio.sleep(CALL_PAUSE_S)
    latencies_s = []
    for stamp, now_us in finished.items():
        # A moment is scored when the first item of the next one comes: that one has to be quick.
        due_us = (
            int(schedule.due_s((stamp + 1) * MACHINE_COUNT) * 1e6) if app.is_by_moment else stamp
        )
        if due_us / 1e6 >= schedule.start_s + warm_up_s:
            latencies_s.append((now_us - due_us) / 1e6)
    return {"timed_count": len(latencies_s), **latency_figures(latencies_s)}


def start_soon() -> float:
    """Return a time on the monotonic clock for a schedule to begin at."""
    return microseconds() / 1e6 + 0.1
