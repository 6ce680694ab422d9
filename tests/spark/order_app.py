"""The tallies, and beside them a function that remembers in which order its rows came."""

from __future__ import annotations

from sublet import Context, List
from tests.spark.spark_app import Row, app

TARGET = "tests.spark.order_app:app"
ORDER = "spark/order"


@app.function(state=List(int))
def order(ctx: Context, row: Row | None) -> list[int]:
    """Reply with the numbers of all rows so far; null only asks."""
    if row is not None:
        ctx.state.append(row.number)
    numbers: list[int] = ctx.state[:]
    return numbers
