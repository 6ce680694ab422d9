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
from examples.social_network import (
    TIMELINE_POSTS,
    Follow,
    home_timeline,
    parse,
    user_timeline,
)
from examples.social_network_requests import generate_follows, generate_requests, user_name
from examples.word_count_text import generate_lines
from sublet import BlockingClient
from tests.integration.test_documentation import PATIENCE_S, running, typed
from tests.unit.examples.test_social_network import Model

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MESSAGES = 3_000
USERS = 60
"""Of the social network."""
BINDINGS = ["static", "accept-and-check", "laxity-direct"]
"""Whoever runs the messages: the results are the same."""


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


@pytest.mark.parametrize("binding", BINDINGS)
def test_posts_reach_the_followers_whoever_works(
    binding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUBLET_BINDING", binding)
    users = [user_name(number) for number in range(USERS)]
    follows = list(generate_follows(seed=1, user_count=USERS))
    asked = list(islice(generate_requests(1, USERS, hot_users_share=0.05), MESSAGES))
    model = Model(follows)
    for each in asked:
        model.take(each)
    home, written = model.home_timelines, model.user_timelines
    with (
        running(f"{EXAMPLES / 'social_network.py'}:app", tmp_path) as address,
        BlockingClient(address) as client,
    ):
        # All of them first: who follows while somebody posts may or may not get the post.
        followers, followed = zip(*follows, strict=True)
        client.call_many(parse, followers, [Follow(each) for each in followed])
        client.call_many(parse, [each.user for each in asked], [each.request for each in asked])
        wanted = [home.get(user, ()) for user in users]
        until_s = time.monotonic() + PATIENCE_S
        while client.call_many(home_timeline, users, [TIMELINE_POSTS] * USERS) != wanted:
            assert time.monotonic() < until_s, "some posts are missing, or came twice"
        found = client.call_many(user_timeline, users, [TIMELINE_POSTS] * USERS)

    assert found == [tuple(reversed(written.get(user, []))) for user in users]


def test_the_social_network_answers_what_is_fed(tmp_path: Path) -> None:
    asks = '{"type": "read_user_timeline", "user": "ada"}'
    with running(f"{EXAMPLES / 'social_network.py'}:app", tmp_path) as address:
        printed = feed("social_network", address)
        typed('sublet call parse bob \'{"type": "follow", "user": "ada"}\'', tmp_path)
        typed('sublet call parse ada \'{"type": "compose", "text": "Hi", "at_ms": 7}\'', tmp_path)
        wanted = '[{"author": "ada", "number": 1, "at_ms": 7, "text": "Hi"}]\n'
        until_printed("sublet call home_timeline bob 10", wanted, tmp_path)
        until_printed(f"sublet call parse bob '{asks}'", wanted, tmp_path)

    assert printed.startswith(f"social_network/parse has handled {MESSAGES:,} messages in ")


@pytest.mark.parametrize("binding", BINDINGS)
def test_highest_bids_are_told_of_what_is_fed(
    binding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUBLET_BINDING", binding)
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
