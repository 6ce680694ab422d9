"""When what waits in a partition is worth a run: now, or after a while in which more may come.

A batch costs `a + b·n`: larger ones cost less for each message, and make the first one wait. Where
the worker is busy, messages gather by themselves while they wait for their turn. What is decided
here is only when to wait although a run could begin.
"""

from __future__ import annotations

from math import exp
from typing import Protocol

from sublet.functions.app import Function

WAIT_MS_MAX = 20.0
FIXED_MS_MIN = 0.5
"""Runs that cost less than this besides their messages are not worth a wait: a timer is not more
exact than a millisecond."""
RATE_WINDOW_MS = 50.0
FRAMES_WEIGHT = 1 / 8
FRAMES_TOGETHER = 1.25


class Batching(Protocol):
    """One for each partition."""

    def arrived(self, count: int) -> None:
        """Messages have come."""
        ...

    def wait_ms(self, queued: int, waited_ms: float, now_ms: float) -> float:
        """Return for how long a partition should wait for more messages; 0 lets it run now.

        `queued` messages wait, the first of them for `waited_ms`. Asked when something could start
        that was not told yet. The partition waits no longer than the time left allows.
        """
        ...


class Curve(Protocol):
    """What is known of costs."""

    def fixed_ms(self, function: Function) -> float:
        """Return what a run costs however many messages are in it; 0 if nothing is known."""
        ...


class FixedBatching:
    """Runs when so many wait, or after so long: for who knows what is best."""

    def __init__(self, size: int | None, window_ms: float) -> None:
        self._size = size
        self._window_ms = window_ms

    def arrived(self, count: int) -> None:
        return

    def wait_ms(self, queued: int, waited_ms: float, now_ms: float) -> float:
        if self._size is not None and queued >= self._size:
            return 0.0
        return self._window_ms - waited_ms


class AdaptiveBatching:
    """Waits as long as one more message makes the batch cheaper for each of them.

    With `q` messages a run costs `a/q + b` for each. Whoever waits for the next one at a rate of
    `r` loses `1/r` of the run's time and gains a message for `b`: that is worth it while
    `1/r < a/q`, so until `q = a·r`. Below one message in `a` nobody ever waits: the worker can keep
    up with single ones.
    """

    def __init__(self, function: Function, curve: Curve) -> None:
        self._function = function
        self._curve = curve
        # Runs that wait for something else leave the core to others meanwhile.
        self._runs_at_once = (function.concurrency or 10) if function.blocking else 1
        self._fresh = 0
        """Messages that came since somebody asked."""
        self._seen = 0.0
        """Messages of about the last window before, newer ones counting more."""
        self._seen_ms = 0.0

    def arrived(self, count: int) -> None:
        self._fresh += count

    def wait_ms(self, queued: int, waited_ms: float, now_ms: float) -> float:
        fixed_ms = self._curve.fixed_ms(self._function) / self._runs_at_once
        if fixed_ms < FIXED_MS_MIN:
            self._fresh = 0
            return 0.0
        # Over several runs: the messages of one moment say nothing about the next.
        rate_per_ms = self._rate_per_ms(now_ms, max(RATE_WINDOW_MS, 5 * fixed_ms))
        missing = fixed_ms * rate_per_ms - queued
        if missing <= 0:
            return 0.0
        return min(missing / rate_per_ms, WAIT_MS_MAX - waited_ms)

    def _rate_per_ms(self, now_ms: float, window_ms: float) -> float:
        passed_ms = now_ms - self._seen_ms
        fresh, self._fresh = self._fresh, 0
        self._seen_ms = now_ms
        if passed_ms > 0:
            kept = exp(-passed_ms / window_ms)
            # As if they had come one after the other since.
            self._seen = self._seen * kept + fresh * (1 - kept) * window_ms / passed_ms
        else:
            self._seen += fresh
        return self._seen / window_ms


class FrameTurns:
    """Whether what a frame has brought runs at once, or with the other frames of the same turn.

    Where frames come one in a turn of the loop, waiting for the next turn would only cost time;
    where many clients send at once, their messages for one partition should run together.
    """

    __slots__ = ("_frames", "_mean")

    def __init__(self) -> None:
        self._frames = 0
        self._mean = 1.0

    def arrived(self) -> bool:
        """A frame is here; return whether what it has brought should run at once."""
        self._frames += 1
        return self._mean < FRAMES_TOGETHER

    def ended(self) -> None:
        """A turn of the loop has ended."""
        if self._frames:
            self._mean += FRAMES_WEIGHT * (self._frames - self._mean)
            self._frames = 0


def batching_of(function: Function, curve: Curve | None) -> Batching | None:
    """Return what a function has declared, or what follows the curve; None never waits."""
    if function.batch_wait_ms is not None:
        return FixedBatching(function.batch_size, function.batch_wait_ms)
    if function.batch_size is not None or curve is None:
        return None
    return AdaptiveBatching(function, curve)
