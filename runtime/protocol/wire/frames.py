"""Frames as bytes. Data frames are msgpack inside a protobuf `Frame`; the others are protobuf.

Decoding never takes more than a small multiple of the memory of what came in.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Annotated

import msgspec

from sublet.functions.address import SLOT_COUNT, is_client
from sublet.proto import sublet_pb2 as pb
from sublet.runtime.protocol.frames import (
    Alive,
    Batch,
    Challenge,
    Control,
    Data,
    ErrorInfo,
    Frame,
    FunctionInfo,
    Goodbye,
    Hello,
    Kind,
    Proof,
    Refused,
    Topology,
    Welcome,
)
from sublet.runtime.protocol.idempotency_key import refusal_of_idempotency_key
from sublet.runtime.protocol.wire.codecs import (
    ProtobufCodec,
    parse,
)
from sublet.runtime.protocol.wire.errors import WireError
from sublet.runtime.protocol.wire.fields import (
    NUMBER_MAX,
    Choice,
    CutText,
    Each,
    Name,
    Number,
    One,
    ShortBytes,
    SortedMap,
)

BATCH_COUNT_MAX = 100_000
REASON_CHARACTERS_MAX = 1_000
NONCE_BYTES_MAX = 64

# Control frames

FUNCTION = ProtobufCodec(
    FunctionInfo, pb.Function, name=Name(), partition_count=Number(1, SLOT_COUNT)
)
TOPOLOGY = ProtobufCodec(
    Topology,
    pb.Topology,
    version=Number(),
    functions=Each(FUNCTION),
    # One seed of a simulated cluster must tell one story.
    placement=SortedMap(),
    workers=SortedMap(),
)
HELLO = ProtobufCodec(Hello, pb.Hello, endpoint=Name(), nonce=ShortBytes(NONCE_BYTES_MAX))
CHALLENGE = ProtobufCodec(
    Challenge,
    pb.Challenge,
    nonce=ShortBytes(NONCE_BYTES_MAX),
    proof=ShortBytes(NONCE_BYTES_MAX),
)
PROOF = ProtobufCodec(Proof, pb.Proof, proof=ShortBytes(NONCE_BYTES_MAX))
WELCOME = ProtobufCodec(
    Welcome,
    pb.Welcome,
    worker=Name(),
    topology=One(TOPOLOGY),
    credit=Number(),
    message_bytes_max=Number(),
    key_bytes_max=Number(),
)
ERROR = ProtobufCodec(ErrorInfo, pb.Error, code=Name(), retry_after_ms=Number())
REFUSED = ProtobufCodec(
    Refused,
    pb.Refused,
    target=Name(),
    source=Name(),
    first=Number(1),
    error=One(ERROR),
    epoch=Number(),
)
GOODBYE = ProtobufCodec(Goodbye, pb.Goodbye, reason=CutText(REASON_CHARACTERS_MAX))
ALIVE = ProtobufCodec(Alive, pb.Alive)

CONTROL = Choice(
    Control,
    hello=HELLO,
    welcome=WELCOME,
    topology=TOPOLOGY,
    refused=REFUSED,
    goodbye=GOODBYE,
    alive=ALIVE,
    challenge=CHALLENGE,
    proof=PROOF,
)

# All frames

_DATA_TAG = 0x0A  # field 1, length-delimited: how protobuf begins a Frame with `data`

_INT_64 = msgspec.Meta(ge=-(2**63), le=NUMBER_MAX)

_data_encoder = msgspec.msgpack.Encoder()
_data_decoder = msgspec.msgpack.Decoder(Data)
_markers_decoder = msgspec.msgpack.Decoder(list[Annotated[int, _INT_64] | None])


def encode_frame(frame: Frame) -> bytes:
    """Return the serialized protobuf Frame."""
    if isinstance(frame, Data):
        payload = _data_encoder.encode(frame)
        # By hand: the protobuf library would copy the payload twice, into its object and out of it.
        return b"".join((_data_prefix(len(payload)), payload))
    case, content = CONTROL.write(frame)
    return pb.Frame(**{case: content}).SerializeToString()


def decode_frame(encoded: bytes) -> Frame:
    """Return the checked frame. Batches may refer to `encoded` as long as they live.

    Raises `WireError` for anything but one whole frame.
    """
    start = _data_start(encoded)
    if start:
        return _decode_data(memoryview(encoded)[start:])
    message = parse(pb.Frame, encoded)
    case = message.WhichOneof("content")
    if case == "data":
        return _decode_data(message.data)
    frame: Control = CONTROL.read(case, getattr(message, case) if case else None, "Frame.content")
    return frame


def _data_prefix(length: int) -> bytes:
    prefix = bytearray((_DATA_TAG,))
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix)


def _data_start(encoded: bytes) -> int:
    """Return where the payload of a plain data frame begins; 0 if it is not such a frame."""
    if len(encoded) < 2 or encoded[0] != _DATA_TAG:
        return 0
    length = shift = 0
    # Lengths up to 2**28 have four bytes; links carry nothing near that.
    for index in range(1, min(len(encoded), 5)):
        byte = encoded[index]
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return index + 1 if index + 1 + length == len(encoded) else 0
        shift += 7
    return 0


def _decode_data(payload: bytes | memoryview) -> Data:
    try:
        data = _data_decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"malformed data frame: {error}; see docs/protocol.md") from None
    except RecursionError:
        raise WireError("malformed data frame: nested too deeply") from None
    for batch in data.batches:
        _check_batch(batch)
    for ack in data.acks:
        if not 0 <= ack.upto <= NUMBER_MAX:
            raise WireError(f"ack.upto is {ack.upto}; allowed: 0..{NUMBER_MAX}")
        if ack.context and not all(0 <= ms < inf for _, ms in ack.context):
            raise WireError("ack.context has a negative or infinite cost; allowed: milliseconds")
    if not 0 <= data.credit <= NUMBER_MAX:
        raise WireError(f"data.credit is {data.credit}; allowed: 0..{NUMBER_MAX}")
    return data


def _check_batch(batch: Batch) -> None:
    count = batch.count
    if not 1 <= count <= BATCH_COUNT_MAX:
        raise WireError(f"batch.count is {count}; allowed: 1..{BATCH_COUNT_MAX}")
    _check_numbers("first", batch.first, count)
    _check_length("payloads", _array_length(batch.payloads), count)
    reply = batch.kind is Kind.REPLY
    _check_length("keys", len(batch.keys), 0 if reply else count)
    if batch.kind is Kind.CANCEL_CALL:
        _check_cancelled(batch)
    elif batch.kind is Kind.MARKER and not is_client(batch.source):
        _check_markers(batch)
    if isinstance(batch.time_left_ms, list):
        _check_length("time_left_ms", len(batch.time_left_ms), count)
    if batch.extras:
        _check_places("extras", batch.extras, count)
        for extra in batch.extras.values():
            check_idempotency_key(extra.idempotency_key)
    _check_places("errors", batch.errors, count)
    if not reply:
        if batch.refs is not None or batch.errors:
            raise WireError("refs and errors are allowed in replies (kind 2) only")
    elif batch.refs is not None:
        _check_length("refs", len(batch.refs), count)
        if min(batch.refs) < 1 or max(batch.refs) > NUMBER_MAX:
            raise WireError(f"refs has a number outside 1..{NUMBER_MAX}")
    else:
        _check_numbers("refs_first", batch.refs_first, count)


def _check_cancelled(batch: Batch) -> None:
    """A cancellation names an earlier message of its own channel, by its number."""
    for number, key in enumerate(batch.keys, batch.first):
        # The longest number has 19 digits; `int` takes long for longer texts.
        digits = len(key) <= 19 and key.isascii() and key.isdigit()
        if not digits or not 1 <= int(key) < number:
            raise WireError(
                f"message {number} cancels {key!r:.40} (kind 4); allowed: the number of an earlier "
                f"message, 1..{number - 1}"
            )


def _check_markers(batch: Batch) -> None:
    """Watermarks of partitions. Those of clients are checked one by one, with better errors."""
    try:
        _markers_decoder.decode(batch.payloads)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise WireError("a watermark (kind 5) is not a time; allowed: ms, or nil") from None


def _check_numbers(column: str, first: int, count: int) -> None:
    if first < 1 or first + count - 1 > NUMBER_MAX:
        raise WireError(f"{column} is {first}; allowed: 1..{NUMBER_MAX - count + 1}")


def _check_length(column: str, length: int, count: int) -> None:
    if length != count:
        found = "is not an array" if length < 0 else f"has {length} items"
        raise WireError(f"{column} {found}; the batch needs {count} items")


def _check_places(column: str, places: Mapping[int, object] | None, count: int) -> None:
    if places and (min(places) < 0 or max(places) >= count):
        raise WireError(f"{column} has a place outside 0..{count - 1}")


def _array_length(raw: msgspec.Raw) -> int:
    """Return the length in a msgpack array's header; -1 if it is no array."""
    head = bytes(memoryview(raw)[:5])
    if not head:
        return -1
    first = head[0]
    if first & 0xF0 == 0x90:
        return first & 0x0F
    if first == 0xDC:
        return int.from_bytes(head[1:3], "big")
    if first == 0xDD:
        return int.from_bytes(head[1:5], "big")
    return -1


def check_idempotency_key(text: str) -> None:
    """Empty: there is none."""
    refusal = refusal_of_idempotency_key(text) if text else None
    if refusal is not None:
        raise WireError(refusal)
