"""What leases learn about their own worker, twice a second."""

from __future__ import annotations

import pytest

from sublet.runtime.leases.lessor import MARGIN_SHARE, MARGIN_SHARE_MAX
from sublet.runtime.leases.measurements import (
    DRAG_MAX,
    MARGIN_STEP,
    MEASURE_EVERY_MS,
    LeaseMeasures,
)
from tests.unit.leases.harness import Lender, Scripted, keeps


class Measured:
    """A lessor whose counters a test sets."""

    def __init__(self) -> None:
        self.home = Lender(Scripted(keeps))
        self.partition = self.home.owner.partition
        self.lessor = self.home.lessor
        self.backlog = self.home.lendable.backlog
        self.now_ms = 0.0
        self.measures = LeaseMeasures(self.lessor, self.home.urgency, self.now_ms)

    def measure(self, *, consumed: int, late: int = 0, lent: int = 0, came_back: int = 0) -> None:
        counters, stats = self.partition.counters, self.lessor.stats_of(self.partition.function)
        counters.consumed += consumed
        counters.late += late
        stats.lent += lent
        stats.came_back += came_back
        self.now_ms += MEASURE_EVERY_MS
        assert self.measures.is_due(self.now_ms)
        self.measures.measure([self.partition], self.now_ms)


@pytest.fixture
def worker() -> Measured:
    return Measured()


def test_the_margin_grows_while_some_are_late_although_work_is_lent(worker: Measured) -> None:
    worker.measure(consumed=100, late=2, lent=5)

    assert worker.lessor.margin_share == pytest.approx(MARGIN_SHARE + MARGIN_STEP)


def test_the_margin_has_a_bound(worker: Measured) -> None:
    for _ in range(20):
        worker.measure(consumed=100, late=100, lent=5)

    assert worker.lessor.margin_share == MARGIN_SHARE_MAX


def test_the_margin_shrinks_slowly_when_all_are_in_time(worker: Measured) -> None:
    worker.measure(consumed=100, late=2, lent=5)
    grown = worker.lessor.margin_share
    worker.measure(consumed=100, lent=5)

    assert MARGIN_SHARE < worker.lessor.margin_share < grown
    for _ in range(100):
        worker.measure(consumed=100, lent=5)
    assert worker.lessor.margin_share == MARGIN_SHARE


def test_who_lends_nothing_learns_nothing_about_the_margin(worker: Measured) -> None:
    worker.measure(consumed=100, late=100)

    assert worker.lessor.margin_share == MARGIN_SHARE


def test_a_full_worker_learns_how_much_slower_than_expected_it_is(worker: Measured) -> None:
    worker.backlog.put(1_000.0, 10_000.0, None)
    for _ in range(50):
        # Messages of 10 ms: 20 of them are half of the time, and what others ran is not ours.
        worker.measure(consumed=50, came_back=30)

    assert worker.lessor.drag == pytest.approx(2.0, rel=0.01)


def test_nobody_is_taken_for_slower_than_a_bound(worker: Measured) -> None:
    worker.backlog.put(1_000.0, 10_000.0, None)
    for _ in range(50):
        worker.measure(consumed=1)

    assert worker.lessor.drag == pytest.approx(DRAG_MAX, rel=0.01)


def test_a_worker_that_rests_now_and_then_is_not_taken_for_slow(worker: Measured) -> None:
    worker.measure(consumed=1)

    assert worker.lessor.drag == 1.0
