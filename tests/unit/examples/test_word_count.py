"""The word count counts words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from examples.word_count import REPORTED_EVERY, app, count, split, top
from sublet.testing import Harness

LINES = ["To be, or not to be:", "that is the question", "", "To die - to sleep, no more"] * 25
WORDS = Counter(
    {"to": 100, "be": 50, "or": 25, "not": 25, "that": 25, "is": 25, "the": 25, "question": 25}
    | {"die": 25, "sleep": 25, "no": 25, "more": 25}
)


@pytest.fixture
def harness(sublet_harness: Callable[..., Harness]) -> Harness:
    return sublet_harness(app)


def test_a_line_is_cut_into_words(harness: Harness) -> None:
    assert harness.call(split, "page", "To be, or not to be: 42!") == 6
    assert Counter(sent.key for sent in harness.sent) == {"to": 2, "be": 2, "or": 1, "not": 1}


def test_every_word_is_counted(harness: Harness) -> None:
    assert sum(harness.call_many(split, None, LINES)) == WORDS.total()

    assert harness.states(count) == WORDS


def test_asking_for_a_count_changes_nothing(harness: Harness) -> None:
    harness.send(count, "word", 3)

    assert harness.call(count, "word", 0) == 3
    assert harness.state(count, "word") == 3


def test_the_most_frequent_words_are_known(harness: Harness) -> None:
    harness.send_many(split, None, LINES)

    expected = {word: times // REPORTED_EVERY * REPORTED_EVERY for word, times in WORDS.items()}
    best = harness.call(top, "all")
    assert best[:2] == [("to", 100), ("be", 40)]
    assert dict(best).items() <= expected.items()


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
