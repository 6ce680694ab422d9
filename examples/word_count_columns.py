"""The word count of `word_count.py` with a counter that takes words by the batch.

    sublet run examples/word_count_columns.py:app --workers 2
    sublet call split page-1 '"to be or not to be"'
    sublet call count be 0
    python examples/feed.py word_count --connect HOST:PORT

What changes when a handler says `batch=True`: it gets all words that wait in its partition at once,
as columns; it reads their numbers in one step and writes those that changed in one step; and it
replies with a list. A word that comes up ten times in a batch is read and written once. What it
does not change are names, messages and state: this app takes over the data of the other one.

`word_count_text.py` makes data for it.
"""

from __future__ import annotations

import re

import msgspec

from sublet import App, Batch, Context, TopK

app = App("word_count")

TOP_WORDS = 10
REPORTED_EVERY = 20
"""`count` tells `top` of a word once in so many times, so that `top` stays far from busy."""

_WORD = re.compile(r"[^\W\d_]+")


class Seen(msgspec.Struct, frozen=True):
    """A word came up so many times more."""

    word: str
    times: int


@app.function(kind="stateless", batch=True, slo="100ms")
def split(batch: Batch[str]) -> list[int]:
    """Cut lines into words and send each to its counter; reply with how many a line has."""
    lines = [_WORD.findall(line.lower()) for line in batch.messages]
    words = [word for line in lines for word in line]
    batch.context.send_many(count, words, [1] * len(words))
    return [len(line) for line in lines]


@app.function(state=int, batch=True, slo="100ms")
def count(batch: Batch[int]) -> list[int]:
    """Add to the numbers of words, and reply with the number of each; adding 0 only asks."""
    before = batch.state.read()
    now = dict(before)
    replies = []
    for word, times in batch:
        now[word] = number = now[word] + times
        replies.append(number)
    changed = {word: number for word, number in now.items() if number != before[word]}
    batch.state.write(changed)
    for word, number in changed.items():
        news = number // REPORTED_EVERY - before[word] // REPORTED_EVERY
        if news:
            batch.context.send(top, "all", Seen(word, news * REPORTED_EVERY))
    return replies


@app.function(state=TopK(TOP_WORDS, capacity=1_000), batch="key", partitions=1)
def top(ctx: Context, messages: list[Seen | None]) -> list[list[tuple[str, int]] | None]:
    """Keep the most frequent words; a message of null asks for them."""
    replies: list[list[tuple[str, int]] | None] = []
    for message in messages:
        if message is None:
            replies.append(ctx.state.top())
        else:
            ctx.state.add(message.word, message.times)
            replies.append(None)
    return replies
