"""The keyed count as Sublet functions, for rows that Spark brings.

`each` runs once for each row, `batch` once for all rows of a run, `columns` too, on Arrow. Those
that are `told` also emit (key, count): what a reader elsewhere waits for. `wide` and `wide_columns`
take whole rows, of any width, as maps and as columns. All have two partitions for each of two
workers; in an app of its own, `columns_<n>` has n.
"""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from sublet import App, Batch, Context
from sublet.functions.app import BatchMode, Function

PARTITIONS = 4
PARTITION_COUNTS = (1, 4, 16, 64)
EGRESS = "counts"

app = App("bench")
grown_app = App("grown")


def _each(ctx: Context, n: int) -> None:
    ctx.state.set(ctx.state.get() + n)


def _each_told(ctx: Context, n: int) -> None:
    count = ctx.state.get() + n
    ctx.state.set(count)
    ctx.emit(EGRESS, (ctx.key, count))


def _counted(batch: Batch[int]) -> dict[str, int]:
    counts = batch.state.read()
    for key, n in zip(batch.keys, batch.messages, strict=True):
        counts[key] += n
    batch.state.write(counts)
    return counts


def _batch(batch: Batch[int]) -> None:
    _counted(batch)


def _batch_told(batch: Batch[int]) -> None:
    for key, count in _counted(batch).items():
        batch.context.emit(EGRESS, (key, count))


def _added(batch: Batch[Any], column: str) -> dict[str, int]:
    table = pa.table([batch.key_column, batch.columns.column(column)], ["key", "n"])
    added = table.group_by("key", use_threads=False).aggregate([("n", "sum")])
    counts = batch.state.read()
    for key, n in zip(added["key"].to_pylist(), added["n_sum"].to_pylist(), strict=True):
        counts[key] += n
    batch.state.write(counts)
    return counts


def _columns(batch: Batch[int]) -> None:
    _added(batch, "value")


def _columns_told(batch: Batch[int]) -> None:
    for key, count in _added(batch, "value").items():
        batch.context.emit(EGRESS, (key, count))


def _wide_columns(batch: Batch[Any]) -> None:
    _added(batch, "n")


def _wide(batch: Batch[dict[str, Any]]) -> None:
    counts = batch.state.read()
    for key, row in zip(batch.keys, batch.messages, strict=True):
        counts[key] += row["n"]
    batch.state.write(counts)


def _function(
    name: str,
    handler: Callable[..., None],
    batch: BatchMode = False,
    *,
    partitions: int = PARTITIONS,
    of: App = app,
) -> Function:
    return of.function(name=name, state=int, batch=batch, partitions=partitions)(handler)


each = _function("each", _each)
each_told = _function("each_told", _each_told)
batch = _function("batch", _batch, True)
batch_told = _function("batch_told", _batch_told, True)
columns = _function("columns", _columns, "columns")
columns_told = _function("columns_told", _columns_told, "columns")
wide = _function("wide", _wide, True)
wide_columns = _function("wide_columns", _wide_columns, "columns")
grown = [
    _function(f"columns_{count}", _columns, "columns", partitions=count, of=grown_app)
    for count in PARTITION_COUNTS
]
