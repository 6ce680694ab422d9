"""How many messages a second there are, at each moment: constants, steps, waves, bursts, files."""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path

from sublet.functions.duration import Duration, milliseconds
from sublet.runtime.simulation.scenarios.distributions import stream

RateOf = Callable[[float], float]
"""Seconds since the start to messages a second."""

DAY_S = 86_400.0
BURSTS_MAX = 100_000
RATE_ROWS_MAX = 1_000_000
SHAPES = {
    "cosine": "cosine LOW HIGH PERIOD",
    "diurnal": "diurnal LOW HIGH [DAY]",
    "bursts": "bursts BASE PEAK EVERY LENGTH [SHAPE]",
    "file": "file PATH",
}


def rate_of(
    rate: float | str | Sequence[tuple[Duration, float]],
    *,
    seed: int = 0,
    directory: Path | None = None,
) -> RateOf:
    """Return the rate over time that a number, steps or a text say.

    Raises ValueError for what is none of them, saying what is allowed.
    """
    if isinstance(rate, int | float):
        if not 0 <= rate < math.inf:
            raise ValueError(f"rate is {rate}; allowed: 0 or more")
        return lambda _: float(rate)
    if not isinstance(rate, str):
        return _steps([(milliseconds(at) / 1000, float(value)) for at, value in rate])
    name, *words = rate.split()
    try:
        match name, words:
            case "cosine", [low, high, period]:
                return _cosine(float(low), float(high), milliseconds(period) / 1000)
            case "diurnal", [low, high, *day]:
                day_s = milliseconds(day[0]) / 1000 if day else DAY_S
                return _diurnal(float(low), float(high), day_s)
            case "bursts", [base, peak, every, length, *shape]:
                return _bursts(
                    float(base),
                    float(peak),
                    milliseconds(every) / 1000,
                    milliseconds(length) / 1000,
                    float(shape[0]) if shape else 1.5,
                    seed,
                )
            case "file", [*path] if path:
                return _file((directory or Path()) / " ".join(path))
    except ValueError as error:
        raise ValueError(f"rate is {rate!r}: {error}") from None
    allowed = "; ".join(SHAPES.values())
    raise ValueError(f"rate is {rate!r}; allowed: a number, steps, or one of: {allowed}")


def _check(low: float, high: float, *seconds: float) -> None:
    if not 0 <= low <= high < math.inf or not high:
        raise ValueError(f"rates are {low:g} and {high:g}; allowed: 0 or more, the second higher")
    if min(seconds) <= 0:
        raise ValueError("a time is 0; allowed: more than 0")


def _steps(steps: Sequence[tuple[float, float]]) -> RateOf:
    if not steps or min(rate for _, rate in steps) < 0:
        raise ValueError("steps need at least one (time, rate), and no negative rate")
    ordered = sorted(steps)
    times = [at_s for at_s, _ in ordered]

    def rate(now_s: float) -> float:
        place = bisect_right(times, now_s) - 1
        return ordered[place][1] if place >= 0 else 0.0

    return rate


def _cosine(low: float, high: float, period_s: float) -> RateOf:
    _check(low, high, period_s)
    middle, swing, turn = (high + low) / 2, (high - low) / 2, 2 * math.pi / period_s
    return lambda now_s: middle - swing * math.cos(turn * now_s)


def _diurnal(low: float, high: float, day_s: float) -> RateOf:
    """A day with a quiet night and two peaks, the later one being the higher."""
    _check(low, high, day_s)

    def shape(part: float) -> float:
        day = math.exp(-(((part - 0.46) / 0.11) ** 2))
        evening = math.exp(-(((part - 0.83) / 0.08) ** 2))
        return min(1.0, 0.8 * day + evening + 0.25 * math.exp(-(((part - 0.65) / 0.15) ** 2)))

    return lambda now_s: low + (high - low) * shape((now_s / day_s) % 1.0)


def _bursts(
    base: float, peak: float, every_s: float, length_s: float, shape: float, seed: int
) -> RateOf:
    """Bursts at random times whose heights are Pareto-distributed: many small ones, some at the
    peak."""
    _check(base, peak, every_s, length_s)
    if shape <= 0:
        raise ValueError(f"shape is {shape:g}; allowed: more than 0")
    rng = stream(seed, "bursts")
    starts: list[float] = []
    heights: list[float] = []

    def rate(now_s: float) -> float:
        while (not starts or starts[-1] <= now_s) and len(starts) < BURSTS_MAX:
            last = starts[-1] + length_s if starts else 0.0
            starts.append(last + rng.expovariate(1 / every_s))
            heights.append(min(peak, base + (peak - base) * rng.paretovariate(shape) / 4))
        place = bisect_right(starts, now_s) - 1
        if place < 0 or now_s >= starts[place] + length_s:
            return base
        return heights[place]

    return rate


def _file(path: Path) -> RateOf:
    """Read a CSV with the columns `time_s` and `rate`; a rate holds until the next row."""
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            rows = csv.DictReader(lines)
            if not {"time_s", "rate"} <= set(rows.fieldnames or ()):
                raise ValueError(f"{path} needs a first line with time_s and rate")
            steps = []
            for number, row in enumerate(rows, 2):
                try:
                    steps.append((float(row["time_s"]), float(row["rate"])))
                except (TypeError, ValueError):
                    raise ValueError(f"{path}, line {number}: not two numbers") from None
                if len(steps) > RATE_ROWS_MAX:
                    raise ValueError(f"{path} has more than {RATE_ROWS_MAX:,} rows")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if not steps:
        raise ValueError(f"{path} has no rows")
    first_s = min(at_s for at_s, _ in steps)
    return _steps([(at_s - first_s, value) for at_s, value in steps])
