"""A driver of Spark in a process of its own: it reads files, and writes their rows to Sublet.

    python -m tests.spark.driver_app '{"folder": …}'

It says what happens as lines of JSON on standard output. Once it is `ready`, it waits for a line on
standard input before it starts the query: so the next one can be made while this one still runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.streaming.query import StreamingQuery

from sublet.spark_bridge import for_each_batch, register
from tests.integration.cluster import PROJECT
from tests.spark.breakable_source import BreakableSource
from tests.spark.cluster import SETTINGS, descendants_of, environment, kill, program_of, wait_for
from tests.spark.spark_app import DRAWN_KEYS, TALLY, events_of

SCHEMA = "key string, amount long, number long"
READY, STARTED, BATCH, DONE = "ready", "started", "batch", "done"
FOR_EACH_BATCH = "foreachBatch"
"""Instead of a format: `for_each_batch` writes."""
WAIT_S = 300.0
LOOK_EVERY_S = 0.05


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver does."""

    files: str
    """The folder that it reads."""
    checkpoint: str
    address: str
    gates: str = ""
    """Where those of a format that has them are."""
    master: str = "local[2]"
    """Or where Spark Connect is served: sc://host:port."""
    format: str = "sublet-breakable"
    files_a_batch: int = 1
    is_endless: bool = False
    """It waits for more files; otherwise it ends with those that are there."""
    is_registered: bool = False
    """The bridge's formats are registered by hand; otherwise Spark has to find them."""
    options: dict[str, str] = {}
    settings: dict[str, str] = {}


def write_file(folder: Path, file: int, count: int) -> None:
    """Let a file be there, whole at once."""
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f"_{file}.json"
    hidden.write_bytes(
        b"\n".join(msgspec.json.encode(each._asdict()) for each in events_of(file, count))
    )
    # Spark reads the oldest first; those of one moment by name.
    hidden.rename(folder / f"{file:06}.json")


def rows_of(spark: SparkSession, plan: Plan) -> DataFrame:
    """Every row of the files twice: under its own key, and under one drawn by chance.

    The draw is another one whenever the query is started again, so a batch that is done again has
    other rows.
    """
    files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", plan.files_a_batch)
    drawn = functions.concat(
        functions.lit("r"), functions.floor(functions.rand() * len(DRAWN_KEYS)).cast("string")
    )
    return (
        files.json(plan.files)
        .repartition(2)
        .withColumn("drawn", drawn)
        .withColumn("key", functions.explode(functions.array("key", "drawn")))
        .drop("drawn")
    )


def start(spark: SparkSession, plan: Plan) -> StreamingQuery:
    if plan.format == FOR_EACH_BATCH:
        write = for_each_batch(TALLY, key="key", address=plan.address)
        each = rows_of(spark, plan).writeStream.foreachBatch(write)
        return each.option("checkpointLocation", plan.checkpoint).trigger(availableNow=True).start()
    writer = rows_of(spark, plan).writeStream.format(plan.format)
    writer = writer.option("address", plan.address).option("target", TALLY).option("key", "key")
    gates = {"gates": plan.gates} if plan.gates else {}
    for name, value in (plan.options | gates).items():
        writer = writer.option(name, value)
    writer = writer.option("checkpointLocation", plan.checkpoint)
    if plan.is_endless:
        return writer.trigger(processingTime="0 seconds").start()
    return writer.trigger(availableNow=True).start()


def session(plan: Plan) -> SparkSession:
    if plan.master.startswith("sc://"):
        return SparkSession.builder.remote(plan.master).getOrCreate()
    builder = SparkSession.builder.appName("driver").master(plan.master)
    for name, value in (SETTINGS | plan.settings).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main() -> None:
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    spark = session(plan)
    if plan.gates:
        spark.dataSource.register(BreakableSource)
    if plan.is_registered:
        register(spark)
    tell(READY)
    sys.stdin.readline()
    query = start(spark, plan)
    tell(STARTED, id=str(query.id))
    told = -1
    while True:
        ended = query.awaitTermination(LOOK_EVERY_S)  # type: ignore[arg-type]  # Parts are fine.
        for each in query.recentProgress:
            if each["batchId"] > told and each["numInputRows"]:
                told = each["batchId"]
                tell(BATCH, batch=told)
        if ended:
            break
    tell(DONE)


def tell(event: str, **what: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **what}) + "\n")
    sys.stdout.flush()


class DriverProcess:
    """One `driver_app`, which a test can kill together with its Java process."""

    def __init__(self, plan: Plan, log: Path) -> None:
        self.lines: list[dict[str, Any]] = []
        self._log = log.open("ab")
        self.is_open = True
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.driver_app", msgspec.json.encode(plan).decode()],
            env=environment(),
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        # Until the last process is gone that has it, be it one of Python that outlives the driver.
        with self._process.stdout as told:
            for line in told:
                if line.startswith(b"{"):
                    self.lines.append(json.loads(line))

    def events(self, event: str) -> list[dict[str, Any]]:
        return [each for each in list(self.lines) if each["event"] == event]

    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self, event: str, count: int = 1, wait_s: float = WAIT_S) -> dict[str, Any]:
        """Wait until something has happened so many times; return the last."""

        def look() -> dict[str, Any] | None:
            found = self.events(event)
            if len(found) >= count:
                return found[count - 1]
            assert self.is_running(), f"the driver has ended; see {self._log.name}"
            return None

        return wait_for(look, f"{event} of a driver", wait_s)

    def go(self) -> None:
        """Let it start the query, when it is ready."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """`kill -9` to Python and to Java. Python workers may outlive them for a moment."""
        java = [each for each in descendants_of(self._process.pid) if program_of(each) == "java"]
        self._process.kill()
        for pid in java:
            kill(pid)
        self._process.wait()
        self.is_open = False
        self._log.close()
        assert self._process.stdin is not None
        self._process.stdin.close()


class Drivers:
    """Drivers of one query: while one runs, the next gets ready."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._log = folder / "drivers.log"
        self._next = DriverProcess(plan, self._log)
        self.current: DriverProcess | None = None

    def follow(self, *, is_last: bool = False) -> DriverProcess:
        """Let the next one start the query."""
        driver = self.current = self._next
        driver.wait(READY)
        if not is_last:
            self._next = DriverProcess(self._plan, self._log)
        driver.go()
        return driver

    def end(self) -> None:
        for each in (self.current, self._next):
            if each is not None and each.is_open:
                each.kill()


@contextmanager
def running_drivers(plan: Plan, folder: Path) -> Iterator[Drivers]:
    drivers = Drivers(plan, folder)
    try:
        yield drivers
    finally:
        drivers.end()


if __name__ == "__main__":
    main()
