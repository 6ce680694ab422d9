"""When a supervisor without workers starts one. No I/O.

There is nothing else to decide by: no worker leads, and the plan says that there should be none.
A worker is needed when somebody waits for one, or when something is due that the last one left
behind; and at once after one that could not say what it left. Times are of the wall clock, as those
of timers are: a machine that sleeps must not be late afterwards.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

PAUSE_S_FIRST = 1.0
PAUSE_S_MAX = 60.0
START_S_EXPECTED = 0.5
START_KEPT = 0.7
"""Of how long a start is known to take, when one more has been seen."""


class Refusal(NamedTuple):
    """Why nobody is started now, and when it is tried again."""

    reason: str
    retry_after_ms: int


class Waking:
    def __init__(self) -> None:
        self.due_s = inf
        """A worker is ready then, whoever asks."""
        self._start_s = START_S_EXPECTED
        self._failures = 0
        self._reason = ""
        self._not_before_s = -inf

    def rested(self, wake_in_ms: float | None, now_s: float) -> None:
        """The last worker has ended in good order; something may be due later."""
        if wake_in_ms is not None:
            self.due_s = min(self.due_s, now_s + wake_in_ms / 1000)

    def lost(self, now_s: float) -> None:
        """The last worker has ended and did not say what it leaves behind."""
        self.due_s = now_s

    def ready(self, took_s: float | None = None) -> None:
        """A worker serves, and sees to everything; it was started so long ago."""
        self.due_s, self._failures, self._not_before_s = inf, 0, -inf
        if took_s is not None:
            self._start_s = START_KEPT * self._start_s + (1 - START_KEPT) * took_s

    def failed(self, reason: str, now_s: float) -> None:
        """A worker could not be kept alive: none is started for a while. What is due is tried
        again by itself."""
        pause_s = min(PAUSE_S_FIRST * 2.0**self._failures, PAUSE_S_MAX)
        self._failures = min(self._failures + 1, 20)
        self._reason, self._not_before_s = reason, now_s + pause_s
        self.due_s = now_s

    def starts(self, now_s: float, *, is_awaited: bool) -> bool:
        """Tell whether a worker is to be started now."""
        return now_s >= self._not_before_s and (is_awaited or now_s >= self._due_start_s)

    @property
    def _due_start_s(self) -> float:
        return self.due_s - self._start_s

    def refusal(self, now_s: float) -> Refusal | None:
        """Return what those are told who wait; None if they need not be told."""
        if now_s >= self._not_before_s:
            return None
        left_s = self._not_before_s - now_s
        return Refusal(f"{self._reason}; next try in {left_s:.0f} s", int(left_s * 1000) + 1)

    def pause_s(self, now_s: float) -> float:
        """Return after what time to look again, if nothing happens."""
        return max(0.0, max(self._due_start_s, self._not_before_s) - now_s)
