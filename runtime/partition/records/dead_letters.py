"""Messages that failed for good: kept until somebody replays or drops them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from sublet.functions.address import is_pipeline
from sublet.runtime.partition.commit.commit_participant import CommitParticipant
from sublet.runtime.partition.commit.pending_commit import CommitContents, PendingCommit
from sublet.runtime.partition.model.clock import PartitionClock
from sublet.runtime.partition.model.effects import Counters
from sublet.runtime.partition.model.work import no_traceback
from sublet.runtime.partition.records.staged_batches import Staging
from sublet.runtime.protocol.frames import ErrorInfo
from sublet.runtime.protocol.messages import Message
from sublet.statestore.contract import DEAD, Record

TRACEBACKS_MAX = 32
"""So many are kept in one commit: where all messages fail, they all fail alike."""

_encode = msgspec.msgpack.Encoder().encode


class DeadLetter(msgspec.Struct, array_like=True):
    """A message that failed for good, as stored."""

    message: Message
    error: ErrorInfo
    at_ms: int
    traceback: str = ""
    """Of what its last attempt raised; empty if it raised nothing, or if so many failed at once
    that theirs were not kept."""


class DeadLetters(CommitParticipant):
    __slots__ = (
        "_clock",
        "_count",
        "_count_max",
        "_counters",
        "_pending",
        "_staging",
        "_tracebacks",
    )

    def __init__(
        self,
        count: int,
        count_max: int,
        *,
        pending: PendingCommit,
        staging: Staging,
        clock: PartitionClock,
        counters: Counters,
    ) -> None:
        """`count` are there already; with `count_max`, there is no room for more."""
        self._count = count
        self._count_max = count_max
        self._pending = pending
        self._staging = staging
        self._clock = clock
        self._counters = counters
        self._tracebacks = 0
        """How many the next commit has."""

    @property
    def is_full(self) -> bool:
        return self._count >= self._count_max

    def contribute(self, contents: CommitContents) -> None:
        """See `CommitParticipant`."""
        self._tracebacks = 0

    def bury(
        self,
        message: Message,
        error: ErrorInfo,
        now_ms: float,
        traceback: Callable[[], str] = no_traceback,
    ) -> None:
        """Keep a message, and why it failed."""
        text = ""
        if self._tracebacks < TRACEBACKS_MAX and (text := traceback()):
            self._tracebacks += 1
        letter = DeadLetter(message, error, self._clock.at_ms(now_ms), text)
        self._pending.record(Record(DEAD, message.id, _encode(letter)))
        self._count += 1
        self._counters.dead += 1
        if is_pipeline(message.source):
            self._staging.died(message.source)

    def remove(self, id_: str) -> None:
        """Forget a dead letter, which is there."""
        self._pending.record(Record(DEAD, id_, None))
        self._count -= 1
        source = id_.rpartition(":")[0]
        if is_pipeline(source):
            self._staging.revived(source)
