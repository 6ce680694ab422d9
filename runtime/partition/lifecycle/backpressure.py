"""Whether there is room for one more batch of a client, and if not, why and when it may come again.

Asked once for each batch of a client. Batches of partitions have no such question: what they send
is bounded where it comes from. Where there is no room for more replies at all, clients that have
been silent for long make some.
"""

from __future__ import annotations

from typing import Protocol

from sublet.runtime.config.limits import Limits
from sublet.runtime.partition.queue.backlog import Backlog
from sublet.runtime.partition.records.channels import Outbox
from sublet.runtime.partition.records.staged_batches import Staging
from sublet.runtime.partition.records.watermarks import SOURCES_MAX, StreamProgress
from sublet.runtime.protocol.frames import Batch, ErrorInfo, Kind


class RoomMaker(Protocol):
    def make_room(self, now_ms: float) -> bool:
        """Drop replies of clients that are long silent; return whether there is room now."""
        ...


class Backpressure:
    def __init__(
        self,
        partition: str,
        limits: Limits,
        *,
        outbox: Outbox,
        backlog: Backlog,
        staging: Staging,
        progress: StreamProgress,
        departure: RoomMaker,
    ) -> None:
        self._partition = partition
        self._limits = limits
        self._outbox = outbox
        self._backlog = backlog
        self._staging = staging
        self._progress = progress
        self._departure = departure

    def refusal(self, batch: Batch, now_ms: float) -> tuple[str, ErrorInfo] | None:
        """Return why there is no room now for a batch of a client, if there is none: a word for
        metrics, and what the client is told."""
        name, outbox, limits = self._partition, self._outbox, self._limits
        if batch.kind is Kind.STAGE:
            if not self._staging.has_room_for(len(memoryview(batch.payloads))):
                text = f"{name} is already storing as many staged rows as allowed"
                return "storing", ErrorInfo("overloaded", text, 20)
        else:
            backlog = self._backlog
            # Rows of pipelines are there because there is room: nobody has to wait for them.
            queued = backlog.count - self._staging.fed_rows
            if queued + batch.count > limits.queue_max and queued > 0:
                return "queue", ErrorInfo("overloaded", f"the queue of {name} is full", 50)
            if backlog.size_bytes > limits.queue_bytes_max:
                text = f"the queue of {name} holds {backlog.size_bytes} bytes"
                return "queue", ErrorInfo("overloaded", text, 50)
        if outbox.message_count > outbox.messages_max:
            text = f"{name} has too many undelivered messages to other partitions"
            return "outbox", ErrorInfo("overloaded", text, 100)
        owed = outbox.owed.get(batch.source)
        if owed is not None and (owed[0] > limits.client_credit or owed[1] > limits.link_bytes_max):
            text = f"{name} holds too many unacknowledged replies for this client"
            return "replies", ErrorInfo("overloaded", text, 100)
        is_owing = bool(outbox.owed) and outbox.owes_too_much
        if is_owing and not self._departure.make_room(now_ms):
            text = f"{name} holds too many unacknowledged replies"
            return "replies", ErrorInfo("overloaded", text, 100)
        if batch.kind is Kind.MARKER and not self._progress.has_room_for(batch.keys):
            text = f"{name} has {SOURCES_MAX} sources, the maximum"
            return "sources", ErrorInfo("rejected", text)
        return None
