"""What a partition says of its urgency, by the order of its worker."""

from __future__ import annotations

from sublet.runtime.protocol.frames import Kind
from sublet.scheduler.api import WorkView
from sublet.scheduler.orders import LeastLaxity, LeastLaxityLateLast, TokenFair
from sublet.scheduler.urgency import Urgency
from tests.unit.partition.harness import Owner, TenMs, make_function


def held(urgency: Urgency, **options: str) -> Owner:
    owner = Owner(make_function(**options), urgency=urgency)
    owner.held = True
    return owner


def test_a_partition_is_as_urgent_as_its_most_urgent_message() -> None:
    owner = held(Urgency(LeastLaxity()))
    owner.arrive(1, ["a"], time_left_ms=500)
    assert owner.ready is not None
    assert owner.ready.rank == 500
    owner.arrive(1, ["b"], time_left_ms=100, source="~other")
    assert owner.ready.rank == 100
    owner.take()
    assert owner.ids_running() == [["~other:1", "~c:1"]]


def test_what_has_no_deadline_is_due_when_patience_ends() -> None:
    owner = held(Urgency(LeastLaxity(), patience_ms=3_000))
    owner.arrive(1, ["a"])
    assert owner.ready is not None
    assert owner.ready.rank == 3_000


def test_an_order_by_tokens_is_told_whose_work_begins() -> None:
    order = TokenFair({"app": 1, "other": 1})
    owner = held(Urgency(order))
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.arrive(2, ["b"], kind=Kind.SEND)
    assert owner.ready is not None
    assert owner.ready.rank == 2.0
    owner.take()
    assert owner.ids_running() == [["~c:1", "~c:2"]]
    later = WorkView("app/f", "app/f/1", "other", 1, 0.0, 0.0)
    assert order.rank(later) == 4.0


class ByLength:
    """Ranks by how many messages came together."""

    by_deadline = False

    def rank(self, work: WorkView) -> float:
        return float(work.count)


def test_the_first_in_line_speaks_for_the_most_urgent_behind_it() -> None:
    owner = held(Urgency(ByLength()))
    owner.arrive(1, ["a", "b", "c"], kind=Kind.SEND)
    owner.arrive(4, ["d"], kind=Kind.SEND)
    assert owner.ready is not None
    assert owner.ready.rank == 1.0
    owner.take()
    assert owner.keys_running() == [["a", "b", "c", "d"]]


def test_what_comes_too_late_does_not_hold_up_what_can_be_in_time() -> None:
    owner = held(Urgency(LeastLaxityLateLast(), TenMs()))
    owner.pace.size = 1
    owner.arrive(1, ["late"], time_left_ms=5, kind=Kind.SEND)
    owner.arrive(1, ["in time"], time_left_ms=50, kind=Kind.SEND, source="~other")
    assert owner.ready is not None
    assert owner.ready.rank == 40
    owner.take()
    assert owner.keys_running() == [["in time"]]
