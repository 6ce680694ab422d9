"""Side effects of handlers: on record before their handlers go on, and then not done again."""

from __future__ import annotations

import msgspec
import pytest

from sublet.runtime.partition.model.early_ends import WITHDRAWN
from sublet.runtime.protocol.frames import ErrorInfo
from sublet.statestore.contract import JOURNAL, PARKED, Outcome
from tests.unit.partition.harness import BROKEN, CLIENT, Owner, make_function, replies

FIRST = f"{CLIENT}:1"
FAILED = ErrorInfo("side_effect_failed", "no route")


def performing_owner() -> Owner:
    """Return an owner whose handler of message 1 does its side effect "pay" right now."""
    owner = Owner(make_function(is_async=True))
    owner.arrive(1, ["a"])
    owner.finish(suspended={0})
    owner.begin(FIRST, "pay")
    owner.settle()
    assert owner.performing == [(FIRST, "pay")]
    return owner


def told(owner: Owner) -> list[tuple[int | str, object]]:
    return [
        (each.call, each.error.code if each.error else msgspec.msgpack.decode(each.result))
        for each in owner.resumed
    ]


def run_again(owner: Owner) -> None:
    """Let the handler of message 1 come to its side effect once more."""
    owner.resumed.clear()
    owner.performing.clear()
    owner.finish(suspended={0})
    owner.begin(FIRST, "pay")
    owner.settle()


def test_a_handler_goes_on_only_when_the_result_is_stored() -> None:
    owner = performing_owner()
    owner.performed(FIRST, "pay", 5)
    assert told(owner) == []
    assert list(owner.records(JOURNAL)) == []

    owner.commit(Outcome.UNKNOWN)
    assert told(owner) == []
    owner.commit()

    assert told(owner) == [("pay", 5)]
    assert list(owner.records(JOURNAL)) == [f"{FIRST}/run/pay"]
    assert list(owner.records(PARKED)) == [FIRST]


def test_a_result_that_waits_for_the_commit_in_flight_is_in_the_next_one() -> None:
    owner = performing_owner()
    owner.arrive(2, ["b"])
    owner.finish()
    owner.performed(FIRST, "pay", 5)
    owner.commit()
    assert told(owner) == []

    owner.commit()
    assert told(owner) == [("pay", 5)]


def test_the_next_attempt_gets_the_recorded_result() -> None:
    owner = performing_owner()
    owner.performed(FIRST, "pay", 5)
    owner.settle()
    owner.end(FIRST, BROKEN)
    owner.settle()
    owner.pass_time(20)
    run_again(owner)

    assert told(owner) == [("pay", 5)]
    assert owner.performing == []


def test_the_next_owner_gets_the_recorded_result() -> None:
    owner = performing_owner()
    owner.performed(FIRST, "pay", 5)
    owner.settle()
    heir = owner.take_over()
    run_again(heir)

    assert told(heir) == [("pay", 5)]
    assert heir.performing == []


def test_what_was_done_and_not_stored_is_done_again() -> None:
    owner = performing_owner()
    owner.performed(FIRST, "pay", 5)
    heir = owner.take_over()
    run_again(heir)

    assert heir.performing == [(FIRST, "pay")]
    assert told(heir) == []
    # The former owner is fenced, and its handler waits in vain.
    owner.commit()
    assert told(owner) == []


def test_a_failure_is_told_to_the_next_owner_but_done_again_in_the_next_attempt() -> None:
    owner = performing_owner()
    owner.performed(FIRST, "pay", error=FAILED)
    owner.settle()
    heir = owner.take_over()
    run_again(heir)
    assert told(heir) == [("pay", "side_effect_failed")]

    heir.end(FIRST, BROKEN)
    heir.settle()
    assert list(heir.records(JOURNAL)) == []
    heir.pass_time(20)
    run_again(heir)

    assert heir.performing == [(FIRST, "pay")]
    assert told(heir) == []


def test_side_effects_and_calls_do_not_mistake_each_other() -> None:
    owner = performing_owner()
    owner.performed(FIRST, "pay", 5)
    owner.call(FIRST)
    owner.settle()
    owner.begin(FIRST, "1")
    owner.performed(FIRST, "1", "one")
    owner.settle()
    owner.receive(replies(1, [1], ["yes"]))

    assert told(owner) == [("pay", 5), ("1", "one"), (1, "yes")]
    heir = owner.take_over()
    run_again(heir)
    heir.begin(FIRST, "1")
    heir.settle()
    assert told(heir) == [("pay", 5), ("1", "one")]


def test_the_end_of_a_message_deletes_its_journal() -> None:
    owner = performing_owner()
    owner.performed(FIRST, "pay", 5)
    owner.settle()
    owner.end(FIRST)
    owner.settle()

    assert owner.records(JOURNAL) == {}
    assert owner.records(PARKED) == {}
    assert owner.replies() == [(1, "ended")]


@pytest.mark.parametrize("stored", [False, True])
def test_a_handler_that_ends_meanwhile_is_told_nothing(stored: bool) -> None:
    owner = performing_owner()
    if stored:
        owner.performed(FIRST, "pay", 5)
    owner.partition._parts.cancellation.cancel(CLIENT, 1, WITHDRAWN, owner.now_ms)
    owner.collect()
    owner.end(FIRST, BROKEN)
    owner.performed(FIRST, "pay", 6)
    owner.settle()

    assert told(owner) == []
    assert owner.records(JOURNAL) == {}
    assert owner.partition._journal.performing == set()


def test_who_was_given_up_and_comes_late_is_believed() -> None:
    owner = performing_owner()
    owner.end(FIRST, BROKEN)
    owner.settle()
    owner.pass_time(20)
    run_again(owner)
    assert owner.performing == [(FIRST, "pay")]
    # Of the first attempt, which nobody could stop; then of the second.
    owner.performed(FIRST, "pay", "early")
    owner.performed(FIRST, "pay", "late")
    owner.settle()
    owner.performed(FIRST, "pay", "later")
    owner.begin(FIRST, "pay")

    assert told(owner) == [("pay", "early")] * 3


def test_who_asks_while_it_is_being_stored_is_told_then() -> None:
    owner = performing_owner()
    owner.performed(FIRST, "pay", 5)
    owner.begin(FIRST, "pay")
    assert told(owner) == []
    owner.settle()

    assert told(owner) == [("pay", 5)]


def test_a_partition_leaves_when_its_side_effects_are_on_record() -> None:
    owner = performing_owner()
    owner.partition.leave(owner.now_ms)
    owner.collect()
    assert owner.left == []
    owner.performed(FIRST, "pay", 5)
    assert owner.left == []
    owner.settle()

    assert [each.settled for each in owner.left] == [True]
    # Its handler goes on, and must not begin another one.
    owner.performing.clear()
    owner.begin(FIRST, "more")
    assert owner.performing == []
    heir = owner.take_over()
    run_again(heir)
    assert told(heir) == [("pay", 5)]


def test_a_partition_that_must_leave_at_once_does_not_wait_for_side_effects() -> None:
    owner = performing_owner()
    owner.partition.leave(owner.now_ms, at_once=True)
    owner.collect()

    assert len(owner.left) == 1


def test_a_handler_that_ends_lets_its_partition_leave() -> None:
    owner = performing_owner()
    owner.partition.leave(owner.now_ms)
    owner.collect()
    owner.end(FIRST, BROKEN)
    owner.settle()

    assert len(owner.left) == 1
