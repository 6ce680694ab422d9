"""Handlers of columns, which say so if rows did not come as Arrow."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa

from sublet import App, Batch, Context

app = App("tables", partitions=4)


class Place(msgspec.Struct):
    x: int
    y: str


class Row(msgspec.Struct):
    amount: int
    at: datetime
    tags: list[str | None]
    place: Place | None


def _added(batch: Batch[Any]) -> None:
    """Count rows and add up amounts by key, and tell whoever looks."""
    columns = batch.columns
    assert columns["tags"].type.value_type == pa.string()
    assert columns["at"].type == pa.timestamp("us", "UTC")
    table = pa.table({"key": batch.key_column, "amount": columns["amount"]})
    grouped = table.group_by("key", use_threads=False).aggregate(
        [("amount", "count"), ("amount", "sum")]
    )
    by_name = (grouped[name].to_pylist() for name in ("key", "amount_count", "amount_sum"))
    for key, count, amount in zip(*by_name, strict=True):
        function = batch.context.function
        batch.context.send(look, key, [function, count, amount])


@app.function(kind="stateless", batch="columns")
def typed(batch: Batch[Row]) -> None:
    _added(batch)


@app.function(kind="stateless", batch="columns")
def anything(batch: Batch[Any]) -> None:
    _added(batch)


@app.function(state=dict[str, list[int]])
def look(ctx: Context, message: Any) -> list[int]:
    """Take counts and sums from a function, or tell those of the one that is named."""
    totals: dict[str, list[int]] = ctx.state.get()
    if isinstance(message, str):
        return totals.get(message, [0, 0])
    function, count, amount = message
    before = totals.get(function, [0, 0])
    totals[function] = [before[0] + count, before[1] + amount]
    ctx.state.set(totals)
    return totals[function]
