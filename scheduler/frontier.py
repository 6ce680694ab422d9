"""When the window of a message can close at the earliest: what its deadline counts from.

A message for a window is not late before the window's last message has come. So its start
deadline counts from that time, the frontier time, and work for windows that end later is less
urgent. Two steps lead there: from the message's progress (its place in the stream's own time) to
the end of its window, and from that to the local clock.
"""

from __future__ import annotations

FORGET = 0.9
"""What an earlier observation weighs against the one after it."""
OBSERVATIONS_MIN = 2


def window_end_ms(
    progress_ms: float, slide_ms: float | None, sender_slide_ms: float = 0.0
) -> float:
    """Return the progress at which the first window that a message is in can close.

    `slide_ms` is that of the function that takes the message; None if it has no windows of a
    known length. Messages of a sender whose windows are at least as far apart come once a window:
    they wait for nobody.
    """
    if slide_ms is None or slide_ms <= sender_slide_ms:
        return progress_ms
    return (progress_ms // slide_ms + 1.0) * slide_ms


class ProgressFit:
    """Learns when watermarks arrive: `time = a · progress + c`, newer ones counting more.

    Weighted least squares over exponentially forgotten sums, O(1) for each observation. All sums
    are relative to the first observation: times since 1970 squared would leave no digits.
    """

    __slots__ = ("_origin_ms", "_p", "_pp", "_pt", "_start_ms", "_t", "_w", "observations")

    def __init__(self) -> None:
        self.observations = 0
        self._origin_ms = self._start_ms = 0.0
        self._w = self._p = self._t = self._pp = self._pt = 0.0

    def learn(self, progress_ms: float, at_ms: float) -> None:
        """A watermark of this progress has arrived at this local time."""
        if not self.observations:
            self._origin_ms, self._start_ms = progress_ms, at_ms
        self.observations += 1
        p, t = progress_ms - self._origin_ms, at_ms - self._start_ms
        self._w = self._w * FORGET + 1.0
        self._p = self._p * FORGET + p
        self._t = self._t * FORGET + t
        self._pp = self._pp * FORGET + p * p
        self._pt = self._pt * FORGET + p * t

    def arrival_ms(self, progress_ms: float) -> float | None:
        """Return when a watermark of this progress is expected; None if nobody can tell."""
        if self.observations < OBSERVATIONS_MIN:
            return None
        mean_p, mean_t = self._p / self._w, self._t / self._w
        variance = self._pp / self._w - mean_p * mean_p
        if variance <= 1e-9 * max(1.0, mean_p * mean_p):
            return None
        slope = (self._pt / self._w - mean_p * mean_t) / variance
        if slope <= 0.0:
            return None
        expected_ms = mean_t + slope * (progress_ms - self._origin_ms - mean_p)
        return expected_ms + self._start_ms


class EventTimeFrontier:
    """For windows of event time: watermarks close them, and their arrivals were observed."""

    def __init__(self, slide_ms: float | None) -> None:
        self._slide_ms = slide_ms
        self._fit = ProgressFit()

    def learn(self, watermark_ms: float, now_ms: float) -> None:
        self._fit.learn(watermark_ms, now_ms)

    def frontier_ms(
        self, progress_ms: float | None, now_ms: float, sender_slide_ms: float = 0.0
    ) -> float:
        """Return from when on a message's time counts: now, or when its window can close.

        `progress_ms` is None if nothing is known of the message's event time.
        """
        if progress_ms is None or self._slide_ms is None:
            return now_ms
        end_ms = window_end_ms(progress_ms, self._slide_ms, sender_slide_ms)
        expected_ms = self._fit.arrival_ms(end_ms)
        return now_ms if expected_ms is None else max(now_ms, expected_ms)


class ClockFrontier:
    """For windows of ingestion and processing time: the clock closes them."""

    def __init__(self, slide_ms: float | None) -> None:
        self._slide_ms = slide_ms

    def frontier_ms(self, clock_ms: float, now_ms: float) -> float:
        """Return when the window closes that a message is in which arrives now.

        `clock_ms` is what the clock of the windows shows now.
        """
        if self._slide_ms is None:
            return now_ms
        return now_ms + window_end_ms(clock_ms, self._slide_ms) - clock_ms
