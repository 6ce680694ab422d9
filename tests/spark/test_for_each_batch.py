"""`for_each_batch` brings each batch once, in order if wanted, and says what it cannot bring."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from sublet import BlockingClient
from sublet.spark_bridge import for_each_batch
from sublet.spark_bridge.options import OptionsError
from tests.integration.cluster import Cluster
from tests.spark.order_app import ORDER, TARGET
from tests.spark.spark_app import TALLY, Event, Tally, events_of, read_tallies, tallies_of

SCHEMA = "key string, amount bigint, number bigint"
ENDED_WITHIN_S = 120

Write = Callable[[DataFrame, int], None]


class Stream:
    """Files that Spark reads as a stream, one a micro-batch, and what has come of their rows."""

    def __init__(self, spark: SparkSession, client: BlockingClient, folder: Path) -> None:
        self.spark = spark
        self._client = client
        self._folder = folder
        self._prefix = uuid4().hex
        (folder / "incoming").mkdir()

    def put(self, events: Iterable[Event], name: str) -> None:
        lines = [json.dumps({**each._asdict(), "key": self._prefix + each.key}) for each in events]
        (self._folder / name).write_text("\n".join(lines))
        (self._folder / name).rename(self._folder / "incoming" / f"{name}.json")

    def run(self, write: Write, checkpoint: str = "checkpoint") -> None:
        """Write all that is there."""
        rows = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        query = (
            rows.json(str(self._folder / "incoming"))
            .writeStream.foreachBatch(write)
            .trigger(availableNow=True)
            .option("checkpointLocation", str(self._folder / checkpoint))
            .start()
        )
        assert query.awaitTermination(ENDED_WITHIN_S)

    def forget_last_commit(self) -> None:
        """Let Spark believe that it died before it noted that its last batch was written."""
        commits = self._folder / "checkpoint" / "commits"
        last = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
        (commits / f"{last}").unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)

    def tallies(self) -> dict[str, Tally]:
        keys = list(tallies_of([]))
        found = read_tallies(self._client, [self._prefix + key for key in keys])
        return dict(zip(keys, found.values(), strict=True))

    def order(self, key: str) -> list[int]:
        found: list[int] = self._client.call(ORDER, self._prefix + key, None)
        return found


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    cluster = Cluster(TARGET, tmp_path_factory.mktemp("workers"), {})
    try:
        asyncio.run(cluster.start(1))
        yield cluster.workers[0].address
    finally:
        cluster.close()


@pytest.fixture
def stream(spark: SparkSession, address: str, tmp_path: Path) -> Iterator[Stream]:
    with BlockingClient(address) as client:
        yield Stream(spark, client, tmp_path)


def writer(address: str, target: str = TALLY, **said: Any) -> Write:
    return for_each_batch(target, key="key", address=address, wait="taken", **said)


@pytest.mark.parametrize("said", [{}, {"cluster": False}, {"tasks": 1}], ids=str)
def test_every_row_counts_once_however_it_is_handed_to_tasks(
    stream: Stream, address: str, said: dict[str, Any]
) -> None:
    files = [events_of(number, 500) for number in range(2)]
    for number, events in enumerate(files):
        stream.put(events, f"{number}")

    stream.run(writer(address, **said))

    assert stream.tallies() == tallies_of(event for events in files for event in events)


def test_a_batch_that_is_done_again_with_other_rows_changes_nothing(
    stream: Stream, address: str
) -> None:
    events = events_of(3, 400)
    stream.put(events, "0")
    write = writer(address)
    stream.run(write)
    stream.forget_last_commit()

    def write_something_else(rows: DataFrame, batch: int) -> None:
        write(rows.unionAll(rows).sample(0.7, seed=1), batch)

    stream.run(write_something_else)

    assert stream.tallies() == tallies_of(events)


def test_a_query_that_is_started_again_goes_on(stream: Stream, address: str) -> None:
    stream.put(events_of(4, 300), "0")
    stream.run(writer(address))
    stream.put(events_of(5, 300), "1")
    stream.run(writer(address))

    assert stream.tallies() == tallies_of([*events_of(4, 300), *events_of(5, 300)])


def test_a_new_checkpoint_is_another_query(stream: Stream, address: str) -> None:
    events = events_of(6, 200)
    stream.put(events, "0")
    stream.run(writer(address))
    stream.run(writer(address), "another checkpoint")

    assert stream.tallies() == tallies_of([*events, *events])


def test_rows_of_a_key_are_handled_in_the_order_asked_for(stream: Stream, address: str) -> None:
    events = [Event(f"k{number % 5}", 1, number) for number in range(1_000)]
    stream.put(random.Random(1).sample(events, len(events)), "0")

    stream.run(writer(address, ORDER, order_by=["key", "number"]))

    for key in range(5):
        assert stream.order(f"k{key}") == [n for n in range(1_000) if n % 5 == key]


def test_one_batch_can_be_written_to_several_functions(stream: Stream, address: str) -> None:
    events = events_of(7, 200)
    stream.put(events, "0")
    tally, order = writer(address), writer(address, ORDER, order_by="number")

    def write_both(rows: DataFrame, batch: int) -> None:
        tally(rows, batch)
        order(rows, batch)

    stream.run(write_both)

    assert stream.tallies() == tallies_of(events)
    assert stream.order("k1") == [each.number for each in events if each.key == "k1"]


def test_parts_of_a_batch_can_be_written_to_one_function_under_names(
    stream: Stream, address: str
) -> None:
    events = events_of(9, 200)
    stream.put(events, "0")
    odd, even = writer(address, name="odd"), writer(address, name="even")

    def write_both(rows: DataFrame, batch: int) -> None:
        odd(rows.where("number % 2 = 1"), batch)
        even(rows.where("number % 2 = 0"), batch)

    stream.run(write_both)

    assert stream.tallies() == tallies_of(events)


def test_what_would_be_taken_for_a_repetition_is_refused(stream: Stream, address: str) -> None:
    stream.put(events_of(10, 10), "0")

    def write_twice(rows: DataFrame, batch: int) -> None:
        writer(address)(rows.where("number % 2 = 1"), batch)
        writer(address)(rows.where("number % 2 = 0"), batch)

    with pytest.raises(StreamingQueryException, match="give each its own for_each_batch"):
        stream.run(write_twice)


def test_what_cannot_be_brought_ends_the_query_and_says_why(stream: Stream, address: str) -> None:
    stream.put(events_of(8, 10), "0")
    write = for_each_batch(TALLY, key="customer", address=address)

    with pytest.raises(
        StreamingQueryException, match="names the column 'customer', which is missing"
    ):
        stream.run(write)


def test_it_is_for_streams_only(stream: Stream, address: str) -> None:
    rows = stream.spark.createDataFrame([("a", 1, 1)], SCHEMA)

    with pytest.raises(OptionsError, match="not a batch of a streaming query"):
        writer(address)(rows, 0)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"dedline": "1s"}, "did you mean deadline"),
        ({"query": "mine"}, "a stream has an id of its own"),
        ({"tasks": 0}, r"tasks is 0; allowed: 1\.\.10000"),
        ({"order_by": "number", "cluster": False}, "order_by needs clustered rows"),
        ({"name": "a b"}, "name is 'a b'; allowed: up to 50"),
        ({"target": "tally"}, "app/function"),
        ({"key": []}, "option key"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_before_anything_runs(
    said: dict[str, Any], told: str
) -> None:
    with pytest.raises(OptionsError, match=told):
        for_each_batch(**{"target": TALLY, "key": "key", **said})
