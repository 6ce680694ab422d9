"""An endless text of nonsense whose words are as unequal as those of real ones (Zipf's law)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate

_TEXT = """
the of and to a in is that for it as was with be by on not he his but at are this have from or had
an they which one you were her all she there would their we him been has when who will more no if
out so said what up its about into than them can only other new some could time these two may then
do first any my now such like our over man me even most made after also did many before must through
back years where much your way well down should because each just those people how too little state
good very make world still own see men work long get here between both life being under never day
same another know while last might us great old year off come since against go came right used take
three house water letter story river garden window morning evening summer winter stone bread paper
field road bridge market ship sailor harbour island mountain valley forest cloud rain wind snow fire
lamp mirror clock bell tower gate wall roof door key coin purse ring shoe coat hat glove button
thread needle cloth silk wool cotton iron copper silver gold glass salt sugar honey butter cheese
apple pear plum cherry grape lemon onion carrot bean barley wheat oat rice pepper ginger mint
horse dog cat cow sheep goat hen duck goose swan crow owl hawk wolf fox bear deer hare mouse
tenant landlord lease sublet rent
"""

VOCABULARY = _TEXT.split()

WORDS_IN_A_LINE = 8
_EXPONENT = 1.1


def generate_lines(seed: int) -> Iterator[str]:
    """Yield lines for ever; the same seed gives the same lines."""
    chance = random.Random(seed)
    weights = list(accumulate(1 / rank**_EXPONENT for rank in range(1, len(VOCABULARY) + 1)))
    while True:
        yield " ".join(chance.choices(VOCABULARY, cum_weights=weights, k=WORDS_IN_A_LINE))
