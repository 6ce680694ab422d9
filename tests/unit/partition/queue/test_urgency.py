"""Turns, urgency, expiry and withdrawal: what runs when, and what need not run any more."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sublet.runtime.config.limits import Limits
from sublet.runtime.partition.queue.awaiting_handlers import EXPIRIES_SPARE
from sublet.runtime.partition.records import channels
from sublet.runtime.partition.records.client_sessions import CLIENT_TTL_MS
from sublet.runtime.protocol.frames import Batch, Extra, Kind
from sublet.scheduler.laxity_queue import LaxityQueue
from sublet.scheduler.orders import LeastLaxity
from sublet.scheduler.urgency import Urgency
from sublet.statestore.contract import AHEAD, IDEMPOTENCY, JOURNAL, PARKED, Outcome
from tests.unit.partition.harness import (
    BROKEN,
    CLIENT,
    NAME,
    PEER,
    Owner,
    TenMs,
    batch,
    make_function,
    replies,
)

FIRST = f"{CLIENT}:1"


def urgent_owner(size: int = 1, **options: Any) -> Owner:
    """Return an owner that runs what is due first, so many at once."""
    options.setdefault("urgency", Urgency(LeastLaxity()))
    owner = Owner(**options)
    owner.pace.size = size
    return owner


def ahead(owner: Owner, source: str = CLIENT) -> list[int]:
    """What is on record as done ahead of a source's position."""
    record = owner.records(AHEAD).get(source)
    return [] if record is None or record.value is None else msgspec.msgpack.decode(record.value)


def position(owner: Owner, source: str = CLIENT) -> int:
    return owner.backend.partitions[NAME].inbox.get(source, 0)


def withdraw(owner: Owner, first: int, *numbers: int, source: str = CLIENT) -> None:
    owner.arrive(first, [str(each) for each in numbers], source=source, kind=Kind.CANCEL_CALL)


def withdrawn(owner: Owner, to: str = PEER) -> list[str]:
    """Numbers of the calls that were taken back from another partition."""
    return [
        key
        for each in owner.delivered
        if each.target == to and each.kind is Kind.CANCEL_CALL
        for key in each.keys
    ]


def calls_to(owner: Owner, to: str = PEER) -> list[Batch]:
    return [each for each in owner.delivered if each.target == to and each.kind is Kind.CALL]


# Turns


def test_nothing_runs_before_its_turn_and_what_arrives_until_then_may_be_more_urgent() -> None:
    owner = urgent_owner()
    owner.held = True
    owner.arrive(1, ["a"], time_left_ms=500)
    assert owner.ready is not None
    assert owner.ready.rank == 500
    owner.arrive(1, ["b"], source=PEER, time_left_ms=50)
    assert owner.ready.rank == 50
    assert owner.runs == []

    owner.take()
    assert owner.keys_running() == [["b"]]


def test_one_turn_starts_one_run_and_asks_for_the_next_when_that_is_over() -> None:
    owner = urgent_owner()
    owner.held = True
    owner.arrive(1, ["a", "b"])
    owner.take()
    assert owner.keys_running() == [["a"]]
    assert owner.ready is None

    owner.finish()
    assert owner.ready is not None


def test_a_turn_without_work_does_no_harm() -> None:
    owner = urgent_owner()
    owner.take()

    assert owner.runs == []
    owner.arrive(1, ["a"])
    owner.settle()
    owner.take()
    assert owner.replies() == [(1, "done a")]


def test_a_rank_is_told_again_only_when_it_changes() -> None:
    owner = urgent_owner()
    owner.held = True
    owner.arrive(1, ["a"], time_left_ms=100)
    owner.ready = None
    owner.arrive(2, ["b"], time_left_ms=100)
    assert owner.ready is None
    owner.arrive(3, ["c"], time_left_ms=10)

    assert owner.ready is not None
    assert owner.ready.rank == 10


# Pulling


def pulled_owner(**options: Any) -> Owner:
    """Return an owner that has run message 4 (key b) and 2 (key b) ahead of 1 and 3."""
    owner = urgent_owner(2, **options)
    owner.held = True
    owner.arrive(1, ["a", "b", "a", "b"], time_left_ms=[900, 900, 900, 10])
    owner.take()
    assert owner.ids_running() == [[f"{CLIENT}:2", f"{CLIENT}:4"]]
    owner.finish()
    owner.commit()
    return owner


def test_an_urgent_message_is_done_ahead_with_the_earlier_ones_of_its_key() -> None:
    owner = pulled_owner()

    assert owner.replies() == [(2, "done b"), (4, "done b")]
    assert ahead(owner) == [2, 4]
    assert position(owner) == 0
    assert owner.acks == []


def test_the_position_passes_what_was_done_ahead() -> None:
    owner = pulled_owner()
    owner.held = False
    owner.take()
    owner.settle()

    assert position(owner) == 4
    assert ahead(owner) == []
    assert owner.records(AHEAD) == {}
    assert owner.acks[-1].upto == 4
    assert sorted(owner.replies()) == [(1, "done a"), (2, "done b"), (3, "done a"), (4, "done b")]


@pytest.mark.parametrize("cuts", [[4], [1, 3], [2, 2], [1, 1, 1, 1], [3, 1]])
def test_the_next_owner_does_not_do_again_what_was_done_ahead(cuts: list[int]) -> None:
    heir = pulled_owner().take_over()
    heir.held = False
    first = 1
    for count in cuts:
        heir.arrive(first, ["a", "b", "a", "b"][first - 1 : first - 1 + count])
        first += count
        heir.settle()

    assert heir.replies() == [(2, "done b"), (4, "done b"), (1, "done a"), (3, "done a")]
    assert position(heir) == 4
    assert heir.records(AHEAD) == {}
    assert heir.partition.open_from_clients == 0


def test_a_batch_that_overlaps_what_is_known_counts_only_what_is_new() -> None:
    owner = pulled_owner()
    owner.arrive(3, ["a", "b", "c"])

    assert owner.partition.queued == 3
    owner.held = False
    owner.take()
    owner.settle()
    assert owner.partition.queued == owner.partition.open_from_clients == 0
    assert position(owner) == 5


def test_what_a_key_has_sent_before_goes_first_even_if_there_is_no_room_for_the_urgent_one() -> (
    None
):
    owner = urgent_owner(1)
    owner.held = True
    owner.arrive(1, ["b", "a", "a"], time_left_ms=[900, 900, 10])
    owner.take()
    assert owner.ids_running() == [[f"{CLIENT}:2"]]
    owner.finish()
    owner.take()

    assert owner.ids_running() == [[f"{CLIENT}:3"]]


def test_a_pulled_message_waits_behind_its_busy_key() -> None:
    owner = urgent_owner(1, function=make_function(is_async=True))
    owner.arrive(1, ["a"])
    owner.finish(suspended={0})
    owner.held = True
    owner.arrive(2, ["b", "b", "a"], time_left_ms=[900, 900, 10])
    owner.take()
    owner.settle()
    assert f"{CLIENT}:4" in owner.records(PARKED)
    assert 4 in ahead(owner)

    owner.end(FIRST)
    owner.take()
    assert owner.ids_running() == [[f"{CLIENT}:4"]]


def test_no_more_is_pulled_than_a_commit_should_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "AHEAD_MAX", 2)
    owner = urgent_owner(1)
    owner.held = True
    left_ms = [900, 900, 900, 10, 20, 30]
    owner.arrive(1, ["a", "b", "c", "d", "e", "f"], time_left_ms=left_ms)
    ran = []
    for _ in range(6):
        owner.take()
        ran += owner.ids_running()
        owner.finish()
        owner.commit()
        assert len(ahead(owner)) <= 2

    order = [int(each.partition(":")[2]) for (each,) in ran]
    assert order[:3] == [4, 5, 1]
    assert sorted(order) == [1, 2, 3, 4, 5, 6]


def test_arrival_order_pulls_nothing() -> None:
    owner = Owner()
    owner.pace.size = 1
    owner.held = True
    owner.arrive(1, ["a", "b", "c"], time_left_ms=[900, 900, 1])
    owner.take()

    assert owner.ids_running() == [[FIRST]]


def test_of_a_client_that_left_nothing_is_kept_that_was_done_ahead() -> None:
    owner = pulled_owner()
    owner.client_gone()
    owner.held = False
    owner.take()
    owner.settle()

    assert owner.records(AHEAD) == {}
    assert owner.backend.partitions[NAME].inbox == {}
    assert owner.partition._inbox.ahead == {}
    assert owner.partition._inbox.reached == {}


def heir_of_a_parked_message_that_went_ahead() -> Owner:
    """Return an owner that knows a client only by a message on record ahead of its first one."""
    owner = urgent_owner(1, function=make_function(is_async=True))
    owner.held = True
    owner.arrive(1, ["a", "b"], time_left_ms=[900, 1])
    owner.take()
    owner.finish(suspended={0})
    owner.commit()
    assert ahead(owner) == [2]
    heir = owner.take_over()
    tables = heir.backend.partitions[NAME]
    assert (tables.inbox, tables.sent) == ({}, {})
    return heir


def test_a_client_that_the_next_owner_knows_only_by_what_went_ahead_leaves_nothing() -> None:
    heir = heir_of_a_parked_message_that_went_ahead()
    heir.client_gone()
    heir.settle()

    tables = heir.backend.partitions[NAME]
    assert heir.partition.counters.consumed == 1
    assert heir.records(AHEAD) == {}
    assert (tables.inbox, tables.sent, tables.outbox) == ({}, {}, {})


def test_a_silent_client_that_is_known_only_by_what_went_ahead_is_forgotten() -> None:
    heir = heir_of_a_parked_message_that_went_ahead()
    heir.settle()
    heir.acknowledge(CLIENT, 1)
    heir.pass_time(CLIENT_TTL_MS + 1)
    heir.settle()

    assert heir.records(AHEAD) == {}
    assert heir.backend.partitions[NAME].sent == {}


def test_a_client_that_leaves_during_a_run_leaves_no_number() -> None:
    owner = urgent_owner(1)
    owner.held = True
    owner.arrive(1, ["a", "b", "c"], time_left_ms=[900, 900, 1])
    owner.take()
    owner.client_gone()
    owner.held = False
    owner.finish()
    owner.settle()

    assert owner.records(AHEAD) == {}
    assert owner.partition._inbox.reached == {}
    assert owner.partition._inbox.ahead == {}


def test_the_commit_waits_for_the_end_of_a_run_that_was_pulled() -> None:
    owner = urgent_owner(1)
    owner.held = True
    owner.arrive(1, ["a", "b", "c"], time_left_ms=[900, 900, 1])
    owner.take()
    withdraw(owner, 4, 2)
    assert owner.commits == []

    heir = owner.take_over()
    assert ahead(heir) == []


# Expiry


def test_a_call_that_expired_in_the_queue_is_answered_without_running() -> None:
    owner = urgent_owner()
    owner.held = True
    owner.arrive(1, ["a", "b"], time_left_ms=[50, 500])
    owner.pass_time(51)
    owner.held = False
    owner.take()
    assert owner.keys_running() == [["b"]]
    owner.settle()

    assert sorted(owner.replies()) == [(1, "deadline_exceeded"), (2, "done b")]
    assert owner.partition.counters.late == 1


def test_a_whole_batch_that_expired_costs_no_run() -> None:
    owner = urgent_owner(100)
    owner.held = True
    owner.arrive(1, ["a", "b"], time_left_ms=50)
    owner.pass_time(51)
    owner.held = False
    owner.take()
    owner.settle()

    assert owner.replies() == [(1, "deadline_exceeded"), (2, "deadline_exceeded")]
    assert owner.partition.counters.runs == 0
    assert owner.partition.counters.expired == 2
    assert owner.partition.idle


@pytest.mark.parametrize("source", [CLIENT, PEER])
def test_a_send_does_not_expire(source: str) -> None:
    owner = urgent_owner()
    owner.held = True
    owner.arrive(1, ["a"], kind=Kind.SEND, time_left_ms=1, source=source)
    owner.pass_time(1_000)
    owner.take()

    assert owner.keys_running() == [["a"]]


def test_what_a_function_aims_at_is_no_expiry() -> None:
    owner = urgent_owner(function=make_function(slo="5ms"))
    owner.held = True
    owner.arrive(1, ["a"])
    owner.pass_time(1_000)
    owner.take()

    assert owner.keys_running() == [["a"]]


@pytest.mark.parametrize("expires", [False, True])
def test_a_call_of_a_handler_expires_if_the_handlers_caller_does(expires: bool) -> None:
    owner = urgent_owner()
    owner.held = True
    extras = {0: Extra(expires=expires)}
    owner.arrive(1, ["a"], source=PEER, time_left_ms=10, extras=extras)
    owner.pass_time(11)
    owner.held = False
    owner.take()
    owner.settle()

    expected = "deadline_exceeded" if expires else "done a"
    assert owner.replies(f"{PEER}<") == [(1, expected)]


def test_a_call_that_expired_is_not_remembered_and_runs_when_asked_again() -> None:
    owner = urgent_owner()
    owner.held = True
    extras = {0: Extra(idempotency_key="once")}
    owner.arrive(1, ["a"], time_left_ms=10, extras=extras)
    owner.pass_time(11)
    owner.held = False
    owner.take()
    owner.settle()
    assert owner.records(IDEMPOTENCY) == {}
    owner.arrive(2, ["a"], extras=extras)
    owner.settle()

    assert owner.replies() == [(1, "deadline_exceeded"), (2, "done a")]


def test_a_call_behind_a_busy_key_expires_when_its_turn_comes() -> None:
    owner = urgent_owner(function=make_function(is_async=True))
    owner.arrive(1, ["a"])
    owner.finish(suspended={0})
    owner.arrive(2, ["a", "a"], time_left_ms=[10, 500])
    owner.settle()
    owner.pass_time(11)
    owner.end(FIRST)
    assert owner.ids_running() == [[f"{CLIENT}:3"]]
    owner.settle()

    assert sorted(owner.replies()) == [(1, "ended"), (2, "deadline_exceeded"), (3, "done a")]
    assert owner.records(PARKED) == {}


def test_a_call_that_waits_for_a_retry_expires() -> None:
    owner = urgent_owner()
    owner.arrive(1, ["a"], time_left_ms=5)
    owner.finish(failed={0: BROKEN})
    owner.settle()
    owner.pass_time(20)
    owner.settle()

    assert owner.replies() == [(1, "deadline_exceeded")]
    assert owner.records(PARKED) == {}
    assert owner.partition.state_editor.hold("a")


def awaiting_owner(**options: Any) -> Owner:
    """Return an owner whose handler of message 1 (key a) awaits a call, sent as number 1."""
    owner = urgent_owner(function=make_function(is_async=True))
    owner.arrive(1, ["a"], **options)
    if owner.loads:
        owner.load()
    owner.finish(suspended={0})
    owner.call(FIRST)
    owner.settle()
    return owner


def test_a_handler_that_awaits_is_interrupted_at_its_deadline_and_so_is_what_it_awaits() -> None:
    owner = awaiting_owner(time_left_ms=50)
    owner.pass_time(50)
    assert owner.interrupted == []
    owner.pass_time(1)
    assert owner.interrupted == [FIRST]
    owner.pass_time(100)
    assert owner.interrupted == [FIRST]

    owner.end(FIRST, BROKEN)
    owner.settle()
    assert owner.replies() == [(1, "deadline_exceeded")]
    assert withdrawn(owner) == ["1"]
    assert owner.records(PARKED) == owner.records(JOURNAL) == {}
    assert owner.partition.counters.failures == 0
    # What still comes is for nobody.
    owner.receive(replies(1, [1], ["late"]))
    owner.settle()
    assert owner.resumed == []


def test_a_handler_that_ends_well_all_the_same_has_its_effect() -> None:
    owner = awaiting_owner(time_left_ms=50)
    owner.pass_time(51)
    owner.end(FIRST)
    owner.settle()

    assert owner.replies() == [(1, "ended")]


def test_a_handler_whose_caller_has_no_deadline_awaits_as_long_as_it_likes() -> None:
    owner = awaiting_owner()
    owner.pass_time(1_000_000)

    assert owner.interrupted == []


def test_what_a_handler_calls_inherits_its_deadline_and_that_it_expires() -> None:
    owner = awaiting_owner(time_left_ms=50)
    (call,) = calls_to(owner)

    assert call.time_left_ms == 50
    assert call.extras is not None
    assert call.extras[0].expires


@pytest.mark.parametrize(
    ("left_ms", "timeout_ms", "sent_ms", "expires"),
    [(50, 10, 10, True), (50, 90, 50, True), (None, 10, None, False)],
)
def test_a_timeout_makes_a_deadline_earlier(
    left_ms: int | None, timeout_ms: float, sent_ms: int | None, expires: bool
) -> None:
    owner = urgent_owner(function=make_function(is_async=True))
    owner.arrive(1, ["a"], time_left_ms=left_ms)
    owner.finish(suspended={0})
    owner.partition.calls.opened(FIRST, 1, PEER, "x", b"\xc0", owner.now_ms, timeout_ms=timeout_ms)
    owner.collect()
    owner.settle()
    (call,) = calls_to(owner)

    assert call.time_left_ms == sent_ms
    assert call.extras is not None
    assert call.extras[0].expires is expires


def test_a_timeout_before_the_aim_of_a_function_expires_and_the_aim_does_not() -> None:
    owner = urgent_owner(function=make_function(is_async=True, slo="50ms"))
    owner.arrive(1, ["a", "b"])
    owner.finish(suspended={0})
    owner.finish(suspended={0})
    for number, timeout_ms in ((1, 10.0), (2, 90.0)):
        owner.partition.calls.opened(
            f"{CLIENT}:{number}", 1, PEER, "x", b"\xc0", owner.now_ms, timeout_ms=timeout_ms
        )
    owner.collect()
    owner.settle()

    told = [(each.time_left_ms, each.extras and each.extras[0].expires) for each in calls_to(owner)]
    assert told == [(10, True), (50, False)]


def test_a_call_that_timed_out_is_taken_back() -> None:
    owner = awaiting_owner()
    owner.expire(FIRST)
    owner.settle()

    assert withdrawn(owner) == ["1"]
    assert [each.error.code for each in owner.resumed if each.error] == ["deadline_exceeded"]
    owner.end(FIRST)
    owner.settle()
    assert withdrawn(owner) == ["1"]


def test_deadlines_of_handlers_that_have_ended_are_forgotten() -> None:
    owner = urgent_owner(function=make_function(is_async=True))
    for number in range(1, 1_001):
        owner.arrive(number, ["a"], time_left_ms=1_000_000)
        owner.finish(suspended={0})
        owner.end(f"{CLIENT}:{number}")
        owner.settle()

    assert len(owner.partition._awaiting.expiries) <= 2 + EXPIRIES_SPARE


# Withdrawal


def test_a_call_is_taken_back_from_the_queue() -> None:
    owner = urgent_owner()
    owner.held = True
    owner.arrive(1, ["a", "b"])
    withdraw(owner, 3, 1)
    assert owner.partition.queued == 1
    owner.settle()
    assert owner.replies() == [(1, "cancelled")]
    owner.held = False
    owner.take()
    owner.settle()

    assert owner.replies() == [(1, "cancelled"), (2, "done b")]
    assert owner.partition.counters.withdrawn == 1
    assert position(owner) == 3
    assert owner.records(AHEAD) == {}


def test_a_call_taken_back_because_it_is_late_is_answered_so() -> None:
    owner = urgent_owner(function=make_function(is_async=True))
    owner.arrive(1, ["a"], time_left_ms=100)
    owner.finish(suspended={0})
    owner.arrive(2, ["a", "a"], time_left_ms=100)
    owner.settle()
    owner.arrive(4, ["2", "1"], kind=Kind.CANCEL_CALL, payloads=[True, True])
    assert owner.interrupted == [FIRST]
    owner.end(FIRST, BROKEN)
    owner.settle()

    assert owner.replies() == [
        (2, "deadline_exceeded"),
        (1, "deadline_exceeded"),
        (3, "done a"),
    ]
    assert [each.message.number for each in owner.partition.unrun] == [2]
    assert owner.partition.counters.expired == 2


def test_a_withdrawal_is_on_record_before_what_stands_before_it_is_done() -> None:
    owner = urgent_owner()
    owner.held = True
    owner.arrive(1, ["a", "b", "c"])
    withdraw(owner, 4, 2)
    owner.settle()
    assert ahead(owner) == [2, 4]

    heir = owner.take_over()
    heir.arrive(1, ["a", "b", "c"])
    withdraw(heir, 4, 2)
    heir.settle()
    assert sorted(heir.replies()) == [(1, "done a"), (2, "cancelled"), (3, "done c")]
    assert position(heir) == 4
    assert heir.records(AHEAD) == {}


@pytest.mark.parametrize("source", [CLIENT, PEER])
def test_a_send_is_not_taken_back(source: str) -> None:
    owner = urgent_owner()
    owner.held = True
    owner.arrive(1, ["a"], kind=Kind.SEND, source=source)
    withdraw(owner, 2, 1, source=source)
    owner.take()

    assert owner.keys_running() == [["a"]]


def test_a_running_call_ends_and_is_answered_as_it_would_have_been() -> None:
    owner = urgent_owner()
    owner.arrive(1, ["a"])
    withdraw(owner, 2, 1)
    owner.settle()

    assert owner.replies() == [(1, "done a")]
    assert position(owner) == 2


def test_a_run_beside_the_loop_that_was_taken_back_is_not_tried_again() -> None:
    owner = urgent_owner()
    owner.pace.aside = True
    owner.arrive(1, ["a"])
    withdraw(owner, 2, 1)
    owner.finish(failed={0: BROKEN})
    owner.settle()

    assert owner.replies() == [(1, "cancelled")]
    assert owner.partition.state_editor.hold("a")


def test_a_handler_that_awaits_is_interrupted_when_its_call_is_taken_back() -> None:
    owner = awaiting_owner()
    withdraw(owner, 2, 1)
    assert owner.interrupted == [FIRST]
    withdraw(owner, 3, 1)
    assert owner.interrupted == [FIRST]
    owner.end(FIRST, BROKEN)
    owner.settle()

    assert owner.replies() == [(1, "cancelled")]
    assert withdrawn(owner) == ["1"]
    assert position(owner) == 3


def test_a_handler_taken_back_during_its_first_step_is_interrupted_when_it_awaits() -> None:
    owner = urgent_owner(function=make_function(is_async=True))
    owner.pace.aside = True
    owner.arrive(1, ["a"])
    withdraw(owner, 2, 1)
    assert owner.interrupted == []
    owner.finish(suspended={0})

    assert owner.interrupted == [FIRST]


def test_a_call_taken_back_behind_a_busy_key_ends_at_once() -> None:
    owner = urgent_owner(function=make_function(is_async=True))
    owner.arrive(1, ["a"])
    owner.finish(suspended={0})
    owner.arrive(2, ["a", "a"])
    owner.settle()
    withdraw(owner, 4, 2)
    owner.settle()

    assert owner.replies() == [(2, "cancelled")]
    assert set(owner.records(PARKED)) == {FIRST, f"{CLIENT}:3"}
    owner.end(FIRST)
    assert owner.ids_running() == [[f"{CLIENT}:3"]]


def test_a_call_that_waits_for_a_retry_is_taken_back_at_once() -> None:
    owner = urgent_owner()
    owner.arrive(1, ["a"])
    owner.finish(failed={0: BROKEN})
    owner.settle()
    withdraw(owner, 2, 1)
    owner.settle()

    assert owner.replies() == [(1, "cancelled")]
    assert owner.partition.state_editor.hold("a")


def test_the_next_owner_takes_a_recorded_call_back() -> None:
    heir = awaiting_owner().take_over()
    heir.finish(suspended={0})
    withdraw(heir, 2, 1)
    assert heir.interrupted == [FIRST]
    heir.end(FIRST, BROKEN)
    heir.settle()

    assert heir.replies() == [(1, "cancelled")]
    assert withdrawn(heir) == ["1"]


@pytest.mark.parametrize("number", [1, 2, 3, 99])
def test_a_withdrawal_of_what_is_over_or_never_was_changes_nothing(number: int) -> None:
    owner = urgent_owner()
    owner.arrive(1, ["a"])
    owner.settle()
    withdraw(owner, 2, number)
    owner.arrive(3, ["b"])
    owner.settle()

    assert owner.replies() == [(1, "done a"), (3, "done b")]
    assert position(owner) == 3


def test_a_call_that_was_taken_back_is_not_remembered_and_runs_when_asked_again() -> None:
    owner = awaiting_owner(extras={0: Extra(idempotency_key="once")})
    withdraw(owner, 2, 1)
    owner.end(FIRST, BROKEN)
    owner.settle()
    owner.arrive(3, ["a"], extras={0: Extra(idempotency_key="once")})
    owner.settle()
    owner.arrive(4, ["a"], extras={0: Extra(idempotency_key="once")})
    owner.settle()

    assert owner.replies() == [(1, "cancelled"), (3, "done a"), (4, "done a")]
    assert owner.partition.counters.runs == 2


def test_who_asked_for_the_same_runs_if_the_first_is_taken_back_before_it_runs() -> None:
    owner = urgent_owner(function=make_function(kind="stateless"))
    once = {0: Extra(idempotency_key="once")}
    owner.arrive(1, ["a"], extras=once)
    owner.load()
    owner.finish(failed={0: BROKEN})
    owner.arrive(2, ["a"], extras=once)
    owner.settle()
    owner.arrive(3, ["a"], extras=once)
    owner.settle()
    # The one behind it wants the answer, so it goes on.
    withdraw(owner, 4, 1)
    owner.settle()
    assert owner.replies() == []
    withdraw(owner, 5, 2)
    owner.settle()
    assert owner.replies() == [(2, "cancelled")]
    owner.pass_time(20)
    owner.settle()

    assert sorted(owner.replies()) == [(1, "done a"), (2, "cancelled"), (3, "done a")]


def test_who_asked_for_the_same_runs_if_the_first_expires() -> None:
    owner = urgent_owner(function=make_function(kind="stateless"))
    once = {0: Extra(idempotency_key="once")}
    owner.arrive(1, ["a"], extras=once, time_left_ms=5)
    owner.load()
    owner.finish(failed={0: BROKEN})
    owner.arrive(2, ["a"], extras=once)
    owner.settle()
    owner.pass_time(20)
    owner.settle()

    assert sorted(owner.replies()) == [(1, "deadline_exceeded"), (2, "done a")]
    assert owner.partition._parts.records.idempotency.claims == {}


def test_a_full_partition_still_takes_withdrawals() -> None:
    owner = urgent_owner(limits=Limits(queue_max=2))
    owner.held = True
    owner.arrive(1, ["a", "b"])
    owner.arrive(3, ["c"])
    assert [each.error.code for each in owner.refusals] == ["overloaded"]
    withdraw(owner, 3, 1)
    owner.arrive(4, ["c"])

    assert len(owner.refusals) == 1
    assert owner.partition.queued == 2


def test_withdrawals_are_refused_when_too_much_is_done_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channels, "AHEAD_MAX", 4)
    owner = urgent_owner()
    owner.held = True
    owner.arrive(1, ["a"])
    number = 2
    while not owner.refusals and number < 100:
        owner.arrive(number, ["b"])
        withdraw(owner, number + 1, number)
        number += 2
    assert owner.refusals[0].error.code == "overloaded"
    owner.settle()
    assert len(ahead(owner)) == 4

    owner.held = False
    owner.take()
    owner.settle()
    assert owner.records(AHEAD) == {}


def test_no_more_is_answered_as_infeasible_than_a_commit_should_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channels, "AHEAD_MAX", 4)
    urgency = Urgency(LeastLaxity(), TenMs())
    owner = urgent_owner(
        function=make_function(infeasible="refuse"), urgency=urgency, backlog=LaxityQueue()
    )
    owner.held = True
    owner.arrive(1, ["a"])
    for number in range(2, 12):
        owner.arrive(number, ["b"], time_left_ms=1)
    owner.settle()

    assert ahead(owner) == [2, 3, 4, 5]
    assert owner.partition.queued == 7


def test_a_withdrawal_behind_a_refused_call_is_refused_with_it() -> None:
    owner = urgent_owner(limits=Limits(queue_max=1))
    owner.held = True
    owner.arrive(1, ["a"])
    owner.arrive(2, ["b"])
    withdraw(owner, 3, 2)
    owner.settle()

    assert position(owner) == 0
    assert [(each.first, each.error.code) for each in owner.refusals] == [(2, "overloaded")]


def test_a_call_that_was_taken_back_before_it_left_does_not_leave() -> None:
    owner = urgent_owner(function=make_function(is_async=True))
    owner.arrive(1, ["a"])
    owner.finish(suspended={0})
    owner.call(FIRST)
    withdraw(owner, 2, 1)
    owner.end(FIRST, BROKEN)
    owner.settle()

    assert owner.sent() == []
    assert withdrawn(owner) == []
    assert owner.replies() == [(1, "cancelled")]


def test_a_lost_commit_does_not_lose_a_withdrawal() -> None:
    owner = urgent_owner()
    owner.held = True
    owner.arrive(1, ["a", "b"])
    withdraw(owner, 3, 2)
    owner.commit(Outcome.UNKNOWN)
    owner.commit()

    assert owner.replies() == [(2, "cancelled")]


def test_stale_numbers_of_a_batch_are_not_taken_back_twice() -> None:
    owner = urgent_owner()
    owner.held = True
    owner.arrive(1, ["a", "b"])
    withdraw(owner, 3, 1)
    owner.receive(batch(3, ["1", "2"], kind=Kind.CANCEL_CALL))
    owner.settle()

    assert owner.replies() == [(1, "cancelled"), (2, "cancelled")]
    assert position(owner) == 4
