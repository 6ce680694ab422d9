"""What Spark writes to a handler of columns goes there as Arrow, types of all kinds included."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sublet import BlockingClient
from sublet.spark_bridge.connections import close_clients
from tests.integration.cluster import Cluster

TARGET = "tests.spark.columns_app:app"
ROWS = 10_000
KEYS = 50


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    cluster = Cluster(TARGET, tmp_path_factory.mktemp("workers"), {})
    try:
        asyncio.run(cluster.start(1))
        yield cluster.workers[0].address
        close_clients()
    finally:
        cluster.close()


@pytest.mark.parametrize("function", ["tables/typed", "tables/anything"])
def test_a_stream_of_columns_counts_once(
    spark: SparkSession, address: str, tmp_path: Path, function: str
) -> None:
    rows = spark.range(ROWS).selectExpr(
        f"concat('k', id % {KEYS}) as key",
        "cast(id % 10 as int) as amount",
        "timestamp_seconds(id) as at",
        "array(cast(id as string), null) as tags",
        "if(id % 3 = 0, null, named_struct('x', id, 'y', 'é')) as place",
    )
    rows.write.parquet(str(tmp_path / "rows"))
    stream = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "rows"))
    options = {"address": address, "target": function, "key": "key", "wait": "taken"}
    query = (
        stream.writeStream.format("sublet")
        .options(**options)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)

    wanted = {key: [0, 0] for key in range(KEYS)}
    for row in range(ROWS):
        mine = wanted[row % KEYS]
        mine[0] += 1
        mine[1] += row % 10
    with BlockingClient(address) as client:
        found = client.call_many(
            "tables/look", [f"k{key}" for key in range(KEYS)], [function] * KEYS
        )
    assert dict(enumerate(found)) == wanted


def test_a_null_that_the_columns_of_a_handler_do_not_take_ends_the_write(
    spark: SparkSession, address: str
) -> None:
    rows = spark.range(10).selectExpr(
        "'null' as key",
        "if(id = 7, null, cast(id as int)) as amount",
        "timestamp_seconds(id) as at",
        "array('a') as tags",
        "named_struct('x', id, 'y', 'z') as place",
    )
    options = {"address": address, "target": "tables/typed", "key": "key"}
    with pytest.raises(PySparkException, match=r"'amount' is null in 1 of \d+ rows"):
        rows.write.format("sublet").mode("append").options(**options).save()
    with BlockingClient(address) as client:
        assert client.call("tables/look", "null", "tables/typed") == [0, 0]
