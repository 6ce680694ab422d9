"""What windows must come to: the same data, computed at once, in the plainest way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sublet.functions.windows import SessionWindow, WindowSpec


class Event(NamedTuple):
    key: str
    at: int
    n: int


Result = tuple[str, int, int, int]
"""(key, start, end, sum)"""


def batch_results(spec: WindowSpec, events: Iterable[Event]) -> set[Result]:
    """Return the sum of each key and window over all events."""
    if isinstance(spec, SessionWindow):
        return _sessions(spec.gap_ms, events)
    sums: dict[tuple[str, int, int], int] = defaultdict(int)
    for event in events:
        for start_ms, end_ms in spec.windows_of(event.at):
            sums[event.key, start_ms, end_ms] += event.n
    return {(*window, total) for window, total in sums.items()}


def _sessions(gap_ms: int, events: Iterable[Event]) -> set[Result]:
    results: set[Result] = set()
    by_key: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_key[event.key].append(event)
    for key, own in by_key.items():
        own.sort(key=lambda each: each.at)
        first = last = own[0].at
        total = 0
        for event in own:
            if event.at - last >= gap_ms:
                results.add((key, first, last + gap_ms, total))
                first, total = event.at, 0
            last = event.at
            total += event.n
        results.add((key, first, last + gap_ms, total))
    return results


def final_results(spec: WindowSpec, closings: Sequence[Sequence[object]]) -> set[Result]:
    """Return what closings have come to: a later one replaces those that it covers."""
    final: list[Result] = []
    for closing in closings:
        key, start_ms, end_ms, total = closing
        assert isinstance(key, str)
        assert isinstance(start_ms, int)
        assert isinstance(end_ms, int)
        assert isinstance(total, int)
        if isinstance(spec, SessionWindow):
            final = [
                each for each in final if each[0] != key or each[2] <= start_ms or each[1] >= end_ms
            ]
        else:
            final = [each for each in final if each[:3] != (key, start_ms, end_ms)]
        final.append((key, start_ms, end_ms, total))
    return set(final)


def taken_by_watermark(
    spec: WindowSpec, steps: Iterable[Event | int]
) -> tuple[set[Result], list[Event]]:
    """Return results and late events, for events in this order between watermarks.

    Not for sessions, where what is taken depends on what was.
    """
    watermark_ms = -(2**62)
    sums: dict[tuple[str, int, int], int] = defaultdict(int)
    late: list[Event] = []
    for step in steps:
        if isinstance(step, int):
            watermark_ms = max(watermark_ms, step)
            continue
        open_ = [
            window
            for window in spec.windows_of(step.at)
            if window.end_ms + spec.lateness_ms > watermark_ms
        ]
        for start_ms, end_ms in open_:
            sums[step.key, start_ms, end_ms] += step.n
        if not open_:
            late.append(step)
    return {(*window, total) for window, total in sums.items()}, late
