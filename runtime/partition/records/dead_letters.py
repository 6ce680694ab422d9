"""Messages that failed for good: kept until somebody replays or drops them."""

from __future__ import annotations

import msgspec

from sublet.functions.address import is_pipeline
from sublet.runtime.partition.commit.pending_commit import PendingCommit
from sublet.runtime.partition.model.clock import PartitionClock
from sublet.runtime.partition.model.effects import Counters
from sublet.runtime.partition.records.staged_batches import Staging
from sublet.runtime.protocol.frames import ErrorInfo
from sublet.runtime.protocol.messages import Message
from sublet.statestore.contract import DEAD, Record

_encode = msgspec.msgpack.Encoder().encode


class DeadLetter(msgspec.Struct, array_like=True):
    """A message that failed for good, as stored."""

    message: Message
    error: ErrorInfo
    at_ms: int


class DeadLetters:
    __slots__ = ("_clock", "_count", "_count_max", "_counters", "_pending", "_staging")

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

    @property
    def is_full(self) -> bool:
        return self._count >= self._count_max

    def bury(self, message: Message, error: ErrorInfo, now_ms: float) -> None:
        """Keep a message, and why it failed."""
        letter = DeadLetter(message, error, self._clock.at_ms(now_ms))
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
