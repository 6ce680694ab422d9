"""What a scheduler that knows the load would do: the yardstick for all policies.

`by_formula` follows the load at a given utilisation and pays for nothing else. `cheapest` also pays
for the time in which workers start, may let a backlog wait, and is found by dynamic programming
over (second, workers, backlog).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf


def by_formula(
    loads: Sequence[float], least: int, most: int, utilisation: float = 1.0
) -> list[int]:
    """Return workers by the second; `loads`: in workers."""
    return [min(most, max(least, ceil(load / utilisation - 1e-9))) for load in loads]


def cheapest(
    loads: Sequence[float],
    least: int,
    most: int,
    *,
    utilisation: float = 1.0,
    start_s: float = 0.0,
    backlog_max: float = 0.0,
    backlog_steps: int = 40,
) -> tuple[float, list[int]]:
    """Return the fewest worker-seconds, starts included, and the workers by the second.

    `backlog_max`: what may wait at any time, in workers' seconds; at the end nothing waits. Where a
    load needs more than `most`, the rest is forgotten.
    """
    counts = range(least, most + 1)
    grain = backlog_max / backlog_steps if backlog_max else 1.0
    levels = backlog_steps + 1 if backlog_max else 1
    # Cost so far by [workers][backlog]; at the start there are the fewest.
    costs = [[inf] * levels for _ in counts]
    costs[0][0] = 0.0
    ways: list[list[list[tuple[int, int]]]] = []
    for load in loads:
        after = [[inf] * levels for _ in counts]
        way = [[(0, 0)] * levels for _ in counts]
        best = _cheapest_change(costs, levels, start_s)
        for place, count in enumerate(counts):
            room = utilisation * count
            for level in range(levels):
                cost, came = best[level][place]
                if cost == inf:
                    continue
                backlog = max(0.0, level * grain + load - room)
                to = ceil(backlog / grain - 1e-9) if backlog_max else 0
                if not backlog_max and backlog > 1e-9 and count < most:
                    continue
                if to >= levels:
                    if count < most:
                        continue
                    to = levels - 1
                if cost + count < after[place][to]:
                    after[place][to] = cost + count
                    way[place][to] = (came, level)
        costs = after
        ways.append(way)
    place, level = min(
        ((place, level) for place in range(len(counts)) for level in range(levels)),
        key=lambda at: costs[at[0]][at[1]] + (1e9 if at[1] else 0.0),
    )
    total, schedule = costs[place][level], []
    for way in reversed(ways):
        schedule.append(counts[place])
        place, level = way[place][level]
    return total, schedule[::-1]


def _cheapest_change(
    costs: Sequence[Sequence[float]], levels: int, start_s: float
) -> list[list[tuple[float, int]]]:
    """Return, by backlog and number of workers, the cheapest way to have that many."""
    found = []
    for level in range(levels):
        row = [(costs[place][level], place) for place in range(len(costs))]
        # Whoever leaves costs nothing, whoever comes the time of its start.
        for place in range(len(row) - 2, -1, -1):
            row[place] = min(row[place], row[place + 1])
        for place in range(1, len(row)):
            row[place] = min(row[place], (row[place - 1][0] + start_s, row[place - 1][1]))
        found.append(row)
    return found
