"""How quick a core is: the same piece of work, timed at a worker and at an instance."""

from __future__ import annotations

import time

ROUNDS = 7
STEPS = 100_000


def core_ms() -> float:
    """Return what a fixed piece of computing takes here, at best."""
    return min(_round_ms() for _ in range(ROUNDS))


def _round_ms() -> float:
    began_s, value = time.perf_counter(), 1
    for step in range(STEPS):
        value = (value * 31 + step) % 1_000_003
    return 1000 * (time.perf_counter() - began_s)
