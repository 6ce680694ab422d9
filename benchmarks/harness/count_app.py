"""The keyed count as Sublet functions: per message, and for a whole batch.

Each with two partitions for each of two workers, as one would choose for two cores, and with the
default of 16, which leaves room to grow: what a batch costs is then paid for fewer messages.
"""

from sublet import App, Batch, Context

PARTITIONS_FEW = 4

app = App("bench")


def _each(ctx: Context, n: int) -> int:
    count: int = ctx.state.get() + n
    ctx.state.set(count)
    return count


def _batch(batch: Batch[int]) -> list[int]:
    counts = batch.state.read()
    replies = []
    for key, n in zip(batch.keys, batch.messages, strict=True):
        counts[key] = count = counts[key] + n
        replies.append(count)
    batch.state.write(counts)
    return replies


each = app.function(name="each", state=int, partitions=PARTITIONS_FEW)(_each)
batch = app.function(name="batch", state=int, batch=True, partitions=PARTITIONS_FEW)(_batch)
each_16 = app.function(name="each_16", state=int)(_each)
batch_16 = app.function(name="batch_16", state=int, batch=True)(_batch)
