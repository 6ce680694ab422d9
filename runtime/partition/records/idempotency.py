"""Idempotency keys: a request that is asked again gets the answer that was given, and runs once.

Pure bookkeeping. A key is *claimed* by the first message that brings it, before its record is
looked up, so that two messages never both find that nobody has answered yet; others with the same
key wait for the answer of the one that claimed it. The answer is a record of the commit that holds
the message's effects; until that is done, a load does not find it, so it is kept here as well. One
that ends without an effect gives no answer: then those who waited run themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import xxhash

from sublet.functions.codec import Codec, codec_for
from sublet.functions.errors import EncodeError, PayloadError
from sublet.runtime.partition.commit.commit_participant import CommitParticipant
from sublet.runtime.partition.commit.pending_commit import CommitContents, PendingCommit
from sublet.runtime.partition.model.clock import PartitionClock
from sublet.runtime.partition.model.corruption import decoded
from sublet.runtime.partition.model.work import QueuedMessage
from sublet.runtime.partition.records.call_journal import NIL
from sublet.runtime.partition.records.commit_encoder import reply_too_large
from sublet.runtime.protocol.frames import ErrorInfo, Kind
from sublet.runtime.protocol.messages import Message
from sublet.statestore.contract import IDEMPOTENCY, CorruptDataError, Record

IDEMPOTENCY_TTL_MS = 24 * 3_600_000

_any = codec_for(Any)
_encode = msgspec.msgpack.Encoder().encode


class Answer(msgspec.Struct, array_like=True):
    """What an idempotency record remembers."""

    digest: int
    """Of the request as it was written."""
    result: msgspec.Raw
    error: ErrorInfo | None = None
    only_told: bool = False
    """It failed, and its caller was told; no dead letter keeps it."""
    meaning: int = 0
    """The digest of what it says, however it is written; 0: not known."""

    def is_for(self, message: Message, codec: Codec[Any]) -> bool:
        """Tell whether a message asks for what was answered."""
        if self.digest == _digest(bytes(message.payload)):
            return True
        return bool(self.meaning) and self.meaning == _meaning(message, codec)

    def error_for(self, message: Message, codec: Codec[Any]) -> ErrorInfo | None:
        """Return the error to tell a message that asks again, which may not ask for the same."""
        if self.is_for(message, codec):
            return self.error
        return ErrorInfo(
            "idempotency_conflict",
            f"idempotency key {message.extra.idempotency_key!r} was used for another request",
        )

    def loss_of(self, message: Message, codec: Codec[Any]) -> ErrorInfo | None:
        """Return why a message that nobody waits for would be lost if it just ended; None: what it
        asks for was done, or is kept."""
        if not self.only_told and self.is_for(message, codec):
            return None
        return self.error_for(message, codec)


class DamagedAnswer(Answer):
    """Stands for a record that cannot be read: nobody knows whether the request has run."""

    def error_for(self, message: Message, codec: Codec[Any]) -> ErrorInfo | None:
        return self.error

    def loss_of(self, message: Message, codec: Codec[Any]) -> ErrorInfo | None:
        return self.error


_decode_answer = msgspec.msgpack.Decoder(Answer).decode


class IdempotencyCache(CommitParticipant):
    """The messages given to it have an idempotency key."""

    __slots__ = ("_bytes_max", "_clock", "_codec", "_partition", "_pending", "claims", "given")

    def __init__(
        self,
        partition: str,
        codec: Codec[Any],
        bytes_max: int,
        *,
        pending: PendingCommit,
        clock: PartitionClock,
    ) -> None:
        """`codec` is that of the function's messages; no answer has more than `bytes_max`."""
        self.claims: dict[str, list[QueuedMessage]] = {}
        """The message that runs for a key of a request, then those that want the same answer."""
        self.given: dict[str, Answer] = {}
        """Given, but not stored: a load does not find them yet."""
        self._partition = partition
        self._bytes_max = bytes_max
        self._codec = codec
        self._pending = pending
        self._clock = clock

    def claim(self, waiting: QueuedMessage, asked: list[str]) -> bool:
        """Tell whether the message is the one to run; if it is new, `asked` gets the id of the
        record that may know the answer."""
        id_ = idempotency_id(waiting.message)
        claimed = self.claims.get(id_)
        if claimed is None:
            self.claims[id_] = [waiting]
            asked.append(id_)
            return True
        if claimed[0] is waiting:
            return True  # A retry of the one that runs.
        claimed.append(waiting)
        return False

    def answered_before(self, waiting: QueuedMessage) -> list[QueuedMessage]:
        """A record knows the answer: return all who get it."""
        return self.claims.pop(idempotency_id(waiting.message), [waiting])

    def answer_to(self, waiting: QueuedMessage) -> Answer | None:
        """Return what was answered to the same request just now."""
        return self.given.get(idempotency_id(waiting.message))

    def answers_in(self, records: Sequence[Record], now_ms: float) -> Mapping[str, Answer]:
        """Return the answers in stored records that are not too old, by id."""
        return still_valid(self._partition, records, self._clock.at_ms(now_ms))

    def error_for(self, answer: Answer, message: Message) -> ErrorInfo | None:
        """See `Answer.error_for`."""
        return answer.error_for(message, self._codec)

    def loss_of(self, answer: Answer, message: Message) -> ErrorInfo | None:
        """See `Answer.loss_of`; whoever calls waits to be told."""
        return None if message.kind is Kind.CALL else answer.loss_of(message, self._codec)

    def remember(
        self, message: Message, value: Any, error: ErrorInfo | None, now_ms: float
    ) -> tuple[Answer, list[QueuedMessage]]:
        """Keep the answer; return it, and who else gets it."""
        id_ = idempotency_id(message)
        result, only_told = NIL, error is not None and message.kind is Kind.CALL
        if error is None:
            try:
                result = msgspec.Raw(_any.encode(value))
            except EncodeError as problem:
                error = ErrorInfo(problem.code, f"the reply: {problem}")
        size_bytes = len(bytes(result))
        if size_bytes > self._bytes_max:
            result, error = NIL, reply_too_large(size_bytes, self._bytes_max)
        answer = Answer(
            _digest(bytes(message.payload)),
            result,
            error,
            only_told,
            _meaning(message, self._codec),
        )
        self._give(id_, answer, now_ms)
        return answer, self.claims.pop(id_, [])[1:]

    def keep(self, message: Message, answer: Answer, now_ms: float) -> None:
        """A message that got this answer is a dead letter now: others that ask for the same need
        not be."""
        if answer.only_told and answer.is_for(message, self._codec):
            answer = msgspec.structs.replace(answer, only_told=False)
            self._give(idempotency_id(message), answer, now_ms)

    def _give(self, id_: str, answer: Answer, now_ms: float) -> None:
        self.given[id_] = answer
        due_ms = self._clock.at_ms(now_ms) + IDEMPOTENCY_TTL_MS
        self._pending.remember(answer, Record(IDEMPOTENCY, id_, _encode(answer), due_ms))

    def stored(self, contents: CommitContents, now_ms: float) -> None:
        """The store knows these answers now."""
        for id_, answer in contents.answers:
            # A newer one may be in the next commit.
            if self.given.get(id_) is answer:
                del self.given[id_]

    def abandoned(self, waiting: QueuedMessage) -> list[QueuedMessage]:
        """A message ends without an answer; return who waited for it and has to run now."""
        id_ = idempotency_id(waiting.message)
        claimed = self.claims.get(id_, [])
        if claimed and claimed[0] is waiting:
            del self.claims[id_]
            return claimed[1:]
        if waiting in claimed:
            claimed.remove(waiting)
        return []

    def has_followers(self, waiting: QueuedMessage) -> bool:
        """Tell whether others wait for the answer of this message."""
        claimed = self.claims.get(idempotency_id(waiting.message), [])
        return len(claimed) > 1 and claimed[0] is waiting

    def follows(self, waiting: QueuedMessage) -> bool:
        """Tell whether the message waits for the answer of another one."""
        claimed = self.claims.get(idempotency_id(waiting.message), [])
        return waiting in claimed and waiting is not claimed[0]


def idempotency_id(message: Message) -> str:
    return f"{message.key}\x00{message.extra.idempotency_key}"


def still_valid(partition: str, records: Sequence[Record], clock_ms: int) -> dict[str, Answer]:
    """Return the answers in stored records that are not too old, by id."""
    return {
        each.id: _answer_in(partition, each)
        for each in records
        if each.value is not None and (each.due_ms is None or each.due_ms > clock_ms)
    }


def _answer_in(partition: str, record: Record) -> Answer:
    try:
        return decoded(_decode_answer, partition, record)
    except CorruptDataError as error:
        # To run the request might be to run it twice.
        return DamagedAnswer(0, NIL, ErrorInfo("bad_state", str(error)))


def _digest(payload: bytes) -> int:
    return int(xxhash.xxh64_intdigest(payload))


def _meaning(message: Message, codec: Codec[Any]) -> int:
    """Ways in write one request differently: with what was left out or without, by another order
    of fields, 1 for 1.0. So it is compared as its handler sees it."""
    payload = bytes(message.payload)
    # Of what is no message of this function nothing is known but its bytes.
    with suppress(PayloadError, EncodeError):
        payload = codec.encode_canonical(codec.decode(payload))
    return _digest(payload)
