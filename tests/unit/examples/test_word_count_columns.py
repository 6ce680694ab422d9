"""The word count by columns counts as the other one does, and takes over its data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice

import pytest

from examples import word_count, word_count_columns
from examples.word_count_columns import REPORTED_EVERY, app, count, split, top
from examples.word_count_text import VOCABULARY_SIZE, generate_lines, make_vocabulary
from sublet.testing import Harness

LINES = list(islice(generate_lines(seed=1), 300))
WORDS = Counter(word for line in LINES for word in line.split())


@pytest.fixture
def harness(sublet_harness: Callable[..., Harness]) -> Harness:
    return sublet_harness(app)


def test_every_word_is_counted(harness: Harness) -> None:
    assert harness.call_many(split, None, LINES) == [len(line.split()) for line in LINES]

    assert harness.states(count) == WORDS


def test_replies_of_a_batch_count_on(harness: Harness) -> None:
    assert harness.call_many(count, ["a", "b", "a", "a"], [1, 2, 3, 0]) == [1, 2, 4, 4]


def test_asking_for_a_count_changes_nothing(harness: Harness) -> None:
    assert harness.call(count, "word", 0) == 0
    assert harness.states(count) == {}


def test_the_most_frequent_words_are_known(harness: Harness) -> None:
    harness.send_many(split, None, LINES)

    expected = {word: times // REPORTED_EVERY * REPORTED_EVERY for word, times in WORDS.items()}
    best = dict(harness.call(top, "all"))
    assert best
    assert best.items() <= expected.items()


@pytest.mark.parametrize("at_commit", [1, 2, 5, 10, 20])
def test_no_word_is_lost_or_counted_twice_when_the_worker_crashes(
    harness: Harness, at_commit: int
) -> None:
    harness.crash(at_commit=at_commit, applied=at_commit % 2 == 0)
    harness.fail_next(count, times=3, after=True)

    harness.send_many(split, None, LINES)
    harness.advance("1m")

    assert harness.states(count) == WORDS
    harness.assert_idle()


def test_both_word_counts_declare_the_same_functions() -> None:
    def described(functions: dict[str, object]) -> dict[str, tuple[object, ...]]:
        return {
            name: (each.kind, repr(each.state_kind), each.partition_count, each.slo_ms)
            for name, each in functions.items()
        }

    assert described(word_count_columns.app.functions) == described(word_count.app.functions)


def test_the_same_seed_gives_the_same_lines() -> None:
    first, again, other = (list(islice(generate_lines(seed), 50)) for seed in (3, 3, 4))

    assert first == again != other


def test_words_are_as_unequal_as_in_a_book() -> None:
    lines = list(islice(generate_lines(seed=2), 5_000))
    words = Counter(word for line in lines for word in line.split())
    vocabulary = make_vocabulary()

    assert len(set(vocabulary)) == VOCABULARY_SIZE
    assert 11 < words.total() / len(lines) < 13
    assert words.most_common(1)[0][0] == vocabulary[0]
    # By Zipf's law, a hundred of ten thousand words make up half of a text.
    assert 0.45 < sum(words[word] for word in vocabulary[:100]) / words.total() < 0.6


@pytest.mark.parametrize("size", [0, 400_000])
def test_a_vocabulary_has_a_bound(size: int) -> None:
    with pytest.raises(ValueError, match=rf"size is {size}; allowed: 1\.\."):
        make_vocabulary(size)
