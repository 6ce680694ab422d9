"""The keyed count as Sublet functions: per message, and for a whole batch."""

from sublet import App, Batch, Context

app = App("bench")


@app.function(state=int)
def each(ctx: Context, n: int) -> int:
    count: int = ctx.state.get() + n
    ctx.state.set(count)
    return count


@app.function(state=int, batch=True)
def batch(batch: Batch[int]) -> list[int]:
    counts = batch.state.read()
    replies = []
    for key, n in zip(batch.keys, batch.messages, strict=True):
        counts[key] = count = counts[key] + n
        replies.append(count)
    batch.state.write(counts)
    return replies
