"""What a partition says of its urgency, by the order of its worker."""

from __future__ import annotations

from sublet.runtime.frames import Kind
from sublet.scheduler.orders import BEHIND_MS, LeastLaxity, LeastLaxityLateLast, TokenFair
from sublet.scheduler.urgency import Urgency
from tests.unit.partition_harness import Owner, TenMs, make_function


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


def test_with_tokens_the_first_in_line_speaks_for_the_one_behind_it() -> None:
    urgency = Urgency(TokenFair({"app": 1}, tokens_per_s=1))
    owner = held(urgency)
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.arrive(2, ["b"], kind=Kind.SEND)  # The second has no token left.
    owner.take()
    owner.finish()
    owner.arrive(3, ["c"], kind=Kind.SEND)
    assert owner.ready is not None
    assert owner.ready.rank >= BEHIND_MS
    owner.now_ms = 2_000
    owner.arrive(4, ["d"], kind=Kind.SEND)
    assert owner.ready.rank == 2_000
    owner.take()
    assert owner.ids_running() == [["~c:3", "~c:4"]]


def test_what_comes_too_late_does_not_hold_up_what_can_be_in_time() -> None:
    owner = held(Urgency(LeastLaxityLateLast(), TenMs()))
    owner.pace.size = 1
    owner.arrive(1, ["late"], time_left_ms=5, kind=Kind.SEND)
    owner.arrive(1, ["in time"], time_left_ms=50, kind=Kind.SEND, source="~other")
    assert owner.ready is not None
    assert owner.ready.rank == 40
    owner.take()
    assert owner.keys_running() == [["in time"]]
