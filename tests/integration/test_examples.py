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

from examples.word_count_text import generate_lines
from tests.integration.test_documentation import PATIENCE_S, running, typed

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MESSAGES = 3_000


def feed(example: str, address: str) -> str:
    command = [sys.executable, str(EXAMPLES / "feed.py"), example]
    command += ["--connect", address, "--messages", str(MESSAGES)]
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
