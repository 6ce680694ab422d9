"""Rows of a streaming query count once, whatever happens to Sublet, its Redis, tasks and streams
meanwhile; with other rows whenever a batch is done again, too."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.breakable_source import BreakableSource
from tests.spark.driver_app import Plan, start, write_file
from tests.spark.gates import ADDING, CUT, DECIDED, ENDED, SEALED, SEALING, STAGED, Gates
from tests.spark.spark_app import Event, events_of
from tests.spark.sublet_workers import Account, SubletWorkers, batches_logged, running_workers

pytestmark = pytest.mark.timeout(600)
FILES = 3
ROWS = 400
"""Of a file; each is sent twice."""
WAIT_S = 300


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SubletWorkers]:
    with running_workers(tmp_path_factory.mktemp("workers")) as workers:
        yield workers


class Queries:
    """One query over some files, which can be started again and again."""

    def __init__(self, spark: SparkSession, workers: SubletWorkers, folder: Path) -> None:
        self.gates = Gates(folder / "gates")
        self.checkpoint = folder / "checkpoint"
        self.workers = workers
        self.account = Account.of(workers)
        self._spark = spark
        self._plan = Plan(
            files=str(folder / "files"),
            checkpoint=str(self.checkpoint),
            address=workers.address,
            gates=str(self.gates.folder),
        )
        for file in range(FILES):
            write_file(folder / "files", file, ROWS)

    @property
    def rows(self) -> list[Event]:
        return [each for file in range(FILES) for each in events_of(file, ROWS)]

    def start(self) -> StreamingQuery:
        return start(self._spark, self._plan)

    def finish(self, query: StreamingQuery) -> None:
        assert query.awaitTermination(WAIT_S), query.status

    def run(self) -> None:
        self.finish(self.start())

    def check(self) -> None:
        """Every row has counted as often as the account says, and all batches are logged."""
        with self.workers.client() as client:
            assert self.account.wrong(client, self.checkpoint) == []
        begun = batches_logged(self.checkpoint, "offsets")
        assert begun == batches_logged(self.checkpoint) != []


@pytest.fixture
def queries(spark: SparkSession, workers: SubletWorkers, tmp_path: Path) -> Iterator[Queries]:
    spark.dataSource.register(BreakableSource)
    workers.ready()
    yield Queries(spark, workers, tmp_path)
    for each in spark.streams.active:
        each.stop()


def test_a_batch_that_is_sent_again_with_other_rows_changes_nothing(queries: Queries) -> None:
    queries.run()
    # As if the driver had died between the sink's commit and the log's.
    last = batches_logged(queries.checkpoint)[-1]
    for name in (f"{last}", f".{last}.crc"):
        (queries.checkpoint / "commits" / name).unlink()
    queries.run()
    queries.account.add(queries.rows)
    queries.check()


def test_a_query_without_its_checkpoint_is_another_one(queries: Queries) -> None:
    queries.run()
    shutil.rmtree(queries.checkpoint)
    queries.run()
    queries.account.add(queries.rows).add(queries.rows)
    queries.check()


def test_workers_killed_in_a_task_and_in_a_commit_do_not_end_the_query(queries: Queries) -> None:
    queries.gates.arm(ADDING)
    query = queries.start()
    for place, (step, following) in enumerate([(ADDING, SEALING), (SEALING, "")]):
        stopped = queries.gates.stopped(step)
        if following:
            queries.gates.arm(following)
        queries.workers.kill(place)
        stopped.release()
        queries.workers.start_again(place)
        queries.workers.ready()
    queries.finish(query)
    queries.account.add(queries.rows)
    queries.check()


def test_a_redis_that_is_restarted_does_not_end_the_query(queries: Queries) -> None:
    queries.gates.arm(ENDED)
    query = queries.start()
    for step, following in ((ENDED, DECIDED), (DECIDED, "")):
        stopped = queries.gates.stopped(step)
        if following:
            queries.gates.arm(following)
        queries.workers.redis.kill()
        stopped.release()
        queries.workers.redis.start()
        queries.workers.ready()
    queries.finish(query)
    queries.account.add(queries.rows)
    queries.check()


def test_streams_that_are_cut_are_made_again(queries: Queries) -> None:
    steps = (ADDING, ENDED, STAGED, DECIDED, SEALING)
    for each in steps:
        queries.gates.arm(CUT + each)
    queries.run()
    assert all(map(queries.gates.cut_count, steps))
    queries.account.add(queries.rows)
    queries.check()


def test_a_task_that_dies_ends_the_query_and_its_rows_count_with_the_next(
    queries: Queries,
) -> None:
    queries.gates.arm(ADDING)
    query = queries.start()
    queries.gates.stopped(ADDING).kill()
    # Here, in local mode, Spark does not try a task again.
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(WAIT_S)
    queries.run()
    queries.account.add(queries.rows)
    queries.check()


def test_a_commit_that_fails_after_it_has_taken_effect_counts_once(queries: Queries) -> None:
    queries.gates.arm(SEALED)
    query = queries.start()
    queries.gates.stopped(SEALED).kill()
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(WAIT_S)
    assert batches_logged(queries.checkpoint) == []
    queries.run()
    queries.account.add(queries.rows)
    queries.check()
