"""One declaration makes both directions: a value becomes a protobuf message, the message a value.

    FUNCTION = ProtobufCodec(FunctionInfo, pb.Function, name=Name(), partition_count=Number(1))
    TOPOLOGY = ProtobufCodec(Topology, pb.Topology, version=Number(), functions=Each(FUNCTION), …)

A field that is not mentioned travels unchanged, under its own name. The others say how they travel
and what is allowed (see `fields`). A codec that leaves out a field of the value or of the message
cannot be built, so a field that is added on one side only fails at import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from types import NoneType
from typing import Any, Generic, Protocol, TypeVar, cast, get_args

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError as ProtobufError
from google.protobuf.message import Message

from sublet.runtime.protocol.wire.errors import WireError
from sublet.runtime.protocol.wire.fields import Aside, Field, OneOf, Renamed

ValueT = TypeVar("ValueT")
StructT = TypeVar("StructT", bound=msgspec.Struct)
MessageT = TypeVar("MessageT", bound=Message)


class Codec(Protocol[ValueT]):
    """Writes and reads whole messages."""

    def encode(self, value: ValueT, /) -> bytes: ...

    def decode(self, encoded: bytes, /) -> ValueT:
        """Return the checked value; raise `WireError` if it is not allowed."""
        ...


# Whole messages


class ProtobufCodec(Generic[StructT, MessageT]):
    """A struct and the protobuf message with the same fields."""

    def __init__(
        self, value_type: type[StructT], message_type: type[MessageT], **fields: Field | OneOf
    ) -> None:
        """Fields that are not given must have the same name and type on both sides."""
        self.value_type = value_type
        self.message_type = message_type
        self.fields = fields
        descriptor = _descriptor(message_type)
        missing = {each.name for each in descriptor.fields}
        unknown = set(fields)
        self._writers: list[tuple[str, Callable[[StructT], Any]]] = []
        self._oneof_writers: list[Callable[[StructT], tuple[str, Any]]] = []
        self._readers: list[tuple[str, Callable[[MessageT], Any]]] = []
        for each in msgspec.structs.fields(value_type):
            how = fields.get(each.name)
            unknown.discard(each.name)
            if isinstance(how, OneOf):
                missing -= self._add_oneof(each.name, how, descriptor)
            elif isinstance(how, Aside):
                self._readers.append((each.name, how.read_from))
            else:
                wire_name = how.name if isinstance(how, Renamed) else each.name
                if wire_name not in descriptor.fields_by_name:
                    raise TypeError(f"{descriptor.name} has no field {wire_name!r}")
                missing.discard(wire_name)
                found = descriptor.fields_by_name[wire_name]
                if how is None:
                    _check_same_type(each.type, found, value_type)
                is_optional = found.has_presence and NoneType in get_args(each.type)
                self._add(each.name, how, found, is_optional)
        if missing or unknown:
            raise TypeError(
                f"{value_type.__name__} and {descriptor.name} differ: "
                f"{sorted(missing) or 'nothing'} is only in the message, "
                f"{sorted(unknown) or 'nothing'} only in the declaration"
            )

    def _add(self, name: str, how: Field | None, found: FieldDescriptor, is_optional: bool) -> None:
        get = attrgetter(name)
        if how is None:
            read = _plain_reader(found)
            self._writers.append((found.name, get))
        else:
            read = _reader(found, how)
            self._writers.append((found.name, _writer(get, how, is_optional)))
        self._readers.append((name, _if_present(found.name, read) if is_optional else read))

    def _add_oneof(self, name: str, how: OneOf, descriptor: Descriptor) -> set[str]:
        """Return the fields of the message that belong to it."""
        get = attrgetter(name)
        self._oneof_writers.append(lambda value: how.write(get(value)))
        self._readers.append((name, _oneof_reader(descriptor, name, how)))
        return {each.name for each in descriptor.oneofs_by_name[name].fields}

    def message(self, value: StructT) -> MessageT:
        content = {name: write(value) for name, write in self._writers}
        for write_oneof in self._oneof_writers:
            case, part = write_oneof(value)
            content[case] = part
        return self.message_type(**content)

    def value(self, message: MessageT) -> StructT:
        return self.value_type(**{name: read(message) for name, read in self._readers})

    def encode(self, value: StructT) -> bytes:
        return self.message(value).SerializeToString()

    def decode(self, encoded: bytes) -> StructT:
        return self.value(parse(self.message_type, encoded))


class OnlyField(Generic[ValueT]):
    """A message with one field or oneof; the value is what that holds."""

    def __init__(self, message_type: type[Message], name: str, how: Field | OneOf) -> None:
        self.message_type = message_type
        self.how = how
        self._name = name
        descriptor = _descriptor(message_type)
        self._read: Callable[[Message], ValueT]
        if isinstance(how, OneOf):
            self._read = _oneof_reader(descriptor, name, how)
        else:
            self._read = _reader(descriptor.fields_by_name[name], how)

    def encode(self, value: ValueT) -> bytes:
        how = self.how
        name, content = (
            how.write(value) if isinstance(how, OneOf) else (self._name, how.write(value))
        )
        return self.message_type(**{name: content}).SerializeToString()

    def decode(self, encoded: bytes) -> ValueT:
        return self._read(parse(self.message_type, encoded))


class NoFields:
    """A message without fields, and None. Fields of a later version are ignored."""

    def encode(self, value: None) -> bytes:
        return b""

    def decode(self, encoded: bytes) -> None:
        return None


def parse(message_type: type[MessageT], encoded: bytes) -> MessageT:
    try:
        return message_type.FromString(encoded)
    except ProtobufError as error:
        raise WireError(f"not a protobuf {message_type.DESCRIPTOR.name}: {error}") from None


# Parts of messages


class TupleCodec:
    """A tuple, and a message with as many fields in the same order."""

    value_type = tuple

    def __init__(self, message_type: type[Message]) -> None:
        self.message_type = message_type
        found = _descriptor(message_type).fields
        self._names = [each.name for each in found]
        self._readers = [_plain_reader(each) for each in found]

    def message(self, value: tuple[Any, ...]) -> Message:
        return self.message_type(**dict(zip(self._names, value, strict=True)))

    def value(self, message: Message) -> tuple[Any, ...]:
        return tuple([read(message) for read in self._readers])


class SoleField:
    """A struct with one field, and that field's content in a `Choice`."""

    def __init__(self, value_type: type[msgspec.Struct], where: str, how: Field) -> None:
        self.value_type = value_type
        self.how = how
        self._where = where
        (self._name,) = value_type.__struct_fields__

    def message(self, value: msgspec.Struct) -> Any:
        return self.how.write(getattr(value, self._name))

    def value(self, message: Any) -> msgspec.Struct:
        return self.value_type(**{self._name: self.how.read(message, self._where)})


# Types of protobuf

_SCALARS: Mapping[int, type] = {
    FieldDescriptor.TYPE_STRING: str,
    FieldDescriptor.TYPE_BYTES: bytes,
    FieldDescriptor.TYPE_BOOL: bool,
    FieldDescriptor.TYPE_DOUBLE: float,
    FieldDescriptor.TYPE_UINT32: int,
    FieldDescriptor.TYPE_UINT64: int,
}


def _descriptor(message_type: type[Message]) -> Descriptor:
    return cast("Descriptor", message_type.DESCRIPTOR)


def _map_types(found: FieldDescriptor) -> list[type | None] | None:
    """Return the types of a map's keys and values; None if it is no map."""
    entry = found.message_type
    if entry is None or not entry.GetOptions().map_entry:
        return None
    return [_SCALARS.get(each.type) for each in entry.fields]


def _python_type(found: FieldDescriptor) -> Any:
    """Return the type of an unchanged field; None if it has to be declared how it travels."""
    if types := _map_types(found):
        return dict[tuple(types)]  # type: ignore[misc]
    scalar: Any = _SCALARS.get(found.type)
    if scalar is None:
        return None
    if found.is_repeated:
        return list[scalar]
    return scalar | None if found.has_presence else scalar


def _check_same_type(wanted: Any, found: FieldDescriptor, owner: type) -> None:
    told = _python_type(found)
    if told != wanted:
        raise TypeError(
            f"{owner.__name__}.{found.name} is {wanted}, and {told} in the message; "
            "declare how it travels"
        )


def _plain_reader(found: FieldDescriptor) -> Callable[[Any], Any]:
    get = attrgetter(found.name)  # In C: most fields are like this.
    if _map_types(found):
        return lambda message: dict(get(message))
    if found.is_repeated:
        return lambda message: list(get(message))
    return get


def _reader(found: FieldDescriptor, how: Field) -> Callable[[Any], Any]:
    get, read = attrgetter(found.name), how.read
    where = f"{cast('Descriptor', found.containing_type).name}.{found.name}"
    return lambda message: read(get(message), where)


def _oneof_reader(descriptor: Descriptor, name: str, how: OneOf) -> Callable[[Any], Any]:
    where = f"{descriptor.name}.{name}"

    def read(message: Any) -> Any:
        case = message.WhichOneof(name)
        return how.read(case, None if case is None else getattr(message, case), where)

    return read


def _writer(get: Callable[[Any], Any], how: Field, is_optional: bool) -> Callable[[Any], Any]:
    write = how.write
    if not is_optional:
        return lambda value: write(get(value))

    def write_or_none(value: Any) -> Any:
        content = get(value)
        return None if content is None else write(content)

    return write_or_none


def _if_present(name: str, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda message: read(message) if message.HasField(name) else None
