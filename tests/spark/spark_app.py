"""What Spark's rows do in tests of the bridge: tallies whose every sum is known beforehand.

A tally counts rows, and sums their amounts and their numbers: a row that is lost, doubled, or given
to two attempts' worth of batches shows in at least one of the three.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from sublet import App, Batch, BlockingClient

TARGET = "tests.spark.spark_app:app"
TALLY = "spark/tally"
KEYS = tuple(f"k{number}" for number in range(40))
"""Of rows that are the same however often they are read."""
DRAWN_KEYS = tuple(f"r{number}" for number in range(40))
"""Of rows that get another key whenever a plan is made again: only their sum over all is known."""
ROWS_A_FILE_MAX = 1_000_000

app = App("spark", partitions=4)


class Row(msgspec.Struct):
    """What one row says."""

    amount: int
    number: int
    count: int = 1
    """0 only asks."""


@dataclass
class Tally:
    """What the rows of one key add up to."""

    count: int = 0
    amounts: int = 0
    numbers: int = 0


@app.function(state=Tally, batch=True)
def tally(batch: Batch[Row]) -> list[Tally]:
    states = batch.state.read()
    replies = []
    for key, row in batch:
        before = states[key]
        states[key] = Tally(
            before.count + row.count, before.amounts + row.amount, before.numbers + row.number
        )
        replies.append(states[key])
    batch.state.write(states)
    return replies


class Event(NamedTuple):
    """A row of a file, before it is sent."""

    key: str
    amount: int
    number: int


def events_of(file: int, count: int) -> list[Event]:
    """Return the rows of a file, the same ones each time."""
    chance = random.Random(file)
    return [
        Event(chance.choice(KEYS), chance.randint(1, 1_000), file * ROWS_A_FILE_MAX + place)
        for place in range(count)
    ]


def tallies_of(events: Iterable[Event]) -> dict[str, Tally]:
    """Return what every key has to have when each of the rows has counted once."""
    found = {key: Tally() for key in KEYS}
    for key, amount, number in events:
        mine = found[key]
        mine.count += 1
        mine.amounts += amount
        mine.numbers += number
    return found


def together(tallies: Iterable[Tally]) -> Tally:
    found = Tally()
    for each in tallies:
        found.count += each.count
        found.amounts += each.amounts
        found.numbers += each.numbers
    return found


def read_tallies(client: BlockingClient, keys: Sequence[str]) -> dict[str, Tally]:
    """Ask what keys have, and change nothing."""
    replies = client.call_many(TALLY, keys, [Row(0, 0, 0)] * len(keys))
    return {key: msgspec.convert(reply, Tally) for key, reply in zip(keys, replies, strict=True)}
