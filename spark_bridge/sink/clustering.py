"""All rows of a partition in one task, so that each task sends whole batches to their owners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sublet.spark_bridge.connections import client_of
from sublet.spark_bridge.options import CONNECTION, KEY, TARGET, connection_of, parsed
from sublet.spark_bridge.sink.rows import partition_expression

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def clustered(
    rows: DataFrame, *, target: str, key: str | Sequence[str], tasks: int = 0, **options: str
) -> DataFrame:
    """Return the same rows, shuffled so that all rows of a partition are in one task.

    Worth it if batches are large and the function has many partitions: without it, every task sends
    a little to every partition. It costs a shuffle, so it only slows down a batch of a few hundred
    rows.

    - `target`, `key`: as the options of the sink; several columns as a list, or separated by
      commas.
    - `tasks`: how many; 0: one for each partition. About the number of cores is best.
    - `options`: how to reach the cluster (`address`, `connect_timeout`).
    """
    columns = key if isinstance(key, str) else ",".join(key)
    said = {**options, "target": target, "key": columns}
    values = parsed(said, (*CONNECTION, TARGET, KEY), "sublet")
    if tasks < 0:
        raise ValueError(f"tasks is {tasks}; allowed: 0 or more")
    client = client_of(connection_of(values))
    partition_count = client.pipeline(values["target"], "clustered").partition_count
    tasks = tasks or partition_count
    found: DataFrame = by_partition(rows, values["key"], partition_count, tasks)
    return found


def by_partition(rows: Any, key: Sequence[str], partition_count: int, tasks: int) -> Any:
    """Return the same rows in at most so many tasks, all rows of a partition in one of them.

    Works with both kinds of data frames, those of Spark Connect and the others.
    """
    from pyspark.sql import functions as sql

    partition = sql.expr(f"cast({partition_expression(key, partition_count)} as int)")
    return rows.repartitionById(min(tasks, partition_count), partition)
