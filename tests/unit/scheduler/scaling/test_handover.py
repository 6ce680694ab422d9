"""Bursts that last, or come too often: when workers are cheaper than instances."""

from __future__ import annotations

import pytest

from sublet.scheduler.scaling.cost import break_even
from sublet.scheduler.scaling.handover import DAY_S, Handover

VM_HOUR = 0.252
LAMBDA_HOUR = 1.769 * 0.0000166667 * 3_600


def pass_burst(handover: Handover, since_s: int, seconds: int) -> int:
    """A burst takes 200 instances in place of 15 workers, each with a capacity of 1."""
    for second in range(since_s, since_s + seconds):
        handover.observe(
            1_000.0 * second,
            workers=10,
            load=25.0,
            capacity=1.0,
            instances=200,
            instance_hour=LAMBDA_HOUR,
            worker_hour=VM_HOUR,
        )
    return since_s + seconds


def pass_calm(handover: Handover, since_s: int, seconds: int, step_s: int = 10) -> int:
    for second in range(since_s, since_s + seconds, step_s):
        handover.observe(
            1_000.0 * second,
            workers=10,
            load=7.0,
            capacity=1.0,
            instances=0,
            instance_hour=LAMBDA_HOUR,
            worker_hour=VM_HOUR,
        )
    return since_s + seconds


@pytest.mark.parametrize(("workers", "share"), [(15, 0.18), (20, 0.24)])
def test_200_instances_break_even_at_the_shares_of_the_day_that_list_prices_give(
    workers: int, share: float
) -> None:
    found = break_even(200 * LAMBDA_HOUR, workers * VM_HOUR)
    assert round(found, 2) == share


def test_instances_that_cost_nothing_never_break_even() -> None:
    assert break_even(0.0, VM_HOUR) > 1


def test_a_burst_that_lasts_wants_workers_and_its_end_lets_them_go() -> None:
    handover = Handover(60_000.0, 10)
    now = pass_burst(handover, 0, 60)
    assert handover.floor == 0
    now = pass_burst(handover, now, 1)
    assert handover.floor == 25
    pass_calm(handover, now, 200)
    assert handover.floor == 0


def test_a_burst_that_is_interrupted_begins_anew() -> None:
    handover = Handover(60_000.0, 10)
    now = pass_burst(handover, 0, 50)
    now = pass_calm(handover, now, 1, step_s=1)
    pass_burst(handover, now, 50)
    assert handover.floor == 0


@pytest.mark.parametrize(("share", "kept"), [(0.10, 0), (0.30, 25)])
def test_workers_are_kept_when_bursts_take_more_of_the_day_than_breaks_even(
    share: float, kept: int
) -> None:
    """15 workers for 200 instances: from 18 % of the day on."""
    handover = Handover(60_000.0, 10)
    handover.recall({"burst_s": share * DAY_S, "seen_s": DAY_S})
    now = pass_burst(handover, 0, 1)
    assert handover.floor == kept  # At once, or not before it has lasted.
    pass_calm(handover, now, 600)
    assert handover.floor == kept


def test_a_day_that_was_not_seen_counts_as_calm() -> None:
    handover = Handover(60_000.0, 10)
    pass_burst(handover, 0, 30)
    assert handover.share_of_day == pytest.approx(29 / DAY_S)


def test_what_was_long_ago_counts_less() -> None:
    handover = Handover(60_000.0, 10)
    handover.recall({"burst_s": DAY_S, "seen_s": DAY_S})
    assert handover.share_of_day == 1.0
    pass_calm(handover, 0, int(1.5 * DAY_S))
    assert handover.share_of_day < 0.45


def test_a_gap_in_which_nobody_counted_is_no_burst() -> None:
    handover = Handover(60_000.0, 10)
    pass_burst(handover, 0, 2)
    pass_burst(handover, 50_000, 1)
    assert handover.share_of_day <= 11 / DAY_S
