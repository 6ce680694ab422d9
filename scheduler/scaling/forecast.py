"""What will come: a few plain forecasts of one series, chosen by how wrong each of them was.

Values come one a second. Candidates are the last value, Holt's damped trend, the season before
(seasonal naive) and Holt-Winters with an additive season. The one that was least wrong at the
horizon, over the last season, is believed; never more than `bound` times what has been seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from math import sqrt
from typing import Protocol

KEPT = 3_600
"""Seconds of the series that are known."""
SCORED = 60
"""Errors that count where there is no season."""
RECENT = 20
"""A candidate that was wrong in these last seconds is not saved by better times."""
SCORES_MIN = 5
SEASON_MIN = 10
SEARCH_EVERY = 60
"""Seconds between two searches for a season."""
BINS_MAX = 360
CORRELATION_MIN = 0.6
"""A season repeats itself at least so much."""


class Candidate(Protocol):
    def observe(self, value: float) -> None: ...

    def forecast(self, steps: int) -> float | None:
        """Return the value so many seconds ahead; None if too little is known."""
        ...


class Last:
    """The mean of the last three seconds goes on."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=3)

    def observe(self, value: float) -> None:
        self._values.append(value)

    def forecast(self, steps: int) -> float | None:
        return sum(self._values) / len(self._values) if self._values else None


class DampedHolt:
    """Level and trend, exponentially smoothed; the trend fades."""

    def __init__(self, alpha: float = 0.4, beta: float = 0.15, damping: float = 0.98) -> None:
        self._alpha, self._beta, self._damping = alpha, beta, damping
        self._level: float | None = None
        self._trend = 0.0

    def observe(self, value: float) -> None:
        if self._level is None:
            self._level = value
            return
        expected = self._level + self._damping * self._trend
        level = expected + self._alpha * (value - expected)
        slope = level - self._level
        self._trend = (1 - self._beta) * self._damping * self._trend + self._beta * slope
        self._level = level

    def forecast(self, steps: int) -> float | None:
        if self._level is None:
            return None
        damping = self._damping
        return self._level + self._trend * damping * (1 - damping**steps) / (1 - damping)


class SeasonalNaive:
    """What was a season ago, with its neighbours: a single second is mostly noise."""

    def __init__(self, season: int, past: Iterable[float] = ()) -> None:
        self._season = season
        self._values: deque[float] = deque(past, maxlen=season)

    def observe(self, value: float) -> None:
        self._values.append(value)

    def forecast(self, steps: int) -> float | None:
        # The oldest is a season before the next second.
        place, known = (steps - 1) % self._season, len(self._values)
        place -= self._season - known
        if place < 0:
            return None
        some = [self._values[each] for each in range(max(0, place - 2), min(known, place + 3))]
        return sum(some) / len(some)


class HoltWinters:
    """Level and trend beside an additive season."""

    def __init__(
        self,
        season: int,
        past: Sequence[float],
        alpha: float = 0.2,
        beta: float = 0.02,
        gamma: float = 0.3,
    ) -> None:
        """`past`: exactly one season, to begin with."""
        self._alpha, self._beta, self._gamma = alpha, beta, gamma
        self._level = sum(past) / season
        self._trend = 0.0
        self._seasons = [value - self._level for value in past]
        self._next = 0

    def observe(self, value: float) -> None:
        place, before = self._next, self._level
        season = self._seasons[place]
        expected = before + self._trend
        self._level = expected + self._alpha * (value - season - expected)
        self._trend += self._beta * (self._level - before - self._trend)
        self._seasons[place] += self._gamma * (value - self._level - season)
        self._next = (place + 1) % len(self._seasons)

    def forecast(self, steps: int) -> float | None:
        season = self._seasons[(self._next + steps - 1) % len(self._seasons)]
        return self._level + min(steps, len(self._seasons)) * self._trend + season


class _Scored:
    """A candidate, and how wrong it was at the horizon."""

    def __init__(self, candidate: Candidate, horizon: int, window: int) -> None:
        self.candidate = candidate
        self._said: deque[float | None] = deque(maxlen=horizon)
        """What it said of the next seconds, the oldest first."""
        self._errors: deque[float] = deque(maxlen=window)
        self._sum = self._squares = 0.0

    def observe(self, value: float) -> None:
        said = self._said[0] if len(self._said) == self._said.maxlen else None
        if said is not None:
            error = abs(value - said)
            if len(self._errors) == self._errors.maxlen:
                self._sum -= self._errors[0]
                self._squares -= self._errors[0] ** 2
            self._errors.append(error)
            self._sum += error
            self._squares += error * error
        self.candidate.observe(value)
        assert self._said.maxlen is not None
        self._said.append(self.candidate.forecast(self._said.maxlen))

    @property
    def is_scored(self) -> bool:
        return len(self._errors) >= SCORES_MIN

    @property
    def error(self) -> float:
        """The mean absolute error: over the whole window, or lately if that is worse."""
        recent = list(islice(reversed(self._errors), RECENT))
        return max(self._sum / len(self._errors), sum(recent) / len(recent))

    @property
    def sigma(self) -> float:
        count = len(self._errors)
        return sqrt(max(0.0, self._squares / count)) if count else 0.0


class Forecaster:
    """Follows a series, and says what it will be."""

    def __init__(self, *, horizon: int = 1, season: int = 0, bound: float = 1.5) -> None:
        """`season`: seconds; 0: found by autocorrelation, if there is one."""
        self.horizon = max(1, horizon)
        self.season = season
        self._is_given = season > 0
        self._bound = bound
        self._values: deque[float] = deque(maxlen=max(KEPT, 2 * season))
        self._count = 0
        self._begin()

    def _begin(self) -> None:
        window = max(SCORED, self.season)
        self._plain = {
            "last": _Scored(Last(), self.horizon, window),
            "holt": _Scored(DampedHolt(), self.horizon, window),
        }
        self._seasonal: dict[str, _Scored] = {}

    def aim(self, horizon: int) -> None:
        """Look so far ahead. Small changes are ignored: they would cost what is known of errors."""
        if abs(horizon - self.horizon) > max(1, self.horizon // 5):
            self.horizon = max(1, horizon)
            self._replay()

    def _replay(self) -> None:
        """Start anew with what is known: enough of it to have errors of a season."""
        values = list(self._values)
        scored = min(len(values), 2 * max(SCORED, self.season) + self.horizon)
        self._values = deque(values[: len(values) - scored], self._values.maxlen)
        self._begin()
        for value in values[len(values) - scored :]:
            self._take(value)

    @property
    def values(self) -> Sequence[float]:
        return self._values

    def recall(self, values: Iterable[float]) -> None:
        """Begin with an older series."""
        self._values.extendleft(reversed(list(values)))
        self._replay()

    def observe(self, value: float) -> None:
        self._take(value)
        self._count += 1
        if not self._is_given and self._count % SEARCH_EVERY == 0:
            season = season_of(self._values)
            if abs(season - self.season) > max(1, self.season // 50):
                self.season = season
                self._replay()

    def _take(self, value: float) -> None:
        for each in (*self._plain.values(), *self._seasonal.values()):
            each.observe(value)
        self._values.append(value)
        season = self.season
        if not season or len(self._values) < season - self.horizon or len(self._seasonal) == 2:
            return
        window = max(SCORED, season)
        if "seasonal" not in self._seasonal:
            past = SeasonalNaive(season, self._values)
            self._seasonal["seasonal"] = _Scored(past, self.horizon, window)
        elif len(self._values) >= season:
            newest = list(islice(reversed(self._values), season))[::-1]
            self._seasonal["holt-winters"] = _Scored(
                HoltWinters(season, newest), self.horizon, window
            )

    @property
    def best(self) -> str:
        """The name of the candidate that is believed."""
        scored = {
            name: each.error
            for name, each in {**self._plain, **self._seasonal}.items()
            if each.is_scored
        }
        return min(scored, key=lambda name: scored[name]) if scored else "last"

    def _believed(self) -> _Scored:
        name = self.best
        return self._plain[name] if name in self._plain else self._seasonal[name]

    @property
    def sigma(self) -> float:
        """How wrong it was at the horizon, as a standard deviation."""
        return self._believed().sigma

    def path(self, steps: int) -> list[float]:
        """Return the next so many seconds."""
        if not self._values:
            return [0.0] * steps
        last, most = self._values[-1], self._bound * max(self._values)
        candidate = self._believed().candidate
        found = [candidate.forecast(step) for step in range(1, steps + 1)]
        return [last if each is None else min(max(0.0, each), most) for each in found]


def season_of(values: Sequence[float]) -> int:
    """Return after how many seconds a series repeats itself, as seen at least twice; 0 if it does
    not."""
    series = list(values)
    width = -(-len(series) // BINS_MAX)
    count = len(series) // width if width else 0
    if count < 4 * SEASON_MIN:
        return 0
    # Of what does not fill a bin, the oldest is left out.
    series = series[len(series) - count * width :]
    bins = [sum(series[place * width : (place + 1) * width]) / width for place in range(count)]
    found, scores = 0, [_correlation(bins, lag) for lag in range(count // 2 + 1)]
    for lag in range(max(2, SEASON_MIN // width), count // 2 + 1):
        after = scores[lag + 1] if lag < count // 2 else 0.0
        is_peak = scores[lag - 1] <= scores[lag] >= after
        # The first clear peak: its multiples are as high.
        if is_peak and scores[lag] >= max(CORRELATION_MIN, 1.05 * scores[found] if found else 0.0):
            found = lag
    if not found or min(scores[1:found], default=1.0) > scores[found] - 0.2:
        return 0  # It is flat, or a slope: all lags are alike.
    around = range(max(1, (found - 1) * width), min(len(series) // 2, (found + 1) * width) + 1)
    return max(around, key=lambda lag: _correlation(series, lag)) if width > 1 else found


def _correlation(values: Sequence[float], lag: int) -> float:
    """Return how alike a series and itself, so much later, are: 1 at most."""
    one, other = values[: len(values) - lag], values[lag:]
    count = len(one)
    mean_one, mean_other = sum(one) / count, sum(other) / count
    both = sum(a * b for a, b in zip(one, other, strict=True)) / count - mean_one * mean_other
    spread_one = sum(a * a for a in one) / count - mean_one**2
    spread_other = sum(b * b for b in other) / count - mean_other**2
    spread = sqrt(max(0.0, spread_one) * max(0.0, spread_other))
    return both / spread if spread > 1e-12 * (1 + mean_one**2) else 0.0
