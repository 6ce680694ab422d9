"""`format("sublet-state")` as a sink: states that Spark has computed, set once, as they are."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from sublet import BlockingClient, SubletError
from sublet.spark_bridge.state.writer import stream_writer, writer
from tests.integration.cluster import Cluster
from tests.spark.bulk_app import TARGET

TOTAL = "bulk/total"
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


class Bulk:
    def __init__(self, spark: SparkSession, address: str, folder: Path) -> None:
        self.spark = spark
        self.address = address
        self.folder = folder
        self.prefix = uuid4().hex
        self.client = BlockingClient(address)

    def key(self, number: int) -> str:
        return f"{self.prefix}-{number}"

    def table(self, values: dict[int, int]) -> DataFrame:
        rows = [(self.key(number), value) for number, value in values.items()]
        return self.spark.createDataFrame(rows, "key string, value bigint")

    def set(self, rows: DataFrame, function: str = TOTAL, **said: str) -> None:
        options = {"address": self.address, "function": function, "key": "key", **said}
        rows.write.format("sublet-state").mode("append").options(**options).save()

    def totals(self, *numbers: int) -> list[int]:
        return self.client.call_many(
            TOTAL, [self.key(each) for each in numbers], [0] * len(numbers)
        )


@pytest.fixture
def bulk(spark: SparkSession, address: str, tmp_path: Path) -> Iterator[Bulk]:
    found = Bulk(spark, address, tmp_path)
    with found.client:
        yield found


def test_states_are_set_once_and_messages_go_on_from_them(bulk: Bulk) -> None:
    states = bulk.table({number: 10 * number for number in range(500)})
    bulk.set(states, value="value", query=f"load-{bulk.prefix}")
    assert bulk.totals(0, 7, 499) == [0, 70, 4_990]
    assert bulk.client.call(TOTAL, bulk.key(7), 5) == 75

    bulk.set(states, value="value", query=f"load-{bulk.prefix}")
    assert bulk.totals(7) == [75]


def test_what_becomes_of_keys_that_have_a_state_is_said_by_an_option(bulk: Bulk) -> None:
    for number in (1, 2):
        bulk.client.call(TOTAL, bulk.key(number), number)
    with pytest.raises(PySparkException, match="2 of 3 states of bulk/total were not set"):
        bulk.set(bulk.table({1: 100, 2: 200, 3: 300}), value="value")
    assert bulk.totals(1, 2, 3) == [1, 2, 300]

    bulk.set(bulk.table({1: 100, 4: 400}), value="value", ifexists="keep")
    assert bulk.totals(1, 4) == [1, 400]
    bulk.set(bulk.table({1: 100, 4: 401}), value="value", ifexists="overwrite")
    assert bulk.totals(1, 4) == [100, 401]


def test_columns_become_the_parts_of_a_state(bulk: Bulk) -> None:
    seen = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    profiles: list[tuple[Any, ...]] = [
        (bulk.key(1), "ada", 1.5, seen),
        (bulk.key(2), "bob", 2.0, None),
    ]
    table = bulk.spark.createDataFrame(
        profiles, "key string, name string, score double, seen timestamp"
    )
    bulk.set(table, "bulk/profile")
    found = bulk.client.call_many("bulk/profile", [bulk.key(1), bulk.key(2)], [None, None])
    assert [(each["name"], each["score"]) for each in found] == [("ada", 1.5), ("bob", 2.0)]
    assert str(found[0]["seen"]).startswith("2026-01-02")

    baskets: list[tuple[Any, ...]] = [
        (bulk.key(1), 9.5, {"tea": 2, "milk": 1}, ["tea", "milk"]),
        (bulk.key(2), 1.0, None, None),
    ]
    table = bulk.spark.createDataFrame(
        baskets, "key string, spent double, items map<string, int>, last array<string>"
    )
    bulk.set(table, "bulk/basket")
    assert bulk.client.call_many("bulk/basket", [bulk.key(1), bulk.key(2)], [None, None]) == [
        [9.5, {"tea": 2, "milk": 1}, ["tea", "milk"]],
        [1.0, {}, []],
    ]


def test_a_task_that_fails_leaves_no_state_of_its_batch(bulk: Bulk) -> None:
    states = bulk.table({number: number for number in range(100)}).repartition(4)
    broken = sql.expr("if(key like '%-57', raise_error('broken'), value)")
    with pytest.raises(PySparkException, match="broken"):
        bulk.set(states.withColumn("value", broken), value="value")
    assert bulk.totals(*range(100)) == [0] * 100


def test_a_stream_sets_the_latest_state_of_each_key(bulk: Bulk) -> None:
    folder = bulk.folder / "states"
    folder.mkdir()
    for number in range(2):
        lines = [f'{{"key": "{bulk.key(each)}", "value": {number + 1}{each}}}\n' for each in (1, 2)]
        path = folder / f"{number}.json"
        path.write_text("".join(lines))
        # Spark takes the oldest first.
        os.utime(path, (number, number))
    reader = bulk.spark.readStream.schema("key string, value bigint")
    rows = reader.option("maxFilesPerTrigger", 1).json(str(folder))
    writer = (
        rows.writeStream.format("sublet-state")
        .trigger(availableNow=True)
        .options(
            address=bulk.address,
            function=TOTAL,
            key="key",
            value="value",
            checkpointLocation=str(bulk.folder / "checkpoint"),
        )
    )
    query = writer.option("ifexists", "overwrite").start()
    assert query.awaitTermination(PATIENCE_S)
    assert bulk.totals(1, 2) == [21, 22]


@pytest.mark.parametrize(
    ("function", "columns", "said", "told"),
    [
        (TOTAL, {"value": "string"}, {"value": "value"}, "the handler takes integer"),
        (TOTAL, {"value": "long"}, {}, "not a map"),
        ("bulk/profile", {"name": "string"}, {}, "no column score"),
        ("bulk/basket", {"sum": "double"}, {}, "no field sum"),
        ("bulk/popular", {"value": "string"}, {"value": "value"}, "cannot be set"),
        ("bulk/none", {"value": "string"}, {"value": "value"}, "bulk/none"),
        (TOTAL, {"value": "long"}, {"ifexists": "replace"}, "fail, overwrite, keep"),
        (TOTAL, {"value": "long"}, {"payload": "value"}, "no option 'payload'"),
        (TOTAL, {"value": "variant"}, {"value": "value"}, "'value' has type variant; allowed:"),
    ],
)
def test_what_cannot_be_a_state_is_told_before_a_row_is_written(
    address: str, function: str, columns: dict[str, str], said: dict[str, str], told: str
) -> None:
    schema = StructType().add("key", "string")
    for name, kind in columns.items():
        schema = schema.add(name, kind)
    options = {"address": address, "function": function, "key": "key", **said}
    with pytest.raises(SubletError, match=told):
        writer(schema, options, overwrite=False)


def test_a_stream_has_to_say_what_becomes_of_states_that_are_there(address: str) -> None:
    schema = StructType().add("key", "string").add("value", "long")
    options = {"address": address, "function": TOTAL, "key": "key", "value": "value"}
    with pytest.raises(SubletError, match="overwrite or keep"):
        stream_writer(schema, options, overwrite=False)
    with pytest.raises(SubletError, match="a stream has an id of its own"):
        stream_writer(schema, {**options, "query": "q"}, overwrite=False)


def test_a_whole_table_cannot_be_replaced(bulk: Bulk) -> None:
    writer = bulk.table({1: 1}).write.format("sublet-state").mode("overwrite")
    with pytest.raises(PySparkException, match="use mode append"):
        writer.options(address=bulk.address, function=TOTAL, key="key", value="value").save()
