"""A partition that comes to rest so that another worker can go on."""

from __future__ import annotations

from sublet.functions.effects import Delayed
from sublet.statestore.contract import StateRow
from tests.unit.partition.harness import CLIENT, NAME, Owner, make_function


def test_an_idle_partition_can_go_at_once() -> None:
    owner = Owner()
    owner.leave()

    assert [(each.last_index, each.settled) for each in owner.left] == [(0, True)]


def test_what_runs_ends_and_is_committed_first() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.leave()
    assert owner.left == []

    owner.finish()
    assert owner.left == []
    owner.commit()

    assert [(each.last_index, each.settled) for each in owner.left] == [(1, True)]
    assert owner.replies() == [(1, "done a")]


def test_nothing_new_is_taken_and_whoever_sends_is_told_so() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    owner.leave()
    owner.arrive(2, ["b"])

    assert [(each.source, each.first, each.error.code) for each in owner.refusals] == [
        (CLIENT, 2, "not_owner")
    ]
    owner.settle()
    assert owner.take_over().partition.queued == 0


def test_what_waits_is_left_to_the_next_owner() -> None:
    owner = Owner()
    owner.held = True
    owner.arrive(1, ["a"])
    owner.leave()

    assert owner.runs == []
    assert len(owner.left) == 1
    successor = owner.take_over()
    successor.arrive(1, ["a"])
    successor.settle()
    assert successor.replies() == [(1, "done a")]


def test_a_turn_that_was_promised_before_begins_nothing() -> None:
    owner = Owner()
    owner.held = True
    owner.arrive(1, ["a"])
    owner.leave()
    owner.take()

    assert owner.runs == []


def test_what_runs_too_long_is_not_waited_for_and_done_again() -> None:
    owner = Owner()
    owner.pace.aside = True
    owner.arrive(1, ["a"])
    owner.leave()
    owner.commit()  # The message is on record.
    assert owner.left == []

    owner.leave(at_once=True)

    assert [each.settled for each in owner.left] == [True]
    assert owner.partition.keys_unsettled() == {"a"}
    successor = owner.take_over()
    successor.settle()
    assert successor.replies() == [(1, "done a")]


def test_a_run_that_is_nowhere_on_record_is_left_without_a_trace() -> None:
    owner = Owner(make_function(is_async=True))
    owner.arrive(1, ["a"])
    owner.finish(suspended=[0])
    owner.commit()
    owner.arrive(2, ["b"])
    assert owner.commits == []  # Its position would be in it, and the message nowhere.
    owner.leave()
    assert owner.left == []
    owner.leave(at_once=True)

    assert [each.settled for each in owner.left] == [False]
    successor = owner.take_over()
    successor.arrive(1, ["a", "b"])
    successor.settle()
    assert sorted(successor.replies()) == [(1, "done a"), (2, "done b")]


def test_handlers_that_wait_for_others_do_not_keep_it() -> None:
    owner = Owner(make_function(is_async=True))
    owner.arrive(1, ["a"])
    owner.finish(suspended=[0])
    owner.leave()
    assert owner.left == []
    owner.commit()

    assert [each.settled for each in owner.left] == [True]
    assert owner.partition.keys_unsettled() == {"a"}


def test_no_timer_fires_any_more() -> None:
    owner = Owner()
    owner.arrive(1, ["a"])
    due_ms = owner.partition.clock_ms(owner.now_ms) + 10
    owner.finish(effects=[Delayed("1.1", due_ms, NAME, "k", b"\xc0")])
    owner.leave()
    owner.pass_time(20)
    commit = owner.commit()

    assert commit.index == 1
    assert [each.last_index for each in owner.left] == [1]


def test_states_that_are_not_committed_are_not_settled() -> None:
    owner = Owner(make_function(state=int))
    owner.arrive(1, ["a"])
    owner.finish(rows=[StateRow("a", b"", b"\x01")])
    owner.arrive(2, ["b"])
    owner.finish(rows=[StateRow("b", b"", b"\x01")])

    assert owner.partition.keys_unsettled() == {"b"}
