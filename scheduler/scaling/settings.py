"""What people say about scaling, checked."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from sublet.scheduler.scaling.cost import Cap
from sublet.scheduler.scaling.plan import INSTANCES_MAX

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
    instances_max: int = 0
    """Instances that may help at once; 0: none."""
    instance_start_ms: float = 1_000.0
    """How long an instance is expected to take until it serves, until that has been measured."""
    instance_timeout_ms: float = 30_000.0
    """An instance that has not dialled in by then is given up."""
    instance_life_ms: float = 900_000.0
    """So long an instance may stay; AWS Lambda allows no more than 15 minutes."""
    instance_gb: float = 1.769
    """Its memory; AWS Lambda gives a whole core to 1,769 MB."""
    price_gb_second: float = 0.0
    price_request: float = 0.0
    """For starting an instance."""
    price_worker_hour: float = 0.0
    spend_cap: str = ""
    """Such as `5/day`; empty: none."""
    idle_after_ms: float = 60_000.0
    """With a minimum of 0: the last worker leaves when there was nothing to do for so long."""
    dry_run: bool = False
    """Say what would be done, and do nothing."""

    def __post_init__(self) -> None:
        if not 0 <= self.workers_min <= self.workers_max <= WORKERS_MAX or not self.workers_max:
            raise ValueError(
                f"workers are {self.workers_min}..{self.workers_max}; "
                f"allowed: 0..{WORKERS_MAX}, the first not above the second, and that at least 1"
            )
        if not 0 <= self.instances_max <= INSTANCES_MAX:
            raise ValueError(f"instances_max is {self.instances_max}; allowed: 0..{INSTANCES_MAX}")
        times = ("start_timeout_ms", "drain_timeout_ms", "move_timeout_ms", "idle_after_ms")
        lives = ("instance_timeout_ms", "instance_life_ms", "instance_gb")
        for name in (*times, *lives):
            if not (isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: more than 0")
        prices = ("price_worker_hour", "price_gb_second", "price_request")
        for name in ("start_ms", "instance_start_ms", "move_ms", *prices):
            if not (isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: 0 or more")
        if self.moves_max < 1:
            raise ValueError(f"moves_max is {self.moves_max}; allowed: 1 or more")
        if self.spend_cap:
            Cap.of(self.spend_cap)
            if not (self.price_worker_hour or self.price_gb_second):
                raise ValueError(
                    "spend_cap needs a price: set price_worker_hour or price_gb_second, too"
                )
