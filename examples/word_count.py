"""Counts words: lines go to `split`, words to `count`, and the frequent ones to `top`.

    sublet run examples/word_count.py:app --workers 2
    sublet call split page-1 '"to be or not to be"'
    sublet call count be 0
    sublet call top all

Each word is an instance of `count` with a number of its own. Every effect happens exactly once,
also when a worker is killed in the middle.
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


@app.function(state=int, slo="100ms")
def count(ctx: Context, times: int) -> int:
    """Add to the number of a word and reply with it; adding 0 only asks."""
    before = ctx.state.get()
    now = before + times
    if times:
        ctx.state.set(now)
    reported = before // REPORTED_EVERY * REPORTED_EVERY
    if now - reported >= REPORTED_EVERY:
        ctx.send(top, "all", Seen(ctx.key, now // REPORTED_EVERY * REPORTED_EVERY - reported))
    return now


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
