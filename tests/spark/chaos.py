"""Kill drivers of a streaming query again and again, at every step of a batch, and count.

    python -m tests.spark.chaos --restarts 50 --seed 1

Spark is a standalone cluster with executors in processes of their own; Sublet three workers on a
Redis. Files come all the time, and a client sends to the same keys. Every driver is killed at a
step that a seeded schedule names; executors, workers of Sublet, Redis and streams break meanwhile.
At the end all sums are compared with what was written. Ends with 1 if anything is not exact.
Interrupted (Ctrl-C), it kills no more drivers, and counts.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import secrets
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyspark
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sublet import BlockingClient
from tests.integration.cluster import PROJECT
from tests.spark.cluster import Standalone, running_standalone
from tests.spark.driver_app import BATCH, DONE, DriverProcess, Drivers, Plan, write_file
from tests.spark.gates import ADDING, CUT, DECIDED, ENDED, SEALING, STAGED, STEPS, Gates
from tests.spark.spark_app import KEYS, ROWS_A_FILE_MAX, TALLY, Event, Row, events_of
from tests.spark.sublet_workers import Account, SubletWorkers, batches_logged, running_workers

FOLDER = PROJECT / "build" / "spark-chaos"
KEPT = PROJECT / "benchmarks" / "results" / "spark-chaos"
LOGGED = "logged"
"""The batch is in Spark's log of commits; the next may have begun."""
SUDDENLY = "suddenly"
"""At whatever it does after some moment."""
FILES_A_BATCH = 100
FILES_MAX = 20_000
LIVE_FILE = FILES_MAX
"""The number of the file that live rows would be in."""
WORKERS = 3
STANDALONE = "standalone"
SETTINGS = {"spark.cores.max": "2", "spark.executor.cores": "1"}
CUT_STEPS = (ADDING, ENDED, STAGED, DECIDED, SEALING)


class Restart(msgspec.Struct, kw_only=True):
    """How one driver ends, and what else breaks before."""

    step: str
    after_batches: int
    zombie: bool
    """Its Python goes on for a moment, while the next driver begins."""
    others: list[str]


class Result(msgspec.Struct, kw_only=True):
    seed: int
    restarts: int
    steps: dict[str, int]
    others: dict[str, int]
    seconds: float
    batches: int
    commits: int
    """Of the sink; more than batches, as some are done again."""
    commits_of_earlier: int
    """Which found that a driver that died had decided the batch with other rows."""
    files: int
    rows: int
    """Of Spark, each counted twice: under its own key, and under one drawn by chance."""
    rows_live: int
    restart_s_median: float
    """From the start of a query to its first batch that is done."""
    restart_s_max: float
    wrong: list[str]
    master: str = STANDALONE
    python: str = platform.python_version()
    spark: str = str(pyspark.__version__)


def schedule(seed: int, count: int) -> list[Restart]:
    """Return how drivers die: every step as often as the others, in an order by chance."""
    chance = random.Random(seed)
    steps: list[str] = []
    while len(steps) < count:
        steps += chance.sample((*STEPS, LOGGED, SUDDENLY), len(STEPS) + 2)
    return [
        Restart(
            step=step,
            after_batches=chance.choice([0, 0, 1, 2]),
            zombie=chance.random() < 0.5,
            others=[
                kind
                for kind, share in (
                    ("worker", 0.3),
                    ("redis", 0.1),
                    ("executor", 0.2),
                    ("cut", 0.3),
                )
                if chance.random() < share
            ],
        )
        for step in steps[:count]
    ]


class Load:
    """Files that come all the time, and a client that sends to the same keys."""

    def __init__(self, folder: Path, rows: int, every_s: float, client: BlockingClient) -> None:
        self.files = 0
        self.live: list[Event] = []
        self.problems: list[str] = []
        self._folder = folder
        self._rows = rows
        self._every_s = every_s
        self._client = client
        self._ended = threading.Event()

    @property
    def events(self) -> list[Event]:
        return [each for file in range(self.files) for each in events_of(file, self._rows)]

    def write_files(self) -> None:
        while not self._ended.wait(self._every_s) and self.files < FILES_MAX:
            write_file(self._folder, self.files, self._rows)
            self.files += 1

    def send(self) -> None:
        chance = random.Random(self._rows)
        while not self._ended.wait(self._every_s / 4):
            number = LIVE_FILE * ROWS_A_FILE_MAX + len(self.live)
            event = Event(chance.choice(KEYS), chance.randint(1, 1_000), number)
            try:
                self._client.send(TALLY, event.key, Row(event.amount, event.number))
            except Exception as error:
                self.problems.append(f"a live row was not taken: {error!r}")
                return
            self.live.append(event)

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=each) for each in (self.write_files, self.send)]
        for each in threads:
            each.start()
        try:
            yield
        finally:
            self.end()
            for each in threads:
                each.join()

    def end(self) -> None:
        self._ended.set()


class Campaign:
    def __init__(
        self,
        folder: Path,
        gates: Gates,
        standalone: Standalone | None,
        workers: SubletWorkers,
        seed: int,
    ) -> None:
        self.others: Counter[str] = Counter()
        self.first_batch_s: list[float] = []
        self._gates = gates
        self._standalone = standalone
        self._workers = workers
        self._chance = random.Random(seed)
        self._folder = folder

    def end_of(self, drivers: Drivers, restart: Restart) -> None:
        """Let the next driver run until its end is due."""
        at_once = restart.step in STEPS and not restart.after_batches
        if at_once or restart.step == STEPS[0]:
            self._gates.arm(restart.step)
        driver = drivers.follow()
        started_s = time.monotonic()
        if restart.step == STEPS[0]:
            stopped = self._gates.stopped(restart.step, driver.is_running)
        else:
            for kind in restart.others:
                self._break(kind)
            if at_once:
                stopped = self._gates.stopped(restart.step, driver.is_running)
            else:
                driver.wait(BATCH, max(1, restart.after_batches))
                self.first_batch_s.append(time.monotonic() - started_s)
                if restart.step not in STEPS:
                    if restart.step == SUDDENLY:
                        time.sleep(self._chance.uniform(0.0, 1.5))
                    driver.kill()
                    return
                self._gates.arm(restart.step)
                stopped = self._gates.stopped(restart.step, driver.is_running)
        driver.kill()
        if restart.zombie:
            stopped.release()
        else:
            stopped.kill()

    def _break(self, kind: str) -> None:
        if kind == "executor" and self._standalone is None:
            return  # In local mode the driver is the only one.
        self.others[kind] += 1
        if kind == "worker":
            place = self._chance.randrange(WORKERS)
            self._workers.kill(place)
            self._workers.start_again(place)
        elif kind == "redis":
            self._workers.restart_redis()
        elif kind == "executor":
            assert self._standalone is not None
            for each in self._standalone.executors()[:1]:
                self._standalone.kill_executor(each)
        else:
            self._gates.arm(CUT + self._chance.choice(CUT_STEPS))


def play(options: argparse.Namespace, console: Console) -> Result:
    folder = options.folder / str(options.seed)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    console.print(f"seed {options.seed}, logs in {folder}", highlight=False, soft_wrap=True)
    restarts = schedule(options.seed, options.restarts)
    gates, checkpoint = Gates(folder / "gates"), folder / "checkpoint"
    started_s = time.monotonic()
    is_over = threading.Event()
    with ExitStack() as stack:
        standalone = None
        if options.master == STANDALONE:
            standalone = stack.enter_context(running_standalone(folder / "spark"))
        workers = stack.enter_context(running_workers(folder / "sublet", WORKERS))
        client = stack.enter_context(workers.client())
        account = Account(client)
        load = Load(folder / "files", options.rows, options.every_s, client)
        plan = Plan(
            files=str(folder / "files"),
            checkpoint=str(checkpoint),
            address=workers.address,
            gates=str(gates.folder),
            master=standalone.master if standalone else options.master,
            files_a_batch=FILES_A_BATCH,
            is_endless=True,
            settings=SETTINGS,
        )
        write_file(folder / "files", 0, options.rows)
        load.files = 1
        campaign = Campaign(folder, gates, standalone, workers, options.seed)
        drivers = Drivers(plan, folder)
        stack.callback(drivers.end)
        done: list[Restart] = []
        signal.signal(signal.SIGINT, lambda *_: is_over.set())
        with load.running():
            for restart in shown(restarts, campaign, load, checkpoint, console):
                campaign.end_of(drivers, restart)
                done.append(restart)
                if is_over.is_set():
                    break
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for step in (*STEPS, *(CUT + each for each in CUT_STEPS)):
            gates.disarm(step)
        console.print("the last driver reads what is left")
        drivers.end()
        last = DriverProcess(msgspec.structs.replace(plan, is_endless=False), folder / "last.log")
        stack.callback(last.kill)
        last.go()
        last.wait(DONE, wait_s=600.0)
        workers.ready()
        account.add(load.events).add(load.live)
        # Live rows have no row of a drawn key beside them.
        wrong = account.wrong(client, checkpoint, not_drawn=load.live)
    commits = commits_of(gates.folder)
    times_s = sorted(campaign.first_batch_s)
    return Result(
        seed=options.seed,
        restarts=len(done),
        master=options.master,
        steps=dict(Counter(each.step for each in done)),
        others=dict(campaign.others),
        seconds=time.monotonic() - started_s,
        batches=len(batches_logged(checkpoint)),
        commits=len(commits),
        commits_of_earlier=sum(not each["is_ours"] for each in commits),
        files=load.files,
        rows=2 * load.files * options.rows,
        rows_live=len(load.live),
        restart_s_median=times_s[len(times_s) // 2] if times_s else 0.0,
        restart_s_max=max(times_s, default=0.0),
        wrong=wrong + load.problems,
    )


def commits_of(folder: Path) -> list[dict[str, Any]]:
    path = folder / "commits.jsonl"
    return [json.loads(each) for each in path.read_text().splitlines()] if path.exists() else []


def shown(
    restarts: Sequence[Restart], campaign: Campaign, load: Load, checkpoint: Path, console: Console
) -> Iterator[Restart]:
    """Show how far it is: a bar in a terminal, else a line for each restart."""
    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, TextColumn("{task.description}"), console=console, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("starting", total=len(restarts))
        for number, restart in enumerate(restarts, start=1):
            batches = len(batches_logged(checkpoint))
            line = (
                f"driver dies: {restart.step} · {batches} batches · {load.files} files · "
                f"{len(load.live)} live rows · broken: {sum(campaign.others.values())}"
            )
            bar.update(task, description=line)
            if not console.is_terminal:
                text = f"{number}/{len(restarts)} {line}"
                console.print(text, markup=False, highlight=False, soft_wrap=True)
            yield restart
            bar.advance(task)


def facts(result: Result) -> Iterator[str]:
    steps = ", ".join(f"{count} {step}" for step, count in sorted(result.steps.items()))
    others = ", ".join(f"{count} {kind}" for kind, count in sorted(result.others.items()))
    yield (
        f"seed {result.seed}, {result.seconds / 60:.1f} minutes, {result.restarts} drivers killed "
        f"(kill -9, Java and Python): {steps}"
    )
    yield f"broken meanwhile: {others or 'nothing'}"
    yield (
        f"{result.rows:,} rows in {result.files:,} files and {result.batches:,} batches; "
        f"{result.rows_live:,} live rows of a client to the same keys"
    )
    yield (
        f"{result.commits:,} commits of the sink; {result.commits_of_earlier} found that an "
        "earlier driver had decided the batch with other rows, and finished that"
    )
    yield (
        f"from the start of a query until a batch was done: {result.restart_s_median:.1f} s "
        f"(median), {result.restart_s_max:.1f} s (the longest)"
    )
    yield f"Spark {result.spark} ({result.master}), Python {result.python}"


def markdown(result: Result) -> str:
    """Return the page that is kept beside the figures."""
    lines = [
        "# Drivers of Spark, killed",
        "",
        "A streaming query writes to Sublet while its drivers are killed at every step of a batch.",
        "Half of the rows get another key whenever a batch is done again. Made by",
        "`make spark-chaos`; see `tests/spark/chaos.py`.",
        "",
        *(f"- {line}" for line in facts(result)),
        "",
        "| step at which a driver was killed | times |",
        "|---|---|",
        *(f"| {step} | {result.steps.get(step, 0)} |" for step in (*STEPS, LOGGED, SUDDENLY)),
        "",
        "## Sums that are not exact",
        "",
        *([f"- {each}" for each in result.wrong] or ["None: every row has counted once."]),
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    # As an exception, so that all processes are ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    parser = argparse.ArgumentParser(prog="python -m tests.spark.chaos", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--restarts", type=int, default=50, help="drivers that are killed (50)")
    add("--seed", type=int, default=secrets.randbelow(1_000_000), help="of the schedule")
    add("--master", default=STANDALONE, help="standalone: one of its own; or local[2]")
    add("--rows", type=int, default=1_000, help="of a file (1000)")
    add("--every-s", type=float, default=0.5, help="there is a file (0.5)")
    add("--folder", type=Path, default=FOLDER, help="of logs (build/spark-chaos)")
    add("--keep", action="store_true", help="keep the result in benchmarks/results")
    options = parser.parse_args()
    console = Console()
    result = play(options, console)
    encoded = msgspec.json.format(msgspec.json.encode(result))
    (options.folder / str(options.seed) / "result.json").write_bytes(encoded)
    for line in facts(result):
        console.print(f"- {line}", markup=False, highlight=False, soft_wrap=True)
    for each in result.wrong:
        console.print(f"WRONG: {each}", style="bold red", markup=False, soft_wrap=True)
    if not result.wrong:
        console.print("Every row has counted once.", style="bold green")
    if options.keep:
        KEPT.with_suffix(".json").write_bytes(encoded + b"\n")
        KEPT.with_suffix(".md").write_text(markdown(result))
    return 1 if result.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
