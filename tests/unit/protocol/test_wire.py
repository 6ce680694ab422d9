"""Frames and errors become bytes and the same again; whatever else comes in is refused."""

from __future__ import annotations

import tracemalloc

import grpc
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.functions.errors import (
    DeadlineExceededError,
    RejectedError,
    RetryLaterError,
    SubletError,
    TooLargeError,
    UnknownFunctionError,
    UnknownOutcomeError,
)
from sublet.proto import sublet_pb2
from sublet.runtime.protocol.frames import (
    Ack,
    Alive,
    Batch,
    Challenge,
    Data,
    ErrorInfo,
    Extra,
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
from sublet.runtime.protocol.wire.errors import WireError, error_from_status, status_from_error
from sublet.runtime.protocol.wire.fields import NAME_BYTES_MAX, NUMBER_MAX
from sublet.runtime.protocol.wire.frames import BATCH_COUNT_MAX, decode_frame, encode_frame

TOPOLOGY = Topology(
    version=3,
    functions=[
        FunctionInfo("shop/cart", 4, "keyed"),
        FunctionInfo("shop/stock", 1, "stateful", absent=True),
    ],
    placement={"shop/cart/0": "w1", "shop/cart/1": "w2"},
    workers={"w1": "127.0.0.1:1", "w2": "127.0.0.1:2"},
)
FRAMES: list[Frame] = [
    Data(),
    Data(acks=[Ack("shop/cart/0", "~c", 5)], credit=7),
    Data(
        [
            Batch("shop/cart/0", "~c", 1, Kind.SEND, ["a", "b"], msgspec.Raw(b"\x92\x01\x02"), 2),
            Batch(
                "shop/cart/0",
                "shop/stock/0",
                NUMBER_MAX - 1,
                Kind.CALL,
                ["a", "ü"],
                msgspec.Raw(b"\x92\xc0\xa1x"),
                2,
                time_left_ms=[5, -1],
                extras={1: Extra("once", ["shop/cart[a]"], "trace")},
            ),
            Batch(
                "~c",
                "shop/cart/0",
                9,
                Kind.REPLY,
                [],
                msgspec.Raw(b"\x92\xc0\x01"),
                2,
                refs=[4, 2],
                errors={0: ErrorInfo("bad_payload", "no")},
            ),
            Batch("~c", "p", 9, Kind.REPLY, [], msgspec.Raw(b"\x91\xc0"), 1, refs_first=1),
            Batch("p", "~c", 3, Kind.CANCEL_TIMER, ["timer"], msgspec.Raw(b"\x91\xc0"), 1, 250),
        ]
    ),
    Hello("~c", 1, "token"),
    Welcome("w1", TOPOLOGY, 100, 4_194_304, 512),
    TOPOLOGY,
    Refused("shop/cart/0", "~c", 5, ErrorInfo("overloaded", "full", 50)),
    Goodbye("moving"),
    Alive(),
    Alive(asks=True),
    Alive(large_follows=True),
    Hello("~c", answers_alive=False),
    Hello("w1", called="w2", nonce=b"\x00" * 32),
    Challenge(b"\xff" * 32, b"proof"),
    Proof(b"proof"),
]
ENCODED = [encode_frame(frame) for frame in FRAMES]


def batch(**changed: object) -> Batch:
    return msgspec.structs.replace(
        Batch("p", "~c", 1, Kind.SEND, ["a", "b"], msgspec.Raw(b"\x92\x01\x02"), 2), **changed
    )


def reply(**changed: object) -> Batch:
    return batch(**{"kind": Kind.REPLY, "keys": [], "refs_first": 1, **changed})


def cancellation(*keys: str) -> Batch:
    return batch(kind=Kind.CANCEL_CALL, first=3, keys=list(keys))


def data_frame(payload: bytes) -> bytes:
    return sublet_pb2.Frame(data=payload).SerializeToString()


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_frame_is_the_same_after_the_wire(frame: Frame) -> None:
    assert decode_frame(encode_frame(frame)) == frame


@pytest.mark.parametrize("size", [0, 1, 100, 127, 128, 129, 16_383, 16_384, 16_385, 3_000_000])
def test_a_data_frame_is_what_the_protobuf_library_would_write(size: int) -> None:
    payloads = msgspec.Raw(msgspec.msgpack.encode([b"x" * size]))
    frame = Data([Batch("p", "~c", 1, Kind.SEND, ["a"], payloads, 1)])
    encoded = encode_frame(frame)

    assert encoded == data_frame(msgspec.msgpack.encode(frame))
    assert decode_frame(encoded) == frame


def test_workers_and_partitions_come_in_one_order_in_every_process() -> None:
    """Protobuf's own differs: one seed of a simulated cluster told several stories."""
    names = [f"w{number}" for number in range(9)]
    told = decode_frame(
        encode_frame(Topology(1, [], dict.fromkeys(names, "w"), dict.fromkeys(names, "a")))
    )

    assert isinstance(told, Topology)
    assert (list(told.placement), list(told.workers)) == (names, names)


def test_a_data_frame_is_read_however_protobuf_writes_it() -> None:
    frame = FRAMES[1]
    unknown_field_behind = ENCODED[1] + b"\xa0\x06\x01"
    length_in_more_bytes_than_needed = (
        ENCODED[1][:1] + bytes((ENCODED[1][1] | 0x80, 0x00)) + ENCODED[1][2:]
    )

    assert decode_frame(unknown_field_behind) == frame
    assert decode_frame(length_in_more_bytes_than_needed) == frame


def test_fields_of_a_later_version_are_ignored() -> None:
    assert decode_frame(data_frame(msgspec.msgpack.encode([[], [], 3, [], "new"]))) == Data(
        credit=3
    )


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (batch(count=0), "batch.count is 0; allowed: 1..100000"),
        (batch(count=BATCH_COUNT_MAX + 1), "allowed: 1..100000"),
        (batch(count=-1), "allowed: 1..100000"),
        (batch(first=0), "first is 0; allowed: 1.."),
        (batch(first=-5), "first is -5; allowed: 1.."),
        (batch(first=NUMBER_MAX), "first is 9223372036854775807"),
        (batch(keys=["a"]), "keys has 1 items; the batch needs 2"),
        (batch(keys=[]), "keys has 0 items; the batch needs 2"),
        (batch(payloads=msgspec.Raw(b"\x91\x01")), "payloads has 1 items; the batch needs 2"),
        (batch(payloads=msgspec.Raw(b"\xc0")), "payloads is not an array; the batch needs 2"),
        (batch(time_left_ms=[1]), "time_left_ms has 1 items"),
        (batch(extras={2: Extra()}), "extras has a place outside 0..1"),
        (batch(extras={-1: Extra()}), "extras has a place outside 0..1"),
        (batch(extras={1: Extra("x" * 257)}), "the idempotency key has 257 bytes"),
        (batch(extras={1: Extra("a\0b")}), "has a control character"),
        (batch(refs=[1, 2]), "are allowed in replies (kind 2) only"),
        (batch(errors={0: ErrorInfo("e", "")}), "are allowed in replies (kind 2) only"),
        (reply(keys=["a", "b"]), "keys has 2 items; the batch needs 0"),
        (reply(errors={2: ErrorInfo("e", "")}), "errors has a place outside 0..1"),
        (reply(refs=[1]), "refs has 1 items"),
        (reply(refs=[1, 0]), "refs has a number outside 1.."),
        (reply(refs_first=0), "refs_first is 0"),
        (
            cancellation("2", "x"),
            "message 4 cancels 'x' (kind 4); allowed: the number of an earlier message, 1..3",
        ),
        (cancellation("2", ""), "cancels '' (kind 4); allowed"),
        (
            cancellation("0", "2"),
            "cancels '0' (kind 4); allowed: the number of an earlier message, 1..2",
        ),
        (
            cancellation("3", "2"),
            "cancels '3' (kind 4); allowed: the number of an earlier message, 1..2",
        ),
        (cancellation("2", "4"), "cancels '4' (kind 4); allowed"),
        (cancellation("-1", "1"), "cancels '-1' (kind 4); allowed"),
        (cancellation("1", "~c:1"), "cancels '~c:1' (kind 4); allowed"),
        (cancellation("1", "\u0661"), "cancels '\u0661' (kind 4); allowed"),
        (cancellation("1", "9" * 10_000), "; allowed"),
    ],
)
def test_a_batch_that_contradicts_itself_is_refused(wrong: Batch, complaint: str) -> None:
    with pytest.raises(WireError) as caught:
        decode_frame(encode_frame(Data([wrong])))

    assert complaint in str(caught.value)


def test_a_cancellation_may_name_any_message_before_it() -> None:
    frame = Data([cancellation("1", "3")])

    assert decode_frame(encode_frame(frame)) == frame


def test_the_largest_batch_is_taken() -> None:
    count = BATCH_COUNT_MAX
    payloads = msgspec.Raw(b"\xdd" + count.to_bytes(4, "big") + b"\x01" * count)
    frame = Data([Batch("p", "~c", 1, Kind.SEND, [""] * count, payloads, count)])

    assert decode_frame(encode_frame(frame)) == frame


@pytest.mark.parametrize("count", [1, 15, 16, 65_535, 65_536])
def test_payloads_are_counted_by_every_kind_of_array_header(count: int) -> None:
    payloads = msgspec.Raw(msgspec.msgpack.encode([1] * count))
    frame = Data([Batch("p", "~c", 1, Kind.SEND, [""] * count, payloads, count)])

    assert decode_frame(encode_frame(frame)) == frame


@pytest.mark.parametrize(
    ("encoded", "complaint"),
    [
        (b"", "Frame.content is missing or unknown"),
        (b"\xff", "not a protobuf Frame"),
        (data_frame(b""), "truncated"),
        (data_frame(b"\x01"), "Expected `array`"),
        (data_frame(b"\x93\x90\x90\x00\x00"), "trailing"),
        (data_frame(b"\x93\x90\x90\xff"), "data.credit is -1"),
        (data_frame(b"\x93\x90\x91\x93\xa1a\xa1b\xff\x00"), "ack.upto is -1"),
        (data_frame(b"\x91\x91\x97\xa1a\xa1b\x01\x09\x90\x90\x01"), "Invalid enum value 9"),
        (data_frame(b"\x91\x91\x97\xa1\xff\xa1b\x01\x00\x90\x90\x01"), "utf"),
        (data_frame(b"\x91\x91\x97\xa1a\xa1b\x01\x00\x90" + b"\x91" * 9_999), "nested too deeply"),
        (data_frame(b"\x91\xdd\xff\xff\xff\xff"), "truncated"),
        (
            sublet_pb2.Frame(hello=sublet_pb2.Hello()).SerializeToString(),
            "Hello.endpoint has 0 bytes",
        ),
        (encode_frame(Hello("~" + "x" * NAME_BYTES_MAX)), "allowed: 1..512"),
        (
            encode_frame(Welcome("w", TOPOLOGY, 2**63, 1, 1)),
            "Welcome.credit is 9223372036854775808",
        ),
        (encode_frame(Topology(2**63, [], {}, {})), "Topology.version is"),
        (
            encode_frame(Topology(1, [FunctionInfo("f", 0, "keyed")], {}, {})),
            "Function.partition_count is 0; allowed: 1..1024",
        ),
        (
            encode_frame(Topology(1, [FunctionInfo("f", 1_025, "keyed")], {}, {})),
            "Function.partition_count is 1025; allowed: 1..1024",
        ),
        (
            encode_frame(Refused("p", "~c", 0, ErrorInfo("e", ""))),
            "Refused.first is 0; allowed: 1..",
        ),
        (encode_frame(Refused("p", "~c", 1, ErrorInfo("", ""))), "Error.code has 0 bytes"),
        (b"\x12\x03\x0a\x01\xff", "not a protobuf Frame"),
    ],
)
def test_what_is_no_frame_is_refused(encoded: bytes, complaint: str) -> None:
    with pytest.raises(WireError) as caught:
        decode_frame(encoded)

    assert complaint in str(caught.value)


def test_a_goodbye_is_kept_short() -> None:
    assert decode_frame(encode_frame(Goodbye("x" * 5_000))) == Goodbye("x" * 1_000)


@settings(max_examples=1_000)
@given(st.binary(max_size=300))
def test_random_bytes_are_a_frame_or_a_wire_error(encoded: bytes) -> None:
    decode_or_refuse(encoded)


@settings(max_examples=1_000)
@given(st.binary(max_size=300))
def test_random_bytes_as_data_are_a_frame_or_a_wire_error(payload: bytes) -> None:
    decode_or_refuse(data_frame(payload))


@settings(max_examples=1_000)
@given(st.sampled_from(ENCODED), st.data())
def test_a_damaged_frame_is_a_frame_or_a_wire_error(encoded: bytes, data: st.DataObject) -> None:
    damaged = bytearray(encoded)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(damaged)))
        piece = data.draw(st.binary(max_size=6))
        damaged[place : place + data.draw(st.integers(0, 6))] = piece
    decode_or_refuse(bytes(damaged))


few = st.integers(-1, 3)
places = st.none() | st.dictionaries(few, st.lists(st.just("x") | few, max_size=3), max_size=2)
# Near enough to a batch that many pass the types, and some the rest.
nearly_batches = st.tuples(
    st.just("p"),
    st.just("~c"),
    st.sampled_from([0, 1, NUMBER_MAX, NUMBER_MAX + 1]),
    st.integers(0, 4),
    st.lists(st.just("key"), max_size=3),
    st.lists(st.none() | few, max_size=3) | st.none(),
    few,
    st.none() | few | st.lists(few, max_size=3),
    places,
    few,
    st.none() | st.lists(few, max_size=3),
    places,
)


@settings(max_examples=1_000)
@given(nearly_batches)
def test_what_is_nearly_a_batch_is_a_frame_or_a_wire_error(fields: tuple[object, ...]) -> None:
    decode_or_refuse(data_frame(msgspec.msgpack.encode([[fields], [], 0])))


@pytest.mark.parametrize(
    "bomb",
    [
        pytest.param(b"\x93\x90\xdd\x00\x0f\x00\x00" + b"\x93\xa0\xa0\x01" * 0xF0000, id="acks"),
        pytest.param(
            b"\x91\x91\x97\xa1a\xa1b\x01\x00\xdd\x00\x3d\x00\x00" + b"\xa0" * 0x3D0000, id="keys"
        ),
        pytest.param(b"\x91" + b"\xdd\x7f\xff\xff\xff" * 800_000, id="claimed lengths"),
        pytest.param(b"\x91\x91\x97" + b"\xdb\x7f\xff\xff\xff" * 800_000, id="claimed text"),
    ],
)
def test_the_worst_frame_takes_a_bounded_multiple_of_its_size(bomb: bytes) -> None:
    encoded = data_frame(bomb)
    tracemalloc.start()
    try:
        decode_or_refuse(encoded)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 40 * len(encoded)


def decode_or_refuse(encoded: bytes) -> None:
    try:
        frame = decode_frame(encoded)
    except WireError:
        return
    # What was taken can be sent on, and then reads the same.
    assert decode_frame(encode_frame(frame)) == frame


def every_error() -> list[SubletError]:
    def kinds(root: type[SubletError]) -> list[type[SubletError]]:
        return [root, *(kind for child in root.__subclasses__() for kind in kinds(child))]

    return [
        kind("text", 70) if issubclass(kind, RetryLaterError) else kind("text")
        for kind in kinds(SubletError)
        if kind.__module__.startswith("sublet.")
        # Raised and told where Spark runs; no worker knows of them.
        and not kind.__module__.startswith("sublet.spark_bridge.")
    ]


@pytest.mark.parametrize("error", every_error(), ids=lambda error: error.code)
def test_every_error_crosses_by_status_and_is_whole_again(error: SubletError) -> None:
    status, text, metadata = status_from_error(error)
    again = error_from_status(status, text, metadata)

    assert status is not grpc.StatusCode.OK
    assert type(again) is type(error)
    assert str(again) == str(error)


def test_a_class_below_one_that_says_no_other_code_does_not_take_its_place() -> None:
    class OutOfStockError(RejectedError):
        pass

    again = error_from_status(*status_from_error(OutOfStockError("no more")))

    assert type(again) is RejectedError


def test_an_error_of_an_application_has_the_status_of_its_nearest_kind() -> None:
    class OutOfStockError(RejectedError):
        code = "out_of_stock"

    status, _, metadata = status_from_error(OutOfStockError("no more"))

    assert status is grpc.StatusCode.INVALID_ARGUMENT
    assert metadata == (("sublet-code", "out_of_stock"),)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineExceededError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, TooLargeError),
        (grpc.StatusCode.UNIMPLEMENTED, RejectedError),
        (grpc.StatusCode.UNAVAILABLE, UnknownOutcomeError),
        (grpc.StatusCode.INTERNAL, UnknownOutcomeError),
    ],
)
def test_where_grpc_itself_fails_the_error_says_no_more_than_is_known(
    status: grpc.StatusCode, kind: type[SubletError]
) -> None:
    assert type(error_from_status(status, "text", ())) is kind


def test_metadata_from_a_stranger_does_no_harm() -> None:
    metadata = (("sublet-code", "overloaded"), ("sublet-retry-after-ms", "soon"))
    error = error_from_status(grpc.StatusCode.UNAVAILABLE, "text", metadata)

    assert isinstance(error, RetryLaterError)
    assert type(error_from_status(grpc.StatusCode.UNKNOWN, "", (("sublet-code", "new"),))) is (
        SubletError
    )
    assert not isinstance(error, UnknownFunctionError)
