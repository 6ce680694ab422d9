"""Loads over time, in messages a second, for experiments with the number of workers."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

from sublet.runtime.simulation.scenarios.rates import RateOf, rate_of

CYCLE_S = 300
CYCLES = 3
SECONDS = CYCLE_S * CYCLES
PEAK = 14_000.0
"""Of Styx's experiment; all loads have it."""
SEED = 11
RECORDED = Path(__file__).with_name("recorded_load.csv")


def steps() -> RateOf:
    """Up and down at once, to levels that differ by cycle."""
    levels = [2_000, 9_000, 14_000, 5_000, 11_000, 3_000, 13_000, 7_000, 1_000]
    return rate_of([(1000.0 * 100 * place, float(each)) for place, each in enumerate(levels)])


def irregular() -> RateOf:
    """Waves of periods that have nothing in common, and a level that wanders."""
    rng = Random(SEED)
    wander, level = [], 0.0
    for _ in range(SECONDS + 1):
        level = 0.98 * level + rng.gauss(0, 0.02)
        wander.append(level)
    periods = ((97.0, 0.15), (211.0, 0.3), (389.0, 0.25))

    def rate(now_s: float) -> float:
        waves = sum(
            size * math.sin(2 * math.pi * now_s / period + 7 * size) for period, size in periods
        )
        part = 0.42 + waves * 0.6 + wander[min(SECONDS, int(now_s))]
        return PEAK * min(1.0, max(0.02, part))

    return rate


def loads() -> dict[str, RateOf]:
    return {
        "cosine": rate_of(f"cosine 0 {PEAK:g} {CYCLE_S}s"),
        "steps": steps(),
        "irregular": irregular(),
        "recorded": rate_of(f"file {RECORDED}"),
    }


def write_recorded(path: Path = RECORDED) -> None:
    """Write the file that stands for a recorded load: three compressed days of a made-up site, with
    noise, a quieter second day, and a rush on the third."""
    rng, day = Random(SEED), rate_of("diurnal 0.05 1 300s")
    lines = ["time_s,rate"]
    for second in range(0, SECONDS, 2):
        part = day(second) * (1.0, 0.7, 0.9)[second // CYCLE_S]
        if 640 <= second < 670:
            part = max(part, 0.75)
        noisy = part * rng.lognormvariate(0, 0.06)
        lines.append(f"{second},{PEAK * min(1.0, noisy):.0f}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
