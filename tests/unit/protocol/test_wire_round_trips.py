"""Every value that travels is the same after the wire: each kind of message, each of its fields."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import IntEnum
from functools import cache, partial
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.proto import sublet_pb2 as pb
from sublet.runtime.protocol import (
    egress,
    frames,
    handover_messages,
    lease_messages,
    messages,
    pipeline_messages,
    rpc,
)
from sublet.runtime.protocol.frames import Ack, Batch, Data, ErrorInfo, Extra, Kind, Topology
from sublet.runtime.protocol.rpc import CallRequest, EgressPage, EgressValues
from sublet.runtime.protocol.wire import frames as wire_frames
from sublet.runtime.protocol.wire import methods
from sublet.runtime.protocol.wire.codecs import (
    OnlyField,
    ProtobufCodec,
    SoleField,
    TupleCodec,
)
from sublet.runtime.protocol.wire.fields import (
    NUMBER_MAX,
    Aside,
    ByKey,
    Choice,
    CutText,
    Each,
    EnumName,
    Field,
    Items,
    Limit,
    Name,
    Number,
    NumberMap,
    One,
    OneOf,
    OrNone,
    Payload,
    Renamed,
)
from sublet.runtime.protocol.wire.frames import decode_frame, encode_frame
from sublet.runtime.protocol.wire.methods import Method

# What each way to travel allows

texts = st.text(max_size=8)
names = st.text(min_size=1, max_size=8)
positive = st.integers(1, NUMBER_MAX)
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
payloads = plain_values.map(msgspec.msgpack.encode)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    str: texts,
    bytes: st.binary(max_size=8),
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    int: st.integers(0, 2**32 - 1),
    Any: plain_values,
    NoneType: st.none(),
    msgspec.Raw: payloads.map(msgspec.Raw),
    pipeline_messages.Name: st.from_regex(r"[A-Za-z0-9._:-]{1,100}", fullmatch=True),
}


@cache
def of_type(hint: Any) -> st.SearchStrategy[Any]:
    """Return values of a type."""
    if hint in SCALARS:
        return SCALARS[hint]
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return st.sampled_from(hint)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct | tuple):
        fields = get_type_hints(hint, include_extras=True)
        return st.builds(hint, **{name: of_type(each) for name, each in fields.items()})
    origin = get_origin(hint)
    if origin is Annotated:
        return of_type(get_args(hint)[0]).filter(partial(is_allowed, hint))
    inner = [of_type(each) for each in get_args(hint) if each is not ...]
    if origin is list:
        return st.lists(inner[0], max_size=3)
    if origin is dict:
        return st.dictionaries(inner[0], inner[1], max_size=3)
    if origin is tuple:
        return (
            st.lists(inner[0], max_size=3).map(tuple)
            if ... in get_args(hint)
            else st.tuples(*inner)
        )
    if origin in (Union, UnionType):
        return st.one_of(inner)
    raise AssertionError(f"no values of {hint}")


def is_allowed(hint: Any, value: object) -> bool:
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError:
        return False
    return True


WAYS: dict[type, Callable[[Any, Any], st.SearchStrategy[Any]]] = {
    Renamed: lambda how, hint: of_field(how.how, hint),
    Number: lambda how, hint: st.integers(how.low, how.high),
    Limit: lambda how, hint: st.integers(1, how.high),
    Name: lambda how, hint: names,
    CutText: lambda how, hint: st.text(max_size=how.length_max),
    OrNone: lambda how, hint: of_type(hint).filter(lambda value: value != 0),
    EnumName: lambda how, hint: st.sampled_from(sorted(how.numbers)),
    NumberMap: lambda how, hint: st.dictionaries(texts, st.integers(0, NUMBER_MAX), max_size=3),
    One: lambda how, hint: or_none(of_codec(how.codec), hint),
    Each: lambda how, hint: st.lists(of_codec(how.codec), max_size=3),
    ByKey: lambda how, hint: st.dictionaries(texts, of_codec(how.codec), max_size=3),
    Items: lambda how, hint: st.lists(of_codec(how.codec), min_size=1, max_size=3).map(dict),
    Choice: lambda how, hint: st.one_of([*map(of_codec, how.codecs.values())]),
    Payload: lambda how, hint: payloads,
    methods.IdempotencyKey: lambda how, hint: st.just("") | st.just("once"),
}


def of_field(how: Field | OneOf | None, hint: Any) -> st.SearchStrategy[Any]:
    """Return what a field may hold."""
    return WAYS[type(how)](how, hint) if type(how) in WAYS else of_type(hint)


def or_none(found: st.SearchStrategy[Any], hint: Any) -> st.SearchStrategy[Any]:
    return st.none() | found if NoneType in get_args(hint) else found


@cache
def of_codec(codec: Any) -> st.SearchStrategy[Any]:
    """Return values that a codec takes."""
    match codec:
        case TupleCodec():
            found = codec.message_type.DESCRIPTOR.fields
            return st.tuples(*[of_type(_type_of(each)) for each in found])
        case SoleField():
            (field,) = msgspec.structs.fields(codec.value_type)
            content = of_field(codec.how, field.type)
            return content.map(lambda value: codec.value_type(**{field.name: value}))
        case OnlyField():
            return of_field(codec.how, bytes)
        case ProtobufCodec():
            fields = {
                each.name: of_field(codec.fields.get(each.name), each.type)
                for each in msgspec.structs.fields(codec.value_type)
                if not isinstance(codec.fields.get(each.name), Aside)
            }
            return st.builds(codec.value_type, **fields)
        case _:
            return st.none()


def _type_of(found: Any) -> Any:
    scalar = {found.TYPE_STRING: str, found.TYPE_DOUBLE: float}.get(found.type, int)
    return list[scalar] if found.is_repeated else scalar  # type: ignore[valid-type]


# Protobuf

METHODS: dict[str, Method[Any, Any]] = {
    each.name: each for each in vars(methods).values() if isinstance(each, Method)
}
CONTROL = wire_frames.CONTROL.codecs


@pytest.mark.parametrize("kind", CONTROL)
def test_a_control_frame_is_the_same_after_the_wire(kind: str) -> None:
    @settings(max_examples=50)
    @given(of_codec(CONTROL[kind]))
    def check(frame: Any) -> None:
        again = decode_frame(encode_frame(frame))
        assert again == frame
        if isinstance(again, Topology):
            assert list(again.workers) == sorted(again.workers)

    check()


@pytest.mark.parametrize("name", METHODS)
def test_a_request_is_the_same_after_the_wire(name: str) -> None:
    codec = METHODS[name].request

    @settings(max_examples=50)
    @given(of_codec(codec if codec is not methods.CALL_REQUEST else codec.in_msgpack))
    def check(request: Any) -> None:
        assert codec.decode(codec.encode(request)) == request

    check()


@pytest.mark.parametrize("name", METHODS)
def test_a_reply_is_the_same_after_the_wire(name: str) -> None:
    codec = METHODS[name].reply

    @settings(max_examples=50)
    @given(of_codec(codec))
    def check(reply: Any) -> None:
        assert codec.decode(codec.encode(reply)) == reply

    check()


@given(of_codec(methods.CALL_REQUEST.in_msgpack))
def test_a_call_in_json_is_the_same_after_the_wire(request: CallRequest) -> None:
    asked = msgspec.structs.replace(request, json=True)
    again = methods.CALL.request.decode(methods.CALL.request.encode(asked))

    assert value_of(again.payload) == value_of(asked.payload)
    assert msgspec.structs.replace(again, payload=asked.payload) == asked


@given(plain_values)
def test_a_result_in_json_is_the_same_after_the_wire(value: object) -> None:
    asked = CallRequest(function="f", json=True)
    encoded = methods.CALL.encode_reply(msgspec.msgpack.encode(value), asked)

    assert pb.CallReply.FromString(encoded).WhichOneof("result") == "json"
    assert value_of(methods.CALL.reply.decode(encoded)) == value


@given(plain_values)
def test_an_egress_in_json_is_the_same_after_the_wire(value: object) -> None:
    entry = EgressValues(partition="f/0", first=1, count=1, values=msgspec.msgpack.encode([value]))
    page = EgressPage(entries=[entry], next={})
    asked = rpc.EgressRequest(egress="e", json=True)
    encoded = methods.READ_EGRESS.encode_reply(page, asked)

    assert pb.ReadEgressReply.FromString(encoded).entries[0].WhichOneof("values") == "json"
    again = methods.READ_EGRESS.reply.decode(encoded)
    assert value_of(again.entries[0].values) == [value]


def value_of(payload: bytes) -> object:
    return msgspec.msgpack.decode(payload)


# Nothing is left out

IN_MSGPACK = {Ack, Batch, Data, Extra}
NEVER_ON_THE_WIRE = {rpc.CallInfo, rpc.LeasesReport}


def structs_of(module: ModuleType) -> list[type[msgspec.Struct]]:
    return [
        each
        for each in vars(module).values()
        if inspect.isclass(each)
        and issubclass(each, msgspec.Struct)
        and each.__module__ == module.__name__
    ]


def codecs_in(thing: Any) -> list[ProtobufCodec[Any, Any]]:
    """Return a codec and those inside it."""
    found: list[ProtobufCodec[Any, Any]] = []
    if isinstance(thing, ProtobufCodec):
        found.append(thing)
        inside: Any = thing.fields.values()
    elif isinstance(thing, Choice):
        inside = thing.codecs.values()
    else:
        inside = [
            getattr(thing, name)
            for name in ("codec", "how", "in_msgpack")
            if getattr(thing, name, None) is not None
        ]
    return found + [each for inner in inside for each in codecs_in(inner)]


def soles_in(choice: Choice) -> set[type]:
    return {each.value_type for each in choice.codecs.values() if isinstance(each, SoleField)}


def all_codecs() -> list[ProtobufCodec[Any, Any]]:
    roots = [wire_frames.CONTROL]
    roots += [each for method in METHODS.values() for each in (method.request, method.reply)]
    return [codec for root in roots for codec in codecs_in(root)]


def test_every_value_of_the_protocol_has_a_codec() -> None:
    travelling = {each.value_type for each in all_codecs()}
    action = methods.ADMINISTER.request.fields["action"]
    travelling |= soles_in(action)

    expected = {*structs_of(frames), *structs_of(rpc)} - IN_MSGPACK - NEVER_ON_THE_WIRE
    assert expected - travelling == set()


def test_every_method_of_the_contract_is_declared_under_its_name() -> None:
    service = pb.DESCRIPTOR.services_by_name["Sublet"]

    assert set(METHODS) == {each.name for each in service.methods} - {"Connect"}
    for name, method in METHODS.items():
        described = service.methods_by_name[name]
        for codec, expected in (
            (method.request, described.input_type),
            (method.reply, described.output_type),
        ):
            codec = getattr(codec, "in_msgpack", codec)
            found = getattr(codec, "message_type", None)
            if found is None:
                assert not expected.fields
            elif name != "Send":
                assert found.DESCRIPTOR is expected


def test_a_send_has_the_fields_of_a_call() -> None:
    call, send = pb.CallRequest.DESCRIPTOR, pb.SendRequest.DESCRIPTOR

    assert [(each.number, each.name, each.type) for each in call.fields] == [
        (each.number, each.name, each.type) for each in send.fields
    ]


class Longer(msgspec.Struct, kw_only=True):
    function: str
    key: str
    forgotten: int = 0


class Shorter(msgspec.Struct, kw_only=True):
    function: str


class OfAnotherType(msgspec.Struct, kw_only=True):
    function: str
    key: int


@pytest.mark.parametrize(
    ("value_type", "fields", "complaint"),
    [
        (Longer, {}, "ReadStateRequest has no field 'forgotten'"),
        (Shorter, {}, "['key'] is only in the message"),
        (OfAnotherType, {}, "OfAnotherType.key is <class 'int'>, and <class 'str'>"),
        (rpc.StateRequest, {"keys": Name()}, "['keys'] only in the declaration"),
    ],
)
def test_a_codec_that_would_forget_a_field_cannot_be_built(
    value_type: type[msgspec.Struct], fields: dict[str, Field], complaint: str
) -> None:
    with pytest.raises(TypeError) as caught:
        ProtobufCodec(value_type, pb.ReadStateRequest, **fields)

    assert complaint in str(caught.value)


def test_a_choice_that_would_forget_a_type_cannot_be_built() -> None:
    with pytest.raises(TypeError, match="are not those of"):
        Choice(
            rpc.PutState | rpc.DeleteState,
            delete_state=ProtobufCodec(rpc.DeleteState, pb.DeleteState, function=Name()),
        )


# msgpack

columns = st.lists(plain_values, min_size=1, max_size=4)
errors = st.builds(ErrorInfo, texts, texts, st.integers(0, NUMBER_MAX))
extras = st.builds(
    Extra, st.just("") | st.just("once"), st.lists(texts, max_size=2), texts, st.booleans()
)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    values = draw(columns)
    count = len(values)
    kind = draw(st.sampled_from([Kind.SEND, Kind.CALL, Kind.REPLY, Kind.STAGE]))
    places = st.integers(0, count - 1)
    is_reply = kind is Kind.REPLY
    return Batch(
        draw(texts),
        draw(texts),
        draw(st.integers(1, NUMBER_MAX - count)),
        kind,
        [] if is_reply else draw(st.lists(texts, min_size=count, max_size=count)),
        msgspec.Raw(msgspec.msgpack.encode(values)),
        count,
        draw(
            st.none()
            | st.integers(-1, 10**9)
            | st.lists(st.integers(-1, 9), min_size=count, max_size=count)
        ),
        draw(st.none() | st.dictionaries(places, extras, min_size=1, max_size=2)),
        draw(st.integers(1, NUMBER_MAX - count)) if is_reply else 0,
        draw(st.none() | st.lists(positive, min_size=count, max_size=count)) if is_reply else None,
        draw(st.none() | st.dictionaries(places, errors, min_size=1, max_size=2))
        if is_reply
        else None,
        draw(st.integers(0, 10**9)),
        draw(st.booleans()),
    )


costs = st.lists(st.tuples(texts, st.floats(0, 1e9)), max_size=2)
acks = st.builds(
    Ack, texts, texts, st.integers(0, NUMBER_MAX), st.none() | costs, st.integers(0, NUMBER_MAX)
)
leases = st.lists(payloads.map(msgspec.Raw), max_size=2)
data_frames = st.builds(
    Data,
    st.lists(batches(), max_size=2),
    st.lists(acks, max_size=2),
    st.integers(0, NUMBER_MAX),
    leases,
)


@settings(max_examples=200)
@given(data_frames)
def test_a_data_frame_is_the_same_after_the_wire(frame: Data) -> None:
    assert decode_frame(encode_frame(frame)) == frame


PACKED = [
    each
    for module in (egress, handover_messages, lease_messages, messages, pipeline_messages)
    for each in structs_of(module)
]


@pytest.mark.parametrize("kind", PACKED, ids=lambda kind: kind.__name__)
def test_what_is_packed_by_itself_is_the_same_after_the_wire(kind: type[msgspec.Struct]) -> None:
    decode = msgspec.msgpack.Decoder(kind).decode

    @settings(max_examples=30)
    @given(of_type(kind))
    def check(value: Any) -> None:
        assert decode(msgspec.msgpack.encode(value)) == value

    check()
