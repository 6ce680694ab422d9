"""The Spark bridge beside what Spark itself offers: a keyed count of 10,000 keys, in one run.

    .venv/bin/python -m benchmarks.spark [--quick] [--rounds 2] [--only throughput latency]

Everything is real: Spark (`local[2]`, except where masters are compared) with a checkpoint on disk,
two workers of Sublet, SQLite or Redis where they are named. Systems run in turn, in one JVM.

throughput   files, as fast as they go: rows/s until the last result is visible. The first two
             batches are not timed. Spark's operators give each key's count once a batch to Spark's
             no-op sink; Sublet's counts are in states that anyone can ask for, `told` also in
             an egress. The sum of all counts is checked.
latency      keys on a socket, at a fixed rate: from when an event was due until a reader has its
             count. Of Spark's operators, the driver, which collects each batch; of Sublet, a client
             that reads the egress. "Spark alone" collects rows that nobody has counted.
partitions, width, batches, masters
             how the bridge grows with Sublet's partitions, the width of rows, the rows of a batch,
             and Spark's executors.
clustering   whole batches for each of 64 partitions: rows as they come, or brought to the tasks of
             their partitions first, by the sink or in foreachBatch; what Spark hands over collected
             or sent one by one.

A whole run is kept in results/spark.jsonl (every round), .md and .svg; any other in results/local/.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from benchmarks.harness import machine
from benchmarks.harness.processes import exit_on_terminate
from benchmarks.harness.report import CaseResult, write_results
from benchmarks.harness.sublet_cases import Cluster
from benchmarks.harness.tables import print_grid, wide_console
from benchmarks.spark.cases import PARTS, ROUNDS_MAX, TASKS, Case, all_cases, rounds_of
from benchmarks.spark.input import InputFiles
from benchmarks.spark.operators import OPERATORS
from benchmarks.spark.report import draw, grids, write_page
from benchmarks.spark.streams import (
    Bridge,
    Dropping,
    MiscountedError,
    Operator,
    Streams,
    Work,
    open_session,
)
from sublet import BlockingClient, SubletError


@dataclass(frozen=True, kw_only=True)
class Durations:
    files_s: float
    paced_s: float
    warm_up_s: float


FULL = Durations(files_s=3.0, paced_s=7.0, warm_up_s=1.5)
QUICK = Durations(files_s=1.0, paced_s=3.0, warm_up_s=1.0)


FAILURES = (TimeoutError, SubletError, RuntimeError, PySparkException, MiscountedError)
"""Of one case, after which the others still run."""
ARROW_ROWS_OPTION = "spark.sql.execution.arrow.maxRecordsPerBatch"


class Clusters:
    """Clusters of Sublet, each started when it is first needed and kept until the end."""

    def __init__(self, stack: ExitStack, worker_count: int) -> None:
        self._stack = stack
        self._worker_count = worker_count
        self._started: dict[tuple[str, str], tuple[list[str], BlockingClient]] = {}

    def work(self, case: Case) -> Work:
        place = (case.app, case.store)
        if place not in self._started:
            target = f"benchmarks.spark.app:{case.app}"
            cluster = Cluster(case.store, self._worker_count, target=target)
            self._stack.callback(cluster.close)
            addresses = asyncio.run(cluster.addresses())
            client = self._stack.enter_context(BlockingClient(addresses))
            self._started[place] = addresses, client
        addresses, client = self._started[place]
        app = "bench" if case.app == "app" else "grown"
        return Bridge(
            addresses=addresses,
            client=client,
            function=f"{app}/{case.work}",
            payload=case.payload,
            clustered_tasks=TASKS if case.clustered else 0,
            is_each_batch=case.is_each_batch,
            options=case.options,
        )


class Benchmark:
    """Runs cases one after another and keeps what they reached."""

    def __init__(self, stack: ExitStack, folder: Path, options: argparse.Namespace) -> None:
        self._clusters = Clusters(stack, options.workers)
        self._durations = QUICK if options.quick else FULL
        self._folder = folder
        self._files = InputFiles(folder / "input", TASKS)
        self._stack = stack
        self._master = ""
        self._spark: SparkSession
        self.results: list[CaseResult] = []

    def _session(self, master: str) -> None:
        if master == self._master:
            return
        if self._master:
            self._spark.stop()
        self._spark = open_session(master, self._folder, TASKS)
        if not self._master:
            self._stack.callback(lambda: self._spark.stop())
        self._master = master
        self._streams = Streams(self._spark, self._folder, self._files)

    def run(self, case: Case, round_number: int) -> None:
        self._session(case.master)
        try:
            figures, error = self._measure(case), None
        except FAILURES as failure:
            figures, error = {}, f"{type(failure).__name__}: {failure}"[:300]
        self.results.append(
            CaseResult(
                system=case.system,
                case=case.name,
                figures={name: round(value, 4) for name, value in figures.items()},
                machine=machine.describe(),
                error=error,
                round=round_number,
            )
        )
        shown = ("rows_per_s", "p50_ms", "p99_ms", "batch_ms", "sink_ms")
        text = "  ".join(f"{name} {figures[name]:,.4g}" for name in shown if name in figures)
        print(f"{case.system:6} {case.name:46} {error or text}", flush=True)

    def _measure(self, case: Case) -> dict[str, float]:
        work: Work
        if case.store:
            work = self._clusters.work(case)
        elif case.work in OPERATORS:
            work = Operator(case.work)
        else:
            work = Dropping(case.work)
        self._spark.conf.set(ARROW_ROWS_OPTION, case.arrow_rows)
        durations = self._durations
        if case.rate_per_s:
            return self._streams.paced(
                work,
                rate_per_s=case.rate_per_s,
                seconds=durations.paced_s,
                warm_up_s=durations.warm_up_s,
            )
        return self._streams.files(
            work,
            batch_rows=case.batch_rows,
            batches=case.batches(durations.files_s),
            shape=case.shape,
        )


def measure(options: argparse.Namespace) -> list[CaseResult]:
    chosen = [each for each in all_cases(options.quick) if each.part in options.only]
    chosen = [each for each in chosen if any(word in each.name for word in options.cases)]
    planned = rounds_of(chosen, options.rounds)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(machine.data_directory()))
        (folder / "input").mkdir()
        benchmark = Benchmark(stack, folder, options)
        started_s = time.monotonic()
        for place, (number, case) in enumerate(planned, 1):
            elapsed_s = time.monotonic() - started_s
            if number > 1 and elapsed_s > options.minutes * 60:
                print(f"left out: {len(planned) - place + 1} more cases", file=sys.stderr)
                break
            progress = f"[{place}/{len(planned)}, {elapsed_s:.0f} s] round {number}: {case.name}"
            print(progress, file=sys.stderr, flush=True)
            benchmark.run(case, number)
        return benchmark.results


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short cases: to try it, not to cite")
    parser.add_argument("--rounds", type=int, default=None, help="default: 2; with --quick: 1")
    parser.add_argument(
        "--minutes", type=float, default=13.0, help="after which no further round is begun"
    )
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--cases", nargs="+", default=[""], help="cases whose name has this in it")
    parser.add_argument("--workers", type=int, default=2, help="of Sublet")
    options = parser.parse_args(arguments)
    if options.rounds is None:
        options.rounds = 1 if options.quick else 2
    if not 1 <= options.rounds <= ROUNDS_MAX:
        parser.error(f"--rounds is {options.rounds}; allowed: 1..{ROUNDS_MAX}")
    return options


def main() -> None:
    options = parse(sys.argv[1:])
    exit_on_terminate()
    results = measure(options)
    console = wide_console()
    found = grids(results)
    for grid in found:
        print_grid(console, grid)
    is_whole = not options.quick and set(options.only) == set(PARTS) and options.cases == [""]
    directory = machine.RESULTS if is_whole else machine.LOCAL_RESULTS
    write_results(results, directory / "spark.jsonl")
    write_page(directory / "spark.md", results, found, options.rounds)
    draw(results, directory / "spark.svg")
    print(f"kept in {directory.relative_to(machine.ROOT)}/spark.*")


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    main()
