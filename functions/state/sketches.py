"""Summaries of many values in little room, mergeable, with errors that are stated and bounded.

Stored form: one row, a msgpack array whose first element is the format's version (1). A row with
another version is refused, so that a later format can tell.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
import typing_extensions

from sublet.functions.codec import type_name
from sublet.functions.errors import StateTypeError
from sublet.functions.state.cell import (
    NO_UNDO,
    WHOLE,
    ChangedRow,
    StateClock,
    StoredRow,
    refuse_growth,
)
from sublet.functions.state.kind import Kind
from sublet.functions.state.mergeable import Number, check_64_bits, plain_row
from sublet.functions.state.typed import Typed

if TYPE_CHECKING:
    from typing_extensions import TypeForm

ItemT = typing_extensions.TypeVar("ItemT", default=str)
K = TypeVar("K")

_VERSION = 1
_COUNTER_BYTES = 24
"""Counted for each counter beside the bytes of its item."""


class UndoableCounters(Generic[K]):
    """Counters with a way back, and a record of whether they changed since they were stored.

    `undo` is [counters as they were before the first change, `changed` as it was], extended by
    whatever else the owner wants restored.
    """

    __slots__ = ("changed", "counts", "undo")

    def __init__(self, counts: dict[K, int]) -> None:
        self.counts = counts
        self.changed = False
        self.undo: Any = NO_UNDO

    def put(self, item: K, count: int | None) -> None:
        """Set a counter, or remove it."""
        self.touch()
        before: dict[K, int | None] = self.undo[0]
        if item not in before:
            before[item] = self.counts.get(item)
        if count is None:
            self.counts.pop(item, None)
        else:
            self.counts[item] = count

    def touch(self, *owned: Any) -> None:
        """Record that a change begins, with the owner's values as they are now."""
        if not self.undo:
            self.undo = [{}, self.changed, *owned]
            self.changed = True

    def rollback(self) -> list[Any]:
        """Restore the counters; return the owner's values."""
        if not self.undo:
            return []
        before: dict[K, int | None] = self.undo[0]
        self.changed = self.undo[1]
        owned: list[Any] = self.undo[2:]
        for item, count in before.items():
            if count is None:
                self.counts.pop(item, None)
            else:
                self.counts[item] = count
        self.undo = NO_UNDO
        return owned

    def settle(self) -> bool:
        """Forget the way back; tell whether there is something to be stored."""
        if not self.undo:
            self.undo = NO_UNDO
        changed, self.changed = self.changed, False
        return changed


class TopKPartial(msgspec.Struct, frozen=True, array_like=True):
    """Counts by encoded item. The true weight of any item is within `error` above its count."""

    counts: dict[bytes, int]
    error: int = 0


class _StoredTopK(msgspec.Struct, array_like=True):
    version: int
    counts: dict[bytes, int]
    error: int


class TopK(Kind, Generic[ItemT]):
    """The heaviest items of a stream: `state=TopK(10)`, `state=TopK(10, capacity=1000, of=int)`.

    Keeps `capacity` counters (Misra and Gries). While there were no more different items than
    that, counts are exact. Beyond it, a count may be too low, never too high, and by at most
    `ctx.state.error`, which is at most the total weight / (capacity + 1): so every item heavier
    than that is among the counters. The bound holds after any merging; the counts themselves may
    then depend on the order of merging. An item that finds all counters taken can cost a look at
    each of them.
    """

    __slots__ = ("capacity", "k", "typed")

    says_all = False
    partial_type = TopKPartial

    def __init__(self, k: int, capacity: int | None = None, *, of: TypeForm[ItemT] = str) -> None:  # type: ignore[assignment]  # its default
        if capacity is None:
            capacity = max(100, 10 * k)
        if not 1 <= k <= capacity:
            raise ValueError(f"k is {k}; allowed: 1..{capacity} (capacity)")
        self.k = k
        self.capacity = capacity
        self.typed: Typed[ItemT] = Typed(of)
        if not self.typed.immutable:
            raise TypeError(f"TopK needs an immutable type of items, not {self.typed!r}")

    def __repr__(self) -> str:
        return f"TopK({self.k}, capacity={self.capacity}, of={self.typed!r})"

    @property
    def context_type(self) -> type[TopK[ItemT]]:
        """See `Kind.context_type`."""
        return TopK[self.typed.type]  # type: ignore[name-defined]

    def cell(self, rows: Iterable[StoredRow], clock: StateClock) -> TopKState[ItemT]:
        """See `StateKind.cell`."""
        partial = self.zero()
        data = plain_row(rows)
        if data is not None:
            stored = _decode_versioned(data, _StoredTopK, "TopK")
            partial = self._cut(TopKPartial(stored.counts, stored.error))
        return TopKState(self, partial, clock)

    def plain(self, cell: TopKState[ItemT]) -> list[tuple[ItemT, int]]:
        """Return the heaviest items with their counts."""
        return cell.top()

    def zero(self) -> TopKPartial:
        """Return the summary of nothing."""
        return TopKPartial({})

    def merge(self, one: TopKPartial, other: TopKPartial) -> TopKPartial:
        """Return the summary of both streams; errors add up and stay within the bound."""
        return self._cut(TopKPartial(_added(one.counts, other.counts), one.error + other.error))

    def partial_of(self, cell: TopKState[ItemT]) -> TopKPartial:
        """See `MergeableKind.partial_of`."""
        return cell.partial()

    def absorb(self, cell: TopKState[ItemT], partial: TopKPartial) -> None:
        """See `MergeableKind.absorb`."""
        if partial.counts or partial.error:
            cell.replace(self.merge(cell.partial(), partial))

    def _cut(self, partial: TopKPartial) -> TopKPartial:
        """Bring a summary down to the capacity, by what the first one too many weighs."""
        counts = partial.counts
        if len(counts) <= self.capacity:
            return partial
        excess = sorted(counts.values(), reverse=True)[self.capacity]
        kept = {item: count - excess for item, count in counts.items() if count > excess}
        return TopKPartial(kept, partial.error + excess)


class TopKState(Generic[ItemT]):
    """`ctx.state` of a function with `state=TopK(k)`."""

    # Counters hold the count plus `_error`: so taking the same from all of them, which is what
    # happens when they are all taken, changes one number.
    __slots__ = ("_clock", "_counters", "_error", "_floor", "_kind", "_size_bytes")

    def __init__(self, kind: TopK[ItemT], partial: TopKPartial, clock: StateClock) -> None:
        self._kind = kind
        self._clock = clock
        self._error = error = partial.error
        self._floor = error
        """While all counters are taken, none is below it; with room again, it is the error."""
        self._counters: UndoableCounters[bytes] = UndoableCounters(
            {item: count + error for item, count in partial.counts.items()}
        )
        self._size_bytes = _counters_bytes(self._counters.counts)

    @property
    def undo(self) -> Any:
        """See `Cell.undo`."""
        return self._counters.undo

    def add(self, item: ItemT, weight: int = 1) -> None:
        """Count an item; `weight` is 1 or more."""
        if type(weight) is not int or weight < 1:
            raise StateTypeError(f"weight is {weight!r:.40}; allowed: an int, 1 or more")
        subkey = self._kind.typed.encode_key(item)
        count = self._counters.counts.get(subkey)
        check_64_bits((self._error if count is None else count) + weight)
        if count is not None:
            self._touch()
            self._counters.put(subkey, count + weight)
            return
        size_bytes = self._size_bytes + len(subkey) + _COUNTER_BYTES
        if size_bytes > self._clock.bytes_max:
            raise refuse_growth(size_bytes, self._clock)
        self._touch()
        if len(self._counters.counts) < self._kind.capacity:
            self._insert(subkey, weight)
        else:
            self._displace(subkey, weight)

    def top(self) -> list[tuple[ItemT, int]]:
        """Return the k heaviest items with their counts, the heaviest first."""
        decode, error = self._kind.typed.decode, self._error
        ranked = sorted(self._counters.counts.items(), key=lambda each: (-each[1], each[0]))
        return [(decode(item), count - error) for item, count in ranked[: self._kind.k]]

    @property
    def error(self) -> int:
        """By how much a count may be too low at most; 0 while all counts are exact."""
        return self._error

    def partial(self) -> TopKPartial:
        """Return the summary as a plain value."""
        error = self._error
        counts = {item: count - error for item, count in self._counters.counts.items()}
        return TopKPartial(counts, error)

    def replace(self, partial: TopKPartial) -> None:
        """Put another summary in place of this one."""
        size_bytes = _counters_bytes(partial.counts)
        if self._size_bytes < size_bytes > self._clock.bytes_max:
            raise refuse_growth(size_bytes, self._clock)
        check_64_bits(partial.error + max(partial.counts.values(), default=0))
        self._touch()
        for item in [item for item in self._counters.counts if item not in partial.counts]:
            self._counters.put(item, None)
        for item, count in partial.counts.items():
            self._counters.put(item, count + partial.error)
        self._error = self._floor = partial.error
        self._size_bytes = size_bytes

    def rollback(self) -> None:
        """See `Cell.rollback`."""
        if owned := self._counters.rollback():
            self._error, self._size_bytes = owned
            self._floor = self._error

    def drain(self) -> list[ChangedRow]:
        """See `Cell.drain`."""
        return [(WHOLE, self._encoded(), None)] if self._counters.settle() else []

    def rows(self) -> list[StoredRow]:
        """See `Cell.rows`."""
        return [] if self.is_empty else [(WHOLE, self._encoded(), None)]

    def _encoded(self) -> bytes:
        partial = self.partial()
        stored = _StoredTopK(_VERSION, partial.counts, partial.error)
        return msgspec.msgpack.encode(stored)

    @property
    def size_bytes(self) -> int:
        """See `Cell.size_bytes`."""
        return self._size_bytes

    @property
    def is_empty(self) -> bool:
        """See `Cell.is_empty`."""
        return not self._counters.counts and not self._error

    def _touch(self) -> None:
        self._counters.touch(self._error, self._size_bytes)

    def _insert(self, subkey: bytes, weight: int) -> None:
        self._counters.put(subkey, self._error + weight)
        self._size_bytes += len(subkey) + _COUNTER_BYTES

    def _displace(self, subkey: bytes, weight: int) -> None:
        """Take the same from the new item and from all counters, until one of them is used up."""
        if self._error + weight >= self._floor:
            self._floor = min(self._counters.counts.values())
        taken = min(weight, self._floor - self._error)
        self._error += taken
        if self._error == self._floor:
            empty = [item for item, count in self._counters.counts.items() if count == self._error]
            for item in empty:
                self._counters.put(item, None)
                self._size_bytes -= len(item) + _COUNTER_BYTES
        if weight > taken:
            self._insert(subkey, weight - taken)


class _StoredQuantiles(msgspec.Struct, array_like=True):
    version: int
    relative_error: float
    bins: dict[int, int]


# Added to a bin's number, which may be negative, so that the sign is free to be the value's:
# bins in the order of their keys are then in the order of their values, and 0 is zero.
_ORIGIN = 2**20
# Below the smaller one, the numbers of bins could reach the origin.
_RELATIVE_ERRORS = (0.0005, 0.5)


class Quantiles(Kind):
    """A sketch of a distribution: `state=Quantiles()`, `state=Quantiles(relative_error=0.001)`.

    Counts values in bins whose bounds grow geometrically (as DDSketch does), so that any quantile
    is answered with a value within `relative_error` of one that was added, at that rank. If more
    than `bins_max` bins are needed (2,048 reach over 17 orders of magnitude at 1%), those nearest
    to zero are counted as zero. The order of adding and merging never matters.
    """

    __slots__ = ("_gamma_log", "_middle_log", "bins_max", "relative_error")

    partial_type = dict[int, int]

    def __init__(self, relative_error: float = 0.01, *, bins_max: int = 2048) -> None:
        low, high = _RELATIVE_ERRORS
        if not low <= relative_error <= high:
            raise ValueError(f"relative_error is {relative_error}; allowed: {low} .. {high}")
        if bins_max < 1:
            raise ValueError(f"bins_max is {bins_max}; allowed: 1 or more")
        self.relative_error = relative_error
        self.bins_max = bins_max
        gamma = (1 + relative_error) / (1 - relative_error)
        self._gamma_log = math.log(gamma)
        # A bin reaches from gamma**(i-1) to gamma**i; this point is equally wrong for both.
        self._middle_log = math.log(2 / (1 + gamma))

    def __repr__(self) -> str:
        return f"Quantiles({self.relative_error})"

    def cell(self, rows: Iterable[StoredRow], clock: StateClock) -> QuantilesState:
        """See `StateKind.cell`."""
        data = plain_row(rows)
        if data is None:
            return QuantilesState(self, {}, clock)
        stored = _decode_versioned(data, _StoredQuantiles, "Quantiles")
        if stored.relative_error != self.relative_error:
            raise StateTypeError(
                f"the stored sketch has relative_error {stored.relative_error}, the declared one "
                f"{self.relative_error}: its bins cannot be converted"
            )
        return QuantilesState(self, self._cut(stored.bins), clock)

    def plain(self, cell: QuantilesState) -> dict[str, float | None]:
        """Return the number of values, and some quantiles."""
        shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
        return {"count": cell.count, **{name: cell.quantile(q) for name, q in shares.items()}}

    def zero(self) -> dict[int, int]:
        """Return no bins."""
        return {}

    def merge(self, one: dict[int, int], other: dict[int, int]) -> dict[int, int]:
        """Return the counts of both, bin by bin."""
        return self._cut(_added(one, other))

    def partial_of(self, cell: QuantilesState) -> dict[int, int]:
        """See `MergeableKind.partial_of`."""
        return cell.bins()

    def absorb(self, cell: QuantilesState, partial: dict[int, int]) -> None:
        """See `MergeableKind.absorb`."""
        for key, count in partial.items():
            cell.add_to_bin(key, count)

    def bin_of(self, value: float) -> int:
        """Return the key of the bin that a finite value falls into."""
        if value == 0:
            return 0
        key = _ORIGIN + math.ceil(math.log(abs(value)) / self._gamma_log)
        return key if value > 0 else -key

    def value_of(self, key: int) -> float:
        """Return the value that stands for all in a bin."""
        if key == 0:
            return 0.0
        try:
            size = math.exp((abs(key) - _ORIGIN) * self._gamma_log + self._middle_log)
        except OverflowError:
            size = sys.float_info.max
        return size if key > 0 else -size

    def _cut(self, bins: dict[int, int]) -> dict[int, int]:
        excess = len(bins) - (0 in bins) - self.bins_max
        if excess <= 0:
            return bins
        kept = dict(bins)
        for key in sorted((key for key in bins if key), key=_distance)[:excess]:
            kept[0] = kept.get(0, 0) + kept.pop(key)
        return kept


class QuantilesState:
    """`ctx.state` of a function with `state=Quantiles()`."""

    __slots__ = ("_clock", "_counters", "_kind")

    def __init__(self, kind: Quantiles, bins: dict[int, int], clock: StateClock) -> None:
        self._kind = kind
        self._clock = clock
        self._counters: UndoableCounters[int] = UndoableCounters(bins)

    @property
    def undo(self) -> Any:
        """See `Cell.undo`."""
        return self._counters.undo

    def add(self, value: Number) -> None:
        """Count one finite number."""
        if type(value) is not int and type(value) is not float:
            raise StateTypeError(f"cannot add {type_name(type(value))}; allowed: int, float")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise StateTypeError(f"cannot add {value!r:.40}; allowed: finite numbers")
        self.add_to_bin(self._kind.bin_of(number), 1)

    def add_to_bin(self, key: int, count: int) -> None:
        """Count `count` values of one bin."""
        tally = self._counters
        before = tally.counts.get(key)
        if before is not None:
            check_64_bits(before + count)
            tally.put(key, before + count)
            return
        size_bytes = self.size_bytes + _COUNTER_BYTES
        if size_bytes > self._clock.bytes_max:
            raise refuse_growth(size_bytes, self._clock)
        tally.put(key, count)
        if len(tally.counts) - (0 in tally.counts) > self._kind.bins_max:
            nearest = min((each for each in tally.counts if each), key=_distance)
            moved = tally.counts[nearest]
            tally.put(nearest, None)
            tally.put(0, tally.counts.get(0, 0) + moved)

    def quantile(self, q: float) -> float | None:
        """Return the value below which a share `q` (0..1) of all lies; None if there are none.

        That is within the relative error of the value at place floor(q * (count - 1)) in order.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"q is {q}; allowed: 0..1")
        bins = self._counters.counts
        rank = math.floor(q * (self.count - 1))
        for key in sorted(bins):
            rank -= bins[key]
            if rank < 0:
                return self._kind.value_of(key)
        return None

    @property
    def count(self) -> int:
        """How many values were added."""
        return sum(self._counters.counts.values())

    def bins(self) -> dict[int, int]:
        """Return the sketch as a plain value."""
        return dict(self._counters.counts)

    def rollback(self) -> None:
        """See `Cell.rollback`."""
        self._counters.rollback()

    def drain(self) -> list[ChangedRow]:
        """See `Cell.drain`."""
        return [(WHOLE, self._encoded(), None)] if self._counters.settle() else []

    def rows(self) -> list[StoredRow]:
        """See `Cell.rows`."""
        return [] if self.is_empty else [(WHOLE, self._encoded(), None)]

    def _encoded(self) -> bytes:
        stored = _StoredQuantiles(_VERSION, self._kind.relative_error, self._counters.counts)
        return msgspec.msgpack.encode(stored)

    @property
    def size_bytes(self) -> int:
        """See `Cell.size_bytes`."""
        return len(self._counters.counts) * _COUNTER_BYTES

    @property
    def is_empty(self) -> bool:
        """See `Cell.is_empty`."""
        return not self._counters.counts


def _distance(key: int) -> tuple[int, int]:
    return abs(key), key


def _added(one: Mapping[K, int], other: Mapping[K, int]) -> dict[K, int]:
    total = dict(one)
    for item, count in other.items():
        total[item] = total.get(item, 0) + count
    return total


def _counters_bytes(counts: Mapping[bytes, int]) -> int:
    return sum(map(len, counts)) + len(counts) * _COUNTER_BYTES


StoredT = TypeVar("StoredT", _StoredTopK, _StoredQuantiles)


def _decode_versioned(data: bytes, of: type[StoredT], kind: str) -> StoredT:
    try:
        stored = msgspec.msgpack.decode(data, type=of)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise StateTypeError(f"the stored state is not a {kind}: {error}") from error
    if stored.version != _VERSION:
        raise StateTypeError(
            f"the stored {kind} has format {stored.version}; this version reads {_VERSION}"
        )
    return stored
