"""Numbers as people read them."""

from __future__ import annotations

import pytest

from sublet.runtime.cli.units import count_text, duration_text, quantity, size_text


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (0, "0 s"),
        (0.0004, "0.4 µs"),
        (0.0123, "12.3 µs"),
        (0.9994, "999 µs"),
        (0.9999, "1 ms"),
        (1.234, "1.23 ms"),
        (50, "50 ms"),
        (123.4, "123 ms"),
        (999.6, "1 s"),
        (9_040, "9.04 s"),
        (59_940, "59.9 s"),
        (59_960, "1 min"),
        (125_000, "2 min 5 s"),
        (3_600_000, "1 h"),
        (7_380_000, "2 h 3 min"),
        (100_800_000, "1 d 4 h"),
        (-250, "-250 ms"),
    ],
)
def test_a_duration_has_the_unit_that_fits(duration_ms: float, text: str) -> None:
    assert duration_text(duration_ms) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "0.98 KiB"),
        (1_728, "1.69 KiB"),
        (64 * 1024 * 1024, "64 MiB"),
        (2_200_000_000, "2.05 GiB"),
        (5 * 1024**5, "5120 TiB"),
    ],
)
def test_a_size_has_the_unit_that_fits(size_bytes: float, text: str) -> None:
    assert size_text(size_bytes) == text


def test_thousands_stand_apart() -> None:
    assert (count_text(1_234_567), count_text(12.34)) == ("1,234,567", "12.3")


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("cache_bytes", 2048.0, ("cache", "2 KiB")),
        ("commit_busy_s", 0.008, ("commit_busy", "8 ms")),
        ("round_trip_ms", 0.5, ("round_trip", "500 µs")),
        ("consumed", 12_000.0, ("consumed", "12,000")),
    ],
)
def test_the_name_of_a_counter_tells_its_unit(
    name: str, value: float, shown: tuple[str, str]
) -> None:
    assert quantity(name, value) == shown
