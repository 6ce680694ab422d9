"""Money: what workers have cost, what they will have cost, and whether there is any left.

Prices have no currency. Time is the wall clock's, since what was spent must survive the controller.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

from sublet.scheduler.scaling.plan import Spent

HOUR_MS = 3_600_000.0
PERIODS_MS = {
    "hour": HOUR_MS,
    "day": 24 * HOUR_MS,
    "week": 7 * 24 * HOUR_MS,
    "month": 30 * 24 * HOUR_MS,
}
GAP_MS_MAX = HOUR_MS
"""A longer time without anybody who counts is a clock that was set; no more is charged."""
WARNING_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Cap:
    """At most so much in each period."""

    amount: float
    period_ms: float

    @classmethod
    def of(cls, text: str) -> Cap:
        """Read `5/day`. Raises ValueError for what is none."""
        number, _, period = (each.strip() for each in text.partition("/"))
        try:
            amount = float(number)
        except ValueError:
            amount = -1.0
        if period not in PERIODS_MS or not (isfinite(amount) and amount > 0):
            allowed = ", ".join(PERIODS_MS)
            raise ValueError(
                f"spend_cap is {text!r}; allowed: an amount and a period ({allowed}), such as 5/day"
            )
        return cls(amount, PERIODS_MS[period])


def break_even(instances_hour: float, workers_hour: float) -> float:
    """Return the share of the time from which on workers that are always there cost less than
    instances that are there in bursts only; each price is of all of them together."""
    if not instances_hour:
        return inf
    return workers_hour / instances_hour


class Spending:
    """Counts what is spent, and compares it with the cap."""

    def __init__(self, cap: Cap | None = None, spent: Spent | None = None) -> None:
        self.cap = cap
        self.spent = spent or Spent()

    def count(self, price_hour: float, wall_ms: float) -> None:
        """Charge all the time since the last call at one price."""
        before = self.spent
        if not before.until_ms:
            self.spent = Spent(before.total, before.period, int(wall_ms), int(wall_ms))
            return
        elapsed_ms = min(max(0.0, wall_ms - before.until_ms), GAP_MS_MAX)
        amount = price_hour * elapsed_ms / HOUR_MS
        period, since_ms = before.period + amount, before.period_since_ms
        if self.cap is not None and wall_ms - since_ms >= self.cap.period_ms:
            since_ms += int((wall_ms - since_ms) // self.cap.period_ms * self.cap.period_ms)
            period = price_hour * min(elapsed_ms, wall_ms - since_ms) / HOUR_MS
        # A clock that was set back does not charge twice.
        until_ms = max(int(wall_ms), before.until_ms) if elapsed_ms else int(wall_ms)
        self.spent = Spent(before.total + amount, period, since_ms, until_ms)

    def charge(self, amount: float) -> None:
        """Charge something that is paid once."""
        spent = self.spent
        self.spent = Spent(
            spent.total + amount, spent.period + amount, spent.period_since_ms, spent.until_ms
        )

    @property
    def share(self) -> float:
        """How much of the cap is used; 0 without one."""
        return self.spent.period / self.cap.amount if self.cap is not None else 0.0

    @property
    def is_exhausted(self) -> bool:
        return self.share >= 1.0

    def expected(self, price_hour: float, wall_ms: float) -> float:
        """Return what will have been spent at the end of the period, if nothing changes; without a
        cap, what a day costs."""
        if self.cap is None:
            return price_hour * PERIODS_MS["day"] / HOUR_MS
        left_ms = self.cap.period_ms - (wall_ms - self.spent.period_since_ms)
        return self.spent.period + price_hour * max(0.0, left_ms) / HOUR_MS
