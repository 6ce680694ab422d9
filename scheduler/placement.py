"""Which worker owns which partition.

Partitions are placed one after another, each on the worker with the fewest partitions of the same
function, then the fewest in all, of those workers that have the function. What is placed stays
where it is, unless its worker is gone or another has at least two less: of the function, or in all.
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
    able: Mapping[str, Collection[str]] | None = None,
) -> dict[str, str]:
    """Return the placement of all partitions of all functions on the given workers.

    `able` says which workers have a function; one that it does not name can be on all of them.
    Partitions of a function that no given worker has are not placed.

    With `rebalance`, partitions move until no worker has two more than another: of any function
    that both have, and in all, as far as functions that both have can even that out. For each
    function these are the fewest moves that even it out, and what is even stays as it is, whoever
    asks.
    """
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
