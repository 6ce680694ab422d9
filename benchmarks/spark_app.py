"""The keyed count as Sublet functions, for rows that Spark brings.

`each` runs once for each row, `batch` once for all rows of a run. `each_told` and `batch_told` also
emit (key, count): what a reader elsewhere waits for. `wide` takes whole rows as maps, of any width.
They have two partitions for each of two workers; in an app of its own, `batch_<n>` has n.
"""

from typing import Any

from sublet import App, Batch, Context

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


def _wide(batch: Batch[dict[str, Any]]) -> None:
    counts = batch.state.read()
    for key, row in zip(batch.keys, batch.messages, strict=True):
        counts[key] += row["n"]
    batch.state.write(counts)


each = app.function(name="each", state=int, partitions=PARTITIONS)(_each)
each_told = app.function(name="each_told", state=int, partitions=PARTITIONS)(_each_told)
batch = app.function(name="batch", state=int, batch=True, partitions=PARTITIONS)(_batch)
batch_told = app.function(name="batch_told", state=int, batch=True, partitions=PARTITIONS)(
    _batch_told
)
wide = app.function(name="wide", state=int, batch=True, partitions=PARTITIONS)(_wide)
grown = [
    grown_app.function(name=f"batch_{count}", state=int, batch=True, partitions=count)(_batch)
    for count in PARTITION_COUNTS
]
