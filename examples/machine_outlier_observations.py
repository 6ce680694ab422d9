"""What the machines of a data centre use of CPU and memory, every five minutes.

Machines have a load of their own, follow the day together, and wander (each value depends on the
one before). Now and then a machine has a bad spell of half an hour to two: it computes at its
limit and its memory fills up. The shape follows public traces of large clusters: CPU mostly below
a half and restless, memory higher and calm.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from math import sin, tau

MACHINE_COUNT = 100
INTERVAL_S = 300
DAY_S = 24 * 3_600
SPELL_CHANCE = 0.0005
"""That a machine begins a bad spell, at each moment."""
_SPELL_MOMENTS = (6, 24)
_KEPT = 0.8


class _Machine:
    def __init__(self, name: str, chance: random.Random) -> None:
        self.name = name
        self._chance = chance
        self._cpu = chance.betavariate(4, 9)
        self._memory = chance.betavariate(9, 9)
        self._cpu_offset = self._memory_offset = 0.0
        self._spell_moments = 0

    def observe(self, at_s: int) -> tuple[float, float]:
        chance = self._chance
        self._cpu_offset = self._cpu_offset * _KEPT + chance.gauss(0.0, 0.03)
        self._memory_offset = self._memory_offset * _KEPT + chance.gauss(0.0, 0.005)
        if self._spell_moments:
            self._spell_moments -= 1
            return chance.uniform(0.97, 1.0), chance.uniform(0.95, 1.0)
        if chance.random() < SPELL_CHANCE:
            self._spell_moments = chance.randint(*_SPELL_MOMENTS)
        day = 0.06 * sin(tau * at_s / DAY_S)
        return _share(self._cpu + day + self._cpu_offset), _share(
            self._memory + self._memory_offset
        )


def _share(value: float) -> float:
    return round(min(1.0, max(0.0, value)), 4)


def generate_observations(
    seed: int, machine_count: int = MACHINE_COUNT
) -> Iterator[tuple[int, str, float, float]]:
    """Yield (time in seconds, machine, CPU, memory) for ever, moment by moment.

    The same seed gives the same observations.
    """
    if machine_count < 1:
        raise ValueError(f"machine_count is {machine_count}; allowed: 1 or more")
    chance = random.Random(seed)
    machines = [_Machine(f"machine-{number:03d}", chance) for number in range(machine_count)]
    for moment in count():
        at_s = moment * INTERVAL_S
        for machine in machines:
            yield at_s, machine.name, *machine.observe(at_s)
