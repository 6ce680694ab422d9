"""How large the commits of a partition get, by what the latest ones held.

While one commit is under way the next one fills. What runs meanwhile should not make it much larger
than `COMMIT_BYTES_MAX`, and nobody knows what a run will write before it has run.
"""

from __future__ import annotations

from sublet.statestore.contract import Commit

COMMIT_BYTES_MAX = 16 * 1024 * 1024
"""What runs ahead of the commit under way should not make the next one larger than this."""
ROWS_WEIGHED = 16
ROW_BYTES = 128
"""What a row or a record weighs beside its value: stores bound how many a commit has."""
ROWS_AHEAD_MAX = 50_000
"""With so many rows in the next commit, no more runs begin."""


class CommitSize:
    __slots__ = ("_free_bytes", "_message_bytes", "is_heavy")

    def __init__(self, messages_max: int, *, is_heavy: bool = False) -> None:
        """No commit has more messages than `messages_max`. If commits are known to be heavy, they
        begin with one message, and grow with what they hold."""
        self._message_bytes = float(COMMIT_BYTES_MAX) if is_heavy else 0.0
        """What one message adds to a commit, about: its replies, messages and state."""
        self._free_bytes = COMMIT_BYTES_MAX / messages_max
        """As long as it is less than this, no commit can grow too large."""
        self.is_heavy = is_heavy
        """Messages add so much that they have to be counted before they run."""

    def learn(self, commit: Commit, message_count: int) -> None:
        """Learn from a commit with so many messages; at once when commits grow, slowly when they
        shrink."""
        size_bytes = sum([len(entry.data) for entry in commit.outbox])
        size_bytes += sum([len(entry.data) for entry in commit.egress])
        size_bytes += ROW_BYTES * (len(commit.state) + len(commit.records))
        some = commit.state[:ROWS_WEIGHED]
        if some:
            some_bytes = sum([len(row.value) for row in some if row.value is not None])
            size_bytes += some_bytes * len(commit.state) // len(some)
        each = size_bytes / message_count
        known = self._message_bytes
        self._message_bytes = each if each > known else 0.8 * known + 0.2 * each
        self.is_heavy = self._message_bytes > self._free_bytes

    def has_room_behind(self, message_count: int) -> bool:
        """Tell whether a commit that holds so many messages has room for one more."""
        return message_count * self._message_bytes < COMMIT_BYTES_MAX

    def batch_size(self, limit: int) -> int:
        """Return how many messages may run together, at most `limit` and at least one."""
        if self._message_bytes * limit > COMMIT_BYTES_MAX:
            return max(1, int(COMMIT_BYTES_MAX / self._message_bytes))
        return limit
