"""How the two ends of a channel are called."""

from __future__ import annotations

from sublet.functions.address import is_client

REPLY_MARK = "<"
"""Replies between partitions have numbering of their own: they are taken at once, while requests
of the same sender may still wait in the queue."""


def endpoint_of(name: str) -> str:
    """Return the partition or client that a channel's end belongs to."""
    return name.removesuffix(REPLY_MARK)


def reply_channel(source: str) -> str:
    """Return where replies to messages of a source go."""
    return source if is_client(source) else source + REPLY_MARK
