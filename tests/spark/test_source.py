"""What functions emit, read by a real Spark from real workers: every value once."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructField, StructType
from structlog.testing import capture_logs

from sublet import BlockingClient
from sublet.spark_bridge import register
from sublet.spark_bridge.connections import close_clients
from sublet.spark_bridge.source import readers as egress_source
from tests.integration.cluster import Cluster
from tests.ports import free_ports
from tests.spark.source_app import EGRESS, TARGET, Numbers

COUNT = "source/count"
KEYS = [f"k{number}" for number in range(12)]
PATIENCE_S = 90
FAILURE = "as the test wants it"


class Workers:
    """Workers whose addresses stay when others come in their places."""

    def __init__(self, folder: Path, count: int = 1, **settings: object) -> None:
        self._cluster = Cluster(TARGET, folder, settings)
        self._ports = free_ports(count)

    @property
    def address(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def start(self) -> None:
        for port in self._ports:
            self._cluster.add_worker(expected=len(self._ports), port=port)
        asyncio.run(self._cluster.ready())

    def kill(self) -> None:
        for each in self._cluster.living:
            each.kill()

    def close(self) -> None:
        self._cluster.close()

    def emit(self, first: int, count: int) -> set[int]:
        """Emit numbers under all keys; return them."""
        with BlockingClient(self.address.split(","), connect_timeout="20s") as client:
            begins = [first + place * count for place in range(len(KEYS))]
            parts = [Numbers(begin, begin + count) for begin in begins]
            client.call_many(COUNT, KEYS, parts)
        return set(range(first, first + count * len(KEYS)))


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    made = Workers(tmp_path_factory.mktemp("source"), 2)
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def own_workers(tmp_path: Path) -> Iterator[Callable[..., Workers]]:
    """Return what makes workers with settings of their own."""
    made: list[Workers] = []

    def make(**settings: object) -> Workers:
        made.append(Workers(tmp_path / "workers", 1, **settings))
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def spark_with_sublet(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


class Seen:
    """What each batch of a query had."""

    def __init__(self, fails_behind: int | None = None) -> None:
        """It fails at the first batch behind that number that has any rows."""
        self.batches: dict[int, list[int]] = {}
        self.something = threading.Event()
        self._fails_behind = fails_behind

    def __call__(self, batch: DataFrame, number: int) -> None:
        rows = batch.select("payload").collect()
        found = sorted(json.loads(row.payload)["number"] for row in rows)
        assert number not in self.batches
        self.batches[number] = found
        self.something.set()
        if self._fails_behind is not None and number > self._fails_behind and found:
            raise RuntimeError(FAILURE)

    @property
    def numbers(self) -> list[int]:
        return sorted(number for found in self.batches.values() for number in found)


def stream(spark: SparkSession, workers: Workers, **options: object) -> Any:
    reader = spark.readStream.format("sublet").option("address", workers.address)
    for name, value in {"egress": EGRESS, **options}.items():
        reader = reader.option(name, str(value))
    return reader


def run_out(frame: DataFrame, seen: Seen, checkpoint: Path) -> Any:
    """Read all that is there, and end."""
    query = (
        frame.writeStream.foreachBatch(seen)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(PATIENCE_S)
    finally:
        query.stop()
    return query


def read(spark: SparkSession, workers: Workers, **options: object) -> Any:
    reader = spark.read.format("sublet").option("address", workers.address)
    for name, value in {"egress": EGRESS, **options}.items():
        reader = reader.option(name, str(value))
    return reader


def test_a_query_that_fails_and_is_started_again_has_every_value_once(
    spark_with_sublet: SparkSession, workers: Workers, tmp_path: Path
) -> None:
    spark, checkpoint = spark_with_sublet, tmp_path / "checkpoint"
    early = workers.emit(1_000, 20)
    first = Seen(fails_behind=-1)
    with pytest.raises(StreamingQueryException, match=FAILURE):
        run_out(stream(spark, workers, **{"from": "earliest"}).load(), first, checkpoint)
    late = workers.emit(100_000, 20)
    # Spark asks again where to begin; the batch that it repeats must not begin there.
    source = stream(spark, workers, **{"from": "latest"}).load()
    second = Seen(fails_behind=0)
    with pytest.raises(StreamingQueryException, match=FAILURE):
        run_out(source, second, checkpoint)
    late |= workers.emit(200_000, 20)
    third = Seen()
    run_out(source, third, checkpoint)

    assert [*first.batches] == [0]
    assert [*second.batches] == [0, 1]
    assert second.batches[0] == first.batches[0]
    assert early <= {*first.batches[0]}
    assert third.batches[1] == second.batches[1]
    assert third.numbers == sorted(late)


def test_batches_are_no_larger_than_wanted_and_end_with_what_was_there(
    spark_with_sublet: SparkSession, workers: Workers, tmp_path: Path
) -> None:
    spark = spark_with_sublet
    start = cursor_now(workers)
    wanted = workers.emit(50_000, 100)
    seen = Seen()
    source = stream(spark, workers, maxRowsPerTrigger=500, tasks=3, **{"from": start}).load()
    query = run_out(source, seen, tmp_path / "checkpoint")

    assert [len(found) for found in seen.batches.values() if found] == [500, 500, 200]
    assert seen.numbers == sorted(wanted)
    offset = json.loads(query.lastProgress["sources"][0]["endOffset"])
    assert offset["egress"] == EGRESS
    # What Spark shows is a cursor for everybody.
    assert offset["cursor"] == cursor_now(workers)


def test_a_bounded_read_has_what_is_between_two_cursors(
    spark_with_sublet: SparkSession, workers: Workers
) -> None:
    spark = spark_with_sublet
    start = cursor_now(workers)
    wanted = workers.emit(60_000, 30)
    end = cursor_now(workers)
    workers.emit(70_000, 10)
    typed = read(spark, workers, tasks=6, **{"from": start, "until": end}).schema(
        "number BIGINT, name STRING, missing DOUBLE, _key STRING, _partition INT, _position BIGINT"
    )
    rows = typed.load().collect()

    assert sorted(row.number for row in rows) == sorted(wanted)
    assert all(row.name == f"{row._key}-{row.number}" and row.missing is None for row in rows)
    assert len({(row._partition, row._position) for row in rows}) == len(rows)
    whole = read(spark, workers, **{"from": start}).load()
    assert whole.columns == ["key", "payload", "function", "partition", "position", "at"]
    rows = whole.collect()
    assert len(rows) == 40 * len(KEYS)
    assert {row.function for row in rows} == {COUNT}
    assert read(spark, workers, egress="nobody emits here").load().collect() == []


def test_some_of_the_columns_that_there_are_without_a_schema_are_the_same_with_one(
    spark_with_sublet: SparkSession, workers: Workers
) -> None:
    spark, start = spark_with_sublet, cursor_now(workers)
    workers.emit(90_000, 2)
    egress = read(spark, workers, **{"from": start})
    whole = egress.load().selectExpr("position", "payload", "KEY").collect()
    assert len(whole) == 2 * len(KEYS)
    some = egress.schema("position BIGINT, Payload STRING, key STRING").load()
    assert sorted(some.collect()) == sorted(whole)
    numbers = egress.schema("key STRING, payload STRUCT<number: BIGINT>, at TIMESTAMP").load()
    assert sorted(row.number for row in numbers.select("payload.*").collect()) == sorted(
        json.loads(row.payload)["number"] for row in whole
    )
    # What the page says of texts.
    unquoted = spark.range(1).selectExpr("get_json_object('\"as it is\"', '$') AS word")
    assert unquoted.first() == ("as it is",)
    for schema, told in (
        ("key STRING, number BIGINT", r"key is ambiguous; use _key"),
        ("Number BIGINT", "column 'Number': the field is spelled 'number'"),
        ("v VARIANT", "column 'v' has type variant; allowed: boolean"),
        ("v STRUCT<a: VARIANT>", "column 'v' has type struct<a:variant>; allowed: boolean"),
    ):
        with pytest.raises(PySparkException, match=told):
            egress.schema(schema).load().collect()


def test_what_cannot_be_is_told_before_anything_is_read(
    spark_with_sublet: SparkSession, workers: Workers
) -> None:
    spark = spark_with_sublet
    with BlockingClient(workers.address.split(",")) as client:
        client.call("source/say", "x", "not a number")
    words = read(spark, workers, egress="words").schema("number BIGINT")
    with pytest.raises(PySparkException, match=r"position 0 of source/say/.*column 'number'"):
        words.load().collect()
    with pytest.raises(PySparkException, match=r"no option 'egres'.*did you mean egress"):
        spark.read.format("sublet").option("egres", EGRESS).load()


def test_an_egress_to_which_nobody_has_emitted_is_told_of_once(workers: Workers) -> None:
    schema = StructType([StructField("payload", StringType())])
    options = {"address": workers.address, "egress": "palced"}
    workers.emit(80_000, 1)
    reader = egress_source.stream_reader(schema, options)
    try:
        with capture_logs() as logs:
            offset = reader.initialOffset()
            assert reader.latestOffset(offset, ReadAllAvailable()) == offset
            assert egress_source.reader(schema, {**options, "egress": EGRESS}).partitions()
    finally:
        close_clients()

    (log,) = logs
    assert (log["log_level"], log["egress"]) == ("warning", "palced")
    assert "no function has emitted" in log["event"]


def test_what_went_before_it_was_read_ends_the_query_or_is_passed_over(
    spark_with_sublet: SparkSession, own_workers: Callable[..., Workers], tmp_path: Path
) -> None:
    spark, few = spark_with_sublet, own_workers(egress_max=100)
    few.emit(0, 5)
    seen = Seen()
    run_out(stream(spark, few).load(), seen, tmp_path / "checkpoint")
    few.emit(1_000, 60)
    with pytest.raises(StreamingQueryException, match="values were dropped before they were read"):
        run_out(stream(spark, few).load(), Seen(), tmp_path / "checkpoint")
    rest = Seen()
    run_out(stream(spark, few, onLoss="skip").load(), rest, tmp_path / "checkpoint")

    kept = {json.loads(row.payload)["number"] for row in read(spark, few).load().collect()}
    assert len(seen.numbers) == 60
    assert {*rest.numbers} == kept
    assert 100 <= len(kept) < 720


def test_a_query_rides_out_the_death_of_all_workers(
    spark_with_sublet: SparkSession, own_workers: Callable[..., Workers], tmp_path: Path
) -> None:
    spark, doomed = spark_with_sublet, own_workers()
    wanted = doomed.emit(0, 100)
    seen = Seen()
    source = stream(spark, doomed, maxRowsPerTrigger=200, timeout="2m").load()
    query = (
        source.writeStream.foreachBatch(seen)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        for _ in range(2):
            assert seen.something.wait(PATIENCE_S)
            doomed.kill()
            doomed.start()
            seen.something.clear()
        assert query.awaitTermination(PATIENCE_S)
    finally:
        query.stop()

    assert seen.numbers == sorted(wanted)


def cursor_now(workers: Workers) -> str:
    with BlockingClient(workers.address.split(",")) as client:
        return str(client.egress_bounds(EGRESS)[1])
