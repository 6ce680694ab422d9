"""How much the next commit of a partition may hold, by what the latest ones held.

While one commit is in flight the next one fills. What runs meanwhile should not make it much larger
than `COMMIT_BYTES_MAX`, and nobody knows what a run will write before it has run.
"""

from __future__ import annotations

from collections.abc import Sequence

from sublet.runtime.partition.commit.commit_participant import CommitParticipant
from sublet.runtime.partition.commit.oversized_messages import OversizedMessages
from sublet.runtime.partition.commit.pending_commit import CommitContents, PendingCommit

COMMIT_BYTES_MAX = 16 * 1024 * 1024
"""What runs ahead of the in-flight commit should not make the next one larger than this."""
ROWS_WEIGHED = 16
ROW_BYTES = 128
"""What a row or a record weighs beside its value: stores bound how many a commit has."""
ROWS_AHEAD_MAX = 50_000
"""With so many rows in the next commit, no more runs begin."""


class CommitBudget(CommitParticipant):
    __slots__ = (
        "_free_bytes",
        "_message_bytes",
        "_oversized",
        "_pending",
        "is_heavy",
        "messages_max",
        "runs_singly",
        "tells_apart",
    )

    def __init__(
        self,
        messages_max: int,
        *,
        pending: PendingCommit,
        oversized: OversizedMessages,
        is_heavy: bool = False,
    ) -> None:
        """No commit has more messages than `messages_max`. If commits are known to be heavy, they
        begin with one message, and grow with what they hold."""
        self.messages_max = messages_max
        self._message_bytes = float(COMMIT_BYTES_MAX) if is_heavy else 0.0
        """What one message adds to a commit, about: its replies, messages and state."""
        self._free_bytes = COMMIT_BYTES_MAX / messages_max
        """As long as it is less than this, no commit can grow too large."""
        self._pending = pending
        self._oversized = oversized
        self.is_heavy = is_heavy
        """Messages add so much that they have to be counted before they run."""
        self.runs_singly = bool(oversized.ids)
        """Messages run one by one, until those have come that no commit can hold."""
        self.tells_apart = is_heavy or self.runs_singly
        """It matters whose commit the next one is, and how large a run would be."""

    def is_full(self) -> bool:
        """Tell whether nothing more may run before the next commit is sealed."""
        pending = self._pending
        return pending.message_count >= self.messages_max or pending.row_count >= ROWS_AHEAD_MAX

    def has_room_beside(self, running: int) -> bool:
        """Tell whether one more run may begin beside so many messages that run."""
        ahead = self._pending.message_count + running
        if ahead and self.runs_singly:
            return False
        return ahead * self._message_bytes < COMMIT_BYTES_MAX

    def ran(self, ids: Sequence[str], *, is_plain: bool) -> bool:
        """Note whose commit the next one is, in case that the store refuses it; tell whether that
        has happened before, for the only message of a plain run: then the run fails."""
        self._pending.note_ran(ids)
        fails = len(ids) == 1 and is_plain and self._oversized.has_come(ids[0])
        if not fails:
            self._oversized.others_came()
        self._look_again()
        return fails

    def ended_late(self, message_id: str, *, is_plain: bool) -> bool:
        """The same of a handler that had been awaiting something."""
        self._pending.note_ran((message_id,))
        fails = is_plain and self._oversized.has_come(message_id)
        self._look_again()
        return fails

    def _look_again(self) -> None:
        self.runs_singly = bool(self._oversized.ids)
        self.tells_apart = self.is_heavy or self.runs_singly

    def batch_size(self, limit: int) -> int:
        """Return how many messages may run together, at most `limit` and at least one."""
        if self._message_bytes * limit > COMMIT_BYTES_MAX:
            return max(1, int(COMMIT_BYTES_MAX / self._message_bytes))
        return limit

    def contribute(self, contents: CommitContents) -> None:
        """Learn from a commit; at once when commits grow, slowly when they shrink."""
        if not contents.message_count:
            return
        rows = contents.rows
        size_bytes = ROW_BYTES * (len(rows) + len(contents.records))
        for entry in contents.outbox:
            size_bytes += len(entry.data)
        for emitted in contents.egress:
            size_bytes += len(emitted.data)
        if rows:
            some, some_bytes = rows[:ROWS_WEIGHED], 0
            for row in some:
                if row.value is not None:
                    some_bytes += len(row.value)
            size_bytes += some_bytes * len(rows) // len(some)
        each = size_bytes / contents.message_count
        known = self._message_bytes
        self._message_bytes = each if each > known else 0.8 * known + 0.2 * each
        self.is_heavy = self._message_bytes > self._free_bytes
        self.tells_apart = self.is_heavy or self.runs_singly
