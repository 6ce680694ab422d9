"""Whether what a handler returns can be its reply: it fits the declared type, can be encoded, and
is not too large.

Asked before anything of the run is settled, so that a handler whose reply cannot be told has no
effect at all. Of messages that nobody waits for, replies are dropped unseen.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import NoneType
from typing import Any, Literal

from msgspec import Raw

from sublet.functions.app import Function
from sublet.functions.codec import INT_MAX, INT_MIN, split_column
from sublet.functions.errors import EncodeError, PayloadError
from sublet.runtime.execution.failures import BadReplyError

Calls = bool | Collection[int]
"""Whose replies somebody waits for, as `Work.calls` tells."""

_FREE = frozenset({NoneType, bool, float})
"""Every value of these can be encoded."""
_SHARED = frozenset({NoneType, bool, int, float, str, bytes})
"""Values of these may be encoded later: nobody can change them meanwhile."""


class _Nothing:
    """No reply is of this type."""


class ReplyCheck:
    """The replies of one function."""

    __slots__ = (
        "_bytes_max",
        "_codec",
        "_decode",
        "_encode",
        "_free",
        "_takes_int",
        "exact",
        "ranged",
    )

    def __init__(self, function: Function, bytes_max: int) -> None:
        codec = self._codec = function.reply_codec
        self._encode, self._decode = codec.bare_encode, codec.bare_decode
        self._bytes_max = bytes_max
        self._free: Collection[type | None] = _FREE if codec.is_any else {codec.exact} & _FREE
        """Whatever is of these types is a reply."""
        if function.window is not None:
            # A message that no window takes, and the end of a window, have no reply.
            self._free = {*self._free, NoneType}
        self._takes_int = codec.is_any or codec.exact is int
        self.exact: type = _Nothing
        """Loops need not ask `fit` for replies of exactly this type,"""
        self.ranged: Literal[False] | tuple[int, int] = False
        """that are in this range, if there is one."""
        if codec.is_any:
            self.exact = NoneType
        elif codec.exact in _FREE:
            self.exact = codec.exact
        elif codec.exact is int:
            self.exact, self.ranged = int, (INT_MIN, INT_MAX)

    def fit(self, value: Any, index: int, asked: Calls) -> Any:
        """Return a reply as it can be kept until it is sent; `BadReplyError` if it is none."""
        if asked is not True and (asked is False or index not in asked):
            return None
        kind = type(value)
        if kind in self._free or (kind is int and self._takes_int and INT_MIN <= value <= INT_MAX):
            return value
        try:
            data = self._encode(value)
            if not self._codec.is_any:
                self._decode(data)
        except Exception:
            raise self._bad_reply(value) from None
        if len(data) > self._bytes_max:
            raise BadReplyError(
                f"returned a reply of {len(data)} bytes; allowed: {self._bytes_max}"
            )
        return value if kind in _SHARED else Raw(data)

    def _bad_reply(self, value: Any) -> BadReplyError:
        try:
            self._codec.encode_fitting(value)
        except (EncodeError, PayloadError) as error:
            return BadReplyError(f"returned what cannot be its reply: {error}")
        return BadReplyError("returned what cannot be its reply")

    def fit_all(self, values: Sequence[Any], indexes: Sequence[int], asked: Calls) -> Sequence[Any]:
        """The same for the replies of one call of a handler."""
        if asked is False:
            return values
        if asked is not True:
            places = [place for place, index in enumerate(indexes) if index in asked]
            fitted = list[Any]([None]) * len(values)
            wanted = self.fit_all([values[place] for place in places], (), True)
            for place, value in zip(places, wanted, strict=True):
                fitted[place] = value
            return fitted
        codec = self._codec
        try:
            column = codec.encode_column(values if type(values) is list else list(values))
            if not codec.is_any:
                codec.decode_column(column)
        except (EncodeError, PayloadError):
            # One of them is wrong, and is to be named without its place in the column.
            for value in values:
                self.fit(value, 0, True)
            raise
        if codec.exact is not None and len(column) <= self._bytes_max:
            return values
        pieces = split_column(column)
        if len(column) > self._bytes_max:
            for value in values:
                self.fit(value, 0, True)
        return pieces
