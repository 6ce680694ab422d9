"""When a burst lasts, workers are cheaper than instances. Decides when to have them, and how long.

Instances cost more by the hour than the workers that would replace them, but workers come late and
stay. So workers are wanted when a burst has lasted for a while at the higher price; and at once,
and for good, when bursts take so much of the day that workers all day long cost less.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, inf
from typing import Any

from sublet.scheduler.scaling.cost import break_even

DAY_S = 86_400.0
DAYS_KEPT = 2
"""What was counted is halved when so many days have been."""


class Handover:
    """Follows a cluster second by second, and says how many workers to keep for its bursts."""

    def __init__(self, persists_ms: float, calm_samples: int) -> None:
        """A burst is handed over after `persists_ms`; it is over after so many calm samples."""
        self.floor = 0
        """Workers that are to be there at least; 0: as many as their own policy wants."""
        self.because = ""
        self.break_even = inf
        """The share of the day from which on workers are cheaper, as the last burst was."""
        self._base = 0
        """How many there were without the burst."""
        self._persists_ms = persists_ms
        self._calm_samples = calm_samples
        self._calm = 0
        self._dearer_ms: float | None = None
        """Since when instances have cost more than workers would."""
        self._last_ms: float | None = None
        self._burst_s = self._seen_s = 0.0

    @property
    def share_of_day(self) -> float:
        """How much of the day is burst. As long as no day was seen, its rest counts as calm."""
        return self._burst_s / max(self._seen_s, DAY_S)

    def observe(
        self,
        now_ms: float,
        *,
        workers: int,
        load: float,
        capacity: float,
        instances: int,
        instance_hour: float,
        worker_hour: float,
    ) -> None:
        """A second has passed. `load` is in cores, `capacity` what one worker may do of it, and
        prices are of one instance and of one worker."""
        base = self._base if self.floor else workers
        missing = max(0, ceil(load / capacity - 1e-9) - base) if capacity > 0 else 0
        is_burst = instances > 0 or (self.floor > 0 and missing > 0)
        self._count(now_ms, is_burst)
        self._calm = 0 if is_burst else self._calm + 1
        if not instance_hour or not worker_hour:
            return  # Nobody can tell what is cheaper.
        if instances and missing:
            self.break_even = break_even(instances * instance_hour, missing * worker_hour)
        is_dearer = instances > 0 and missing > 0 and self.break_even < 1
        if not is_dearer:
            self._dearer_ms = None
        elif self._dearer_ms is None:
            self._dearer_ms = now_ms
        often = self.share_of_day > self.break_even
        if self._dearer_ms is not None and (often or self._lasts(now_ms, self._dearer_ms)):
            if self.floor < base + missing:
                self._base, self.floor = base, base + missing
                why = (
                    f"bursts take {self.share_of_day:.0%} of the day, and from "
                    f"{self.break_even:.0%} on workers are cheaper"
                    if often
                    else f"the burst has lasted {(now_ms - self._dearer_ms) / 1000:.0f} s"
                )
                self.because = f"{missing} workers cost less than {instances} instances: {why}"
        elif self.floor and self._calm >= self._calm_samples and not often:
            self.floor = 0
            self.because = "the burst is over"

    def _lasts(self, now_ms: float, since_ms: float) -> bool:
        return now_ms - since_ms >= self._persists_ms

    def _count(self, now_ms: float, is_burst: bool) -> None:
        if self._last_ms is not None:
            # Nobody was asked for longer than this: nothing is known of that time.
            passed_s = min(10.0, max(0.0, (now_ms - self._last_ms) / 1000))
            self._seen_s += passed_s
            self._burst_s += passed_s * is_burst
            if self._seen_s >= DAYS_KEPT * DAY_S:
                self._seen_s /= 2
                self._burst_s /= 2
        self._last_ms = now_ms

    # After a failover

    def memory(self) -> Mapping[str, Any]:
        # Rounded: what changes every second is not worth writing every second.
        return {
            "floor": self.floor,
            "base": self._base,
            "burst_s": round(self._burst_s, -1),
            "seen_s": round(self._seen_s, -1),
        }

    def recall(self, memory: Mapping[str, Any]) -> None:
        self.floor = int(memory.get("floor", 0))
        self._base = int(memory.get("base", 0))
        self._burst_s = float(memory.get("burst_s", 0.0))
        self._seen_s = float(memory.get("seen_s", 0.0))
