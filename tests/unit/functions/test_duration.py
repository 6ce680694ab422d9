from __future__ import annotations

from datetime import timedelta

import pytest

from sublet.functions.duration import milliseconds


@pytest.mark.parametrize(
    ("duration", "expected_ms"),
    [
        ("50ms", 50.0),
        ("1.5s", 1500.0),
        (" 2 s ", 2000.0),
        ("2m", 120_000.0),
        ("1h", 3_600_000.0),
        ("7d", 604_800_000.0),
        ("250us", 0.25),
        (timedelta(seconds=2), 2000.0),
        (0, 0.0),
        (12.5, 12.5),
    ],
)
def test_a_duration_is_read_as_milliseconds(duration: object, expected_ms: float) -> None:
    assert milliseconds(duration) == pytest.approx(expected_ms)


@pytest.mark.parametrize(
    "nonsense",
    [
        *("", "50", "ms", "5 parsecs", "-1s", "1s1s", "1e3s", "٣s", "9" * 400 + "d"),
        *(-1, 10**400, float("nan"), float("inf"), timedelta(seconds=-1)),
        *(None, True, b"1s", [1]),
    ],
)
def test_nonsense_is_refused_with_the_allowed_forms(nonsense: object) -> None:
    with pytest.raises((ValueError, TypeError), match=r"allowed: a text such as '50ms'"):
        milliseconds(nonsense)
