"""A keyed count in every form in which a handler takes rows of tables."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from sublet import App, Batch, Context

app = App("staging")


class Order(msgspec.Struct):
    amount: int
    price: float
    sku: str


@app.function(state=int)
def each(ctx: Context, order: Order) -> None:
    ctx.state.set(ctx.state.get() + order.amount)


@app.function(state=int, batch=True)
def batch(batch: Batch[Order]) -> None:
    totals = batch.state.read()
    for key, order in batch:
        totals[key] += order.amount
    batch.state.write(totals)


@app.function(state=int, batch="columns")
def columns(batch: Batch[Order]) -> None:
    table = pa.table({"key": batch.key_column, "amount": batch.columns["amount"]})
    sums = table.group_by("key", use_threads=False).aggregate([("amount", "sum")])
    totals = batch.state.read()
    added = zip(sums["key"].to_pylist(), sums["amount_sum"].to_pylist(), strict=True)
    batch.state.write({key: totals[key] + amount for key, amount in added})
