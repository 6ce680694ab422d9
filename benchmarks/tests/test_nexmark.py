"""Nexmark's queries find what a batch over the same events finds, exactly."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from benchmarks.elasticity.nexmark.app import Sold, nexmark, results_of
from benchmarks.elasticity.nexmark.batch import expected
from benchmarks.elasticity.nexmark.events import Event, events
from sublet.testing import Harness

WINDOW_MS, SLIDE_MS = 6_000, 1_000
COUNT = 1_500
QUERIES = ("q1", "q4", "q5", "q6", "q7", "q8")


def found(made: list[Event], seed: int, pieces: int) -> dict[str, Any]:
    chance = Random(seed)
    app = nexmark("6s", "1s")
    functions = {each.name.partition("/")[2]: each for each in app.functions.values()}
    with Harness(app) as harness:
        left = list(made)
        while left:
            size = chance.randint(1, 2 * len(made) // pieces)
            some, left = left[:size], left[size:]
            harness.send_many(functions["source"], [""] * len(some), some)
            harness.watermark(functions["source"], some[-1].at_ms)
        harness.watermark(functions["source"], 10**9)
        emitted = {name: harness.emitted(name) for name in QUERIES if name != "q6"}
        assert harness.emitted("late") == []
        sellers: dict[str, list[Sold]] = harness.states(functions["q6_seller"])
        return results_of(emitted, sellers)


@pytest.mark.parametrize("seed", [1, 2])
def test_every_query_finds_what_a_batch_finds(seed: int) -> None:
    made = list(events(seed, COUNT))
    wanted = expected(made, WINDOW_MS, SLIDE_MS)
    got = found(made, seed, 20)

    for query in QUERIES:
        assert wanted[query], query
        assert got[query] == wanted[query], query
