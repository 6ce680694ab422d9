"""What a message of each query takes of a worker's core: the functions themselves, in the harness.

    .venv/bin/python -m benchmarks.elasticity.nexmark.costs

Handler, partition and commit to memory, without network and disk; the smallest of five rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from benchmarks.elasticity.nexmark.app import nexmark
from benchmarks.elasticity.nexmark.events import Auction, Bid, Closed, Event, Person, events
from sublet.testing import Harness

COUNT = 3_000
ROUNDS = 5
BATCH = 100

KEYS: dict[str, Callable[[Event], str | None]] = {
    "q1": lambda each: "" if isinstance(each, Bid) else None,
    "q4": lambda each: _auction(each),
    "q5": lambda each: each.auction if isinstance(each, Bid) else None,
    "q6": lambda each: each.auction if isinstance(each, Bid | Closed) else None,
    "q7": lambda each: each.auction if isinstance(each, Bid) else None,
    "q8": lambda each: _person(each),
}
"""Query to the key that an event has there; None: it does not get it."""


def _auction(event: Event) -> str | None:
    if isinstance(event, Bid):
        return event.auction
    return event.id if isinstance(event, Auction) else None


def _person(event: Event) -> str | None:
    if isinstance(event, Person):
        return event.id
    return event.seller if isinstance(event, Auction) else None


def microseconds(query: str, made: Sequence[Event]) -> float:
    """Return what one message takes."""
    app = nexmark()
    function = app.functions[f"nexmark/{query}"]
    pairs = [(key, each) for each in made if (key := KEYS[query](each)) is not None]
    with Harness(app) as harness:
        began = time.process_time()
        for place in range(0, len(pairs), BATCH):
            some = pairs[place : place + BATCH]
            harness.send_many(function, [key for key, _ in some], [each for _, each in some])
            harness.settle()
        return 1e6 * (time.process_time() - began) / len(pairs)


def main() -> None:
    made = list(events(1, COUNT))
    for query in KEYS:
        least = min(microseconds(query, made) for _ in range(ROUNDS))
        print(f"{query}: {least:.0f} us", flush=True)


if __name__ == "__main__":
    main()
