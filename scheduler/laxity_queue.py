"""Dirigo's work queue: would one more message be late here, or make others late?

Entries stand in the order of their deadlines, and all run one after another. With `P` the costs
of an entry and of all before it, the entry is finished at `now + P`; its laxity is
`deadline - now - P`. Only `now` changes with time, so entries are kept by their slack,
`deadline - P`, which is compared with `now` when somebody asks: passing time updates nothing.

Entries are the nodes of a treap, a binary tree that random priorities keep flat. Each knows, of
all below it and itself, the sum of the costs and the smallest slack, counted as if nothing stood
before them: so what is put in or taken out changes the nodes above it and no others. (A tree of
wide nodes, whose columns are summed in C, was tried and took about twice as long at every size.)
"""

from __future__ import annotations

from math import inf, isfinite
from typing import Generic, TypeVar

T = TypeVar("T")


class Entry(Generic[T]):
    """What waits; the handle by which it can be removed."""

    __slots__ = (
        "_all_cost_ms",
        "_all_slack_ms",
        "_in_time_ms",
        "_key",
        "_late_ms",
        "_left",
        "_priority",
        "_right",
        "cost_ms",
        "deadline_ms",
        "item",
    )

    def __init__(
        self, deadline_ms: float, cost_ms: float, item: T, number: int, priority: int
    ) -> None:
        self.deadline_ms = deadline_ms
        self.cost_ms = cost_ms
        self.item = item
        self._key = (deadline_ms, number)
        self._priority = priority
        self._left: Entry[T] | None = None
        self._right: Entry[T] | None = None
        # Of this entry and all below it, from the first of them on.
        self._all_cost_ms = cost_ms
        self._all_slack_ms = deadline_ms - cost_ms
        # Who was late when that was asked last: no slack of all these lies between the two.
        self._late_ms = -inf
        self._in_time_ms = -inf

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
    what is left of it. It may be any number in any call. Which entries are late is worked out anew
    only where it has changed since the last question, so each change is paid for once.

    The queue has no bound of its own: whoever puts something in asks first.
    """

    def __init__(self) -> None:
        self._root: Entry[T] | None = None
        self._count = 0
        self._number = 0
        self._priority = 1

    def __len__(self) -> int:
        return self._count

    @property
    def cost_ms(self) -> float:
        """What all entries cost together."""
        return self._root._all_cost_ms if self._root is not None else 0.0

    def cost_ahead_ms(self, deadline_ms: float) -> float:
        """Return the costs of what would run before a new entry with this deadline."""
        node, ahead_ms = self._root, 0.0
        while node is not None:
            if node.deadline_ms <= deadline_ms:
                ahead_ms += node.cost_ms
                if node._left is not None:
                    ahead_ms += node._left._all_cost_ms
                node = node._right
            else:
                node = node._left
        return ahead_ms

    def laxity_ms(self, now_ms: float) -> float:
        """Return the smallest laxity of all entries; inf if none waits."""
        return self._root._all_slack_ms - now_ms if self._root is not None else inf

    def fits(self, deadline_ms: float, cost_ms: float, now_ms: float) -> bool:
        """Tell whether a new entry would be in time, and all that are in time would stay so."""
        node, start_ms = self._root, now_ms
        # Entries that would stand behind it, with when all below them start.
        later: list[tuple[Entry[T], float]] = []
        while node is not None:
            if node.deadline_ms <= deadline_ms:
                start_ms += node.cost_ms
                if node._left is not None:
                    start_ms += node._left._all_cost_ms
                node = node._right
            else:
                later.append((node, start_ms))
                node = node._left
        if start_ms + cost_ms >= deadline_ms:
            return False
        for node, start_ms in later:
            if node._left is not None:
                start_ms += node._left._all_cost_ms
            start_ms += node.cost_ms
            if start_ms < node.deadline_ms <= start_ms + cost_ms:
                return False
            right = node._right
            if (
                right is not None
                and right._all_slack_ms <= start_ms + cost_ms
                and _in_time_ms(right, start_ms) <= start_ms + cost_ms
            ):
                return False
        return True

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
        # Priorities need only be unlike anything in the order of arrival: the same in every run.
        priority = (self._priority * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
        self._priority = priority
        entry = Entry(deadline_ms, cost_ms, item, self._number, priority)
        key = entry._key
        way: list[Entry[T]] = []
        node = self._root
        while node is not None and node._priority >= priority:
            way.append(node)
            node = node._right if key > node._key else node._left
        if node is not None:
            entry._left, entry._right = _split(node, key)
            _sum_up(entry)
        self._hang(way, key, entry)
        return entry

    def remove(self, entry: Entry[T]) -> None:
        """Take an entry out. Raises KeyError if it is not in the queue (any more)."""
        way: list[Entry[T]] = []
        key, node = entry._key, self._root
        while node is not entry:
            if node is None:
                raise KeyError(entry)
            way.append(node)
            node = node._right if key > node._key else node._left
        self._count -= 1
        self._hang(way, key, _join(entry._left, entry._right))
        entry._left = entry._right = None

    def first(self) -> Entry[T] | None:
        """Return whose turn it is."""
        node = self._root
        while node is not None and node._left is not None:
            node = node._left
        return node

    def pop(self) -> Entry[T] | None:
        """Take out whose turn it is; None if nobody waits."""
        entry = self.first()
        if entry is not None:
            self.remove(entry)
        return entry

    def violators(self, now_ms: float, limit: int | None = None) -> list[Entry[T]]:
        """Return the entries that would have to go so that all others are in time; of them only
        so many, if there is a limit.

        In the queue's order, each entry stays if what stays before it leaves it in time. So of two
        that cannot both be in time it is the one with the later deadline that goes, and an
        entry that is late only because of one that goes stays.

        For k of them in O(k log n); O(1) if there is none.
        """
        violators: list[Entry[T]] = []
        _sort_out(self._root, now_ms, violators, self._count if limit is None else limit)
        return violators

    def entries(self) -> list[Entry[T]]:
        """Return all that waits, in order."""
        found: list[Entry[T]] = []
        above: list[Entry[T]] = []
        node = self._root
        while above or node is not None:
            if node is not None:
                above.append(node)
                node = node._left
            else:
                node = above.pop()
                found.append(node)
                node = node._right
        return found

    def _hang(self, way: list[Entry[T]], key: tuple[float, int], node: Entry[T] | None) -> None:
        """Put what stands at the end of the way, and sum up all the way back."""
        if not way:
            self._root = node
            return
        parent = way[-1]
        if key > parent._key:
            parent._right = node
        else:
            parent._left = node
        for parent in reversed(way):
            _sum_up(parent)


def _sum_up(node: Entry[T]) -> None:
    # From the children each time: sums that are only added to and taken from drift.
    left, right = node._left, node._right
    cost_ms, slack_ms = node.cost_ms, inf
    if left is not None:
        cost_ms += left._all_cost_ms
        slack_ms = left._all_slack_ms
    own_ms = node.deadline_ms - cost_ms
    if own_ms < slack_ms:
        slack_ms = own_ms
    if right is not None:
        right_ms = right._all_slack_ms - cost_ms
        if right_ms < slack_ms:
            slack_ms = right_ms
        cost_ms += right._all_cost_ms
    node._all_cost_ms = cost_ms
    node._all_slack_ms = slack_ms
    node._in_time_ms = -inf


def _in_time_ms(node: Entry[T], start_ms: float) -> float:
    """Return the smallest slack above `start_ms`: of those that are in time, if it starts then."""
    if node._late_ms <= start_ms < node._in_time_ms:
        return node._in_time_ms
    if node._all_slack_ms > start_ms:
        node._late_ms, node._in_time_ms = -inf, node._all_slack_ms
        return node._in_time_ms
    late_ms, in_time_ms, ahead_ms = -inf, inf, node.cost_ms
    left, right = node._left, node._right
    if left is not None:
        in_time_ms = _in_time_ms(left, start_ms)
        late_ms = left._late_ms
        ahead_ms += left._all_cost_ms
    own_ms = node.deadline_ms - ahead_ms
    if own_ms > start_ms:
        in_time_ms = min(in_time_ms, own_ms)
    else:
        late_ms = max(late_ms, own_ms)
    if right is not None:
        in_time_ms = min(in_time_ms, _in_time_ms(right, start_ms + ahead_ms) - ahead_ms)
        late_ms = max(late_ms, right._late_ms - ahead_ms)
    node._late_ms, node._in_time_ms = late_ms, in_time_ms
    return in_time_ms


def _sort_out(
    node: Entry[T] | None, start_ms: float, violators: list[Entry[T]], limit: int
) -> float:
    """Add the violators, up to the limit; return when what stays is finished."""
    if node is None or len(violators) >= limit:
        return start_ms
    if node._all_slack_ms > start_ms:
        return start_ms + node._all_cost_ms
    start_ms = _sort_out(node._left, start_ms, violators, limit)
    if len(violators) >= limit:
        return start_ms
    if start_ms + node.cost_ms < node.deadline_ms:
        start_ms += node.cost_ms
    else:
        violators.append(node)
    return _sort_out(node._right, start_ms, violators, limit)


def _split(
    node: Entry[T] | None, key: tuple[float, int]
) -> tuple[Entry[T] | None, Entry[T] | None]:
    """Return what comes before the key, and what comes after it."""
    if node is None:
        return None, None
    if key > node._key:
        node._right, later = _split(node._right, key)
        _sum_up(node)
        return node, later
    before, node._left = _split(node._left, key)
    _sum_up(node)
    return before, node


def _join(before: Entry[T] | None, later: Entry[T] | None) -> Entry[T] | None:
    if before is None:
        return later
    if later is None:
        return before
    if before._priority > later._priority:
        before._right = _join(before._right, later)
        _sum_up(before)
        return before
    later._left = _join(before, later._left)
    _sum_up(later)
    return later
