"""Where the time of a message goes inside a worker, stage by stage.

    .venv/bin/python -m benchmarks.components.stages [--quick] [--json]

One client and one worker, each a process of its own. The worker's process puts a stopwatch round
the functions of each stage, from outside: the product has no hooks for it. Stopwatches show CPU
time of the loop's thread, so that a busy machine changes little, and a stage's time contains
neither that of other stages that it calls nor what the stopwatches take themselves, which is
measured before and shown by itself. What no stopwatch sees (the event loop, reading the socket,
`await`) is "not accounted for". Waiting (in the queue, for the commit) and other threads stand
apart: nobody's CPU is busy with the former, and the latter run beside the loop.

Each case also runs without stopwatches; how much slower they make it is said under the tables. A
whole run is kept in `results/stages.jsonl`.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any

import uvloop
from rich.console import Console

from benchmarks.harness import machine
from benchmarks.harness.count_app import app
from benchmarks.harness.processes import Child
from benchmarks.harness.report import CALLS, MESSAGES, OUR_SYSTEM, CaseResult, write_results
from benchmarks.harness.sublet_cases import STORES, call
from benchmarks.harness.tables import Grid, print_grid
from benchmarks.harness.workload import CALLER_STRIDE, FULL, QUICK, zipf_keys
from sublet import Client
from sublet.runtime.config.settings import read_config
from sublet.runtime.observability.logging_setup import set_up_logging
from sublet.runtime.services.worker_service import counters_of
from sublet.runtime.worker import Worker

RESULTS = machine.RESULTS / "stages.jsonl"
ROUNDS = 3
WAIT_S = 30.0
CALLER_COUNT = 64
# On average 500 messages for each of the function's partitions.
BATCH_SIZE = 8_000
BATCHES_IN_FLIGHT = 3
# A stopwatch costs as much as a small handler: so only in one of so many runs.
HANDLER_SAMPLE = 16
CALIBRATION_CALLS = 20_000
CALIBRATION_ROUNDS = 5

STAGES = (
    "receive",
    "decode",
    "route",
    "partition",
    "host",
    "state",
    "run",
    "handler",
    "encode",
    "commit",
    "send",
)
MEANING = {
    "receive": "cut the socket's bytes into frames",
    "decode": "frames into columns, columns into messages",
    "route": "find the partition of a batch, the port of a reply",
    "partition": "the step machine: accept, take, settle",
    "host": "carry out effects, order runs",
    "state": "find and load cells, turn changes into rows",
    "run": "the runtime round the handler",
    "handler": "user code",
    "encode": "seal: replies and sends into columns",
    "commit": "pack and hand over to the store, on the loop",
    "send": "frames out of columns, to the socket",
}
WAITS = ("queue wait", "commit wait")
PROCESSES = ("process CPU", "client CPU")
THREADS = ("writer commit CPU", "writer commit wall", "writer fold CPU")


# The worker's process


class Stopwatches:
    """CPU times of stages on the loop's thread, each without the stages inside it."""

    def __init__(self) -> None:
        self.total_s = dict.fromkeys((*STAGES, *WAITS, *THREADS, "stopwatches"), 0.0)
        self._inside_s = 0.0
        self._seen_s = self._unseen_s = 0.0
        """What a stopwatch adds to its own time, and what it takes before and after that."""
        self.handler_sampled = 0
        self.handler_sampled_s = 0.0
        self._seen_s, self._unseen_s = self._calibrate()
        self.total_s = dict.fromkeys(self.total_s, 0.0)
        self._inside_s = 0.0

    def wrap(self, owner: Any, name: str, stage: str) -> None:
        """Time a function or method that runs on the loop."""
        setattr(owner, name, self.timed(getattr(owner, name), stage))

    def timed(self, function: Callable[..., Any], stage: str) -> Callable[..., Any]:
        total_s, clock = self.total_s, time.thread_time
        seen_s, unseen_s = self._seen_s, self._unseen_s
        own_s = seen_s + unseen_s

        def timed(*args: Any, **kwargs: Any) -> Any:
            outside_s, self._inside_s = self._inside_s, seen_s
            started_s = clock()
            try:
                return function(*args, **kwargs)
            finally:
                elapsed_s = clock() - started_s
                total_s[stage] += elapsed_s - self._inside_s
                total_s["stopwatches"] += own_s
                self._inside_s = outside_s + elapsed_s + unseen_s

        return timed

    def _calibrate(self) -> tuple[float, float]:
        """Return what a stopwatch round an empty function shows, and what it takes beside that."""

        def empty(first: object, second: object) -> None:
            return

        watched = self.timed(empty, STAGES[0])
        found = []
        for _ in range(CALIBRATION_ROUNDS):
            self.total_s[STAGES[0]] = 0.0
            bare_s, watched_s = _calls_s(empty), _calls_s(watched)
            shown_s = self.total_s[STAGES[0]] / CALIBRATION_CALLS
            # The call of the function itself belongs to it.
            found.append((watched_s - bare_s, shown_s - bare_s))
        taken_s, seen_s = min(found)
        return seen_s, taken_s - seen_s

    def wrap_coroutine(self, owner: Any, name: str, stage: str) -> None:
        """Time the steps of a coroutine, not its waiting."""
        function = getattr(owner, name)

        async def timed(*args: Any, **kwargs: Any) -> Any:
            return await _Steps(function(*args, **kwargs), self, stage)

        setattr(owner, name, timed)

    def wrap_in_thread(self, owner: Any, name: str, cpu: str, wall: str | None = None) -> None:
        """Time a method of the one thread that calls it."""
        function, total_s = getattr(owner, name), self.total_s

        def timed(*args: Any, **kwargs: Any) -> Any:
            started_s, started_cpu_s = time.perf_counter(), time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                total_s[cpu] += time.thread_time() - started_cpu_s
                if wall is not None:
                    total_s[wall] += time.perf_counter() - started_s

        setattr(owner, name, timed)

    def wrap_handler(self, runner: Any) -> None:
        """Time whole-batch handlers always, others in some runs: the rest keeps its speed."""
        run_each, run_batch = runner._run_each, runner._run_batch
        clock, seen_s = time.thread_time, self._seen_s
        runs = 0

        def sampled(self_: Any, scope: Any, place: Any, keys: Any, *args: Any) -> None:
            nonlocal runs
            runs += 1
            if runs % HANDLER_SAMPLE:
                run_each(self_, scope, place, keys, *args)
                return
            function = place.function
            handler = function.handler
            spent_s = 0.0

            def timed(context: Any, message: Any) -> Any:
                nonlocal spent_s
                started_s = clock()
                value = handler(context, message)
                spent_s += clock() - started_s
                return value

            function.handler = timed
            try:
                run_each(self_, scope, place, keys, *args)
            finally:
                function.handler = handler
            count = len(keys)
            self.handler_sampled += count
            self.handler_sampled_s += spent_s - count * seen_s
            # About as much as a full stopwatch.
            taken_s = count * (seen_s + self._unseen_s)
            self.total_s["run"] -= taken_s
            self.total_s["stopwatches"] += taken_s

        def whole(self_: Any, scope: Any, place: Any, keys: Any, *args: Any) -> None:
            function = place.function
            handler = function.handler
            function.handler = self.timed(handler, "handler")
            try:
                run_batch(self_, scope, place, keys, *args)
            finally:
                function.handler = handler

        runner._run_each, runner._run_batch = sampled, whole


def _calls_s(function: Callable[[object, object], object]) -> float:
    """Return the time of one call, from many."""
    started_s = time.thread_time()
    for _ in range(CALIBRATION_CALLS):
        function(None, None)
    return (time.thread_time() - started_s) / CALIBRATION_CALLS


class _Steps:
    """Awaits a coroutine with a stopwatch round each of its steps."""

    def __init__(self, coroutine: Any, watches: Stopwatches, stage: str) -> None:
        self._coroutine = coroutine
        self._send = watches.timed(coroutine.send, stage)
        self._throw = watches.timed(coroutine.throw, stage)

    def __await__(self) -> Generator[Any, Any, Any]:
        step, argument = self._send, None
        while True:
            try:
                awaited = step(argument)
            except StopIteration as stop:
                return stop.value
            try:
                step, argument = self._send, (yield awaited)
            except BaseException as error:
                step, argument = self._throw, error


def put_stopwatches() -> Stopwatches:
    """Wrap the functions on the way of a message, before any worker is made."""
    from sublet.runtime.execution import async_runner, sync_runner
    from sublet.runtime.execution.state_cache import StateCache
    from sublet.runtime.hosting import group_commit
    from sublet.runtime.hosting import partition_host as host
    from sublet.runtime.hosting.peer_outbound import PeerOutbound
    from sublet.runtime.hosting.router import Router
    from sublet.runtime.hosting.turns import Turns
    from sublet.runtime.links import lifecycle, raw_lane
    from sublet.runtime.partition.features.delivery import Delivery
    from sublet.runtime.partition.partition import Partition
    from sublet.runtime.partition.records.commit_encoder import CommitEncoder
    from sublet.statestore.memory import MemoryStore
    from sublet.statestore.sqlite.store import SqliteStore
    from sublet.statestore.sqlite.writer import Writer

    watches = Stopwatches()
    _watch_waits(watches, host.Host, group_commit.GroupCommitter)
    by_stage: dict[str, list[tuple[Any, tuple[str, ...]]]] = {
        "receive": [
            (raw_lane.LaneCarrier, ("data_received",)),
            (lifecycle.FrameLink, ("bytes_received",)),
        ],
        "decode": [
            (lifecycle, ("decode_frame",)),
            (sync_runner, ("decode_messages",)),
            (async_runner, ("decode_messages",)),
        ],
        "route": [(Router, ("frame_received", "deliver", "acknowledge"))],
        "partition": [
            (Partition, ("batch_arrived", "finished", "committed", "woken", "loaded")),
            (Delivery, ("acknowledged",)),
        ],
        "host": [
            (host.Host, ("_apply_effects", "_run_here", "_commit_ended")),
            (Turns, ("frame_arrived", "_turn")),
        ],
        "state": [
            (StateCache, ("missing", "insert", "changed", "over_bound", "shrink")),
            (sync_runner.ExecutionEnv, ("drain",)),
        ],
        "run": [(sync_runner.SyncRunner, ("run",))],
        "encode": [(CommitEncoder, ("contribute",))],
        "send": [(PeerOutbound, ("offer", "acknowledge", "acknowledged", "_flush"))],
    }
    for stage, owners in by_stage.items():
        for owner, names in owners:
            for name in names:
                watches.wrap(owner, name, stage)
    watches.wrap_handler(sync_runner.SyncRunner)
    for store in (MemoryStore, SqliteStore):
        watches.wrap_coroutine(store, "commit", "commit")
        watches.wrap_coroutine(store, "load", "state")
    watches.wrap_coroutine(group_commit.GroupCommitter, "run", "commit")
    watches.wrap(MemoryStore, "commit_at_once", "commit")
    watches.wrap_in_thread(Writer, "_commit", "writer commit CPU", "writer commit wall")
    watches.wrap_in_thread(Writer, "_work_in_background", "writer fold CPU")
    return watches


def _watch_waits(watches: Stopwatches, host: Any, committer: Any) -> None:
    run_here, commit_ended, add = host._run_here, host._commit_ended, committer.add
    total_s, clock = watches.total_s, time.perf_counter
    added_s: dict[int, float] = {}

    def timed_run(self: Any, hosted: Any, work: Any) -> None:
        now_ms = time.monotonic() * 1000
        for chunk, start, stop in work.spans:
            total_s["queue wait"] += (now_ms - chunk.arrived_ms) / 1000 * (stop - start)
        run_here(self, hosted, work)

    def timed_add(self: Any, commit: Any) -> None:
        added_s[id(commit)] = clock()
        add(self, commit)

    def timed_end(self: Any, commit: Any, outcome: Any) -> None:
        waited_s = clock() - added_s.pop(id(commit))
        total_s["commit wait"] += waited_s * sum(entry.length for entry in commit.outbox)
        commit_ended(self, commit, outcome)

    host._run_here, host._commit_ended, committer.add = timed_run, timed_end, timed_add


def say(worker: Worker, watches: Stopwatches) -> None:
    counters = counters_of(worker)
    spoken = {
        "address": worker.address,
        "total_s": watches.total_s,
        "handler_sampled": watches.handler_sampled,
        "handler_sampled_s": watches.handler_sampled_s,
        "loop_cpu_s": time.thread_time(),
        "process_cpu_s": time.process_time(),
        "messages": counters.get("consumed", 0),
        "runs": counters.get("runs", 0),
        "frames": counters["frames_in"],
        "commits": counters["commits"],
        "groups": counters["commit_groups"],
    }
    print(json.dumps(spoken), flush=True)


async def serve(watches: Stopwatches) -> None:
    """Be a worker; print all sums when ready, and whenever SIGUSR1 comes."""
    set_up_logging("warning", "console", colors=False, pid=os.getpid())
    worker = Worker({each.name: each for each in app.functions.values()}, read_config(os.environ))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.stop)
    loop.add_signal_handler(signal.SIGUSR1, say, worker, watches)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        await worker.ready.wait()
        say(worker, watches)


# The driver


@dataclass(frozen=True, slots=True)
class Sums:
    """All that a worker has added up since it was started."""

    address: str
    total_s: dict[str, float]
    handler_sampled: int
    handler_sampled_s: float
    loop_cpu_s: float
    process_cpu_s: float
    messages: float
    runs: float
    frames: float
    commits: float
    groups: float


def difference(before: Sums, after: Sums) -> dict[str, float]:
    """Return microseconds a message by stage, and what else describes the time in between."""
    messages = after.messages - before.messages
    per_message = 1e6 / messages
    figures = {
        name: (after.total_s[name] - before.total_s[name]) * per_message for name in after.total_s
    }
    sampled = after.handler_sampled - before.handler_sampled
    if sampled:
        spent_s = after.handler_sampled_s - before.handler_sampled_s
        figures["handler"] = spent_s / sampled * 1e6
        figures["run"] -= figures["handler"]
    figures["loop CPU"] = (after.loop_cpu_s - before.loop_cpu_s) * per_message
    figures["process CPU"] = (after.process_cpu_s - before.process_cpu_s) * per_message
    accounted = sum(figures[stage] for stage in STAGES)
    figures["not accounted for"] = figures["loop CPU"] - accounted - figures["stopwatches"]
    figures["messages a run"] = messages / max(1.0, after.runs - before.runs)
    figures["messages a frame"] = messages / max(1.0, after.frames - before.frames)
    figures["messages a commit"] = messages / max(1.0, after.commits - before.commits)
    figures["commits a group"] = (after.commits - before.commits) / max(
        1.0, after.groups - before.groups
    )
    return figures


class Probe:
    """A worker process that can be asked for its sums."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.first = self._read()

    def _read(self) -> Sums:
        line = self._child.read_line(WAIT_S)
        if line is None:
            raise RuntimeError("the worker has ended")
        return Sums(**json.loads(line))

    async def sums(self) -> Sums:
        os.kill(self._child.pid, signal.SIGUSR1)
        return await asyncio.to_thread(self._read)


async def saturate(client: Client, function: str, seconds: float) -> float:
    """Return messages answered a second, with a few very large batches always in flight."""
    keys = zipf_keys()
    ones = [1] * BATCH_SIZE
    done = 0
    started_s = time.perf_counter()

    async def feed(position: int) -> None:
        nonlocal done
        while time.perf_counter() < started_s + seconds:
            position = (position + BATCH_SIZE) % (len(keys) - BATCH_SIZE)
            batch = keys[position : position + BATCH_SIZE]
            replies = await client.call_many(function, batch, ones)
            done += len(replies)

    async with asyncio.TaskGroup() as feeders:
        for feeder in range(BATCHES_IN_FLIGHT):
            feeders.create_task(feed(feeder * CALLER_STRIDE))
    return done / (time.perf_counter() - started_s)


async def _saturate_each(client: Client, seconds: float) -> dict[str, float]:
    return {MESSAGES: await saturate(client, "bench/each", seconds)}


async def _saturate_batch(client: Client, seconds: float) -> dict[str, float]:
    return {MESSAGES: await saturate(client, "bench/batch", seconds)}


async def _call(client: Client, seconds: float) -> dict[str, float]:
    return await call(client, "bench/each", CALLER_COUNT, seconds)


WORKLOADS: dict[str, Callable[[Client, float], Awaitable[dict[str, float]]]] = {
    "A each": _saturate_each,
    "A batch": _saturate_batch,
    f"B c={CALLER_COUNT}": _call,
}
STORE_NAMES = ("mem", "sqlite")


async def measure_worker(
    store: str, seconds: float, *, watched: bool
) -> dict[str, dict[str, float]]:
    """Run all workloads on one worker; return figures by case."""
    command = [sys.executable, "-m", "benchmarks.components.stages", "--worker"]
    if watched:
        command.append("--watched")
    measured = {}
    with machine.data_directory() as directory:
        environment = {**STORES[store], "SUBLET_DATA_DIR": directory}
        with Child(command, environment=environment) as child:
            probe = await asyncio.to_thread(Probe, child)
            async with Client(probe.first.address) as client:
                for workload, run in WORKLOADS.items():
                    await run(client, seconds / 4)
                    before = await probe.sums()
                    started_cpu_s = time.process_time()
                    figures = await run(client, seconds)
                    client_cpu_s = time.process_time() - started_cpu_s
                    after = await probe.sums()
                    figures |= difference(before, after)
                    figures["client CPU"] = client_cpu_s * 1e6 / (after.messages - before.messages)
                    measured[_case(workload, store)] = figures
    return measured


def _case(workload: str, store: str) -> str:
    name, _, rest = workload.partition(" ")
    return f"{name} {store} {rest}"


def measure(seconds: float, rounds: int) -> list[CaseResult]:
    """Return the medians of each case, with and without stopwatches in turn."""
    found: dict[tuple[str, bool], list[dict[str, float]]] = {}
    for _ in range(rounds):
        for store in STORE_NAMES:
            for watched in (False, True):
                measured = uvloop.run(measure_worker(store, seconds, watched=watched))
                for case, figures in measured.items():
                    found.setdefault((case, watched), []).append(figures)
    results = []
    for case, watched in found:
        if not watched:
            continue
        figures, bare = _medians(found[case, True]), _medians(found[case, False])
        rate = MESSAGES if MESSAGES in figures else CALLS
        figures[f"{rate} without stopwatches"] = bare[rate]
        figures["loop CPU without stopwatches"] = bare["loop CPU"]
        results.append(
            CaseResult(
                system=OUR_SYSTEM,
                case=case,
                figures={name: round(value, 4) for name, value in figures.items()},
                machine=machine.describe(),
                round=rounds,
            )
        )
    return results


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


def show(results: list[CaseResult]) -> None:
    console = Console(width=max(Console().width, 120))
    by_case = {each.case: each.figures for each in results}
    for workload in WORKLOADS:
        cases = [by_case[_case(workload, store)] for store in STORE_NAMES]
        rows = []
        for row in (*STAGES, "not accounted for", "stopwatches", "loop CPU"):
            cells = [row, MEANING.get(row, "")]
            for figures in cases:
                cells.append(f"{figures[row]:.3f}")
                cells.append(f"{figures[row] * figures['messages a run']:.1f}")
                own_cpu = figures["loop CPU"] - figures["stopwatches"]
                is_own = row not in ("stopwatches", "loop CPU")
                cells.append(f"{figures[row] / own_cpu:.0%}" if is_own else "")
            rows.append(cells)
        for row in (*THREADS, *PROCESSES, *WAITS):
            cells = [row, "time of waiting, not of work" if row in WAITS else ""]
            for figures in cases:
                per_run = f"{figures[row] * figures['messages a run']:.1f}"
                cells += [f"{figures[row]:.3f}", "" if row in WAITS else per_run, ""]
            rows.append(cells)
        headings = ["stage", "what"]
        for store in STORE_NAMES:
            headings += [f"{store}: us/message", "us/batch", "share"]
        print_grid(console, Grid(workload, headings, rows, word_columns=2))
        for store, figures in zip(STORE_NAMES, cases, strict=True):
            rate = MESSAGES if MESSAGES in figures else CALLS
            bare = figures[f"{rate} without stopwatches"]
            bare_cpu = figures["loop CPU without stopwatches"]
            console.print(
                f"{store}: {bare:,.0f}/s ({figures[rate]:,.0f}/s with stopwatches, which make the "
                f"loop's CPU {figures['loop CPU'] / bare_cpu - 1:+.0%}); messages a run "
                f"{figures['messages a run']:.1f}, a frame {figures['messages a frame']:.1f}, a "
                f"commit {figures['messages a commit']:.1f}; commits a group "
                f"{figures['commits a group']:.1f}"
            )
        console.print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round; keeps nothing")
    parser.add_argument("--json", action="store_true", help="print JSON lines, keep nothing")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--watched", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        watches = put_stopwatches() if options.watched else Stopwatches()
        uvloop.run(serve(watches))
        return
    durations = QUICK if options.quick else FULL
    results = measure(durations.saturate_s, 1 if options.quick else ROUNDS)
    if options.json:
        for each in results:
            print(each.to_json())
        return
    show(results)
    if not options.quick:
        write_results(results, RESULTS)
        print(f"kept in {RESULTS.relative_to(machine.ROOT)}")


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    main()
