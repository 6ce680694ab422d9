"""Everything that a partition keeps durably, as a new owner recovers it.

Made once, when the ownership begins; `CorruptDataError` if the store holds what nobody can read and
the partition cannot do without. The parts of a partition are given the records that each of them
needs, never all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from sublet.functions.app import Function
from sublet.runtime.partition.commit.pending_commit import PendingCommit
from sublet.runtime.partition.model.clock import PartitionClock
from sublet.runtime.partition.model.corruption import check_outbox, decoded
from sublet.runtime.partition.model.effects import Counters
from sublet.runtime.partition.model.environment import (
    Acquisition,
    SnapshotRoom,
    StreamTopology,
    WorkerEnvironment,
)
from sublet.runtime.partition.model.ownership import Ownership
from sublet.runtime.partition.model.work import QueuedMessage
from sublet.runtime.partition.records.call_journal import CallJournal
from sublet.runtime.partition.records.channels import Inbox, Outbox
from sublet.runtime.partition.records.client_sessions import ClientSessions
from sublet.runtime.partition.records.commit_encoder import CommitEncoder
from sublet.runtime.partition.records.dead_letters import DeadLetters
from sublet.runtime.partition.records.egress_retention import EgressRetention
from sublet.runtime.partition.records.idempotency import IdempotencyCache
from sublet.runtime.partition.records.positions import Positions
from sublet.runtime.partition.records.snapshots import Snapshots
from sublet.runtime.partition.records.staged_batches import Staging
from sublet.runtime.partition.records.timers import TimerIndex
from sublet.runtime.partition.records.watermarks import StreamProgress
from sublet.runtime.protocol.messages import LENT_MARK, Message, parked_messages
from sublet.statestore.contract import PARKED, Record

_encode = msgspec.msgpack.Encoder().encode
_decode_numbers = msgspec.msgpack.Decoder(list[int]).decode


class RecoveredRecords:
    """Each durable concern of one partition."""

    def __init__(
        self,
        function: Function,
        acquired: Acquisition,
        worker: WorkerEnvironment,
        streams: StreamTopology,
        *,
        pending: PendingCommit,
        counters: Counters,
    ) -> None:
        name, recovered, limits = acquired.partition, acquired.recovered, worker.limits
        now_ms = acquired.now_ms
        ahead = {
            each.id: decoded(_decode_numbers, name, each)
            for each in recovered.ahead
            if each.value is not None
        }
        check_outbox(name, recovered.outbox)
        self.owner = Ownership(name, recovered.epoch, recovered.token)
        self.clock = PartitionClock(recovered.clock_ms, acquired.wall_ms, now_ms)
        self.inbox = Inbox(recovered.inbox, ahead)
        self.outbox = Outbox(recovered.sent, recovered.outbox, limits.outbox_max)
        self.egress = EgressRetention(
            recovered.egress, recovered.egress_marks, limits, partition=name
        )
        self.encoder = CommitEncoder(name, self.outbox, self.egress, limits.message_bytes_max)
        self.calls = CallJournal(function.name, pending, limits)
        self.timers = TimerIndex(name, worker.due_loaded_max)
        self.progress = StreamProgress(
            function,
            recovered.watermarks,
            partition=name,
            topology=streams,
            now_ms=now_ms,
            loaded_max=worker.due_loaded_max,
        )
        self.staging = Staging(
            name,
            recovered.staging,
            self.clock.at_ms(now_ms),
            limits=limits,
            partition_count=function.partition_count if function.kind == "keyed" else 0,
            takes_states=function.kind == "keyed" and function.window is None,
            check_columns=_check_columns(function) if function.takes_columns else None,
        )
        self.snapshots = Snapshots(
            name, worker.snapshot_room or SnapshotRoom(limits.snapshot_bytes_max)
        )
        self.clients = ClientSessions(
            (*recovered.inbox, *ahead), now_ms, self.clock, recovered.expired, recovered.silent
        )
        self.positions = Positions(self.inbox, self.clients, self.staging, pending)
        self.idempotency = IdempotencyCache(
            name,
            function.message_codec,
            limits.message_bytes_max,
            pending=pending,
            clock=self.clock,
        )
        self.dead_letters = DeadLetters(
            recovered.dead_count,
            limits.dead_letters_max,
            pending=pending,
            staging=self.staging,
            clock=self.clock,
            counters=counters,
        )
        messages: list[Message] = []
        for each in recovered.parked:
            if each.value is None:
                continue
            found = decoded(partial(parked_messages, each.id), name, each)
            if each.id.startswith(LENT_MARK):
                # Nobody has them any more: each goes on by itself.
                pending.record(Record(PARKED, each.id, None))
                pending.record_all([Record(PARKED, one.id, _encode(one)) for one in found])
            messages += found
        messages.sort(key=lambda each: each.order)
        self.parked = [QueuedMessage(message, parked=True) for message in messages]
        """What an earlier owner has put on record, in the order of arrival."""
        by_id = {each.message.id: each for each in self.parked}
        self.calls.recover(name, recovered.journal, by_id)


def _check_columns(function: Function) -> Callable[[msgspec.Raw], None]:
    def check(column: msgspec.Raw) -> None:
        function.column_type.check(column)

    return check
