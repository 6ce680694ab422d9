"""How one field of a value travels in a protobuf message, and what is allowed when it is read.

What is read comes from outside: anything that is not allowed is a `WireError` that names message
and field as in proto/sublet.proto.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol, get_args

import msgspec

from sublet.functions.errors import EncodeError
from sublet.runtime.protocol.wire.errors import WireError

NUMBER_MAX = 2**63 - 1
NAME_BYTES_MAX = 512
NIL = b"\xc0"

_any_msgpack = msgspec.msgpack.Decoder(msgspec.Raw)


class Nested(Protocol):
    """Makes a part of a message from a value, and the value from the part."""

    @property
    def value_type(self) -> type: ...

    def message(self, value: Any, /) -> Any: ...

    def value(self, message: Any, /) -> Any: ...


class Field:
    """Travels unchanged. Those below change or check it."""

    def write(self, value: Any) -> Any:
        """Return what the protobuf class takes."""
        return value

    def read(self, found: Any, where: str) -> Any:
        """Return the value; raise `WireError` if it is not allowed. `where` is `Message.field`."""
        return found


class Number(Field):
    """An integer in a range. Protobuf's uint64 reaches one bit further than stores keep."""

    def __init__(self, low: int = 0, high: int = NUMBER_MAX) -> None:
        self.low = low
        self.high = high

    def read(self, found: int, where: str) -> int:
        if not self.low <= found <= self.high:
            raise WireError(f"{where} is {found}; allowed: {self.low}..{self.high}")
        return found


class Limit(Field):
    """How many are wanted at most; 0 is the default."""

    def __init__(self, default: int, high: int) -> None:
        self.default = default
        self.high = high

    def read(self, found: int, where: str) -> int:
        if found > self.high:
            raise WireError(f"{where} is {found}; allowed: 1..{self.high}, or 0 for {self.default}")
        return found or self.default


class Name(Field):
    """A text that is not empty, nor long."""

    def read(self, found: str, where: str) -> str:
        size_bytes = len(found.encode())
        if not 1 <= size_bytes <= NAME_BYTES_MAX:
            raise WireError(f"{where} has {size_bytes} bytes; allowed: 1..{NAME_BYTES_MAX}")
        return found


class ShortBytes(Field):
    """A few bytes that mean nothing."""

    def __init__(self, length_max: int) -> None:
        self.length_max = length_max

    def read(self, found: bytes, where: str) -> bytes:
        if len(found) > self.length_max:
            raise WireError(f"{where} has {len(found)} bytes; allowed: 0..{self.length_max}")
        return found


class CutText(Field):
    """A text for people, cut where it is too long."""

    def __init__(self, length_max: int) -> None:
        self.length_max = length_max

    def write(self, value: str) -> str:
        return value[: self.length_max]

    def read(self, found: str, where: str) -> str:
        return found[: self.length_max]


class OrNone(Field):
    """None is 0 in the message."""

    def __init__(self, how: Field | None = None) -> None:
        self.how = how or Field()

    def write(self, value: Any) -> Any:
        return value or 0

    def read(self, found: Any, where: str) -> Any:
        return self.how.read(found, where) or None


class EnumName(Field):
    """One of a few names, a number of an enum in the message."""

    def __init__(self, numbers: Mapping[str, int], allowed: str) -> None:
        """`allowed` names the choices as in the contract."""
        self.numbers = numbers
        self._names = {number: name for name, number in numbers.items()}
        self._allowed = allowed

    def write(self, value: str) -> int:
        return self.numbers[value]

    def read(self, found: int, where: str) -> str:
        name = self._names.get(found)
        if name is None:
            raise WireError(f"{where} is {found}; allowed: {self._allowed}")
        return name


class SortedMap(Field):
    """A map whose keys come in order. Protobuf's own order differs in each process."""

    def read(self, found: Mapping[str, Any], where: str) -> dict[str, Any]:
        return dict(sorted(found.items()))


class NumberMap(Field):
    """A map of numbers."""

    def read(self, found: Mapping[str, int], where: str) -> dict[str, int]:
        numbers = dict(found)
        largest = max(numbers.values(), default=0)
        if largest > NUMBER_MAX:
            raise WireError(f"{where} has {largest}; allowed: 0..{NUMBER_MAX}")
        return numbers


class One(Field):
    """A message inside the message; if it is optional, None where it is absent."""

    def __init__(self, codec: Nested) -> None:
        self.codec = codec

    def write(self, value: Any) -> Any:
        return self.codec.message(value)

    def read(self, found: Any, where: str) -> Any:
        return self.codec.value(found)


class Each(Field):
    """A list of messages."""

    def __init__(self, codec: Nested) -> None:
        self.codec = codec

    def write(self, value: Any) -> Any:
        return [*map(self.codec.message, value)]

    def read(self, found: Any, where: str) -> Any:
        return [*map(self.codec.value, found)]


class ByKey(Field):
    """A map of messages."""

    def __init__(self, codec: Nested) -> None:
        self.codec = codec

    def write(self, value: Any) -> Any:
        return {key: self.codec.message(each) for key, each in value.items()}

    def read(self, found: Any, where: str) -> Any:
        return {key: self.codec.value(each) for key, each in found.items()}


class Items(Field):
    """A dict; in the message a list of its items, which keeps their order."""

    def __init__(self, codec: Nested, *, needs_one: bool = False) -> None:
        self.codec = codec
        self.needs_one = needs_one

    def write(self, value: Any) -> Any:
        return [*map(self.codec.message, value.items())]

    def read(self, found: Any, where: str) -> Any:
        if self.needs_one and not found:
            raise WireError(f"{where} is empty; give at least one")
        return dict(map(self.codec.value, found))


class Renamed(Field):
    """A field that has another name in the message."""

    def __init__(self, name: str, how: Field | None = None) -> None:
        self.name = name
        self.how = how or Field()

    def write(self, value: Any) -> Any:
        return self.how.write(value)

    def read(self, found: Any, where: str) -> Any:
        return self.how.read(found, where)


class Aside(Field):
    """A field that is not in the message: it is told in another way."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        """`read` takes the whole message."""
        self.read_from = read


# Oneofs


class OneOf(ABC):
    """One of several fields of a message. It has the name of the value's field."""

    @abstractmethod
    def write(self, value: Any) -> tuple[str, Any]:
        """Return which field is set, and to what."""

    @abstractmethod
    def read(self, case: str | None, content: Any, where: str) -> Any:
        """Return the value, from the field that is set, if there is one."""


class Choice(OneOf):
    """One of several types, each in a field of its own."""

    def __init__(self, union: Any, **codecs: Nested) -> None:
        """Every type of the union needs a codec."""
        self.codecs = codecs
        self._by_type = {each.value_type: (case, each) for case, each in codecs.items()}
        if set(get_args(union)) != set(self._by_type):
            raise TypeError(f"the types of {codecs} are not those of {union}")

    def write(self, value: Any) -> tuple[str, Any]:
        case, codec = self._by_type[type(value)]
        return case, codec.message(value)

    def read(self, case: str | None, content: Any, where: str) -> Any:
        if case is None:
            allowed = ", ".join(self.codecs)
            raise WireError(f"{where} is missing or unknown to this version; allowed: {allowed}")
        return self.codecs[case].value(content)


class Payload(OneOf):
    """A msgpack value, in the field `msgpack` or, as text, in the field `json`."""

    def __init__(
        self, *, as_json: bool = False, is_checked: bool = False, default: bytes | None = None
    ) -> None:
        """`is_checked`: make sure that it is msgpack. Without a default, one of both is needed."""
        self._as_json = as_json
        self._is_checked = is_checked
        self._default = default

    def write(self, value: bytes) -> tuple[str, Any]:
        return ("json", json_from_msgpack(value)) if self._as_json else ("msgpack", value)

    def read(self, case: str | None, content: Any, where: str) -> bytes:
        if case == "json":
            return msgpack_from_json(content, where)
        if case == "msgpack":
            if self._is_checked:
                check_msgpack(content, where)
            payload: bytes = content
            return payload
        if self._default is None:
            raise WireError(f"{where} is missing; set msgpack or json")
        return self._default


def check_msgpack(payload: bytes, where: str) -> None:
    try:
        _any_msgpack.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"{where} is not one msgpack value: {error}") from None


def msgpack_from_json(text: str, where: str) -> bytes:
    try:
        return msgspec.msgpack.encode(msgspec.json.decode(text))
    except (msgspec.MsgspecError, RecursionError, OverflowError) as error:
        raise WireError(f"{where} is not JSON that fits into msgpack: {error}") from None


def json_from_msgpack(value: bytes) -> str:
    try:
        return msgspec.json.encode(msgspec.msgpack.decode(value)).decode()
    except (msgspec.MsgspecError, RecursionError, TypeError, ValueError) as error:
        raise EncodeError(f"the value does not fit into JSON: {error}; ask for msgpack") from None
