"""Which worker owns which partition.

Partitions are placed one after another, each on the worker with the fewest partitions of the same
function, then the fewest in all, of those workers that have the function. What is placed stays
where it is, unless its worker is gone or another has at least two less: of the function, or in all.

Where loads or weights are known, they count instead of numbers: each worker should have its share
of the load, and nothing moves for less than a tenth of a worker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import fsum

from sublet.functions.address import partition_name

GAIN_MIN = 0.1
"""Of a worker: a move has to make the fuller of two workers so much emptier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementHints:
    """What is known beyond counts."""

    pins: Mapping[str, str] = field(default_factory=dict)
    """Partition to the worker that is to have it; void where that worker cannot."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Worker to how much it gets, compared with others; 1 if not said."""
    loads: Mapping[str, float] = field(default_factory=dict)
    """Partition, or function for each of its others, to its load: 1 keeps a worker busy."""

    @property
    def by_load(self) -> bool:
        """Loads are known: they count, not numbers."""
        return bool(self.loads)

    def load(self, partition: str) -> float:
        load = self.loads.get(partition)
        if load is None:
            load = self.loads.get(partition.rpartition("/")[0], 0.0)
        return load

    def weight(self, worker: str) -> float:
        return self.weights.get(worker, 1.0)


def place(
    functions: Mapping[str, int],
    workers: Sequence[str],
    current: Mapping[str, str],
    *,
    rebalance: bool,
    able: Mapping[str, Collection[str]] | None = None,
    hints: PlacementHints | None = None,
) -> dict[str, str]:
    """Return the placement of all partitions of all functions on the given workers.

    `able` says which workers have a function; one that it does not name can be on all of them.
    Partitions of a function that no given worker has are not placed.

    With `rebalance`, partitions move until no worker has two more than another: of any function
    that both have, and in all, as far as functions that both have can even that out. For each
    function these are the fewest moves that even it out, and what is even stays as it is, whoever
    asks.

    With `hints`, pinned partitions go where they are pinned, and stay there; the others are placed,
    and move with `rebalance`, by load over weight.
    """
    if hints is not None and (hints.pins or hints.weights or hints.loads):
        return _Weighed(functions, workers, current, able, hints).place(rebalance)
    alive = sorted(workers)
    placed: dict[str, str] = {}
    total = dict.fromkeys(alive, 0)
    of_function: dict[str, dict[str, int]] = {}
    for function, count in functions.items():
        hosts = able.get(function, alive) if able is not None else alive
        same = of_function[function] = {worker: 0 for worker in alive if worker in hosts}
        for index in range(count):
            name = partition_name(function, index)
            owner = current.get(name)
            if owner in same:
                placed[name] = owner
                total[owner] += 1
                same[owner] += 1
    for function, count in functions.items():
        same = of_function[function]
        if not same:
            continue
        for index in range(count):
            name = partition_name(function, index)
            if name not in placed:
                owner = min(same, key=lambda worker: (same[worker], total[worker], worker))
                placed[name] = owner
                total[owner] += 1
                same[owner] += 1
        if rebalance:
            _even_out(function, count, placed, same, total)
    if rebalance:
        _even_out_totals(functions, placed, of_function, total)
    return placed


def _even_out(
    function: str,
    count: int,
    placed: dict[str, str],
    same: dict[str, int],
    total: dict[str, int],
) -> None:
    for _ in range(count):
        fullest = max(same, key=lambda worker: (same[worker], total[worker], worker))
        emptiest = min(same, key=lambda worker: (same[worker], total[worker], worker))
        if same[fullest] - same[emptiest] < 2:
            return
        _move(function, count, fullest, emptiest, placed)
        for worker, change in ((fullest, -1), (emptiest, 1)):
            same[worker] += change
            total[worker] += change


def _even_out_totals(
    functions: Mapping[str, int],
    placed: dict[str, str],
    of_function: Mapping[str, dict[str, int]],
    total: dict[str, int],
) -> None:
    """Move partitions of functions of which a fuller worker has one more than an emptier one."""
    for _ in range(len(placed)):
        uneven, fullest, emptiest, function = max(
            (_most_uneven(name, same, total) for name, same in of_function.items() if same),
            default=(0, "", "", ""),
        )
        if uneven < 2:
            return
        _move(function, functions[function], fullest, emptiest, placed)
        for worker, change in ((fullest, -1), (emptiest, 1)):
            of_function[function][worker] += change
            total[worker] += change


def _most_uneven(
    function: str, same: Mapping[str, int], total: Mapping[str, int]
) -> tuple[int, str, str, str]:
    """Return the fullest worker of those with the most partitions of a function and the emptiest of
    those with the fewest, behind their difference in all, which is 0 if nothing can move."""
    most, fewest = max(same.values()), min(same.values())
    fullest = max((total[worker], worker) for worker in same if same[worker] == most)
    emptiest = min((total[worker], worker) for worker in same if same[worker] == fewest)
    uneven = fullest[0] - emptiest[0] if most > fewest else 0
    return uneven, fullest[1], emptiest[1], function


def _move(function: str, count: int, origin: str, goal: str, placed: dict[str, str]) -> None:
    name = next(
        name
        for index in reversed(range(count))
        if placed[name := partition_name(function, index)] == origin
    )
    placed[name] = goal


def a_few_moves(
    current: Mapping[str, str],
    wanted: Mapping[str, str],
    alive: Collection[str],
    moves_max: int,
) -> dict[str, str]:
    """Return a placement on the way from the current to the wanted one.

    What has no living owner is placed at once. Of the others only so many move; they go on to be
    served where they are meanwhile.
    """
    placed: dict[str, str] = {}
    left = moves_max
    for partition, worker in wanted.items():
        owner = current.get(partition)
        if owner is None or owner == worker or owner not in alive:
            placed[partition] = worker
        elif left > 0:
            left -= 1
            placed[partition] = worker
        else:
            placed[partition] = owner
    return placed


class _Weighed:
    """A placement by load over weight; without loads, each partition counts as one."""

    def __init__(
        self,
        functions: Mapping[str, int],
        workers: Sequence[str],
        current: Mapping[str, str],
        able: Mapping[str, Collection[str]] | None,
        hints: PlacementHints,
    ) -> None:
        self._functions = functions
        self._alive = sorted(workers)
        self._able = able
        self._hints = hints
        self._gain_min = GAIN_MIN if hints.by_load else 1e-9
        self.placed: dict[str, str] = {}
        self._fill = dict.fromkeys(self._alive, 0.0)
        """Load over weight."""
        self._count = dict.fromkeys(self._alive, 0)
        self._same: dict[tuple[str, str], int] = {}
        """(worker, function) to how many partitions of it the worker has."""
        self._current = current

    def place(self, rebalance: bool) -> dict[str, str]:
        homeless: list[str] = []
        names = {
            partition_name(function, index): function
            for function, count in self._functions.items()
            for index in range(count)
        }
        for name, function in names.items():
            hosts = self._hosts(function)
            owner = self._hints.pins.get(name)
            if owner not in hosts:
                owner = self._current.get(name)
            if owner is not None and owner in hosts:
                self._put(name, function, owner)
            elif hosts:
                homeless.append(name)
        # The heaviest first: what is light fills the gaps.
        for name in sorted(homeless, key=lambda each: -self._load(each)):
            self._put(name, names[name], self._emptiest(name, names[name]))
        if rebalance:
            self._even_out(names)
        return {name: self.placed[name] for name in names if name in self.placed}

    def _hosts(self, function: str) -> Collection[str]:
        able = None if self._able is None else self._able.get(function)
        if able is None:
            return self._fill.keys()
        return [worker for worker in self._alive if worker in able]

    def _load(self, partition: str) -> float:
        return self._hints.load(partition) if self._hints.by_load else 1.0

    def _put(self, name: str, function: str, worker: str) -> None:
        self.placed[name] = worker
        self._fill[worker] += self._load(name) / self._hints.weight(worker)
        self._count[worker] += 1
        self._same[worker, function] = self._same.get((worker, function), 0) + 1

    def _update_fill(self, worker: str, owned: Collection[str]) -> None:
        """Sum up what a worker has: exactly, so that all ways to the same placement agree."""
        self._fill[worker] = fsum(map(self._load, owned)) / self._hints.weight(worker)

    def _emptiest(self, name: str, function: str) -> str:
        """Return who would be least full with one more partition."""
        load, weight = self._load(name), self._hints.weight

        def key(worker: str) -> tuple[float, int, int, str]:
            fill = self._fill[worker] + load / weight(worker)
            # Loads that differ by less than a tenth of a worker are alike.
            step = round(fill / self._gain_min) if self._hints.by_load else fill
            same = self._same.get((worker, function), 0)
            return step, same, self._count[worker], worker

        return min(self._hosts(function), key=key)

    def _even_out(self, names: Mapping[str, str]) -> None:
        """Move partitions from full workers to empty ones, as long as that gains something."""
        owned: dict[str, set[str]] = {worker: set() for worker in self._alive}
        for name, owner in self.placed.items():
            owned[owner].add(name)
        for worker, names_ in owned.items():
            self._update_fill(worker, names_)
        # Who could not be helped may be after others were: until nothing moves.
        for _ in range(len(self.placed)):
            if not self._even_out_once(owned, names):
                return

    def _even_out_once(self, owned: dict[str, set[str]], names: Mapping[str, str]) -> bool:
        """Help each worker once or more, the fullest first; return whether something moved."""
        fullest = [(-fill, worker) for worker, fill in self._fill.items()]
        emptiest = [(fill, worker) for worker, fill in self._fill.items()]
        heapify(fullest)
        heapify(emptiest)
        has_moved = False
        for _ in range(2 * len(self.placed) + len(self._alive)):
            worker = self._first(fullest, -1)
            if worker is None:
                break
            goal, moved = self._relief(worker, owned[worker], names, emptiest)
            if not moved:
                heappop(fullest)  # Nothing can be done for this one: the next fullest.
                continue
            self.placed.update(dict.fromkeys(moved, goal))
            owned[worker].difference_update(moved)
            owned[goal].update(moved)
            for each in (worker, goal):
                self._update_fill(each, owned[each])
                heappush(fullest, (-self._fill[each], each))
                heappush(emptiest, (self._fill[each], each))
            has_moved = True
        return has_moved

    def _first(self, heap: list[tuple[float, str]], sign: int) -> str | None:
        """Return who is first, of entries that are still true."""
        while heap:
            fill, worker = heap[0]
            if sign * fill == self._fill[worker]:
                return worker
            heappop(heap)
        return None

    def _relief(
        self,
        worker: str,
        movable: Collection[str],
        names: Mapping[str, str],
        emptiest: list[tuple[float, str]],
    ) -> tuple[str, list[str]]:
        """Return to whom a worker can give what, so that the gain is large enough."""
        first = self._first(emptiest, 1)
        assert first is not None
        movable = [name for name in movable if self._hints.pins.get(name) != worker]
        if self._able is None:
            return first, self._transfer(worker, first, movable)
        for goal in sorted(self._alive, key=lambda each: (self._fill[each], each)):
            if self._fill[worker] - self._fill[goal] <= self._gain_min:
                break
            fitting = [name for name in movable if goal in self._hosts(names[name])]
            if moved := self._transfer(worker, goal, fitting):
                return goal, moved
        return first, []

    def _transfer(self, worker: str, goal: str, movable: Collection[str]) -> list[str]:
        """Return the partitions that even out two workers best, the heaviest first; none if that
        gains too little."""
        weight, other_weight = self._hints.weight(worker), self._hints.weight(goal)
        fill, other_fill = self._fill[worker], self._fill[goal]
        moved: list[str] = []
        for name in sorted(movable, key=lambda each: (-self._load(each), each)):
            load = self._load(name)
            after = max(fill - load / weight, other_fill + load / other_weight)
            if load > 0.0 and after < max(fill, other_fill) - 1e-9:
                moved.append(name)
                fill, other_fill = fill - load / weight, other_fill + load / other_weight
        gain = self._fill[worker] - max(fill, other_fill)
        return moved if gain > self._gain_min else []
