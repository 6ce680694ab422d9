"""Feeds a running example with data that its generator makes.

    sublet run examples/spike_detection.py:app --workers 2
    python examples/feed.py spike_detection --connect HOST:PORT --messages 100000

`sublet run` says at which address its workers are. Every message has been handled by the first
function of the example when this ends; those behind it may still be at work.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from auction_bids import DISORDER_MS_MAX, generate_bids
from machine_outlier_observations import generate_observations
from social_network_requests import generate_follows, generate_requests
from spike_detection_readings import generate_readings
from word_count_text import generate_lines

from sublet import Client

BATCH_MESSAGES = 500
MESSAGES_MAX = 10_000_000
USERS = 200
HOT_USERS_SHARE = 0.05


class Source(NamedTuple):
    """Where an example's data comes from, and where it goes."""

    function: str
    generate: Callable[[int], Iterator[tuple[str, Any]]]
    disorder_ms: int | None = None
    """For windows of event time: how much earlier than the latest `at_ms` a message may still be;
    None: nobody waits for watermarks."""


def _lines(seed: int) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(generate_lines(seed)):
        yield f"page-{number // 40}", line


def _readings(seed: int) -> Iterator[tuple[str, dict[str, int]]]:
    for sensor, at_ms, millicelsius in generate_readings(seed):
        yield sensor, {"at_ms": at_ms, "millicelsius": millicelsius}


def _observations(seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    for at_s, machine, cpu, memory in generate_observations(seed):
        # One state for all machines, so the key says nothing.
        yield "all", {"at_s": at_s, "machine": machine, "cpu": cpu, "memory": memory}


def _requests(seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    for follower, followed in generate_follows(seed, USERS):
        yield follower, {"type": "follow", "user": followed}
    for _, user, request in generate_requests(seed, USERS, hot_users_share=HOT_USERS_SHARE):
        yield user, request


def _bids(seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    for bid in generate_bids(seed):
        yield bid.bidder, bid._asdict()


SOURCES = {
    "word_count": Source("word_count/split", _lines),
    "spike_detection": Source("spike_detection/average", _readings),
    "machine_outlier": Source("machine_outlier/score", _observations),
    "social_network": Source("social_network/parse", _requests),
    "auction": Source("auction/sort_bids", _bids, DISORDER_MS_MAX),
}


async def feed(source: Source, address: str, messages: int, seed: int) -> float:
    """Send so many messages, batch after batch; return how many seconds it took."""
    data = source.generate(seed)
    left = messages
    started_s = time.perf_counter()
    async with Client(address) as client:
        while left:
            batch = list(islice(data, min(left, BATCH_MESSAGES)))
            left -= len(batch)
            keys, values = zip(*batch, strict=True)
            await client.call_many(source.function, keys, values)
            if source.disorder_ms is not None:
                latest_ms = max(value["at_ms"] for value in values)
                await client.watermark(source.function, latest_ms - source.disorder_ms)
    return time.perf_counter() - started_s


def main() -> None:
    parser = argparse.ArgumentParser(description="Feed a running example with generated data.")
    parser.add_argument("example", choices=SOURCES)
    parser.add_argument("--connect", metavar="HOST:PORT", default="127.0.0.1:7337")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if not 1 <= options.messages <= MESSAGES_MAX:
        parser.error(f"--messages is {options.messages}; allowed: 1..{MESSAGES_MAX}")
    source = SOURCES[options.example]
    seconds = asyncio.run(feed(source, options.connect, options.messages, options.seed))
    print(f"{source.function} has handled {options.messages:,} messages in {seconds:.1f} s")


if __name__ == "__main__":
    main()
