"""The demonstration ends by itself, and its counts are exact."""

import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from examples.word_lines import VOCABULARY, generate_lines

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"


def demo(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DEMO), *options],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.parametrize("options", [[], ["--kill"]], ids=["undisturbed", "a worker is killed"])
def test_the_demonstration_counts_every_word_once(options: list[str]) -> None:
    result = demo("--seconds", "2", "--lines-per-second", "100", *options)

    assert result.returncode == 0, result.stdout + result.stderr
    assert "exact: every word of every line was counted once." in result.stdout
    assert "docs/getting-started.md" in result.stdout


def test_the_demonstration_refuses_what_it_cannot_do() -> None:
    assert "allowed: 1..600" in demo("--seconds", "0").stderr


def test_the_text_is_repeatable_and_its_words_unequal() -> None:
    lines = list(islice(generate_lines(7), 2_000))
    times = Counter(word for line in lines for word in line.split())

    assert lines == list(islice(generate_lines(7), 2_000))
    assert times[VOCABULARY[0]] > 10 * times[VOCABULARY[50]] > 0
