"""ScalaSSC's experiments on Sublet: what batches, parallelism, grouping and state beside the code
do for Word Count, Spike Detection and Machine Outlier.

    .venv/bin/python -m benchmarks.scalassc [--quick] [--rounds 2] [--only batch remote]

The applications are those of examples/; everything is real: worker processes, a client process
(this one), and for the comparison a Redis server. State is in memory (`--store sqlite` for the
default store), as in the systems of the paper.

What "batch size B" limits, everywhere at once, so that 1 means one: a client's request (and each
has a frame of its own), the messages of one run of user code (`batch_size_max`), and those of one
commit of a partition (`commit_messages_max`). What it does not limit: replies to the client, of
which those of one turn share a frame, and what a run sends, which arrives as one. The runtime still
ends a run after its quantum; "a run" says what came of it. "adaptive" limits nothing: the runtime
decides; its client sends 500 at a time. Functions have one partition, on one worker, except where
parallelism is measured.

At low load items leave when they are due. There "batch=B wait=20ms" is the function's own choice,
as the paper's B and W: it runs when B messages wait, or after 20 ms; "at once" never waits.

A whole run is kept in results/scalassc.jsonl (every round), .md (tables, and the paper's figures
beside ours), .svg and .png; any other in results/local/.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass
from statistics import median

import uvloop
from rich.console import Console

from benchmarks.harness import machine
from benchmarks.harness.processes import exit_on_terminate
from benchmarks.harness.redis_server import RedisMissingError, RedisServer
from benchmarks.harness.report import CaseResult, write_results
from benchmarks.harness.sublet_cases import STORES, Cluster
from benchmarks.harness.workload import ArrivalSchedule
from benchmarks.scalassc.apps import BATCH_WAIT
from benchmarks.scalassc.load import (
    Application,
    Feed,
    Looks,
    applications,
    pace,
    paced_figures,
    start_soon,
)
from benchmarks.scalassc.report import (
    Figures,
    draw,
    paper_grid,
    print_grids,
    result_grids,
    write_page,
)
from sublet import Client, SubletError
from sublet.runtime.links.grpc_link import UnaryClient

SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500)
QUICK_SIZES = (1, 20, 500)
PARALLELISM = (2, 3)
"""Beside 1, which is the adaptive case."""
GROUPING_FORMS = {"single": "none", "keyed": "off", "grouped": "on"}
"""One message a call; one key's messages of a run a call; the same, and runs are of few keys."""
GROUPED_SIZE = 30
"""The batch size at which the paper measures grouping."""
WAITED_SIZES = (1, 20, 100, 500)
REQUEST_SIZE_FREE = 500
"""Items in a request of a client that is not limited."""
LOW_LOAD = 0.1
"""Of what the adaptive setup reached at saturation."""
PARTS = ("batch", "parallel", "grouping", "remote", "low")
REDIS_URL = "SCALASSC_REDIS_URL"
ROUNDS_MAX = 20
"""More would take more than an hour."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A cluster to start, and what is measured on it."""

    part: str
    case: str
    target: str
    batch_size: int | None = None
    """None: the runtime decides."""
    workers: int = 1
    needs_redis: bool = False

    def settings(self, redis_url: str) -> dict[str, str]:
        settings = {REDIS_URL: redis_url} if self.needs_redis else {}
        if self.batch_size is not None and self.part != "low":
            settings["SUBLET_BATCH_SIZE_MAX"] = str(self.batch_size)
            settings["SUBLET_COMMIT_MESSAGES_MAX"] = str(self.batch_size)
        return settings

    @property
    def request_size(self) -> int:
        return self.batch_size or REQUEST_SIZE_FREE


APPS = "benchmarks.scalassc.apps"
REMOTE = "benchmarks.scalassc.remote"
REMOTE_SIZES: dict[str, tuple[int | None, ...]] = {"each": (1, None), "batch": (20, None)}
"""20 is the paper's default."""


def setups(sizes: Sequence[int]) -> Iterator[Setup]:
    """Yield what is measured at saturation, in the order of the tables."""
    own = f"{APPS}:own_1"
    adaptive = Setup(part="batch", case="adaptive", target=own)
    for place, size in enumerate(sizes):
        if place == len(sizes) // 2:
            # Twice in a round: all else is compared with it.
            yield adaptive
        yield Setup(part="batch", case=f"batch={size}", target=own, batch_size=size)
    yield adaptive
    for count in PARALLELISM:
        target = f"{APPS}:own_{count}"
        yield Setup(part="parallel", case=f"parallel={count}", target=target, workers=count)
    for form, word in GROUPING_FORMS.items():
        target = f"{APPS}:{form}_1"
        case = f"grouping={word}"
        yield Setup(
            part="grouping",
            case=f"{case} batch={GROUPED_SIZE}",
            target=target,
            batch_size=GROUPED_SIZE,
        )
        yield Setup(part="grouping", case=f"{case} adaptive", target=target)
    for form, sizes_there in REMOTE_SIZES.items():
        for size_there in sizes_there:
            size_word = "adaptive" if size_there is None else f"batch={size_there}"
            yield Setup(
                part="remote",
                case=f"remote {form} {size_word}",
                target=f"{REMOTE}:{form}_1",
                batch_size=size_there,
                needs_redis=True,
            )


def low_setups(sizes: Sequence[int]) -> Iterator[Setup]:
    """Yield what is measured at low load."""
    for size in WAITED_SIZES:
        if size in sizes:
            case = f"low batch={size}" + (f" wait={BATCH_WAIT}" if size > 1 else "")
            yield Setup(part="low", case=case, target=f"{APPS}:timed_{size}", batch_size=size)
    yield Setup(part="low", case="low at once", target=f"{APPS}:timed_at_once")
    yield Setup(part="low", case="low adaptive", target=f"{APPS}:timed_adaptive")


@dataclass(frozen=True)
class Durations:
    saturate_s: float
    paced_s: float
    warm_up_s: float


FULL = Durations(saturate_s=1.2, paced_s=4.5, warm_up_s=1.0)
QUICK = Durations(saturate_s=0.4, paced_s=1.5, warm_up_s=0.5)


class Benchmark:
    """Runs setups one after another and keeps what they reached."""

    def __init__(self, options: argparse.Namespace, redis: RedisServer | None) -> None:
        self._options = options
        self._redis = redis
        self._durations = QUICK if options.quick else FULL
        self._apps = [each for each in applications() if each.name in options.apps]
        self.results: list[CaseResult] = []

    def run(self, setup: Setup, round_number: int) -> None:
        """Start the setup's cluster and measure all applications on it."""
        if self._redis is not None:
            self._redis.clear()
        cluster = Cluster(
            self._options.store,
            setup.workers,
            target=setup.target,
            settings=setup.settings(self._redis.url if self._redis else ""),
        )
        try:
            for app in self._apps:
                case = f"{app.name} {setup.case}"
                try:
                    figures = uvloop.run(self._measure(cluster, setup, app))
                    error = None
                except (TimeoutError, SubletError, ExceptionGroup) as failure:
                    figures, error = {}, f"{type(failure).__name__}: {failure}"
                self._keep(case, figures, error, round_number)
        finally:
            cluster.close()

    def _keep(
        self, case: str, figures: dict[str, float], error: str | None, round_number: int
    ) -> None:
        result = CaseResult(
            system="sublet",
            case=case,
            figures={name: round(value, 4) for name, value in figures.items()},
            machine=machine.describe(),
            error=error,
            round=round_number,
        )
        self.results.append(result)
        shown = ("tuples_per_s", "messages_per_run", "p50_ms", "p99_ms", "worker_cores")
        text = "  ".join(f"{name} {figures[name]:,.4g}" for name in shown if name in figures)
        print(f"{case:36} {error or text}", flush=True)

    async def _measure(self, cluster: Cluster, setup: Setup, app: Application) -> dict[str, float]:
        addresses = await cluster.addresses()
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(Client(addresses))
            if setup.part == "low":
                return await self._measure_low(client, setup, app)
            workers = [
                await stack.enter_async_context(UnaryClient(address)) for address in addresses
            ]
            pids = [worker.pid for worker in cluster.workers]
            feed = Feed(app, client, Looks(workers), pids, setup.request_size)
            return await feed.saturate(self._durations.saturate_s)

    async def _measure_low(
        self, client: Client, setup: Setup, app: Application
    ) -> dict[str, float]:
        durations = self._durations
        rate_per_s = self._low_rate_per_s(app)
        schedule = ArrivalSchedule.lasting(
            durations.paced_s, rate_per_s=rate_per_s, start_s=start_soon()
        )
        await pace(app, client, schedule, setup.request_size)
        figures = await paced_figures(app, client, schedule, durations.warm_up_s)
        return {"items_per_s": rate_per_s, **figures}

    def _low_rate_per_s(self, app: Application) -> float:
        reached = [
            each.figures["items_per_s"]
            for each in self.results
            if each.case == f"{app.name} adaptive" and each.figures
        ]
        return LOW_LOAD * median(reached)


def wanted_setups(options: argparse.Namespace) -> list[Setup]:
    sizes = QUICK_SIZES if options.quick else SIZES
    # What ratios are over: the whole of it is measured in one run.
    baselines = {"adaptive"} | ({"batch=1"} if "remote" in options.only else set())
    return [each for each in setups(sizes) if each.part in options.only or each.case in baselines]


def measure(options: argparse.Namespace) -> list[CaseResult]:
    chosen = wanted_setups(options)
    lows = [*low_setups(QUICK_SIZES if options.quick else SIZES)] if "low" in options.only else []
    needs_redis = any(each.needs_redis for each in chosen)
    with RedisServer() if needs_redis else nullcontext() as redis:
        benchmark = Benchmark(options, redis)
        count = options.rounds * len(chosen) + len(lows)
        done, started_s = 0, time.monotonic()

        def show(setup: Setup, round_number: int) -> None:
            elapsed_s = time.monotonic() - started_s
            print(
                f"[{done + 1}/{count}, {elapsed_s:.0f} s] round {round_number}: {setup.case}",
                file=sys.stderr,
                flush=True,
            )

        for round_number in range(1, options.rounds + 1):
            # There and back: what grows slower or faster with time hits both ends alike.
            for setup in chosen if round_number % 2 else reversed(chosen):
                show(setup, round_number)
                benchmark.run(setup, round_number)
                done += 1
        for setup in lows:
            show(setup, 1)
            benchmark.run(setup, 1)
            done += 1
    return benchmark.results


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short cases: to try it, not to cite")
    parser.add_argument("--rounds", type=int, default=None, help="default: 2; with --quick: 1")
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--apps", nargs="+", default=["WC", "SD", "MO"], choices=["WC", "SD", "MO"])
    parser.add_argument("--store", default="mem", choices=STORES)
    options = parser.parse_args(arguments)
    if options.rounds is None:
        options.rounds = 1 if options.quick else 2
    if not 1 <= options.rounds <= ROUNDS_MAX:
        parser.error(f"--rounds is {options.rounds}; allowed: 1..{ROUNDS_MAX}")
    return options


def main() -> None:
    options = parse(sys.argv[1:])
    exit_on_terminate()
    try:
        results = measure(options)
    except RedisMissingError as error:
        sys.exit(f"{error}; or leave the comparison out: --only batch parallel grouping low")
    figures = Figures(results)
    grids = [*result_grids(figures), paper_grid(figures)]
    print_grids(Console(), grids)
    is_whole = not options.quick and set(options.only) == set(PARTS) and len(options.apps) == 3
    is_whole = is_whole and options.store == "mem"
    directory = machine.RESULTS if is_whole else machine.LOCAL_RESULTS
    write_results(results, directory / "scalassc.jsonl")
    write_page(directory / "scalassc.md", figures, grids, options.rounds)
    draw(figures, directory / "scalassc")
    print(f"kept in {directory.relative_to(machine.ROOT)}/scalassc.*")


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    main()
