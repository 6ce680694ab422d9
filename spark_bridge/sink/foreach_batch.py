"""Writes batches to a function from `foreachBatch`, exactly once, as the sink does.

    df.writeStream.foreachBatch(for_each_batch("shop/order", key="customer")).start()

For pipelines that do more with a batch than write it, and for those that need rows in order: here
all rows of a key can go to one task and be sorted, which a sink cannot ask Spark for. Tasks stage
rows (`tasks`) and report what they staged as rows of a small table; the process that runs the
function (the driver, or with Spark Connect one beside the server) commits the batch (`commit`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa

from sublet.spark_bridge.options import Connection, OptionsError, SinkOptions, sink_options
from sublet.spark_bridge.sink.clustering import by_partition
from sublet.spark_bridge.sink.commit import commit
from sublet.spark_bridge.sink.tasks import (
    Identity,
    StagedRows,
    WritePlan,
    ensure_started,
    stage_rows,
)
from sublet.spark_bridge.sink.writers import QUERY_ID, RUN_ID, planned

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.connect.dataframe import DataFrame as ConnectDataFrame
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    Rows = DataFrame | ConnectDataFrame
    Session = SparkSession | ConnectSession

TASKS_MAX = 10_000
TASKS_DEFAULT = 4
"""Where it is unknown how many tasks can run at once, as with Spark Connect."""

RUNS_KNOWN_MAX = 1_000

_NAME = r"[A-Za-z0-9._-]{0,50}"
_STAGED = "staged binary"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StagedRows).decode


def for_each_batch(
    target: str,
    *,
    key: str | Sequence[str],
    cluster: bool = True,
    tasks: int | None = None,
    order_by: str | Sequence[str] = (),
    name: str = "",
    query_name: str = "",
    **options: object,
) -> ForEachBatch:
    """Return a function for `foreachBatch` that writes each batch to a Sublet function, once.

    - `target`, `key` and all other options are those of `format("sublet")`.
    - `cluster`: give all rows of a partition to one task. It costs a shuffle; without it rows stay
      where they are, and those of one key may come in any order.
    - `tasks`: how many tasks write a clustered batch; by default, as many as can run at once.
    - `order_by`: columns by which each task sorts its rows, so that those of a key are handled in
      this order within a batch.
    - `name`: distinguishes several of these that write to one function in one query.
    - `query_name`: the `queryName` of this query. Only needed with Spark Connect, if a session runs
      several queries: a batch does not tell there which one it belongs to.
    """
    key = (key,) if isinstance(key, str) else tuple(key)
    order_by = (order_by,) if isinstance(order_by, str) else tuple(order_by)
    given = {name: _text(value) for name, value in options.items() if value is not None}
    found = sink_options({"target": target, "key": ",".join(key), **given})
    if found.query:
        raise OptionsError(
            "the option query is for batch writes; drop it: a stream has an id of its own"
        )
    if tasks is not None and not 1 <= tasks <= TASKS_MAX:
        raise OptionsError(f"tasks is {tasks}; allowed: 1..{TASKS_MAX}")
    if order_by and not cluster:
        raise OptionsError("order_by needs clustered rows; drop order_by or cluster=False")
    if not re.fullmatch(_NAME, name):
        raise OptionsError(
            f"name is {name!r:.100}; allowed: up to 50 letters, digits, '.', '_' and '-'"
        )
    return ForEachBatch(found, _Arrangement(cluster, tasks, order_by), name, query_name)


class _Arrangement(NamedTuple):
    """How rows are handed to tasks."""

    is_clustered: bool
    tasks: int | None
    order_by: tuple[str, ...]

    def of(self, rows: Rows, key: Sequence[str], partition_count: int) -> Any:
        if not self.is_clustered:
            return rows
        tasks = self.tasks or _tasks_at_once(rows.sparkSession)
        arranged: Any = by_partition(rows, key, partition_count, tasks)
        return arranged.sortWithinPartitions(*self.order_by) if self.order_by else arranged


class ForEachBatch:
    """Writes batches to a function. Made by `for_each_batch`; Spark Connect pickles it."""

    def __init__(
        self, options: SinkOptions, arrangement: _Arrangement, name: str, query_name: str
    ) -> None:
        self._options = options
        self._arrangement = arrangement
        self._name = name
        self._query_name = query_name
        self._root: Session | None = None
        """With Spark Connect: the session that started the query. Batches have another one."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_root": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if _is_remote():
            from pyspark.sql.connect.session import SparkSession

            # The process that runs this for Spark Connect is in that session until the first batch.
            self._root = SparkSession.getActiveSession()

    def __call__(self, rows: Rows, batch: int) -> None:
        """Return when the batch is durable; its rows are handled once, even if it is repeated."""
        options = self._options
        query, run = self._running(rows)
        identity = Identity(f"{query}:{self._name}" if self._name else query, run, batch)
        place = (options.connection, options.target, identity.query, run)
        _check_first(place, batch)
        plan = planned(rows.schema, options)
        if plan.problem is not None and batch == 0:
            # Fail the first batch soon: somebody is waiting to see it start. Later, tasks retry.
            raise plan.problem
        pipeline = ensure_started(options, identity)
        arranged = self._arrangement.of(rows, options.key, pipeline.partition_count)
        told = arranged.mapInArrow(_Task(plan, identity), _STAGED).collect()
        if staged := [_decode(each["staged"]) for each in told]:
            commit(pipeline, options, staged, options.wait or "sealed")
        _latest[place] = batch

    def _running(self, rows: Rows) -> tuple[str, str]:
        """Return the id of the query whose batch is at hand, and that of its run."""
        if not _is_remote():
            return _running_here(rows)
        if self._root is None:
            raise OptionsError(
                "with Spark Connect, call for_each_batch in the client, outside of the function "
                "that is passed to foreachBatch"
            )
        name = self._query_name
        active = [each for each in self._root.streams.active if not name or each.name == name]
        if len(active) != 1:
            which = f"are named {name!r}" if name else "run in this session"
            raise OptionsError(
                f"cannot tell which query this batch belongs to: {len(active)} {which}; give each "
                "a queryName, and pass it as query_name"
            )
        return active[0].id, active[0].runId


_Place = tuple[Connection, str, str, str]

_latest: dict[_Place, int] = {}
"""The latest batch that this process has written, by cluster, target, query and run."""


def _check_first(place: _Place, batch: int) -> None:
    """Refuse what would be dropped as a repetition: a run has each batch once."""
    if place in _latest and batch <= _latest[place]:
        raise OptionsError(
            f"batch {batch} was already written to {place[1]}; to write several parts of a batch "
            "to one function, give each its own for_each_batch with a name"
        )
    while len(_latest) >= RUNS_KNOWN_MAX:
        del _latest[next(iter(_latest))]


class _Task:
    """Runs in an executor: stages rows, and reports in one row what it has staged."""

    def __init__(self, plan: WritePlan, identity: Identity) -> None:
        self._plan = plan
        self._identity = identity

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        staged = stage_rows(batches, self._plan, self._identity)
        told = pa.array([_encode(staged)], pa.binary())
        yield pa.RecordBatch.from_arrays([told], names=["staged"])


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _running_here(rows: Rows) -> tuple[str, str]:
    context = rows.sparkSession.sparkContext
    query, run = context.getLocalProperty(QUERY_ID), context.getLocalProperty(RUN_ID)
    if query is None or run is None:
        raise OptionsError("this is not a batch of a streaming query; use it in foreachBatch")
    return query, run


def _is_remote() -> bool:
    """Tell whether this is a process of Spark Connect, which is not the driver's own."""
    from pyspark.sql.utils import is_remote

    return is_remote()


def _tasks_at_once(session: Session) -> int:
    return TASKS_DEFAULT if _is_remote() else max(1, session.sparkContext.defaultParallelism)
