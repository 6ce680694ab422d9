"""The examples run on real workers, fed as their pages say."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from examples.auction_bids import generate_bids
from examples.social_network_requests import generate_follows, generate_requests
from examples.word_count_text import generate_lines
from tests.integration.test_documentation import PATIENCE_S, running, typed

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MESSAGES = 3_000
USERS = 200
"""Of the social network, as feed.py has it."""


def feed(example: str, address: str, messages: int = MESSAGES) -> str:
    command = [sys.executable, str(EXAMPLES / "feed.py"), example]
    command += ["--connect", address, "--messages", str(messages)]
    fed = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    return fed.stdout


def until_printed(command: str, wanted: str, directory: Path) -> None:
    """What was sent is handled a moment later, so look until it is."""
    until_s = time.monotonic() + PATIENCE_S
    while (printed := typed(command, directory)) != wanted:
        assert time.monotonic() < until_s, f"{command}: {printed!r} is not {wanted!r}"


def test_spikes_are_found_in_what_is_fed(tmp_path: Path) -> None:
    with running(f"{EXAMPLES / 'spike_detection.py'}:app", tmp_path) as address:
        printed = feed("spike_detection", address)
        typed('sublet call average attic \'{"at_ms": 0, "millicelsius": 20000}\'', tmp_path)
        typed('sublet call average attic \'{"at_ms": 1, "millicelsius": 90000}\'', tmp_path)
        spike = {"sensor": "attic", "at_ms": 1, "millicelsius": 90_000}
        record = {"count": 1, "latest": [{**spike, "average_millicelsius": 55_000.0}]}
        wanted = json.dumps(record) + "\n"
        until_printed("sublet call spikes attic", wanted, tmp_path)
        emitted = typed("sublet tail spikes --from start --no-follow", tmp_path).splitlines()

    assert printed.startswith(f"spike_detection/average has handled {MESSAGES:,} messages in ")
    assert {**spike, "average_millicelsius": 55_000.0} in map(json.loads, emitted)
    assert len(emitted) > 5


def test_outliers_are_found_in_what_is_fed(tmp_path: Path) -> None:
    with running(f"{EXAMPLES / 'machine_outlier.py'}:app", tmp_path) as address:
        feed("machine_outlier", address)
        one = typed("sublet tail alerts --from start --limit 1", tmp_path)
        scores = typed("sublet call track machine-007", tmp_path)

    assert json.loads(one)["machine"].startswith("machine-")
    assert len(json.loads(scores)) == 10


@pytest.mark.parametrize("example", ["word_count.py", "word_count_columns.py"])
def test_both_word_counts_count_what_is_fed(example: str, tmp_path: Path) -> None:
    words = Counter(
        word for line in islice(generate_lines(seed=1), MESSAGES) for word in line.split()
    )
    word, times = words.most_common(1)[0]
    with running(f"{EXAMPLES / example}:app", tmp_path) as address:
        feed("word_count", address)
        until_printed(f"sublet call count {word} 0", f"{times}\n", tmp_path)


def test_posts_that_are_fed_reach_the_followers(tmp_path: Path) -> None:
    follows = list(generate_follows(seed=1, user_count=USERS))
    asked = islice(generate_requests(1, USERS, hot_users_share=0.05), MESSAGES)
    posts = [each for each in asked if each.request["type"] == "compose"]
    author, written = Counter(each.user for each in posts).most_common(1)[0]
    readers = [follower for follower, followed in follows if followed == author]
    with running(f"{EXAMPLES / 'social_network.py'}:app", tmp_path) as address:
        feed("social_network", address, len(follows) + MESSAGES)
        newest = json.loads(typed(f"sublet call user_timeline {author} 1", tmp_path))
        assert newest[0]["number"] == written
        until_printed(
            f"sublet call post {author}/{written}", json.dumps(newest[0]) + "\n", tmp_path
        )
        asks = '{"type": "read_home_timeline", "limit": 100}'
        home = json.loads(typed(f"sublet call parse {readers[0]} '{asks}'", tmp_path))

    assert 0 < len(home) <= 100
    times = [(each["at_ms"], each["author"], each["number"]) for each in home]
    assert times == sorted(set(times), reverse=True)


def test_highest_bids_are_told_of_what_is_fed(tmp_path: Path) -> None:
    fed = 11_000
    first = [each for each in islice(generate_bids(seed=1), fed) if each.at_ms < 10_000]
    best = max(first, key=lambda each: (each.price_cents, -each.at_ms))
    with running(f"{EXAMPLES / 'auction.py'}:app", tmp_path) as address:
        feed("auction", address, fed)
        told = typed("sublet tail highest_of_all --from start --limit 1", tmp_path)
        spreads = typed("sublet tail bid_quantiles --from start --limit 5", tmp_path)

    assert json.loads(told) == {
        "start_ms": 0,
        "auction": best.auction,
        "bidder": best.bidder,
        "price_cents": best.price_cents,
        "at_ms": best.at_ms,
    }
    counts = {each["category"]: each["bids"] for each in map(json.loads, spreads.splitlines())}
    assert counts == Counter(each.category for each in first)
