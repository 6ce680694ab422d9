"""Kinds of state that can be gathered in parts and merged: numbers, sets, and the user's own.

Each kind follows `MergeableKind`. Stored form: plain msgpack, one row (`SetUnion`: one row for each
element), without a format version, as the kind and its type alone describe it.

Adding floats is commutative but associative only up to rounding: sums and means of floats that
were merged in another order may differ in their last digits. With ints they are exact.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import typing_extensions

from sublet.functions.codec import is_immutable, type_name
from sublet.functions.errors import StateTooLargeError, StateTypeError
from sublet.functions.state.cell import (
    ABSENT,
    ChangedRow,
    StateClock,
    StoredRow,
    Undo,
    only_row,
)
from sublet.functions.state.entries import Entries
from sublet.functions.state.kind import Kind
from sublet.functions.state.single import SingleRow
from sublet.functions.state.typed import Typed
from sublet.functions.state.value import Value, ValueCell

if TYPE_CHECKING:
    from typing_extensions import TypeForm

T = TypeVar("T")
Number = int | float
N = typing_extensions.TypeVar("N", default=Number)

_NIL = b"\xc0"


def check_number(value: Any) -> None:
    """Raise `StateTypeError` unless the value is an int or a float."""
    if type(value) is not int and type(value) is not float:
        raise StateTypeError(f"cannot add {type_name(type(value))}; allowed: int, float")


def check_64_bits(value: Number) -> None:
    """Raise `StateTooLargeError` for an int that does not fit into a row."""
    if type(value) is int and value.bit_length() > 63:
        raise StateTooLargeError("the number would exceed 64 bits; use floats for larger numbers")


def plain_row(rows: Iterable[StoredRow]) -> bytes | None:
    """Return the value of a state that is one row and never expires."""
    found = only_row(rows)
    return None if found is None else found[0]


class Sum(Kind):
    """A running sum of ints or floats: `state=Sum()`."""

    __slots__ = ("typed",)

    partial_type = Number

    def __init__(self) -> None:
        self.typed: Typed[Number] = Typed(Number)

    def __repr__(self) -> str:
        return "Sum()"

    def cell(self, rows: Iterable[StoredRow], clock: StateClock) -> SumState:
        """See `StateKind.cell`."""
        return SumState(self, plain_row(rows), clock)

    def plain(self, cell: SumState) -> Number:
        """Return the sum."""
        return cell.value

    def zero(self) -> Number:
        """Return 0."""
        return 0

    def merge(self, one: Number, other: Number) -> Number:
        """Return the sum of both."""
        return one + other

    def partial_of(self, cell: SumState) -> Number:
        """See `MergeableKind.partial_of`."""
        return cell.value

    def absorb(self, cell: SumState, partial: Number) -> None:
        """See `MergeableKind.absorb`."""
        # Adding 0.0 makes an int a float; adding 0 would only write again what is there.
        if partial or type(partial) is float or cell.is_empty:
            cell.add(partial)


class SumState(SingleRow[Sum]):
    """`ctx.state` of a function with `state=Sum()`."""

    __slots__ = ()

    def add(self, amount: Number) -> None:
        """Add a number; ints stay ints, within 64 bits."""
        if type(amount) is not int:
            check_number(amount)
        before = self._value
        total = amount if before is ABSENT else before + amount
        if type(total) is int and total.bit_length() > 63:
            check_64_bits(total)
        if not self.undo:
            self.undo = [before]
        self._value = total

    @property
    def value(self) -> Number:
        """The sum of all that was added; 0 at first."""
        return 0 if self._value is ABSENT else self._value


class Count(Kind):
    """A counter: `state=Count()`."""

    __slots__ = ("typed",)

    partial_type = int

    def __init__(self) -> None:
        self.typed: Typed[int] = Typed(int)

    def __repr__(self) -> str:
        return "Count()"

    def cell(self, rows: Iterable[StoredRow], clock: StateClock) -> CountState:
        """See `StateKind.cell`."""
        return CountState(self, plain_row(rows), clock)

    def plain(self, cell: CountState) -> int:
        """Return the count."""
        return cell.value

    def zero(self) -> int:
        """Return 0."""
        return 0

    def merge(self, one: int, other: int) -> int:
        """Return the sum of both counts."""
        return one + other

    def partial_of(self, cell: CountState) -> int:
        """See `MergeableKind.partial_of`."""
        return cell.value

    def absorb(self, cell: CountState, partial: int) -> None:
        """See `MergeableKind.absorb`."""
        if partial or cell.is_empty:
            cell.increment(partial)


class CountState(SingleRow[Count]):
    """`ctx.state` of a function with `state=Count()`."""

    __slots__ = ()

    def increment(self, n: int = 1) -> None:
        """Count n more; n is 0 or more."""
        if type(n) is not int or n < 0:
            raise StateTypeError(f"cannot count {n!r:.40}; allowed: an int, 0 or more (else: Sum)")
        before = self._value
        count = n if before is ABSENT else before + n
        if count.bit_length() > 63:
            check_64_bits(count)
        if not self.undo:
            self.undo = [before]
        self._value = count

    @property
    def value(self) -> int:
        """How many were counted; 0 at first."""
        return 0 if self._value is ABSENT else self._value


class _Extreme(Kind, Generic[N]):
    """What Min and Max share: all but the direction."""

    __slots__ = ("partial_type", "typed")

    precedes: Callable[[Any, Any], bool]

    def __init__(self, of: TypeForm[N] = Number) -> None:  # type: ignore[assignment]  # its default
        self.typed: Typed[N] = Typed(of)
        if not self.typed.immutable:
            raise TypeError(f"{type(self).__name__} needs an immutable type, not {self.typed!r}")
        self.partial_type = of | None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.typed!r})"

    def cell(self, rows: Iterable[StoredRow], clock: StateClock) -> ExtremeState[N]:
        """See `StateKind.cell`."""
        return ExtremeState(self, plain_row(rows), clock)

    def plain(self, cell: ExtremeState[N]) -> N | None:
        """Return the value that goes first."""
        return cell.value

    def zero(self) -> N | None:
        """Return None: nothing was offered."""
        return None

    def merge(self, one: N | None, other: N | None) -> N | None:
        """Return the one of both that goes first."""
        if one is None or (other is not None and self.precedes(other, one)):
            return other
        return one

    def partial_of(self, cell: ExtremeState[N]) -> N | None:
        """See `MergeableKind.partial_of`."""
        return cell.value

    def absorb(self, cell: ExtremeState[N], partial: N | None) -> None:
        """See `MergeableKind.absorb`."""
        if partial is not None:
            cell.offer(partial)


class Min(_Extreme[N]):
    """The smallest value offered: `state=Min()` for numbers, `state=Min(datetime)`."""

    __slots__ = ()

    precedes = staticmethod(operator.lt)

    @property
    def context_type(self) -> type[Min[N]]:
        """See `Kind.context_type`."""
        return Min[self.typed.type]  # type: ignore[name-defined]


class Max(_Extreme[N]):
    """The largest value offered: `state=Max()` for numbers, `state=Max(datetime)`."""

    __slots__ = ()

    precedes = staticmethod(operator.gt)

    @property
    def context_type(self) -> type[Max[N]]:
        """See `Kind.context_type`."""
        return Max[self.typed.type]  # type: ignore[name-defined]


class ExtremeState(SingleRow[_Extreme[N]]):
    """`ctx.state` of a function with `state=Min()` or `state=Max()`."""

    __slots__ = ()

    def offer(self, value: N) -> bool:
        """Take the value if it goes before all earlier ones; tell whether it did."""
        kind = self._kind
        data, copy = kind.typed.pack(value)
        if copy != copy:  # only NaN differs from itself; it has no order
            raise StateTypeError("NaN is neither smaller nor larger than a number")
        before = self._value
        try:
            taken = before is ABSENT or kind.precedes(copy, before)
        except TypeError as error:
            raise StateTypeError(f"cannot compare values of {kind.typed!r}: {error}") from error
        if taken:
            if len(data) > self._clock.bytes_max:
                raise StateTooLargeError(
                    f"the state would take {len(data)} bytes; allowed: {self._clock.bytes_max}"
                )
            if not self.undo:
                self.undo = [before]
            self._value = copy
        return taken

    @property
    def value(self) -> N | None:
        """The smallest (largest) value offered; None before the first."""
        return None if self._value is ABSENT else self._value


class Mean(Kind):
    """The mean of ints or floats: `state=Mean()`."""

    __slots__ = ("typed",)

    partial_type = tuple[Number, int]

    def __init__(self) -> None:
        self.typed: Typed[tuple[Number, int]] = Typed(self.partial_type)

    def __repr__(self) -> str:
        return "Mean()"

    def cell(self, rows: Iterable[StoredRow], clock: StateClock) -> MeanState:
        """See `StateKind.cell`."""
        return MeanState(self, plain_row(rows), clock)

    def plain(self, cell: MeanState) -> float | None:
        """Return the mean."""
        return cell.value

    def zero(self) -> tuple[Number, int]:
        """Return (0, 0): the sum and the count of nothing."""
        return 0, 0

    def merge(self, one: tuple[Number, int], other: tuple[Number, int]) -> tuple[Number, int]:
        """Return the sums of both sums and both counts."""
        return one[0] + other[0], one[1] + other[1]

    def partial_of(self, cell: MeanState) -> tuple[Number, int]:
        """See `MergeableKind.partial_of`."""
        return cell.total_and_count

    def absorb(self, cell: MeanState, partial: tuple[Number, int]) -> None:
        """See `MergeableKind.absorb`."""
        if any(partial):
            cell.add_many(*partial)


class MeanState(SingleRow[Mean]):
    """`ctx.state` of a function with `state=Mean()`."""

    __slots__ = ()

    def add(self, amount: Number) -> None:
        """Take one number into the mean."""
        self.add_many(amount, 1)

    def add_many(self, total: Number, count: int) -> None:
        """Take `count` numbers into the mean, whose sum is `total`."""
        check_number(total)
        before = self._value
        if before is not ABSENT:
            total, count = total + before[0], count + before[1]
        check_64_bits(total)
        check_64_bits(count)
        if not self.undo:
            self.undo = [before]
        self._value = total, count

    @property
    def total_and_count(self) -> tuple[Number, int]:
        """The sum and the number of all that was added."""
        return (0, 0) if self._value is ABSENT else self._value

    @property
    def count(self) -> int:
        """How many numbers were added."""
        return self.total_and_count[1]

    @property
    def value(self) -> float | None:
        """The mean; None before the first number."""
        total, count = self.total_and_count
        return total / count if count else None


class SetUnion(Kind, Generic[T]):
    """A set that only grows: `state=SetUnion(str)`. T must be immutable."""

    __slots__ = ("partial_type", "typed")

    def __init__(self, of: TypeForm[T]) -> None:
        if not is_immutable(of):
            raise TypeError(f"SetUnion needs an immutable type, not {type_name(of)}")
        self.typed: Typed[T] = Typed(of)
        self.partial_type = GenericAlias(frozenset, (of,))

    def __repr__(self) -> str:
        return f"SetUnion({self.typed!r})"

    @property
    def context_type(self) -> type[SetUnion[T]]:
        """See `Kind.context_type`."""
        return SetUnion[self.typed.type]  # type: ignore[name-defined]

    def cell(self, rows: Iterable[StoredRow], clock: StateClock) -> SetUnionState[T]:
        """See `StateKind.cell`. Elements are decoded, and checked, when they are read."""
        return SetUnionState(self, Entries(rows, None, clock))

    def plain(self, cell: SetUnionState[T]) -> set[T]:
        """Return what the cell holds as a set."""
        return set(cell)

    def zero(self) -> frozenset[T]:
        """Return the empty set."""
        return frozenset()

    def merge(self, one: frozenset[T], other: frozenset[T]) -> frozenset[T]:
        """Return the union."""
        return one | other

    def partial_of(self, cell: SetUnionState[T]) -> frozenset[T]:
        """See `MergeableKind.partial_of`."""
        return frozenset(cell)

    def absorb(self, cell: SetUnionState[T], partial: frozenset[T]) -> None:
        """See `MergeableKind.absorb`."""
        for element in partial:
            cell.add(element)


class SetUnionState(Generic[T]):
    """`ctx.state` of a function with `state=SetUnion(T)`."""

    __slots__ = ("_entries", "_kind")

    def __init__(self, kind: SetUnion[T], entries: Entries) -> None:
        self._kind = kind
        self._entries = entries

    @property
    def undo(self) -> Undo:
        """See `Cell.undo`."""
        return self._entries.undo  # type: ignore[no-any-return]  # a list, or the empty tuple

    def add(self, element: T) -> bool:
        """Add an element; tell whether it is new."""
        subkey = self._kind.typed.encode_key(element)
        if self._entries.get(subkey) is not None:
            return False
        self._entries.put(subkey, _NIL)
        return True

    def __contains__(self, element: T) -> bool:
        return self._entries.get(self._kind.typed.encode_key(element)) is not None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[T]:
        return map(self._kind.typed.decode, self._entries.subkeys())

    def rollback(self) -> None:
        """See `Cell.rollback`."""
        self._entries.rollback()

    def drain(self) -> list[ChangedRow]:
        """See `Cell.drain`."""
        return self._entries.drain()

    def rows(self) -> list[StoredRow]:
        """See `Cell.rows`."""
        return self._entries.rows()

    @property
    def size_bytes(self) -> int:
        """See `Cell.size_bytes`."""
        return self._entries.size_bytes

    @property
    def is_empty(self) -> bool:
        """See `Cell.is_empty`."""
        return not len(self._entries)


class Merged(Kind, Generic[T]):
    """A value with the user's own merge: `state=Merged(Stats, zero=Stats(), merge=combine)`.

    `merge(one, other)` must be commutative and associative, and `zero` (a value, or a function
    that makes it) must change nothing: the order and the grouping in which values are merged is
    not yours to choose.
    """

    __slots__ = ("_merge", "partial_type", "value")

    says_all = False

    def __init__(
        self, of: TypeForm[T], *, zero: T | Callable[[], T], merge: Callable[[T, T], T]
    ) -> None:
        if not callable(merge):
            raise TypeError("merge must be a function of two values")
        if callable(zero):
            self.value: Value[T] = Value(of, default_factory=zero)
        else:
            self.value = Value(of, default=zero)
        self._merge: Callable[[T, T], T] = merge
        self.partial_type = of

    def __repr__(self) -> str:
        return f"Merged({self.value.typed!r})"

    @property
    def context_type(self) -> type[Merged[T]]:
        """See `Kind.context_type`."""
        return Merged[self.value.type]  # type: ignore[name-defined]

    def cell(self, rows: Iterable[StoredRow], clock: StateClock) -> MergedState[T]:
        """See `StateKind.cell`."""
        return MergedState(self, self.value.plain_cell(plain_row(rows), clock))

    def plain(self, cell: MergedState[T]) -> T:
        """Return all that was merged."""
        return cell.get()

    def zero(self) -> T:
        """Return the neutral value."""
        return self.value.default()  # type: ignore[no-any-return]  # was checked to be a T

    def merge(self, one: T, other: T) -> T:
        """Return both merged. A merge function that changes its arguments changes copies."""
        if not self.value.typed.immutable:
            one, other = self.value.typed.pack(one)[1], self.value.typed.pack(other)[1]
        return self._merge(one, other)

    def partial_of(self, cell: MergedState[T]) -> T:
        """See `MergeableKind.partial_of`."""
        return cell.get()

    def absorb(self, cell: MergedState[T], partial: T) -> None:
        """See `MergeableKind.absorb`."""
        cell.merge(partial)


class MergedState(Generic[T]):
    """`ctx.state` of a function with `state=Merged(T, …)`."""

    __slots__ = ("_cell", "_kind")

    def __init__(self, kind: Merged[T], cell: ValueCell) -> None:
        self._kind = kind
        self._cell = cell

    @property
    def undo(self) -> Undo:
        """See `Cell.undo`."""
        return self._cell.undo

    def get(self) -> T:
        """Return all that was merged so far; `zero` at first."""
        return self._cell.get()  # type: ignore[no-any-return]  # the cell's declared type is T

    def merge(self, value: T) -> None:
        """Merge a value into the state."""
        self._cell.set(self._kind.merge(self._cell.get(), value))

    def rollback(self) -> None:
        """See `Cell.rollback`."""
        self._cell.rollback()

    def drain(self) -> list[ChangedRow]:
        """See `Cell.drain`."""
        return self._cell.drain()

    def rows(self) -> list[StoredRow]:
        """See `Cell.rows`."""
        return self._cell.rows()

    @property
    def size_bytes(self) -> int:
        """See `Cell.size_bytes`."""
        return self._cell.size_bytes

    @property
    def is_empty(self) -> bool:
        """See `Cell.is_empty`."""
        return self._cell.is_empty
