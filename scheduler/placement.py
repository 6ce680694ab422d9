"""Which worker owns which partition.

Partitions are placed one after another, each on the worker with the fewest partitions of the same
function, then the fewest in all. What is placed stays where it is, unless its worker is gone or
another has at least two less: of the function, or in all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sublet.functions.address import partition_name


def place(
    functions: Mapping[str, int],
    workers: Sequence[str],
    current: Mapping[str, str],
    *,
    rebalance: bool,
) -> dict[str, str]:
    """Return the placement of all partitions of all functions on the given workers.

    With `rebalance`, partitions move until no worker has two more than another: of any function,
    and in all. For each function these are the fewest moves that even it out, and what is even
    stays as it is, whoever asks.
    """
    if not workers:
        return {}
    alive = sorted(workers)
    placed: dict[str, str] = {}
    total = dict.fromkeys(alive, 0)
    of_function: dict[str, dict[str, int]] = {}
    for function, count in functions.items():
        of_function[function] = dict.fromkeys(alive, 0)
        for index in range(count):
            name = partition_name(function, index)
            owner = current.get(name)
            if owner in total:
                placed[name] = owner
                total[owner] += 1
                of_function[function][owner] += 1
    for function, count in functions.items():
        same = of_function[function]
        for index in range(count):
            name = partition_name(function, index)
            if name not in placed:
                owner = min(alive, key=lambda worker: (same[worker], total[worker], worker))
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
    """Move partitions of functions of which the fullest worker has one more than the emptiest."""
    for _ in range(len(placed)):
        fullest = max(total, key=lambda worker: (total[worker], worker))
        emptiest = min(total, key=lambda worker: (total[worker], worker))
        if total[fullest] - total[emptiest] < 2:
            return
        function = next(
            name for name, same in of_function.items() if same[fullest] > same[emptiest]
        )
        _move(function, functions[function], fullest, emptiest, placed)
        for worker, change in ((fullest, -1), (emptiest, 1)):
            of_function[function][worker] += change
            total[worker] += change


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
