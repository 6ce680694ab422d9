"""Numbers as people read them: durations, sizes, counts. Scripts get plain numbers, as JSON."""

from __future__ import annotations

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400


def duration_text(duration_ms: float) -> str:
    """Return a time with the unit that fits: `120 µs`, `1.4 ms`, `9 s`, `2 min 5 s`, `3 d 4 h`."""
    if duration_ms < 0:
        return f"-{duration_text(-duration_ms)}"
    if duration_ms < 0.9995:
        return f"{_three_digits(duration_ms * 1000)} µs" if duration_ms else "0 s"
    if duration_ms < 999.5:
        return f"{_three_digits(duration_ms)} ms"
    if duration_ms < 59_950:
        return f"{_three_digits(duration_ms / 1000)} s"
    whole_s = round(duration_ms / 1000)
    for large_s, large, small_s, small in (
        (_DAY_S, "d", _HOUR_S, "h"),
        (_HOUR_S, "h", _MINUTE_S, "min"),
        (_MINUTE_S, "min", 1, "s"),
    ):
        if whole_s >= large_s:
            rest = whole_s % large_s // small_s
            return f"{whole_s // large_s:,} {large}" + (f" {rest} {small}" if rest else "")
    return f"{whole_s} s"


def size_text(size_bytes: float) -> str:
    """Return a size with the unit that fits: `12 B`, `1.7 KiB`, `2.05 GiB`."""
    size, unit = size_bytes, 0
    while abs(size) >= 999.5 and unit < len(_SIZES) - 1:
        size, unit = size / 1024, unit + 1
    return f"{_three_digits(size)} {_SIZES[unit]}"


def count_text(count: float) -> str:
    """Return a number with its thousands apart; a fraction only where there is one."""
    return f"{count:,.0f}" if count == int(count) else f"{count:,.1f}"


def quantity(name: str, value: float) -> tuple[str, str]:
    """Return name and value apart from the unit in the name: `commit_busy_s`, 0.008 is 8 ms."""
    for suffix, text in (("_bytes", size_text), ("_ms", duration_text), ("_s", _seconds_text)):
        if name.endswith(suffix):
            return name.removesuffix(suffix), text(value)
    return name, count_text(value)


def _seconds_text(duration_s: float) -> str:
    return duration_text(duration_s * 1000)


def _three_digits(value: float) -> str:
    """Return a number below 1,000 with three digits that count, and no zeros at its end."""
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
