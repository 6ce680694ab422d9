"""Values of a declared type on their way into and out of a state.

A codec trusts what it encodes; a state must not, because a value of a wrong type would be found
only when it is read again, by another message. So whatever goes in is decoded once, and what the
state keeps is that copy.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec.inspect as types

from sublet.functions.codec import Codec, codec_for, is_immutable, type_name
from sublet.functions.errors import EncodeError, PayloadError, StateTypeError

T = TypeVar("T")

SCALARS = (int, float, str, bool, bytes)


class Typed(Generic[T]):
    """Packs and unpacks values of one type, with errors that speak of state."""

    __slots__ = ("_bare_decode", "_codec", "_exact", "encode_known", "immutable", "is_any", "type")

    def __init__(self, of: Any) -> None:
        self._codec: Codec[T] = codec_for(of)
        self._bare_decode = self._codec.bare_decode
        self.encode_known = self._codec.bare_encode
        """Return the bytes of a value that was packed before."""
        self.type = self._codec.type
        self.immutable = is_immutable(self.type)
        self.is_any = self.type is Any
        # bytes that hold these need no second look: the type of the value says everything.
        self._exact = self.type if self.type in SCALARS else None

    def __repr__(self) -> str:
        return type_name(self.type)

    def pack(self, value: Any) -> tuple[bytes, T]:
        """Return the value encoded, and a copy of it; `StateTypeError` if its type is wrong.

        A subclass of a built-in type becomes the built-in type, and an int a float where a float
        is declared. Other types must be exact, as a subclass would come back as its base.
        """
        try:
            data = self._codec.encode(value)
            copy = self._codec.decode(data)
        except (EncodeError, PayloadError) as error:
            raise self._misfit(value, error) from error
        given, kept = type(value), type(copy)
        if (
            given is kept
            or self.is_any
            or (kept.__module__ == "builtins" and issubclass(given, kept))
            or (kept is float and given is int)
        ):
            return data, copy
        raise self._misfit(value, None)

    def encode(self, value: Any) -> bytes:
        """Return the value encoded; `StateTypeError` if its type is wrong."""
        if type(value) is self._exact:
            try:
                return self._codec.encode(value)
            except EncodeError as error:
                raise self._misfit(value, error) from error
        return self.pack(value)[0]

    def encode_key(self, value: Any) -> bytes:
        """Like `encode`, but equal values always give equal bytes."""
        if type(value) is self._exact:
            return self.encode(value)
        try:
            return self._codec.encode_canonical(self.pack(value)[1])
        except EncodeError as error:
            raise self._misfit(value, error) from error

    def decode(self, data: bytes) -> T:
        """Return the value of stored bytes; `StateTypeError` if they do not fit the type."""
        try:
            return self._bare_decode(data)
        except Exception:  # the type's own code may raise anything; the codec says what
            return self._decode_or_explain(data)

    def empty(self) -> T | None:
        """Return T() where that needs no arguments, else None."""
        return _empty(self._codec.info)  # type: ignore[no-any-return]  # of the type's description

    @property
    def is_nullable(self) -> bool:
        """Whether None is a value of the type."""
        return _is_nullable(self._codec.info)

    def _decode_or_explain(self, data: bytes) -> T:
        try:
            return self._codec.decode(data)
        except PayloadError as error:
            raise StateTypeError(
                f"stored state does not fit the declared type: {error}; declare the type it was "
                "written with, or one that reads both"
            ) from error

    def _misfit(self, value: object, error: Exception | None) -> StateTypeError:
        detail = "" if error is None else f": {error}"
        return StateTypeError(
            f"the state is declared as {self!r}, not {type_name(type(value))}{detail}"
        )


def _is_nullable(info: types.Type) -> bool:
    match info:
        case types.Metadata():
            return _is_nullable(info.type)
        case types.UnionType():
            return info.includes_none
        case types.LiteralType():
            return None in info.values
        case _:
            return isinstance(info, types.AnyType | types.NoneType)


_EMPTY_BY_INFO: tuple[tuple[type[types.Type], type], ...] = (
    (types.IntType, int),
    (types.FloatType, float),
    (types.StrType, str),
    (types.BoolType, bool),
    (types.BytesType, bytes),
    (types.ListType, list),
    (types.VarTupleType, tuple),
    (types.SetType, set),
    (types.FrozenSetType, frozenset),
    (types.DictType, dict),
)


def _empty(info: types.Type) -> Any:
    for known, make in _EMPTY_BY_INFO:
        if isinstance(info, known):
            return make()
    match info:
        case types.Metadata():
            return _empty(info.type)
        case types.TypedDictType():
            return None if any(field.required for field in info.fields) else {}
        case types.StructType() | types.DataclassType() | types.NamedTupleType():
            return None if any(field.required for field in info.fields) else info.cls()
        case types.CustomType():
            model: Any = info.cls  # pydantic's: the codec lets no other custom type pass
            required = any(each.is_required() for each in model.model_fields.values())
            return None if required else model()
        case _:
            return None
