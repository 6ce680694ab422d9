"""What has no deadline to keep at all (history, for one) pauses while live messages are expected:
those would have to wait for the commit that it is in, in all partitions of the worker."""

from __future__ import annotations

from sublet.runtime.partition.commit.commit_participant import CommitParticipant
from sublet.runtime.partition.commit.pending_commit import CommitContents, PendingCommit
from sublet.runtime.partition.model.work import Work
from sublet.runtime.partition.queue.work_queue import WorkQueue
from sublet.runtime.partition.records.staged_batches import Staging
from sublet.scheduler.live_traffic import LiveTraffic

BACKGROUND_MESSAGES_MAX = 200
"""Messages of the lowest urgency in one commit of a partition, while others are expected: these
would have to wait for it."""


class BackgroundThrottle(CommitParticipant):
    __slots__ = ("_live", "_messages_max", "_pending", "_queue", "staging")

    def __init__(
        self,
        *,
        queue: WorkQueue,
        live: LiveTraffic,
        staging: Staging,
        pending: PendingCommit,
        messages_max: int,
    ) -> None:
        """No commit has more messages than `messages_max`, whatever they are."""
        self._queue = queue
        self._live = live
        self.staging = staging
        """Whose rows are background, mostly: without any in the queue, there is none."""
        self._pending = pending
        self._messages_max = messages_max

    def pauses(self, now_ms: float) -> bool:
        """Tell whether background comes next, and must not begin now."""
        return self._room(now_ms) <= 0

    def batch_size(self, limit: int, now_ms: float) -> int:
        """Return how many messages may run together, at most `limit`."""
        return min(limit, max(1, self._room(now_ms)))

    def _room(self, now_ms: float) -> int:
        """Return how many messages may be begun, if background comes next."""
        chunk = self._queue.backlog.first()
        if self._queue.ready or chunk is None or not chunk.is_background:
            return self._messages_max
        if not self._live.is_expected(now_ms):
            return self._messages_max
        if now_ms < self._live.background_from_ms:
            return 0
        return BACKGROUND_MESSAGES_MAX - self._pending.message_count

    def ran(self, work: Work) -> None:
        """A run has ended, whose changes are in the next commit."""
        if work.is_background:
            self._pending.add_background()

    # Commits

    def stored(self, contents: CommitContents, now_ms: float) -> None:
        """Let the store rest after a commit with background in it."""
        if contents.has_background:
            self._live.background_stored(now_ms - contents.sealed_ms, now_ms)
