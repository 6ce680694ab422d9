"""Temperatures of a building's sensors, as unequal and as faulty as measured ones.

Each sensor has a place with a temperature of its own (18 to 24 °C), which follows the day by some
degrees; it drifts a little, it measures with noise, and one reading in two hundred is a spike of
1.3 to 3 times what is true. Sensors report in turn, but some of their reports get lost. The shape
follows what 54 sensors in an office reported every 31 seconds for a month, a public set of data
that stream benchmarks like to use.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from math import sin, tau

SENSOR_COUNT = 100
INTERVAL_MS = 31_000
DAY_MS = 24 * 3_600_000
SPIKE_SHARE = 0.005
LOST_SHARE = 0.15
_NOISE_MILLICELSIUS = 80.0
_DRIFT_MILLICELSIUS = 10.0
_DRIFT_KEPT = 0.995


class _Sensor:
    def __init__(self, name: str, chance: random.Random) -> None:
        self.name = name
        self._chance = chance
        self._place = chance.uniform(18_000, 24_000)
        self._by_day = chance.uniform(500, 2_000)
        self._phase = chance.uniform(0.0, 0.15)
        self._drift = 0.0

    def read(self, at_ms: int) -> int:
        chance = self._chance
        self._drift = self._drift * _DRIFT_KEPT + chance.gauss(0.0, _DRIFT_MILLICELSIUS)
        day = sin(tau * (at_ms / DAY_MS + self._phase))
        value = self._place + self._by_day * day + self._drift
        value += chance.gauss(0.0, _NOISE_MILLICELSIUS)
        if chance.random() < SPIKE_SHARE:
            value *= chance.uniform(1.3, 3.0)
        return round(value)


def generate_readings(
    seed: int, sensor_count: int = SENSOR_COUNT
) -> Iterator[tuple[str, int, int]]:
    """Yield (sensor, time in ms, temperature in millidegrees) for ever, in the order of time.

    The same seed gives the same readings.
    """
    if sensor_count < 1:
        raise ValueError(f"sensor_count is {sensor_count}; allowed: 1 or more")
    chance = random.Random(seed)
    sensors = [_Sensor(f"sensor-{number:03d}", chance) for number in range(sensor_count)]
    for turn in count():
        for place, sensor in enumerate(sensors):
            if chance.random() < LOST_SHARE:
                continue
            at_ms = turn * INTERVAL_MS + place * INTERVAL_MS // sensor_count
            yield sensor.name, at_ms, sensor.read(at_ms)
