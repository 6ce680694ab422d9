"""How recovery is measured in chaos runs."""

from __future__ import annotations

import pytest

from tests.chaos.recovery import Recoveries, percentile
from tests.chaos.report import ALL, MOVED, recovery_rows


@pytest.fixture
def recoveries() -> Recoveries:
    return Recoveries(["a", "b"])


def seconds_of(recoveries: Recoveries) -> list[tuple[str, float]]:
    return [(each.kind, each.seconds) for each in recoveries.done]


def test_recovery_lasts_until_the_last_partition_answers(recoveries: Recoveries) -> None:
    recoveries.fault("kill", 10.0)
    recoveries.answered("a", 10.1, 10.2)
    assert not recoveries.are_all_done
    recoveries.answered("b", 10.1, 13.0)
    assert recoveries.are_all_done
    assert seconds_of(recoveries) == [("kill", 3.0)]
    assert recoveries.done[0].last == "b"


def test_an_answer_to_what_was_asked_before_the_fault_does_not_count(
    recoveries: Recoveries,
) -> None:
    recoveries.fault("kill", 10.0)
    recoveries.answered("a", 9.9, 10.1)
    recoveries.answered("b", 9.9, 10.1)
    assert not recoveries.are_all_done


def test_an_outage_counts_from_its_end(recoveries: Recoveries) -> None:
    recoveries.fault("redis-kill", 10.0)
    recoveries.answered("a", 10.1, 10.2)
    assert not recoveries.are_all_done
    recoveries.outage_ended("redis-kill", 15.0)
    recoveries.answered("a", 15.1, 15.2)
    recoveries.answered("b", 15.1, 15.5)
    assert seconds_of(recoveries) == [("redis-kill", 0.5)]
    assert not recoveries.done[0].is_moved


def test_a_fault_that_meets_an_outage_counts_from_its_end_and_apart(
    recoveries: Recoveries,
) -> None:
    recoveries.fault("kill", 10.0)
    recoveries.fault("redis-freeze", 11.0)
    recoveries.outage_ended("redis-freeze", 15.0)
    recoveries.answered("a", 15.1, 15.2)
    recoveries.answered("b", 15.1, 16.0)
    assert [(each.kind, each.seconds, each.is_moved) for each in recoveries.done] == [
        ("kill", 1.0, True),
        ("redis-freeze", 1.0, False),
    ]
    assert [(row.kind, row.times) for row in recovery_rows(recoveries.done)] == [
        (MOVED, 1),
        ("redis-freeze", 1),
        (ALL, 1),
    ]


def test_another_fault_meanwhile_does_not_shorten_the_first(recoveries: Recoveries) -> None:
    recoveries.fault("kill", 10.0)
    recoveries.fault("kill", 12.0)
    recoveries.answered("a", 12.1, 12.2)
    recoveries.answered("b", 12.1, 14.0)
    assert seconds_of(recoveries) == [("kill", 4.0), ("kill", 2.0)]


def test_what_never_recovers_is_named(recoveries: Recoveries) -> None:
    recoveries.fault("freeze", 10.0)
    recoveries.answered("a", 10.1, 10.2)
    recoveries.give_up(50.0)
    assert recoveries.failed == ["40.0 s after freeze, 1 partitions do not answer: b"]
    assert recoveries.are_all_done


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    assert percentile([3.0], 0.5) == 3.0
    assert percentile([], 0.99) == 0.0
