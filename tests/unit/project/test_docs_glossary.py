"""The glossary: each word once, in order, in two sentences."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "glossary.md").read_text()
ENTRIES = dict(re.findall(r"^\*\*(.+?)\*\*: (.+?)(?=\n\n|\Z)", PAGE, re.MULTILINE | re.DOTALL))


def test_words_stand_in_order() -> None:
    words = [each.lower() for each in re.findall(r"^\*\*(.+?)\*\*:", PAGE, re.MULTILINE)]

    assert words == sorted(set(words))
    assert len(words) == len(ENTRIES) > 40


@pytest.mark.parametrize("word", ENTRIES)
def test_a_word_is_explained_in_two_sentences(word: str) -> None:
    text = re.sub(r"\s+", " ", ENTRIES[word]).strip()

    assert text.endswith(".")
    assert len(re.findall(r"\.(?= [A-Z`]|$)", text)) == 2
