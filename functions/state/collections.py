"""Maps and lists that are stored row by row: a change writes what it touches, not the whole.

Stored form: `Map` has a row for each entry, the subkey being the key and the value being the value,
both as msgpack. `List` has a row for each element, the subkey being its position (8 bytes, big
endian) and the value the element as msgpack. Both are plain msgpack and need no format version.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from sublet.functions.duration import Duration
from sublet.functions.errors import StateTypeError
from sublet.functions.state.cell import (
    NO_UNDO,
    ChangedRow,
    StateClock,
    StoredRow,
    Undo,
    loaded_expiry,
    refuse_growth,
    ttl_ms_of,
)
from sublet.functions.state.entries import ROW_OVERHEAD_BYTES, Entries
from sublet.functions.state.kind import Kind
from sublet.functions.state.typed import Typed

if TYPE_CHECKING:
    from typing_extensions import TypeForm

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
D = TypeVar("D")

_POSITION_BYTES = 8


class Map(Kind, Generic[K, V]):
    """A map for each key: `state=Map(str, int)`. The type of its keys must be immutable.

    With `ttl`, an entry is gone that long after it was last put.
    """

    __slots__ = ("keys", "ttl_ms", "values")

    def __init__(
        self, key: TypeForm[K], value: TypeForm[V], *, ttl: Duration | None = None
    ) -> None:
        self.keys: Typed[K] = Typed(key)
        if not self.keys.immutable:
            raise TypeError(f"the keys of a Map need an immutable type, not {self.keys!r}")
        self.values: Typed[V] = Typed(value)
        self.ttl_ms = ttl_ms_of(ttl)

    def __repr__(self) -> str:
        return f"Map({self.keys!r}, {self.values!r})"

    @property
    def context_type(self) -> type[Map[K, V]]:
        """See `Kind.context_type`."""
        return Map[self.keys.type, self.values.type]  # type: ignore[name-defined]

    def cell(self, rows: Iterable[StoredRow], clock: StateClock) -> MapState[K, V]:
        """See `StateKind.cell`. Keys and values are decoded, and checked, when they are read."""
        return MapState(self, Entries(rows, self.ttl_ms, clock))

    def plain(self, cell: MapState[K, V]) -> dict[K, V]:
        """Return what the cell holds as a dict."""
        return dict(cell.items())


class MapState(Generic[K, V]):
    """`ctx.state` of a function with `state=Map(K, V)`.

    Values come out as copies: a changed value counts when it is put again. Two keys are the same
    if they encode the same.
    """

    __slots__ = ("_entries", "_kind")

    def __init__(self, kind: Map[K, V], entries: Entries) -> None:
        self._kind = kind
        self._entries = entries

    @property
    def undo(self) -> Undo:
        return self._entries.undo  # type: ignore[no-any-return]  # a list, or the empty tuple

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of a key, or the default if the map has none."""
        data = self._entries.get(self._kind.keys.encode_key(key))
        return default if data is None else self._kind.values.decode(data)

    def put(self, key: K, value: V) -> None:
        """Set the value of a key."""
        self._entries.put(self._kind.keys.encode_key(key), self._kind.values.encode(value))

    def delete(self, key: K) -> bool:
        """Remove a key; False if it was not there."""
        return self._entries.delete(self._kind.keys.encode_key(key))

    def clear(self) -> None:
        """Remove all keys."""
        self._entries.clear()

    def __contains__(self, key: K) -> bool:
        return self._entries.get(self._kind.keys.encode_key(key)) is not None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())

    def keys(self) -> list[K]:
        """Return all keys, in no particular order."""
        decode = self._kind.keys.decode
        return [decode(subkey) for subkey in self._entries.subkeys()]

    def values(self) -> list[V]:
        """Return all values, in the order of `keys()`."""
        decode = self._kind.values.decode
        return [decode(data) for _, data in self._entries.items()]

    def items(self) -> list[tuple[K, V]]:
        """Return all keys with their values."""
        decode_key, decode_value = self._kind.keys.decode, self._kind.values.decode
        return [(decode_key(key), decode_value(data)) for key, data in self._entries.items()]

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


class List(Kind, Generic[T]):
    """A list for each key: `state=List(Event, length_max=100)`. It grows at its end and shrinks
    at its front.

    With `length_max`, appending to a full list drops its first elements. With `ttl`, an element
    is gone that long after it was appended.
    """

    __slots__ = ("length_max", "ttl_ms", "typed")

    def __init__(
        self, of: TypeForm[T], *, length_max: int | None = None, ttl: Duration | None = None
    ) -> None:
        if length_max is not None and length_max < 1:
            raise ValueError(f"length_max is {length_max}; allowed: 1 or more")
        self.typed: Typed[T] = Typed(of)
        self.length_max = length_max
        self.ttl_ms = ttl_ms_of(ttl)

    def __repr__(self) -> str:
        return f"List({self.typed!r})"

    @property
    def context_type(self) -> type[List[T]]:
        """See `Kind.context_type`."""
        return List[self.typed.type]  # type: ignore[name-defined]

    def cell(self, rows: Iterable[StoredRow], clock: StateClock) -> ListState[T]:
        """See `StateKind.cell`. Elements are decoded, and checked, when they are read."""
        return ListState(self, rows, clock)

    def plain(self, cell: ListState[T]) -> list[T]:
        """Return what the cell holds as a list."""
        return list(cell)


class ListState(Generic[T]):
    """`ctx.state` of a function with `state=List(T)`. Elements come out as copies."""

    # The elements have consecutive positions from `_first`. Only the end grows and only the front
    # shrinks, so two numbers tell what differs from the store, and what a handler changed.
    # `undo` is [first, end] as they were, followed by what was since removed from between them.
    __slots__ = (
        "_clock",
        "_elements",
        "_first",
        "_kind",
        "_size_bytes",
        "_stored_end",
        "_stored_first",
        "undo",
    )

    def __init__(self, kind: List[T], rows: Iterable[StoredRow], clock: StateClock) -> None:
        self.undo: Any = NO_UNDO
        self._kind = kind
        self._clock = clock
        self._size_bytes = 0
        self._elements: deque[tuple[bytes, int | None]] = deque()
        self._first = self._stored_first = self._stored_end = 0
        stored = sorted(rows)
        if stored:
            self._load(stored)

    def append(self, element: T) -> None:
        """Add an element at the end."""
        kind = self._kind
        data = kind.typed.encode(element)
        if kind.ttl_ms is not None or kind.length_max is not None:
            self._extend([data])
            return
        size_bytes = self._size_bytes + _element_bytes(data)
        if size_bytes > self._clock.bytes_max:
            raise refuse_growth(size_bytes, self._clock)
        self._remember()
        self._elements.append((data, None))
        self._size_bytes = size_bytes

    def extend(self, elements: Iterable[T]) -> None:
        """Add elements at the end: all of them, or none if one is refused."""
        encode = self._kind.typed.encode
        added = [encode(element) for element in elements]
        if added:
            self._extend(added)

    def pop_first(self) -> T:
        """Remove the first element and return it; `IndexError` if the list is empty."""
        self._expire()
        if not self._elements:
            raise IndexError("pop_first from an empty list state")
        element = self._kind.typed.decode(self._elements[0][0])
        self._remember()
        self._remove_first()
        return element

    def clear(self) -> None:
        """Remove all elements."""
        self._expire()
        if self._elements:
            self._remember()
            while self._elements:
                self._remove_first()

    def __len__(self) -> int:
        self._expire()
        return len(self._elements)

    def __iter__(self) -> Iterator[T]:
        return iter(self[:])

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        self._expire()
        decode = self._kind.typed.decode
        if isinstance(index, slice):
            places = range(len(self._elements))[index]
            if places.step < 0:
                return self[places[-1] : places[0] + 1 : -places.step][::-1] if places else []
            found = islice(self._elements, places.start, places.stop, places.step)
            return [decode(data) for data, _ in found]
        return decode(self._elements[index][0])

    def rollback(self) -> None:
        """See `Cell.rollback`."""
        if not self.undo:
            return
        first, end, *removed = self.undo
        self.undo = NO_UNDO
        while self._elements and self._first + len(self._elements) > end:
            self._size_bytes -= _element_bytes(self._elements.pop()[0])
        self._elements.extendleft(reversed(removed))
        self._size_bytes += sum(_element_bytes(data) for data, _ in removed)
        self._first = first

    def drain(self) -> list[ChangedRow]:
        """See `Cell.drain`."""
        self._expire()
        if not self.undo:
            self.undo = NO_UNDO
        first, end = self._first, self._first + len(self._elements)
        changed: list[ChangedRow] = [
            (_subkey(position), None, None)
            for position in range(self._stored_first, min(first, self._stored_end))
        ]
        new_first = max(first, self._stored_end)
        changed.extend(
            (_subkey(position), data, expires_ms)
            for position, (data, expires_ms) in enumerate(
                islice(self._elements, new_first - first, None), new_first
            )
        )
        self._stored_first, self._stored_end = first, end
        return changed

    def rows(self) -> list[StoredRow]:
        """See `Cell.rows`."""
        self._expire()
        return [
            (_subkey(position), data, expires_ms)
            for position, (data, expires_ms) in enumerate(self._elements, self._first)
        ]

    @property
    def size_bytes(self) -> int:
        """See `Cell.size_bytes`."""
        return self._size_bytes

    @property
    def is_empty(self) -> bool:
        """See `Cell.is_empty`."""
        return not len(self)

    def _extend(self, added: list[bytes]) -> None:
        self._expire()
        dropped, length_max = 0, self._kind.length_max
        if length_max is not None:
            del added[:-length_max]
            dropped = max(0, len(self._elements) + len(added) - length_max)
        size_bytes = self._size_bytes + sum(map(_element_bytes, added))
        size_bytes -= sum(_element_bytes(data) for data, _ in islice(self._elements, dropped))
        if self._size_bytes < size_bytes > self._clock.bytes_max:
            raise refuse_growth(size_bytes, self._clock)
        self._remember()
        for _ in range(dropped):
            self._remove_first()
        ttl_ms = self._kind.ttl_ms
        expires_ms = None if ttl_ms is None else self._clock.moment_ms() + ttl_ms
        self._elements.extend((data, expires_ms) for data in added)
        self._size_bytes = size_bytes

    def _load(self, stored: list[StoredRow]) -> None:
        if any(len(subkey) != _POSITION_BYTES for subkey, _, _ in stored):
            raise StateTypeError("the stored state was not written by a List")
        self._stored_first = int.from_bytes(stored[0][0], "big")
        self._stored_end = position = int.from_bytes(stored[-1][0], "big") + 1
        # From the end to the front. No element outlives a later one, so that expired ones are
        # always a prefix; where the store has dropped an expired row, all before it are over too.
        expires_ms: int | None = None
        for subkey, data, stored_expires_ms in reversed(stored):
            position -= 1
            own_ms = loaded_expiry(stored_expires_ms, self._kind.ttl_ms, self._clock)
            if int.from_bytes(subkey, "big") != position:
                if own_ms is None:
                    raise StateTypeError(f"the stored list has no element at {position}")
                position += 1
                break
            if own_ms is not None:
                expires_ms = own_ms if expires_ms is None else min(own_ms, expires_ms)
            self._elements.appendleft((data, expires_ms))
            self._size_bytes += _element_bytes(data)
        self._first = position
        self._expire()

    def _expire(self) -> None:
        elements = self._elements
        while elements:
            expires_ms = elements[0][1]
            if expires_ms is None or expires_ms > self._clock.now_ms:
                break
            self._remove_first()

    def _remember(self) -> None:
        if not self.undo:
            self.undo = [self._first, self._first + len(self._elements)]

    def _remove_first(self) -> None:
        element = self._elements.popleft()
        if self.undo and self._first < self.undo[1]:
            self.undo.append(element)
        self._first += 1
        self._size_bytes -= _element_bytes(element[0])


def _subkey(position: int) -> bytes:
    return position.to_bytes(_POSITION_BYTES, "big")


def _element_bytes(data: bytes) -> int:
    return len(data) + _POSITION_BYTES + ROW_OVERHEAD_BYTES
