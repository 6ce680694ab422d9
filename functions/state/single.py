"""A cell whose state is one immutable value in one row: what it takes to keep it.

How the value is read and changed is for the classes made from this one.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from sublet.functions.state.cell import ABSENT, NO_UNDO, WHOLE, ChangedRow, StateClock, StoredRow
from sublet.functions.state.typed import Typed


class _SingleKind(Protocol):
    typed: Typed[Any]


KindT = TypeVar("KindT", bound=_SingleKind)


class SingleRow(Generic[KindT]):
    """Holds a decoded value that nobody can change, or `ABSENT`.

    `undo` holds at most the value before the first change since the last settling. Whoever
    assigns to `_value` first does `if not self.undo: self.undo = [self._value]`; it stands there
    in full because these are the hottest lines of a handler.
    """

    __slots__ = ("_clock", "_kind", "_stored", "_value", "undo")

    def __init__(self, kind: KindT, data: bytes | None, clock: StateClock) -> None:
        self._kind = kind
        self._clock = clock
        self._load(data)

    def _load(self, data: bytes | None) -> None:
        """Be what is stored, or nothing."""
        self.undo: Any = NO_UNDO
        self._value: Any = ABSENT if data is None else self._kind.typed.decode(data)
        self._stored = self._value

    def rollback(self) -> None:
        """See `Cell.rollback`."""
        if self.undo:
            self._value = self.undo[0]
            self.undo = NO_UNDO

    def drain(self) -> list[ChangedRow]:
        """See `Cell.drain`."""
        if not self.undo:
            self.undo = NO_UNDO
        if self._value is self._stored:
            return []
        self._stored = self._value
        return [(WHOLE, self.encoded(), None)]

    def rows(self) -> list[StoredRow]:
        """See `Cell.rows`."""
        data = self.encoded()
        return [] if data is None else [(WHOLE, data, None)]

    def encoded(self) -> bytes | None:
        """Return the value as it is stored; None if there is none."""
        return None if self._value is ABSENT else self._kind.typed.encode_known(self._value)

    @property
    def size_bytes(self) -> int:
        """See `Cell.size_bytes`."""
        # Nothing knows the size of a decoded value without walking it; text tells its length.
        value = self._value
        return 64 + len(value) if isinstance(value, (str, bytes)) else 64

    @property
    def is_empty(self) -> bool:
        """See `Cell.is_empty`."""
        return self._value is ABSENT
