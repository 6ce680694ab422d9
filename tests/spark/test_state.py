"""States read by a real Spark from real workers, while others write them."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import EqualTo, In
from pyspark.sql.types import LongType, StringType, StructField, StructType

from sublet import BlockingClient, SubletError
from sublet.functions.address import partition_index_of
from sublet.spark_bridge import register
from sublet.spark_bridge.connections import close_clients
from sublet.spark_bridge.state import reader as state_reader
from sublet.spark_bridge.state.rows import Wanted
from tests.integration.cluster import Cluster
from tests.ports import free_ports

TARGET = "tests.integration.snapshot_app:app"
STEP = "kept/step"
PARTITIONS = 4
KEYS = [f"key-{number:04}" for number in range(1_200)]
STEP_KEYS = 40


def of_partition(index: int) -> list[str]:
    return [key for key in KEYS if partition_index_of(key, PARTITIONS) == index]


class Workers:
    def __init__(self, folder: Path, count: int) -> None:
        self.cluster = Cluster(TARGET, folder, {})
        self._ports = free_ports(count)
        for port in self._ports:
            self.cluster.add_worker(expected=count, port=port)
        asyncio.run(self.cluster.ready())

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self._ports]

    def client(self) -> BlockingClient:
        return BlockingClient(self.addresses, connect_timeout="20s")

    def counters(self) -> dict[str, float]:
        status = asyncio.run(self.cluster.status(self.cluster.living[0]))
        return dict(status.counters)


class Walkers:
    """Set one step of keys after the other to the next number, in all partitions at once, over and
    over: at every commit of a partition no step is ahead of an earlier one, nor more than one
    behind it."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._walk, args=(index,)) for index in range(PARTITIONS)
        ]
        self.failed: list[SubletError] = []
        self.rounds = [0] * PARTITIONS

    def __enter__(self) -> Walkers:
        with self._workers.client() as client:
            client.call_many(STEP, KEYS, [1] * len(KEYS))
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for each in self._threads:
            each.join()
        assert not self.failed

    def _walk(self, index: int) -> None:
        keys = of_partition(index)
        try:
            with self._workers.client() as client:
                for value in count(2):
                    for start in range(0, len(keys), STEP_KEYS):
                        if self._ending.is_set():
                            return
                        chosen = keys[start : start + STEP_KEYS]
                        client.call_many(STEP, chosen, [value] * len(chosen))
                    self.rounds[index] = value
        except SubletError as error:
            self.failed.append(error)


def check_at_one_commit(rows: list[Row]) -> None:
    found = {row.key: row.state for row in rows}
    assert sorted(found) == KEYS
    for index in range(PARTITIONS):
        keys = of_partition(index)
        steps = [keys[start : start + STEP_KEYS] for start in range(0, len(keys), STEP_KEYS)]
        values = [sorted(found[key] for key in step) for step in steps]
        assert values[-1][0] >= values[0][-1] - 1, values
        for earlier, later in pairwise(values):
            assert earlier[0] >= later[-1], values
        assert len({row.commit for row in rows if row.partition == index}) == 1


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    made = Workers(tmp_path_factory.mktemp("state"), 1)
    try:
        yield made
    finally:
        made.cluster.close()


@pytest.fixture(scope="module")
def states(spark: SparkSession, workers: Workers) -> Callable[..., DataFrame]:
    """Return what reads the states of a function."""
    register(spark)

    def read(function: str, schema: str = "", **options: Any) -> DataFrame:
        reader = spark.read.format("sublet-state").option("function", function)
        reader = reader.option("address", ",".join(workers.addresses)).options(**options)
        return (reader.schema(schema) if schema else reader).load()

    return read


def test_a_data_frame_has_each_partition_at_one_commit_while_states_change(
    workers: Workers, states: Callable[..., DataFrame]
) -> None:
    frame = states(STEP, "key STRING, partition INT, state INT, commit BIGINT", tasks=3)
    with Walkers(workers) as walkers:
        before = list(walkers.rounds)
        rows = [frame.collect() for _ in range(3)]
        assert walkers.rounds != before
    for each in rows:
        check_at_one_commit(each)
    assert workers.counters()["snapshots_open"] == 0


def test_states_are_json_or_msgpack_or_columns(
    workers: Workers, states: Callable[..., DataFrame]
) -> None:
    with workers.client() as client:
        client.call_many("kept/basket", ["a", "a", "b"], ["tea", "milk", "tea"])
        client.call_many("kept/totals", ["a", "a", "b"], [3, 4, 5])
        client.call_many("kept/by_second", ["a", "a"], [[1_500], [2_100]])

    baskets = states("kept/basket")
    assert baskets.columns == ["key", "partition", "state", "commit"]
    assert {row.key: json.loads(row.state) for row in baskets.collect()} == {
        "a": {"tea": 1, "milk": 1},
        "b": {"tea": 1},
    }
    raw = states("kept/basket", state="binary").filter("key = 'b'").collect()
    assert [bytes(row.state) for row in raw] == [b"\x81\xa3tea\x01"]
    maps = states("kept/basket", "key STRING, state MAP<STRING, INT>").collect()
    assert {row.key: row.state for row in maps}["b"] == {"tea": 1}
    totals = states("kept/totals", "key STRING, visits INT, total BIGINT").orderBy("key")
    assert totals.collect() == [Row("a", 2, 7), Row("b", 1, 5)]
    windows = states(
        "kept/by_second", "state ARRAY<STRUCT<start_ms: BIGINT, end_ms: BIGINT, state: INT>>"
    )
    each = windows.selectExpr("explode(state) AS w").selectExpr("w.start_ms", "w.state")
    assert each.collect() == [Row(1_000, 1), Row(2_000, 1)]


def test_filters_on_key_and_partition_decide_what_is_read(
    workers: Workers, states: Callable[..., DataFrame]
) -> None:
    with workers.client() as client:
        client.call_many(STEP, KEYS, list(range(1, len(KEYS) + 1)))
    frame = states(STEP, "key STRING, partition INT, state INT")

    def read_and_pinned(chosen: DataFrame) -> tuple[list[Row], int]:
        before = workers.counters()["snapshots_started"]
        # Sorted here: Spark reads twice what it sorts, the first time for a sample.
        rows = sorted(chosen.collect())
        return rows, int(workers.counters()["snapshots_started"] - before)

    first = partition_index_of(KEYS[0], PARTITIONS)
    assert read_and_pinned(frame.filter(frame.key == KEYS[0])) == ([Row(KEYS[0], first, 1)], 1)
    rows, pinned = read_and_pinned(frame.filter(frame.key.isin(*KEYS[:2], "nobody")))
    assert [row.state for row in rows] == [1, 2]
    assert pinned == len({partition_index_of(key, PARTITIONS) for key in (*KEYS[:2], "nobody")})
    rows, pinned = read_and_pinned(frame.filter("partition IN (1, 3, 77) AND state > 100"))
    assert [row.key for row in rows] == sorted(
        key for key in (*of_partition(1), *of_partition(3)) if key > KEYS[99]
    )
    assert pinned == 2
    assert read_and_pinned(frame.filter("partition = 9")) == ([], 0)
    assert read_and_pinned(frame.filter(f"key = '{KEYS[0]}' AND partition = {first + 1}")) == (
        [],
        0,
    )


def test_a_session_that_pushes_no_filters_down_reads_all_and_filters_itself(
    spark: SparkSession, workers: Workers, states: Callable[..., DataFrame]
) -> None:
    with workers.client() as client:
        client.call_many(STEP, KEYS, list(range(1, len(KEYS) + 1)))
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "false")
    try:
        frame = states(STEP, "key STRING, state INT")
        assert frame.filter(frame.key == KEYS[0]).collect() == [Row(KEYS[0], 1)]
    finally:
        spark.conf.set(setting, "true")


def test_filters_go_with_the_reader_to_executors() -> None:
    schema = StructType([StructField("key", StringType()), StructField("state", LongType())])
    reader = state_reader.reader(schema, {"function": STEP})
    key, other = EqualTo(("key",), "a"), EqualTo(("state",), 3)

    assert list(reader.pushFilters([key, In(("key",), ("a", "b")), other])) == [other]
    assert pickle.loads(cloudpickle.dumps(reader))._wanted == Wanted(frozenset("a"))  # noqa: S301


def test_what_cannot_be_is_refused_with_what_is_allowed(states: Callable[..., DataFrame]) -> None:
    with pytest.raises(PySparkException, match=r"has no option 'task' \(did you mean tasks\?\)"):
        states(STEP, task=3)
    with pytest.raises(PySparkException, match=r"column 'key' is int64; allowed: STRING"):
        states(STEP, "key BIGINT, state INT").collect()
    with pytest.raises(PySparkException, match="kept/echo is stateless: it has no states"):
        states("kept/echo").collect()
    with pytest.raises(PySparkException, match=r"no function 'kept/nothing'.*known: .*kept/step"):
        states("kept/nothing").collect()
    with pytest.raises(PySparkException, match=r"state of kept/step\[key-.*does not fit"):
        states(STEP, "key STRING, state BOOLEAN").collect()


@pytest.mark.timeout(180)
def test_an_owner_that_dies_in_the_middle_leaves_each_partition_at_one_commit(
    spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    own = Workers(tmp_path / "own", 2)
    try:
        reader = spark.read.format("sublet-state").option("function", STEP)
        reader = reader.option("address", ",".join(own.addresses)).option("tasks", 1)
        frame = reader.schema("key STRING, partition INT, state INT, commit BIGINT").load()
        with Walkers(own) as walkers:
            check_at_one_commit(frame.collect())
            read: list[Row] = []
            rows = frame.rdd.toLocalIterator()
            read.append(next(rows))
            own.cluster.living[0].kill()
            read.extend(rows)
            check_at_one_commit(frame.collect())
            before = list(walkers.rounds)
            check_at_one_commit(frame.collect())
            assert walkers.rounds != before
        check_at_one_commit(read)
    finally:
        close_clients()
        own.cluster.close()
