"""Dirigo's work queue: would one more message be late here, or make others late?

Entries stand in the order of their deadlines, and all run one after another. With `P` the costs
of an entry and of all before it, the entry is finished at `now + P`; its laxity is
`deadline - now - P`. Only `now` changes with time, so entries are kept by their slack,
`deadline - P`, which is compared with `now` when somebody asks: passing time updates nothing.

Entries are the leaves of a tree with many children to a node, each node with the sum of its costs
and the smallest slack, counted as if nothing stood before it. What is put in or taken out
changes the nodes above it and no others. Wide nodes, because in Python a list of 30 is summed or
searched in the time that two nodes are visited in: against a treap of single entries it was two
to four times as fast, and against one level of long lists it does not slow down when there are
10,000.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from math import inf, isfinite
from operator import sub
from typing import Generic, TypeVar

WIDTH_MAX = 32
"""Entries of a leaf, and children of a node; more are split."""
WIDTH_SMALL = WIDTH_MAX // 4
"""What has fewer is joined with a neighbour, if both together leave as much room again."""

T = TypeVar("T")
Key = tuple[float, float]
"""A deadline, and a number that puts those with the same one in the order of arrival."""


class Entry(Generic[T]):
    """What waits; the handle by which it can be removed."""

    __slots__ = ("cost_ms", "deadline_ms", "item", "number")

    def __init__(self, deadline_ms: float, cost_ms: float, item: T, number: int) -> None:
        self.deadline_ms = deadline_ms
        self.cost_ms = cost_ms
        self.item = item
        self.number = number

    def __repr__(self) -> str:
        return f"Entry({self.deadline_ms}, {self.cost_ms}, {self.item!r})"


class LaxityQueue(Generic[T]):
    """Earliest deadline first, among equals first come first; O(log n) throughout.

    In time is what is finished *before* its deadline. An entry counts as late when, by the costs
    of what now stands before it, it will not be: its laxity is not above 0.

    Late entries have nothing left to lose, so they forbid nothing: `fits` protects only those that
    are in time now. But they are still run, so their costs count for all behind them until they
    are popped or removed. Should enough be removed before a late entry, then it is in time again,
    and protected.

    `now_ms` is when the first entry can start: while something runs that was popped before, add
    what is left of it. It may be any number in any call; that it does not decrease is usual and
    makes it fast: which entries are late is worked out anew only where it has changed, so each
    change is paid for once.

    The queue has no bound of its own: whoever puts something in asks first.
    """

    def __init__(self) -> None:
        self._root: _Leaf[T] | _Inner[T] = _Leaf()
        self._count = 0
        self._number = 0

    def __len__(self) -> int:
        return self._count

    @property
    def cost_ms(self) -> float:
        """What all entries cost together."""
        return self._root.cost_ms

    def cost_ahead_ms(self, deadline_ms: float) -> float:
        """Return the costs of what would run before a new entry with this deadline."""
        key, ahead_ms, node = (deadline_ms, inf), 0.0, self._root
        while isinstance(node, _Inner):
            index = node.child_for(key)
            ahead_ms += sum(node.costs_ms[:index])
            node = node.children[index]
        return ahead_ms + sum(node.costs_ms[: bisect_right(node.keys, key)])

    def laxity_ms(self, now_ms: float) -> float:
        """Return the smallest laxity of all entries; negative if one is late, inf if none waits."""
        return self._root.slack_ms - now_ms

    def fits(self, deadline_ms: float, cost_ms: float, now_ms: float) -> bool:
        """Tell whether a new entry would be in time, and all that are in time would stay so."""
        key: Key = (deadline_ms, inf)
        left_ms = deadline_ms - now_ms - cost_ms
        # For each node on the way down: when its first entry starts, and which child we took.
        way: list[tuple[_Inner[T], int, float]] = []
        node, start_ms = self._root, now_ms
        while isinstance(node, _Inner):
            index = node.child_for(key)
            ahead_ms = sum(node.costs_ms[:index])
            left_ms -= ahead_ms
            if left_ms <= 0.0:
                return False
            start_ms += ahead_ms
            way.append((node, index, start_ms))
            node = node.children[index]
        position = bisect_right(node.keys, key)
        if left_ms <= sum(node.costs_ms[:position]):
            return False
        if node.makes_late(position, start_ms, cost_ms):
            return False
        return not any(
            inner.makes_late(index + 1, start_ms + inner.costs_ms[index], cost_ms)
            for inner, index, start_ms in way
        )

    def put(self, deadline_ms: float, cost_ms: float, item: T) -> Entry[T]:
        """Add an entry, whether or not it fits.

        Raises ValueError if the deadline is not finite or the cost is negative or not finite.
        """
        if not isfinite(deadline_ms):
            raise ValueError(f"deadline_ms is {deadline_ms}; allowed: finite numbers")
        if not (isfinite(cost_ms) and cost_ms >= 0.0):
            raise ValueError(f"cost_ms is {cost_ms}; allowed: 0 or more")
        self._number += 1
        self._count += 1
        entry = Entry(deadline_ms, cost_ms, item, self._number)
        right = self._root.put((deadline_ms, self._number), entry)
        if right is not None:
            self._root = _Inner([self._root, right])
        return entry

    def remove(self, entry: Entry[T]) -> None:
        """Take an entry out. Raises KeyError if it is not in the queue (any more)."""
        self._root.remove((entry.deadline_ms, entry.number), entry)
        self._shrink()

    def first(self) -> Entry[T] | None:
        """Return whose turn it is."""
        if not self._count:
            return None
        node = self._root
        while isinstance(node, _Inner):
            node = node.children[0]
        return node.entries[0]

    def pop(self) -> Entry[T] | None:
        """Take out whose turn it is; None if nobody waits."""
        entry = self.first()
        if entry is not None:
            self.remove(entry)
        return entry

    def violators(self, now_ms: float) -> list[Entry[T]]:
        """Return the late entries that would have to go so that all others are in time.

        In the queue's order, each entry stays if what stays before it leaves it in time. So of two
        that cannot both be in time it is the one with the later deadline that goes, and an
        entry that is late only because of one that goes stays.

        For k of them in O(k log n); O(1) if there is none.
        """
        going: list[Entry[T]] = []
        self._root.sort_out(now_ms, going)
        return going

    def entries(self) -> list[Entry[T]]:
        """Return all that waits, in order."""
        found: list[Entry[T]] = []
        self._root.collect(found)
        return found

    def _shrink(self) -> None:
        self._count -= 1
        root = self._root
        while isinstance(root, _Inner) and len(root.children) == 1:
            root = root.children[0]
        self._root = root if root.width else _Leaf()


class _Leaf(Generic[T]):
    """Entries in order, as columns."""

    __slots__ = ("_slacks_ms", "cost_ms", "costs_ms", "deadlines_ms", "entries", "keys", "slack_ms")

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.deadlines_ms: list[float] = []
        self.costs_ms: list[float] = []
        self.entries: list[Entry[T]] = []
        self.cost_ms = 0.0
        self.slack_ms = inf
        # Sorted, not in the order of entries; made when it is asked for.
        self._slacks_ms: list[float] | None = None

    @property
    def width(self) -> int:
        return len(self.keys)

    @property
    def last_key(self) -> Key:
        return self.keys[-1]

    def put(self, key: Key, entry: Entry[T]) -> _Leaf[T] | None:
        """Return a new right neighbour, if it became too much for one leaf."""
        index = bisect_right(self.keys, key)
        self.keys.insert(index, key)
        self.deadlines_ms.insert(index, entry.deadline_ms)
        self.costs_ms.insert(index, entry.cost_ms)
        self.entries.insert(index, entry)
        right = None
        if len(self.keys) > WIDTH_MAX:
            right = _Leaf[T]()
            split = _split_at(index)
            for name in ("keys", "deadlines_ms", "costs_ms", "entries"):
                column = getattr(self, name)
                setattr(right, name, column[split:])
                del column[split:]
            right._sum_up()
        self._sum_up()
        return right

    def remove(self, key: Key, entry: Entry[T]) -> None:
        index = bisect_left(self.keys, key)
        if index == len(self.keys) or self.entries[index] is not entry:
            raise KeyError(entry)
        del self.keys[index], self.deadlines_ms[index], self.costs_ms[index], self.entries[index]
        self._sum_up()

    def join(self, right: _Leaf[T]) -> None:
        self.keys += right.keys
        self.deadlines_ms += right.deadlines_ms
        self.costs_ms += right.costs_ms
        self.entries += right.entries
        self._sum_up()

    def makes_late(self, position: int, start_ms: float, cost_ms: float) -> bool:
        """Tell whether `cost_ms` more would make late what is in time, from this position on."""
        if self.slack_ms > start_ms + cost_ms:
            return False
        slacks_ms = map(sub, self.deadlines_ms, accumulate(self.costs_ms))
        return any(
            start_ms < slack_ms <= start_ms + cost_ms for slack_ms in list(slacks_ms)[position:]
        )

    def gap_ms(self, start_ms: float) -> tuple[float, float]:
        """Return the largest slack of a late entry and the smallest of one in time."""
        slacks_ms = self._slacks_ms
        if slacks_ms is None:
            slacks_ms = self._slacks_ms = sorted(
                map(sub, self.deadlines_ms, accumulate(self.costs_ms))
            )
        index = bisect_right(slacks_ms, start_ms)
        late_ms = slacks_ms[index - 1] if index else -inf
        return late_ms, slacks_ms[index] if index < len(slacks_ms) else inf

    def sort_out(self, start_ms: float, going: list[Entry[T]]) -> float:
        """Add the violators; return when what stays is finished."""
        if self.slack_ms > start_ms:
            return start_ms + self.cost_ms
        for entry in self.entries:
            if start_ms + entry.cost_ms < entry.deadline_ms:
                start_ms += entry.cost_ms
            else:
                going.append(entry)
        return start_ms

    def collect(self, found: list[Entry[T]]) -> None:
        found += self.entries

    def _sum_up(self) -> None:
        # Anew each time: sums that are only added to and taken from drift.
        sums_ms = list(accumulate(self.costs_ms))
        self.cost_ms = sums_ms[-1] if sums_ms else 0.0
        self.slack_ms = min(map(sub, self.deadlines_ms, sums_ms), default=inf)
        self._slacks_ms = None


class _Inner(Generic[T]):
    """Leaves or other nodes in order, and as columns what is to be known of each.

    Costs and slacks are counted from the child's first entry on, as if nothing stood before it.
    `lates_ms` and `in_times_ms` are a child's answer to who is late, as it was when last asked:
    no slack lies between the two, so it stands as long as `now` and the costs before do.
    """

    __slots__ = (
        "children",
        "cost_ms",
        "costs_ms",
        "in_times_ms",
        "lasts",
        "lates_ms",
        "slack_ms",
        "slacks_ms",
    )

    def __init__(self, children: list[_Leaf[T] | _Inner[T]]) -> None:
        self.cost_ms: float = 0.0
        self.slack_ms: float = inf
        self.children = children
        # Bounds, not necessarily there: a child's last entry may have been removed.
        self.lasts = [child.last_key for child in children]
        self.costs_ms = [child.cost_ms for child in children]
        self.slacks_ms = [child.slack_ms for child in children]
        self.lates_ms = [inf] * len(children)
        self.in_times_ms = [-inf] * len(children)
        self._sum_up()

    @property
    def width(self) -> int:
        return len(self.children)

    @property
    def last_key(self) -> Key:
        return self.lasts[-1]

    def child_for(self, key: Key) -> int:
        index = bisect_left(self.lasts, key)
        return index if index < len(self.lasts) else index - 1

    def put(self, key: Key, entry: Entry[T]) -> _Inner[T] | None:
        """Return a new right neighbour, if it became too much for one node."""
        index = self.child_for(key)
        child = self.children[index]
        if key > self.lasts[index]:
            self.lasts[index] = key
        beside = child.put(key, entry)
        self._read(index)
        if beside is not None:
            self._insert(index + 1, beside)
            self.lasts[index] = child.last_key
        right = None
        if len(self.children) > WIDTH_MAX:
            split = _split_at(index + 1)
            right = _Inner(self.children[split:])
            self._delete(slice(split, None))
        self._sum_up()
        return right

    def remove(self, key: Key, entry: Entry[T]) -> None:
        index = self.child_for(key)
        child = self.children[index]
        child.remove(key, entry)
        if not child.width:
            self._delete(index)
        else:
            self._read(index)
            if child.width < WIDTH_SMALL and len(self.children) > 1:
                self._join(max(index - 1, 0))
        self._sum_up()

    def join(self, right: _Inner[T]) -> None:
        self.children += right.children
        self.lasts += right.lasts
        self.costs_ms += right.costs_ms
        self.slacks_ms += right.slacks_ms
        self.lates_ms += right.lates_ms
        self.in_times_ms += right.in_times_ms
        self._sum_up()

    def makes_late(self, position: int, start_ms: float, cost_ms: float) -> bool:
        """Tell whether `cost_ms` more would make late what is in time, from this child on.

        The child starts at `start_ms`, without the new costs.
        """
        costs_ms = self.costs_ms[position:]
        starts_ms = list(accumulate(costs_ms, initial=start_ms))
        tightest_ms = min(map(sub, self.slacks_ms[position:], starts_ms), default=inf)
        if tightest_ms > cost_ms:
            return False
        for index in range(position, len(self.children)):
            start_ms = starts_ms[index - position]
            if self.slacks_ms[index] > start_ms + cost_ms:
                continue
            if self._in_time_ms(index, start_ms) <= start_ms + cost_ms:
                return True
        return False

    def gap_ms(self, start_ms: float) -> tuple[float, float]:
        """Return the largest slack of a late entry and the smallest of one in time."""
        late_ms, in_time_ms, ahead_ms = -inf, inf, 0.0
        for index, cost_ms in enumerate(self.costs_ms):
            in_time_ms = min(in_time_ms, self._in_time_ms(index, start_ms + ahead_ms) - ahead_ms)
            late_ms = max(late_ms, self.lates_ms[index] - ahead_ms)
            ahead_ms += cost_ms
        return late_ms, in_time_ms

    def sort_out(self, start_ms: float, going: list[Entry[T]]) -> float:
        """Add the violators; return when what stays is finished."""
        if self.slack_ms > start_ms:
            return start_ms + self.cost_ms
        for child in self.children:
            start_ms = child.sort_out(start_ms, going)
        return start_ms

    def collect(self, found: list[Entry[T]]) -> None:
        for child in self.children:
            child.collect(found)

    def _in_time_ms(self, index: int, start_ms: float) -> float:
        if not self.lates_ms[index] <= start_ms < self.in_times_ms[index]:
            self.lates_ms[index], self.in_times_ms[index] = self.children[index].gap_ms(start_ms)
        return self.in_times_ms[index]

    def _read(self, index: int) -> None:
        child = self.children[index]
        self.costs_ms[index] = child.cost_ms
        self.slacks_ms[index] = child.slack_ms
        self.lates_ms[index] = inf
        self.in_times_ms[index] = -inf

    def _insert(self, index: int, child: _Leaf[T] | _Inner[T]) -> None:
        self.children.insert(index, child)
        self.lasts.insert(index, max(child.last_key, self.lasts[index - 1]))
        self.costs_ms.insert(index, 0.0)
        self.slacks_ms.insert(index, inf)
        self.lates_ms.insert(index, inf)
        self.in_times_ms.insert(index, -inf)
        self._read(index)

    def _delete(self, index: int | slice) -> None:
        for name in ("children", "lasts", "costs_ms", "slacks_ms", "lates_ms", "in_times_ms"):
            del getattr(self, name)[index]

    def _join(self, index: int) -> None:
        """Make one of a child and its right neighbour, unless that would soon be split again."""
        child, right = self.children[index], self.children[index + 1]
        if child.width + right.width <= WIDTH_MAX - WIDTH_SMALL:
            # Children of a node are of one kind.
            child.join(right)  # type: ignore[arg-type]
            self.lasts[index] = self.lasts[index + 1]
            self._delete(index + 1)
            self._read(index)

    def _sum_up(self) -> None:
        starts_ms = list(accumulate(self.costs_ms, initial=0.0))
        self.cost_ms = starts_ms[-1]
        self.slack_ms = min(map(sub, self.slacks_ms, starts_ms), default=inf)


def _split_at(index: int) -> int:
    """Return where to split what became too wide by something new at this index.

    Later messages mostly have later deadlines: where all is added at the end, whoever is left
    behind there is left full.
    """
    return WIDTH_MAX if index == WIDTH_MAX else WIDTH_MAX // 2
