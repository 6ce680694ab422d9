"""Where a simulation leaves something to rng: lengths of time, costs, sizes, keys.

Every sampler gets its own `random.Random`, seeded by a text, so that one seed gives one story in
every process.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Protocol

from sublet.functions.duration import Duration, milliseconds

Sampler = Callable[[], float]
KeySampler = Callable[[int], Sequence[str]]


def stream(seed: int, *names: object) -> random.Random:
    """Return a source of chance of its own for what the names say."""
    # A text is hashed by `random` itself, the same in every process.
    return random.Random(f"{seed}/{'/'.join(map(str, names))}")


class Distribution(Protocol):
    """Lengths of time (texts as `5ms`, or milliseconds) or plain numbers, with a known mean."""

    @property
    def mean(self) -> float: ...

    def sampler(self, rng: random.Random) -> Sampler: ...


@dataclass(frozen=True, slots=True)
class Constant:
    """Always the same."""

    value: Duration

    @property
    def mean(self) -> float:
        return milliseconds(self.value)

    def sampler(self, rng: random.Random) -> Sampler:
        value = self.mean
        return lambda: value


@dataclass(frozen=True, slots=True)
class Exponential:
    """Memoryless, with this mean."""

    of_mean: Duration

    @property
    def mean(self) -> float:
        return milliseconds(self.of_mean)

    def sampler(self, rng: random.Random) -> Sampler:
        mean, draw, log = self.mean, rng.random, math.log
        return lambda: -mean * log(1.0 - draw())


@dataclass(frozen=True, slots=True)
class Pareto:
    """Heavy-tailed, with this mean; the closer `shape` is to 1, the heavier."""

    of_mean: Duration
    shape: float = 1.5

    def __post_init__(self) -> None:
        if not self.shape > 1:
            raise ValueError(f"the shape is {self.shape}; allowed: more than 1, or it has no mean")

    @property
    def mean(self) -> float:
        return milliseconds(self.of_mean)

    def sampler(self, rng: random.Random) -> Sampler:
        least, power, draw = (
            self.mean * (self.shape - 1) / self.shape,
            -1 / self.shape,
            rng.random,
        )
        return lambda: least * (1.0 - draw()) ** power


@dataclass(frozen=True, slots=True)
class Uniform:
    low: Duration
    high: Duration

    def __post_init__(self) -> None:
        if milliseconds(self.low) > milliseconds(self.high):
            raise ValueError(f"uniform from {self.low} to {self.high}; allowed: low <= high")

    @property
    def mean(self) -> float:
        return (milliseconds(self.low) + milliseconds(self.high)) / 2

    def sampler(self, rng: random.Random) -> Sampler:
        low, draw = milliseconds(self.low), rng.random
        width = milliseconds(self.high) - low
        return lambda: low + width * draw()


@dataclass(frozen=True, slots=True)
class Lognormal:
    """With this mean; `sigma` is the deviation of the logarithm."""

    of_mean: Duration
    sigma: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.sigma <= 5:
            raise ValueError(f"sigma is {self.sigma}; allowed: 0..5")

    @property
    def mean(self) -> float:
        return milliseconds(self.of_mean)

    def sampler(self, rng: random.Random) -> Sampler:
        middle, sigma, gauss, exp = self.mean, self.sigma, rng.gauss, math.exp
        middle *= exp(-sigma * sigma / 2)
        return lambda: middle * exp(gauss(0.0, sigma))


_FORMS = (
    "'2ms', 'exponential 2ms', 'pareto 2ms 1.5', 'uniform 1ms 3ms', 'lognormal 2ms 0.5', "
    "a number, or a distribution"
)


def distribution(spec: Duration | Distribution) -> Distribution:
    """Return what a text, a number or a distribution means; `ValueError` says what is allowed."""
    if not isinstance(spec, str):
        return Constant(spec) if isinstance(spec, int | float | timedelta) else spec
    kind, *numbers = spec.split()
    if not numbers:
        spec_ms = milliseconds(_number_or_text(kind))
        return Constant(spec_ms)
    first, rest = _number_or_text(numbers[0]), numbers[1:]
    try:
        match kind, rest:
            case "exponential", []:
                return Exponential(milliseconds(first))
            case "uniform", [high]:
                return Uniform(milliseconds(first), milliseconds(_number_or_text(high)))
            case "pareto", _ if len(rest) <= 1:
                return Pareto(milliseconds(first), *map(float, rest))
            case "lognormal", _ if len(rest) <= 1:
                return Lognormal(milliseconds(first), *map(float, rest))
    except ValueError as error:
        raise ValueError(f"{spec!r}: {error}") from None
    raise ValueError(f"{spec!r} is not a distribution; allowed: {_FORMS}")


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run of n messages takes: `fixed + each · n`.

    With a `spread` each message's part is multiplied by chance with mean 1: "constant",
    "exponential", "pareto 1.5" or "lognormal 0.5".
    """

    fixed: Duration = 0
    each: Duration = 0
    spread: str = "constant"

    def __post_init__(self) -> None:
        milliseconds(self.fixed)
        milliseconds(self.each)
        self._factor()

    @classmethod
    def of(cls, spec: Duration | Cost) -> Cost:
        """Return what a text says: "0.1ms + 0.02ms exponential" is 0.1 ms a run and 0.02 ms a
        message; a single length is that of a message."""
        if isinstance(spec, Cost):
            return spec
        if not isinstance(spec, str):
            return cls(0, spec)
        match = _COST.fullmatch(spec)
        if match is None:
            raise ValueError(
                f"{spec!r} is not a cost; allowed: '0.02ms' (a message), '0.1ms + 0.02ms' (a run, "
                "and each message of it), then exponential, pareto 1.5 or lognormal 0.5, if wanted"
            )
        fixed, each, spread = match[1], match[2], match[3] or "constant"
        return cls(milliseconds(fixed or 0), milliseconds(each), " ".join(spread.split()))

    def mean_ms(self, count: int) -> float:
        return milliseconds(self.fixed) + milliseconds(self.each) * count

    def _factor(self) -> Distribution | None:
        kind, *rest = self.spread.split()
        if kind == "constant" and not rest:
            return None
        return distribution(" ".join([kind, "1", *rest]))

    def sampler(self, rng: random.Random) -> Callable[[int], float]:
        fixed, each = milliseconds(self.fixed), milliseconds(self.each)
        factor = self._factor()
        if factor is None:
            return lambda count: fixed + each * count
        draw = factor.sampler(rng)
        return lambda count: fixed + each * sum([draw() for _ in range(count)])

    def run_sampler(self, rng: random.Random) -> Callable[[int, float], tuple[float, int]]:
        """Return what says how long a run of so many messages takes, and how many of them it
        gets to: after `limit_ms` it is cut at the next message."""
        fixed, each = milliseconds(self.fixed), milliseconds(self.each)
        factor = self._factor()
        draw = None if factor is None else factor.sampler(rng)

        def run(count: int, limit_ms: float) -> tuple[float, int]:
            if draw is None:
                elapsed_ms = fixed + each * count
                if elapsed_ms <= limit_ms or count == 1:
                    return elapsed_ms, count
                count = min(count, max(0, int((limit_ms - fixed) / each)) + 1)
                return fixed + each * count, count
            elapsed_ms = fixed
            for place in range(count):
                if place and elapsed_ms > limit_ms:
                    return elapsed_ms, place
                elapsed_ms += each * draw()
            return elapsed_ms, count

        return run


_LENGTH = r"\d+(?:\.\d+)?\s*(?:us|ms|s|m)"
_COST = re.compile(rf"\s*(?:({_LENGTH})\s*\+\s*)?({_LENGTH})\s*([a-z]+(?:\s+\d+(?:\.\d+)?)?)?\s*")

KEYS_MAX = 10_000_000


class Keys(Protocol):
    """Which keys messages have."""

    def names(self) -> Sequence[str]:
        """All of them."""
        ...

    def sampler(self, rng: random.Random) -> KeySampler: ...


@lru_cache(maxsize=64)
def _names(count: int, prefix: str) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def _check_count(count: int) -> None:
    if not 1 <= count <= KEYS_MAX:
        raise ValueError(f"there are {count} keys; allowed: 1..{KEYS_MAX}")


@dataclass(frozen=True, slots=True)
class Zipf:
    """Key number k is drawn in proportion to `1 / k ** exponent`."""

    count: int
    exponent: float = 1.0
    prefix: str = "k"

    def __post_init__(self) -> None:
        _check_count(self.count)
        if not 0 <= self.exponent <= 10:
            raise ValueError(f"the exponent is {self.exponent}; allowed: 0..10")

    def names(self) -> Sequence[str]:
        return _names(self.count, self.prefix)

    def sampler(self, rng: random.Random) -> KeySampler:
        names, choices = self.names(), rng.choices
        weights = itertools.accumulate((k + 1) ** -self.exponent for k in range(self.count))
        cumulative = list(weights)
        return lambda count: choices(names, cum_weights=cumulative, k=count)


@dataclass(frozen=True, slots=True)
class EvenKeys:
    """All keys alike."""

    count: int
    prefix: str = "k"

    def __post_init__(self) -> None:
        _check_count(self.count)

    def names(self) -> Sequence[str]:
        return _names(self.count, self.prefix)

    def sampler(self, rng: random.Random) -> KeySampler:
        names, choices = self.names(), rng.choices
        return lambda count: choices(names, k=count)


@dataclass(frozen=True, slots=True)
class OneKey:
    """Everything goes to one instance."""

    key: str = "k0"

    def names(self) -> Sequence[str]:
        return [self.key]

    def sampler(self, rng: random.Random) -> KeySampler:
        names = [self.key]
        return lambda count: names * count


@dataclass(frozen=True, slots=True)
class EachInTurn:
    """One after the other, round and round: what sensors do that report in a fixed order."""

    count: int
    prefix: str = "k"

    def __post_init__(self) -> None:
        _check_count(self.count)

    def names(self) -> Sequence[str]:
        return _names(self.count, self.prefix)

    def sampler(self, rng: random.Random) -> KeySampler:
        turn = itertools.cycle(self.names())
        return lambda count: list(itertools.islice(turn, count))


def keys_of(spec: object) -> Keys:
    """Return keys by a number (as many, all alike), a text ("zipf 1000 1.2", "even 1000",
    "one", "turn 100") or themselves."""
    if hasattr(spec, "sampler") and hasattr(spec, "names"):
        return spec
    if isinstance(spec, int) and not isinstance(spec, bool):
        return EvenKeys(spec)
    if isinstance(spec, str):
        kind, *rest = spec.split() or [""]
        try:
            match kind, rest:
                case "zipf", [count]:
                    return Zipf(int(count))
                case "zipf", [count, exponent]:
                    return Zipf(int(count), float(exponent))
                case "even", [count]:
                    return EvenKeys(int(count))
                case "turn", [count]:
                    return EachInTurn(int(count))
                case "one", _ if len(rest) <= 1:
                    return OneKey(*rest)
        except ValueError as error:
            raise ValueError(f"{spec!r}: {error}") from None
    raise ValueError(
        f"{spec!r} does not say which keys; allowed: a number, 'zipf 1000 1.2', 'even 1000', "
        "'turn 100', 'one', or Zipf, EvenKeys, EachInTurn, OneKey"
    )
