"""Ratios of two sides that took turns, with their spread."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Sample = Mapping[str, float]
"""One side's figures of one round, by name."""

Pairs = Mapping[str, Sequence[tuple[Sample, Sample]]]
"""Base and HEAD of each round, by case."""

LIMIT = 1.03
"""A CPU ratio whose lower quartile is above this is no noise: HEAD has become dearer."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and the quartiles round it."""

    lower: float
    median: float
    upper: float

    @classmethod
    def over(cls, values: Sequence[float]) -> "Spread":
        """Return the spread of at least one value."""
        if not values:
            raise ValueError("no values; a spread needs at least one")
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        return cls(*statistics.quantiles(values, n=4, method="inclusive"))

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.lower:.3f}, {self.upper:.3f}]"


def ratio(pairs: Sequence[tuple[Sample, Sample]], figure: str) -> Spread:
    """Return HEAD over base: each round's two sides, which saw the same minute, are one ratio."""
    return Spread.over([head[figure] / base[figure] for base, head in pairs])


def median(pairs: Sequence[tuple[Sample, Sample]], side: int, figure: str) -> float:
    return statistics.median(pair[side][figure] for pair in pairs)


def is_dearer(spread: Spread, limit: float = LIMIT) -> bool:
    return spread.lower > limit
