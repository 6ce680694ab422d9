"""`format("sublet")` as a sink: what Spark writes counts once; what cannot be written is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from sublet import BlockingClient, RejectedError
from sublet.functions.address import partition_index_of
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.spark_bridge import clustered, register
from sublet.spark_bridge.connections import client_of, close_clients
from sublet.spark_bridge.options import Connection
from sublet.spark_bridge.sink.writers import stream_writer, writer
from tests.integration.cluster import Cluster
from tests.ports import free_ports
from tests.spark.spark_app import TALLY, TARGET, Event, Tally, events_of, read_tallies, tallies_of

SCHEMA = "key string, amount bigint, number bigint"
ENDED_WITHIN_S = 120
ROWS_AT_ONCE = "spark.sql.execution.arrow.maxRecordsPerBatch"


class Sink:
    """A worker, and folders of files that Spark reads as streams."""

    def __init__(self, spark: SparkSession, address: str, folder: Path) -> None:
        self.spark = spark
        self.address = address
        self.folder = folder
        self.client = BlockingClient(address)
        self.prefix = uuid4().hex
        """Of keys: each test has its own."""

    def put(self, events: Iterable[Event], name: str) -> None:
        """Let a file be there at once, with rows whose keys are this test's own."""
        incoming = self.folder / "incoming"
        incoming.mkdir(parents=True, exist_ok=True)
        lines = [
            json.dumps({"key": self.prefix + key, "amount": amount, "number": number})
            for key, amount, number in events
        ]
        made = self.folder / name
        made.write_text("\n".join(lines))
        made.rename(incoming / f"{name}.json")

    def stream(self) -> DataFrame:
        """One file a micro-batch."""
        incoming = self.folder / "incoming"
        incoming.mkdir(parents=True, exist_ok=True)
        reader = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.json(str(incoming))

    def start(self, rows: DataFrame, checkpoint: str = "checkpoint", **said: str) -> StreamingQuery:
        """Begin to write all that is there."""
        writer = rows.writeStream.format("sublet").trigger(availableNow=True)
        options = {"address": self.address, "target": TALLY, "key": "key", **said}
        return (
            writer.options(**options)
            .option("checkpointLocation", str(self.folder / checkpoint))
            .start()
        )

    def run(self, checkpoint: str = "checkpoint", **said: str) -> StreamingQuery:
        query = self.start(self.stream(), checkpoint, **{"wait": "taken", **said})
        assert query.awaitTermination(ENDED_WITHIN_S)
        return query

    def write(self, events: Iterable[Event], **said: str) -> None:
        """Write rows as a table."""
        rows = [(self.prefix + key, amount, number) for key, amount, number in events]
        self.save(self.spark.createDataFrame(rows, SCHEMA), **said)

    def save(self, rows: DataFrame, mode: str = "append", **said: str) -> None:
        options = {"address": self.address, "target": TALLY, "key": "key", **said}
        rows.write.format("sublet").mode(mode).options(**options).save()

    def tallies(self) -> dict[str, Tally]:
        """Return what has come of this test's keys."""
        keys = list(tallies_of([]))
        found = read_tallies(self.client, [self.prefix + key for key in keys])
        return dict(zip(keys, found.values(), strict=True))


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of one worker, which is there for all tests."""
    cluster = Cluster(TARGET, tmp_path_factory.mktemp("workers"), {})
    try:
        asyncio.run(cluster.start(1))
        yield cluster.workers[0].address
        close_clients()
    finally:
        cluster.close()


@pytest.fixture
def sink(spark: SparkSession, address: str, tmp_path: Path) -> Iterator[Sink]:
    found = Sink(spark, address, tmp_path)
    with found.client:
        yield found


def test_every_row_of_several_micro_batches_counts_once(sink: Sink) -> None:
    files = [events_of(number, 700) for number in range(3)]
    for number, events in enumerate(files):
        sink.put(events, f"{number}")
    query = sink.run()
    assert sink.tallies() == tallies_of(event for events in files for event in events)
    batches = [each for each in query.recentProgress if each["numInputRows"]]
    assert [each["sink"]["numOutputRows"] for each in batches] == [700, 700, 700]


def test_a_query_goes_on_from_its_checkpoint_and_what_it_does_again_changes_nothing(
    sink: Sink,
) -> None:
    first, second, third = (events_of(number, 300) for number in (10, 11, 12))
    sink.put(first, "0")
    sink.put(second, "1")
    sink.run()
    # As if the driver had died before it wrote down that the last batch was done.
    forget_last_commit(sink.folder / "checkpoint")
    sink.put(third, "2")
    query = sink.run(deadline="1m")
    assert [each["batchId"] for each in query.recentProgress if each["numInputRows"]] == [1, 2]
    assert sink.tallies() == tallies_of([*first, *second, *third])

    # Another query, as far as anybody can know: its rows count again.
    sink.run("another-checkpoint", urgency="lowest")
    assert sink.tallies() == tallies_of([*first, *second, *third] * 2)


def forget_last_commit(checkpoint: Path) -> None:
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def test_a_table_is_written_once_for_each_number_that_its_query_has(sink: Sink) -> None:
    first, second = events_of(20, 500), events_of(21, 500)
    name = uuid4().hex
    for _ in range(2):
        sink.write(first, query=name, wait="taken")
    assert sink.tallies() == tallies_of(first)
    sink.write(second, query=name, batch="1", wait="taken")
    sink.write(first, query=name, batch="0", wait="taken")
    assert sink.tallies() == tallies_of([*first, *second])

    # Who has no name is somebody else each time; it returns when the rows are taken.
    for _ in range(2):
        sink.write(first)
    assert sink.tallies() == tallies_of([*first, *second, *first, *first])


def test_rows_are_due_when_the_option_deadline_says(sink: Sink) -> None:
    events = events_of(25, 300)

    def late_after(**said: str) -> int:
        before = late_count(sink.address)
        sink.write(events, wait="taken", **said)
        return late_count(sink.address) - before

    assert late_after() == 0
    assert late_after(deadline="1h") == 0
    # Due at the commit, so no row can be done in time.
    assert late_after(deadline="0ms") == len(events)
    before = late_count(sink.address)
    sink.put(events, "0")
    sink.run(deadline="0ms")
    assert late_count(sink.address) - before == len(events)
    assert sink.tallies() == tallies_of(events * 4)


def late_count(address: str) -> int:
    """Return what the worker shows as `sublet_late_total`."""

    async def ask() -> int:
        async with UnaryClient(address) as unary:
            return (await unary.status()).counters["late"]

    return asyncio.run(ask())


def test_tasks_and_batches_without_rows_do_no_harm(sink: Sink) -> None:
    rows = sink.spark.createDataFrame([(sink.prefix + "k1", 5, 6)], SCHEMA)
    sink.save(rows.repartition(6))
    sink.save(rows.where("amount > 100"))
    sink.save(rows.sparkSession.createDataFrame([], SCHEMA))
    assert sink.tallies()["k1"] == Tally(1, 5, 6)

    sink.put([], "0")
    sink.put([Event("k1", 7, 8)], "1")
    sink.run()
    assert sink.tallies()["k1"] == Tally(2, 12, 14)


def test_rows_that_cannot_be_messages_end_the_query_and_leave_nothing_of_their_batch(
    sink: Sink,
) -> None:
    sink.put([Event("k1", 1, 1)], "0")
    sink.run()
    good = {"key": sink.prefix + "k2", "amount": 2, "number": 2}
    bad = [{"amount": 3, "number": 3}, {"key": sink.prefix + "k3", "amount": 3}]
    made = sink.folder / "made"
    made.write_text("\n".join(json.dumps(each) for each in (good, *bad)))
    made.rename(sink.folder / "incoming" / "1.json")
    with pytest.raises(StreamingQueryException, match="key column 'key' is null"):
        sink.run()
    rows = sink.stream().where("key is not null")
    with pytest.raises(StreamingQueryException, match=r"'number' is null in 1 of . rows, but the"):
        sink.start(rows).awaitTermination(ENDED_WITHIN_S)
    assert sink.tallies() == tallies_of([Event("k1", 1, 1)])

    # Whoever leaves them out goes on where it has ended.
    query = sink.start(rows.where("number is not null"), wait="taken")
    assert query.awaitTermination(ENDED_WITHIN_S)
    assert sink.tallies() == tallies_of([Event("k1", 1, 1), Event("k2", 2, 2)])


COLUMNS = {"key": StringType(), "amount": LongType(), "number": LongType()}


@pytest.mark.parametrize(
    ("said", "columns", "told"),
    [
        ({"target": "spark/tallly"}, {}, "no function 'spark/tallly' in this cluster; known: "),
        (
            {"key": "customer"},
            {},
            r"names the column 'customer', which is missing .* columns: key, amount",
        ),
        ({"deadlin": "1s"}, {}, r"no option 'deadlin' \(did you mean deadline\?\)"),
        ({"urgency": "high"}, {}, "option urgency is 'high'; allowed: normal, lowest"),
        ({"path": "somewhere"}, {}, "no option 'path'"),
        ({}, {"number": None}, "takes Row, but there is no column number"),
        ({}, {"more": LongType()}, "Row, which has no field more; allowed columns: amount"),
        ({}, {"amount": StringType()}, "'amount' has type string, .* integer"),
        ({"payload": "amount"}, {}, "'amount' has type int64, but the handler takes object"),
        ({}, {"amount": TimestampType()}, "'amount' has type timestamp.* takes integer"),
        ({}, {"amount": ArrayType(LongType())}, "'amount' has type list.* takes integer"),
        ({}, {"amount": VariantType()}, "'amount' has type variant; allowed: boolean"),
        ({}, {"amount": CalendarIntervalType()}, "'amount' has type interval; allowed: "),
        ({}, {"key": DoubleType()}, "key column 'key' has type double; allowed: "),
    ],
)
def test_what_can_never_work_is_told_when_it_is_planned(
    address: str, said: dict[str, str], columns: dict[str, DataType | None], told: str
) -> None:
    fields = {**COLUMNS, **columns}
    schema = StructType([StructField(name, kind) for name, kind in fields.items() if kind])
    options = {"address": address, "target": TALLY, "key": "key", **said}
    for planned in (stream_writer, writer):
        with pytest.raises(RejectedError, match=told):
            planned(schema, options, False)


def test_writers_only_add_to_what_was_written(address: str) -> None:
    schema = StructType([StructField(name, kind) for name, kind in COLUMNS.items()])
    options = {"address": address, "target": TALLY, "key": "key"}
    with pytest.raises(RejectedError, match="use mode append"):
        writer(schema, options, True)
    with pytest.raises(RejectedError, match="use outputMode append"):
        stream_writer(schema, options, True)
    with pytest.raises(RejectedError, match="a stream has an id of its own"):
        stream_writer(schema, {**options, "query": "mine"}, False)


def test_a_write_without_a_name_ends_when_it_can_be_forgotten(address: str) -> None:
    schema = StructType([StructField(name, kind) for name, kind in COLUMNS.items()])
    options = {"address": address, "target": TALLY, "key": "key", "wait": "sealed"}
    with pytest.raises(RejectedError, match="needs a named write"):
        writer(schema, options, False)
    writer(schema, {**options, "query": "named"}, False)


def test_spark_tells_why_a_query_cannot_work(sink: Sink) -> None:
    sink.put([Event("k1", 1, 1)], "0")
    with pytest.raises(StreamingQueryException, match="no column number"):
        sink.start(sink.stream().drop("number")).awaitTermination(ENDED_WITHIN_S)
    rows = sink.spark.createDataFrame([(sink.prefix, 1, 2)], SCHEMA)
    with pytest.raises(PySparkException, match="use mode append"):
        sink.save(rows, mode="overwrite")
    nowhere = {"address": "127.0.0.1:1", "connect_timeout": "500ms"}
    with pytest.raises(PySparkException, match=r"no worker responds at 127\.0\.0\.1:1 "):
        sink.save(rows, **nowhere)
    # The first batch of a query fails at once; a later one waits, as nobody looks at it.
    with pytest.raises(StreamingQueryException, match=r"no worker responds at 127\.0\.0\.1:1 "):
        sink.run(**nowhere)


def test_no_room_ends_a_query_when_its_patience_does_and_nothing_is_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    events = events_of(30, 2_000)
    cluster = Cluster(TARGET, tmp_path / "workers", {"port": free_ports(1)[0]})
    try:
        worker = cluster.add_worker(staged_bytes_max=5_000)
        asyncio.run(cluster.ready())
        sink = Sink(spark, worker.address, tmp_path)
        sink.put(events, "0")
        spark.conf.set(ROWS_AT_ONCE, 200)
        with pytest.raises(StreamingQueryException, match=r"allowed: 5000 \(staged_bytes_max\)"):
            sink.run(timeout="1s", batch_rows="200")
        worker.kill()
        cluster.add_worker()
        asyncio.run(cluster.ready())
        sink.run(batch_rows="200")
        with sink.client:
            assert sink.tallies() == tallies_of(events)
    finally:
        spark.conf.unset(ROWS_AT_ONCE)
        cluster.close()


def test_clustered_rows_of_a_partition_are_in_one_task(sink: Sink) -> None:
    events = events_of(40, 400)
    rows = sink.spark.createDataFrame(
        [(sink.prefix + key, amount, number) for key, amount, number in events], SCHEMA
    )
    gathered = clustered(rows, target=TALLY, key="key", tasks=2, address=sink.address)
    assert gathered.rdd.getNumPartitions() == 2
    tasks = gathered.selectExpr("key", "spark_partition_id() as task").distinct().collect()
    found: dict[int, set[int]] = {}
    for key, task in tasks:
        found.setdefault(partition_index_of(key, 4), set()).add(task)
    assert found == {0: {0}, 1: {1}, 2: {0}, 3: {1}}
    # Spark has found the formats by itself: to be told of them changes nothing.
    register(sink.spark)
    sink.save(gathered)
    assert sink.tallies() == tallies_of(events)


def test_a_process_has_one_client_until_that_is_closed(address: str) -> None:
    connection = Connection(addresses=(address,))
    client = client_of(connection)
    assert client_of(connection) is client
    client.close()
    another = client_of(connection)
    assert another is not client
    assert read_tallies(another, ["nobody"]) == {"nobody": Tally()}
