"""Lengths of time as people write them, turned into milliseconds once, at declaration."""

from __future__ import annotations

import re
from datetime import timedelta

_UNITS_MS = {
    "us": 0.001,
    "ms": 1.0,
    "s": 1000.0,
    "m": 60_000.0,
    "h": 3_600_000.0,
    "d": 86_400_000.0,
}
_FORM = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d)\s*", re.ASCII)

LENGTH_MS_MAX = 10_000 * 366 * _UNITS_MS["d"]
"""Ten thousand years. A time that lies so far ahead is still a number that every store can hold."""

Duration = str | timedelta | int | float
"""`"50ms"`, `"1.5s"`, `timedelta(seconds=2)`, or a number of milliseconds."""


def milliseconds(duration: Duration | object) -> float:
    """Return a length of time in milliseconds; `ValueError` or `TypeError` for anything else.

    A text is a number and one unit: us, ms, s, m (minutes), h or d. A bare number is already
    milliseconds. Negative lengths are refused, and those above ten thousand years.
    """
    if isinstance(duration, str):
        match = _FORM.fullmatch(duration)
        if match is None:
            raise ValueError(_refusal(duration))
        length_ms = float(match[1]) * _UNITS_MS[match[2]]
    elif isinstance(duration, timedelta):
        length_ms = duration / timedelta(milliseconds=1)
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        try:
            length_ms = float(duration)
        except OverflowError:
            raise ValueError(_refusal(duration)) from None
    else:
        raise TypeError(_refusal(duration))
    if not 0 <= length_ms <= LENGTH_MS_MAX:
        raise ValueError(_refusal(duration))
    return length_ms


def _refusal(duration: object) -> str:
    return (
        f"{duration!r:.80} is not a duration; allowed: a text such as '50ms', '1.5s', '2m', '1h' "
        "or '7d', a timedelta, or a number of milliseconds, not negative, below 10,000 years"
    )
