"""Streams of Spark, run and timed: files as fast as they go, and a paced line event by event.

What consumes the rows is a `Work`: an operator of Spark's own with somewhere for its results to go,
a sink that drops them, or Sublet. All see the same session, the same input, the same tasks.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # As everyone calls it.

from benchmarks.harness.machine import ROOT
from benchmarks.harness.workload import LatencyLog
from benchmarks.spark.app import EGRESS
from benchmarks.spark.input import Arrivals, InputFiles, PacedLine, Shape
from benchmarks.spark.operators import OPERATORS, SINKS
from sublet import BlockingClient, SubletError
from sublet.spark_bridge import clustered, for_each_batch, register

WARM_UP_BATCHES = 2
"""The first ones start Python workers, open stores and compile plans: nobody times them."""
QUERY_WAIT_S = 120.0
VISIBLE_WAIT_S = 60.0
PACED_GRACE_S = 10.0
WARM_WAIT_S = 120.0
WARM_BATCHES_PACED = 3
LOOK_S = 0.01
ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

Seen = Callable[[list[str], list[int]], None]
"""Told at once of counts that have become visible."""


def open_session(master: str, folder: Path, cores: int) -> SparkSession:
    """Start Spark, or start it anew in the same JVM."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Spark's Python workers import the operators and the sinks.
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    options = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        # Plans with Python operators are searched by regular expressions that recurse deeply.
        "spark.driver.extraJavaOptions": "-Xss32m",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "spark"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.default.parallelism": str(cores),
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.adaptive.enabled": "false",
        # What transformWithState needs, and what is fast there.
        "spark.sql.streaming.stateStore.providerClass": ROCKS_DB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master(master).appName("benchmarks.spark")
    for name, value in options.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for sink in SINKS.values():
        spark.dataSource.register(sink)
    register(spark)
    return spark


class Work(Protocol):
    """What consumes the rows of a stream."""

    def write(self, rows: DataFrame) -> Any:
        """Return a `DataStreamWriter` that is not started."""
        ...

    def settle(self, query_id: str) -> None:
        """Wait until all that the query has committed is visible."""
        ...

    def tell(self, rows: DataFrame, seen: Seen) -> Any:
        """Return a `DataStreamWriter` whose results are told of as soon as someone can see them."""
        ...

    def told(self, seen: Seen) -> Any:
        """Return the context in which `tell` works."""
        ...


class Operator:
    """An operator of Spark, whose results are dropped in the JVM, or collected by the driver."""

    def __init__(self, name: str) -> None:
        self._apply = OPERATORS[name]

    def write(self, rows: DataFrame) -> Any:
        return self._apply(rows).writeStream.outputMode("update").format("noop")

    def settle(self, query_id: str) -> None:
        pass

    def tell(self, rows: DataFrame, seen: Seen) -> Any:
        def collect(batch: DataFrame, number: int) -> None:
            table = batch.toArrow()
            seen(table.column("key").to_pylist(), table.column("count").to_pylist())

        return self._apply(rows).writeStream.outputMode("update").foreachBatch(collect)

    @contextmanager
    def told(self, seen: Seen) -> Iterator[None]:
        yield


class Dropping:
    """A sink that drops rows in Python; told of are rows as the driver collects them."""

    def __init__(self, name: str) -> None:
        self._format = SINKS[name].name()

    def write(self, rows: DataFrame) -> Any:
        return rows.writeStream.format(self._format)

    def settle(self, query_id: str) -> None:
        pass

    def tell(self, rows: DataFrame, seen: Seen) -> Any:
        counts: dict[str, int] = defaultdict(int)

        def collect(batch: DataFrame, number: int) -> None:
            keys = batch.toArrow().column("key").to_pylist()
            for key in keys:
                counts[key] += 1
            seen(keys, [counts[key] for key in keys])

        return rows.writeStream.foreachBatch(collect)

    @contextmanager
    def told(self, seen: Seen) -> Iterator[None]:
        yield


@dataclass(kw_only=True)
class Bridge:
    """Sublet, by its sink or in `foreachBatch`. Told of is what a reader of the egress has got."""

    addresses: list[str]
    client: BlockingClient
    function: str
    payload: str = "n"
    """The column that is the message; none: all of them are."""
    clustered_tasks: int = 0
    """Rows are first brought to so many tasks, by partition."""
    is_each_batch: bool = False
    """By `for_each_batch`, not by the sink."""
    options: Mapping[str, str] = field(default_factory=dict)

    def write(self, rows: DataFrame) -> Any:
        options = {"address": ",".join(self.addresses), **self.options}
        if self.payload:
            options["payload"] = self.payload
        if self.is_each_batch:
            function = for_each_batch(
                self.function,
                key="key",
                cluster=bool(self.clustered_tasks),
                tasks=self.clustered_tasks or None,
                **options,
            )
            return rows.writeStream.foreachBatch(function)
        if self.clustered_tasks:
            rows = clustered(
                rows,
                target=self.function,
                key="key",
                tasks=self.clustered_tasks,
                address=options["address"],
            )
        writer = rows.writeStream.format("sublet").options(target=self.function, key="key")
        return writer.options(**options)

    def settle(self, query_id: str) -> None:
        pipeline = self.client.pipeline(self.function, query_id)
        until_s = time.monotonic() + VISIBLE_WAIT_S
        while pipeline.progress().rows_waiting:
            if time.monotonic() > until_s:
                raise TimeoutError(f"rows still wait {VISIBLE_WAIT_S:.0f} s after the last batch")
            time.sleep(LOOK_S)

    def tell(self, rows: DataFrame, seen: Seen) -> Any:
        return self.write(rows)

    @contextmanager
    def told(self, seen: Seen) -> Iterator[None]:
        with BlockingClient(self.addresses) as client:
            reader = client.egress(EGRESS, start="now", lost="skip")

            def follow() -> None:
                try:
                    while records := reader.next_batch():
                        seen(
                            [each.value[0] for each in records], [each.value[1] for each in records]
                        )
                except (SubletError, RuntimeError):
                    pass  # The client was closed: it is over.

            thread = threading.Thread(target=follow, name="egress", daemon=True)
            thread.start()
            try:
                yield
            finally:
                client.close()
                thread.join()

    def total(self) -> int:
        """Return the sum of all counts."""
        with self.client.snapshot(self.function) as snapshot:
            return sum(each.state for each in snapshot)


class MiscountedError(Exception):
    """A row was lost or counted twice: whatever was measured is worth nothing."""


def _done(query: Any) -> list[Any]:
    """Return the progress of all batches that had rows."""
    return [each for each in query.recentProgress if each["numInputRows"]]


class Streams:
    """Runs streams in one session."""

    def __init__(self, spark: SparkSession, folder: Path, files: InputFiles) -> None:
        self._spark = spark
        self._folder = folder
        self._files = files

    def _checkpoint(self) -> str:
        return str(self._folder / f"checkpoint-{uuid4().hex}")

    def files(self, work: Work, *, batch_rows: int, batches: int, shape: Shape) -> dict[str, float]:
        """Read batches of files as fast as they are consumed; return the figures of a case.

        Time runs from the start of the first batch that is timed until the results of the last one
        are visible.
        """
        folder = self._files.stream(shape, batch_rows, WARM_UP_BATCHES + batches)
        rows = (
            self._spark.readStream.schema(shape.schema)
            .option("maxFilesPerTrigger", self._files.files_a_batch)
            .parquet(str(folder))
        )
        before = work.total() if isinstance(work, Bridge) else 0
        writer = work.write(rows).option("checkpointLocation", self._checkpoint())
        query = writer.trigger(availableNow=True).start()
        try:
            if not query.awaitTermination(int(QUERY_WAIT_S)):
                raise TimeoutError(f"the query took more than {QUERY_WAIT_S:.0f} s")
            work.settle(query.id)
            settled_s = time.time()
        finally:
            query.stop()
        done = _done(query)
        all_rows = sum(each["numInputRows"] for each in done)
        if isinstance(work, Bridge) and (counted := work.total() - before) != all_rows:
            raise MiscountedError(f"{all_rows} rows, but {counted} were counted")
        timed = done[WARM_UP_BATCHES:]
        if len(timed) < batches:
            raise TimeoutError(f"{len(timed)} batches of {batches}")
        end_s = _start_s(timed[-1]) + _batch_ms(timed[-1]) / 1000
        if isinstance(work, Bridge):
            end_s = max(end_s, settled_s)
        row_count = sum(each["numInputRows"] for each in timed)
        elapsed_s = end_s - _start_s(timed[0])
        return {
            "rows_per_s": row_count / elapsed_s,
            "mb_per_s": row_count * shape.row_bytes / elapsed_s / 1e6,
            "batch_ms": statistics.median(_batch_ms(each) for each in timed),
            "sink_ms": statistics.median(_part_ms(each, "addBatch") for each in timed),
            "rows": row_count,
        }

    def _await(self, query: Any, wait_s: float, is_so: Callable[[], bool]) -> None:
        until_s = time.monotonic() + wait_s
        while not is_so():
            if query.exception():
                raise RuntimeError(str(query.exception()))
            if time.monotonic() > until_s:
                raise TimeoutError(f"the query was not so far within {wait_s:.0f} s")
            time.sleep(0.1)

    def paced(
        self, work: Work, *, rate_per_s: int, seconds: float, warm_up_s: float
    ) -> dict[str, float]:
        """Let keys arrive at a fixed rate; return how long after that their counts were visible."""
        # Nobody has counted such keys before.
        with PacedLine(rate_per_s, seconds, f"{uuid4().hex[:8]}-") as line:
            arrivals = Arrivals(line.keys)
            rows = (
                self._spark.readStream.format("socket")
                .option("host", "127.0.0.1")
                .option("port", line.port)
                .load()
                .select(F.col("value").alias("key"), F.lit(1).cast("long").alias("n"))
            )
            with work.told(arrivals.seen):
                writer = work.tell(rows, arrivals.seen)
                query = writer.option("checkpointLocation", self._checkpoint()).start()
                try:
                    self._await(query, WARM_WAIT_S, lambda: len(_done(query)) > WARM_BATCHES_PACED)
                    schedule = line.begin()
                    wait_s = schedule.due_s(schedule.count) + PACED_GRACE_S - time.time()
                    # Whoever is late is known by the share of what was visible.
                    with suppress(TimeoutError):
                        self._await(query, wait_s, lambda: arrivals.is_complete)
                    done = _done(query)
                finally:
                    query.stop()
        log = LatencyLog(schedule, warm_up_s)
        for index, visible_s in arrivals.events():
            log.add([schedule.due_s(index)], visible_s)
        batches = statistics.median(_batch_ms(each) for each in done) if done else 0.0
        return {**log.figures(), "batch_ms": batches}


def _start_s(progress: Any) -> float:
    return datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00")).timestamp()


def _batch_ms(progress: Any) -> float:
    return _part_ms(progress, "triggerExecution")


def _part_ms(progress: Any, name: str) -> float:
    return float(progress["durationMs"].get(name, 0))
