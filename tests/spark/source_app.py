"""A function that emits as much as it is told to, for tests of the source."""

from __future__ import annotations

from typing import NamedTuple

from sublet import App, Context

TARGET = "tests.spark.source_app:app"
EGRESS = "numbers"
app = App("source", partitions=4)


class Numbers(NamedTuple):
    """The numbers `first` .. `stop - 1`."""

    first: int
    stop: int


@app.function(kind="keyed")
def count(ctx: Context, numbers: Numbers) -> int:
    for number in range(numbers.first, numbers.stop):
        ctx.emit(EGRESS, {"number": number, "name": f"{ctx.key}-{number}"})
    return numbers.stop - numbers.first


@app.function(kind="keyed")
def say(ctx: Context, word: str) -> None:
    ctx.emit("words", {"number": word})
