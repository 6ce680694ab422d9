"""What has durably happened in a harness, in order: kept apart from what it runs on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec
from xxhash import xxh64

from sublet.functions.address import split_partition_name
from sublet.functions.app import Function
from sublet.functions.codec import codec_for, split_column
from sublet.functions.errors import PayloadError, SubletError
from sublet.runtime.partition.model.channel_names import REPLY_MARK
from sublet.runtime.protocol.egress import EgressColumns
from sublet.runtime.protocol.frames import Batch, Kind
from sublet.statestore.contract import Commit, OutboxEntry, Outcome

TRACE_MAX = 100_000

_any = codec_for(Any)
_decode_batch = msgspec.msgpack.Decoder(Batch).decode
_decode_columns = msgspec.msgpack.Decoder(EgressColumns).decode
_encode = msgspec.msgpack.Encoder().encode


class Sent(NamedTuple):
    """A message that a function has sent (or a timer of its), or a call that it has made."""

    function: str
    key: str
    message: Any
    source: str
    """The function that sent it."""
    is_call: bool = False


class Reply(NamedTuple):
    """What a call of the test came to."""

    function: str
    key: str
    value: Any
    error: SubletError | None


class Timer(NamedTuple):
    """A message of `send_after` that is still to come."""

    due_in: timedelta
    function: str
    key: str
    message: Any


class DeadLetter(NamedTuple):
    """A message that failed for good."""

    function: str
    key: str
    message: Any
    error: SubletError
    """With what the handler raised as its `__cause__`."""
    attempts: int


class Step(NamedTuple):
    """One thing that happened."""

    at_ms: int
    """Since the harness was made."""
    what: str


class Ledger:
    def __init__(self, functions: Mapping[str, Function], now_ms: Callable[[], int]) -> None:
        self.sent: list[Sent] = []
        self.emitted: dict[str, list[msgspec.Raw]] = {}
        self.replies: list[Reply] = []
        self.trace: deque[Step] = deque(maxlen=TRACE_MAX)
        self._functions = functions
        self._now_ms = now_ms
        self._digest = xxh64()

    @property
    def digest(self) -> str:
        """Of the whole trace: equal for two runs that were the same, step by step."""
        return self._digest.hexdigest()

    def note(self, what: str, content: bytes = b"") -> None:
        """Put a step on record."""
        step = Step(self._now_ms(), what)
        self.trace.append(step)
        self._digest.update(f"{step.at_ms} {what}\n".encode() + content)

    def committed(self, commit: Commit, outcome: Outcome) -> None:
        """A store has answered; what it has done now is a fact."""
        self.note(f"commit {commit.partition} {commit.index}: {outcome.value}", _encode(commit))
        if outcome is not Outcome.DONE:
            return
        for entry in commit.outbox:
            self._note_sent(commit.partition, entry)
        for egress in commit.egress:
            values = split_column(_decode_columns(egress.data).values)
            self.emitted.setdefault(egress.egress, []).extend(values)

    def _note_sent(self, partition: str, entry: OutboxEntry) -> None:
        if entry.destination.endswith(REPLY_MARK):
            return
        batch = _decode_batch(entry.data)
        if batch.kind not in (Kind.SEND, Kind.CALL):
            return
        source, function = split_partition_name(partition)[0], function_of(batch.target)
        for key, raw in zip(batch.keys, split_column(batch.payloads), strict=True):
            message = self.message_of(function, raw)
            self.sent.append(Sent(function, key, message, source, batch.kind is Kind.CALL))

    def message_of(self, function: str, raw: msgspec.Raw) -> Any:
        """Return a message as its function gets it, or as it is if the function will refuse it."""
        try:
            return self._functions[function].message_codec.decode(raw)
        except PayloadError:
            return _any.decode(raw)


def function_of(partition: str) -> str:
    """Return the function that a partition belongs to."""
    return split_partition_name(partition)[0]
