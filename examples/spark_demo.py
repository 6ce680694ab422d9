"""The whole story: Spark brings payments, Sublet keeps accounts and answers, alerts go home.

    files ─► Spark ─► sink "sublet" ─► payments/card ─► payments/merchant
                                            │  └─ asked over HTTP all the while
    Parquet ◄─ Spark ◄─ source "sublet" ◄───┘ egress "alerts"

    make demo
    python examples/spark_demo.py --kill

Two workers run `payments.py` on an SQLite file. Spark reads the files that `payment_files.py`
writes, as a stream, and writes the payments to Sublet; a second stream takes the alerts and
appends them to a table of Parquet files. In the end Spark reads the states of Sublet, and computes
the same from the files alone: both have to be equal, to the cent. `--kill` kills a worker half-way.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parent
# Lets the demo run from any directory, also before the project is installed.
sys.path[:0] = [str(EXAMPLES.parent), str(EXAMPLES)]

import msgspec  # noqa: E402
from payment_files import (  # noqa: E402
    CARD_COUNT,
    MERCHANT_COUNT,
    SPARK_SCHEMA,
    card_name,
    merchant_name,
    write_files,
)
from payments import BURST, BURST_PAYMENTS, MINUTE_MS, TWO_COUNTRIES, merchant  # noqa: E402
from rich.console import Console, Group  # noqa: E402
from rich.live import Live  # noqa: E402
from rich.panel import Panel  # noqa: E402
from rich.table import Table  # noqa: E402
from rich.text import Text  # noqa: E402

from sublet import BlockingClient  # noqa: E402

START_TIMEOUT_S = 60.0
SETTLE_TIMEOUT_S = 300.0
LOOK_EVERY_S = 0.5
TABLE_EVERY_S = 4.0
QUERIES_PER_S = 50
FILES_A_BATCH = 4
RESTARTS_MAX = 5
"""A machine that is very busy may be too slow for Spark, which starts Python within ten seconds."""
LATENCIES_KEPT = 5_000
EXIT_DIFFERENT, EXIT_NO_SPARK, EXIT_STOPPED = 1, 3, 130
JAVA_VERSION_MIN = 17
ALERT_SCHEMA = "card string, kind string, start_ms bigint"


@dataclass
class Figures:
    """What has been seen so far."""

    started_s: float = field(default_factory=time.monotonic)
    stages: list[tuple[str, float]] = field(default_factory=list)
    now: str = ""
    files: int = 0
    files_wanted: int = 0
    rows: int = 0
    batches: int = 0
    rows_per_s: float = 0.0
    queries: int = 0
    queries_failed: int = 0
    queries_wrong: int = 0
    latencies_ms: deque[float] = field(default_factory=lambda: deque(maxlen=LATENCIES_KEPT))
    last_answer: str = ""
    alerts: int = 0
    latest_alerts: list[str] = field(default_factory=list)
    events: deque[str] = field(default_factory=lambda: deque(maxlen=4))

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_s

    def percentiles_ms(self) -> tuple[float, float]:
        ascending = sorted(self.latencies_ms)
        last = len(ascending) - 1
        return (ascending[last // 2], ascending[last * 99 // 100]) if ascending else (0.0, 0.0)


class Cluster:
    """`sublet run` with some workers, in a process of its own."""

    def __init__(self, workers: int, folder: Path) -> None:
        self.address = ""
        self.http: list[tuple[str, int]] = []
        self._lines: deque[str] = deque(maxlen=200)
        self._pids: dict[str, int] = {}
        self._ready = threading.Event()
        command = [sys.executable, "-m", "sublet", "run", str(EXAMPLES / "payments.py")]
        command += ["--workers", str(workers), "--http-port", "0", "--config", "-"]
        self._process = subprocess.Popen(
            [*command, "--data-dir", str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_ready(self) -> None:
        if not self._ready.wait(START_TIMEOUT_S) or not self.address:
            raise RuntimeError("the workers did not start:\n" + "\n".join(self._lines))

    def kill_worker(self) -> str:
        """Kill one without warning; `sublet run` starts another."""
        name, pid = min(self._pids.items())
        os.kill(pid, signal.SIGKILL)
        return f"killed {name} (process {pid}) with SIGKILL"

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reader.join(START_TIMEOUT_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._lines.append(line.rstrip())
                if found := re.search(r"^(worker \d+) \|.* ready .*\bpid=(\d+)", line):
                    self._pids[found[1]] = int(found[2])
                elif found := re.search(r"workers? (?:is|are) ready: (.*)", line):
                    self.address = found[1].replace(" ", "")
                elif line.startswith("HTTP: "):
                    self.http = [
                        (host, int(port))
                        for host, port in re.findall(r"http://([\d.]+):(\d+)", line)
                    ]
                    self._ready.set()
        self._ready.set()


class PointQueries:
    """Asks over HTTP how single cards stand, so many times a second, while Spark writes."""

    def __init__(self, cluster: Cluster, figures: Figures, seed: int) -> None:
        self._cluster = cluster
        self._figures = figures
        self._chance = random.Random(seed)
        self._seen: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> PointQueries:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(START_TIMEOUT_S)

    def _run(self) -> None:
        connection: HTTPConnection | None = None
        while not self._stop.wait(1 / QUERIES_PER_S):
            if connection is None:
                # Any worker serves any card: what it does not own, it asks for.
                connection = HTTPConnection(*self._chance.choice(self._cluster.http), timeout=10)
            try:
                self._ask(connection, card_name(self._chance.randrange(CARD_COUNT)))
            except (OSError, HTTPException):
                # A killed worker; the next query goes to another one.
                self._figures.queries_failed += 1
                connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def _ask(self, connection: HTTPConnection, card: str) -> None:
        figures = self._figures
        asked_s = time.monotonic()
        connection.request(
            "POST",
            f"/functions/payments/card/{card}",
            body="null",
            headers={"Content-Type": "application/json"},
        )
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            figures.queries_failed += 1
            return
        figures.latencies_ms.append((time.monotonic() - asked_s) * 1000)
        figures.queries += 1
        payments = msgspec.json.decode(body)["payments"]
        # What was once answered is durable: a card's count never goes back.
        figures.queries_wrong += payments < self._seen.get(card, 0)
        self._seen[card] = payments
        figures.last_answer = f"{card} {body.decode()}"


class View:
    """Shows the figures: drawn in a terminal, as lines elsewhere."""

    def __init__(self, console: Console, figures: Figures) -> None:
        self._console = console
        self._figures = figures
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> View:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(START_TIMEOUT_S)

    def _run(self) -> None:
        console, figures = self._console, self._figures
        if console.is_terminal:
            with Live(self._picture(), console=console, auto_refresh=False) as live:
                while not self._stop.wait(LOOK_EVERY_S):
                    live.update(self._picture(), refresh=True)
                live.update(self._picture(), refresh=True)
            return
        told = 0
        while True:
            stopped = self._stop.wait(4 * LOOK_EVERY_S)
            for name, seconds in figures.stages[told:]:
                console.print(f"{name} ({seconds:.1f} s)", highlight=False, soft_wrap=True)
                told += 1
            while figures.events:
                console.print(figures.events.popleft(), highlight=False, soft_wrap=True)
            if stopped:
                return
            console.print(self._line(), highlight=False, soft_wrap=True)

    def _line(self) -> str:
        figures = self._figures
        p50_ms, p99_ms = figures.percentiles_ms()
        return (
            f"{figures.elapsed_s:5.1f} s  {figures.now}: {figures.files} files, "
            f"{figures.rows:,} payments in {figures.batches} batches, {figures.queries:,} queries "
            f"(p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms), {figures.alerts:,} alerts"
        )

    def _picture(self) -> Group:
        figures = self._figures
        p50_ms, p99_ms = figures.percentiles_ms()
        numbers = Table.grid(padding=(0, 2))
        numbers.add_row("files written", f"{figures.files} of {figures.files_wanted}")
        numbers.add_row("payments from Spark", f"[bold]{figures.rows:,}[/bold]")
        numbers.add_row("micro-batches", f"{figures.batches}, {figures.rows_per_s:,.0f} rows/s")
        numbers.add_row("point queries over HTTP", f"{figures.queries:,}")
        numbers.add_row("latency p50 / p99", f"{p50_ms:.1f} / {p99_ms:.1f} ms")
        numbers.add_row("last answer", figures.last_answer)
        alerts = Table.grid(padding=(0, 1))
        alerts.add_row(f"[bold]{figures.alerts:,}[/bold] in the table")
        for each in figures.latest_alerts:
            alerts.add_row(each)
        both = Table.grid(expand=True)
        both.add_row(
            Panel(numbers, title="Spark → Sublet"), Panel(alerts, title="alerts, Sublet → Spark")
        )
        done = [
            Text(f"✓ {name} ({seconds:.1f} s)", style="green") for name, seconds in figures.stages
        ]
        now = Text(f"● {figures.now}, {figures.elapsed_s:.0f} s", style="bold")
        return Group(*done, now, both, *(Text(each) for each in figures.events))


# Spark


def java_missing() -> str:
    """Return what is wrong with the Java of this machine; empty: Spark can run on it."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return f"there is no Java ({java})"
    found = re.search(r'version "(\d+)', told.stderr + told.stdout)
    if found and int(found[1]) >= JAVA_VERSION_MIN:
        return ""
    return f"{java} has version {found[1] if found else 'unknown'}"


def start_spark(log: Path) -> Any:
    """Return a Spark session with two task slots; what the JVM has to say goes to a file."""
    import pyspark
    from pyspark.sql import SparkSession

    from sublet import spark_bridge

    if "SPARK_HOME" not in os.environ:
        # Without the zip of Python sources in it, which every Python process of Spark would compile
        # anew: this way they import the installed package, and start in a third of the time.
        home = log.parent / "spark-home"
        home.mkdir()
        for name in ("bin", "jars"):
            (home / name).symlink_to(Path(pyspark.__file__).parent / name)
        os.environ["SPARK_HOME"] = str(home)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(log.parent / "warehouse"),
        # Lets `sublet-state` hand filters on keys to the workers.
        "spark.sql.python.filterPushdown.enabled": "true",
    }
    builder = SparkSession.builder.master("local[2]").appName("sublet-demo")
    with errors_to(log):
        spark = builder.config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark_bridge.register(spark)
    return spark


@contextmanager
def errors_to(log: Path) -> Iterator[None]:
    """Let processes that are started meanwhile write their errors to a file, for good."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


class Streams:
    """What Spark does all the time: payments to Sublet, alerts to a table."""

    def __init__(self, spark: Any, address: str, folder: Path) -> None:
        self._spark = spark
        self._looked_s = 0.0
        self._restarts = 0
        self.files = folder / "payments"
        self.table = folder / "alerts"
        self.files.mkdir()
        self.table.mkdir()
        payments = (
            spark.readStream.schema(SPARK_SCHEMA)
            .option("maxFilesPerTrigger", FILES_A_BATCH)
            .json(str(self.files))
        )
        self._incoming = (
            payments.writeStream.format("sublet")
            .option("address", address)
            .option("target", "payments/card")
            .option("key", "card")
            .option("checkpointLocation", str(folder / "checkpoint-payments"))
        )
        alerts = (
            spark.readStream.format("sublet")
            .option("address", address)
            .option("egress", "alerts")
            .schema(ALERT_SCHEMA)
            .load()
        )
        self._outgoing = (
            alerts.writeStream.format("parquet")
            .option("path", str(self.table))
            .option("checkpointLocation", str(folder / "checkpoint-alerts"))
        )
        self.incoming, self.outgoing = self._incoming.start(), self._outgoing.start()

    def mend(self, figures: Figures) -> None:
        """Start a stream again that has ended, from its checkpoint; give up after some times."""
        for name, writer in (("incoming", self._incoming), ("outgoing", self._outgoing)):
            error = getattr(self, name).exception()
            if error is None:
                continue
            self._restarts += 1
            if self._restarts > RESTARTS_MAX:
                raise error
            told = str(error).partition("\n")[0]
            figures.events.append(f"the {name} stream ended ({told}): started again")
            setattr(self, name, writer.start())

    def look(self, figures: Figures) -> None:
        """Note how far they are."""
        for progress in self.incoming.recentProgress:
            # A query that has nothing to do tells so, too, as if it were the next batch.
            if progress["batchId"] >= figures.batches and progress["numInputRows"]:
                figures.batches = progress["batchId"] + 1
                figures.rows += progress["numInputRows"]
                figures.rows_per_s = progress["processedRowsPerSecond"]
        if time.monotonic() > self._looked_s + TABLE_EVERY_S or not self.outgoing.isActive:
            found = self.alerts().orderBy("start_ms", ascending=False).collect()
            figures.alerts = len(found)
            figures.latest_alerts = [f"{row.card}  {row.kind}" for row in found[:5]]
            self._looked_s = time.monotonic()

    def bring_home(self, figures: Figures) -> None:
        """Return when all alerts that there are now are in the table."""
        while True:
            try:
                self.outgoing.processAllAvailable()
            except Exception:
                if self.outgoing.exception() is None:
                    raise
                self.mend(figures)
            else:
                return

    def alerts(self) -> Any:
        """The table of alerts, as far as it is written."""
        return self._spark.read.schema(ALERT_SCHEMA).parquet(str(self.table))

    def stop(self) -> None:
        self.incoming.stop()
        self.outgoing.stop()


def compare(spark: Any, streams: Streams, address: str) -> dict[str, tuple[int, int]]:
    """Compare what Sublet knows with what Spark computes from the files alone.

    Returns what was compared, with how many rows there are and how many of them differ.
    """
    from pyspark.sql import functions as sql

    payments = spark.read.schema(SPARK_SCHEMA).json(str(streams.files)).cache()

    def state(function: str) -> Any:
        reader = spark.read.format("sublet-state").option("address", address)
        reader = reader.option("function", function)
        return reader.schema("key string, payments bigint, cents bigint").load()

    sums = (sql.count("*").alias("payments"), sql.sum("cents").alias("cents"))
    minutes = payments.groupBy(
        "card", (sql.floor(sql.col("at_ms") / MINUTE_MS) * MINUTE_MS).alias("start_ms")
    ).agg(sql.count("*").alias("payments"), sql.count_distinct("country").alias("countries"))
    odd = [
        minutes.where(condition).select("card", sql.lit(kind).alias("kind"), "start_ms")
        for kind, condition in (
            (BURST, sql.col("payments") >= BURST_PAYMENTS),
            (TWO_COUNTRIES, sql.col("countries") >= 2),
        )
    ]
    pairs = {
        "accounts": (state("payments/card"), payments.groupBy("card").agg(*sums)),
        "merchants": (state("payments/merchant"), payments.groupBy("merchant").agg(*sums)),
        "alerts": (streams.alerts(), odd[0].unionAll(odd[1])),
    }
    found = {}
    for name, (ours, theirs) in pairs.items():
        ours, theirs = ours.cache(), theirs.cache()
        differ = ours.exceptAll(theirs).count() + theirs.exceptAll(ours).count()
        found[name] = (theirs.count(), differ)
    return found


# The story


class Writer:
    """Writes the files, one after the other."""

    def __init__(self, folder: Path, figures: Figures, options: argparse.Namespace) -> None:
        self._folder = folder
        self._figures = figures
        self._options = options
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(START_TIMEOUT_S)

    def _run(self) -> None:
        options = self._options
        for _ in write_files(
            self._folder,
            seed=options.seed,
            files=options.files,
            payments=options.payments,
            every_s=options.seconds / options.files,
        ):
            self._figures.files += 1
            if self._stop.is_set():
                return


@contextmanager
def stage(figures: Figures, name: str) -> Iterator[None]:
    started_s = time.monotonic()
    figures.now = name
    yield
    figures.stages.append((name, time.monotonic() - started_s))


def watch(
    streams: Streams, cluster: Cluster, figures: Figures, options: argparse.Namespace
) -> None:
    """Return when Sublet has counted all payments; kill a worker half-way, if that is wanted."""
    kill_after = options.files // 2 if options.kill else options.files + 1
    wanted = options.files * options.payments
    counted = 0
    give_up_s = time.monotonic() + options.seconds + SETTLE_TIMEOUT_S
    with BlockingClient(cluster.address.split(",")) as client:
        while counted < wanted:
            if time.monotonic() > give_up_s:
                raise TimeoutError(f"{counted} of {wanted} payments were counted in time")
            time.sleep(LOOK_EVERY_S)
            streams.mend(figures)
            streams.look(figures)
            if figures.files >= kill_after:
                figures.events.append(cluster.kill_worker())
                kill_after = options.files + 1
            if figures.files == options.files:
                counted = payments_counted(client)


def payments_counted(client: BlockingClient) -> int:
    """Ask the merchants, who are the last to hear of a payment."""
    names = [merchant_name(number) for number in range(MERCHANT_COUNT)]
    turnovers = client.call_many(merchant, names, [None] * len(names))
    return sum(each.payments for each in turnovers)


def demonstrate(options: argparse.Namespace, folder: Path, console: Console) -> bool:
    """Tell the story; return whether everything was exact."""
    figures = Figures(files_wanted=options.files)
    with ExitStack() as parts:
        view = View(console, figures)
        cluster = Cluster(options.workers, folder / "sublet")
        parts.callback(cluster.stop)
        with ExitStack() as shown:
            shown.enter_context(view)
            with stage(figures, f"{options.workers} workers and Spark start"):
                spark = start_spark(folder / "spark.log")
                parts.callback(spark.stop)
                cluster.wait_ready()
            streams = Streams(spark, cluster.address, folder)
            parts.callback(streams.stop)
            with stage(figures, "Spark brings payments, Sublet keeps accounts"):
                shown.enter_context(Writer(streams.files, figures, options))
                with PointQueries(cluster, figures, options.seed):
                    watch(streams, cluster, figures, options)
            with stage(figures, "the last alerts come home"):
                streams.bring_home(figures)
                streams.stop()
                streams.look(figures)
            with stage(figures, "Spark computes the same from the files alone"):
                compared = compare(spark, streams, cluster.address)
    return summarize(figures, compared, options, console)


def summarize(
    figures: Figures,
    compared: dict[str, tuple[int, int]],
    options: argparse.Namespace,
    console: Console,
) -> bool:
    """Print how it went; return whether everything was exact."""
    p50_ms, p99_ms = figures.percentiles_ms()
    table = Table.grid(padding=(0, 2))
    wanted = options.files * options.payments
    table.add_row("payments", f"{wanted:,} in {figures.batches} micro-batches")
    failed = f", {figures.queries_failed} failed" if figures.queries_failed else ""
    told = f"{figures.queries:,}{failed}; p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms"
    table.add_row("point queries over HTTP", told)
    for name, (count, differ) in compared.items():
        table.add_row(
            name, f"{count:,}, " + (f"[red]{differ:,} differ[/red]" if differ else "equal")
        )
    table.add_row("all of it took", f"{figures.elapsed_s:.0f} s")
    console.print(Panel(table, title="summary", expand=False))
    exact = not any(differ for _, differ in compared.values()) and not figures.queries_wrong
    if exact:
        console.print(
            "[green]exact:[/green] accounts, merchants and alerts are those that Spark computes "
            "from the files.",
            soft_wrap=True,
        )
    else:
        console.print(f"[red]not exact:[/red] {figures.queries_wrong} answers went back in time")
    return exact


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Spark and Sublet, there and back.")
    parser.add_argument("--files", type=int, default=40)
    parser.add_argument("--payments", type=int, default=5_000, help="in each file")
    parser.add_argument("--seconds", type=float, default=40.0, help="for writing the files")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill", action="store_true", help="kill a worker half-way")
    options = parser.parse_args(arguments)
    if not 2 <= options.files <= 1_000:
        parser.error(f"--files is {options.files}; allowed: 2..1000")
    if not 1 <= options.payments <= 100_000:
        parser.error(f"--payments is {options.payments}; allowed: 1..100000")
    if not 0 <= options.seconds <= 600:
        parser.error(f"--seconds is {options.seconds}; allowed: 0..600")
    if not 1 <= options.workers <= 16:
        parser.error(f"--workers is {options.workers}; allowed: 1..16")
    return options


def stop_by_signal(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    options = parse(sys.argv[1:])
    console = Console()
    if missing := java_missing():
        console.print(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer: {missing}.\n"
            "Install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or set "
            "JAVA_HOME.\nWithout Java, `make demo-words` shows Sublet alone.",
            highlight=False,
            soft_wrap=True,
        )
        return EXIT_NO_SPARK
    signal.signal(signal.SIGTERM, stop_by_signal)
    folder = Path(tempfile.mkdtemp(prefix="sublet-demo-"))
    try:
        exact = demonstrate(options, folder, console)
    except KeyboardInterrupt:
        console.print("stopped")
        return EXIT_STOPPED
    except Exception:
        log = folder / "spark.log"
        if log.exists():
            print("\n".join(log.read_text().splitlines()[-30:]), file=sys.stderr)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    console.print(
        "\nThe functions are in examples/payments.py, what Spark does in examples/spark_demo.py.\n"
        "Do it yourself: docs/spark/index.md",
        highlight=False,
        soft_wrap=True,
    )
    return 0 if exact else EXIT_DIFFERENT


if __name__ == "__main__":
    sys.exit(main())
