"""One value for each key.

Values of immutable types are kept decoded and handed out as they are. Of a mutable type the cell
keeps the bytes, and every `get()` gives a copy of the handler's own: what it changes counts only
when it is given to `set()`, and taking a change back is exact.

Stored form: one row, the value as msgpack. Plain msgpack needs no format version: what it holds is
described by the declared type alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

from sublet.functions.codec import type_name
from sublet.functions.duration import Duration
from sublet.functions.errors import StateTypeError
from sublet.functions.state.cell import (
    ABSENT,
    NO_UNDO,
    WHOLE,
    Absent,
    ChangedRow,
    StateClock,
    StoredRow,
    Undo,
    loaded_expiry,
    only_row,
    refuse_growth,
    ttl_ms_of,
)
from sublet.functions.state.kind import Kind
from sublet.functions.state.single import SingleRow
from sublet.functions.state.typed import Typed

if TYPE_CHECKING:
    from typing_extensions import TypeForm

T = TypeVar("T")
D = TypeVar("D")


class ValueState(Protocol[T]):
    """`ctx.state` of a function with `state=Value(T)`, `state=T`, or no declared state."""

    @overload
    def get(self) -> T: ...
    @overload
    def get(self, of: type[D]) -> D: ...
    @overload
    def get(self, of: type[D], default: D) -> D: ...
    def get(self, of: Any = None, default: Any = ABSENT) -> Any:
        """Return the value.

        If there is none: `default` if given, else the declared default, else T() if that needs
        no arguments, else None. `of` tells a type checker what comes back. It must be the
        declared type; where no state is declared, the first `get(T)` declares it.
        """
        ...

    def set(self, value: T) -> None:
        """Replace the value. `StateTypeError` if it is not of the declared type."""
        ...

    def clear(self) -> None:
        """Remove the value."""
        ...

    @property
    def exists(self) -> bool:
        """True if there is a value; a default is none."""
        ...


class ValueCell(ValueState[Any], Protocol):
    """What the cells below have in common, seen from the one that adds an expiry to them."""

    @property
    def undo(self) -> Undo: ...

    def rollback(self) -> None: ...

    def drain(self) -> list[ChangedRow]: ...

    def rows(self) -> list[StoredRow]: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def is_empty(self) -> bool: ...

    def encoded(self) -> bytes | None:
        """Return the current value as it is stored; None if there is none."""
        ...

    def forget(self) -> None:
        """Remove the value without a way back."""
        ...


class Value(Kind, Generic[T]):
    """One value of type T for each key: `state=Value(Cart)`, or for short `state=Cart`.

    `default` is what `get()` returns where there is no value; `default_factory` makes a new one
    each time. With `ttl`, a value is gone that long after it was last set.
    """

    __slots__ = ("_cell_class", "_default", "_default_factory", "open", "ttl_ms", "type", "typed")

    def __init__(
        self,
        of: TypeForm[T],
        *,
        default: T | Absent = ABSENT,
        default_factory: Callable[[], T] | None = None,
        ttl: Duration | None = None,
    ) -> None:
        if default is not ABSENT and default_factory is not None:
            raise ValueError("give either default or default_factory, not both")
        self.ttl_ms = ttl_ms_of(ttl)
        self.open = False
        """True while the type is still to be declared, by the first `get(T)`."""
        self._default_factory = default_factory
        self._declare(of)
        self._default: Any = ABSENT
        if default is not ABSENT:
            # Kept as bytes if it could be changed: each key gets its own.
            data, copy = self.typed.pack(default)
            self._default = copy if self.typed.immutable else data

    @staticmethod
    def undeclared() -> Value[Any]:
        """Return the kind of a function without declared state: any value, typed when read."""
        kind: Value[Any] = Value(Any)
        kind.open = True
        return kind

    def __repr__(self) -> str:
        return f"Value({self.typed!r})"

    if TYPE_CHECKING:

        @overload  # type: ignore[override]  # A cell, without what the runtime does to it.
        def __get__(self, instance: None, owner: Any) -> Value[T]: ...
        @overload
        def __get__(self, instance: object, owner: Any) -> ValueState[T]: ...
        def __get__(self, instance: object, owner: Any) -> Any: ...

    @property
    def context_type(self) -> type[T]:  # type: ignore[override]  # `Context[int]`, not of a Value
        """See `Kind.context_type`."""
        return self.type  # type: ignore[no-any-return]

    def cell(self, rows: Iterable[StoredRow], clock: StateClock) -> ValueCell:
        """See `StateKind.cell`."""
        # An iterator is never false, so this is only a short cut for new keys.
        found = only_row(rows) if rows else None
        data, expires_ms = (None, None) if found is None else found
        if expires_ms is None and self.ttl_ms is None:
            return self._cell_class(self, data, clock)
        return ExpiringCell(self, data, expires_ms, clock)

    def plain(self, cell: ValueState[T]) -> T:
        """Return the value, or the default."""
        return cell.get()

    def plain_cell(self, data: bytes | None, clock: StateClock) -> ValueCell:
        """Return a cell without expiry."""
        return self._cell_class(self, data, clock)

    @property
    def always_has_value(self) -> bool:
        """Whether `get()` returns a T also where there is no value."""
        if self._default_factory is not None or self._default is not ABSENT:
            return True
        return self.typed.is_nullable or self.typed.empty() is not None

    def default(self) -> Any:
        """Return what `get()` returns where there is no value."""
        if self._default_factory is not None:
            return self._default_factory()
        if self._default is ABSENT:
            return self.typed.empty()
        return self._default if self.typed.immutable else self.typed.decode(self._default)

    @property
    def has_fixed_size(self) -> bool:
        """Tell whether a value takes the same memory whatever it is."""
        return self._cell_class in _FIXED_SIZE_CELLS and self.ttl_ms is None

    def agree(self, of: Any) -> None:
        """Check a type that a handler names; where none is declared, this declares it."""
        if self.open:
            self._declare(of)
            self.open = False
        elif of != self.type:
            raise StateTypeError(
                f"the state is declared as {self.typed!r}, not {type_name(of)}; a function's state "
                "has one type (without a declaration, the one that it was first read with)"
            )

    def _declare(self, of: Any) -> None:
        self.typed: Typed[Any] = Typed(of)
        self.type = self.typed.type
        if self.type in _SCALAR_CELLS:
            self._cell_class: Callable[..., ValueCell] = _SCALAR_CELLS[self.type]
        else:
            self._cell_class = ImmutableCell if self.typed.immutable else MutableCell


class ImmutableCell(SingleRow[Value[Any]]):
    """Holds the value itself."""

    __slots__ = ()

    def get(self, of: Any = None, default: Any = ABSENT) -> Any:
        value = self._value
        if value is not ABSENT and of is None:
            return value
        kind = self._kind
        if of is not None and of is not kind.type:
            kind.agree(of)
        if value is not ABSENT:
            return value
        return kind.default() if default is ABSENT else default

    def set(self, value: Any) -> None:
        data, copy = self._kind.typed.pack(value)
        if len(data) > self._clock.bytes_max:
            raise refuse_growth(len(data), self._clock)
        if not self.undo:
            self.undo = [self._value]
        self._value = copy

    def clear(self) -> None:
        if self._value is not ABSENT:
            if not self.undo:
                self.undo = [self._value]
            self._value = ABSENT

    @property
    def exists(self) -> bool:
        return self._value is not ABSENT

    def forget(self) -> None:
        self._value = ABSENT


class IntCell(ImmutableCell):
    """Assigning costs a look at the type, and one at the size because msgpack ends at 64 bits."""

    __slots__ = ()

    def set(self, value: Any) -> None:
        if type(value) is int and value.bit_length() < 64:
            if not self.undo:
                self.undo = [self._value]
            self._value = value
        else:
            ImmutableCell.set(self, value)


class FloatCell(ImmutableCell):
    """Assigning costs a look at the type."""

    __slots__ = ()

    def set(self, value: Any) -> None:
        if type(value) is float:
            if not self.undo:
                self.undo = [self._value]
            self._value = value
        else:
            ImmutableCell.set(self, value)


class BoolCell(ImmutableCell):
    """Assigning costs a look at the type."""

    __slots__ = ()

    def set(self, value: Any) -> None:
        if type(value) is bool:
            if not self.undo:
                self.undo = [self._value]
            self._value = value
        else:
            ImmutableCell.set(self, value)


class StrCell(ImmutableCell):
    """ASCII text is known to be encodable, and how long it gets; other text is tried."""

    __slots__ = ()

    def set(self, value: Any) -> None:
        if type(value) is str and value.isascii() and len(value) + 5 <= self._clock.bytes_max:
            if not self.undo:
                self.undo = [self._value]
            self._value = value
        else:
            ImmutableCell.set(self, value)


class BytesCell(ImmutableCell):
    """Assigning costs a look at the type and the length."""

    __slots__ = ()

    def set(self, value: Any) -> None:
        if type(value) is bytes and len(value) + 5 <= self._clock.bytes_max:
            if not self.undo:
                self.undo = [self._value]
            self._value = value
        else:
            ImmutableCell.set(self, value)


_FIXED_SIZE_CELLS: tuple[Callable[..., ValueCell], ...] = (IntCell, FloatCell, BoolCell)
_SCALAR_CELLS: dict[Any, Callable[..., ValueCell]] = {
    int: IntCell,
    float: FloatCell,
    bool: BoolCell,
    str: StrCell,
    bytes: BytesCell,
}


class MutableCell:
    """Holds the bytes, and at times one copy that nobody has seen yet.

    Checking an assigned value makes such a copy; giving it to the next `get()` saves decoding it
    again.
    """

    __slots__ = ("_clock", "_copy", "_data", "_kind", "_stored", "undo")

    def __init__(self, kind: Value[Any], data: bytes | None, clock: StateClock) -> None:
        self.undo: Any = NO_UNDO
        self._kind = kind
        self._clock = clock
        self._data = data
        self._stored = data
        self._copy: Any = ABSENT

    def get(self, of: Any = None, default: Any = ABSENT) -> Any:
        kind = self._kind
        if of is not None and of is not kind.type:
            kind.agree(of)
        copy = self._copy
        if copy is not ABSENT:
            self._copy = ABSENT
            return copy
        if self._data is not None:
            return kind.typed.decode(self._data)
        return kind.default() if default is ABSENT else default

    def set(self, value: Any) -> None:
        kind = self._kind
        data, copy = kind.typed.pack(value)
        if len(data) > self._clock.bytes_max:
            raise refuse_growth(len(data), self._clock)
        if not self.undo:
            self.undo = [self._data]
        self._data = data
        # While the type is open, the next get() may ask for another one than this copy has.
        self._copy = ABSENT if kind.open else copy

    def clear(self) -> None:
        if self._data is not None:
            if not self.undo:
                self.undo = [self._data]
            self.forget()

    @property
    def exists(self) -> bool:
        return self._data is not None

    def rollback(self) -> None:
        if self.undo:
            self._data = self.undo[0]
            self._copy = ABSENT
            self.undo = NO_UNDO

    def drain(self) -> list[ChangedRow]:
        if not self.undo:
            self.undo = NO_UNDO
        if self._data == self._stored:
            return []
        # One object for both, or the bytes would be held twice.
        self._stored = self._data
        return [(WHOLE, self._data, None)]

    def rows(self) -> list[StoredRow]:
        return [] if self._data is None else [(WHOLE, self._data, None)]

    def encoded(self) -> bytes | None:
        return self._data

    def forget(self) -> None:
        self._data = None
        self._copy = ABSENT

    @property
    def size_bytes(self) -> int:
        if self._data is None:
            return 64
        # A decoded copy takes several times its bytes.
        return 64 + len(self._data) * (1 if self._copy is ABSENT else 5)

    @property
    def is_empty(self) -> bool:
        return self._data is None


class ExpiringCell:
    """Another cell, whose value is gone after its time."""

    __slots__ = ("_clock", "_expires_ms", "_expires_undo", "_inner", "_kind", "_stored")

    def __init__(
        self, kind: Value[Any], data: bytes | None, expires_ms: int | None, clock: StateClock
    ) -> None:
        self._kind = kind
        self._clock = clock
        self._stored: tuple[bytes | None, int | None] = (data, expires_ms)
        if data is not None:
            expires_ms = loaded_expiry(expires_ms, kind.ttl_ms, clock)
        self._expires_ms = expires_ms
        self._expires_undo: int | None = None
        gone = expires_ms is not None and expires_ms <= clock.now_ms
        self._inner = kind.plain_cell(None if gone else data, clock)

    @property
    def undo(self) -> Undo:
        return self._inner.undo

    def get(self, of: Any = None, default: Any = ABSENT) -> Any:
        self._expire()
        return self._inner.get(of, default)

    def set(self, value: Any) -> None:
        settled = not self._inner.undo
        self._inner.set(value)
        ttl_ms = self._kind.ttl_ms
        self._change_expiry(None if ttl_ms is None else self._clock.moment_ms() + ttl_ms, settled)

    def clear(self) -> None:
        self._expire()
        settled = not self._inner.undo
        if self._inner.exists:
            self._inner.clear()
            self._change_expiry(None, settled)

    @property
    def exists(self) -> bool:
        self._expire()
        return self._inner.exists

    def rollback(self) -> None:
        if self._inner.undo:
            self._inner.rollback()
            self._expires_ms = self._expires_undo

    def drain(self) -> list[ChangedRow]:
        self._expire()
        self._inner.drain()
        data = self._inner.encoded()
        if self._stored == (data, self._expires_ms):
            return []
        self._stored = (data, self._expires_ms)
        return [(WHOLE, data, self._expires_ms)]

    def rows(self) -> list[StoredRow]:
        data = self.encoded()
        return [] if data is None else [(WHOLE, data, self._expires_ms)]

    def encoded(self) -> bytes | None:
        self._expire()
        return self._inner.encoded()

    def forget(self) -> None:
        self._inner.forget()
        self._expires_ms = None

    @property
    def size_bytes(self) -> int:
        return 64 + self._inner.size_bytes

    @property
    def is_empty(self) -> bool:
        self._expire()
        return self._inner.is_empty

    def _expire(self) -> None:
        if self._expires_ms is not None and self._expires_ms <= self._clock.now_ms:
            self.forget()

    def _change_expiry(self, expires_ms: int | None, settled: bool) -> None:
        if settled:
            self._expires_undo = self._expires_ms
        self._expires_ms = expires_ms
