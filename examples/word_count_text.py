"""An endless book: lines of a dozen words, taken from thousands by Zipf's law.

As in real texts, a few words make up half of what is said and most words are rare, frequent words
are short, and lines differ in length. The words themselves are made of syllables and mean nothing.
For a text of real words see `word_lines.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate, product

VOCABULARY_SIZE = 10_000
WORDS_IN_A_LINE = 12
"""On average."""
_WORDS_SPREAD = 3.0
_EXPONENT = 1.0
_SYLLABLES = ["".join(each) for each in product("bdfgklmnprstvz", "aeiou")]


def make_vocabulary(size: int = VOCABULARY_SIZE) -> list[str]:
    """Return so many different words, the most frequent (and shortest) first."""
    most = sum(len(_SYLLABLES) ** length for length in (1, 2, 3))
    if not 1 <= size <= most:
        raise ValueError(f"size is {size}; allowed: 1..{most}")
    words: list[str] = []
    for length in (1, 2, 3):
        for each in product(_SYLLABLES, repeat=length):
            if len(words) == size:
                return words
            words.append("".join(each))
    return words


def generate_lines(seed: int, vocabulary_size: int = VOCABULARY_SIZE) -> Iterator[str]:
    """Yield lines for ever; the same seed gives the same lines."""
    chance = random.Random(seed)
    vocabulary = make_vocabulary(vocabulary_size)
    weights = list(accumulate(1 / rank**_EXPONENT for rank in range(1, vocabulary_size + 1)))
    while True:
        length = max(1, round(chance.gauss(WORDS_IN_A_LINE, _WORDS_SPREAD)))
        yield " ".join(chance.choices(vocabulary, cum_weights=weights, k=length))
