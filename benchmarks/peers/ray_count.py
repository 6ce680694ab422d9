"""Ray: actors that each own a part of the keys and count in a dict. Nothing is durable.

"each" is one message a call, as a program with requests has them; "batch" packs messages into
calls by hand. Ray's own processes run on this machine and talk over loopback.
"""
# mypy: ignore-errors
# Ray is installed for the peers' interpreter only, so its types are unknown here.

import asyncio
import os
import time
from collections import deque

# Before the import: Ray reads them while it loads.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")

import ray

from benchmarks.harness.processes import exit_on_terminate
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

WORKER_COUNTS = (1, 2)
# Calls in flight for each batch size: enough to keep the actors busy, few enough for memory.
CALLS_IN_FLIGHT = {1: 1_000, 100: 64, 500: 32}
REPLY_WAIT_S = 30.0
KEYS = zipf_keys()


@ray.remote(num_cpus=0)
class CountingActor:
    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, key: str, amount: int, sent_s: float) -> tuple[str, int]:
        count = self._counts.get(key, 0) + amount
        self._counts[key] = count
        return key, count

    def add_all(self, messages: list[tuple[str, int, float]]) -> list[tuple[str, int]]:
        counts = self._counts
        replies = []
        for key, amount, _sent_s in messages:
            count = counts.get(key, 0) + amount
            counts[key] = count
            replies.append((key, count))
        return replies


def saturate(actors: list, batch_size: int, duration_s: float) -> dict[str, float]:
    """A: keep a window of calls open; the oldest half is awaited at once."""
    keys_of = split_by_worker(KEYS, len(actors))
    window = CALLS_IN_FLIGHT[batch_size]
    open_calls: deque = deque()
    call_count = reply_count = 0

    def start_call() -> None:
        nonlocal call_count
        worker = call_count % len(actors)
        keys = keys_of[worker]
        start = call_count // len(actors) * batch_size % (len(keys) - batch_size)
        call_count += 1
        if batch_size == 1:
            open_calls.append(actors[worker].add.remote(keys[start], 1, 0.0))
        else:
            messages = [(key, 1, 0.0) for key in keys[start : start + batch_size]]
            open_calls.append(actors[worker].add_all.remote(messages))

    def await_calls(count: int) -> None:
        nonlocal reply_count
        replies = ray.get([open_calls.popleft() for _ in range(count)], timeout=REPLY_WAIT_S)
        reply_count += len(replies) * batch_size

    start_s = time.perf_counter()
    end_s = start_s + duration_s
    while time.perf_counter() < end_s:
        while len(open_calls) < window:
            start_call()
        await_calls(window // 2)
    await_calls(len(open_calls))
    return {"messages_per_s": reply_count / (time.perf_counter() - start_s)}


def call_alone(actors: list, duration_s: float) -> dict[str, float]:
    """B, one caller: the blocking call, which is Ray's fastest way for one."""
    targets = [(key, worker_of(key, len(actors))) for key in KEYS]
    latencies_s = []
    start_s = time.perf_counter()
    end_s = start_s + duration_s
    while (sent_s := time.perf_counter()) < end_s:
        key, worker = targets[len(latencies_s) % len(targets)]
        ray.get(actors[worker].add.remote(key, 1, 0.0), timeout=REPLY_WAIT_S)
        latencies_s.append(time.perf_counter() - sent_s)
    rate = len(latencies_s) / (time.perf_counter() - start_s)
    return {"calls_per_s": rate, **latency_figures(latencies_s)}


async def call_together(actors: list, caller_count: int, duration_s: float) -> dict[str, float]:
    """B, many callers: tasks that await their call."""
    targets = [(key, worker_of(key, len(actors))) for key in KEYS]
    latencies_s = []

    async def call_repeatedly(position: int) -> None:
        while (sent_s := time.perf_counter()) < end_s:
            key, worker = targets[position % len(targets)]
            await actors[worker].add.remote(key, 1, 0.0)
            latencies_s.append(time.perf_counter() - sent_s)
            position += 1

    start_s = time.perf_counter()
    end_s = start_s + duration_s
    async with asyncio.timeout(duration_s + REPLY_WAIT_S), asyncio.TaskGroup() as tasks:
        for index in range(caller_count):
            tasks.create_task(call_repeatedly(index * CALLER_STRIDE))
    rate = len(latencies_s) / (time.perf_counter() - start_s)
    return {"calls_per_s": rate, **latency_figures(latencies_s)}


async def pace(
    actors: list, rate_per_s: float, durations: Durations, *, batched: bool
) -> dict[str, float]:
    """L: what is due on a tick leaves as one call for each actor, or as one call a message."""
    targets = [(key, worker_of(key, len(actors))) for key in KEYS]
    schedule = ArrivalSchedule.lasting(
        durations.paced_s, rate_per_s=rate_per_s, start_s=time.perf_counter() + 0.1
    )
    latencies = LatencyLog(schedule, durations.paced_warm_up_s)

    async def send(worker: int, messages: list[tuple[str, int, float]]) -> None:
        if batched:
            await actors[worker].add_all.remote(messages)
        else:
            await actors[worker].add.remote(*messages[0])
        latencies.add([due_s for _, _, due_s in messages], time.perf_counter())

    try:
        async with (
            asyncio.timeout(durations.paced_s + REPLY_WAIT_S),
            asyncio.TaskGroup() as tasks,
        ):
            sent_count = 0
            while sent_count < schedule.count:
                due: list[list[tuple[str, int, float]]] = [[] for _ in actors]
                due_count = schedule.due_count(time.perf_counter())
                for index in range(sent_count, due_count):
                    key, worker = targets[index % len(targets)]
                    message = (key, 1, schedule.due_s(index))
                    if batched:
                        due[worker].append(message)
                    else:
                        tasks.create_task(send(worker, [message]))
                sent_count = due_count
                for worker, messages in enumerate(due):
                    if messages:
                        tasks.create_task(send(worker, messages))
                await asyncio.sleep(PACE_TICK_S)
    except TimeoutError:
        pass  # `completed_share` tells.
    return latencies.figures()


def measure(reporter: Reporter, durations: Durations, actors: list) -> None:
    workers = f"w={len(actors)}"
    ray.get([actor.add.remote("warm-up", 1, 0.0) for actor in actors], timeout=REPLY_WAIT_S)
    for batch_size in CALLS_IN_FLIGHT:
        saturate(actors, batch_size, durations.saturate_s / 4)  # warm-up
        figures = saturate(actors, batch_size, durations.saturate_s)
        name = "each" if batch_size == 1 else f"batch={batch_size}"
        reporter.case(f"A mem {workers} {name}", figures)
    for caller_count in CALLER_COUNTS:
        if caller_count == 1:
            figures = call_alone(actors, durations.calls_s)
        else:
            figures = asyncio.run(call_together(actors, caller_count, durations.calls_s))
        reporter.case(f"B mem {workers} c={caller_count}", figures)
    figures = asyncio.run(pace(actors, PACED_RATES_PER_S[0], durations, batched=False))
    reporter.case(f"L mem {workers} each rate={PACED_RATES_PER_S[0]}", figures)
    for rate_per_s in PACED_RATES_PER_S:
        figures = asyncio.run(pace(actors, rate_per_s, durations, batched=True))
        reporter.case(f"L mem {workers} batch rate={rate_per_s}", figures)


def main() -> None:
    arguments = parse_arguments("Measures Ray: the keyed count and calls on actors.")
    exit_on_terminate()
    reporter = Reporter("ray", as_json=arguments.json)
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _node_ip_address="127.0.0.1",
    )
    try:
        for worker_count in WORKER_COUNTS:
            actors = [CountingActor.remote() for _ in range(worker_count)]
            measure(reporter, arguments.durations, actors)
            for actor in actors:
                ray.kill(actor)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
