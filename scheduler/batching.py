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
RETURNING_SHARE = 0.95
TRUST_MIN = 0.5
TRUST_WEIGHT = 1 / 8
TRIED_EVERY = 32
FRAMES_WEIGHT = 1 / 8
FRAMES_TOGETHER = 1.25


class Batching(Protocol):
    """One for each partition."""

    def arrived(self, count: int) -> None:
        """Messages have come."""
        ...

    def ended(self, count: int, queued: int, now_ms: float) -> None:
        """A run of so many messages has ended, while so many others waited."""
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

    def ended(self, count: int, queued: int, now_ms: float) -> None:
        return

    def wait_ms(self, queued: int, waited_ms: float, now_ms: float) -> float:
        if self._size is not None and queued >= self._size:
            return 0.0
        return self._window_ms - waited_ms


class AdaptiveBatching:
    """Waits as long as more messages make the batch cheaper for each of them.

    With `q` messages a run costs `a/q + b` for each. Whoever waits for the next one at a rate of
    `r` loses `1/r` of the run's time and gains a message for `b`: that is worth it while
    `1/r < a/q`, so until `q = a·r`. Below one message in `a` nobody ever waits: the worker can keep
    up with single ones.

    Callers that wait for their replies come back together: after a run of `n` with `q` others in
    the queue, about `n + q` are soon there again. They are waited for, too, for at most `a`, as
    long as experience says that they come: two runs of half of them each would take longer.
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
        self._expected = 0.0
        """How many should be back after the last run; 0 when they are not waited for."""
        self._trust = 1.0
        """How often they came in time, newer times counting more."""
        self._runs = 0
        self._ended_ms = 0.0

    def arrived(self, count: int) -> None:
        self._fresh += count

    def ended(self, count: int, queued: int, now_ms: float) -> None:
        self._runs += 1
        self._ended_ms = now_ms
        is_tried = self._trust > TRUST_MIN or self._runs % TRIED_EVERY == 0
        self._expected = RETURNING_SHARE * (count + queued) if is_tried else 0.0

    def wait_ms(self, queued: int, waited_ms: float, now_ms: float) -> float:
        fixed_ms = self._curve.fixed_ms(self._function) / self._runs_at_once
        if fixed_ms < FIXED_MS_MIN:
            self._fresh = 0
            return 0.0
        # Over several runs: the messages of one moment say nothing about the next.
        rate_per_ms = self._rate_per_ms(now_ms, max(RATE_WINDOW_MS, 5 * fixed_ms))
        worth = fixed_ms * rate_per_ms
        if worth <= 1:
            return 0.0
        left_ms = WAIT_MS_MAX - waited_ms
        if queued < worth:
            return min((worth - queued) / rate_per_ms, left_ms)
        if not self._expected:
            return 0.0
        is_back = queued >= self._expected
        left_ms = min(left_ms, self._ended_ms + fixed_ms - now_ms)
        if not is_back and left_ms > 0:
            return left_ms
        self._trust += TRUST_WEIGHT * (is_back - self._trust)
        self._expected = 0.0
        return 0.0

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
