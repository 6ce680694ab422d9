"""Carries batches between the partitions of a harness, and between them and its one caller."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from sublet.functions.address import CLIENT_MARK, is_client, split_partition_name
from sublet.functions.codec import Codec, codec_for, join_column
from sublet.functions.context import check_message
from sublet.functions.errors import RejectedError
from sublet.runtime.cluster.partition_routes import PartitionRoutes
from sublet.runtime.config.limits import Limits
from sublet.runtime.hosting.hosted import Hosted
from sublet.runtime.hosting.partition_host import Host
from sublet.runtime.partition.model.channel_names import endpoint_of
from sublet.runtime.protocol.frames import Ack, Batch, ErrorInfo, Extra, Kind, Refused
from sublet.runtime.protocol.idempotency_key import refusal_of_idempotency_key
from sublet.runtime.testing.virtual_loop import VirtualLoop
from sublet.statestore.contract import OutboxEntry, Outcome

BATCH_MESSAGES_MAX = 1_000
OVERLOAD_RETRIES = 10
"""As the client's default."""

_any = codec_for(Any)
_decode_batch = msgspec.msgpack.Decoder(Batch).decode
_decode_results = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


class Request:
    """One message of the test, and what has come of it so far."""

    __slots__ = ("done", "error", "function", "key", "kind", "reply_codec", "value")

    def __init__(self, kind: Kind, function: str, key: str, reply_codec: Codec[Any]) -> None:
        self.kind = kind
        self.function = function
        self.key = key
        self.reply_codec = reply_codec
        self.done = False
        self.value: Any = None
        self.error: ErrorInfo | None = None


class _Channel:
    """From the caller to one partition, as a client of that name."""

    def __init__(self, name: str, target: str) -> None:
        self.name = name
        self.target = target
        self.next_number = 1
        self.held: deque[Batch] = deque()
        """Numbered, and waiting for those before them: a worker takes only so many at once."""
        self.unacknowledged: list[Batch] = []
        self.open_requests: dict[int, Request] = {}
        """Not answered yet, or (a send) not taken yet, by number."""
        self.refusals = 0

    def put(self, batch: Batch, requests: Sequence[Request]) -> None:
        """Number a batch; it is sent when there is credit."""
        batch.source, batch.first = self.name, self.next_number
        self.open_requests.update(enumerate(requests, self.next_number))
        self.next_number += batch.count
        self.held.append(batch)

    def next_batch(self, credit: int) -> Batch | None:
        """Return what may be sent now; it is kept until it is taken."""
        in_flight = sum(batch.count for batch in self.unacknowledged)
        if not self.held or (in_flight and in_flight + self.held[0].count > credit):
            return None
        batch = self.held.popleft()
        self.unacknowledged.append(batch)
        return batch


class LocalRouter:
    """The `Transport` of a harness, and its client: repeats what a worker has not taken."""

    def __init__(
        self,
        loop: VirtualLoop,
        routes: PartitionRoutes,
        limits: Limits,
        reach: Callable[[str], Hosted],
        on_reply: Callable[[Request], None],
    ) -> None:
        """`reach` returns a partition, and brings it to life if nobody has needed it before."""
        self.host: Host | None = None
        """None while there is no worker; what is sent then is repeated to the next."""
        self._loop = loop
        self._routes = routes
        self._limits = limits
        self._reach = reach
        self._on_reply = on_reply
        self._channels: dict[str, _Channel] = {}
        """By client name: each has its own, so that no number ever means two things."""
        self._by_target: dict[str, _Channel] = {}

    # From partitions

    def deliver(self, partition: str, entry: OutboxEntry) -> None:
        endpoint = endpoint_of(entry.destination)
        batch = _decode_batch(entry.data)
        if is_client(endpoint):
            self._take_replies(partition, batch)
        else:
            self._arrive(batch, endpoint)

    def deliver_anew(self, partition: str, entry: OutboxEntry) -> None:
        self.deliver(partition, entry)

    def acknowledge(self, ack: Ack) -> None:
        source = endpoint_of(ack.source)
        if is_client(source):
            self._taken(ack)
        else:
            self._worker.acknowledged(ack)

    def refuse(self, refused: Refused) -> None:
        source = endpoint_of(refused.source)
        if is_client(source):
            self._refused(refused)
        else:
            self._worker.missed(source, refused.target, refused.first)

    def lost(self, partition: str, outcome: Outcome) -> None:
        self._loop.fail(AssertionError(f"{partition} was lost ({outcome.value})"))

    def left(self, partitions: Collection[str]) -> None:
        return  # None ever leaves.

    def send_to_peer(self, worker: str, message: bytes) -> bool:
        return False  # It has none.

    def ensure_connected(self, worker: str) -> None:
        return

    # From the test

    def ask(
        self,
        kind: Kind,
        function: str,
        keys: Sequence[str],
        messages: Sequence[object],
        reply_codec: Codec[Any],
        time_left_ms: int | None,
        idempotency_key: str = "",
    ) -> list[Request]:
        """Queue messages at their partitions; nothing runs yet."""
        if len(keys) != len(messages):
            raise RejectedError(f"{len(keys)} keys but {len(messages)} messages")
        extras = {0: _extra(idempotency_key)} if idempotency_key else None
        requests = [Request(kind, function, key, reply_codec) for key in keys]
        by_target: dict[str, list[tuple[str, bytes, Request]]] = {}
        for key, message, each in zip(keys, messages, requests, strict=True):
            payload = _any.encode(message)
            check_message(key, payload, self._limits.key_bytes_max, self._limits.message_bytes_max)
            target = self._routes.partition_of(function, key, idempotency_key)
            by_target.setdefault(target, []).append((key, payload, each))
        for target, rows in by_target.items():
            channel = self._by_target.get(target) or self._open(target)
            for start in range(0, len(rows), BATCH_MESSAGES_MAX):
                chosen = rows[start : start + BATCH_MESSAGES_MAX]
                batch = Batch(
                    target,
                    channel.name,
                    0,
                    kind,
                    [key for key, _, _ in chosen],
                    msgspec.Raw(join_column([payload for _, payload, _ in chosen])),
                    len(chosen),
                    time_left_ms,
                    extras,
                )
                channel.put(batch, [each for _, _, each in chosen])
            self._send_held(channel)
        return requests

    def tell(self, targets: Sequence[str], source: str, value_ms: int | None) -> None:
        """Queue a watermark at partitions, behind what was sent to them before."""
        column = _any.encode_column([value_ms])
        for target in targets:
            channel = self._by_target.get(target) or self._open(target)
            batch = Batch(target, channel.name, 0, Kind.MARKER, [source], msgspec.Raw(column), 1)
            function = split_partition_name(target)[0]
            channel.put(batch, [Request(Kind.MARKER, function, source, _any)])
            self._send_held(channel)

    def repeat(self) -> None:
        """The worker is another one: tell it all that the one before has not taken."""
        for channel in tuple(self._channels.values()):
            self._send(channel, tuple(channel.unacknowledged))

    @property
    def open(self) -> list[Request]:
        """Messages of the test that are not finished."""
        return [
            each for channel in self._channels.values() for each in channel.open_requests.values()
        ]

    def _open(self, target: str) -> _Channel:
        channel = _Channel(f"{CLIENT_MARK}test-{len(self._channels)}", target)
        self._channels[channel.name] = self._by_target[target] = channel
        return channel

    def _send_held(self, channel: _Channel) -> None:
        while (batch := channel.next_batch(self._limits.client_credit)) is not None:
            self._send(channel, [batch])

    def _send(self, channel: _Channel, batches: Sequence[Batch]) -> None:
        if self.host is not None:
            for batch in batches:
                self._arrive(batch, channel.target)

    def _arrive(self, batch: Batch, partition: str) -> None:
        hosted = self._reach(partition)
        self._worker.batch_arrived(batch, hosted)

    @property
    def _worker(self) -> Host:
        assert self.host is not None
        return self.host

    def _take_replies(self, partition: str, batch: Batch) -> None:
        channel = self._channels[batch.target]
        refs = batch.refs or range(batch.refs_first, batch.refs_first + batch.count)
        for place, (ref, result) in enumerate(
            zip(refs, _decode_results(batch.payloads), strict=True)
        ):
            request = channel.open_requests.pop(ref, None)
            if request is not None:  # Otherwise it was answered before a crash.
                error = batch.errors.get(place) if batch.errors else None
                if error is None:
                    request.value = request.reply_codec.decode(result)
                self._finish(request, error)
        self._worker.acknowledged(Ack(channel.name, partition, batch.first + batch.count - 1))

    def _finish(self, request: Request, error: ErrorInfo | None) -> None:
        request.error = error
        request.done = True
        self._on_reply(request)

    def _taken(self, ack: Ack) -> None:
        channel = self._channels[ack.source]
        channel.refusals = 0
        channel.unacknowledged = [
            batch for batch in channel.unacknowledged if batch.first + batch.count - 1 > ack.upto
        ]
        for number in [number for number in channel.open_requests if number <= ack.upto]:
            if channel.open_requests[number].kind is not Kind.CALL:
                channel.open_requests.pop(number).done = True
        if channel.held:
            self._loop.call_soon(self._send_held, channel)

    def _refused(self, refused: Refused) -> None:
        channel = self._channels[refused.source]
        if refused.error.code in ("session_expired", "gap"):
            self._loop.call_soon(self._begin_anew, channel)
            return
        channel.refusals += 1
        if channel.refusals <= OVERLOAD_RETRIES and refused.error.retry_after_ms:
            delay_s = refused.error.retry_after_ms / 1000
            self._loop.call_later(delay_s, self._send_from, channel, refused.first)
            return
        channel.unacknowledged = [
            batch for batch in channel.unacknowledged if batch.first < refused.first
        ]
        channel.held.clear()
        channel.next_number = refused.first
        for number in [number for number in channel.open_requests if number >= refused.first]:
            self._finish(channel.open_requests.pop(number), refused.error)

    def _send_from(self, channel: _Channel, first: int) -> None:
        self._send(
            channel,
            [each for each in channel.unacknowledged if each.first + each.count > first],
        )

    def _begin_anew(self, channel: _Channel) -> None:
        """The partition has forgotten a client that was silent for a day: be another one."""
        if self._by_target.get(channel.target) is not channel:
            return
        successor = self._open(channel.target)
        for batch in (*channel.unacknowledged, *channel.held):
            numbers = range(batch.first, batch.first + batch.count)
            successor.put(batch, [channel.open_requests.pop(number) for number in numbers])
        channel.unacknowledged = []
        channel.held.clear()
        self._send_held(successor)


def _extra(idempotency_key: str) -> Extra:
    refusal = refusal_of_idempotency_key(idempotency_key)
    if refusal is not None:
        raise RejectedError(refusal)
    return Extra(idempotency_key=idempotency_key)
