"""Windows: which stretches of time a message belongs to, and what counts as its time.

Pure declarations. What runs for each message and at a window's end is in `window_runs`, the state
of a key's open windows in `state.windowed`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple

from sublet.functions.duration import Duration, milliseconds
from sublet.functions.errors import RejectedError

TimeKind = Literal["event", "ingestion", "processing"]
EventTime = str | Callable[[Any], object]
"""A field of the message, or a function of the message: milliseconds since 1970 or a datetime."""

OPEN_MAX = 1_000
TIME_MS_MAX = 2**60
"""Event times beyond are nonsense, and would not fit where they are stored."""
BEGINNING_MS = -(2**62)
"""The watermark before anybody has told one."""


class Window(NamedTuple):
    """A stretch of time, in milliseconds since 1970: from `start_ms` up to, but not including,
    `end_ms`."""

    start_ms: int
    end_ms: int


class WindowSpec(ABC):
    """What all kinds of windows can be told."""

    __slots__ = (
        "_read",
        "event_time",
        "late_egress",
        "lateness_ms",
        "merges",
        "open_max",
        "slide_ms",
        "time",
    )

    def __init__(
        self,
        *,
        slide_ms: int | None,
        time: TimeKind | None,
        event_time: EventTime | None,
        lateness: Duration,
        late_egress: str | None,
        open_max: int,
    ) -> None:
        if time is None:
            time = "ingestion" if event_time is None else "event"
        if time not in ("event", "ingestion", "processing"):
            raise ValueError(f"time is {time!r}; allowed: 'event', 'ingestion', 'processing'")
        if time == "event" and event_time is None:
            raise ValueError(
                "event time needs event_time: a field's name or a function of the message"
            )
        if time != "event" and event_time is not None:
            raise ValueError(f"event_time is for time='event', not for time={time!r}")
        if open_max < 1:
            raise ValueError(f"open_max is {open_max}; allowed: 1 or more")
        if late_egress == "":
            raise ValueError("late_egress is empty; allowed: a name, or None to drop late messages")
        self.time: TimeKind = time
        self.event_time = event_time
        self.lateness_ms = whole_ms("lateness", lateness, least=0)
        if self.lateness_ms and time != "event":
            raise ValueError(f"lateness is for time='event': nothing is late in {time} time")
        self.late_egress = late_egress
        self.open_max = open_max
        self.slide_ms = slide_ms
        """How far apart windows begin; None if only the messages tell."""
        self.merges = False
        """Windows that touch become one."""
        self._read = _reader(event_time)

    @abstractmethod
    def windows_of(self, at_ms: int) -> list[Window]:
        """Return the windows that a message of this time is in, the earliest first."""

    def event_time_of(self, message: Any) -> int:
        """Return a message's own time; `RejectedError` if it has none."""
        try:
            at = self._read(message)
        except (AttributeError, KeyError, TypeError, IndexError) as error:
            raise RejectedError(
                f"the message has no event time ({self.event_time!r}): {error!r}"
            ) from error
        if type(at) is int:
            at_ms = at
        elif isinstance(at, datetime):
            if at.tzinfo is None:
                raise RejectedError(f"the event time {at} has no time zone")
            at_ms = math.floor(at.timestamp() * 1000)
        elif isinstance(at, float) and math.isfinite(at):
            at_ms = math.floor(at)
        else:
            raise RejectedError(
                f"the event time is {at!r:.80}; allowed: milliseconds since 1970, or a datetime"
            )
        if not -TIME_MS_MAX <= at_ms <= TIME_MS_MAX:
            raise RejectedError(f"the event time is {at_ms}; allowed: ±2**60 milliseconds")
        return at_ms


class TumblingWindow(WindowSpec):
    """Windows of one size, one after the other: each message is in exactly one."""

    __slots__ = ("_offset_ms", "size_ms")

    def __init__(
        self,
        size: Duration,
        *,
        offset: Duration = 0,
        time: TimeKind | None = None,
        event_time: EventTime | None = None,
        lateness: Duration = 0,
        late_egress: str | None = "late",
        open_max: int = OPEN_MAX,
    ) -> None:
        """
        - `size`: how long each window is; windows begin at multiples of it since 1970.
        - `offset`: by how much they begin later, for days that begin at another hour.
        - `time`: "event" (the message's own, see `event_time`), "ingestion" (when it reached its
          partition; the default without `event_time`), "processing" (when it is handled).
        - `event_time`: the message's field, or a function of the message, that tells its time:
          milliseconds since 1970 or a datetime with a time zone.
        - `lateness`: how long after its end a window still takes late messages; each of them
          closes it again.
        - `late_egress`: where messages go that come even later; None drops them.
        - `open_max`: how many windows of one key may be open at once.
        """
        self.size_ms = whole_ms("size", size)
        self._offset_ms = whole_ms("offset", offset, least=0) % self.size_ms
        super().__init__(
            slide_ms=self.size_ms,
            time=time,
            event_time=event_time,
            lateness=lateness,
            late_egress=late_egress,
            open_max=open_max,
        )

    def windows_of(self, at_ms: int) -> list[Window]:
        start_ms = at_ms - (at_ms - self._offset_ms) % self.size_ms
        return [Window(start_ms, start_ms + self.size_ms)]

    def __repr__(self) -> str:
        return f"TumblingWindow({self.size_ms} ms, {self.time} time)"


class SlidingWindow(WindowSpec):
    """Windows of one size that begin more often than one ends: a message is in several."""

    __slots__ = ("_offset_ms", "size_ms")

    def __init__(  # noqa: PLR0913  # Each option is a word of the declaration.
        self,
        size: Duration,
        slide: Duration,
        *,
        offset: Duration = 0,
        time: TimeKind | None = None,
        event_time: EventTime | None = None,
        lateness: Duration = 0,
        late_egress: str | None = "late",
        open_max: int = OPEN_MAX,
    ) -> None:
        """`slide` is how far apart windows begin, at most `size`; for the rest see
        `TumblingWindow`."""
        self.size_ms = whole_ms("size", size)
        slide_ms = whole_ms("slide", slide)
        if slide_ms > self.size_ms:
            raise ValueError(f"slide is {slide!r}; allowed: at most the size, {size!r}")
        if self.size_ms > slide_ms * open_max:
            raise ValueError(
                f"a message would be in {math.ceil(self.size_ms / slide_ms)} windows; allowed: "
                f"{open_max} (open_max); take a longer slide"
            )
        self._offset_ms = whole_ms("offset", offset, least=0) % slide_ms
        super().__init__(
            slide_ms=slide_ms,
            time=time,
            event_time=event_time,
            lateness=lateness,
            late_egress=late_egress,
            open_max=open_max,
        )

    def windows_of(self, at_ms: int) -> list[Window]:
        slide_ms, size_ms = self.slide_ms, self.size_ms
        assert slide_ms is not None
        last_ms = at_ms - (at_ms - self._offset_ms) % slide_ms
        starts = range(last_ms, at_ms - size_ms, -slide_ms)
        return [Window(start_ms, start_ms + size_ms) for start_ms in reversed(starts)]

    def __repr__(self) -> str:
        return f"SlidingWindow({self.size_ms} ms every {self.slide_ms} ms, {self.time} time)"


class SessionWindow(WindowSpec):
    """Windows that last as long as messages follow each other by less than a gap.

    A message may join two sessions into one, so their state has to be mergeable (`Sum`, `Count`,
    `Merged`, …).
    """

    __slots__ = ("gap_ms",)

    def __init__(
        self,
        gap: Duration,
        *,
        time: TimeKind | None = None,
        event_time: EventTime | None = None,
        lateness: Duration = 0,
        late_egress: str | None = "late",
        open_max: int = OPEN_MAX,
    ) -> None:
        """`gap` is after how long a silence the next message begins a new window; a window ends
        that long after its last message. For the rest see `TumblingWindow`."""
        self.gap_ms = whole_ms("gap", gap)
        super().__init__(
            slide_ms=None,
            time=time,
            event_time=event_time,
            lateness=lateness,
            late_egress=late_egress,
            open_max=open_max,
        )
        self.merges = True

    def windows_of(self, at_ms: int) -> list[Window]:
        return [Window(at_ms, at_ms + self.gap_ms)]

    def __repr__(self) -> str:
        return f"SessionWindow({self.gap_ms} ms, {self.time} time)"


def whole_ms(name: str, duration: Duration, least: int = 1) -> int:
    """Return a duration in whole milliseconds; `ValueError` for fractions and for too little."""
    length_ms = milliseconds(duration)
    if length_ms != int(length_ms) or not least <= length_ms <= TIME_MS_MAX:
        raise ValueError(f"{name} is {duration!r}; allowed: whole milliseconds, {least} or more")
    return int(length_ms)


def watermark_ms_of(time: object) -> int:
    """Return a watermark that a program gives, in milliseconds since 1970."""
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise RejectedError(f"the watermark {time} has no time zone")
        time = math.floor(time.timestamp() * 1000)
    elif isinstance(time, float) and math.isfinite(time):
        time = math.floor(time)
    if type(time) is not int or not -TIME_MS_MAX <= time <= TIME_MS_MAX:
        raise RejectedError(
            f"the watermark is {time!r:.80}; allowed: milliseconds since 1970, a datetime with a "
            "time zone, or None for a source that has nothing more to say"
        )
    return time


def _reader(event_time: EventTime | None) -> Callable[[Any], object]:
    if event_time is None or not isinstance(event_time, str):
        return event_time or (lambda message: None)
    name = event_time

    def read(message: Any) -> object:
        return message[name] if isinstance(message, Mapping) else getattr(message, name)

    return read
