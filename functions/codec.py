"""Python values to msgpack and back, by declared type.

One `Codec` serves one type. Columns (a msgpack array with one item a message) are encoded and
decoded in one call, and can be cut apart and joined without looking into their items.

A column may also be an Arrow record batch (see `columns`). That is known here and nowhere else:
whoever splits or decodes a column gets its messages, whichever form it has.

What a type cannot express is refused when it is declared, what a value cannot express when it is
encoded, and whatever bytes arrive, decoding ends in a value of the type or in a `PayloadError`.

Some values come back changed, because msgpack has fewer types than Python: an aware datetime comes
back in UTC, and under `Any` a dataclass comes back as a dict, a tuple or set as a list, and a
Decimal, a UUID or a naive datetime as a str. Declare a type to get it back.
"""

from __future__ import annotations

import inspect
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec
import msgspec.inspect as types
from msgspec import Raw
from msgspec.msgpack import Decoder, Encoder

from sublet.functions.errors import EncodeError, PayloadError

T = TypeVar("T")

ALLOWED = (
    "None, bool, int (64 bits), float, str, bytes, datetime, date, time, timedelta, Decimal, UUID, "
    "Enum, list, tuple, dict, set, frozenset, TypedDict, NamedTuple, dataclasses, msgspec Structs, "
    "pydantic models, and unions of them"
)
INT_MIN = -(2**63)
INT_MAX = 2**64 - 1

ARROW_CODE = 65
"""The type of the msgpack extension that is a column of Arrow."""
ARROW_HEADER = struct.Struct(">BIbBI")
"""Of such a column: the extension's mark, length and type; flags; the number of messages."""

COLUMNS_MARK = "x-columns"
"""In a JSON Schema of messages: they may come as columns of Arrow."""

_EXACT = (type(None), bool, int, float, str, bytes)

# An error path may look at this many values to say where the culprit is.
_SEARCH_MAX = 10_000


class Codec(Generic[T]):
    """Encodes and decodes values of one type. Made by `codec_for`."""

    __slots__ = (
        "_decode_column",
        "_decode_json",
        "bare_decode",
        "bare_encode",
        "exact",
        "info",
        "is_any",
        "type",
    )

    def __init__(self, of: Any, info: types.Type) -> None:
        self.type = of
        self.info = info
        """The type as msgspec understands it."""
        self.is_any = of is Any
        self.exact: type | None = _exact_type(of)
        """A value that is exactly of this built-in type fits, if it can be encoded; None if types
        alone do not tell."""
        self.bare_encode: Callable[[T], bytes] = _encode
        """`encode` for values that are known to be encodable: a call less, no error of ours."""
        self.bare_decode: Callable[[bytes | Raw], T] = Decoder(of, dec_hook=_decode_other).decode
        """`decode` that raises whatever is raised inside; for loops that handle it themselves."""
        self._decode_column = Decoder(list[of], dec_hook=_decode_other).decode
        self._decode_json: Callable[[bytes], T] | None = None

    def __repr__(self) -> str:
        return f"codec_for({type_name(self.type)})"

    def encode(self, value: T) -> bytes:
        """Return the value as msgpack; `EncodeError` if it holds something that has no form there.

        The value is not compared with the declared type: that happens where it is decoded.
        """
        try:
            return _encode(value)
        except Exception as error:
            raise _encode_error(value, error) from error

    def encode_fitting(self, value: T) -> bytes:
        """Like `encode`; `PayloadError` if whoever decodes it would find that it does not fit."""
        try:
            data = _encode(value)
        except Exception as error:
            raise _encode_error(value, error) from error
        if type(value) is not self.exact and not self.is_any:
            try:
                self.bare_decode(data)
            except Exception as error:
                raise _payload_error(self.type, error, "value") from error
        return data

    def encode_canonical(self, value: T) -> bytes:
        """Like `encode`, but equal sets and dicts give equal bytes whatever their order."""
        try:
            return _encode_canonical(value)
        except Exception as error:
            raise _encode_error(value, error) from error

    def decode(self, data: bytes | Raw) -> T:
        """Return the value; `PayloadError` says where the bytes do not fit the type."""
        try:
            return self.bare_decode(data)
        except Exception as error:
            raise _payload_error(self.type, error) from error

    def decode_json(self, data: bytes) -> T:
        """Like `decode`, from JSON: where that has no form for a type, its text stands for it."""
        if self._decode_json is None:
            self._decode_json = msgspec.json.Decoder(self.type, dec_hook=_decode_other).decode
        try:
            return self._decode_json(data)
        except Exception as error:
            raise _payload_error(self.type, error) from error

    def encode_column(self, values: list[T]) -> bytes:
        """Return one msgpack array of all values."""
        try:
            return _encode(values)
        except Exception as error:
            raise _encode_error(values, error) from error

    def decode_column(self, raw: bytes | Raw) -> list[T]:
        """Return all values of a column; one that does not fit refuses the whole column.

        `split_column` and `decode` then tell the good items from the bad.
        """
        try:
            return self._decode_column(raw)
        except Exception as error:
            # Asked only now: most columns are arrays.
            if not is_arrow(raw):
                raise _payload_error(self.type, error) from error
        return self.decode_column(_array_of(raw))


def codec_for(of: Any) -> Codec[Any]:
    """Return the codec of a type; `TypeError` if values of that type cannot travel.

    A missing annotation (`inspect.Parameter.empty`) means `Any`. Codecs are kept, so that asking
    again is cheap.
    """
    if of is inspect.Parameter.empty:
        of = Any
    try:
        hash(of)
    except TypeError:
        return _make_codec(of)
    return _known_codec(of)


def _exact_type(of: Any) -> type | None:
    return next((each for each in _EXACT if of is each), None)


def is_immutable(of: Any) -> bool:
    """Tell whether no value of the type can be changed, so that it may be shared.

    True for scalars, text, bytes, None, dates and times, Enums, and for tuples, frozensets,
    unions, and frozen dataclasses, Structs and pydantic models whose parts are immutable too.
    """
    return _holds_only_immutable(codec_for(of).info, set())


def type_name(of: Any) -> str:
    """Return how error texts name a type: `socket.socket`, `list[int]`, `int`."""
    if isinstance(of, type) and not hasattr(of, "__args__"):
        return (
            of.__qualname__ if of.__module__ == "builtins" else f"{of.__module__}.{of.__qualname__}"
        )
    return str(of)


def split_column(raw: bytes | Raw) -> list[Raw]:
    """Return the items of a column without decoding them.

    They share the column's memory; `bytes(item)` makes one that stands alone.
    """
    try:
        return _split(raw)
    except Exception as error:
        if not is_arrow(raw):
            raise _payload_error(list, error) from error
    return _split(_array_of(raw))


def join_column(items: Sequence[bytes | Raw]) -> bytes:
    """Return the msgpack array of items that are encoded already."""
    return b"".join((_array_header(len(items)), *items))


def column_length(raw: bytes | Raw) -> int:
    """Return the number of items of a column, from its header alone.

    `PayloadError` if it is no column, or too short for the items that it claims to have.
    """
    view = memoryview(raw)
    if is_arrow(view):
        _, size_bytes, _, _, count = ARROW_HEADER.unpack_from(view)
        if size_bytes != view.nbytes - 6:
            raise PayloadError(f"a column of {size_bytes} bytes in {view.nbytes}")
        return int(count)
    first = view[0] if view.nbytes else 0
    if 0x90 <= first <= 0x9F:
        count, header_size = first & 0x0F, 1
    elif first == 0xDC:
        count, header_size = int.from_bytes(view[1:3], "big"), 3
    elif first == 0xDD:
        count, header_size = int.from_bytes(view[1:5], "big"), 5
    else:
        raise PayloadError("a column must be a msgpack array")
    if view.nbytes - header_size < count:
        raise PayloadError(
            f"a column claims {count} items in {view.nbytes} bytes; it was truncated"
        )
    return count


def is_arrow(raw: bytes | memoryview | Raw) -> bool:
    """Tell whether a column is an Arrow record batch."""
    view = memoryview(raw)
    return view.nbytes >= ARROW_HEADER.size and view[0] == 0xC9 and view[5] == ARROW_CODE


def check_column(raw: bytes | Raw) -> None:
    """Raise `PayloadError` unless an Arrow column is sound. To be asked once of what others have
    written, before it is split or decoded; arrays say by themselves what is wrong about them."""
    if is_arrow(raw):
        _arrow().decode_columns(raw)


def _array_of(raw: bytes | Raw) -> bytes:
    """Return the messages of an Arrow column as a msgpack array."""
    messages: bytes = _arrow().messages_of(raw)
    return messages


def _arrow() -> Any:
    try:
        from sublet.functions import columns
    except ModuleNotFoundError as error:
        raise PayloadError(f"columns of Arrow need pyarrow ({error}); install it") from error
    return columns


def _array_header(count: int) -> bytes:
    if count < 16:
        return bytes((0x90 | count,))
    if count < 2**16:
        return b"\xdc" + count.to_bytes(2, "big")
    if count < 2**32:
        return b"\xdd" + count.to_bytes(4, "big")
    raise EncodeError(f"a column of {count} items; allowed: fewer than 2**32")


class _UnsupportedError(TypeError):
    """Raised inside the encoder for a value that has no form; carries it to the error text."""

    def __init__(self, value: object) -> None:
        super().__init__(type_name(type(value)))
        self.value = value


def _pydantic_model() -> type | None:
    """Return pydantic's BaseModel if anybody has loaded it; nobody has a model otherwise."""
    module = sys.modules.get("pydantic.main")
    return None if module is None else getattr(module, "BaseModel", None)


def _is_pydantic(of: Any) -> bool:
    model = _pydantic_model()
    return model is not None and isinstance(of, type) and issubclass(of, model)


def _encode_other(value: Any) -> Any:
    if _is_pydantic(type(value)):
        # By field names and without computed fields, so that it can be validated again.
        return value.model_dump(mode="python", round_trip=True, by_alias=False)
    raise _UnsupportedError(value)


def _decode_other(of: Any, value: Any) -> Any:
    if not _is_pydantic(of):
        raise TypeError(f"cannot decode a value of type {type_name(of)}")
    try:
        if of.model_config.get("strict"):
            # A strict model takes a UUID or a date as text from JSON only.
            return of.model_validate_json(msgspec.json.encode(value), by_alias=True, by_name=True)
        return of.model_validate(value, by_alias=True, by_name=True)
    except ValueError as error:
        listed = getattr(error, "errors", None)
        if listed is None:
            raise
        texts = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in listed())
        raise ValueError("; ".join(texts)) from error


_encode = Encoder(enc_hook=_encode_other).encode
_encode_canonical = Encoder(enc_hook=_encode_other, order="deterministic").encode
_split = Decoder(list[Raw]).decode


@lru_cache(maxsize=1024)
def _known_codec(of: Any) -> Codec[Any]:
    return _make_codec(of)


def _make_codec(of: Any) -> Codec[Any]:
    try:
        info = types.type_info(of)
        unknown = _first_unknown(info, type_name(of), set())
        if unknown is None:
            return Codec(of, info)
    except (TypeError, NameError, AttributeError, RecursionError) as error:
        raise TypeError(
            f"type {type_name(of)} cannot be encoded: {error}; allowed: {ALLOWED}"
        ) from error
    raise TypeError(f"type {unknown} cannot be encoded; allowed: {ALLOWED}")


def _parts(info: types.Type) -> Iterator[tuple[str, types.Type]]:
    """Yield what a type is made of, with the text that a path to it goes on with."""
    match info:
        case types.UnionType():
            for part in info.types:
                yield "", part
        case types.TupleType():
            for index, part in enumerate(info.item_types):
                yield f"[{index}]", part
        case types.DictType():
            yield " keys", info.key_type
            yield "[…]", info.value_type
        case types.CollectionType():
            yield "[…]", info.item_type
        case (
            types.StructType()
            | types.DataclassType()
            | types.NamedTupleType()
            | types.TypedDictType()
        ):
            for field in info.fields:
                yield f".{field.name}", field.type


def _first_unknown(info: types.Type, path: str, seen: set[int]) -> str | None:
    """Return the first part that nothing can encode, as text; None if there is none."""
    if id(info) in seen:
        return None
    seen.add(id(info))
    if isinstance(info, types.Metadata):
        return _first_unknown(info.type, path, seen)
    if isinstance(info, types.CustomType):
        if _is_pydantic(info.cls):
            return None
        name = type_name(info.cls)
        return name if name == path else f"{name} (in {path})"
    for step, part in _parts(info):
        unknown = _first_unknown(part, path + step, seen)
        if unknown is not None:
            return unknown
    return None


_IMMUTABLE_LEAVES = (
    types.NoneType,
    types.BoolType,
    types.IntType,
    types.FloatType,
    types.StrType,
    types.BytesType,
    types.DateTimeType,
    types.DateType,
    types.TimeType,
    types.TimeDeltaType,
    types.UUIDType,
    types.DecimalType,
    types.EnumType,
    types.LiteralType,
)
_IMMUTABLE_CONTAINERS = (
    types.UnionType,
    types.TupleType,
    types.VarTupleType,
    types.NamedTupleType,
    types.FrozenSetType,
)


def _holds_only_immutable(info: types.Type, seen: set[int]) -> bool:
    if id(info) in seen:
        return True
    seen.add(id(info))
    if isinstance(info, types.Metadata):
        return _holds_only_immutable(info.type, seen)
    if isinstance(info, _IMMUTABLE_LEAVES):
        return True
    if isinstance(info, types.CustomType):
        return _is_frozen_pydantic(info.cls)
    if isinstance(info, types.StructType):
        frozen = info.cls.__struct_config__.frozen
    elif isinstance(info, types.DataclassType):
        parameters = getattr(info.cls, "__dataclass_params__", None)
        frozen = parameters is not None and parameters.frozen
    else:
        frozen = isinstance(info, _IMMUTABLE_CONTAINERS)
    return frozen and all(_holds_only_immutable(part, seen) for _, part in _parts(info))


def _is_frozen_pydantic(model: Any) -> bool:
    config = model.model_config
    if not config.get("frozen") or config.get("extra") == "allow" or model.__private_attributes__:
        return False
    try:
        return all(is_immutable(field.annotation) for field in model.model_fields.values())
    except (TypeError, RecursionError):
        # A type that only pydantic knows, or a model that holds itself.
        return False


def _payload_error(of: Any, error: Exception, what: str = "payload") -> PayloadError:
    if isinstance(error, RecursionError):
        detail = "nested too deeply"
    elif isinstance(error, msgspec.MsgspecError | UnicodeError):
        detail = str(error)
    else:
        # Raised by the type's own code, such as a dataclass's __post_init__.
        detail = f"{type(error).__name__}: {error}"
    return PayloadError(f"the {what} does not fit {type_name(of)}: {detail}")


def _encode_error(value: object, error: Exception) -> EncodeError:
    if isinstance(error, _UnsupportedError):
        culprit = error.value
        where = _path_to(value, lambda each: each is culprit)
        return EncodeError(
            f"cannot encode a value of type {type_name(type(culprit))}{where}; allowed: {ALLOWED}"
        )
    if isinstance(error, OverflowError):
        where = _path_to(
            value, lambda each: isinstance(each, int) and not INT_MIN <= each <= INT_MAX
        )
        return EncodeError(f"cannot encode an int{where}; allowed: -2**63 .. 2**64 - 1")
    if isinstance(error, RecursionError):
        name = type_name(type(value))
        return EncodeError(f"cannot encode a value of type {name}: nested too deeply, or in itself")
    return EncodeError(
        f"cannot encode a value of type {type_name(type(value))}: {error}; allowed: {ALLOWED}"
    )


def _path_to(root: object, is_culprit: Callable[[object], bool]) -> str:
    """Return " at `$.…`" for the first part that is the culprit; nothing if it is not found."""
    pending: list[tuple[str, object]] = [("$", root)]
    for _ in range(_SEARCH_MAX):
        if not pending:
            break
        path, value = pending.pop()
        if is_culprit(value):
            return "" if path == "$" else f" at `{path}`"
        pending.extend((path + step, part) for step, part in _value_parts(value))
    return ""


def _value_parts(value: object) -> Iterable[tuple[str, object]]:
    match value:
        case dict():
            for key, part in value.items():
                yield f"[{key!r:.40}]", part
                yield " key", key
        case list() | tuple() | set() | frozenset():
            for index, part in enumerate(value):
                yield f"[{index}]", part
        case msgspec.Struct():
            for name in value.__struct_fields__:
                yield f".{name}", getattr(value, name, None)
        case _ if is_dataclass(value) and not isinstance(value, type):
            for field in dataclass_fields(value):
                yield f".{field.name}", getattr(value, field.name, None)
        case _ if _is_pydantic(type(value)):
            for name, part in vars(value).items():
                yield f".{name}", part
