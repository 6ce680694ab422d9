"""History that Spark brings, and live rows that come after it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from sublet import BlockingClient, RejectedError
from sublet.spark_bridge import complete_backfill
from sublet.spark_bridge.history.files import History, files_in
from sublet.spark_bridge.options import OptionsError
from sublet.spark_bridge.sink.writers import writer
from tests.integration.cluster import Cluster
from tests.spark.bulk_app import TARGET

TIMELINE = "bulk/timeline"
SCHEMA = "key string, text string"
PATIENCE_S = 100


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of one worker, which is there for all tests."""
    cluster = Cluster(TARGET, tmp_path_factory.mktemp("workers"), {})
    try:
        asyncio.run(cluster.start(1))
        yield cluster.workers[0].address
    finally:
        cluster.close()


class Bridge:
    def __init__(self, spark: SparkSession, address: str, folder: Path) -> None:
        self.spark = spark
        self.address = address
        self.folder = folder
        self.keys = [f"{uuid4().hex}-{number}" for number in range(6)]
        self.client = BlockingClient(address)

    def options(self, **said: str) -> dict[str, str]:
        named = {"address": self.address, "target": TIMELINE, "key": "key", "payload": "text"}
        return {**named, **said}

    def put(self, folder: str, texts: list[str]) -> Path:
        """Write a file that says each of the texts of each key, in order."""
        path = self.folder / folder
        path.mkdir(parents=True, exist_ok=True)
        lines = [f'{{"key": "{key}", "text": "{text}"}}\n' for text in texts for key in self.keys]
        number = len(list(path.iterdir()))
        file = path / f"{number}.json"
        file.write_text("".join(lines))
        # Spark takes the oldest first.
        os.utime(file, (number, number))
        return path

    def stream(self, path: Path, **said: str) -> StreamingQuery:
        rows = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(path))
        writer = rows.writeStream.format("sublet").options(**self.options(**said))
        checkpoint = str(self.folder / f"checkpoint-{path.name}")
        return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()

    def write(self, path: Path, **said: str) -> None:
        # In one task, so that rows of a key keep their order.
        rows = self.spark.read.schema(SCHEMA).json(str(path)).coalesce(1)
        rows.write.format("sublet").mode("append").options(**self.options(**said)).save()

    def timelines(self) -> list[Any]:
        return self.client.call_many(TIMELINE, self.keys, [""] * len(self.keys))


@pytest.fixture
def bridge(spark: SparkSession, address: str, tmp_path: Path) -> Iterator[Bridge]:
    found = Bridge(spark, address, tmp_path)
    with found.client:
        yield found


def until_staged(bridge: Bridge, query: StreamingQuery) -> None:
    pipeline = bridge.client.pipeline(TIMELINE, query.id)
    give_up_s = time.monotonic() + PATIENCE_S
    while not pipeline.progress().rows_staged:
        assert time.monotonic() < give_up_s
        assert query.isActive, query.exception()


def test_live_rows_are_held_until_the_history_before_them_is_complete(bridge: Bridge) -> None:
    name = f"history-{uuid4().hex}"
    live = bridge.put("live", ["live 1", "live 2"])
    bridge.put("live", ["live 3"])
    query = bridge.stream(live, after=name, wait="taken")
    until_staged(bridge, query)
    assert bridge.timelines() == [[]] * 6

    history = bridge.put("history", ["old 1", "old 2"])
    bridge.write(history, mode="backfill", query=name)
    assert query.awaitTermination(PATIENCE_S)
    wanted = ["old 1", "old 2", "live 1", "live 2", "live 3"]
    assert bridge.timelines() == [wanted] * 6
    # What was written under this name is not written again.
    bridge.write(history, mode="backfill", query=name)
    assert bridge.timelines() == [wanted] * 6
    assert bridge.client.pipeline(TIMELINE, name).describe().completed_ms is not None


def test_a_stream_of_history_is_complete_when_somebody_says_so(bridge: Bridge) -> None:
    name = f"history-{uuid4().hex}"
    history = bridge.put("history", ["old 1"])
    bridge.put("history", ["old 2"])
    query = bridge.stream(history, mode="backfill")
    assert query.awaitTermination(PATIENCE_S)
    pipeline = bridge.client.pipeline(TIMELINE, name)
    assert pipeline.describe().completed_ms is None

    complete_backfill(TIMELINE, name, query=query.id, mark="2026-01-01", address=bridge.address)
    assert pipeline.describe().mark == "2026-01-01"
    live = bridge.stream(bridge.put("live", ["live 1"]), after=name, wait="taken")
    assert live.awaitTermination(PATIENCE_S)
    assert bridge.timelines() == [["old 1", "old 2", "live 1"]] * 6


def test_a_history_of_which_nothing_has_come_is_not_complete(bridge: Bridge) -> None:
    name, nobody = f"history-{uuid4().hex}", uuid4().hex
    pipeline = bridge.client.pipeline(TIMELINE, name)
    with pytest.raises(RejectedError, match=f"nothing was ever committed .* under {nobody}"):
        complete_backfill(TIMELINE, name, query=nobody, address=bridge.address)
    with pytest.raises(RejectedError, match=f"nothing was ever committed .* under {name}"):
        complete_backfill(TIMELINE, name, address=bridge.address)
    assert pipeline.describe().completed_ms is None
    complete_backfill(TIMELINE, name, query=nobody, allow_empty=True, address=bridge.address)
    assert pipeline.describe().completed_ms is not None


def test_times_that_spark_has_written_are_utc(bridge: Bridge) -> None:
    folder = bridge.folder / "events"
    zone = "+05:00"
    rows = "SELECT id, timestamp_seconds(3600 * id) AS at, {ntz} AS local FROM range(24)"
    local = "make_timestamp_ntz(1970, 1, 1, cast(id AS int), 0, 0)"
    before = bridge.spark.conf.get("spark.sql.session.timeZone")
    bridge.spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        for kind in ("INT96", "TIMESTAMP_MICROS"):
            bridge.spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
            table = bridge.spark.sql(rows.format(ntz=local)).coalesce(1)
            table.write.parquet(str(folder / kind.lower()))
    finally:
        bridge.spark.conf.set("spark.sql.session.timeZone", before or "UTC")
        bridge.spark.conf.unset("spark.sql.parquet.outputTimestampType")
    for kind in ("int96", "timestamp_micros"):
        files = files_in([str(folder / kind)])
        for column in ("at", "local"):
            until = "1970-01-01T10:00:00"
            history = History(files, batch_rows=100, time=column, until=until)
            assert sum(each.rows.num_rows for each in history.batches()) == 10


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"mode": "backfill"}, "needs a name that others can wait for"),
        ({"mode": "backfill", "query": "h", "after": "g"}, "cannot wait for a backfill"),
        ({"mode": "backfill", "query": "h", "deadline": "1s"}, "deadline"),
        ({"mode": "history"}, "allowed: live, backfill"),
        ({"after": "a/b"}, "the name of a backfill"),
    ],
)
def test_what_makes_no_sense_is_told_before_a_row_is_written(
    address: str, said: dict[str, str], told: str
) -> None:
    schema = StructType().add("key", "string").add("text", "string")
    named = {"address": address, "target": TIMELINE, "key": "key", "payload": "text"}
    with pytest.raises(OptionsError, match=told):
        writer(schema, {**named, **said}, overwrite=False)
