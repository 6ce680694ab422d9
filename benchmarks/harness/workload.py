"""The two workloads that every system runs, and the arithmetic of their figures.

A, keyed count: messages (key, 1, time), keys Zipf-distributed; each adds to its key's count and
emits (key, count). B, request and reply: call a key's instance and await the answer. L is A at a
fixed rate of arrivals. Only the standard library is imported: peers have their own interpreter.
"""

import random
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, floor
from zlib import crc32

SEED = 42
KEY_COUNT = 10_000
ZIPF_EXPONENT = 1.0
# Enough that the keys of one case do not repeat within a batch window, little enough to make
# in a fraction of a second; cases walk round this list.
KEY_SEQUENCE_LENGTH = 200_000
# Where one of many callers starts in the sequence; prime, so that callers do not walk in step.
CALLER_STRIDE = 701
CALLER_COUNTS = (1, 64)
PACED_RATES_PER_S = (1_000, 10_000)
PACE_TICK_S = 0.001
PERCENTILES = (("p50_ms", 0.50), ("p99_ms", 0.99), ("p99_9_ms", 0.999), ("max_ms", 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """How long each kind of case runs. The warm-up of a paced case is part of its time."""

    saturate_s: float
    calls_s: float
    paced_s: float
    paced_warm_up_s: float


FULL = Durations(saturate_s=2.0, calls_s=2.0, paced_s=4.0, paced_warm_up_s=1.0)
QUICK = Durations(saturate_s=0.6, calls_s=0.6, paced_s=1.2, paced_warm_up_s=0.4)


def key_name(index: int) -> str:
    return f"k{index:05d}"


def zipf_keys(count: int = KEY_SEQUENCE_LENGTH, seed: int = SEED) -> list[str]:
    """Return `count` keys; the key of rank r comes with probability proportional to 1/r."""
    chance = random.Random(seed)
    cumulative = list(accumulate(rank**-ZIPF_EXPONENT for rank in range(1, KEY_COUNT + 1)))
    names = [key_name(index) for index in range(KEY_COUNT)]
    last = KEY_COUNT - 1
    return [
        names[min(bisect_left(cumulative, chance.random() * cumulative[-1]), last)]
        for _ in range(count)
    ]


def worker_of(key: str, worker_count: int) -> int:
    """Return the same worker for the same key in every process, unlike `hash`."""
    return crc32(key.encode()) % worker_count


def split_by_worker(keys: Iterable[str], worker_count: int) -> list[list[str]]:
    """Return each worker's keys, in order."""
    parts: list[list[str]] = [[] for _ in range(worker_count)]
    for key in keys:
        parts[worker_of(key, worker_count)].append(key)
    return parts


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile of values already in rising order.

    Raises ValueError when there are none: a case without a single answer has no latency.
    """
    if not ordered:
        raise ValueError("no values; a percentile needs at least one")
    if not 0.0 < share <= 1.0:
        raise ValueError(f"share is {share}; allowed: above 0, up to 1")
    # Rounded first: 0.999 * 1000 is a hair above 999 in binary and would round up to 1000.
    return ordered[ceil(round(len(ordered) * share, 6)) - 1]


def latency_figures(latencies_s: Iterable[float]) -> dict[str, float]:
    """Return p50, p99, p99.9 and the maximum in milliseconds; nothing if there are no values."""
    ordered = sorted(latencies_s)
    if not ordered:
        return {}
    return {name: round(percentile(ordered, share) * 1e3, 4) for name, share in PERCENTILES}


@dataclass(frozen=True, slots=True)
class ArrivalSchedule:
    """When messages of an open loop are meant to arrive, whether or not anyone keeps up.

    Message `i` is due at `start_s + i / rate_per_s` on the driver's monotonic clock. A driver
    asks on every tick how many are due, sends those that it has not sent, and takes each latency
    from the due time: a stall then counts against every message that it held up.
    """

    rate_per_s: float
    start_s: float
    count: int

    def __post_init__(self) -> None:
        if self.rate_per_s <= 0 or self.count < 1:
            raise ValueError(
                f"rate_per_s is {self.rate_per_s}, count is {self.count}; "
                "allowed: a rate above 0 and a count of at least 1"
            )

    @classmethod
    def lasting(cls, duration_s: float, *, rate_per_s: float, start_s: float) -> "ArrivalSchedule":
        return cls(rate_per_s, start_s, max(1, floor(duration_s * rate_per_s)))

    def due_s(self, index: int) -> float:
        return self.start_s + index / self.rate_per_s

    def due_count(self, now_s: float) -> int:
        """Return how many messages should have arrived by `now_s`."""
        if now_s < self.start_s:
            return 0
        return min(self.count, floor((now_s - self.start_s) * self.rate_per_s) + 1)


class LatencyLog:
    """Collects latencies from due times; what was due during the warm-up counts, but is not timed.

    `completed_share` below 1 means that answers were missing when the case ended, so that the
    percentiles flatter the system.
    """

    def __init__(self, schedule: ArrivalSchedule, warm_up_s: float) -> None:
        self._expected_count = schedule.count
        self._timed_from_s = schedule.start_s + warm_up_s
        self._latencies_s: list[float] = []
        self.completed_count = 0

    def add(self, dues_s: Iterable[float], now_s: float) -> None:
        for due_s in dues_s:
            self.completed_count += 1
            if due_s >= self._timed_from_s:
                self._latencies_s.append(now_s - due_s)

    @property
    def is_complete(self) -> bool:
        return self.completed_count >= self._expected_count

    def figures(self) -> dict[str, float]:
        share = round(self.completed_count / self._expected_count, 4)
        return {"completed_share": share, **latency_figures(self._latencies_s)}
