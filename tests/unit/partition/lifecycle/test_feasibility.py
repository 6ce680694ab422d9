"""Calls that cannot be in time are answered at once, where a function asks for it."""

from __future__ import annotations

import pytest

from sublet.functions.app import App
from sublet.runtime.protocol.frames import Kind
from sublet.scheduler.laxity_queue import LaxityQueue
from sublet.scheduler.orders import LeastLaxity
from sublet.scheduler.urgency import Urgency
from tests.unit.partition.harness import PEER, Owner, TenMs, make_function


def owner(**options: str) -> Owner:
    urgency = Urgency(LeastLaxity(), TenMs())
    function = make_function(infeasible="refuse", **options)
    made = Owner(function, urgency=urgency, backlog=LaxityQueue())
    made.held = True
    return made


def test_a_call_that_cannot_be_in_time_is_answered_at_once_with_the_estimate() -> None:
    desk = owner()
    desk.arrive(1, ["a", "b", "c"], time_left_ms=1_000)
    desk.arrive(4, ["d"], time_left_ms=15)
    desk.arrive(5, ["e"], time_left_ms=18)
    desk.commit()

    assert desk.replies() == [(5, "infeasible")]
    assert desk.partition.queued == 4
    assert desk.partition.refusals == {"infeasible": 1}
    text = desk.delivered[-1].errors[0].message  # type: ignore[index]
    assert text == "a reply would take about 20 ms, and is due in 18 ms"


def test_what_is_due_later_does_not_count() -> None:
    desk = owner()
    desk.arrive(1, ["a"] * 50, time_left_ms=10_000)
    desk.arrive(1, ["b"], time_left_ms=15, source="~other")

    assert desk.partition.queued == 51


def test_in_one_batch_those_that_fit_stay() -> None:
    desk = owner()
    desk.arrive(1, ["a", "b", "c", "d"], time_left_ms=25)
    desk.commit()

    assert desk.replies() == [(3, "infeasible"), (4, "infeasible")]
    assert desk.partition.queued == 2
    desk.take()
    assert desk.keys_running() == [["a", "b"]]
    desk.finish()
    desk.settle()
    assert [number for number, _ in desk.replies()] == [3, 4, 1, 2]
    assert desk.acks[-1].upto == 4


def test_the_deadline_may_be_the_functions() -> None:
    desk = owner(slo="5ms")
    desk.arrive(1, ["a"])
    desk.commit()

    assert desk.replies() == [(1, "infeasible")]


def test_sends_and_calls_of_other_functions_are_never_refused() -> None:
    desk = owner(slo="5ms")
    desk.arrive(1, ["a"], kind=Kind.SEND)
    desk.arrive(1, ["b"], source=PEER, time_left_ms=1)

    assert desk.partition.queued == 2


def test_what_was_taken_does_not_count_any_more() -> None:
    desk = owner()
    desk.arrive(1, ["a", "b", "c"], time_left_ms=1_000)
    desk.take()
    desk.arrive(4, ["d"], time_left_ms=12)

    assert desk.partition.queued == 1


def test_a_partition_that_is_lost_takes_its_backlog_with_it() -> None:
    desk = owner()
    desk.arrive(1, ["a", "b", "c"], time_left_ms=1_000)
    waiting = desk.backlog
    assert waiting is not None
    assert len(waiting) == 1
    next_owner = desk.take_over()
    assert next_owner is not desk
    desk.take()
    desk.finish()
    desk.commit()

    assert desk.partition.stopped
    assert len(waiting) == 0


def test_another_word_for_infeasible_is_refused() -> None:
    app = App("app")
    with pytest.raises(ValueError, match="infeasible is 'drop'; allowed: 'run', 'refuse'"):

        @app.function(infeasible="drop")  # type: ignore[arg-type]
        def f(ctx: object) -> None: ...
