"""What people say about scaling, checked."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from sublet.scheduler.scaling.cost import Cap

WORKERS_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSettings:
    """Raises ValueError for what cannot be."""

    workers_min: int = 1
    workers_max: int = 1
    start_timeout_ms: float = 60_000.0
    """A worker that has not joined by then is started once more, then given up."""
    drain_timeout_ms: float = 120_000.0
    """A worker that has not left by then is asked once more."""
    move_timeout_ms: float = 60_000.0
    """A partition that has not moved by then stays."""
    start_ms: float = 500.0
    """How long a start is expected to take, until it has been measured."""
    move_ms: float = 30.0
    """How long one partition is expected to take to move."""
    moves_max: int = 4
    """Partitions that move at once."""
    price_worker_hour: float = 0.0
    spend_cap: str = ""
    """Such as `5/day`; empty: none."""
    dry_run: bool = False
    """Say what would be done, and do nothing."""

    def __post_init__(self) -> None:
        if not 0 <= self.workers_min <= self.workers_max <= WORKERS_MAX or not self.workers_max:
            raise ValueError(
                f"workers are {self.workers_min}..{self.workers_max}; "
                f"allowed: 0..{WORKERS_MAX}, the first not above the second, and that at least 1"
            )
        for name in ("start_timeout_ms", "drain_timeout_ms", "move_timeout_ms"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: more than 0")
        for name in ("start_ms", "move_ms", "price_worker_hour"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: 0 or more")
        if self.moves_max < 1:
            raise ValueError(f"moves_max is {self.moves_max}; allowed: 1 or more")
        if self.spend_cap:
            Cap.of(self.spend_cap)
            if not self.price_worker_hour:
                raise ValueError("spend_cap needs a price: set price_worker_hour, too")
