"""The spike detection finds what a plain loop over the same readings finds."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from itertools import islice

import pytest

from examples.spike_detection import (
    SPIKE_FACTOR,
    SPIKES_KEPT,
    WINDOW_READINGS,
    Averaged,
    Reading,
    Record,
    Spike,
    app,
    average,
    detect,
    spikes,
)
from examples.spike_detection_readings import SPIKE_SHARE, generate_readings
from sublet.testing import Harness

Sent = tuple[str, int, int]


@pytest.fixture
def harness(sublet_harness: Callable[..., Harness]) -> Harness:
    return sublet_harness(app)


def expected_spikes(readings: Iterable[Sent]) -> list[Spike]:
    windows: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=WINDOW_READINGS))
    found = []
    for sensor, at_ms, millicelsius in readings:
        window = windows[sensor]
        window.append(millicelsius)
        mean = sum(window) / len(window)
        if millicelsius > SPIKE_FACTOR * mean:
            found.append(Spike(sensor, at_ms, millicelsius, mean))
    return found


def send(harness: Harness, readings: Iterable[Sent]) -> None:
    sent = list(readings)
    messages = [Reading(at_ms, millicelsius) for _, at_ms, millicelsius in sent]
    harness.send_many(average, [sensor for sensor, _, _ in sent], messages)


def by_sensor(found: Iterable[Spike]) -> list[Spike]:
    """Return spikes in an order that does not depend on which sensor was handled first."""
    return sorted(found, key=lambda each: (each.sensor, each.at_ms))


def test_the_average_is_of_all_readings_so_far(harness: Harness) -> None:
    readings = [Reading(at_ms, value) for at_ms, value in enumerate([20_000, 21_000, 25_000])]

    assert harness.call_many(average, ["attic"] * 3, readings) == [20_000, 20_500, 22_000]
    assert harness.call(average, "cellar", Reading(0, 9_000)) == 9_000


def test_a_window_forgets_its_oldest_reading(harness: Harness) -> None:
    send(harness, [("attic", at_ms, 20_000) for at_ms in range(WINDOW_READINGS)])

    assert harness.call(average, "attic", Reading(0, 21_000)) == 20_001
    assert harness.state(average, "attic") == {
        "window": [20_000] * (WINDOW_READINGS - 1) + [21_000],
        "total": 20_001_000,
    }


@pytest.mark.parametrize(("millicelsius", "is_spike"), [(24_000, False), (24_001, True)])
def test_only_what_is_above_the_factor_is_a_spike(
    harness: Harness, millicelsius: int, is_spike: bool
) -> None:
    harness.send(detect, "attic", Averaged(7, millicelsius, 20_000.0))

    wanted = [Spike("attic", 7, millicelsius, 20_000.0)] if is_spike else []
    assert harness.emitted("spikes", Spike) == wanted
    assert harness.call(spikes, "attic") == Record(len(wanted), wanted)


def test_the_latest_spikes_are_on_record(harness: Harness) -> None:
    for at_ms in range(SPIKES_KEPT + 5):
        harness.send(spikes, "attic", Spike("attic", at_ms, 90_000, 20_000.0))

    record = harness.call(spikes, "attic")
    assert record.count == SPIKES_KEPT + 5
    assert [each.at_ms for each in record.latest] == list(range(5, SPIKES_KEPT + 5))


def test_the_spikes_are_those_of_a_plain_loop(harness: Harness) -> None:
    readings = list(islice(generate_readings(seed=1, sensor_count=5), 8_000))
    expected = expected_spikes(readings)
    assert len(expected) > 20

    for start in range(0, len(readings), 700):
        send(harness, readings[start : start + 700])

    assert by_sensor(harness.emitted("spikes", Spike)) == by_sensor(expected)
    counts = Counter(each.sensor for each in expected)
    assert {sensor: harness.call(spikes, sensor).count for sensor in counts} == counts


@pytest.mark.parametrize("at_commit", [1, 2, 5, 10, 20])
def test_no_reading_is_averaged_twice_when_the_worker_crashes(
    harness: Harness, at_commit: int
) -> None:
    readings = list(islice(generate_readings(seed=2, sensor_count=20), 1_000))
    harness.crash(at_commit=at_commit, applied=at_commit % 2 == 0)
    harness.fail_next(average, times=3, after=True)
    harness.fail_next(detect, times=3, after=True)

    send(harness, readings)
    harness.advance("1m")

    assert by_sensor(harness.emitted("spikes", Spike)) == by_sensor(expected_spikes(readings))
    harness.assert_idle()


def test_the_same_seed_gives_the_same_readings() -> None:
    first, again, other = (list(islice(generate_readings(seed), 1_000)) for seed in (3, 3, 4))

    assert first == again != other


def test_readings_look_like_those_of_an_office() -> None:
    readings = list(islice(generate_readings(seed=5), 50_000))

    assert len({sensor for sensor, _, _ in readings}) == 100
    assert [at_ms for _, at_ms, _ in readings] == sorted(at_ms for _, at_ms, _ in readings)
    share = len(expected_spikes(readings)) / len(readings)
    assert 0.8 * SPIKE_SHARE < share < 1.2 * SPIKE_SHARE


def test_there_is_at_least_one_sensor() -> None:
    with pytest.raises(ValueError, match="sensor_count is 0; allowed: 1 or more"):
        next(generate_readings(seed=1, sensor_count=0))
