"""Counts in every form in which a handler takes rows of tables."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from sublet import App, Batch, Context

app = App("columns", partitions=8)


class Payment(msgspec.Struct):
    amount: int
    note: str | None = None


@app.function(state=int)
def each(ctx: Context, payment: Payment) -> int:
    total: int = ctx.state.get() + payment.amount
    ctx.state.set(total)
    return total


@app.function(state=int, batch="columns")
def columns(batch: Batch[Payment]) -> list[int]:
    """Add up by key; the reply to each message is the total after all of them."""
    table = pa.table({"key": batch.key_column, "amount": batch.columns["amount"]})
    sums = table.group_by("key", use_threads=False).aggregate([("amount", "sum")])
    totals = batch.state.read()
    for key, amount in zip(*(each.to_pylist() for each in sums.columns), strict=True):
        totals[key] += amount
    batch.state.write(totals)
    return [totals[key] for key in batch.keys]
