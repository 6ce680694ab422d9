"""The arithmetic under every figure."""

from collections import Counter

import pytest

from benchmarks.harness.workload import (
    ArrivalSchedule,
    LatencyLog,
    latency_figures,
    percentile,
    split_by_worker,
    worker_of,
    zipf_keys,
)


def test_the_same_seed_gives_the_same_keys() -> None:
    assert zipf_keys(1_000) == zipf_keys(1_000)
    assert zipf_keys(1_000) != zipf_keys(1_000, seed=7)


def test_the_first_key_comes_about_twice_as_often_as_the_second() -> None:
    counts = Counter(zipf_keys(100_000))

    assert counts.most_common(1)[0][0] == "k00000"
    assert 1.8 < counts["k00000"] / counts["k00001"] < 2.2


def test_splitting_by_worker_keeps_every_key_and_its_order() -> None:
    keys = zipf_keys(1_000)

    parts = split_by_worker(keys, 2)

    assert parts[1] == [key for key in keys if worker_of(key, 2) == 1]
    assert sum(map(len, parts)) == len(keys)


def test_a_percentile_is_the_nearest_rank() -> None:
    values = [float(value) for value in range(1, 1_001)]

    assert [percentile(values, share) for share in (0.5, 0.99, 0.999, 1.0)] == [
        500.0,
        990.0,
        999.0,
        1_000.0,
    ]


def test_a_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        percentile([], 0.5)


@pytest.mark.parametrize("share", [0.0, 1.01])
def test_a_percentile_outside_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="allowed"):
        percentile([1.0], share)


def test_latencies_are_told_in_milliseconds() -> None:
    assert latency_figures([0.002, 0.001, 0.003]) == {
        "p50_ms": 2.0,
        "p99_ms": 3.0,
        "p99_9_ms": 3.0,
        "max_ms": 3.0,
    }
    assert latency_figures([]) == {}


def test_messages_fall_due_at_the_rate_and_no_more_than_the_count() -> None:
    schedule = ArrivalSchedule.lasting(2.0, rate_per_s=1_000, start_s=10.0)

    assert schedule.due_count(9.9) == 0
    assert schedule.due_count(10.0) == 1
    assert schedule.due_count(10.5005) == 501
    assert schedule.due_count(99.0) == schedule.count == 2_000
    assert schedule.due_s(500) == 10.5


@pytest.mark.parametrize(("rate_per_s", "count"), [(0.0, 1), (1.0, 0)])
def test_a_schedule_without_rate_or_messages_is_refused(rate_per_s: float, count: int) -> None:
    with pytest.raises(ValueError, match="allowed"):
        ArrivalSchedule(rate_per_s, 0.0, count)


def test_a_stall_counts_against_every_message_it_held_up() -> None:
    schedule = ArrivalSchedule(10.0, 0.0, 10)
    latencies = LatencyLog(schedule, warm_up_s=0.0)

    latencies.add([schedule.due_s(index) for index in range(10)], now_s=1.0)

    assert latencies.figures() == {
        "completed_share": 1.0,
        "p50_ms": 500.0,
        "p99_ms": 1_000.0,
        "p99_9_ms": 1_000.0,
        "max_ms": 1_000.0,
    }


def test_the_warm_up_is_counted_but_not_timed() -> None:
    latencies = LatencyLog(ArrivalSchedule(1.0, 0.0, 4), warm_up_s=2.0)

    latencies.add([0.0, 2.0], now_s=2.5)

    assert not latencies.is_complete
    assert latencies.figures()["completed_share"] == 0.5
    assert latencies.figures()["max_ms"] == 500.0
